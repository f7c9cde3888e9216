"""Limited-memory BFGS for the u-step, all blocks at once, with a memory that outlives the u-step.

    P = −H∇F_j,   u ← u + tP,   H from the last pairs s = u⁺ − u, y = ∇F⁺ − ∇F            (inverse_hessian.py)

From one iteration to the next f_j is the same and W_j nearly so. So pairs are kept, y corrected for the change of
W_j, and so is the model of ∇²F_j that H is built upon (curvature_model.py), renewed when the curvature changed; a mere
diagonal at the 2nd, 4th, 8th, … solve. A solve starts from an extrapolated solution (base.py).

One step reads X twice, as a Hessian-vector product does, and counts as one.

Reference: J. Nocedal, S. J. Wright, Numerical Optimization, 2nd ed., section 7.2.

Shapes: B blocks, m features, C columns, h pairs; u, gradients, P (B, m, C), stacked pairs (B, h, m·C).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from auqadmm.blocks.parts import Part
from auqadmm.local.base import (
    Bounded,
    Extrapolation,
    Iterate,
    LocalProblem,
    LocalSolution,
    check_count,
    count,
    extrapolate,
    norm,
    select,
)
from auqadmm.local.curvature_model import is_outdated, model_at, renew_blocks, reweight, same_kind
from auqadmm.local.descent import DescentSolver, DescentStep, Progress, RecalledState, line_search_step
from auqadmm.local.inverse_hessian import InverseHessian
from auqadmm.local.tolerance import Tolerance
from auqadmm.metrics.lowrank import LowRank
from auqadmm.metrics.weights import Weights, dot, equal

# a pair is kept if its change of the gradient is at least so many times the rounding error of its terms
CLEAR = 1e3


@dataclass(frozen=True)
class LBFGSMemory:
    """What a solve leaves to the next: the inverse Hessian, for the weights W, and u at the last anchor (B, m, C)."""

    curve: InverseHessian
    W: Weights
    trail: Extrapolation
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
        if isinstance(memory, LBFGSMemory) and memory.curve.S.shape[1] == self.history:
            return RecalledState(memory, memory.anchor, memory.trail)
        return RecalledState()

    def remember(
        self, problem: LocalProblem, before: Tensor, solution: LocalSolution, recalled: RecalledState
    ) -> LBFGSMemory:
        """Where no step was needed, the pairs are unchanged."""
        state, anchor = solution.memory.state, solution.memory.anchor
        path = extrapolate(before, solution.u, recalled.trail, problem.shard.programs)
        if isinstance(state, LBFGSMemory):
            return replace(state, trail=path, anchor=anchor)
        return LBFGSMemory(state.curve, problem.W, path, anchor)

    def step(
        self, problem: LocalProblem, iterate: Iterate, progress: Progress, tolerance: Tolerance, state: LBFGSState
    ) -> DescentStep:
        """One step of the active blocks; the state is the inverse Hessian."""
        if progress.round > 0:
            state = _renew_models(problem, iterate, progress.active, state)
        step = line_search_step(
            problem, iterate, progress, _direction(iterate, state.curve), count(iterate) + progress.active, state
        )
        curve = _update_pairs(iterate, step.there, state.curve, step.moved & progress.active)
        return replace(step, state=replace(state, curve=curve))

    def begin(self, problem: LocalProblem, iterate: Iterate, progress: Progress, state: Any) -> Any:
        if state is not None and not progress.flags[0]:
            return state
        return LBFGSState(_first_inverse(problem, iterate, progress.active, state, self.history))

    def take(self, state: LBFGSState, some: Part) -> LBFGSState:
        return LBFGSState(state.curve.take(some.blocks))

    def put(self, state: LBFGSState, some: Part, new: LBFGSState) -> LBFGSState:
        return LBFGSState(state.curve.put(some.blocks, new.curve, new.renewed), state.renewed or new.renewed)


@dataclass(frozen=True)
class LBFGSState:
    """The state of a solve: the inverse Hessian, and whether its model was `renewed`."""

    curve: InverseHessian
    renewed: bool = False


def _first_inverse(
    problem: LocalProblem, iterate: Iterate, active: Tensor, known: LBFGSMemory | None, history: int
) -> InverseHessian:
    """The initial state; a block that has converged already keeps its model."""
    if known is None:
        return InverseHessian.empty(iterate.u, history, model_at(problem, iterate.point, None))
    W, curve = problem.W, known.curve
    model, same = curve.model, equal(known.W, W)
    if not same_kind(model, problem, iterate.point):
        old = torch.ones_like(active)
        model = model_at(problem, iterate.point, model)
    else:
        old = active & (is_outdated(model, iterate.point) if isinstance(model, LowRank) else known.trail.renew)
        if not same:
            model = reweight(model, known.W, W)
        if old.any():
            model = renew_blocks(problem, iterate.point, model, old)
    if same:
        return curve.upon(model) if old.any() else curve
    S, Y = curve.S, curve.Y
    steps = S.mT.reshape(*iterate.u.shape, history)
    Y = (Y + (W.apply(steps) - known.W.apply(steps)).reshape(S.mT.shape).mT).contiguous()
    return InverseHessian.of(S, Y, model)


def _renew_models(problem: LocalProblem, iterate: Iterate, active: Tensor, state: LBFGSState) -> LBFGSState:
    """During a solve: a new model, without pairs, of each block whose curvature the old one no longer fits."""
    gone = is_outdated(state.curve.model, iterate.point) & active
    if not gone.any():
        return state
    model = renew_blocks(problem, iterate.point, state.curve.model, gone)
    return LBFGSState(state.curve.forget(gone).upon(model), renewed=True)


def _direction(iterate: Iterate, curve: InverseHessian) -> Tensor:
    P = -curve.apply(iterate.grad)
    return select(dot(iterate.grad, P) < 0, P, -curve.solve(iterate.grad))


def _update_pairs(iterate: Iterate, there: Iterate, curve: InverseHessian, moved: Tensor) -> InverseHessian:
    s, y = there.u - iterate.u, there.grad - iterate.grad
    # ⟨s,y⟩ > 0 in exact arithmetic, since W_j is positive definite; a pair that is only rounding error is skipped
    eps = torch.finfo(s.dtype).eps
    clear = (dot(s, y) > eps * norm(s) * norm(y)) & (norm(y) > CLEAR * (eps * iterate.plain_scale + iterate.blur))
    return curve.push(s, y, moved & clear)
