"""The elastic net for many strengths: from Gram matrices where they fit, else in runs.

Gram matrices: `squares.py`. In a run every strength is a column of one model, and all columns share their rounds.

    minimise over c_1 … c_K   Σ_k [ 1/(2Σs) Σ_i s_i (x_iᵀc_k + b_k − y_i)² + α_k ρ‖c_k‖₁ + α_k(1 − ρ)/2 ‖c_k‖² ]

The columns do not interact and have the same curvature, so one set of weights fits all, and a round advances every
column: a path takes about as many rounds as its hardest point. A warm start from the neighbouring strength
saves much less, because it only helps the first digits. Where K columns are too many at once, `together` of them are
taken at a time, each batch starting from the neighbour before it.

Shapes: K strengths, m features; logits (R, K), v (m + 1, K).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator
from torch import Tensor

from auqadmm.blocks.curvature import DiagonalCurvature, RowCurvature
from auqadmm.blocks.rows import RowLoss
from auqadmm.core.result import Result
from auqadmm.errors import InputError
from auqadmm.estimators import blocks, checks, squares, wide
from auqadmm.estimators.blocks import Rows
from auqadmm.estimators.checks import EngineChoice, Grid, MatrixLike, MethodChoice, PerRow
from auqadmm.estimators.elastic_net import centred
from auqadmm.estimators.fitting import FitSettings, FitTask, ScaledFit, report


@dataclass(frozen=True)
class SharedLeastSquares(RowLoss):
    """Σ_k ½(z_k − y)²: the same target for `columns` models."""

    columns: int
    quadratic: ClassVar[bool] = True
    unit_curvature: ClassVar[bool] = True

    def columns_for(self, classes: int) -> int:
        return self.columns

    @property
    def concordance(self) -> float:
        return 0.0

    def null_logits(self, mean: Tensor, columns: int) -> Tensor:
        return mean.expand(columns)

    def row_value(self, z: Tensor, y: Tensor) -> Tensor:
        return 0.5 * (z - y[:, None]).square().sum(1)

    def row_slope(self, s: Tensor, y: Tensor) -> Tensor:
        return s - y[:, None]

    def row_curvature(self, s: Tensor, y: Tensor) -> RowCurvature:
        return DiagonalCurvature(torch.ones_like(s))

    def row_conjugate(self, a: Tensor, y: Tensor) -> Tensor:
        return (a * (0.5 * a + y[:, None])).sum(1)


@dataclass(frozen=True, eq=False)
class Path:
    """Models along a path: alphas (K,) from strong to weak, coef (K, m), intercept (K,), and the runs behind them."""

    alphas: np.ndarray
    coef: np.ndarray
    intercept: np.ndarray
    results: tuple[Result, ...]
    spent: int = 0  # rounds without result

    @property
    def rounds(self) -> int:
        return self.spent + sum(r.history[-1].rounds for r in self.results)

    @property
    def bytes(self) -> int:
        return sum(r.history[-1].bytes for r in self.results)


def enet_path(
    X: MatrixLike,
    y: ArrayLike,
    *,
    l1_ratio: float = 0.5,
    eps: float = 1e-3,
    alphas: Grid = 100,
    sites: PerRow = None,
    sample_weight: PerRow = None,
    fit_intercept: bool = True,
    n_blocks: int = 1,
    max_iter: int = 500,
    tol: float = 1e-18,
    method: MethodChoice = "auto",
    engine: EngineChoice = "local",
    together: int = 100,
    verbose: int = 0,
) -> Path:
    """Elastic nets for many strengths.

    Parameters
    ----------
    X, y, sites, sample_weight
        As in `ConsensusElasticNet.fit`.
    l1_ratio, fit_intercept, n_blocks, max_iter, tol, method, engine, verbose
        As in `ConsensusElasticNet`.
    eps : float, default=1e-3
        The weakest strength, relative to the strongest, where `alphas` is a number.
    alphas : int or array, default=100
        The strengths, or how many: then from the smallest that leaves all coefficients 0 down to `eps` times that.
    together : int, default=100
        Strengths per run, with a `method` of your choice. 1 solves one after another, each from the solution of the one
        before. Otherwise two reductions suffice up to 4096 features, and some tens beyond, where workers send
        the Gram matrix of columns that are or may become active; runs are used where more than 4096 are.

    Returns
    -------
    Path
        `alphas` (K,) from strong to weak, `coef` (K, m), `intercept` (K,), and the runs behind them (`results`).

    Raises
    ------
    InputError
        Rows, labels, weights or sites cannot be used; the message says where and what to do.
    ValueError
        A parameter of the estimator has a value that it cannot have.

    Examples
    --------
    >>> import numpy as np
    >>> import auqadmm as aq
    >>> X = np.array([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0], [2.0, 1.0], [2.0, 0.0], [0.0, 0.0]])
    >>> y = np.array([1.0, 2.0, 3.0, 5.0, 4.0, 0.5])
    >>> sites = [0, 0, 0, 1, 1, 1]
    >>> path = aq.enet_path(X, y, alphas=[1.0, 0.1], sites=sites)
    >>> path.alphas, path.coef.round(1)
    (array([1. , 0.1]), array([[0.6, 0. ],
           [1.7, 0.5]]))
    """
    reader = _Reader(fit_intercept, n_blocks, max_iter, tol, method, engine, verbose)
    settings = FitSettings.of(reader)
    rows = blocks.read(reader, X, y, sites, sample_weight, numeric=True)
    ratio = checks.share("l1_ratio", l1_ratio)
    check_grid(alphas, eps, ratio)
    checks.count("together", together)
    known: Path | int | None = _from_sums(rows, ratio, alphas, eps, bool(fit_intercept), settings)
    if known is None:
        known = _from_sets(rows, ratio, alphas, eps, bool(fit_intercept), settings)
    if isinstance(known, Path):
        return known
    rows, mean = centred(rows, fit_intercept)
    grid = strengths(rows, ratio, alphas, eps)
    models = path(rows, grid, ratio, fit_intercept, settings, together)
    report(reader, list(models.results))
    return replace(models, intercept=models.intercept + mean, spent=known)


def _from_sums(
    rows: Rows, ratio: float, alphas: Grid, eps: float, intercept: bool, settings: FitSettings
) -> Path | None:
    """The path from Gram matrices (`squares.py`); None where that is not possible."""
    split = squares.Split.none(len(rows.order))
    if not squares.is_applicable(rows, settings, split):
        return None
    with squares.split_blocks(rows, split, settings) as data:
        moments = data.moments(intercept)
        if not moments.finite:
            return None
        grid = grid_of(alphas, eps, lambda: squares.largest(moments, ratio))
        coef = squares.nets(moments, grid[None], [ratio])[0][0, 0]
        certificate = squares.certified(moments, coef, grid * ratio, grid * (1 - ratio))
        if not squares.enough(certificate, settings.tol):
            return None
        offset = moments.middle - coef @ moments.mean[0] if intercept else np.zeros(len(grid))
        run = squares.result(data, certificate, coef, offset if intercept else None, settings)
    return Path(grid, coef, offset, (run,))


def _from_sets(
    rows: Rows, ratio: float, alphas: Grid, eps: float, intercept: bool, settings: FitSettings
) -> Path | int:
    """The path from working sets of columns (`wide.py`); the rounds spent where that is not possible."""
    split = squares.Split.none(len(rows.order))
    if not wide.is_applicable(rows, settings, split, [ratio], alphas):
        return 0
    with squares.split_blocks(rows, split, settings) as data:
        with suppress(wide.GaveUp):
            groups = wide.Groups(data, split.whole[None], np.zeros((1, 1), dtype=bool), intercept)
            whole = groups.all[0]
            grid = grid_of(alphas, eps, lambda: whole.largest(ratio))
            track = whole.follow(grid, ratio)
            groups.run()
            certificate, coef = whole.certified(track), whole.whole(track)
            if squares.enough(certificate, settings.tol):
                offset = whole.middle - coef @ whole.mean if intercept else np.zeros(len(grid))
                run = squares.result(data, certificate, coef, offset if intercept else None, settings)
                return Path(grid, coef, offset, (run,))
        return data.reduce.traffic.rounds


class _Reader(BaseEstimator):
    """The estimator parameters that reading rows needs."""

    def __init__(
        self,
        fit_intercept: bool,
        n_blocks: int,
        max_iter: int,
        tol: float,
        method: MethodChoice,
        engine: EngineChoice,
        verbose: int,
    ) -> None:
        self.fit_intercept = fit_intercept
        self.n_blocks = n_blocks
        self.max_iter = max_iter
        self.tol = tol
        self.method = method
        self.engine = engine
        self.verbose = verbose


def check_grid(alphas: Grid, eps: float, l1_ratio: float) -> None:
    """Check a grid before anything is computed."""
    if np.ndim(alphas) > 0:
        if not [checks.at_least_zero("alphas", a) for a in np.asarray(alphas).ravel().tolist()]:
            raise InputError("alphas is empty: give at least one strength, or how many to choose.")
        return
    checks.count("alphas", alphas)
    checks.above_zero("eps", eps)
    if l1_ratio == 0:
        raise InputError("With l1_ratio=0 no strength leaves all coefficients 0: give the alphas themselves.")


def grid_of(alphas: Grid, eps: float, largest: Callable[[], float]) -> np.ndarray:
    """The grid, from strong to weak; by default, from the smallest that leaves all coefficients 0."""
    if np.ndim(alphas) > 0:
        return np.sort(np.asarray(alphas, dtype=np.float64).ravel())[::-1]
    return largest() * np.geomspace(1.0, eps, int(alphas))  # type: ignore[arg-type]  # a number, see above


def strengths(rows: Rows, l1_ratio: float, alphas: Grid, eps: float) -> np.ndarray:
    """The grid for rows whose target is centred. One reduction where it must be computed."""
    check_grid(alphas, eps, l1_ratio)

    def largest() -> float:
        products = sum(X.T @ (w * y) for X, y, w in zip(rows.X, rows.y, rows.weight, strict=True))
        strongest = float(np.max(np.abs(products))) / (rows.total * l1_ratio)
        # a target without any correlation: every strength gives the same model
        return max(strongest, float(np.finfo(np.float64).eps))

    return grid_of(alphas, eps, largest)


def path(
    rows: Rows, alphas: np.ndarray, l1_ratio: float, intercept: bool, settings: FitSettings, together: int
) -> Path:
    """Models for all strengths on rows whose target is centred."""
    batch = checks.count("together", together)
    parts = [alphas[k : k + batch] for k in range(0, len(alphas), batch)]
    last: Tensor | None = None
    before: Tensor | None = None
    coefs, intercepts, results = [], [], []
    scaled: ScaledFit | None = None
    for part in parts:
        K = len(part)
        loss = SharedLeastSquares(columns=K, reduction="pooled")
        task = FitTask(loss, l1_ratio * part, (1 - l1_ratio) * part, bool(intercept))
        if scaled is None:  # one scaling for the whole path: batches share their variables
            whole = replace(task, l2=(1 - l1_ratio) * alphas)
            scaled = ScaledFit.of(rows, whole, settings)
        scaled = replace(scaled, task=task)
        start = None if last is None else _extrapolated(last, before).expand(-1, K)
        # columns of equal scale: the gap of one is at most K times the tolerance of all
        result = scaled.solve(replace(settings, tol=settings.tol / K), start)
        before, last = (result.v[:, -2:-1] if K > 1 else last), result.v[:, -1:]
        coef, offset = scaled.scaling.outside(result.v)
        coefs.append(coef)
        intercepts.append(offset)
        results.append(result)
    return Path(alphas, np.vstack(coefs), np.concatenate(intercepts), tuple(results))


def _extrapolated(last: Tensor, before: Tensor | None) -> Tensor:
    """The path is nearly linear: extrapolate the last two solutions."""
    return last if before is None else 2 * last - before
