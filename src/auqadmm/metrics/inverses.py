"""Approximate inverses of K = Σ_j A_j ⊗ S_j + κI: preconditioners of the consensus step, explained in kronecker_sum.py.

Shapes: m features, C columns, R directions of all blocks; x, h, active (m, C).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from auqadmm.metrics.kronecker import Basis

if TYPE_CHECKING:
    from auqadmm.metrics.kronecker_sum import KroneckerSum

FACTOR = 2**24  # numbers in the factors of all columns together

Inverse = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Reshaped:
    """An inverse that acts on x as it is outside; a joint weight sees (m·C, 1)."""

    inverse: Inverse
    shape: tuple[int, int]

    def __call__(self, x: Tensor) -> Tensor:
        return self.inverse(x.reshape(self.shape)).reshape(x.shape)


@dataclass(frozen=True)
class Jacobi:
    """x ↦ x / D."""

    D: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        return x / self.D


@dataclass(frozen=True)
class Cholesky:
    """One m × m factor per column: L (C, m, m). Of several columns, and on a GPU, the inverse: conjugate gradients ask
    for it dozens of times, and a product takes far less time than two triangular solves."""

    P: Tensor
    L: Tensor
    inverted: bool

    @classmethod
    def of(cls, K: KroneckerSum, P: Tensor, q: Tensor, h: Tensor) -> Cholesky:
        L = q.new_empty(len(q), len(h), len(h))
        inverted = len(q) > 1 or L.is_cuda
        for c, q_c in enumerate(q):  # one after the other: all factors, and once more as inverses, would be two copies
            M = K.column(c, q_c)
            M.diagonal().add_(h)
            factor = cholesky(M)
            L[c] = torch.cholesky_inverse(factor) if inverted else factor
        return cls(P, L, inverted)

    def __call__(self, x: Tensor) -> Tensor:
        y = (x @ self.P).mT[..., None]
        y = self.L @ y if self.inverted else torch.cholesky_solve(y, self.L)
        return y[..., 0].mT @ self.P.mT


@dataclass(frozen=True)
class Woodbury:
    """D⁻¹ − D⁻¹ G Rᵀ R Gᵀ D⁻¹ per column in the bases F and P. inverse = D⁻¹ (m, C), G (m, R'), root (C, R', R')."""

    P: Tensor
    F: Basis
    inverse: Tensor
    G: Tensor
    root: Tensor

    @classmethod
    def of(cls, K: KroneckerSum, P: Tensor, q: Tensor, inverse: Tensor) -> Woodbury:
        """`inverse` is 1 / (the diagonal rest); zeros mark coordinates that do not take part."""
        F, (m, C) = K.parts.F, K.shape
        G = K.G if F is None else F @ K.G
        weight, keep = K.strengths(q), None
        most = min(G.shape[1], m - 1, math.isqrt(FACTOR // C))
        if most < G.shape[1]:  # the strongest columns stay, of the others only the diagonal
            order = (G.square().sum(0) * weight.sum(0)).argsort(descending=True, stable=True)
            keep, drop = order[:most], order[most:]
            lost = G[:, drop].square() @ weight[:, drop].mT
            inverse = inverse / (1 + lost * inverse)
            G, weight = G[:, keep].contiguous(), weight[:, keep]
        eye = torch.eye(G.shape[1], dtype=G.dtype, device=G.device)
        roots = G.new_empty(C, *eye.shape)
        for c in range(C):
            B, root = K.halved(c, G, weight[c], keep)
            L = cholesky(eye + B.mT @ (B * inverse[:, c, None]))
            roots[c] = torch.linalg.solve_triangular(L, root.mT, upper=False)
        return cls(P, F, inverse, G, roots)

    def __call__(self, x: Tensor) -> Tensor:
        y = (x if self.F is None else self.F @ x) @ self.P
        y = y * self.inverse
        known = (y.mT @ self.G)[:, None, :] @ self.root.mT @ self.root
        y = (y - self.inverse * (known[:, 0] @ self.G.mT).mT) @ self.P.mT
        return y if self.F is None else self.F.mT @ y


@dataclass(frozen=True)
class Submatrix:
    """The factor of a principal submatrix with a rows. active (m, C), L (a, a)."""

    active: Tensor
    L: Tensor

    @classmethod
    def of(cls, active: Tensor, K: Tensor, h: Tensor) -> Submatrix:
        """K (a, a), which is written to, h (m, C)."""
        K.diagonal().add_(h[active])
        return cls(active, cholesky(K))

    def __call__(self, x: Tensor) -> Tensor:
        y = torch.zeros_like(x)
        y[self.active] = torch.cholesky_solve(x[self.active][:, None], self.L)[:, 0]
        return y


def cholesky(M: Tensor) -> Tensor:
    """The lower factor of a symmetric (k, k) matrix that is positive definite but for rounding."""
    L, info = torch.linalg.cholesky_ex(M)
    lift = len(M) * torch.finfo(M.dtype).eps * M.diagonal().amax() if len(M) else 0.0
    for _ in range(4):  # conditioning beyond the precision: the smallest lift that rounding justifies
        if not info:
            break
        L, info = torch.linalg.cholesky_ex(M + lift * torch.eye(len(M), dtype=M.dtype, device=M.device))
        lift = 100 * lift
    return L
