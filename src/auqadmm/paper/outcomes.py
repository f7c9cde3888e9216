"""Strictly better, equal or worse: the outcome of one comparison of two runs, and of many for a claim.

Two gaps are equal where their ratio is within what the same run, made again, differs by:

    EQUAL      1.1    but for the next line: as defined, another seed of the start vectors moves AUQ and its controls
                      by up to 3 % (results/paper/seeds.json), another order of operations by 0.4 %
    SCATTER    1.25   as released, multinomial and SVM, where a method with uncertainty weights takes part: the same
                      seed, run twice, gave gaps up to 21 % apart (results/paper/README.md)

A claim that something is better holds ("yes") where every comparison is strictly better, "partly" where some are; it
is a "tie" where all are equal. A tie is no win.

A reading of an experiment is (protocol, reduction).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from auqadmm.paper import gaps
from auqadmm.paper.curves import READING, panel_title
from auqadmm.paper.results import CurveLine
from auqadmm.report.content import Cell
from auqadmm.report.style import method_style

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
    for when in gaps.times(runs):
        mine = when(runs[own])
        best = min(rivals, key=lambda m: when(runs[m]))
        line = runs[own][0]
        result = outcome(mine, when(runs[best]), tolerance(line.figure, line.protocol, (own, best)))
        numbers = f"{short(own)} {gaps.number(mine)}, {short(best)} {gaps.number(when(runs[best]))}"
        cells.append(Cell(f"{panel_title(panel)} {gaps.when(runs, when)}", result, numbers))
    return cells


def listed(head: str, cells: Iterable[Cell]) -> str:
    """One line per comparison, with its outcome; empty where there are none."""
    parts = [f"{cell.where}: {cell.outcome}, {cell.number}" for cell in cells]
    return "\n".join([head, *parts]) if parts else ""


def long_enough(lines: Sequence[CurveLine]) -> bool:
    """Runs shorter than ten iterations are not compared."""
    return bool(lines) and max(line.iteration for line in lines) >= gaps.EARLY


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


def said(reading: Reading) -> str:
    """The protocol in words, e.g. "as defined, means over rows"."""
    return f"as {reading[0]}, {READING[reading[1]]}"
