"""Round 0: statistics of the columns, and v in centred columns.

    x̃ = x − μ, μ the weighted means, where a free intercept takes up the difference: b̃ = b + μᵀw, ∇̃_w = ∇_w − μ∇_b

Without an intercept columns are not centred. This never changes the problem or its optimum; but a column of mean
10⁶ and spread 1 has lost six digits before anything is computed, and centred it has not.

Shapes: m features (the intercept's ones last), C columns; v, gradients (m, C), centre, spread (m,).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from auqadmm.metrics import double_double

if TYPE_CHECKING:
    from auqadmm.blocks.rows import Loss

EPS = torch.finfo(torch.float64).eps
CONSTANT = 64.0  # times ε·|μ|: what centring leaves of a constant column


@dataclass(frozen=True)
class ColumnMoments:
    """Result of round 0: `centre` (None: zero), `spread` Σcx̃² > 0, which columns are `empty`, the number of data
    values, the infimum of Σ_j f_j, logits (1, C) of the null model, the standard deviation
    of the target and its root mean square, and Σ∇f_j(0)."""

    centre: Tensor | None
    spread: Tensor
    empty: Tensor
    held: float
    weight: float
    infimum: float
    null: Tensor
    target_spread: float
    target_size: float
    start: Tensor
    intercept: bool

    @classmethod
    def of(cls, sums: Mapping[str, Tensor], intercept: bool, loss: Loss, columns: int) -> ColumnMoments:
        weight, xx = float(sums["weight"]), sums["xx"]
        mean = sums["x"] / weight if weight > 0 else torch.zeros_like(xx)
        mean[-1:] = torch.where(torch.tensor(intercept), 0.0, mean[-1:])
        centred = intercept and bool((mean != 0).any()) and bool(mean.isfinite().all())
        spread = xx - weight * mean.square() if centred else xx
        spread = torch.maximum(spread, 1e-14 * xx)
        empty = xx == 0
        target = sums["y"] / weight if weight > 0 else sums["y"]
        variance = float(sums["yy"]) / weight - float(target[0]) ** 2 if weight > 0 else 0.0
        null = torch.zeros(columns, dtype=torch.float64, device=xx.device)
        if intercept and weight > 0:
            null = loss.null_logits(target, columns)
        return cls(
            centre=mean if centred else None,
            spread=torch.where(empty, 1.0, spread),
            empty=empty,
            held=float(sums["held"]),
            weight=weight,
            infimum=float(sums["infimum"]),
            null=null[None],
            target_spread=math.sqrt(max(variance, 0.0)),
            target_size=math.sqrt(float(sums["yy"]) / weight) if weight > 0 else 0.0,
            start=sums["G0"],
            intercept=intercept,
        )

    @cached_property
    def steepness(self) -> float:
        """‖Σ∇f_j(0)‖."""
        return float(self.start.norm())

    @cached_property
    def unused(self) -> tuple[int, ...]:
        """The columns that are zero in every row."""
        return tuple(self.empty.nonzero()[:, 0].tolist())

    def inside(self, v: Tensor) -> Tensor:
        """v in centred columns; its intercept is summed in double-double precision."""
        return self._moved(v, 1.0)

    def outside(self, v: Tensor) -> Tensor:
        """v in the user's columns, from centred ones."""
        return self._moved(v, -1.0)

    def _moved(self, v: Tensor, sign: float) -> Tensor:
        if self.centre is None:
            return v
        return torch.cat([v[:-1], double_double.dot(sign * self.centre[:-1], v[:-1], v[-1]).to(v)[None]])

    def slopes(self, G: Tensor) -> Tensor:
        """The gradient by centred columns."""
        return self._turned(G, -1.0)

    def slopes_outside(self, G: Tensor) -> Tensor:
        """The gradient by the user's columns, from that by centred ones."""
        return self._turned(G, 1.0)

    def _turned(self, G: Tensor, sign: float) -> Tensor:
        if self.centre is None:
            return G
        return torch.cat([G[:-1] + sign * self.centre[:-1, None] * G[-1:], G[-1:]])

    def constant(self, size: Tensor) -> Tensor:
        """Which unknowns (m, C) belong to a constant beside the intercept: centred, it is rounding error only.
        `size`: the diagonal of H."""
        if self.centre is None:
            return torch.zeros_like(size, dtype=torch.bool)
        centre = self.centre.to(size)[:, None]
        return (size <= (CONSTANT * EPS * centre).square() * size[-1]) & (centre != 0)
