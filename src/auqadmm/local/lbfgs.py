"""Limited-memory BFGS for the u-step, all blocks at once, with a memory that outlives the u-step.

    P = −H∇F_j,   u ← u + tP,   H from the last pairs s = u⁺ − u, y = ∇F⁺ − ∇F            (curve.py)

From one iteration to the next f_j is the same and W_j nearly so. So pairs are kept, y corrected for the change of
W_j, and so is the model of ∇²F_j that H is built upon (model.py), renewed when F_j bends otherwise than it did; a mere
diagonal at the 2nd, 4th, 8th, … solve. A solve starts where the last solutions lead (trail.py).

One step reads X twice, as a Hessian-vector product does, and counts as one.

Reference: J. Nocedal, S. J. Wright, Numerical Optimization, 2nd ed., section 7.2.

Shapes: B blocks, m features, C columns, h pairs; u, gradients, P (B, m, C), stacked pairs (B, h, m·C).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from auqadmm.core.lowrank import LowRank
from auqadmm.core.weights import Weights, equal
from auqadmm.local.base import Bounded, Iterate, LocalProblem, LocalSolution, check_count, count, dot, norm, select
from auqadmm.local.curve import Curve
from auqadmm.local.descent import Descending, Look, Recalled, Step, searched
from auqadmm.local.goal import Goal
from auqadmm.local.model import fits, modelled, renewed, reweighted, stale
from auqadmm.local.trail import Trail, trail
from auqadmm.problem.parts import Part

# a change of the gradient is known to so many times the rounding of its terms, or it is not worth keeping
CLEAR = 1e3


@dataclass(frozen=True)
class Memory:
    """What a solve leaves to the next: the curve, for the weights W, and u at the last anchor (B, m, C)."""

    curve: Curve
    W: Weights
    trail: Trail
    anchor: Tensor | None = None


@dataclass(frozen=True)
class LBFGS(Bounded, Descending):
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
        Hessian-vector products that a solve may spend on a block, which then hands back what it has; None: no bound.

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

    def recall(self, problem: LocalProblem, memory: Any) -> Recalled:
        known = isinstance(memory, Memory) and memory.curve.S.shape[1] == self.history
        return Recalled(memory, memory.anchor, memory.trail) if known else Recalled()

    def remember(self, problem: LocalProblem, before: Tensor, found: LocalSolution, recalled: Recalled) -> Memory:
        """Where not a single step was needed, the pairs are those of before."""
        state, anchor = found.memory.state, found.memory.anchor
        path = trail(before, found.u, recalled.trail, problem.shard.programs)
        if isinstance(state, Memory):
            return replace(state, trail=path, anchor=anchor)
        return Memory(state.curve, problem.W, path, anchor)

    def step(self, problem: LocalProblem, here: Iterate, look: Look, goal: Goal, state: Bend) -> Step:
        """One step of the active blocks; the state is what the pairs tell."""
        if look.round > 0:
            state = _renewed(problem, here, look.active, state)
        step = searched(problem, here, look, _direction(here, state.curve), count(here) + look.active, state)
        curve = _learned(here, step.there, state.curve, step.moved & look.active)
        return replace(step, state=replace(state, curve=curve))

    def begin(self, problem: LocalProblem, here: Iterate, look: Look, state: Any) -> Any:
        if state is not None and not look.flags[0]:
            return state
        return Bend(_curve(problem, here, look.active, state, self.history))

    def take(self, state: Bend, some: Part) -> Bend:
        return Bend(state.curve.take(some.blocks))

    def put(self, state: Bend, some: Part, new: Bend) -> Bend:
        return Bend(state.curve.put(some.blocks, new.curve, new.renewed), state.renewed or new.renewed)


@dataclass(frozen=True)
class Bend:
    """What is known in the course of a solve: the curve, and whether its model was `renewed` on the way."""

    curve: Curve
    renewed: bool = False


def _curve(problem: LocalProblem, here: Iterate, active: Tensor, known: Memory | None, history: int) -> Curve:
    """What to begin with; a block that is solved already keeps its model."""
    if known is None:
        return Curve.empty(here.u, history, modelled(problem, here.point, None))
    W, curve = problem.W, known.curve
    model, same = curve.model, equal(known.W, W)
    if not fits(model, problem, here.point):
        old = torch.ones_like(active)
        model = modelled(problem, here.point, model)
    else:
        old = active & (stale(model, here.point) if isinstance(model, LowRank) else known.trail.renew)
        if not same:
            model = reweighted(model, known.W, W)
        if old.any():
            model = renewed(problem, here.point, model, old)
    if same:
        return curve.upon(model) if old.any() else curve
    S, Y = curve.S, curve.Y
    steps = S.mT.reshape(*here.u.shape, history)
    Y = (Y + (W.apply(steps) - known.W.apply(steps)).reshape(S.mT.shape).mT).contiguous()
    return Curve.of(S, Y, model)


def _renewed(problem: LocalProblem, here: Iterate, active: Tensor, state: Bend) -> Bend:
    """On the way: a new model of a block that left what the old one was made for, and with it what its pairs tell."""
    gone = stale(state.curve.model, here.point) & active
    if not gone.any():
        return state
    model = renewed(problem, here.point, state.curve.model, gone)
    return Bend(state.curve.forget(gone).upon(model), renewed=True)


def _direction(here: Iterate, curve: Curve) -> Tensor:
    P = -curve.apply(here.grad)
    return select(dot(here.grad, P) < 0, P, -curve.solve(here.grad))


def _learned(here: Iterate, there: Iterate, curve: Curve, moved: Tensor) -> Curve:
    s, y = there.u - here.u, there.grad - here.grad
    # ⟨s,y⟩ > 0 in exact arithmetic, since W_j is positive definite; a pair of rounding errors is left out
    eps = torch.finfo(s.dtype).eps
    clear = (dot(s, y) > eps * norm(s) * norm(y)) & (norm(y) > CLEAR * (eps * here.plain_scale + here.blur))
    return curve.push(s, y, moved & clear)
