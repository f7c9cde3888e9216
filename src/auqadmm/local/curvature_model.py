"""The initial model of ∇²F_j, before pairs improve it: a few directions and a diagonal, or a diagonal alone.

    B_j = (U_j M_j U_jᵀ + diag d_j) ⊗ S_j + ρ_j I                     as the weights of AUQ-LR (`metrics/lowrank.py`)
    A_j = Σ_i w_i x_ix_iᵀ,  w_i = c_i tr φ''(z_i)       U_j = orth(A_j·U_before)       M_j = U_jᵀA_jU_j
    d_j = max(0, diag(A_j − U_jM_jU_jᵀ))                S_j = Σ|x_i|²c_iφ''(z_i) / Σ|x_i|²w_i

Local problems have few directions of curvature far above ρ_j, and others alike: with these known, half of the
steps are saved that the diagonal takes. U_j starts at random and improves each time; one product is enough, since
the spectrum of rows falls fast, and L-BFGS steps correct the rest.

The model is renewed when the curvature as a whole, e_j = Σ|x_i|²w_i = tr A_j, has changed, which takes no
product to detect. From u = 0 it falls a hundredfold within the first solve.

Shapes: B blocks, R flat rows, m features, C columns, r directions; U (B, m, r), M (B, r, r), d (B, m), S (B, C, C).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from auqadmm.blocks.curvature import times
from auqadmm.blocks.parts import part
from auqadmm.blocks.rows import Point, RowPoint
from auqadmm.local.base import select
from auqadmm.metrics.lowrank import LowRank
from auqadmm.metrics.weights import Diagonal, Scalar, Weights

if TYPE_CHECKING:
    from auqadmm.local.base import LocalProblem

# directions of a block; the data take at least so many times the room of one
MODEL_RANK, MODEL_ROOM = 16, 16
# the factor by which the curvature of a block may change before its model is renewed
MODEL_CHANGE = 2.5


def renew_blocks(problem: LocalProblem, point: Point, old: Weights, some: Tensor) -> Weights:
    """The old model, with that of some blocks (B,) made anew at a point."""
    going = [j for j, goes in enumerate(some.tolist()) if goes]
    apart = part(problem.shard, going) if isinstance(point, RowPoint) and len(going) < len(some) else None
    if apart is None:
        new = model_at(problem, point, old)
        return new if len(going) == len(some) else put(old, some.nonzero()[:, 0], new.take(some))
    assert isinstance(point, RowPoint)
    return put(old, apart.blocks, model_at(problem.take(apart), point.take(apart), old.take(apart.blocks)))


def model_at(problem: LocalProblem, point: Point, old: Weights | None) -> Weights:
    """The model at a point, improving the directions of the old one, if any."""
    rank = _rank(problem, point)
    if rank == 0:
        return Diagonal(problem.hessian_diagonal(point))
    assert isinstance(point, RowPoint)
    assert isinstance(problem.W, Scalar)
    design, single_precision = problem.shard.design, point.anchor is not None
    B, m, C = problem.shard.shape
    rows = point.row_model(None)
    w = rows.trace[:, None]
    start = old.U if isinstance(old, LowRank) else _random_directions(m, rank, w).expand(B, m, rank)
    U = torch.linalg.qr(design.adjoint(w * design.forward(start, single_precision), single_precision))[0]
    XU = design.forward(U, single_precision)
    M = design.inner(w * XU, XU)
    d = (design.adjoint_squared(w, single_precision)[..., 0] - ((U @ M) * U).sum(2)).clamp(min=0)
    # a block without curvature (or rows) couples no columns
    S = rows.S / rows.energy[:, None, None]
    fine = torch.stack([x.isfinite().flatten(1).all(1) for x in (U, M, d, S)]).all(0)
    eye = torch.eye(C, dtype=S.dtype, device=S.device) / C
    U, M, d = (select(fine, x, torch.zeros_like(x)) for x in (U, 0.5 * (M + M.mT), d))
    return LowRank(U, M, d, select(fine, S, eye.expand_as(S)), problem.W.rho)


def reweight(model: Weights, before: Weights, W: Weights) -> Weights:
    """The same model for other weights."""
    if isinstance(model, LowRank):
        assert isinstance(W, Scalar)
        return replace(model, phi=W.rho)
    # the curvature of f_j is not negative, whatever rounding leaves of it
    own = W.diagonal()
    return Diagonal(torch.maximum(model.diagonal() - before.diagonal() + own, own))


def same_kind(model: Weights, problem: LocalProblem, point: Point) -> bool:
    """Is the model of the kind used for this problem?"""
    return isinstance(model, LowRank) == (_rank(problem, point) > 0)


def is_outdated(model: Weights, point: Point) -> Tensor:
    """(B,): the blocks whose curvature is far above or below that of their model. A diagonal model does not
    tell."""
    if not isinstance(model, LowRank) or not isinstance(point, RowPoint):
        return torch.zeros_like(point.u[:, 0, 0], dtype=torch.bool)
    design = point.shard.design
    w = times(point.shard.row_weight, point.curvature.diagonal().sum(1))
    now = design.sum_rows(design.squares(w) * w)
    then = model.M.diagonal(dim1=1, dim2=2).sum(1) + model.d.sum(1)
    return (now > MODEL_CHANGE * then) | (then > MODEL_CHANGE * now)


def put(model: Weights, index: Tensor, some: Weights) -> Weights:
    """With the model of some blocks replaced."""
    if isinstance(model, LowRank) and isinstance(some, LowRank):
        names = ("U", "M", "d", "S", "phi")
        return replace(
            model, **{name: getattr(model, name).index_copy(0, index, getattr(some, name)) for name in names}
        )
    return Diagonal(model.diagonal().index_copy(0, index, some.diagonal()))


def _rank(problem: LocalProblem, point: Point) -> int:
    """How many directions, the same for all blocks of the problem; none where curvature is a spike or a step, which
    says little about the next point, or where W_j is not the same for all features."""
    shard = problem.shard
    if not isinstance(problem.W, Scalar) or not isinstance(point, RowPoint) or point.loss.expects:
        return 0
    if not shard.census.dense or not shard.blocks:
        return 0
    return min(MODEL_RANK, shard.design.features, sum(shard.census.rows) // (MODEL_ROOM * shard.census.blocks))


def _random_directions(m: int, rank: int, like: Tensor) -> Tensor:
    """The same for all blocks, wherever they are placed."""
    coins = torch.Generator().manual_seed(0)
    return torch.randn(m, rank, generator=coins, dtype=torch.float64).to(like)
