"""Anderson acceleration (type II) of z ← Tz in the norm of W⁻¹, where only scalars are exchanged.

    γ = argmin ‖r − Σ_i γ_i ΔR_i‖_{W⁻¹}        z⁺ = Tz − Σ_i γ_i (ΔR_i + ΔZ_i)
    r = Tz − z,  ΔR_i, ΔZ_i the differences of r and z between neighbouring rounds

Blocks keep their own columns ΔR_i, ΔZ_i. What travels is one row of the Gram matrix ⟨ΔR_i, ΔR_new⟩ and ⟨ΔR_i, r⟩;
the sums Σ_j of the columns, which the v-step needs, follow from Σ Tz and Σ z, which are known anyway.

Safeguard. T is averaged, so plain steps converge, and they still do when perturbed by a summable amount. An
accelerated step is taken only if it is such a perturbation, ‖z⁺ − Tz‖ ≤ D‖r⁰‖(a + 1)^{−(1+ε)} with a the number of
accelerated steps so far. Besides, a step that more than doubled ‖r‖ is taken back. docs/theory.md has the proof.

Reference: H. F. Walker, P. Ni, Anderson acceleration for fixed-point iterations, 2011; A. Fu, J. Zhang, S. Boyd,
Anderson accelerated Douglas–Rachford splitting, 2020 (a summability test on ‖r‖ instead).

Shapes: m features, C columns, q columns of memory; sums (m, C), columns (m, C, q), Gram matrices (q, q).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from auqadmm.metrics.weights import sum_blocks

RIDGE = 1e-9
GROWTH = 2.0
D = 1e3
EPSILON = 1e-6


@dataclass(frozen=True)
class Anderson:
    """The replicated half of the acceleration.

    `columns` are Σ_j(ΔR_i + ΔZ_i), `gram` holds ⟨ΔR_i, ΔR_k⟩ and `heft` ⟨ΔR_i + ΔZ_i, ΔR_k + ΔZ_k⟩, in W⁻¹.
    """

    size: int
    gram: Tensor
    heft: Tensor
    columns: Tensor
    accelerated: int = 0
    first: float | None = None
    last: float | None = None

    @staticmethod
    def empty(size: int, like: Tensor) -> Anderson:
        """No memory yet, for sums shaped like `like` (m, C)."""
        return Anderson(size, like.new_zeros(0, 0), like.new_zeros(0, 0), like.new_zeros(*like.shape, 0))

    @property
    def used(self) -> int:
        return self.gram.shape[0]

    def cleared(self) -> Anderson:
        """Forget the columns (the map has changed), keep the counts."""
        none = self.gram.new_zeros(0, 0)
        return replace(self, gram=none, heft=none, columns=self.columns[..., :0])

    def worse(self, norm: float, was_accelerated: bool) -> bool:
        """Did an accelerated step more than double the residual?"""
        return was_accelerated and self.last is not None and norm > GROWTH * self.last

    def measured(self, norm: float) -> Anderson:
        """Remember the residual of an accepted point."""
        return replace(self, first=self.first if self.first is not None else norm, last=norm)

    def extended(self, gram_row: Tensor, heft_row: Tensor, column: Tensor) -> Anderson:
        """A new column (m, C), with its Gram entries (used + 1,) with the others and itself."""
        full = self.used == self.size
        columns = torch.cat([self.columns, column[..., None]], -1)
        return replace(
            self,
            gram=_bordered(self.gram, gram_row, full),
            heft=_bordered(self.heft, heft_row, full),
            columns=columns[..., 1:] if full else columns,
        )

    def coefficients(self, against: Tensor) -> Tensor | None:
        """γ (used,) for `against` = ⟨ΔR_i, r⟩; None: take the plain step."""
        if self.used == 0 or self.last is None or self.first is None:
            return None
        scale = self.gram.diagonal().clamp(min=0).sqrt()
        # a column of zeros: two neighbouring rounds had the same residual
        inverse = torch.where(scale > 0, 1 / torch.where(scale > 0, scale, 1.0), 0.0)
        G = inverse[:, None] * self.gram * inverse
        eye = torch.eye(self.used, dtype=G.dtype, device=G.device)
        # a system that cannot be solved (NaN among the scalars) fails the test below
        gamma = torch.linalg.solve_ex(G + RIDGE * eye, inverse * against).result * inverse
        size = float(gamma @ self.heft @ gamma)
        return gamma if size <= self.allowance**2 else None  # False for NaN too

    @property
    def allowance(self) -> float:
        """How far an accelerated step may lead from the plain one: summable over all of them."""
        assert self.first is not None
        return D * self.first * (self.accelerated + 1) ** -(1 + EPSILON)

    def step(self) -> Anderson:
        return replace(self, accelerated=self.accelerated + 1)


def _bordered(gram: Tensor, row: Tensor, full: bool) -> Tensor:
    """One more row and column; the oldest make room when the memory is full."""
    wide = torch.cat([torch.cat([gram, row[:-1, None]], 1), row[None]], 0)
    return wide[1:, 1:] if full else wide


# ---------------------------------------------------------------------- the columns that a block keeps

PIECE = 8

Columns = tuple[Tensor, ...]


def append(columns: Columns, new: Tensor) -> Columns:
    """One column more, the newest last."""
    new = new[:, None]
    if columns and columns[-1].shape[1] < PIECE:
        return (*columns[:-1], torch.cat([columns[-1], new], 1))
    return (*columns, new)


def latest(columns: Columns, most: int) -> Columns:
    """The newest, after one more than `most` at most."""
    if sum(piece.shape[1] for piece in columns) <= most:
        return columns
    first, *others = columns
    return (first[:, 1:], *others) if first.shape[1] > 1 else tuple(others)


def inner(columns: Columns, x: Tensor) -> Tensor:
    """⟨column_i, x⟩ over all blocks here, (q,) in float64."""
    rows = x.flatten(1)[:, None]  # vectors as rows: BLAS is slower with columns
    return sum_blocks(torch.cat([rows @ piece.flatten(2).mT for piece in columns], 2)[:, 0])


def combined(columns: Columns, gamma: Tensor) -> Tensor:
    """Σ_i γ_i column_i, (B, m, C)."""
    parts = gamma.to(columns[0]).split([piece.shape[1] for piece in columns])
    out = torch.zeros_like(columns[0][:, :1].flatten(2))
    for piece, part in zip(columns, parts, strict=True):
        out = torch.baddbmm(out, part.expand(len(piece), 1, -1), piece.flatten(2))
    return out.reshape(columns[0][:, 0].shape)
