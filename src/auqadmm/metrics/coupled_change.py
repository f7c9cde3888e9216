"""⟨W_j, W'_j⟩ of coupled weights (`coupled.py`), from traces of products of their parts.

Shapes: those of `coupled.py`; one number per block (B,).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from auqadmm.metrics import lowrank_change

if TYPE_CHECKING:
    from auqadmm.metrics.coupled import Coupled


def inner(a: Coupled, b: Coupled) -> Tensor:
    """⟨W_j, W'_j⟩; both in float64."""
    return lowrank_change.inner(a.left, b.left) + _low(a, b) + _against(a, b) + _against(b, a)


def _low(a: Coupled, b: Coupled) -> Tensor:
    """tr H (O ⊗ I) H' (O ⊗ I)ᵀ with the overlap O = U_jᵀU'_j."""
    overlap, C = a.U.mT @ b.U, a.S.shape[-1]
    blocks, r, s = overlap.shape
    moved = (overlap @ b.H.reshape(blocks, s, C * s * C)).reshape(blocks, r * C, s, C)
    return (a.H * (overlap[:, None] @ moved).reshape(blocks, r * C, r * C)).sum((1, 2))


def _against(a: Coupled, b: Coupled) -> Tensor:
    """The directions of a against what those of b leave over."""
    G = a.U if b.F is None else b.F @ a.U
    seen = G.mT @ (b.d[:, :, None] * G)
    eye = b.S.new_ones(b.S.shape[-1]).diag().expand_as(b.S)
    return (seen * _over_classes(a, b.S)).sum((1, 2)) + b.phi * ((a.U.mT @ a.U) * _over_classes(a, eye)).sum((1, 2))


def _over_classes(a: Coupled, S: Tensor) -> Tensor:
    """Σ_cd S_cd N_(·c)(·d), (B, k, k)."""
    (blocks, _, k), C = a.U.shape, S.shape[-1]
    by_class = a.H.reshape(blocks, k, C, k, C).permute(0, 1, 3, 2, 4)
    return (by_class * S[:, None, None]).sum((3, 4))
