"""K = Σ_j A_j ⊗ S_j + κI, the sum of low-rank weights of all blocks: products, and approximate inverses.

With G = [G_1 … G_N], G_j = U_j M_j^½, and κ = Σ_j φ_j a product needs two passes over G and no m × m matrix:

    K x = Σ_j G_j (G_jᵀ x) S_j + Fᵀ [row i of Fx times Q_i]_i + κx,      Q_i = Σ_j d_ji S_j

K + diag(h) has no cheap exact inverse when C > 1, since the S_j do not commute. Its preconditioner pretends they do:
in the eigenbasis P of the pooled Σ_j tr(A_j) S_j only the diagonals q_cj = P_cᵀ S_j P_c are kept, which leaves one
operator per column,

    B_c = Σ_j q_cj A_j + κ + h,    by Cholesky (m × m), or with D_c = Σ_j q_cj d_j + κ + h in the basis F by Woodbury:
    B_c⁻¹ = D_c⁻¹ − D_c⁻¹ G R_cᵀ R_c Gᵀ D_c⁻¹,    R_c = L⁻¹ diag(√q_c),    L Lᵀ = I + diag(√q_c) Gᵀ D_c⁻¹ G diag(√q_c).

For C = 1 both are exact (Woodbury if F = I or h is constant). G is shared by the columns, so that Woodbury stores
C matrices of size R × R, R = N·r. Where even these are too many, the weaker columns of G only add to D_c.

Restricted to a set of active coordinates (`restricted`) a principal submatrix of K is what has to be inverted.

Shapes: N blocks, m features, C columns, r directions per block, R = N·r; x, h, active (m, C).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from auqadmm.metrics.composite import Operator
from auqadmm.metrics.lowrank import Basis, LowRank, dense_basis, pieces, root, spectrum
from auqadmm.metrics.weights import sum_blocks

K_FEATURES = 4096  # C = 1: up to this m, K may be formed
K_PER_COLUMN = 1024  # C > 1: up to this m, one m × m matrix per column may be formed
K_ACTIVE = 1024  # C > 1: up to this many active coordinates, their part of K may be formed
K_FACTORS = 2**24  # numbers in the factors of all columns together
K_SLIM = 4  # Woodbury pays when R·K_SLIM ≤ m


@dataclass(frozen=True)
class KroneckerSum:
    """K of the weights `parts` of all N blocks, in float64, acting on (m, C)."""

    parts: LowRank
    _memo: dict[str, tuple[Tensor, Operator]] = field(default_factory=dict, init=False, repr=False, compare=False)

    # ------------------------------------------------------------------ the operator
    @cached_property
    def G(self) -> Tensor:
        """(m, R)."""
        U, R = self.parts.U, root(self.parts.M)
        G = U.new_empty(U.shape[1], U.shape[0], U.shape[2])
        for some in self._pieces:
            G[:, some] = (U[some] @ R[some]).transpose(0, 1)
        return G.flatten(1)

    @property
    def _by_block(self) -> Tensor:
        """(m, N, r)."""
        return self.G.unflatten(1, (len(self.parts.U), self.parts.U.shape[2]))

    @property
    def _pieces(self) -> list[slice]:
        """Of the blocks, a few at a time: temporaries are as large as G."""
        return pieces(len(self.parts.U), self.parts.U[0].numel())

    @cached_property
    def Q(self) -> Tensor:
        """(m, C, C)."""
        return torch.einsum("jm,jcd->mcd", self.parts.d, self.parts.S)

    @cached_property
    def kappa(self) -> Tensor:
        return sum_blocks(self.parts.phi)

    @property
    def shape(self) -> tuple[int, int]:
        """m and C."""
        return self.parts.d.shape[1], self.parts.S.shape[-1]

    @cached_property
    def product(self) -> KroneckerSumProduct:
        return KroneckerSumProduct(self.G, self.Q, self.parts.S, self.kappa, self.parts.F)

    def apply(self, x: Tensor) -> Tensor:
        return self.product(x)

    @cached_property
    def diagonal(self) -> Tensor:
        """(m, C)."""
        F, S = self.parts.F, self.parts.S
        by_block = torch.cat([self._by_block[:, some].square().sum(2) for some in self._pieces], 1)
        rest = self.Q.diagonal(dim1=1, dim2=2)
        rest = rest if F is None else F.square().mT @ rest
        return by_block @ S.diagonal(dim1=1, dim2=2) + rest + self.kappa

    # ------------------------------------------------------------------ inverses
    def inverse(self, h: Tensor) -> Operator:
        """x ↦ ≈ (K + diag h)⁻¹x, symmetric positive definite; cached for the last h."""
        known = self._memo.get("inverse")
        if known is not None and torch.equal(known[0], h):
            return known[1]
        inverse = self._inverse(h)
        self._memo["inverse"] = (h, inverse)
        return inverse

    def drop_cache(self) -> None:
        """Drop cached factors."""
        self._memo.clear()
        vars(self).pop("_dense", None)

    def restricted(self, active: Tensor, h: Tensor) -> Operator:
        """x ↦ approximately the inverse of the active part of K + diag h, for x that vanishes elsewhere."""
        m, C = self.shape
        if C == 1 and self.parts.F is None and self._slim:
            P, q = self._columns
            return Woodbury.of(self, P, q, torch.where(active, 1 / (self._rest(q) + h), 0.0))
        if C == 1 and m <= K_FEATURES:
            rows = active[:, 0].nonzero()[:, 0]
            return Submatrix.of(active, self._dense[rows][:, rows], h)
        if C > 1 and int(active.sum()) <= K_ACTIVE:
            return Submatrix.of(active, self._principal(active), h)
        # The inverse of K restricted to the active part, instead of the inverse of the restricted K. One level of h
        # for all, rounded: the factors then serve every active set.
        level = float(h.sum() / active.sum().clamp(min=1))
        around = self.inverse(torch.full_like(h, float(f"{level:.1e}")))
        return lambda x: torch.where(active, around(x), 0.0)

    def _inverse(self, h: Tensor) -> Operator:
        m, C = self.shape
        P, q = self._columns
        small = m <= (K_FEATURES if C == 1 else K_PER_COLUMN) and C * m * m <= K_FACTORS
        if small and not (self._slim if C == 1 else self.G.shape[1] < m):
            return Cholesky.of(self, P, q, h.mean(1))
        rest = self._rest(q) + self._turned(h.mean(1, keepdim=True))
        return Woodbury.of(self, P, q, 1 / rest)

    @property
    def _slim(self) -> bool:
        """Is Woodbury cheaper than a factor of K, or a factor of K too large?"""
        m, R = self.G.shape
        return m >= K_SLIM * R or m > max(R, K_FEATURES)

    @cached_property
    def _columns(self) -> tuple[Tensor, Tensor]:
        """P (C, C) and q (C, N)."""
        S, d = self.parts.S, self.parts.d
        size = torch.cat([self._by_block[:, some].square().sum(0) for some in self._pieces])
        trace = size.sum(1) + d.sum(1)
        P = spectrum(torch.einsum("j,jcd->cd", trace, S)[None])[1][0]
        return P, torch.einsum("ac,jab,bc->cj", P, S, P).clamp(min=0)

    def _rest(self, q: Tensor) -> Tensor:
        """Σ_j q_cj d_j + κ, (m, C); positive as φ is, lifted to the rounding of K where φ is below it."""
        rest = (q @ self.parts.d).mT + self.kappa
        return rest.clamp(min=float(torch.finfo(rest.dtype).eps * self.diagonal.amax()))

    def _turned(self, h: Tensor) -> Tensor:
        """The diagonal of F diag(h) Fᵀ."""
        return h if self.parts.F is None else self.parts.F.square() @ h

    @cached_property
    def _dense(self) -> Tensor:
        """K itself, (m, m), for C = 1."""
        return self.column(0, self.parts.S[:, 0, 0])

    def _principal(self, active: Tensor) -> Tensor:
        """K restricted to the active coordinates, (a, a)."""
        row, column = active.nonzero().unbind(1)
        S, r = self.parts.S, self.parts.U.shape[-1]
        F = None if self.parts.F is None else dense_basis(self.parts.F)
        K = torch.diag(self.kappa.expand(len(row)))
        for j, S_j in enumerate(S):
            G = self.G[row, j * r : (j + 1) * r]
            A = G @ G.mT
            if F is None:
                A = A + torch.where(row[:, None] == row, self.parts.d[j, row], 0.0)
            else:
                A = A + F[:, row].mT @ (self.parts.d[j, :, None] * F[:, row])
            K = K + A * S_j[column][:, column]
        return K

    def strengths(self, q: Tensor) -> Tensor:
        """Of the columns of G in every column of the unknown, (C, R); q (C, N)."""
        return q.repeat_interleave(self.parts.U.shape[-1], 1)

    def halved(self, c: int, G: Tensor, weight: Tensor, keep: Tensor | None) -> tuple[Tensor, Tensor]:
        """G H and H, H Hᵀ the part of column c between the columns of G, of which only some may be kept."""
        root = weight.sqrt()
        return G * root, torch.diag(root)

    def known(self, c: int, q: Tensor) -> Tensor:
        """The part of column c inside the directions, (m, m)."""
        K = self.G.new_zeros(len(self.G), len(self.G))
        for some in self._pieces:
            G = self._by_block[:, some]
            K += (G * q[some, None]).flatten(1) @ G.flatten(1).mT
        return K

    def column(self, c: int, q: Tensor) -> Tensor:
        """Σ_j q_j A_j + κI, (m, m); q (N,)."""
        F = None if self.parts.F is None else dense_basis(self.parts.F)
        rest = q @ self.parts.d
        K = self.known(c, q)
        if F is None:
            K.diagonal().add_(rest)
        else:
            K += F.mT @ (rest[:, None] * F)
        K.diagonal().add_(self.kappa)
        return K


@dataclass(frozen=True)
class KroneckerSumProduct:
    """x ↦ Kx, in the shape of x: G (m, R), Q (m, C, C), S (N, C, C)."""

    G: Tensor
    Q: Tensor
    S: Tensor
    kappa: Tensor
    F: Basis

    def __call__(self, x: Tensor) -> Tensor:
        y = x.reshape(self.Q.shape[:2])
        known = (y.mT @ self.G).mT.reshape(len(self.S), -1, y.shape[1]) @ self.S  # rows: BLAS is slower with columns
        rest = y if self.F is None else self.F @ y
        rest = (rest[:, None, :] @ self.Q)[:, 0]
        y = (known.flatten(0, 1).mT @ self.G.mT).mT + (rest if self.F is None else self.F.mT @ rest) + self.kappa * y
        return y.reshape(x.shape)


@dataclass(frozen=True)
class ShiftedProduct:
    """x ↦ Kx + h∘x, h in the shape of x."""

    K: KroneckerSumProduct
    h: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        return self.K(x) + self.h * x


# ---------------------------------------------------------------------- approximate inverses


@dataclass(frozen=True)
class Cholesky:
    """One m × m factor per column: L (C, m, m). Of several columns, and on a GPU, the inverse: conjugate gradients
    use it dozens of times, and a product takes far less time than two triangular solves."""

    P: Tensor
    L: Tensor
    inverted: bool

    @classmethod
    def of(cls, K: KroneckerSum, P: Tensor, q: Tensor, h: Tensor) -> Cholesky:
        L = q.new_empty(len(q), len(h), len(h))
        inverted = len(q) > 1 or L.is_cuda
        for c, q_c in enumerate(q):  # one at a time: factors and inverses of all columns would be two copies
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
        most = min(G.shape[1], m - 1, math.isqrt(K_FACTORS // C))
        if most < G.shape[1]:  # keep the strongest columns, of the others only the diagonal
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
