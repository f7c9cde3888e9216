"""What is asked of the blocks: the statistics of round 0, and maps that add up over rows (`blocks/exact.py`).

Round 0 gives the columns, and v is judged in centred ones:

    x̃ = x − μ, μ the weighted means, where a free intercept takes up the difference: b̃ = b + μᵀw, ∇̃_w = ∇_w − μ∇_b

Without an intercept columns are not centred. This never changes the problem or its optimum; but a column of mean
10⁶ and spread 1 has lost six digits before anything is computed, and centred it has not.

Shapes: m features (the intercept's ones last), C columns, k directions; v, gradients (m, C), centre and spread (m,).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from auqadmm.core.reduce import B, Sums
from auqadmm.metrics import sums

if TYPE_CHECKING:
    from auqadmm.blocks.loss import Loss
    from auqadmm.blocks.shard import Shard

EPS = torch.finfo(torch.float64).eps
CONSTANT = 64.0  # times ε·|μ|: what centring leaves of a constant column


@dataclass(frozen=True)
class ColumnMoments:
    """Result of round 0: `centre` (None: zero), `spread` Σcx̃² > 0, which columns are `empty`, the number of data
    `values`, the infimum of Σ_j f_j, logits (1, C) of the null model, the standard deviation
    of the target and its root mean square, and Σ∇f_j(0)."""

    centre: Tensor | None
    spread: Tensor
    empty: Tensor
    values: float
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
            null = null - sums["offset"] / weight if "offset" in sums else null
        return cls(
            centre=mean if centred else None,
            spread=torch.where(empty, 1.0, spread),
            empty=empty,
            values=float(sums["values"]),
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
        return torch.cat([v[:-1], sums.dot(sign * self.centre[:-1], v[:-1], v[-1]).to(v)[None]])

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
        # no row bends at all: the Hessian tells nothing of columns
        return (size <= (CONSTANT * EPS * centre).square() * size[-1]) & (centre != 0) & (size[-1] > 0)


# ---------------------------------------------------------------------- maps over blocks
def moments(shard: Shard, blocks: B, shared: object) -> tuple[B, Sums]:
    """Round 0: weighted moments of features and targets, and the gradient at zero."""
    return blocks, shard.exact().moments()


@dataclass(frozen=True)
class NullQuery:
    """The loss of models that are constants, logits (k, C)."""

    logits: Tensor

    def __call__(self, shard: Shard, blocks: B, v: object) -> tuple[B, Sums]:
        return blocks, {"null": shard.exact().null(self.logits.to(shard.device))}


@dataclass(frozen=True)
class TriangleQuery:
    """Value, gradient, Hessian and rounding at v; the reach of rows in `spread`; the null model where not yet known."""

    centre: Tensor | None
    spread: Tensor | None
    null: Tensor | None

    def __call__(self, shard: Shard, blocks: B, v: Tensor) -> tuple[B, Sums]:
        spread = None if self.spread is None else self.spread.to(shard.device)
        sums = shard.exact(self.centre).triangle(v.to(shard.device), spread)
        if self.null is not None:
            sums |= NullQuery(self.null)(shard, None, v)[1]
        return blocks, sums


@dataclass(frozen=True)
class ReachQuery:
    """Σ_i ‖T x_i‖^16 for the roots T of an inverse Hessian, (g, q, m)."""

    centre: Tensor | None

    def __call__(self, shard: Shard, blocks: B, roots: Tensor) -> tuple[B, Sums]:
        return blocks, {"reach": shard.exact(self.centre).reach(roots.to(shard.device))}


@dataclass(frozen=True)
class DiagonalReachQuery:
    """The same for an inverse bounded by a diagonal: Σ_i (Σ_k α_k x_k² − 2β_k x_k + γ)^8."""

    centre: Tensor | None
    gamma: float

    def __call__(self, shard: Shard, blocks: B, diagonal: tuple[Tensor, Tensor]) -> tuple[B, Sums]:
        alpha, beta = (x.to(shard.device) for x in diagonal)
        return blocks, {"reach": shard.exact(self.centre).reach_diagonal(alpha, beta, self.gamma)}


@dataclass(frozen=True)
class ProductsQuery:
    """Products of the Hessian at v with directions (m, C, k); with them, where requested, its diagonal, and value,
    gradient and rounding; the null model where not yet known."""

    centre: Tensor | None
    diagonal: bool = False
    score: bool = False
    null: Tensor | None = None

    def __call__(self, shard: Shard, blocks: B, asked: tuple[Tensor, Tensor | None]) -> tuple[B, Sums]:
        v, directions = asked[0].to(shard.device), None if asked[1] is None else asked[1].to(shard.device)
        sums = shard.exact(self.centre).sketch(v, directions, self.diagonal, self.score)
        if self.null is not None:
            sums |= NullQuery(self.null)(shard, None, v)[1]
        return blocks, sums


@dataclass(frozen=True)
class SlopeSizesQuery:
    """Σ_i (c_i φ'_i x̃_i)², the sizes of the terms of the gradient at v, squared."""

    centre: Tensor | None

    def __call__(self, shard: Shard, blocks: B, v: Tensor) -> tuple[B, Sums]:
        return blocks, {"sizes": shard.exact(self.centre).slope_sizes(v.to(shard.device))}


@dataclass(frozen=True)
class ConjugateQuery:
    """Σ_i φ_i*(scale·θ_i) at the slopes θ of v, shifted so that they add up to zero for a free intercept."""

    centre: Tensor | None
    scale: float
    shift: Tensor | None

    def __call__(self, shard: Shard, blocks: B, v: Tensor) -> tuple[B, Sums]:
        shift = None if self.shift is None else self.shift.to(shard.device)
        return blocks, {"conjugate": shard.exact(self.centre).conjugates(v.to(shard.device), self.scale, shift)}
