"""The loop that Newton's method and L-BFGS share: direction, line search, until every block is solved.

    P ← a descent direction of F_j at u;   t ← line search;   u ← u + tP

A block that is solved, that rounding keeps from moving, or that met a non-finite number stops taking part.

Shapes: B blocks; u, P (B, m, C); masks and counters (B,).
"""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor

from auqadmm.local.base import Goal, Iterate, LocalProblem, LocalSolution, count, select, settle
from auqadmm.local.line_search import search

# Within this factor of the cheap estimate of rounding, it pays to know the limit better than to run against it.
CLOSE = 1000.0


class Direction(Protocol):
    """What tells one descent method from another."""

    def direction(
        self, problem: LocalProblem, here: Iterate, active: Tensor, goal: Goal, state: Any
    ) -> tuple[Tensor, Tensor, Any]:
        """P (B, m, C), the Hessian-vector products it took (B,), and the state for the next step (None at first)."""
        ...


def descend(method: Direction, problem: LocalProblem, start: Iterate, goal: Goal, max_iter: int) -> LocalSolution:
    """Descend from `start` until every block meets the goal."""
    here, state = start, None
    hvps = iterations = count(start)
    alive, checked = start.finite, ~start.finite
    for _ in range(max_iter):
        active = alive & ~goal.met(here)
        doubt = active & ~checked & (here.grad_norm <= CLOSE * here.floor)
        if doubt.any():
            goal, checked, hvps = goal.attainable(problem, here, doubt), checked | doubt, hvps + doubt
            active = active & ~goal.met(here)
        if not active.any():
            break
        P, spent, state = method.direction(problem, here, active, goal, state)
        P = select(active, P, P.new_zeros(()))
        there, moved = search(problem, here, P, active)
        hvps = hvps + spent
        iterations = iterations + active
        alive = alive & (moved | ~active)
        here = there
    converged, hvps = settle(goal, problem, here, hvps)
    return LocalSolution(here.u, converged, here.grad_norm, hvps, iterations, None)
