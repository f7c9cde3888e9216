"""A run in one number: its gap early, at the end, after an iteration; when it reached a gap."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from auqadmm.paper.results import CurveLine

EARLY = 10  # iterations after which methods are compared first
# below this a gap is the rounding of the optimum
LEAST_GAP = 1e-10


def gap_at(run: Sequence[CurveLine], iteration: int) -> float:
    """The gap after an iteration, or after the last known one before it; never below rounding."""
    known = [line.gap for line in run if line.gap is not None and line.iteration <= iteration]
    return max(known[-1], LEAST_GAP) if known else math.inf


def reached(run: Sequence[CurveLine], gap: float) -> int | None:
    """The first iteration within a gap."""
    return next((line.iteration for line in run if line.gap is not None and line.gap <= gap), None)


def early(run: Sequence[CurveLine]) -> float:
    return gap_at(run, EARLY)


def last(run: Sequence[CurveLine]) -> float:
    return gap_at(run, run[-1].iteration)


def times(runs: dict[str, list[CurveLine]]) -> tuple[Callable[[Sequence[CurveLine]], float], ...]:
    """Early and at the end; only the latter where runs are short."""
    return (early, last) if max(run[-1].iteration for run in runs.values()) > EARLY else (last,)


def when(runs: dict[str, list[CurveLine]], when: Callable[[Sequence[CurveLine]], float]) -> str:
    last = max(run[-1].iteration for run in runs.values())
    return f"after {min(EARLY, last) if when is early else last}"


def shared_iterations(runs: dict[str, list[CurveLine]]) -> list[int]:
    return sorted(set.intersection(*({line.iteration for line in run} for run in runs.values())))


def spread(gaps: Iterable[float]) -> float:
    values = list(gaps)
    return max(values) / min(values)


def number(gap: float) -> str:
    """Two digits, without an exponent where none is needed: 0.56, 9.4e-9, 116; ≤ 1e-10 at the level of rounding."""
    if gap <= LEAST_GAP:
        return f"≤ {LEAST_GAP:.0e}"
    return f"{gap:.0f}" if 99.5 <= gap < 1e6 else f"{gap:.2g}".replace("e-0", "e-")
