"""Limited-memory BFGS for the u-step, all blocks at once, with a memory that outlives the u-step.

    P = −H∇F_j,   u ← u + tP,   H from the last pairs s = u⁺ − u, y = ∇F⁺ − ∇F            (curve.py)

From one iteration to the next f_j is the same and W_j nearly so. So pairs are kept, y corrected for the change of
W_j, and so is the diagonal of ∇²f_j, which H is built upon (renewed at the 2nd, 4th, 8th, … solve). A solve starts
where the last solutions lead (trail.py).

One step reads X twice, as a Hessian-vector product does, and counts as one.

Reference: J. Nocedal, S. J. Wright, Numerical Optimization, 2nd ed., section 7.2.

Shapes: B blocks, m features, C columns, h pairs; u, gradients, P (B, m, C), stacked pairs (B, h, m·C).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from auqadmm.core.weights import Weights, equal
from auqadmm.local.base import Accurate, Iterate, LocalProblem, LocalSolution, check_count, count, dot, norm, select
from auqadmm.local.curve import Curve
from auqadmm.local.descent import Look, Step, descend, searched
from auqadmm.local.goal import Goal
from auqadmm.local.trail import Trail, trail
from auqadmm.problem.parts import Part

# a change of the gradient is known to so many times the rounding of its terms, or it is not worth keeping
CLEAR = 1e3


@dataclass(frozen=True)
class Memory:
    """What a solve leaves to the next: the curve, for the weights W; the diagonal D of ∇²f_j and u at the last anchor,
    both (B, m, C)."""

    curve: Curve
    W: Weights
    D: Tensor
    trail: Trail
    anchor: Tensor | None = None


@dataclass(frozen=True)
class LBFGS(Accurate):
    """L-BFGS with the line search of `NewtonCG`: cheap steps, few of them once it knows the problem.

    Parameters
    ----------
    factor, tol
        As in `Accurate`.
    history
        Pairs kept per block.
    max_iter
        Steps of one solve.
    """

    history: int = 10
    max_iter: int = 200

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("history", self.history)
        check_count("max_iter", self.max_iter)

    def solve(self, problem: LocalProblem, u0: Tensor, reference: float | None, memory: Any) -> LocalSolution:
        known = memory if isinstance(memory, Memory) and memory.curve.S.shape[1] == self.history else None
        start = u0 if known is None else known.trail.ahead(u0, problem.shard.programs)
        anchor = None if known is None else known.anchor
        found = descend(self, problem, start, reference, self.max_iter, known, anchor)
        return replace(found, memory=_remembered(problem, u0, found, known))

    def step(self, problem: LocalProblem, here: Iterate, look: Look, goal: Goal, state: Bend) -> Step:
        """One step of the active blocks; the state is what the pairs tell."""
        step = searched(problem, here, look, _direction(here, state.curve), count(here) + look.active, state)
        curve = _learned(here, step.there, state.curve, step.moved & look.active)
        return replace(step, state=replace(state, curve=curve))

    def begin(self, problem: LocalProblem, here: Iterate, state: Any) -> Bend:
        return _bend(problem, here, state, self.history)

    def take(self, state: Bend, some: Part) -> Bend:
        return Bend(state.curve.take(some.blocks), state.D[some.blocks])

    def put(self, state: Bend, some: Part, new: Bend) -> Bend:
        return Bend(state.curve.put(some.blocks, new.curve), state.D)


@dataclass(frozen=True)
class Bend:
    """What is known in the course of a solve: the curve, and the diagonal of ∇²f_j it is built upon."""

    curve: Curve
    D: Tensor


def _bend(problem: LocalProblem, here: Iterate, known: Memory | None, history: int) -> Bend:
    W = problem.W
    if known is not None and not known.trail.renew and equal(known.W, W):
        return Bend(known.curve, known.D)
    D = here.point.hessian_diagonal() if known is None or known.trail.renew else known.D
    H0 = (1 / (D + W.diagonal())).flatten(1)
    if known is None:
        empty = H0.new_zeros(len(H0), history, H0.shape[1])
        return Bend(Curve.of(empty, empty, H0), D)
    S, Y = known.curve.S, known.curve.Y
    if not equal(known.W, W):
        steps = S.mT.reshape(*here.u.shape, history)
        Y = (Y + (W.apply(steps) - known.W.apply(steps)).reshape(S.mT.shape).mT).contiguous()
    return Bend(Curve.of(S, Y, H0), D)


def _remembered(problem: LocalProblem, before: Tensor, found: LocalSolution, known: Memory | None) -> Any:
    """For the next solve. Where not a single step was needed, the pairs are those of before."""
    state, anchor = found.memory.state, found.memory.anchor
    if state is None:
        return None
    path = trail(before, found.u, None if known is None else known.trail, problem.shard.programs)
    if isinstance(state, Memory):
        return replace(state, trail=path, anchor=anchor)
    return Memory(state.curve, problem.W, state.D, path, anchor)


def _direction(here: Iterate, curve: Curve) -> Tensor:
    P = -curve.apply(here.grad)
    return select(dot(here.grad, P) < 0, P, -curve.H0.reshape(P.shape) * here.grad)


def _learned(here: Iterate, there: Iterate, curve: Curve, moved: Tensor) -> Curve:
    s, y = there.u - here.u, there.grad - here.grad
    # ⟨s,y⟩ > 0 in exact arithmetic, since W_j is positive definite; a pair of rounding errors is left out
    eps = torch.finfo(s.dtype).eps
    clear = (dot(s, y) > eps * norm(s) * norm(y)) & (norm(y) > CLEAR * (eps * here.plain_scale + here.blur))
    return curve.push(s, y, moved & clear)
