"""A factor of ∇²f_j + W_j at an earlier point, to precondition systems that are hard for its diagonal.

    H_j = Σ_i c_iφ''(z_i) x_ix_iᵀ + W_j = LLᵀ

It takes m/2 times the operations of a product with the Hessian, but as matrix-matrix products, which are far
faster. So a block gets one when its products since the last add up to its cost, and keeps it over the u-steps that
follow: the curvature changes little from one to the next. For one column and blocks with more rows than features; the
others keep the diagonal.

Shapes: B blocks, m features, b blocks with a factor; L and its inverse (b, m, m), x (B, m, 1).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from auqadmm.blocks.curvature import RowHessian
from auqadmm.blocks.design import PARTS, DensePiece
from auqadmm.blocks.rows import RowLoss
from auqadmm.metrics.weights import Weights

if TYPE_CHECKING:
    from auqadmm.blocks.rows import Hessian
    from auqadmm.blocks.shard import Shard
    from auqadmm.local.base import LocalProblem

# features up to which a factor is worth its memory
FACTOR_FEATURES = 2048
# what a factor costs, in products of its block; and the products up to which a solve counts as easy
PRICE, EASY = 40, 8


@dataclass(frozen=True)
class KeptFactor:
    """H_j⁻¹ of some blocks, in ascending order, by triangular solves or, on a GPU, where it is faster, as a matrix;
    `base` for the others. Without a base, of all blocks.
    """

    blocks: Tensor
    L: Tensor | None
    inverse: Tensor | None = None
    base: Weights | None = None

    def solve(self, x: Tensor) -> Tensor:
        if self.base is None:
            return self._own(x)
        return self.base.solve(x).index_copy(0, self.blocks, self._own(x[self.blocks]))

    def _own(self, x: Tensor) -> Tensor:
        if self.inverse is not None:
            return self.inverse @ x
        assert self.L is not None
        return torch.cholesky_solve(x, self.L)

    def take(self, index: Tensor, of: int) -> KeptFactor | None:
        """Restricted to some blocks; None where none of them has a factor."""
        slot = self.blocks.new_full((of,), -1)
        slot[self.blocks] = torch.arange(len(self.blocks), device=index.device)
        slot = slot[index]
        places = (slot >= 0).nonzero()[:, 0]
        L, inverse = (x if x is None else x[slot[places]] for x in (self.L, self.inverse))
        return KeptFactor(places, L, inverse) if len(places) else None

    def renewed(self, new: KeptFactor) -> KeptFactor:
        """With the factors of some blocks replaced, or added."""
        if len(new.blocks) >= len(self.blocks) and bool(torch.isin(self.blocks, new.blocks).all()):
            return new
        kept = (~torch.isin(self.blocks, new.blocks)).nonzero()[:, 0]
        blocks, order = torch.cat([self.blocks[kept], new.blocks]).sort()
        pairs = ((self.L, new.L), (self.inverse, new.inverse))
        L, inverse = (None if a is None or b is None else torch.cat([a[kept], b])[order] for a, b in pairs)
        return KeptFactor(blocks, L, inverse)


def is_applicable(shard: Shard) -> bool:
    """One column, and dense blocks at least as tall as wide: then the factor takes no more room than the data. A
    curvature that is a spike or a step at one point says little about the next."""
    if shard.shape[2] != 1 or shard.design.features > FACTOR_FEATURES:
        return False
    return isinstance(shard.loss, RowLoss) and not shard.loss.expects and len(shard.tall) > 0


def factored(problem: LocalProblem, hessian: Hessian, wanted: Tensor | None = None) -> KeptFactor | None:
    """The factor at a point, of the `wanted` blocks (B,), by default all, where applicable; not of one for
    which Cholesky fails by rounding."""
    assert isinstance(hessian, RowHessian)
    design, tall = problem.shard.design, problem.shard.tall
    blocks = tall if wanted is None else tall[wanted[tall]]
    H = torch.diag_embed(problem.W.diagonal()[blocks].flatten(1))
    place = torch.full((design.blocks,), -1, dtype=torch.int64, device=H.device)  # of a block among them
    place[blocks] = torch.arange(len(H), device=H.device)
    for piece, d in zip(design.pieces, design.split(hessian.curvature.diagonal()), strict=True):
        own = place[piece.blocks]
        slots = (own >= 0).nonzero()[:, 0]
        if not isinstance(piece, DensePiece) or not len(slots):
            continue
        d = d.reshape(*piece.X.shape[:2], 1)
        step = max(1, -(-piece.X.shape[1] // PARTS))
        some, every = H[own[slots]], len(slots) == len(own)
        for i in range(0, piece.X.shape[1], step):  # in parts: weighted rows would copy the data
            rows, weight = piece.X[:, i : i + step], d[:, i : i + step]
            rows, weight = (rows, weight) if every else (rows[slots], weight[slots])
            some = torch.baddbmm(some, (weight * rows).mT, rows)
        H[own[slots]] = some
    L, info = torch.linalg.cholesky_ex(H)
    good = (info == 0) & L.diagonal(dim1=1, dim2=2).isfinite().all(1)
    if not bool(good.all()):
        L, blocks = L[good], blocks[good]
    if not len(blocks):
        return None
    return KeptFactor(blocks, None, torch.cholesky_inverse(L)) if H.is_cuda else KeptFactor(blocks, L)
