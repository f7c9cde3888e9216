"""What the paper claims, held against numbers: from a bundle of results to one verdict per claim and protocol.

    fastest    AUQ-ADMM decreases the objective fastest
    control    its gain is due to the uncertainty, and not to the size of the penalty
    rank       the rank does not matter
    workers    more splittings do no harm
    weights    the weights look like class averages
    average    weighted averaging helps in the first iteration

Gaps are relative to an optimum that no ADMM produced. Methods that are ours take no part in verdicts on the paper.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from auqadmm.experiments.bundle import Bundle
from auqadmm.experiments.results import Line
from auqadmm.experiments.spec import CONTROLS, METHODS
from auqadmm.report import gaps
from auqadmm.report.content import Verdict
from auqadmm.report.curves import READING, by_panel, panel_title
from auqadmm.report.images import error
from auqadmm.report.style import method_style

MODELS = {"fig-elastic": "elastic net", "fig-multinomial": "multinomial", "fig-svm": "SVM"}
# gaps within ten per cent of each other count as equal
EQUAL = 1.1
ROBUST = 1.25
TARGETS = (1e-6, 1e-4, 1e-2, 1e-1)

Reading = tuple[str, str]


def verdicts(bundle: Bundle) -> tuple[Verdict, ...]:
    """All that the results allow to judge, claim by claim."""
    found: list[Verdict] = []
    for judge in (fastest, control):
        for figure, model in MODELS.items():
            for reading, lines in by_reading(bundle.of(figure)).items():
                found.append(judge(figure, model, reading, lines))
    for figure, verdict in (("fig-rank", rank), ("fig-workers", workers)):
        found += [verdict(reading, lines) for reading, lines in by_reading(bundle.of(figure)).items()]
    found += weights(bundle)
    return (*found, *average(bundle))


def markdown(found: Iterable[Verdict]) -> str:
    """The verdicts as a table that documents can take over."""
    rows = [f"| {v.claim} | {v.protocol} | **{v.holds}** | {_one_line(v.number)} | {v.figure} |" for v in found]
    return "\n".join(["| claim | protocol | holds | measured | figure |", "|---|---|---|---|---|", *rows]) + "\n"


def by_reading(lines: Iterable[Line]) -> dict[Reading, list[Line]]:
    """(protocol, reduction) → lines."""
    found: dict[Reading, list[Line]] = {}
    for line in lines:
        found.setdefault((line.protocol, line.reduction), []).append(line)
    return found


def said(reading: Reading) -> str:
    """The protocol in words, e.g. "as defined, means over rows"."""
    return f"as {reading[0]}, {READING[reading[1]]}"


# ---------------------------------------------------------------------- comparisons of methods
def fastest(figure: str, model: str, reading: Reading, lines: Sequence[Line]) -> Verdict:
    """Is AUQ's gap the smallest of the paper's methods, after ten iterations and at the end, on every data set?"""
    wins, parts = [], []
    for panel, runs in by_panel(lines).items():
        rivals = [m for m in METHODS if m in runs and m != "auq-admm"]
        if "auq-admm" not in runs or not rivals:
            continue
        for when in gaps.times(runs):
            own = when(runs["auq-admm"])
            best = min(rivals, key=lambda m: when(runs[m]))
            wins.append(own <= EQUAL * when(runs[best]))
            rival = f"{_short(best)} {gaps.number(when(runs[best]))}"
            parts.append(f"{panel_title(panel)} {gaps.when(runs, when)}: AUQ {gaps.number(own)}, {rival}")
    return Verdict(
        claim=f"AUQ-ADMM decreases the objective fastest: {model}",
        protocol=said(reading),
        holds=_share(wins, lines),
        number="gap, against the best other\n" + "\n".join(parts) if parts else "",
        why=_why_fastest(reading, wins),
        figure=figure,
    )


def _one_line(text: str) -> str:
    head, *rest = text.split("\n")
    return f"{head}: {'; '.join(rest)}" if rest else head


def _why_fastest(reading: Reading, wins: Sequence[bool]) -> str:
    if reading[0] == "released":
        return (
            "One local step covers about a tenth of the way to the local minimiser; a small penalty then lets local "
            "models move furthest. See the controls for what the weights add."
        )
    if all(wins):
        return "The weights sit where the local curvature is."
    return (
        "The interval [a, b_k] shrinks to a = 0.1, so AUQ turns into C-ADMM with ρ = 0.1, whatever the curvature says."
    )


def control(figure: str, model: str, reading: Reading, lines: Sequence[Line]) -> Verdict:
    """Does AUQ beat what has the same penalty but not its information?"""
    wins, parts = [], []
    for panel, runs in by_panel(lines).items():
        rivals = [m for m in CONTROLS if m in runs]
        if "auq-admm" not in runs or not rivals:
            continue
        for when in gaps.times(runs):
            own = when(runs["auq-admm"])
            best = min(rivals, key=lambda m: when(runs[m]))
            wins.append(EQUAL * own <= when(runs[best]))
            rival = f"{_short(best)} {gaps.number(when(runs[best]))}"
            parts.append(f"{panel_title(panel)} {gaps.when(runs, when)}: AUQ {gaps.number(own)}, {rival}")
    return Verdict(
        claim=f"It is the uncertainty that helps, not the penalty's size: {model}",
        protocol=said(reading),
        holds=_share(wins, lines),
        number="gap, against the best control\n" + "\n".join(parts) if parts else "",
        why="C(a): C-ADMM at ρ = a; perm: the same weights shuffled; mean: the same weights averaged. Where a control "
        "does as well (within ten per cent), the weights' places carry nothing.",
        figure=figure,
    )


# ---------------------------------------------------------------------- rank, workers
def rank(reading: Reading, lines: Sequence[Line]) -> Verdict:
    """The spread of the gap over ranks, at its largest over the iterations that all of them have."""
    runs = next(iter(by_panel(lines).values()))
    # a gap at the level of rounding has no size to compare
    shared = [k for k in gaps.shared_iterations(runs) if all(gaps.gap_at(run, k) > 1e-9 for run in runs.values())]
    spreads = {k: gaps.spread(gaps.gap_at(run, k) for run in runs.values()) for k in shared}
    worst = max(spreads, key=lambda k: spreads[k], default=0)
    factor = spreads.get(worst, math.nan)
    ends = {_short(method): gaps.last(run) for method, run in runs.items()}
    return Verdict(
        claim="The rank of the Hessian's approximation does not matter",
        protocol=said(reading),
        holds=_graded(lines, factor <= EQUAL, factor <= 2),
        number=f"largest ratio of gaps between ranks: {factor:.2f}, in iteration {worst}; at the end "
        + ", ".join(f"rank {name} {gaps.number(gap)}" for name, gap in ends.items()),
        why="Weights of rank 1 depend on the random start vector alone, not on the data: where rank 1 does as well as "
        "rank 100, the weights' content matters as little as their rank.",
        figure="fig-rank",
    )


def workers(reading: Reading, lines: Sequence[Line]) -> Verdict:
    """How many times more iterations to a gap it takes with the most workers than with the fewest, AUQ and C-ADMM."""
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
    few, *_, many = measured.values()
    own, plain = (late / early for early, late in zip(few, many, strict=True))
    parts = "\n".join(
        f"{panel_title(name)}: AUQ {gaps.number(x)}, C {gaps.number(y)}" for name, (x, y) in measured.items()
    )
    return Verdict(
        claim=claim,
        protocol=said(reading),
        holds=_graded(lines, own <= ROBUST, own < plain),
        number=f"{what}\n{parts}\nfrom few to many workers times {own:.2g} (AUQ), times {plain:.2g} (C)",
        why="Robust: at most a quarter more from the fewest to the most workers; partly: more, but by a smaller factor "
        "than C-ADMM. With means, other workers are another objective; gaps are relative to its own optimum.",
        figure="fig-workers",
    )


# ---------------------------------------------------------------------- weights, average
def weights(bundle: Bundle) -> list[Verdict]:
    """Correlation of W_j with its class average, and whether its own class is the one it resembles most."""
    found = []
    for name, arrays in bundle.arrays.items():
        if not name.startswith("weights-"):
            continue
        model, protocol = name.split("-")[-2:]
        table = correlations(np.asarray(arrays["weights"], float), np.asarray(arrays["averages"], float))
        own = float(np.diag(table).mean())
        right = float(np.mean(table.argmax(1) == np.arange(len(table))))
        found.append(
            Verdict(
                claim=f"The weights look like class averages: {'SVM' if model == 'svm' else model}",
                protocol=said((protocol, "mean")),
                holds="yes" if own >= 0.8 and right >= 0.8 else "partly" if own >= 0.5 else "no",
                number=f"correlation with the worker's own class average {own:.2f} on average; most like its own "
                f"class: {right:.0%} of workers",
                why="The exact diagonal of a worker's Hessian is a weighted sum of squared pixels, so it resembles the "
                "average of what the worker holds.",
                figure="fig-weights",
            )
        )
    return found


def correlations(weights: np.ndarray, averages: np.ndarray) -> np.ndarray:
    """(N, N): weights of worker i, averaged over the columns of the model, with the class average of worker j."""
    W = weights.mean(2)
    W, A = (x - x.mean(1, keepdims=True) for x in (W, averages))
    lengths = np.outer(np.linalg.norm(W, axis=1), np.linalg.norm(A, axis=1))
    return W @ A.T / np.where(lengths > 0, lengths, 1.0)


def average(bundle: Bundle) -> list[Verdict]:
    """The denoising illustration, in both readings."""
    arrays = bundle.arrays.get("denoising")
    if arrays is None:
        return []
    found = []
    for reading, words in (("printed", "as printed"), ("masked", "with masks")):
        own, plain = (error(arrays, reading, name) for name in ("weighted", "plain"))
        controls = {name: error(arrays, reading, name) for name in ("rho_a", "permuted", "mean")}
        lanczos = error(arrays, reading, "lanczos_gaussian")
        best = min(controls, key=lambda name: controls[name])
        rival = {"rho_a": "plain at ρ = a", "permuted": "permuted", "mean": "averaged"}[best]
        found.append(
            Verdict(
                claim="Weighted averaging helps in the first iteration",
                protocol=f"denoising, {words}",
                holds="yes"
                if EQUAL * own <= min(plain, controls[best])
                else "partly"
                if EQUAL * own <= plain
                else "no",
                number=f"relative error of the first average: weighted {own:.2f}, plain {plain:.2f}, best control "
                f"({rival}) {controls[best]:.2f}, "
                f"weights by Lanczos {lanczos:.2f}",
                why="Every Hessian is the identity: the weights are constant and know nothing."
                if reading == "printed"
                else "Three workers that know nothing of a pixel have a tenth of a vote each. Lanczos from a Gaussian "
                "start finds the right quadrant and noise inside it.",
                figure="fig-illustration",
            )
        )
    return found


# ---------------------------------------------------------------------- words
def _graded(lines: Sequence[Line], yes: bool, partly: bool) -> str:
    """A verdict; runs shorter than ten iterations decide nothing."""
    if not lines or max(line.iteration for line in lines) < gaps.EARLY:
        return "open"
    return "yes" if yes else "partly" if partly else "no"


def _share(wins: Sequence[bool], lines: Sequence[Line]) -> str:
    return _graded(lines if wins else (), all(wins), any(wins))


def _short(method: str) -> str:
    return method_style(method).short or method
