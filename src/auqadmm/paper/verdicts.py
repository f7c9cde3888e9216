"""The paper's claims compared with numbers: from a bundle of results to one verdict per claim and protocol.

    fastest    AUQ-ADMM decreases the objective fastest
    control    its gain is due to the uncertainty, and not to the size of the penalty
    improve    RB- and AC-ADMM improve on C-ADMM
    rank       the rank does not matter
    workers    more splittings do no harm
    weights    the weights look like class averages            (verdicts_on_weights.py)
    average    weighted averaging helps in the first iteration
    cost       weights are computed at very low cost

A verdict lists its comparisons, each strictly better, equal or worse (outcomes.py), and counts them. Gaps are relative
to an independent optimum. Our own methods are not part of verdicts on the paper.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from auqadmm.paper import gaps, outcomes
from auqadmm.paper.bundle import Bundle
from auqadmm.paper.curves import by_panel, panel_title
from auqadmm.paper.outcomes import (
    MODELS,
    Reading,
    by_reading,
    compared,
    listed,
    long_enough,
    outcome,
    said,
    short,
    tolerance,
)
from auqadmm.paper.results import CurveLine
from auqadmm.paper.spec import CONTROLS, METHODS
from auqadmm.paper.verdicts_on_weights import average, cost, weights
from auqadmm.report.content import OUTCOMES, Cell, Verdict

ROBUST = 1.25  # growth with the number of workers up to which a method counts as robust
TARGETS = (1e-6, 1e-4, 1e-2, 1e-1)
ADAPTIVE = ("rb-admm", "rb-admm-paper", "ac-admm")


def verdicts(bundle: Bundle) -> tuple[Verdict, ...]:
    """All verdicts that the results allow, claim by claim."""
    judged: list[Verdict] = []
    for judge in (fastest, control, improve):
        for figure, model in MODELS.items():
            for reading, lines in by_reading(bundle.of(figure)).items():
                judged.append(judge(figure, model, reading, lines))
    for figure, verdict in (("fig-rank", rank), ("fig-workers", workers)):
        judged += [verdict(reading, lines) for reading, lines in by_reading(bundle.of(figure)).items()]
    return (*judged, *weights(bundle), *average(bundle), *cost(bundle))


def markdown(judged: Iterable[Verdict]) -> str:
    """The verdicts as a table for documents."""
    header = ["claim", "protocol", "holds", *OUTCOMES, "measured", "figure"]
    rows = [header, ["---"] * len(header)]
    for v in judged:
        counts = [str(count) if v.cells else "" for count in v.counts.values()]
        rows.append([v.claim, v.protocol, f"**{v.holds}**", *counts, _one_line(v.number), v.figure])
    return "".join(f"| {' | '.join(cells)} |\n" for cells in rows)


def _one_line(text: str) -> str:
    head, *rest = text.split("\n")
    return f"{head}: {'; '.join(rest)}" if rest else head


# ---------------------------------------------------------------------- comparisons of methods
def fastest(figure: str, model: str, reading: Reading, lines: Sequence[CurveLine]) -> Verdict:
    """Is AUQ's gap the smallest of the paper's methods, after ten iterations and at the end, on every data set?"""
    rivals = [m for m in METHODS if m != "auq-admm"]
    cells = [cell for panel, runs in by_panel(lines).items() for cell in compared(panel, runs, "auq-admm", rivals)]
    return Verdict(
        claim=f"AUQ-ADMM decreases the objective fastest: {model}",
        protocol=said(reading),
        holds=_holds(cells, lines),
        number=listed("gap, against the best other", cells),
        why=_why_fastest(reading, cells),
        figure=figure,
        cells=tuple(cells),
    )


def _why_fastest(reading: Reading, cells: Sequence[Cell]) -> str:
    if reading[0] == "released":
        return (
            "One local step covers about a tenth of the way to the local minimiser; a small penalty then lets local "
            "models move furthest. See the controls for what the weights add."
        )
    if all(cell.outcome == "better" for cell in cells):
        return "The weights sit where the local curvature is."
    return (
        "The interval [a, b_k] shrinks to a = 0.1, so AUQ turns into C-ADMM with ρ = 0.1, whatever the curvature says."
    )


def control(figure: str, model: str, reading: Reading, lines: Sequence[CurveLine]) -> Verdict:
    """Does AUQ beat controls with the same penalty but without its information?"""
    panels = by_panel(lines)
    cells = [cell for panel, runs in panels.items() for cell in compared(panel, runs, "auq-admm", tuple(CONTROLS))]
    return Verdict(
        claim=f"It is the uncertainty that helps, not the penalty's size: {model}",
        protocol=said(reading),
        holds=_holds(cells, lines),
        number=listed("gap, against the best control", cells),
        why="C(a): C-ADMM at ρ = a; perm: the same weights shuffled; mean: the same weights averaged. Where a control "
        "is equal, the weights' places carry nothing.",
        figure=figure,
        cells=tuple(cells),
    )


def improve(figure: str, model: str, reading: Reading, lines: Sequence[CurveLine]) -> Verdict:
    """Are the adaptive penalties of RB, as in textbooks and as printed, and of AC better than C-ADMM at first?"""
    by_method = {
        method: [cell for panel, runs in by_panel(lines).items() for cell in compared(panel, runs, method, ("c-admm",))]
        for method in ADAPTIVE
    }
    cells = [cell for own in by_method.values() for cell in own]
    counts = [
        f"{short(method)}: " + Verdict("", "", "", "", "", cells=tuple(own)).tally
        for method, own in by_method.items()
        if own
    ]
    return Verdict(
        claim=f"RB- and AC-ADMM improve on C-ADMM: {model}",
        protocol=said(reading),
        holds=_holds(cells, lines),
        number="\n".join([listed("gap, against C at ρ = 1", cells), *counts]) if cells else "",
        why="Residuals of local problems that are not solved say nothing about the penalty: every change makes it "
        "worse."
        if reading[0] == "released"
        else "All start from ρ = 1. Where that is a good penalty there is nothing to gain, and AC's first estimates "
        "lose; where a larger one is needed they find it, late.",
        figure=figure,
        cells=tuple(cells),
    )


# ---------------------------------------------------------------------- rank, workers
def rank(reading: Reading, lines: Sequence[CurveLine]) -> Verdict:
    """Every rank against the largest, and their largest difference."""
    panel, runs = next(iter(by_panel(lines).items()))
    *smaller, largest = runs
    cells = [cell for method in smaller for cell in compared(panel, runs, method, (largest,))]
    # a gap at the level of rounding has no size to compare
    shared = [k for k in gaps.shared_iterations(runs) if all(gaps.gap_at(run, k) > 1e-9 for run in runs.values())]
    spreads = {k: gaps.spread(gaps.gap_at(run, k) for run in runs.values()) for k in shared}
    worst = max(spreads, key=lambda k: spreads[k], default=0)
    factor = spreads.get(worst, math.nan)
    level = factor <= tolerance("fig-rank", reading[0], runs) and all(cell.outcome == "equal" for cell in cells)
    return Verdict(
        claim="The rank of the Hessian's approximation does not matter",
        protocol=said(reading),
        holds=("yes" if level else "partly" if factor <= 2 else "no") if long_enough(lines) else "open",
        number=listed(f"gap, against {short(largest)}", cells)
        + f"\nlargest ratio of gaps between ranks: {factor:.2f}, in iteration {worst}",
        why="The claim is that all are equal. Weights of rank 1 depend on the random start vector alone, not on the "
        "data: where rank 1 does as well as rank 100, the weights' content matters as little as their rank.",
        figure="fig-rank",
        cells=tuple(cells),
    )


def workers(reading: Reading, lines: Sequence[CurveLine]) -> Verdict:
    """How many times more iterations to a gap it takes with more workers than with the fewest, AUQ and C-ADMM."""
    panels = by_panel(lines)
    pairs = {
        name: (runs["auq-admm"], runs["c-admm"]) for name, runs in panels.items() if {"auq-admm", "c-admm"} <= set(runs)
    }
    claim = "AUQ-ADMM is robust to more splittings"
    if len(pairs) < 2:
        return Verdict(claim, said(reading), "open", "", "", "fig-workers")
    # the smallest gap that both reach everywhere; where there is none, the gaps at the end
    targets = [g for g in TARGETS if all(gaps.reached(run, g) for pair in pairs.values() for run in pair)]
    if targets:
        measured = {name: [float(gaps.reached(run, targets[0]) or 0) for run in pair] for name, pair in pairs.items()}
        what = f"iterations to a gap of {gaps.number(targets[0])}"
    else:
        measured = {name: [gaps.last(run) for run in pair] for name, pair in pairs.items()}
        what = "gap at the end"
    few, *more = measured.items()
    tie = tolerance("fig-workers", reading[0], ("auq-admm",))
    cells, own = [], math.nan
    for name, values in more:
        own, plain = (late / early for early, late in zip(few[1], values, strict=True))
        numbers = f"AUQ times {own:.2g}, C times {plain:.2g}"
        cells.append(Cell(f"from {panel_title(few[0])} to {name.split(', ')[-1]}", outcome(own, plain, tie), numbers))
    parts = [f"{panel_title(name)}: AUQ {gaps.number(x)}, C {gaps.number(y)}" for name, (x, y) in measured.items()]
    judged = _holds(cells, lines)
    return Verdict(
        claim=claim,
        protocol=said(reading),
        holds="partly" if judged == "yes" and own > ROBUST else judged,
        number="\n".join([what, *parts, *listed("growth", cells).split("\n")[1:]]),
        why="Robust: it grows by a strictly smaller factor than C-ADMM's, and by at most a quarter from the fewest to "
        "the most workers; partly: only the former. With means, other workers are another objective; gaps are relative "
        "to its own optimum.",
        figure="fig-workers",
        cells=tuple(cells),
    )


def _holds(cells: Sequence[Cell], lines: Sequence[CurveLine]) -> str:
    return outcomes.holds(cells) if long_enough(lines) else "open"
