"""Strictly better, equal or worse: the outcome of one comparison of two runs, and of many for a claim.

Two gaps are equal where their ratio is within what the same run, made again, differs by:

    EQUAL      1.1    but for the next line: as defined, another seed of the start vectors moves AUQ and its controls
                      by up to 3 % (results/paper/seeds.json), another order of operations by 0.4 %
    SCATTER    1.25   as released, multinomial and SVM, where a method with uncertainty weights takes part: the same
                      seed, run twice, gave gaps up to 21 % apart (results/paper/README.md)

A claim that something is better holds ("yes") where every comparison is strictly better, "partly" where some are; it
is a "tie" where all are equal. A tie is no win.

A reading of an experiment is (protocol, reduction).

A run is one number: its gap early, at the end, after an iteration, or when it reached a gap.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from auqadmm.paper.bundle import CurveLine
from auqadmm.paper.curves import READING, panel_title
from auqadmm.report.content import Cell
from auqadmm.report.style import method_style

# ---------------------------------------------------------------------- a run in one number
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


def early_gap(run: Sequence[CurveLine]) -> float:
    return gap_at(run, EARLY)


def last_gap(run: Sequence[CurveLine]) -> float:
    return gap_at(run, run[-1].iteration)


def times(runs: dict[str, list[CurveLine]]) -> tuple[Callable[[Sequence[CurveLine]], float], ...]:
    """Early and at the end; only the latter where runs are short."""
    return (early_gap, last_gap) if max(run[-1].iteration for run in runs.values()) > EARLY else (last_gap,)


def said_when(runs: dict[str, list[CurveLine]], when: Callable[[Sequence[CurveLine]], float]) -> str:
    last = max(run[-1].iteration for run in runs.values())
    return f"after {min(EARLY, last) if when is early_gap else last}"


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


# ---------------------------------------------------------------------- comparisons
EQUAL = 1.1
SCATTER = 1.25
# the elastic net's runs as released did not vary
SCATTERED = ("fig-multinomial", "fig-svm", "fig-rank", "fig-workers")


def tolerance(figure: str, protocol: str, methods: Iterable[str]) -> float:
    """The ratio of gaps up to which runs of a figure are equal."""
    weighted = any("uq" in method for method in methods)
    return SCATTER if protocol == "released" and figure in SCATTERED and weighted else EQUAL


def outcome(own: float, other: float, tie: float = EQUAL) -> str:
    """Of two numbers of which the smaller is the better one."""
    if own * tie < other:
        return "better"
    return "worse" if own > tie * other else "equal"


def compared(panel: str, runs: dict[str, list[CurveLine]], own: str, rivals: Sequence[str]) -> list[Cell]:
    """A method against the best of its rivals, after ten iterations and at the end."""
    if own not in runs or not (rivals := [m for m in rivals if m in runs]):
        return []
    cells = []
    for when in times(runs):
        mine = when(runs[own])
        best = min(rivals, key=lambda m: when(runs[m]))
        line = runs[own][0]
        result = outcome(mine, when(runs[best]), tolerance(line.figure, line.protocol, (own, best)))
        numbers = f"{short(own)} {number(mine)}, {short(best)} {number(when(runs[best]))}"
        cells.append(Cell(f"{panel_title(panel)} {said_when(runs, when)}", result, numbers))
    return cells


def listed(head: str, cells: Iterable[Cell]) -> str:
    """One line per comparison, with its outcome; empty where there are none."""
    parts = [f"{cell.where}: {cell.outcome}, {cell.number}" for cell in cells]
    return "\n".join([head, *parts]) if parts else ""


def long_enough(lines: Sequence[CurveLine]) -> bool:
    """Runs shorter than ten iterations are not compared."""
    return bool(lines) and max(line.iteration for line in lines) >= EARLY


def holds(cells: Sequence[Cell], wanted: str = "better") -> str:
    """A verdict from comparisons: how many of them have the outcome that is claimed."""
    if not cells:
        return "open"
    outcomes = [cell.outcome for cell in cells]
    if wanted not in outcomes:
        return "tie" if set(outcomes) == {"equal"} else "no"
    return "yes" if set(outcomes) == {wanted} else "partly"


def short(method: str) -> str:
    """The name of a method in a list of numbers."""
    if method.startswith("auq-rank-"):
        return f"rank {method.removeprefix('auq-rank-')}"
    return method_style(method).short or method


MODELS = {"fig-elastic": "elastic net", "fig-multinomial": "multinomial", "fig-svm": "SVM"}

Reading = tuple[str, str]


def by_reading(lines: Iterable[CurveLine]) -> dict[Reading, list[CurveLine]]:
    """(protocol, reduction) → lines."""
    readings: dict[Reading, list[CurveLine]] = {}
    for line in lines:
        readings.setdefault((line.protocol, line.reduction), []).append(line)
    return readings


def reading_words(reading: Reading) -> str:
    """The protocol in words, e.g. "as defined, means over rows"."""
    return f"as {reading[0]}, {READING[reading[1]]}"
