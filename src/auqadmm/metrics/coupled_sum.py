"""K = Σ_j W_j of coupled weights (`coupled.py`): products, and inverses that come close.

    K x = Σ_j U_j [H_j (U_jᵀx)] + Fᵀ [row i of Fx times Q_i]_i + κx

The preconditioner is that of `kronecker_sum.py`: in the eigenbasis P of the pooled curvature of classes only what every
column has by itself is kept, H_cj = (I ⊗ P_c)ᵀ H_j (I ⊗ P_c) of size r × r.

Shapes: N blocks, m features, C columns, r directions per block, R = N·r; x, h, active (m, C).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from auqadmm.metrics import kronecker_sum
from auqadmm.metrics.coupled import Coupled
from auqadmm.metrics.kronecker_sum import KroneckerSum
from auqadmm.metrics.lowrank import pieces, spectrum


@dataclass(frozen=True)
class CoupledSum(KroneckerSum):
    """K of the coupled weights `parts` of all N blocks, in float64, acting on (m, C)."""

    parts: Coupled

    @cached_property
    def G(self) -> Tensor:
        """The directions themselves, (m, R)."""
        return self.parts.U.transpose(0, 1).flatten(1).contiguous()

    @cached_property
    def product(self) -> CoupledSumProduct:  # type: ignore[override]
        return CoupledSumProduct(self.left.product, self.G, self.parts.H)

    @cached_property
    def left(self) -> KroneckerSum:
        """Of what the directions leave over."""
        return KroneckerSum(self.parts.left)

    @cached_property
    def diagonal(self) -> Tensor:
        """(m, C)."""
        found = torch.zeros_like(self.left.diagonal)
        for some in self._pieces:
            U = self.parts.U[some]
            found += torch.stack([((U @ H[some]) * U).sum((0, 2)) for H in self.parts.of_classes()], 1)
        return self.left.diagonal + found

    # ------------------------------------------------------------------ inverses
    def strengths(self, q: Tensor) -> Tensor:
        return self._by_column.diagonal(dim1=2, dim2=3).flatten(1)

    def halved(self, c: int, G: Tensor, weight: Tensor, keep: Tensor | None) -> tuple[Tensor, Tensor]:
        by_block = self._by_column[c]
        if keep is not None:  # from the blocks: all directions against all would be R² numbers
            j, k = keep // by_block.shape[-1], keep % by_block.shape[-1]
            by_block = torch.where(j[:, None] == j, by_block[j[:, None], k[:, None], k], 0.0)[None]
        # zero along the sum of all classes, to which a softmax is blind: no Cholesky factor
        e, E = spectrum(by_block)
        root = torch.block_diag(*(E * e.sqrt()[:, None, :]))
        return G @ root, root

    def known(self, c: int, q: Tensor) -> Tensor:
        K = self.G.new_zeros(len(self.G), len(self.G))
        for some in self._pieces:
            by_block = self.parts.U[some] @ self._by_column[c, some]
            K += by_block.transpose(0, 1).flatten(1) @ self._by_block[:, some].flatten(1).mT
        return K

    @cached_property
    def _columns(self) -> tuple[Tensor, Tensor]:
        S, d = self.parts.S, self.parts.d
        pooled = torch.einsum("jrcrd->cd", self._by_class) + torch.einsum("j,jcd->cd", d.sum(1), S)
        P = spectrum(pooled[None])[1][0]
        return P, torch.einsum("ac,jab,bc->cj", P, S, P).clamp(min=0)

    @property
    def _by_class(self) -> Tensor:
        """H_j as (N, r, C, r, C)."""
        (N, _, r), C = self.parts.U.shape, self.shape[1]
        return self.parts.H.reshape(N, r, C, r, C)

    @cached_property
    def _by_column(self) -> Tensor:
        """H_cj, (C, N, r, r)."""
        H, P = self._by_class, self._columns[0].mT
        found = H.new_empty(len(P), *H.shape[:2], H.shape[3])
        for some in pieces(len(H), H[0].numel()):
            for c, p in enumerate(P):
                found[c, some] = torch.einsum("jrasb,a,b->jrs", H[some], p, p)
        return found

    def _principal(self, active: Tensor) -> Tensor:
        row, column = active.nonzero().unbind(1)
        K = self.left._principal(active)
        own = torch.nn.functional.one_hot(column, self.shape[1]).to(K)
        for U, H in zip(self.parts.U, self.parts.H, strict=True):
            wide = (U[row][:, :, None] * own[:, None, :]).flatten(1)  # (a, r·C)
            K = K + wide @ H @ wide.mT
        return K


@dataclass(frozen=True)
class CoupledSumProduct:
    """x ↦ Kx, in the shape of x: G (m, R), H (N, r·C, r·C)."""

    left: kronecker_sum.KroneckerSumProduct
    G: Tensor
    H: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        y = x.reshape(len(self.G), -1)
        known = (y.mT @ self.G).mT.reshape(len(self.H), self.H.shape[1], 1)
        known = (self.H @ known).reshape(self.G.shape[1], y.shape[1])
        return self.left(x) + (known.mT @ self.G.mT).mT.reshape(x.shape)
