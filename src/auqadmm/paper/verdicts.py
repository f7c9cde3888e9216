"""The paper's claims compared with numbers: from a bundle of results to one verdict per claim and protocol.

    fastest    AUQ-ADMM decreases the objective fastest
    control    its gain is due to the uncertainty, and not to the size of the penalty
    improve    RB- and AC-ADMM improve on C-ADMM
    rank       the rank does not matter
    workers    more splittings do no harm
    weights    the weights look like class averages
    average    weighted averaging helps in the first iteration
    cost       weights are computed at very low cost

A verdict lists its comparisons, each strictly better, equal or worse (outcomes.py), and counts them. Gaps are relative
to an independent optimum. Our own methods are not part of verdicts on the paper.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from auqadmm.paper import outcomes
from auqadmm.paper.bundle import Bundle, CurveLine
from auqadmm.paper.curves import by_panel, panel_title
from auqadmm.paper.images import error
from auqadmm.paper.outcomes import (
    MODELS,
    Reading,
    by_reading,
    compared,
    listed,
    long_enough,
    outcome,
    reading_words,
    short,
    tolerance,
)
from auqadmm.paper.spec import CONTROLS, METHODS
from auqadmm.report.content import OUTCOMES, Cell, ClaimVerdict

ROBUST = 1.25  # growth with the number of workers up to which a method counts as robust
TARGETS = (1e-6, 1e-4, 1e-2, 1e-1)
ADAPTIVE = ("rb-admm", "rb-admm-paper", "ac-admm")


def verdicts(bundle: Bundle) -> tuple[ClaimVerdict, ...]:
    """All verdicts that the results allow, claim by claim."""
    judged: list[ClaimVerdict] = []
    for judge in (fastest, control, improve):
        for figure, model in MODELS.items():
            for reading, lines in by_reading(bundle.of(figure)).items():
                judged.append(judge(figure, model, reading, lines))
    for figure, verdict in (("fig-rank", rank), ("fig-workers", workers)):
        judged += [verdict(reading, lines) for reading, lines in by_reading(bundle.of(figure)).items()]
    return (*judged, *weights(bundle), *average(bundle), *cost(bundle))


def markdown(judged: Iterable[ClaimVerdict]) -> str:
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
def fastest(figure: str, model: str, reading: Reading, lines: Sequence[CurveLine]) -> ClaimVerdict:
    """Is AUQ's gap the smallest of the paper's methods, after ten iterations and at the end, on every data set?"""
    rivals = [m for m in METHODS if m != "auq-admm"]
    cells = [cell for panel, runs in by_panel(lines).items() for cell in compared(panel, runs, "auq-admm", rivals)]
    return ClaimVerdict(
        claim=f"AUQ-ADMM decreases the objective fastest: {model}",
        protocol=reading_words(reading),
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


def control(figure: str, model: str, reading: Reading, lines: Sequence[CurveLine]) -> ClaimVerdict:
    """Does AUQ beat controls with the same penalty but without its information?"""
    panels = by_panel(lines)
    cells = [cell for panel, runs in panels.items() for cell in compared(panel, runs, "auq-admm", tuple(CONTROLS))]
    return ClaimVerdict(
        claim=f"It is the uncertainty that helps, not the penalty's size: {model}",
        protocol=reading_words(reading),
        holds=_holds(cells, lines),
        number=listed("gap, against the best control", cells),
        why="C(a): C-ADMM at ρ = a; perm: the same weights shuffled; mean: the same weights averaged. Where a control "
        "is equal, the weights' places carry nothing.",
        figure=figure,
        cells=tuple(cells),
    )


def improve(figure: str, model: str, reading: Reading, lines: Sequence[CurveLine]) -> ClaimVerdict:
    """Are the adaptive penalties of RB, as in textbooks and as printed, and of AC better than C-ADMM at first?"""
    by_method = {
        method: [cell for panel, runs in by_panel(lines).items() for cell in compared(panel, runs, method, ("c-admm",))]
        for method in ADAPTIVE
    }
    cells = [cell for own in by_method.values() for cell in own]
    counts = [
        f"{short(method)}: " + ClaimVerdict("", "", "", "", "", cells=tuple(own)).tally
        for method, own in by_method.items()
        if own
    ]
    return ClaimVerdict(
        claim=f"RB- and AC-ADMM improve on C-ADMM: {model}",
        protocol=reading_words(reading),
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
def rank(reading: Reading, lines: Sequence[CurveLine]) -> ClaimVerdict:
    """Every rank against the largest, and their largest difference."""
    panel, runs = next(iter(by_panel(lines).items()))
    *smaller, largest = runs
    cells = [cell for method in smaller for cell in compared(panel, runs, method, (largest,))]
    # a gap at the level of rounding has no size to compare
    shared = [
        k for k in outcomes.shared_iterations(runs) if all(outcomes.gap_at(run, k) > 1e-9 for run in runs.values())
    ]
    spreads = {k: outcomes.spread(outcomes.gap_at(run, k) for run in runs.values()) for k in shared}
    worst = max(spreads, key=lambda k: spreads[k], default=0)
    factor = spreads.get(worst, math.nan)
    level = factor <= tolerance("fig-rank", reading[0], runs) and all(cell.outcome == "equal" for cell in cells)
    return ClaimVerdict(
        claim="The rank of the Hessian's approximation does not matter",
        protocol=reading_words(reading),
        holds=("yes" if level else "partly" if factor <= 2 else "no") if long_enough(lines) else "open",
        number=listed(f"gap, against {short(largest)}", cells)
        + f"\nlargest ratio of gaps between ranks: {factor:.2f}, in iteration {worst}",
        why="The claim is that all are equal. Weights of rank 1 depend on the random start vector alone, not on the "
        "data: where rank 1 does as well as rank 100, the weights' content matters as little as their rank.",
        figure="fig-rank",
        cells=tuple(cells),
    )


def workers(reading: Reading, lines: Sequence[CurveLine]) -> ClaimVerdict:
    """How many times more iterations to a gap it takes with more workers than with the fewest, AUQ and C-ADMM."""
    panels = by_panel(lines)
    pairs = {
        name: (runs["auq-admm"], runs["c-admm"]) for name, runs in panels.items() if {"auq-admm", "c-admm"} <= set(runs)
    }
    claim = "AUQ-ADMM is robust to more splittings"
    if len(pairs) < 2:
        return ClaimVerdict(claim, reading_words(reading), "open", "", "", "fig-workers")
    # the smallest gap that both reach everywhere; where there is none, the gaps at the end
    targets = [g for g in TARGETS if all(outcomes.reached(run, g) for pair in pairs.values() for run in pair)]
    if targets:
        measured = {
            name: [float(outcomes.reached(run, targets[0]) or 0) for run in pair] for name, pair in pairs.items()
        }
        what = f"iterations to a gap of {outcomes.number(targets[0])}"
    else:
        measured = {name: [outcomes.last_gap(run) for run in pair] for name, pair in pairs.items()}
        what = "gap at the end"
    few, *more = measured.items()
    tie = tolerance("fig-workers", reading[0], ("auq-admm",))
    cells, own = [], math.nan
    for name, values in more:
        own, plain = (late / early for early, late in zip(few[1], values, strict=True))
        numbers = f"AUQ times {own:.2g}, C times {plain:.2g}"
        cells.append(Cell(f"from {panel_title(few[0])} to {name.split(', ')[-1]}", outcome(own, plain, tie), numbers))
    parts = [f"{panel_title(n)}: AUQ {outcomes.number(x)}, C {outcomes.number(y)}" for n, (x, y) in measured.items()]
    judged = _holds(cells, lines)
    return ClaimVerdict(
        claim=claim,
        protocol=reading_words(reading),
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


# ---------------------------------------------------------------------- the weights themselves
# correlations are reported to two digits
CORRELATION = 0.01
FIRST = {"plain": "plain, ρ = 1", "rho_a": "plain, ρ = a", "permuted": "permuted", "mean": "averaged"}


# ---------------------------------------------------------------------- what they look like
def weights(bundle: Bundle) -> list[ClaimVerdict]:
    """Correlation of W_j with its class average, and whether its own class is the one it resembles most."""
    judged = []
    for name, arrays in bundle.arrays.items():
        if not name.startswith("weights-"):
            continue
        model, protocol = name.split("-")[-2:]
        table = correlations(np.asarray(arrays["weights"], float), np.asarray(arrays["averages"], float))
        cells = resemblance(table)
        own = float(np.diag(table).mean())
        right = sum(cell.outcome == "better" for cell in cells)
        judged.append(
            ClaimVerdict(
                claim=f"The weights look like class averages: {'SVM' if model == 'svm' else model}",
                protocol=reading_words((protocol, "mean")),
                holds="yes" if own >= 0.8 and right >= 0.8 * len(cells) else "partly" if own >= 0.5 else "no",
                number=f"correlation with the worker's own class average {own:.2f} on average; most like its own "
                f"class: {right} of {len(cells)} workers",
                why="The exact diagonal of a worker's Hessian is a weighted sum of squared pixels, so it resembles the "
                "average of what the worker holds. Better: more like its own class than like any other.",
                figure="fig-weights",
                cells=tuple(cells),
            )
        )
    return judged


def resemblance(table: np.ndarray) -> list[Cell]:
    """Worker by worker: its own class against the most similar other one."""
    cells = []
    for j, row in enumerate(table):
        own, other = float(row[j]), float(np.delete(row, j).max())
        equal = abs(own - other) <= CORRELATION
        result = "equal" if equal else "better" if own > other else "worse"
        cells.append(Cell(f"worker {j}", result, f"own class {own:.2f}, another {other:.2f}"))
    return cells


def correlations(weights: np.ndarray, averages: np.ndarray) -> np.ndarray:
    """(N, N): weights of worker i, averaged over the columns of the model, with the class average of worker j."""
    W = weights.mean(2)
    W, A = (x - x.mean(1, keepdims=True) for x in (W, averages))
    lengths = np.outer(np.linalg.norm(W, axis=1), np.linalg.norm(A, axis=1))
    return W @ A.T / np.where(lengths > 0, lengths, 1.0)


# ---------------------------------------------------------------------- the first average
def average(bundle: Bundle) -> list[ClaimVerdict]:
    """The denoising illustration, in both readings: against the plain average and the controls."""
    arrays = bundle.arrays.get("denoising")
    if arrays is None:
        return []
    verdicts = []
    for reading, words in (("printed", "as printed"), ("masked", "with masks")):
        own = error(arrays, reading, "weighted")
        others = {name: error(arrays, reading, name) for name in FIRST}
        cells = [Cell(FIRST[name], outcome(own, other), f"{own:.2f}, {other:.2f}") for name, other in others.items()]
        judged = outcomes.holds(cells)
        helped = cells[0].outcome == "better"
        verdicts.append(
            ClaimVerdict(
                claim="Weighted averaging helps in the first iteration",
                protocol=f"denoising, {words}",
                # better than a control, but not than the plain average, does not support the claim
                holds=judged if judged != "partly" or helped else "no",
                number=listed("relative error of the first average, weighted against", cells)
                + f"\nweights by Lanczos: {error(arrays, reading, 'lanczos_gaussian'):.2f}",
                why="Every Hessian is the identity: the weights are constant and know nothing."
                if reading == "printed"
                else "Three workers that know nothing of a pixel have a tenth of a vote each. Lanczos from a Gaussian "
                "start finds the right quadrant and noise inside it.",
                figure="fig-illustration",
                cells=tuple(cells),
            )
        )
    return verdicts


# ---------------------------------------------------------------------- what they cost
def cost(bundle: Bundle) -> list[ClaimVerdict]:
    """Arithmetic of the weights against that of an iteration without them: low if it adds no more than a tie."""
    readings: dict[Reading, list[Any]] = {}
    for row in bundle.costs:
        readings.setdefault((row["protocol"], row["reduction"]), []).append(row)
    judged = []
    for reading, rows in readings.items():
        used = [row for row in rows if row["used"]]
        cells = [_cost_cell(row) for row in used]
        parts = [listed("arithmetic, in iterations of C at ρ = a", cells), *_ranks(rows)]
        if (times := traffic(bundle, reading)) is not None:
            parts.append(f"bytes of an iteration: {times:.2f} times those of C at ρ = a, on every data set")
        judged.append(
            ClaimVerdict(
                claim="The weights are computed at very low cost",
                protocol=reading_words(reading),
                holds=outcomes.holds(cells, wanted="equal"),
                number="\n".join(parts),
                why="Equal: r Hessian-vector products add at most a tenth to an iteration. They are as many as the "
                "paper says; what they are compared with decides. Local problems that are solved from a warm start "
                "take few products, and factors that C-ADMM computes once are computed anew for every new W."
                if reading[0] == "defined"
                else "Equal: r Hessian-vector products add at most a tenth to an iteration. The released code "
                "evaluates each local function some hundred times per iteration, whatever it gains.",
                figure="fig-rank",
                cells=tuple(cells),
            )
        )
    return judged


def _cost_cell(row: Mapping[str, Any]) -> Cell:
    share, whole = row["weights"] / row["plain"], row["iteration"] / row["plain"]
    numbers = f"weights (rank {row['rank']}) {outcomes.number(share)}, all of AUQ's iteration {outcomes.number(whole)}"
    return Cell(f"{MODELS[row['figure']]}, {panel_title(row['panel'])}", outcome(1 + share, 1.0), numbers)


def _ranks(rows: Sequence[Any]) -> list[str]:
    """What each rank costs, where several were counted."""
    by = {row["rank"]: row["weights"] / row["plain"] for row in rows if row["figure"] == "fig-multinomial"}
    if len(by) < 2:
        return []
    return ["multinomial, by rank: " + ", ".join(f"{rank}: {outcomes.number(share)}" for rank, share in by.items())]


def traffic(bundle: Bundle, reading: Reading) -> float | None:
    """Bytes of an iteration of AUQ over those of C at ρ = a, at most over the data sets."""
    ratios = []
    for figure in MODELS:
        for runs in by_panel(by_reading(bundle.of(figure)).get(reading, [])).values():
            if {"auq-admm", "c-admm-a"} <= set(runs):
                own, plain = (runs[m][-1].bytes / runs[m][-1].iteration for m in ("auq-admm", "c-admm-a"))
                ratios.append(own / plain)
    return max(ratios, default=None)
