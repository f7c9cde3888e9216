"""Limited-memory BFGS for the u-step, all blocks at once, with a memory that outlives the u-step.

    P = −H∇F_j,   u ← u + tP,   H from the last pairs s = u⁺ − u, y = ∇F⁺ − ∇F            (inverse_hessian.py)

From one iteration to the next f_j is the same and W_j nearly so. So pairs are kept, y corrected for the change of
W_j, and so is the model of ∇²F_j that H is built upon, renewed when the curvature changed; a mere diagonal at the 2nd,
4th, 8th, … solve. A solve starts from an extrapolated solution (descent.py).

The model: a few directions and a diagonal, or a diagonal alone.

    B_j = (U_j M_j U_jᵀ + diag d_j) ⊗ S_j + ρ_j I                     as the weights of AUQ-LR (`metrics/lowrank.py`)
    A_j = Σ_i w_i x_ix_iᵀ,  w_i = c_i tr φ''(z_i)       U_j = orth(A_j·U_before)       M_j = U_jᵀA_jU_j
    d_j = max(0, diag(A_j − U_jM_jU_jᵀ))                S_j = Σ|x_i|²c_iφ''(z_i) / Σ|x_i|²w_i

Local problems have few directions of curvature far above ρ_j, and others alike: with these known, half of the
steps are saved that the diagonal takes. U_j starts at random and improves each time; one product is enough, since
the spectrum of rows falls fast, and L-BFGS steps correct the rest. It is renewed when the curvature as a whole,
e_j = Σ|x_i|²w_i = tr A_j, has changed, which takes no product to detect. From u = 0 it falls a hundredfold within the
first solve.

One step reads X twice, as a Hessian-vector product does, and counts as one.

Reference: J. Nocedal, S. J. Wright, Numerical Optimization, 2nd ed., section 7.2.

Shapes: B blocks, R flat rows, m features, C columns, h pairs, r directions; u, gradients, P (B, m, C), stacked pairs
(B, h, m·C); U (B, m, r), M (B, r, r), d (B, m), S (B, C, C).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from auqadmm.blocks.curvature import times
from auqadmm.blocks.parts import Part, part
from auqadmm.blocks.rows import Point, RowPoint
from auqadmm.local.base import Bounded, Iterate, LocalProblem, LocalSolution, check_count, count, norm, select
from auqadmm.local.descent import (
    DescentSolver,
    DescentStep,
    Extrapolation,
    Progress,
    RecalledState,
    Tolerance,
    extrapolate,
    line_search_step,
)
from auqadmm.local.inverse_hessian import InverseHessian, put_model
from auqadmm.metrics.lowrank import LowRank
from auqadmm.metrics.weights import Diagonal, Scalar, Weights, dot, equal

# Chosen, not measured, but for the model's directions.
# a pair is kept if its change of the gradient is at least so many times the rounding error of its terms
CLEAR = 1e3
# directions of a block (steps per solve with and without them: results/speed/log.md); the data take at least so many
# times the room of one
MODEL_RANK, MODEL_ROOM = 16, 16
# the factor by which the curvature of a block may change before its model is renewed
MODEL_CHANGE = 2.5


@dataclass(frozen=True)
class LBFGSMemory:
    """What a solve leaves to the next: the inverse Hessian, for the weights W, and u at the last anchor (B, m, C)."""

    inverse: InverseHessian
    W: Weights
    path: Extrapolation
    anchor: Tensor | None = None


@dataclass(frozen=True)
class LBFGS(Bounded, DescentSolver):
    """L-BFGS with the line search of `NewtonCG`: cheap steps, few of them once it knows the problem.

    Parameters
    ----------
    factor, tol
        As in `Accurate`.
    history
        Pairs kept per block.
    max_iter
        Steps of one solve.
    products
        Hessian-vector products that a solve may spend on a block, which then returns its iterate; None: no bound.

    Raises
    ------
    ValueError
        A parameter has a value that it cannot have; the message names it.

    Examples
    --------
    >>> import numpy as np
    >>> import auqadmm as aq
    >>> X, y = np.array([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0], [2.0, 1.0]]), np.array([1.0, 2.0, 3.0, 6.0])
    >>> problem = aq.Problem(aq.LeastSquares(), aq.L2(1.0), [(X[:2], y[:2]), (X[2:], y[2:])])
    >>> aq.solve(problem, "c-admm", local=aq.local.LBFGS(tol=1e-8)).coef.round(1)
    array([2., 1.])
    """

    history: int = 10
    max_iter: int = 200

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("history", self.history)
        check_count("max_iter", self.max_iter)

    def recall(self, problem: LocalProblem, memory: object) -> RecalledState:
        if isinstance(memory, LBFGSMemory) and memory.inverse.S.shape[1] == self.history:
            return RecalledState(memory, memory.anchor, memory.path)
        return RecalledState()

    def remember(
        self, problem: LocalProblem, before: Tensor, solution: LocalSolution, recalled: RecalledState
    ) -> LBFGSMemory:
        """Where no step was needed, the pairs are unchanged."""
        state, anchor = solution.memory.state, solution.memory.anchor
        path = extrapolate(before, solution.u, recalled.path, problem.shard.programs)
        if isinstance(state, LBFGSMemory):
            return replace(state, path=path, anchor=anchor)
        return LBFGSMemory(state.inverse, problem.W, path, anchor)

    def step(
        self, problem: LocalProblem, iterate: Iterate, progress: Progress, tolerance: Tolerance, state: LBFGSState
    ) -> DescentStep:
        """One step of the active blocks; the state is the inverse Hessian."""
        if progress.round > 0:
            state = _renew_models(problem, iterate, progress.active, state)
        step = line_search_step(
            problem, iterate, progress, _direction(iterate, state.inverse), count(iterate) + progress.active, state
        )
        inverse = _update_pairs(iterate, step.there, state.inverse, step.moved & progress.active)
        return replace(step, state=replace(state, inverse=inverse))

    def begin(self, problem: LocalProblem, iterate: Iterate, progress: Progress, state: Any) -> Any:
        if state is not None and not progress.flags[0]:
            return state
        return LBFGSState(_first_inverse(problem, iterate, progress.active, state, self.history))

    def take(self, state: LBFGSState, some: Part) -> LBFGSState:
        return LBFGSState(state.inverse.take(some.blocks))

    def put(self, state: LBFGSState, some: Part, new: LBFGSState) -> LBFGSState:
        return LBFGSState(state.inverse.put(some.blocks, new.inverse, new.renewed), state.renewed or new.renewed)


@dataclass(frozen=True)
class LBFGSState:
    """The state of a solve: the inverse Hessian, and whether its model was `renewed`."""

    inverse: InverseHessian
    renewed: bool = False


def _first_inverse(
    problem: LocalProblem, iterate: Iterate, active: Tensor, known: LBFGSMemory | None, history: int
) -> InverseHessian:
    """The initial state; a block that has converged already keeps its model."""
    if known is None:
        return InverseHessian.empty(iterate.u, history, model_at(problem, iterate.point, None))
    W, inverse = problem.W, known.inverse
    model, same = inverse.model, equal(known.W, W)
    if not same_kind(model, problem, iterate.point):
        old = torch.ones_like(active)
        model = model_at(problem, iterate.point, model)
    else:
        old = active & (is_outdated(model, iterate.point) if isinstance(model, LowRank) else known.path.renew)
        if not same:
            model = reweight(model, known.W, W)
        if old.any():
            model = renew_blocks(problem, iterate.point, model, old)
    if same:
        return inverse.upon(model) if old.any() else inverse
    S, Y = inverse.S, inverse.Y
    steps = S.mT.reshape(*iterate.u.shape, history)
    Y = (Y + (W.apply(steps) - known.W.apply(steps)).reshape(S.mT.shape).mT).contiguous()
    return InverseHessian.of(S, Y, model)


def _renew_models(problem: LocalProblem, iterate: Iterate, active: Tensor, state: LBFGSState) -> LBFGSState:
    """During a solve: a new model, without pairs, of each block whose curvature the old one no longer fits."""
    gone = is_outdated(state.inverse.model, iterate.point) & active
    if not gone.any():
        return state
    model = renew_blocks(problem, iterate.point, state.inverse.model, gone)
    return LBFGSState(state.inverse.forget(gone).upon(model), renewed=True)


def _direction(iterate: Iterate, inverse: InverseHessian) -> Tensor:
    P = -inverse.apply(iterate.grad)
    return select(dot(iterate.grad, P) < 0, P, -inverse.solve(iterate.grad))


def _update_pairs(iterate: Iterate, there: Iterate, inverse: InverseHessian, moved: Tensor) -> InverseHessian:
    s, y = there.u - iterate.u, there.grad - iterate.grad
    # ⟨s,y⟩ > 0 in exact arithmetic, since W_j is positive definite; a pair that is only rounding error is skipped
    eps = torch.finfo(s.dtype).eps
    clear = (dot(s, y) > eps * norm(s) * norm(y)) & (norm(y) > CLEAR * (eps * iterate.plain_scale + iterate.blur))
    return inverse.push(s, y, moved & clear)


# ---------------------------------------------------------------------- the model of ∇²F_j, before pairs improve it


def renew_blocks(problem: LocalProblem, point: Point, old: Weights, some: Tensor) -> Weights:
    """The old model, with that of some blocks (B,) made anew at a point."""
    going = [j for j, goes in enumerate(some.tolist()) if goes]
    apart = part(problem.shard, going) if isinstance(point, RowPoint) and len(going) < len(some) else None
    if apart is None:
        new = model_at(problem, point, old)
        return new if len(going) == len(some) else put_model(old, some.nonzero()[:, 0], new.take(some))
    assert isinstance(point, RowPoint)
    return put_model(old, apart.blocks, model_at(problem.take(apart), point.take(apart), old.take(apart.blocks)))


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
