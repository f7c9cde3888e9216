"""Verdicts on the weights themselves: their appearance, the first average, their cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from auqadmm.paper import gaps, outcomes
from auqadmm.paper.bundle import Bundle
from auqadmm.paper.curves import by_panel, panel_title
from auqadmm.paper.images import error
from auqadmm.paper.outcomes import MODELS, Reading, by_reading, listed, outcome, said
from auqadmm.report.content import Cell, Verdict

# correlations are reported to two digits
CORRELATION = 0.01
FIRST = {"plain": "plain, ρ = 1", "rho_a": "plain, ρ = a", "permuted": "permuted", "mean": "averaged"}


# ---------------------------------------------------------------------- what they look like
def weights(bundle: Bundle) -> list[Verdict]:
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
            Verdict(
                claim=f"The weights look like class averages: {'SVM' if model == 'svm' else model}",
                protocol=said((protocol, "mean")),
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
def average(bundle: Bundle) -> list[Verdict]:
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
            Verdict(
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
def cost(bundle: Bundle) -> list[Verdict]:
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
            Verdict(
                claim="The weights are computed at very low cost",
                protocol=said(reading),
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


def _cost_cell(row: Any) -> Cell:
    share, whole = row["weights"] / row["plain"], row["iteration"] / row["plain"]
    numbers = f"weights (rank {row['rank']}) {gaps.number(share)}, all of AUQ's iteration {gaps.number(whole)}"
    return Cell(f"{MODELS[row['figure']]}, {panel_title(row['panel'])}", outcome(1 + share, 1.0), numbers)


def _ranks(rows: Sequence[Any]) -> list[str]:
    """What each rank costs, where several were counted."""
    by = {row["rank"]: row["weights"] / row["plain"] for row in rows if row["figure"] == "fig-multinomial"}
    if len(by) < 2:
        return []
    return ["multinomial, by rank: " + ", ".join(f"{rank}: {gaps.number(share)}" for rank, share in by.items())]


def traffic(bundle: Bundle, reading: Reading) -> float | None:
    """Bytes of an iteration of AUQ over those of C at ρ = a, at most over the data sets."""
    ratios = []
    for figure in MODELS:
        for runs in by_panel(by_reading(bundle.of(figure)).get(reading, [])).values():
            if {"auq-admm", "c-admm-a"} <= set(runs):
                own, plain = (runs[m][-1].bytes / runs[m][-1].iteration for m in ("auq-admm", "c-admm-a"))
                ratios.append(own / plain)
    return max(ratios, default=None)
