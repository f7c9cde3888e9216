"""One round of Newton's method: sums over all rows, nothing of a single site.

    up     f, ∇f and the Hessian of some unknowns at v, each once; f alone at v_old + t·d for every t of a fan;
           rounding errors of f and of δ; for a duality gap Σφ*(rφ′) of a few scales r, and Σxθ and Σφ*(rθ) of
           the slopes θ that the step predicts
    down   v and d

Columns are centred (verdict/moments.py), sums in double precision (blocks/exact.py). Where the loss has corners
that are eased on the way, f, ∇f and the Hessian are those of the eased loss, the fan that of the one before, and value
and gradient of the loss itself are sent too.

Shapes: m features, C columns; v, d, G (m, C); index flat.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from auqadmm.core.reduce import B, Sums
from auqadmm.verdict.queries import NullQuery

if TYPE_CHECKING:
    from auqadmm.blocks.shard import Shard


@dataclass(frozen=True)
class NewtonQuery:
    """The query. `index`: unknowns whose Hessian is needed, `known`: those already sent (squares);
    `aside`: are products with the intercept needed; `ease` and `eased`: how many times as wide corners are now, and
    were when d was computed; `foreseen`: whether to send slopes predicted by d's model."""

    centre: Tensor | None
    index: Tensor
    known: Tensor | None = None
    fan: tuple[float, ...] = ()
    spread: Tensor | None = None
    null: Tensor | None = None
    aside: bool = False
    ease: float = 1.0
    eased: float = 1.0
    scales: tuple[float, ...] = ()
    foreseen: bool = False

    def __call__(self, shard: Shard, blocks: B, points: tuple[Tensor, Tensor | None]) -> tuple[B, Sums]:
        v, index, loss = points[0].to(shard.device), self.index.to(shard.device), shard.loss
        d, known = (None if x is None else x.to(shard.device) for x in (points[1], self.known))
        now = shard.exact(self.centre, loss.eased(self.ease) if self.ease > 1 else None)
        same = self.eased == self.ease
        scales = self.scales if self.ease == 1 else ()
        foreseen = self.foreseen and same and bool(scales)
        sums = now.step(v, d, self.fan if same else (), index, known, scales, self.aside, foreseen)
        if not same:
            before = shard.exact(self.centre, loss.eased(self.eased))
            sums["fan"] = before.step(v, d, self.fan, index[:0], None)["fan"]
        if self.ease > 1:
            plain = shard.exact(self.centre).step(v, None, (), index[:0], None)
            sums |= {"plain_f": plain["f"], "plain_G": plain["G"]}
        if self.spread is not None:
            sums["reach"] = now.reach_apart(self.spread.to(shard.device))
        if self.null is not None:
            sums |= NullQuery(self.null)(shard, None, v)[1]
        return blocks, sums
