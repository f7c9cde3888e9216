"""Low-rank weights whose classes stay coupled in the directions that count most (S12), as operators.

    W_j = (V_j ⊗ I) H_j (V_j ⊗ I)ᵀ + (U_j M_j U_jᵀ + Fᵀ diag(d_j) F) ⊗ S_j + φ_j I

The Hessian of a softmax is Σ_{a<b} A_ab ⊗ (e_a − e_b)(e_a − e_b)ᵀ with A_ab = Σ_i p_a p_b x_i x_iᵀ. One Kronecker
product A ⊗ S is a poor fit of that sum, however many directions it keeps. Here H_j is the projection of the Hessian
itself on the first k directions V_j; the Kronecker form of `lowrank.py` stands for the others and for what is left.

H_j is told by its pairs: H_ab = −V_jᵀA_abV_j for a ≠ b, and H_aa = Σ_b V_jᵀA_abV_j, so that rows add up to 0.

The inverse is closed form. In the bases F and Q of `lowrank.py` the Kronecker part P is separate for every class c;
with Y_c = P_c⁻¹V, B = blockdiag(VᵀY_c) = R Rᵀ and H' = H_j in the basis Q,

    W_j⁻¹ = P⁻¹ − Y T Yᵀ,      T = (H'⁻¹ + B)⁻¹ = R⁻ᵀ (I − (I + Rᵀ H' R)⁻¹) R⁻¹,

which asks for no inverse of H', singular as it is.

Shapes: B blocks, m features, C columns, k coupled directions, P = C(C−1)/2 pairs; V (B, m, k), H (B, k·C, k·C) with
directions before classes, pairs (B, P, k, k); the rest as in `lowrank.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from auqadmm.core import lowrank
from auqadmm.core.coupled_change import inner
from auqadmm.core.lowrank import LowRank


@dataclass(frozen=True)
class Coupled(LowRank):
    """W_j = (V_j ⊗ I) H_j (V_j ⊗ I)ᵀ and a weight of `LowRank`, for every block held here."""

    V: Tensor = field(kw_only=True)
    H: Tensor = field(kw_only=True)
    parts: ClassVar[tuple[str, ...]] = (*LowRank.parts, "V", "H")

    def __post_init__(self) -> None:
        super().__post_init__()
        blocks, m, k = self.V.shape
        size = k * self.S.shape[-1]
        if (blocks, m) != self.d.shape or self.H.shape != (blocks, size, size):
            raise ValueError(f"Coupled: H must be {(blocks, size, size)}, got {tuple(self.H.shape)}")

    @property
    def kronecker(self) -> LowRank:
        """Without the coupled part."""
        known = {f.name: getattr(self, f.name) for f in fields(LowRank)}
        return LowRank(**known)

    def apply(self, x: Tensor) -> Tensor:
        y = self._inside(x)
        blocks, _, C, k = y.shape
        known = (self.V.mT @ y.flatten(2)).reshape(blocks, self.H.shape[1], k)
        known = (self.H @ known).reshape(blocks, self.V.shape[2], C * k)
        return super().apply(x) + (self.V @ known).reshape(x.shape)

    def diagonal(self) -> Tensor:
        known = [((self.V @ H) * self.V).sum(2) for H in self.of_classes()]
        return super().diagonal() + torch.stack(known, 2)

    def dense(self) -> Tensor:
        (blocks, m, k), C = self.V.shape, self.S.shape[-1]
        eye = torch.eye(C, dtype=self.V.dtype, device=self.V.device)
        wide = torch.einsum("bmr,cd->bmcrd", self.V, eye).reshape(blocks, m * C, k * C)
        return super().dense() + wide @ self.H @ wide.mT

    def change(self, old: LowRank) -> Tensor:
        """‖W − W_old‖_F / ‖W_old‖_F of every block, (B,), without forming either."""
        new, old = self.double(), old.double()
        assert isinstance(new, Coupled)
        assert isinstance(old, Coupled)
        held, both = inner(old, old), inner(new, old)
        return ((inner(new, new) - 2 * both + held).clamp(min=0) / held).sqrt()

    def of_classes(self) -> list[Tensor]:
        """The parts of H_j that belong to one class, C times (B, k, k)."""
        (blocks, _, k), C = self.V.shape, self.S.shape[-1]
        by_class = self.H.reshape(blocks, k, C, k, C)
        return [by_class[:, :, c, :, c] for c in range(C)]

    def ready(self) -> None:
        _ = self._inverse

    @cached_property
    def _inverse(self) -> Any:
        W = self.double()
        assert isinstance(W, Coupled)
        return Inverse.of(W)


@dataclass(frozen=True)
class Inverse:
    """W_j⁻¹ in float64: that of the Kronecker part, Y (B, C, m, k) in the bases F and Q, T (B, C·k, C·k)."""

    kronecker: lowrank.Inverse
    Y: Tensor
    T: Tensor

    @classmethod
    def of(cls, W: Coupled) -> Inverse:
        (blocks, _, k), C = W.V.shape, W.S.shape[-1]
        known = lowrank.Inverse.of(W.kronecker.double())
        V = W.V if W.F is None else W.F @ W.V
        Y = known.inside(V[..., None].repeat(1, 1, 1, C)).permute(0, 3, 1, 2).contiguous()
        unused = torch.diag_embed((W.V == 0).all(1).to(V))  # columns that a block does without
        R = torch.linalg.cholesky_ex(V[:, None].mT @ Y + unused[:, None])[0]  # (B, C, k, k)
        eye = torch.eye(k, dtype=V.dtype, device=V.device)
        back = torch.linalg.solve_triangular(R, eye.expand_as(R), upper=False)
        # classes before directions: products with R are products of small blocks
        turned = torch.einsum("bkcld,bce,bdf->befkl", W.H.reshape(blocks, k, C, k, C), known.Q, known.Q)
        Z = _between(R, turned, R).transpose(2, 3).reshape(blocks, k * C, k * C)
        whole = torch.eye(k * C, dtype=V.dtype, device=V.device)
        rest = whole - torch.cholesky_inverse(torch.linalg.cholesky_ex(whole + Z)[0])
        T = _between(back, rest.reshape(blocks, C, k, C, k).transpose(2, 3), back)
        return cls(known, Y, T.transpose(2, 3).reshape(blocks, k * C, k * C))

    def take(self, index: Any) -> Inverse:
        return replace(self, kronecker=self.kronecker.take(index), Y=self.Y[index], T=self.T[index])

    def solve(self, y: Tensor) -> Tensor:
        """y (B, m, C, k)."""
        F, Q, (blocks, m, C, k) = self.kronecker.F, self.kronecker.Q, y.shape
        y = y.transpose(2, 3).flatten(2)
        y = y if F is None else F @ y
        y = (y.reshape(blocks, m * k, C) @ Q).reshape(blocks, m, k, C)
        known = self.Y.mT @ y.permute(0, 3, 1, 2)  # (B, C, directions, k)
        known = (self.T @ known.flatten(1, 2)).reshape(known.shape)
        y = self.kronecker.inside(y) - (self.Y @ known).permute(0, 2, 3, 1)
        y = (y.reshape(blocks, m * k, C) @ Q.mT).reshape(blocks, m, k * C)
        y = y if F is None else F.mT @ y
        return y.reshape(blocks, m, k, C).transpose(2, 3)


def _between(left: Tensor, H: Tensor, right: Tensor) -> Tensor:
    """left_aᵀ H_ab right_b for H (B, C, C, k, k) and left, right (B, C, k, k)."""
    return left.mT[:, :, None] @ H @ right[:, None]


def from_pairs(pairs: Tensor, C: int) -> Tensor:
    """H (B, k·C, k·C) from V_jᵀA_abV_j of all pairs a < b, (B, P, k, k), in the order of `pair_indices`."""
    blocks, k = len(pairs), pairs.shape[-1]
    a, b = pair_indices(C, pairs.device)
    H = pairs.new_zeros(blocks, C, C, k, k)
    H[:, a, b] = -pairs
    H[:, b, a] = -pairs
    H[:, range(C), range(C)] = -H.sum(2)
    return H.permute(0, 3, 1, 4, 2).reshape(blocks, k * C, k * C)


def to_pairs(W: Coupled) -> Tensor:
    """V_jᵀA_abV_j of all pairs, (B, P, k, k)."""
    (blocks, _, k), C = W.V.shape, W.S.shape[-1]
    a, b = pair_indices(C, W.H.device)
    return -W.H.reshape(blocks, k, C, k, C).permute(0, 2, 4, 1, 3)[:, a, b]


def pair_indices(C: int, device: Any = None) -> Tensor:
    """a and b of all pairs a < b, (2, P)."""
    return torch.triu_indices(C, C, 1, device=device)
