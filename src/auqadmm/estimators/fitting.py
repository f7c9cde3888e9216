"""One fit: rows of all workers → scaled problem → `solve` → coefficients in the user's units.

    minimise over c, b   Σ_i s_i φ(x_iᵀc + b, y_i) / Σ_i s_i + l1‖c‖₁ + l2/2‖c‖²          b never penalised

Shapes: m features, C columns; v (m, C) or (m + 1, C), coef (C, m), intercept (C,), λ (N, m, C).
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from auqadmm.api import solve
from auqadmm.blocks.rows import Loss
from auqadmm.blocks.shard import RawBlock
from auqadmm.callbacks import Progress
from auqadmm.core.result import Result
from auqadmm.core.state import Status, WarmStart
from auqadmm.estimators import checks
from auqadmm.estimators.blocks import Rows
from auqadmm.estimators.scaling import Scaling, WeightedElasticNet
from auqadmm.estimators.types import BlockRows, EngineChoice, HasSettings, MethodChoice, Start
from auqadmm.problem import ElasticNet, Problem
from auqadmm.problem.ingest import read_blocks
from auqadmm.problem.regularizers import Regularizer
from auqadmm.problem.sources import is_dask

# These need a plain regularizer, not a weighted one: they run on unscaled features.
PLAIN_ONLY = ("lbfgs", "owl-qn")


# Where the penalty dominates, a feature need not be scaled up to the size of the others; with this factor the
# strengths stay comparable after scaling, and runs were shortest (1 and 30 were compared, on breast cancer and wine).
SCALING_RIDGE = 30.0


@dataclass(frozen=True)
class FitTask:
    """What to fit: a pooled loss whose φ″ is about `curvature`, the strengths, and whether there is an intercept.

    Strengths are numbers, or arrays with one entry per column of the model.
    """

    loss: Loss
    l1: float | np.ndarray
    l2: float | np.ndarray
    intercept: bool
    curvature: float = 1.0


@dataclass(frozen=True)
class FitSettings:
    """How to fit it."""

    max_iter: int
    tol: float
    method: MethodChoice = "auto"
    engine: EngineChoice = "local"
    verbose: int = 0

    @staticmethod
    def of(estimator: HasSettings) -> FitSettings:
        """The checked parameters that all estimators share."""
        max_iter, tol = checks.count("max_iter", estimator.max_iter), checks.above_zero("tol", estimator.tol)
        checks.count("n_blocks", estimator.n_blocks)
        checks.truth("fit_intercept", estimator.fit_intercept)
        loud = estimator.verbose
        verbose = checks.whole_number("verbose", int(loud) if isinstance(loud, bool) else loud)
        return FitSettings(max_iter, tol, estimator.method, estimator.engine, verbose)


@dataclass(frozen=True)
class ScaledFit:
    """The problem in scaled variables, its blocks read once; the strengths may change."""

    blocks: Sequence[BlockRows | RawBlock]
    task: FitTask
    scaling: Scaling
    plain: bool

    @staticmethod
    def of(rows: Rows, task: FitTask, settings: FitSettings) -> ScaledFit:
        plain = isinstance(settings.method, str) and settings.method.lower() in PLAIN_ONLY
        ridge = SCALING_RIDGE * float(np.min(task.l2)) / task.curvature
        scaling = (
            Scaling.none(rows.features, task.intercept)
            if plain
            else Scaling.of(rows, task.intercept, ridge, settings.engine)
        )
        parts = zip(rows.X, rows.y, rows.weight, strict=True)
        blocks: Sequence[BlockRows | RawBlock] = [(X if plain else scaling.apply(X), y, w) for X, y, w in parts]
        if rows.names is not None and not is_dask(rows.X[0]):  # frames on workers keep theirs
            blocks = [replace(block, columns=rows.names) for block in read_blocks(blocks)]
        return ScaledFit(blocks, task, scaling, plain)

    @property
    def problem(self) -> Problem:
        l1, l2 = self.task.l1, self.task.l2
        if self.plain:  # rejects arrays itself
            g: Regularizer = ElasticNet(l1, l2)  # type: ignore[arg-type]
        else:
            g = WeightedElasticNet.scaled(l1, l2, self.scaling.scale)
        return Problem(self.task.loss, g, self.blocks, intercept=self.task.intercept)

    def solve(self, settings: FitSettings, start: Tensor | None = None) -> Result:
        """`start` is a v of the scaled problem."""
        problem = self.problem
        usable = start is not None and tuple(start.shape) == self._shape(problem)
        with Progress(mode="auto" if settings.verbose else "quiet", every=settings.verbose or None) as progress:
            return solve(
                problem,
                settings.method,
                settings.engine,
                max_iter=settings.max_iter,
                certificate_tol=settings.tol,
                stop="certificate",
                warm_start=near(problem, start) if usable and start is not None else None,
                callbacks=[progress] if settings.verbose else [],
            )

    def _shape(self, problem: Problem) -> tuple[int, int]:
        """Of v, known before remote blocks are read, from their targets."""
        if not callable(problem.blocks):
            return problem.census.features, problem.census.columns
        loss, labels = self.task.loss, 0
        if loss.target_kind != "real":
            targets = [block.y if isinstance(block, RawBlock) else block[1] for block in self.blocks]
            labels = len(np.unique(np.concatenate(targets)))
        return len(self.scaling.scale) + int(self.task.intercept), loss.columns_for(labels)


@dataclass(frozen=True)
class Fitted:
    """coef (C, m) and intercept (C,) in the user's units, and the run."""

    coef: np.ndarray
    intercept: np.ndarray
    result: Result


def fit(rows: Rows, task: FitTask, settings: FitSettings, start: Start | None = None) -> Fitted:
    """Solve one task, from the coefficients and intercepts of `start` if they have the right shape."""
    scaled = ScaledFit.of(rows, task, settings)
    usable = start is not None and start[0].shape[1] == rows.features
    v = scaled.scaling.inside(*start) if usable and start is not None else None
    result = scaled.solve(settings, v)
    return Fitted(*scaled.scaling.outside(result.v), result)


def near(problem: Problem, v: Tensor) -> WarmStart:
    """A start at v whose multipliers agree with the penalty: −Σλ_j ∈ ∂g(v), so that the first v-step returns v.

    λ_j = ∇f_j(v) − ξ/N with ξ the shortest vector of Σ∇f_j(v) + ∂g(v). At a solution these are the multipliers. With
    λ_j = ∇f_j(v) alone the first local solves would return v, and the run gain nothing from them.
    """
    g = problem.regularizer
    if not isinstance(g, WeightedElasticNet) or callable(problem.blocks):  # remote blocks
        return WarmStart(v)
    shard = problem.shard(torch.float64, torch.device("cpu"))
    grad = shard.linearize(shard.expand(v)).grad
    total = grad.sum(0)
    if problem.intercept:
        rest = torch.cat([g.subgradient(v[:-1], total[:-1]), total[-1:]])
    else:
        rest = g.subgradient(v, total)
    return WarmStart(v, grad - rest / len(grad))


def report(estimator: object, results: list[Result]) -> None:
    """Warn about runs that did not converge."""
    for result in results:
        if result.status not in (Status.converged, Status.rounding):
            warnings.warn(f"{type(estimator).__name__}: {result.message}", ConvergenceWarning, stacklevel=3)
