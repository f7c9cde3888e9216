"""The demo as a page: per model the curves of all methods, what each needed, and the weights as images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from auqadmm.comparison.runs import MethodRun
from auqadmm.report.content import Chapter, Curve, Panel, Picture, Report, Table
from auqadmm.report.style import COSTS, method_style
from auqadmm.report.tables import headers, table_row

FLOOR = 1e-10  # below it, the optimum that gaps are measured against is not known


def demo_report(runs: Sequence[MethodRun], weights: Mapping[str, bytes], about: Mapping[str, Any]) -> Report:
    """`weights`: a PNG per model."""
    models = dict.fromkeys(run.model for run in runs)
    return Report(
        title="Ten workers, one digit each",
        lead="Handwritten digits, split in the hardest way: every worker holds the images of one digit, and all must "
        "agree on one model. Objectives are measured against an optimum that none of these methods found.",
        chapters=tuple(
            _chapter(model, [run for run in runs if run.model == model], weights[model]) for model in models
        ),
        about=about,
    )


def _chapter(model: str, runs: Sequence[MethodRun], weights: bytes) -> Chapter:
    rows = [table_row(run) for run in runs]
    best = []
    for column, counts in enumerate(zip(*(row.iterations for row in rows), strict=True), start=1):
        reached = [k for k in counts if k is not None]
        best += [(place, column) for place, k in enumerate(counts) if reached and k == min(reached)]
    panels = (
        _panel("Objective", runs, "gap", "(objective − optimum) / optimum"),
        _panel("Optimality", runs, "kkt", "KKT residual"),
    )
    return Chapter(
        id=model.replace(" ", "-"),
        title=f"{model[:1].upper()}{model[1:]}",
        caption="The further left a curve falls, the fewer trips to the workers it took. In the pictures, weights of "
        "AUQ-ADMM in its second iteration: bright where a worker is certain.",
        panels=panels,
        pictures=(Picture(weights, f"Weights of the ten workers, {model}", "Weights of AUQ-ADMM"),),
        table=Table(tuple(headers()), tuple(tuple(row.cells()) for row in rows), tuple(best)),
    )


def _panel(title: str, runs: Sequence[MethodRun], key: str, words: str) -> Panel:
    curves = []
    for run in runs:
        history = run.result.history
        x = {name: tuple(history.column(name)) for name in COSTS}
        y = tuple(map(float, run.gaps)) if key == "gap" else tuple(history.column("kkt"))
        curves.append(Curve(run.method, method_style(run.method).label, x, {key: y}))
    return Panel(title, tuple(curves), COSTS, {key: words}, ("iteration", "rounds"), (key,), {key: FLOOR})
