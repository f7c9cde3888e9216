"""A factor of ∇²f_j + W_j at an earlier point, to precondition systems that are hard for its diagonal.

    H_j = Σ_i c_iφ''(z_i) x_ix_iᵀ + W_j = LLᵀ

It takes m/2 times the operations of a product with the Hessian, but as products of matrices, which run at another
pace. So it is computed when the products since the last time add up to its price, and kept over the u-steps that
follow: the curvature changes little from one to the next. For one column and blocks with more rows than features; the
others stay with the diagonal.

Shapes: B blocks, m features, b blocks with a factor; L and its inverse (b, m, m), x (B, m, 1).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from auqadmm.core.weights import Weights
from auqadmm.problem.curvature import RowHessian
from auqadmm.problem.design import PARTS, DensePiece
from auqadmm.problem.rows import RowLoss

if TYPE_CHECKING:
    from auqadmm.local.base import LocalProblem
    from auqadmm.problem.rows import Hessian
    from auqadmm.problem.shard import Shard

# features up to which a factor is worth its room
LARGEST = 2048
# what a factor costs, in products of all blocks; and what a solve may take without being hard
PRICE, EASY = 40, 8


@dataclass(frozen=True)
class Factored:
    """H_j⁻¹ of some blocks, by triangular solves or, on a GPU, where it is faster, as a matrix; `base` for the others.

    Without a base they are all blocks, in their order.
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

    def take(self, index: Tensor, of: int) -> Factored | None:
        """For some of so many blocks; None where not all have a factor, which is not worth the trouble."""
        if len(self.blocks) < of:
            return None
        places = torch.arange(len(index), device=index.device)
        L, inverse = (x if x is None else x[index] for x in (self.L, self.inverse))
        return Factored(places, L, inverse)


def suits(shard: Shard) -> bool:
    """One column, and dense blocks at least as tall as wide: then the factor takes no more room than the data. A
    curvature that is a spike or a step at one point says little of the next."""
    if shard.shape[2] != 1 or shard.design.features > LARGEST:
        return False
    return isinstance(shard.loss, RowLoss) and not shard.loss.expects and len(shard.design.tall) > 0


def factored(problem: LocalProblem, hessian: Hessian) -> Factored | None:
    """The factor at a point, of the blocks it suits; None where it does not exist in rounded numbers."""
    assert isinstance(hessian, RowHessian)
    design = problem.shard.design
    H = torch.diag_embed(problem.W.diagonal()[design.tall].flatten(1))
    place = torch.zeros(design.blocks, dtype=torch.int64, device=H.device)  # of a block among the tall ones
    place[design.tall] = torch.arange(len(H), device=H.device)
    for piece, d in zip(design.pieces, design.split(hessian.curvature.diagonal()), strict=True):
        if not isinstance(piece, DensePiece) or piece.X.shape[1] < design.features:
            continue
        d = d.reshape(*piece.X.shape[:2], 1)
        step = max(1, -(-piece.X.shape[1] // PARTS))
        some = H[place[piece.blocks]]
        for i in range(0, piece.X.shape[1], step):  # the weighted rows of all would be another copy of the data
            rows = piece.X[:, i : i + step]
            some = torch.baddbmm(some, (d[:, i : i + step] * rows).mT, rows)
        H[place[piece.blocks]] = some
    L, info = torch.linalg.cholesky_ex(H)
    if bool((info > 0).any()) or not bool(L.diagonal(dim1=1, dim2=2).isfinite().all()):
        return None
    return Factored(design.tall, None, torch.cholesky_inverse(L)) if H.is_cuda else Factored(design.tall, L)
