"""What an experiment is, as frozen values, and the figures of the paper as such values: nothing here reads data or
computes.

    ProblemSpec   data × model × reduction × pixels × split over workers
    Protocol      how local problems are started and solved (S11: as defined, as released)
    RunSpec       one method on one problem; the unit that is run, cached and resumed
    Panel         runs that share axes
    Figure        panels and pictures, with a title and a caption

A run does not depend on the figures that show it: figures with the same run share it.

The figures (S11), one function each; `quick=True` gives the same figure on scikit-learn's digits:

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

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

ALL = tuple(range(10))
# [a_1, b_1] of S7, the same in all experiments of the paper
INTERVAL = (0.1, 1.0)
METHODS = ("c-admm", "rb-admm", "rb-admm-paper", "ac-admm", "uq-admm", "auq-admm")
OURS = ("auq-lr",)
# the controls of AUQ's gains (S11), with a description of what each one removes
CONTROLS = {"c-admm-a": "rho = a", "auq-permuted": "weights permuted", "auq-mean": "weights averaged"}


@dataclass(frozen=True)
class ProblemSpec:
    """One problem of S11.

    Parameters
    ----------
    data
        "mnist", "svhn", "cifar10" or "digits".
    model
        "elastic", "multinomial" or "svm".
    reduction
        f_j is a "sum" or a "mean" over the rows of worker j.
    pixels
        "unit": divided by the largest value; "zscored": mean 0 and deviation 1 per colour over all rows used.
    classes, per_class
        Which classes, and how many rows of each, the first in file order; None: all.
    workers
        The classes are split evenly, neighbours together; None: one worker per class.
    """

    data: str
    model: str
    reduction: str = "mean"
    pixels: str = "unit"
    classes: tuple[int, ...] = ALL
    per_class: int | None = None
    workers: int | None = None

    @property
    def blocks(self) -> int:
        return self.workers or len(self.classes)

    @property
    def name(self) -> str:
        rows = [] if self.per_class is None else [str(self.per_class)]
        parts = [self.data, *rows, self.model, self.reduction]
        if self.model != "svm" and self.classes != ALL:
            parts.append(f"{len(self.classes)}classes")
        if self.workers is not None:
            parts.append(f"{self.workers}workers")
        return "-".join(parts + (["zscored"] if self.pixels == "zscored" else []))

    @property
    def pooled(self) -> ProblemSpec:
        """The problem with the same optimum: a sum over rows does not depend on how they are split."""
        return replace(self, workers=None) if self.reduction == "sum" else self


@dataclass(frozen=True)
class Protocol:
    """One reading of the experiments, always named beside its results."""

    name: str
    pixels: str
    start: str
    local: str
    rank: int
    iterations: int
    reductions: tuple[str, ...]
    about: str


DEFINED = Protocol(
    name="defined",
    pixels="unit",
    start="zeros",
    local="auto",
    rank=5,
    iterations=250,
    reductions=("mean", "sum"),
    about="as the text defines it: local problems solved, pixels in [0, 1], rank 5, 250 iterations",
)
RELEASED = Protocol(
    name="released",
    pixels="zscored",
    start="random",
    local="released",
    rank=10,
    iterations=50,
    reductions=("mean",),
    about="as the released code does it: pixels standardised, u_j ~ N(0, 1), a fixed amount of L-BFGS with a tiny step "
    "instead of local solves, means over rows, rank 10, 50 iterations",
)
PROTOCOLS = {protocol.name: protocol for protocol in (DEFINED, RELEASED)}


@dataclass(frozen=True)
class RunSpec:
    """One method on one problem. `method` is a name of `problems.make_method`."""

    problem: ProblemSpec
    method: str
    protocol: str
    start: str
    local: str
    rank: int
    iterations: int
    seed: int = 0

    @property
    def name(self) -> str:
        """What `--only` matches, e.g. "mnist-2000-multinomial-mean/defined/auq-admm"."""
        seed = f"@{self.seed}" if self.seed else ""
        return f"{self.problem.name}/{self.protocol}/{self.method}{seed}"

    @property
    def control(self) -> str:
        """What this control removes; empty for a method."""
        return CONTROLS.get(self.method, "")


@dataclass(frozen=True)
class PanelSpec:
    """Runs on common axes. `name` is the dataset's, with what distinguishes the panel."""

    name: str
    protocol: str
    reduction: str
    dataset: str
    runs: tuple[RunSpec, ...]


@dataclass(frozen=True)
class Samples:
    """`count` images of each class, in file order."""

    data: str
    count: int = 2

    @property
    def name(self) -> str:
        return f"samples-{self.data}"


@dataclass(frozen=True)
class WeightImages:
    """W_j of AUQ-ADMM in an iteration, beside the average image of each class."""

    problem: ProblemSpec
    protocol: str
    start: str
    local: str
    rank: int
    iteration: int = 2
    seed: int = 0

    @property
    def name(self) -> str:
        return f"weights-{self.problem.data}-{self.problem.model}-{self.protocol}"


@dataclass(frozen=True)
class Denoising:
    """The illustration of S9 on a square image of `size`² pixels with noise of the given deviation."""

    size: int = 64
    noise: float = 0.1
    strength: float = 1e-3
    seed: int = 0

    @property
    def name(self) -> str:
        return "denoising"


PictureSpec = Samples | WeightImages | Denoising


@dataclass(frozen=True)
class Figure:
    """One figure of the paper, complete: its runs and its titles."""

    id: str
    title: str
    caption: str
    panels: tuple[PanelSpec, ...] = ()
    pictures: tuple[PictureSpec, ...] = ()

    @property
    def runs(self) -> tuple[RunSpec, ...]:
        """Every run once, in order."""
        return tuple(dict.fromkeys(run for panel in self.panels for run in panel.runs))


Spec = ProblemSpec | RunSpec | PictureSpec


def digest(spec: Spec) -> str:
    """Sixteen hexadecimal digits of a digest of a spec's value and type."""
    text = json.dumps({"type": type(spec).__name__, **asdict(spec)}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


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
