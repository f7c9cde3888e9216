"""The queries of a verdict: maps whose summands are sums over rows (`blocks/exact.py`).

Shapes: m features, C columns, k directions; v in centred columns (m, C), centre and spread (m,).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from auqadmm.core.reduce import B, Sums

if TYPE_CHECKING:
    from auqadmm.blocks.shard import Shard


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
class ConjugateQuery:
    """Σ_i φ_i*(scale·θ_i) at the slopes θ of v, shifted so that they add up to zero for a free intercept."""

    centre: Tensor | None
    scale: float
    shift: Tensor | None

    def __call__(self, shard: Shard, blocks: B, v: Tensor) -> tuple[B, Sums]:
        shift = None if self.shift is None else self.shift.to(shard.device)
        return blocks, {"conjugate": shard.exact(self.centre).conjugates(v.to(shard.device), self.scale, shift)}
