"""Newton's systems of all blocks at once: conjugate gradients, one step at a time, and what helps them.

    (∇²f_j + W_j) P = −∇F_j,   from P = 0

Blocks whose system is solved stay as they are, and on a CPU their data are not read. Xp, which every step computes,
adds up to XP: the line search needs no product of its own.

Curvature may be taken over the length of a step, in place of curvature at a point:

    h_i = (φ'(z_i + w) − φ'(z_i − w)) / 2w,   w² = the mean square of the last change of the logits

is the average of φ'' within w of z_i, for any convex loss of one column. Where φ'' is a spike (the smoothed hinge)
or jumps (Huber), φ''(z_i) does not see the corner that the next step will cross: Newton's method then moves
like a gradient method. Averaged over the last step's length the corner shows, and as steps shrink h_i becomes φ''(z_i)
and Newton's method fast. Losses without corners hardly change.

Systems that are hard for their diagonal are preconditioned by a factor of ∇²f_j + W_j at an earlier point:

    H_j = Σ_i c_iφ''(z_i) x_ix_iᵀ + W_j = LLᵀ

It takes m/2 times the operations of a product with the Hessian, but as matrix-matrix products, which are far
faster. So a block gets one when its products since the last add up to its cost, and keeps it over the u-steps that
follow: the curvature changes little from one to the next. For one column and blocks with more rows than features; the
others keep the diagonal.

Reference: J. Nocedal, S. J. Wright, Numerical Optimization, 2nd ed., sections 5.1 and 7.1.

Shapes: B blocks, R flat rows, m features, C columns; vectors (B, m, C), one number per block (B,); z, w, h (R, 1);
b blocks with a factor, L and its inverse (b, m, m).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from auqadmm.blocks.curvature import DiagonalCurvature, RowCurvature, RowHessian
from auqadmm.blocks.design import DATA_PARTS, DensePiece, Runs
from auqadmm.blocks.loss import Hessian, Point
from auqadmm.blocks.parts import runs
from auqadmm.blocks.rows import RowLoss, RowPoint
from auqadmm.local.base import Iterate, LocalProblem, norm, over, select
from auqadmm.local.descent import LEAVE_CPU
from auqadmm.metrics.weights import Weights, dot

if TYPE_CHECKING:
    from auqadmm.blocks.shard import Shard
    from auqadmm.local.hinge import ActiveRowInverse

# above this many blocks all are read, open or not; and the most runs of neighbours that are read one by one
BLOCKS_UNASKED, SCATTERED_RUNS = 64, 8
# features up to which a factor is worth its memory
FACTOR_FEATURES = 2048
# what a factor costs, in products of its block (what factors save: results/speed/log.md, results/ablation c:no-factor);
# and the products up to which a solve counts as easy
PRICE, EASY = 40, 8


@dataclass(frozen=True)
class NewtonSystem:
    """(∇²f_j + W_j)P = −∇F_j, what to precondition it with, and the residual tolerance (B,)."""

    hessian: Hessian
    precondition: Weights | KeptFactor | ActiveRowInverse
    enough: Tensor


@dataclass(frozen=True)
class CGState:
    """The state of conjugate gradients from P = 0: every iterate P is a descent direction.

    r is the residual, p the direction, rz = ⟨r, z⟩ with z the preconditioned residual; `open` (B,) the blocks that
    go on. XP (R, C) is accumulated where the line search will need it.
    """

    P: Tensor
    r: Tensor
    p: Tensor
    rz: Tensor
    open: Tensor
    hvps: Tensor
    XP: Tensor | None = None


def zero_products(point: Point) -> Tensor | None:
    """XP of P = 0; None where there are no rows, and on a GPU: recorded and called steps are the same to the bit."""
    return torch.zeros_like(point.z) if isinstance(point, RowPoint) and not point.z.is_cuda else None


def open_runs(problem: LocalProblem, open_: Tensor) -> Runs | None:
    """The open blocks as runs of neighbours, to be read one after the other; () where all are read at once: where all
    are open, their data are small, or they are scattered. None where none is open."""
    design = problem.shard.design
    if len(open_) > BLOCKS_UNASKED or design.rows * design.features < LEAVE_CPU:
        return () if bool(open_.any()) else None
    left = open_.tolist()
    slices = tuple(slice(a, b) for a, b in runs([j for j, is_left in enumerate(left) if is_left]))
    if not slices:
        return None
    return () if all(left) or len(slices) > SCATTERED_RUNS else slices


def cg_step(at: CGState, system: NewtonSystem, problem: LocalProblem, limit: int | Tensor, only: Runs = ()) -> CGState:
    """One step of conjugate gradients in the open blocks; it changes nothing in the others. `only`: the open blocks, if
    the data of the others should not be read."""
    hessian, XP = system.hessian, at.XP
    if XP is not None and isinstance(hessian, RowHessian):
        Xp, Hp = hessian.both(at.p, only)
        Hp = Hp + problem.W.apply(at.p)
    else:
        Hp = problem.hvp(hessian, at.p)
    hvps = at.hvps + at.open
    curvature = dot(at.p, Hp)
    # Not positive, or NaN: p is at the level of rounding, or the data overflow. Keep the last iterate.
    good = at.open & (curvature > 0) & (curvature < torch.inf)
    step = torch.where(good, at.rz / curvature, 0.0)
    alpha = over(step, Hp)
    if XP is not None:
        XP = torch.addcmul(XP, step[problem.shard.design.block_of_row, None], Xp)
    r = torch.addcmul(at.r, alpha, Hp, value=-1)  # masked below for blocks that are not good
    z = system.precondition.solve(r)
    rz = dot(r, z)
    size = rz.clamp(min=0).sqrt() if problem.curved else norm(r)
    left = good & (size > system.enough) & (hvps < limit)
    beta = over(torch.where(left, rz / at.rz, 0.0), Hp)
    p = select(left, torch.addcmul(z, beta, at.p), Hp.new_zeros(()))
    return CGState(torch.addcmul(at.P, alpha, at.p), r, p, rz, left, hvps, XP)


def ensure_descent(iterate: Iterate, system: NewtonSystem, cg_state: CGState) -> Tensor:
    """Rounding may spoil the direction of a nearly singular system; the gradient always descends."""
    descends = dot(iterate.grad, cg_state.P) < 0
    return select(descends, cg_state.P, -system.precondition.solve(iterate.grad))


# ---------------------------------------------------------------------- curvature over the length of a step


@dataclass(frozen=True, eq=False)
class SecantPoint(RowPoint):
    """A point whose Hessian is built from average curvatures; value and gradient are those of the point."""

    width: Tensor = field(kw_only=True)

    @cached_property
    def curvature(self) -> RowCurvature:
        return DiagonalCurvature(average(self.loss, self.z, self.shard.target, self.width))


def average(loss: RowLoss, z: Tensor, y: Tensor, width: Tensor) -> Tensor:
    """φ'' of rows of one column (R, 1), averaged within `width` of z."""
    # Below this width the difference of slopes, and of z ± w itself, is rounding; φ'' is then average enough.
    tiny = torch.finfo(z.dtype).eps ** 0.5 * (1 + z.abs())
    w = torch.maximum(width, tiny)
    ends = torch.cat([z + w, z - w])
    high, low = loss.row_slope(loss.prepare(ends), torch.cat([y, y])).chunk(2)
    secants = (high - low) / (2 * w)
    if not z.is_cuda and bool((width > tiny).all()):  # no GPU synchronisation
        return secants
    return torch.where(width > tiny, secants, loss.row_curvature(loss.prepare(z), y).diagonal())


def averaged(point: Point, last: Point | None, width: Tensor | None = None) -> Point:
    """The point with its curvature averaged over the step from `last`, or within `width` (B,) of its logits; as it is
    if neither is known or C > 1."""
    if not isinstance(point, RowPoint) or point.z.shape[1] > 1:
        return point
    if isinstance(last, RowPoint):
        width = moved(last, point)
    if width is None:
        return point
    rows = width[point.shard.design.block_of_row, None]
    return SecantPoint(point.loss, point.shard, point.u, point.z, point.anchor, width=rows)


def moved(last: RowPoint, point: RowPoint) -> Tensor:
    """How far the logits of a block moved, in the mean square, (B,)."""
    design, c = point.shard.design, point.shard.row_weight
    # a block without rows has Σc = 0, and no logits
    total = design.sum_rows(c).clamp(min=torch.finfo(c.dtype).tiny)
    return (design.sum_rows(c * (point.z - last.z).square()[:, 0]) / total).sqrt()


# ---------------------------------------------------------------------- a factor of an earlier Hessian


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


def factor_is_applicable(shard: Shard) -> bool:
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
        step = max(1, -(-piece.X.shape[1] // DATA_PARTS))
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
