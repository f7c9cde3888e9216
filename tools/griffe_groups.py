"""An extension of griffe: parameters that share one description get one entry each in the reference.

    max_iter, time_limit                       max_iter
        Budgets.                   becomes         Budgets.
                                               time_limit
                                                   Budgets.

griffe gives all names of a group the type and default of the first one; apart, each has its own.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

SECTION = re.compile(r"^([A-Z][\w ]+)\n-{3,}\n", re.MULTILINE)
GROUP = re.compile(r"^(\w+(?:, \w+)+)((?: :.*)?\n(?:(?: {4}.*)?\n)*(?: {4}.*)?)", re.MULTILINE)


def apart(text: str) -> str:
    """A docstring whose grouped parameters and attributes stand one by one."""
    parts = SECTION.split(text)
    for i in range(1, len(parts), 2):
        if parts[i] in ("Parameters", "Attributes"):
            parts[i + 1] = GROUP.sub(_each, parts[i + 1])
    titles = {i: f"{parts[i]}\n{'-' * len(parts[i])}\n" for i in range(1, len(parts), 2)}
    return "".join(titles.get(i, part) for i, part in enumerate(parts))


def _each(match: re.Match[str]) -> str:
    names, rest = match.groups()
    body = rest.rstrip("\n")
    return "\n".join(f"{name}{body}" for name in names.split(", ")) + rest[len(body) :]


class Groups(griffe.Extension):
    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = apart(obj.docstring.value)
