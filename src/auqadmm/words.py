"""Text that comes from data, on its way to a person: names, labels and values of files are never trusted."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

LONGEST_QUOTE = 60  # characters of a value that a sentence shows


def visible(text: str) -> str:
    """The text with everything that is not printable written out (`\\x1b`), so that no terminal interprets it."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def quoted(value: object, longest: int = LONGEST_QUOTE) -> str:
    """A name or a value in a sentence: in quotes if it is text, visible, and not longer than a line."""
    text = value if isinstance(value, str) else str(value)
    text = visible(text if len(text) <= longest else text[: longest - 1] + "…")
    return f"'{text}'" if isinstance(value, str) else text


def listed(values: Iterable[object], most: int = 5) -> str:
    """A few of many names."""
    names = list(values)
    return ", ".join(quoted(name) for name in names[:most]) + (", …" if len(names) > most else "")


def counted(number: int, what: str) -> str:
    """ "1 worker", "2 workers"."""
    return f"{number} {what}" if number == 1 else f"{number} {what}{'es' if what.endswith('s') else 's'}"


def short(names: Sequence[str]) -> list[str]:
    """Names of workers as short as they stay different: of "a/north.csv, site 'x'" the site, of "a/north.csv" north."""
    sites = [name.rpartition(", site '")[2].removesuffix("'") if ", site '" in name else None for name in names]
    stems = [re.sub(r"\.\w+$", "", name.replace("\\", "/").rpartition("/")[2]) for name in names]
    for tried in (sites, stems):
        if all(tried) and len(set(tried)) == len(names):
            return [str(name) for name in tried]
    return list(names)
