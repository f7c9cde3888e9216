"""What an experiment is, as frozen values: this module reads no data and computes nothing.

    ProblemSpec   data × model × reduction × pixels × split over workers
    Protocol      how local problems are started and solved (S11: as defined, as released)
    RunSpec       one method on one problem; the unit that is run, cached and resumed
    Panel         runs that share axes
    Figure        panels and pictures, with a title and a caption

A run does not depend on the figures that show it: figures with the same run share it.
"""

from __future__ import annotations

import hashlib
import json
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
