"""How far low-rank weights moved (S12), from traces of products of their parts.

    W − W_old = δA ⊗ S + A_old ⊗ δS + δφ I

and traces of products of Kronecker products factor. In the same bases δA is computed from the differences of the
numbers, so that equal weights differ by exactly 0.

Shapes: those of `lowrank.py`; one number per block (B,).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from auqadmm.metrics.kronecker import Basis, Kronecker, dense_basis

if TYPE_CHECKING:
    from auqadmm.metrics.lowrank import LowRank


def change(new: LowRank, old: LowRank) -> Tensor:
    """‖W − W_old‖_F / ‖W_old‖_F, (B,); both in float64."""
    if _same(new.U, old.U) and _same(new.F, old.F):
        step = replace(new, M=new.M - old.M, d=new.d - old.d)
        overlap, there, back = old.U.mT @ old.U, _along(step.U, step.M, old.F), _along(old.U, old.M, old.F)
        moved, cross, held = (
            _low(a, b, overlap) + (x * b.d + y * a.d + a.d * b.d).sum(1)
            for a, b, x, y in ((step, step, there, there), (step, old, there, back), (old, old, back, back))
        )
        trace, total = ((x + a.d).sum(1) for a, x in ((step, there), (old, back)))
    else:
        held, both, total = _inner(old, old), _inner(new, old), _trace(old)
        cross = both - held
        moved = _inner(new, new) - both - cross
        trace = _trace(new) - total
    dS, dphi = new.S - old.S, new.phi - old.phi
    n = old.d.shape[1] * old.S.shape[-1]
    square = moved * _dot(new.S, new.S) + 2 * cross * _dot(new.S, dS) + held * _dot(dS, dS)
    square = square + 2 * dphi * (trace * _tr(new.S) + total * _tr(dS)) + n * dphi.square()
    size = held * _dot(old.S, old.S) + 2 * old.phi * total * _tr(old.S) + n * old.phi.square()
    return (square.clamp(min=0) / size).sqrt()  # φ > 0, so W_old is not zero


def inner(a: LowRank, b: LowRank) -> Tensor:
    """⟨W_j, W'_j⟩, (B,); both in float64."""
    n = a.d.shape[1] * a.S.shape[-1]
    floors = a.phi * _trace(b) * _tr(b.S) + b.phi * _trace(a) * _tr(a.S) + n * a.phi * b.phi
    return _inner(a, b) * _dot(a.S, b.S) + floors


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum((1, 2))


def _tr(a: Tensor) -> Tensor:
    return a.diagonal(dim1=1, dim2=2).sum(1)


def _trace(W: LowRank) -> Tensor:
    """tr A_j, (B,)."""
    return _dot(W.U @ W.M, W.U) + W.d.sum(1)


def _inner(a: LowRank, b: LowRank) -> Tensor:
    """⟨A_j, A'_j⟩, (B,)."""
    low = _low(a, b, a.U.mT @ b.U)
    there = (_along(a.U, a.M, b.F) * b.d).sum(1)
    back = there if a is b else (_along(b.U, b.M, a.F) * a.d).sum(1)
    return low + there + back + _diagonals(a, b)


def _low(a: LowRank, b: LowRank, overlap: Tensor) -> Tensor:
    """⟨U_j M_j U_jᵀ, U'_j M'_j U'_jᵀ⟩ with the overlap U_jᵀU'_j, (B,)."""
    return _dot(a.M @ overlap, overlap @ b.M)


def _along(U: Tensor, M: Tensor, F: Basis) -> Tensor:
    """The diagonal of F U M Uᵀ Fᵀ, (B, m)."""
    FU = U if F is None else F @ U
    return ((FU @ M) * FU).sum(2)


def _diagonals(a: LowRank, b: LowRank) -> Tensor:
    """⟨Fᵀ diag(d) F, F'ᵀ diag(d') F'⟩ = dᵀ (F F'ᵀ)∘(F F'ᵀ) d', (B,)."""
    if _same(a.F, b.F):
        return (a.d * b.d).sum(1)
    if a.F is None or b.F is None:
        turn = b.F.mT if a.F is None else a.F  # type: ignore[union-attr]  # not both are None
    else:
        turn = dense_basis(a.F) @ dense_basis(b.F).mT
    return ((a.d @ turn.square()) * b.d).sum(1)


def _same(a: Basis, b: Basis) -> bool:
    if a is b or a is None or b is None:
        return a is b
    if isinstance(a, Kronecker) or isinstance(b, Kronecker):
        return isinstance(a, Kronecker) and a.equal(b)
    return a.shape == b.shape and torch.equal(a, b)
