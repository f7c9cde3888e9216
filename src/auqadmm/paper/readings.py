"""The readings of an experiment, (protocol, reduction), and what they are called."""

from __future__ import annotations

from collections.abc import Iterable

from auqadmm.paper.curves import READING
from auqadmm.paper.results import CurveLine

MODELS = {"fig-elastic": "elastic net", "fig-multinomial": "multinomial", "fig-svm": "SVM"}

Reading = tuple[str, str]


def by_reading(lines: Iterable[CurveLine]) -> dict[Reading, list[CurveLine]]:
    """(protocol, reduction) → lines."""
    found: dict[Reading, list[CurveLine]] = {}
    for line in lines:
        found.setdefault((line.protocol, line.reduction), []).append(line)
    return found


def said(reading: Reading) -> str:
    """The protocol in words, e.g. "as defined, means over rows"."""
    return f"as {reading[0]}, {READING[reading[1]]}"
