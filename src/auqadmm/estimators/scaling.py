"""A change of variables that makes features comparable, so that no method is slowed down by their units.

    x̃ = (x − μ)/d        xᵀc + b = x̃ᵀw + b̃,   w = d∘c,  b̃ = b + μᵀc
    l1‖c‖₁ + l2/2‖c‖² = Σ_i l1/d_i |w_i| + l2/(2d_i²) w_i²        the same model, the same penalty

μ are the means over all workers' rows (0 without an intercept, and for sparse data, which it would fill), d² the mean
squares around μ plus `ridge`, which grows with l2. Both are sums over rows: two small reductions before the first
iteration. Without them features of odd scales would slow down the run.

Shapes: m features, C columns of the model; v (m, C) or (m + 1, C), the intercept last; coef (C, m), intercept (C,).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from auqadmm.estimators.blocks import Rows
from auqadmm.estimators.chunks import later, mapped
from auqadmm.estimators.types import EngineChoice, Matrix, is_sparse


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
        """From the weighted rows of all blocks, which may live where the engine's do."""
        total = rows.total
        mean = np.zeros(rows.features)
        if intercept and not rows.sparse:
            mean = _finite(_sum(mapped(engine, _weighed, rows.X, rows.weight)) / total, 0.0)
        with np.errstate(over="ignore"):  # squares beyond float64: such a column keeps its scale
            square = _sum(mapped(engine, _squares, rows.X, rows.weight, mean)) / total
            # what is left of a constant column after centring is rounding, which must not be blown up
            noise = (64 * np.finfo(np.float64).eps * np.abs(mean)) ** 2
        square = np.where(square > noise, square, 0.0) + ridge
        scale = np.sqrt(_finite(square, 1.0))
        return Scaling(mean, np.where(scale > 0, scale, 1.0), intercept)

    def apply(self, X: Matrix) -> Matrix:
        """X̃, or where X stays elsewhere the order to make it there."""
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
        if not X.has_canonical_format:  # numbers of one place add up first
            return X.multiply(X).T @ weight
        return scipy.sparse.csr_matrix((np.square(X.data), X.indices, X.indptr), shape=X.shape).T @ weight
    return weight @ np.square(X - mean)


def _finite(x: np.ndarray, otherwise: float) -> np.ndarray:
    return np.where(np.isfinite(x), x, otherwise)
