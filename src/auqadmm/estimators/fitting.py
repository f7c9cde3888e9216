"""One fit: rows of all workers → scaled problem → `solve` → coefficients in the user's units.

    minimise over c, b   Σ_i s_i φ(x_iᵀc + b, y_i) / Σ_i s_i + l1‖c‖₁ + l2/2‖c‖²          b never penalised

It runs after a change of variables that makes features comparable, so that no method is slowed down by their units:

    x̃ = (x − μ)/d        xᵀc + b = x̃ᵀw + b̃,   w = d∘c,  b̃ = b + μᵀc
    l1‖c‖₁ + l2/2‖c‖² = Σ_i l1/d_i |w_i| + l2/(2d_i²) w_i²        the same model, the same penalty

μ are the means over all workers' rows (0 without an intercept, and for sparse data, kept sparse), d² the mean
squares around μ plus `ridge`, which grows with l2. Both are sums over rows: two small reductions before the first
iteration. Without them badly scaled features would slow down the run.

So a plain elastic net becomes one with strengths of its own for every entry, `WeightedElasticNet`:

    g(v) = Σ_ik l1_ik |v_ik| + l2_ik/2 v_ik²        l1, l2 (m, 1) or (m, C)

Shapes: m features, C columns of the model; v (m, C) or (m + 1, C), the intercept last; coef (C, m), intercept (C,),
λ (N, m, C).
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import scipy.sparse
import torch
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from auqadmm.api import solve
from auqadmm.blocks.rows import Loss
from auqadmm.blocks.shard import RawBlock
from auqadmm.callbacks import Progress
from auqadmm.core.result import Result
from auqadmm.core.state import Status, WarmStart
from auqadmm.errors import InputError
from auqadmm.estimators import checks
from auqadmm.estimators.blocks import Rows, later, mapped
from auqadmm.estimators.checks import (
    BlockRows,
    EngineChoice,
    HasSettings,
    Matrix,
    MethodChoice,
    PerRow,
    Start,
    is_sparse,
)
from auqadmm.problem import ElasticNet, Problem, Zero
from auqadmm.problem.ingest import is_dask, read_blocks
from auqadmm.problem.regularizers import (
    Metric,
    Regularizer,
    elastic_fall,
    elastic_subgradient,
    indicator,
    scale_into,
    slack,
    soft_slope,
)

INFERENCE_UNKNOWNS = 4096  # unknowns whose information is asked for with a fit
# These need a plain regularizer, not a weighted one: they run on unscaled features.
PLAIN_ONLY = ("lbfgs", "owl-qn")
# Where the penalty dominates, a feature need not be scaled up to the size of the others; with this factor the
# strengths stay comparable after scaling, and runs were shortest (1 and 30 were compared, on breast cancer and wine).
SCALING_RIDGE = 30.0


@dataclass(frozen=True)
class Scaling:
    """μ and d (m,), and whether the model has an intercept."""

    mean: np.ndarray
    scale: np.ndarray
    intercept: bool

    @staticmethod
    def none(features: int, intercept: bool) -> Scaling:
        return Scaling(np.zeros(features), np.ones(features), intercept)

    @staticmethod
    def of(rows: Rows, intercept: bool, ridge: float = 0.0, engine: EngineChoice | None = None) -> Scaling:
        """From the weighted rows of all blocks, which may be on the engine's workers."""
        total = rows.total
        mean = np.zeros(rows.features)
        if intercept and not rows.sparse:
            mean = _finite(_sum(mapped(engine, _weighed, rows.X, rows.weight)) / total, 0.0)
        with np.errstate(over="ignore"):  # squares beyond float64: such a column keeps its scale
            square = _sum(mapped(engine, _squares, rows.X, rows.weight, mean)) / total
            # a centred constant column is rounding error, which must not be scaled up
            noise = (64 * np.finfo(np.float64).eps * np.abs(mean)) ** 2
        square = np.where(square > noise, square, 0.0) + ridge
        scale = np.sqrt(_finite(square, 1.0))
        return Scaling(mean, np.where(scale > 0, scale, 1.0), intercept)

    def apply(self, X: Matrix) -> Matrix:
        """X̃, or for remote X the task that computes it there."""
        return later(self._applied, X)

    def _applied(self, X: Matrix) -> Matrix:
        if is_sparse(X):
            scaled = X.tocsr(copy=True)
            scaled.data = scaled.data * (1 / self.scale)[scaled.indices]
            return scaled
        return (X - self.mean) / self.scale

    def inside(self, coef: np.ndarray, intercept: np.ndarray) -> Tensor:
        """v of the scaled problem."""
        v = (coef * self.scale).T
        if self.intercept:
            v = np.vstack([v, (intercept + coef @ self.mean)[None]])
        return torch.from_numpy(np.ascontiguousarray(v))

    def outside(self, v: Tensor) -> tuple[np.ndarray, np.ndarray]:
        """coef and intercept of the user's problem."""
        array = v.detach().cpu().numpy()
        w, b = (array[:-1], array[-1]) if self.intercept else (array, np.zeros(array.shape[1]))
        coef = np.ascontiguousarray((w / self.scale[:, None]).T)
        return coef, b - coef @ self.mean


def _sum(parts: Sequence[np.ndarray]) -> np.ndarray:
    return np.sum([np.asarray(p, dtype=np.float64).ravel() for p in parts], axis=0)


def _weighed(X: Matrix, weight: np.ndarray) -> np.ndarray:
    return weight @ X


def _squares(X: Matrix, weight: np.ndarray, mean: np.ndarray) -> np.ndarray:
    if is_sparse(X):
        X = X.tocsr()
        if not X.has_canonical_format:  # sum duplicate entries first
            return X.multiply(X).T @ weight
        return scipy.sparse.csr_matrix((np.square(X.data), X.indices, X.indptr), shape=X.shape).T @ weight
    return weight @ np.square(X - mean)


def _finite(x: np.ndarray, otherwise: float) -> np.ndarray:
    return np.where(np.isfinite(x), x, otherwise)


@dataclass(frozen=True, eq=False)
class WeightedElasticNet(Regularizer):
    """Strengths l1 and l2, entry by entry, both ≥ 0."""

    l1: Tensor
    l2: Tensor

    @staticmethod
    def scaled(l1: float | np.ndarray, l2: float | np.ndarray, scale: np.ndarray) -> WeightedElasticNet:
        """Strengths (one number, or one per column) on features that were divided by `scale` (m,)."""
        d = scale[:, None]
        return WeightedElasticNet(torch.from_numpy(l1 / d * np.ones(1)), torch.from_numpy(l2 / d**2 * np.ones(1)))

    @staticmethod
    def of(l1: np.ndarray, l2: np.ndarray) -> WeightedElasticNet:
        """Strengths of every feature, (m,)."""
        return WeightedElasticNet(torch.from_numpy(l1[:, None]), torch.from_numpy(l2[:, None]))

    def check(self, features: int) -> None:
        if self.l1.shape[0] != features:
            raise InputError(f"WeightedElasticNet: {self.l1.shape[0]} strengths for {features} features.")

    def value(self, v: Tensor) -> Tensor:
        return (self.l1 * v.abs()).sum() + 0.5 * (self.l2 * v.square()).sum()

    def fall(self, v: Tensor, there: Tensor) -> tuple[Tensor, Tensor]:
        return elastic_fall(self.l1, self.l2, v, there)

    def some(self, rows: Tensor, features: int) -> Regularizer | None:
        l1, l2 = (x if len(x) == 1 else x[rows.to(x.device)] for x in (self.l1, self.l2))
        return WeightedElasticNet(l1, l2)

    def prox(self, s: Tensor, K: Metric) -> Tensor:
        soft = s if self.quadratic else s.sign() * (s.abs() - self.l1).clamp(min=0)
        return soft / (K + self.l2)

    def prox_slope(self, s: Tensor, K: Metric) -> Tensor | None:
        return soft_slope(s, self.l1, self.quadratic) / (K + self.l2)

    def subgradient(self, v: Tensor, grad: Tensor) -> Tensor:
        return elastic_subgradient(self.l1, self.l2, v, grad)

    def subgradient_distance(self, v: Tensor, grad: Tensor) -> Tensor:
        return self.subgradient(v, grad).norm()

    def convexity(self, v: Tensor) -> Tensor:
        return self.l2.to(v).expand_as(v)

    def conjugate(self, w: Tensor) -> Tensor:
        l1, l2 = self.l1.to(w).expand_as(w), self.l2.to(w).expand_as(w)
        if self._kinks_alone:
            return indicator(w.abs() <= l1 * slack(w), w)
        over = (w.abs() - l1).clamp(min=0)
        curved = torch.where(l2 > 0, over.square() / (2 * torch.where(l2 > 0, l2, 1.0)), 0.0)
        return curved.sum() + indicator((w.abs() <= l1 * slack(w)) | (l2 > 0), w)

    def dual_scale(self, w: Tensor) -> float | None:
        l1, l2 = self.l1.to(w).expand_as(w), self.l2.to(w).expand_as(w)
        if self._kinks_alone:
            return scale_into(w.abs(), l1)
        if bool(((l1 == 0) & (l2 == 0)).any()):
            return None
        return scale_into(w.abs()[l2 == 0], l1[l2 == 0])

    def at_rest(self, w: Tensor, radius: Tensor) -> Tensor | None:
        return w.abs() + radius < self.l1.to(w).expand_as(w)

    @property
    def strong_convexity(self) -> float:
        """The lower quartile of l2: what uncertainty weights take as each block's share of the prior.

        One feature of huge scale, whose l2 is nearly zero, would otherwise leave all blocks without a prior: runs
        on few rows per block then took ten times the rounds, or did not end.
        """
        return float(self.l2.flatten().sort().values[self.l2.numel() // 4])

    @property
    def separable(self) -> bool:
        return True

    @cached_property
    def quadratic(self) -> bool:
        return not bool((self.l1 > 0).any())

    @cached_property
    def _kinks_alone(self) -> bool:
        """Is every l1 > 0, and every l2 = 0?"""
        return bool((self.l1 > 0).all()) and not bool((self.l2 > 0).any())


def elastic_net(l1: float, l2: float, factors: np.ndarray | None) -> Regularizer:
    """The penalty of a likelihood; `factors` (m,): multiples of both strengths, None: all are 1."""
    if not (l1 or l2):
        return Zero()
    return ElasticNet(l1, l2) if factors is None else WeightedElasticNet.of(l1 * factors, l2 * factors)


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


# ---------------------------------------------------------------------- likelihoods
def named_blocks(
    rows: Rows, targets: Sequence[np.ndarray], offsets: Sequence[np.ndarray] | None, sites: PerRow
) -> tuple[RawBlock, ...]:
    """The blocks of a problem, by the names of their sites."""
    parts = list(zip(rows.X, targets, rows.weight, strict=True))
    read = read_blocks(parts if offsets is None else [(*p, o) for p, o in zip(parts, offsets, strict=True)])
    labels = [f"block {j}" for j in range(len(read))]
    if sites is not None:
        labels = [str(label) for label in np.unique(np.asarray(sites))]
    return tuple(replace(b, name=name, columns=rows.names) for b, name in zip(read, labels, strict=True))


def solved(problem: Problem, settings: FitSettings, inference: bool | str, start: Result | None = None) -> Result:
    """One run as the estimator was set, from another result on."""
    with Progress(mode="auto" if settings.verbose else "quiet", every=settings.verbose or None) as progress:
        return solve(
            problem,
            settings.method,
            settings.engine,
            max_iter=settings.max_iter,
            certificate_tol=settings.tol,
            warm_start=None if start is None else start.v,
            callbacks=[progress] if settings.verbose else [],
            inference=inference,
        )
