"""The figures of the paper (S11), one function each; `quick=True` gives the same figure on scikit-learn's digits.

fig-datasets       sample images
fig-illustration   denoising in four quadrants (S9)
fig-rank           AUQ-ADMM, rank 1, 5, 10, 100
fig-elastic        elastic net
fig-multinomial    multinomial logistic regression
fig-svm            support vector machine, two classes
fig-workers        2, 4 and 8 workers
fig-weights        the weights as images
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from auqadmm.paper.spec import (
    ALL,
    CONTROLS,
    DEFINED,
    METHODS,
    OURS,
    PROTOCOLS,
    RELEASED,
    Denoising,
    Figure,
    PanelSpec,
    ProblemSpec,
    Protocol,
    RunSpec,
    Samples,
    WeightImages,
)

DATASETS = ("mnist", "svhn", "cifar10")
ROWS = {"mnist": 2000, "svhn": 1000, "cifar10": 1000, "digits": None}
SVM_ROWS = {"mnist": 5000, "svhn": 4500, "cifar10": 5000, "digits": None}
RANKS = (1, 5, 10, 100)
WORKERS = (2, 4, 8)
COMPARED = (*METHODS, *OURS, *CONTROLS)
# quick runs: iterations of each protocol, and the methods where there are many panels
QUICK = {"defined": 30, "released": 3}
FEWER = ("c-admm", "auq-admm", *OURS, *CONTROLS)
SPLIT = "One class per worker."
CONTROLLED = (
    "Dashed: controls, C-ADMM at the penalty that AUQ's interval shrinks to, AUQ with its weights permuted, AUQ with "
    "each W_j replaced by its mean. AUQ-LR is ours."
)


def fig_datasets(quick: bool = False) -> Figure:
    sets = ("digits",) if quick else DATASETS
    return Figure(
        id="fig-datasets",
        title="Sample images",
        caption="Two images of each class.",
        pictures=tuple(Samples(data) for data in sets),
    )


def fig_illustration(quick: bool = False) -> Figure:
    return Figure(
        id="fig-illustration",
        title="Weighted averaging after one iteration",
        caption="Denoising with four workers, one quadrant each, in two readings. As printed, every Hessian is the "
        "identity and weights know nothing; with masks, a worker is certain of its own quadrant alone.",
        pictures=(Denoising(),),
    )


def fig_rank(quick: bool = False, protocols: Sequence[str] = tuple(PROTOCOLS)) -> Figure:
    data = "digits" if quick else "mnist"
    panels = [
        _panel(problem, protocol, [f"auq-rank-{rank}" for rank in RANKS], data)
        for protocol, problem in _readings(data, "multinomial", quick, protocols, means_only=quick)
    ]
    return Figure(
        id="fig-rank",
        title="The rank of the weights",
        caption=f"AUQ-ADMM with weights from {', '.join(map(str, RANKS))} Lanczos steps, multinomial. {SPLIT}",
        panels=tuple(panels),
    )


def fig_elastic(quick: bool = False, protocols: Sequence[str] = tuple(PROTOCOLS)) -> Figure:
    return Figure(
        id="fig-elastic",
        title="Elastic net",
        caption=f"Least squares on the class number, l1 = l2 = 0.01. {SPLIT} {CONTROLLED}",
        panels=_comparison("elastic", quick, protocols),
    )


def fig_multinomial(quick: bool = False, protocols: Sequence[str] = tuple(PROTOCOLS)) -> Figure:
    return Figure(
        id="fig-multinomial",
        title="Multinomial logistic regression",
        caption=f"g = ½‖v‖². {SPLIT} {CONTROLLED}",
        panels=_comparison("multinomial", quick, protocols),
    )


def fig_svm(quick: bool = False, protocols: Sequence[str] = tuple(PROTOCOLS)) -> Figure:
    return Figure(
        id="fig-svm",
        title="Support vector machine",
        caption=f"Smoothed hinge, ε = 1/5000, means, classes 0 and 1, g = ½‖v‖². Two workers. {CONTROLLED}",
        panels=_comparison("svm", quick, protocols),
    )


def fig_workers(quick: bool = False, protocols: Sequence[str] = tuple(PROTOCOLS)) -> Figure:
    data = "digits" if quick else "mnist"
    panels = []
    for protocol, problem in _readings(data, "multinomial", quick, protocols, means_only=quick):
        for workers in (2, 8) if quick else WORKERS:
            split = replace(problem, classes=ALL[:8], workers=workers)
            panels.append(_panel(split, protocol, FEWER if quick else COMPARED, f"{data}, {workers} workers"))
    return Figure(
        id="fig-workers",
        title="More workers for the same rows",
        caption=f"Multinomial on digits 0 to 7, the classes dealt out evenly over 2, 4 and 8 workers. {CONTROLLED}",
        panels=tuple(panels),
    )


def fig_weights(quick: bool = False, protocols: Sequence[str] = tuple(PROTOCOLS)) -> Figure:
    data = "digits" if quick else "mnist"
    pictures = [
        WeightImages(problem, protocol.name, protocol.start, protocol.local, protocol.rank)
        for model in ("elastic", "multinomial", "svm")
        for protocol, problem in _readings(data, model, quick, protocols, means_only=True)
    ]
    return Figure(
        id="fig-weights",
        title="The weights as images",
        caption="W_j of AUQ-ADMM in iteration 2, the first that is chosen at local models that have seen data: one "
        "image per worker and column of the model.",
        pictures=tuple(pictures),
    )


FIGURES: dict[str, Callable[..., Figure]] = {
    "fig-datasets": fig_datasets,
    "fig-illustration": fig_illustration,
    "fig-rank": fig_rank,
    "fig-elastic": fig_elastic,
    "fig-multinomial": fig_multinomial,
    "fig-svm": fig_svm,
    "fig-workers": fig_workers,
    "fig-weights": fig_weights,
}
# the same whatever the protocol
PLAIN = ("fig-datasets", "fig-illustration")


def select(name: str, quick: bool = False, protocol: str | None = None, seed: int = 0) -> list[Figure]:
    """The figures of a name, or "all"; of one protocol, or both."""
    if name != "all" and name not in FIGURES:
        raise ValueError(f"There is no figure {name!r}; there are all, {', '.join(FIGURES)}.")
    if protocol is not None and protocol not in PROTOCOLS:
        raise ValueError(f"There is no protocol {protocol!r}; there are {', '.join(PROTOCOLS)}.")
    asked = {} if protocol is None else {"protocols": (protocol,)}
    figures = [
        make(quick) if id in PLAIN else make(quick, **asked) for id, make in FIGURES.items() if name in ("all", id)
    ]
    return [_seeded(figure, seed) for figure in figures]


def essential(figure: Figure) -> Figure:
    """What two cores compute in minutes: MNIST alone, means alone."""
    panels = tuple(p for p in figure.panels if p.dataset == "mnist" and p.reduction == "mean")
    pictures = tuple(p for p in figure.pictures if not isinstance(p, Samples) or p.data == "mnist")
    return replace(figure, panels=panels, pictures=pictures)


# ---------------------------------------------------------------------- parts
def _readings(
    data: str, model: str, quick: bool, protocols: Sequence[str], means_only: bool = False
) -> list[tuple[Protocol, ProblemSpec]]:
    """Every protocol with every reduction it has for this model; the paper defines the SVM by means alone."""
    base = ProblemSpec(data, model, per_class=ROWS[data])
    if model == "svm":
        base = replace(base, classes=(0, 1), per_class=SVM_ROWS[data])
    panels = []
    for protocol in (PROTOCOLS[name] for name in protocols):
        used = replace(protocol, iterations=QUICK[protocol.name]) if quick else protocol
        for reduction in ("mean",) if model == "svm" or means_only else used.reductions:
            panels.append((used, replace(base, reduction=reduction, pixels=used.pixels)))
    return panels


def _comparison(model: str, quick: bool, protocols: Sequence[str]) -> tuple[PanelSpec, ...]:
    sets = ("digits",) if quick else DATASETS
    return tuple(
        _panel(problem, protocol, COMPARED, data)
        for data in sets
        for protocol, problem in _readings(data, model, quick, protocols)
    )


def _panel(problem: ProblemSpec, protocol: Protocol, methods: Sequence[str], name: str) -> PanelSpec:
    runs = tuple(_run(problem, protocol, method) for method in methods)
    return PanelSpec(name, protocol.name, problem.reduction, problem.data, runs)


def _run(problem: ProblemSpec, protocol: Protocol, method: str) -> RunSpec:
    rank = protocol.rank
    if method.startswith("auq-rank-"):
        rank = int(method.removeprefix("auq-rank-"))
    # our own method always solves its local problems: its weights are made for that
    local = "auto" if method in OURS else protocol.local
    return RunSpec(problem, method, protocol.name, protocol.start, local, rank, protocol.iterations)


def _seeded(figure: Figure, seed: int) -> Figure:
    panels = tuple(replace(p, runs=tuple(replace(run, seed=seed) for run in p.runs)) for p in figure.panels)
    pictures = tuple(p if isinstance(p, Samples) else replace(p, seed=seed) for p in figure.pictures)
    return replace(figure, panels=panels, pictures=pictures)


__all__ = ["COMPARED", "DEFINED", "FIGURES", "RANKS", "RELEASED", "WORKERS", "essential", "select"]
