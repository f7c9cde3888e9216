"""K = Σ_j W_j of coupled weights (`coupled.py`): products, and inverses that come close.

    K x = (what `kronsum.py` says) + Σ_j V_j [H_j (V_jᵀx)]

The preconditioner is that of `kronsum.py`: in the eigenbasis P of the pooled curvature of classes only what every
column has by itself is kept, H_cj = (I ⊗ P_c)ᵀ H_j (I ⊗ P_c) of size k × k. The columns of V_j come after those of G.

Shapes: N blocks, m features, C columns, k coupled directions per block; x, h, active (m, C).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from auqadmm.core import kronsum
from auqadmm.core.coupled import Coupled
from auqadmm.core.kronsum import KroneckerSum
from auqadmm.core.lowrank import half, spectrum


@dataclass(frozen=True)
class CoupledSum(KroneckerSum):
    """K of the coupled weights `parts` of all N blocks, in float64, acting on (m, C)."""

    parts: Coupled

    @cached_property
    def V(self) -> Tensor:
        """(m, N·k)."""
        return self.parts.V.transpose(0, 1).flatten(1).contiguous()

    @cached_property
    def G(self) -> Tensor:
        """(m, R), those of the Kronecker part first."""
        return torch.cat([half(self.parts).transpose(0, 1).flatten(1), self.V], 1)

    @cached_property
    def product(self) -> Product:  # type: ignore[override]
        return Product(self.kronecker.product, self.V, self.parts.H)

    @cached_property
    def kronecker(self) -> KroneckerSum:
        return KroneckerSum(self.parts.kronecker)

    @cached_property
    def diagonal(self) -> Tensor:
        """(m, C)."""
        V = self.parts.V
        return self.kronecker.diagonal + torch.stack([((V @ H) * V).sum((0, 2)) for H in self.parts.of_classes()], 1)

    # ------------------------------------------------------------------ inverses
    def strengths(self, q: Tensor) -> Tensor:
        return torch.cat([super().strengths(q), self._by_column.diagonal(dim1=2, dim2=3).flatten(1)], 1)

    def halved(self, c: int, G: Tensor, weight: Tensor, keep: Tensor | None) -> tuple[Tensor, Tensor]:
        known = self.parts.U.shape[0] * self.parts.U.shape[2]
        # zero along the sum of all classes, to which a softmax is blind: no Cholesky factor
        e, E = spectrum(self._by_column[c])
        roots = torch.block_diag(*(E * e.sqrt()[:, None, :]))
        if keep is None:
            root = torch.block_diag(torch.diag(weight[:known].sqrt()), roots)
            return torch.cat([G[:, :known] * weight[:known].sqrt(), G[:, known:] @ roots], 1), root
        whole = torch.block_diag(torch.diag(super().strengths(self._columns[1])[c]), roots @ roots.mT)
        e, E = spectrum(whole[keep][:, keep][None])
        root = E[0] * e[0].sqrt()
        return G @ root, root

    def known(self, c: int, q: Tensor) -> Tensor:
        N, _, k = self.parts.V.shape
        by_block = self.V.unflatten(1, (N, k)).transpose(0, 1) @ self._by_column[c]
        return self.kronecker.known(c, q) + by_block.transpose(0, 1).flatten(1) @ self.V.mT

    @cached_property
    def _columns(self) -> tuple[Tensor, Tensor]:
        S = self.parts.S
        pooled = torch.einsum("jkckd->cd", self._by_class)
        trace = self.kronecker.G.square().sum(0).reshape(len(S), -1).sum(1) + self.parts.d.sum(1)
        P = spectrum((pooled + torch.einsum("j,jcd->cd", trace, S))[None])[1][0]
        return P, torch.einsum("ac,jab,bc->cj", P, S, P).clamp(min=0)

    @property
    def _by_class(self) -> Tensor:
        """H_j as (N, k, C, k, C)."""
        (N, _, k), C = self.parts.V.shape, self.shape[1]
        return self.parts.H.reshape(N, k, C, k, C)

    @cached_property
    def _by_column(self) -> Tensor:
        """H_cj, (C, N, k, k)."""
        found = [torch.einsum("jkald,a,d->jkl", self._by_class, p, p) for p in self._columns[0].mT]
        return torch.stack(found)

    def _principal(self, active: Tensor) -> Tensor:
        row, column = active.nonzero().unbind(1)
        K = self.kronecker._principal(active)
        own = torch.nn.functional.one_hot(column, self.shape[1]).to(K)
        for V, H in zip(self.parts.V, self.parts.H, strict=True):
            wide = (V[row][:, :, None] * own[:, None, :]).flatten(1)  # (a, k·C)
            K = K + wide @ H @ wide.mT
        return K


@dataclass(frozen=True)
class Product:
    """x ↦ Kx, in the shape of x: V (m, N·k), H (N, k·C, k·C)."""

    kronecker: kronsum.Product
    V: Tensor
    H: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        y = x.reshape(len(self.V), -1)
        known = (y.mT @ self.V).mT.reshape(len(self.H), self.H.shape[1], 1)
        known = (self.H @ known).reshape(self.V.shape[1], y.shape[1])
        return self.kronecker(x) + (known.mT @ self.V.mT).mT.reshape(x.shape)
