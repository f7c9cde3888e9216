"""The loop that Newton's method and L-BFGS share: direction, line search, until every block is solved.

    P ← a descent direction of F_j at u;   t ← line search;   u ← u + tP

A block that is solved, that rounding keeps from moving, or that met a non-finite number stops taking part.

Shapes: B blocks; u, P (B, m, C); masks and counters (B,).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from auqadmm.local.base import Goal, Iterate, LocalProblem, LocalSolution, count, select, settle
from auqadmm.local.line_search import search

# Within this factor of the cheap estimate of rounding, it pays to know the limit better than to run against it.
CLOSE = 1000.0


@dataclass(frozen=True)
class Look:
    """Which blocks go on: `active` (B,), of which those in `doubt` may have reached rounding.

    `alive`: not stuck, and finite; `checked`: rounding is known. `any` says whether any is active, or in doubt, and
    `told` the same once the host knows. `round` counts steps.
    """

    active: Tensor
    doubt: Tensor
    alive: Tensor
    checked: Tensor
    any: Tensor
    told: tuple[int, ...] | None = None
    round: int = 0

    def flags(self) -> tuple[int, ...]:
        return self.told if self.told is not None else tuple(self.any.tolist())


@dataclass(frozen=True)
class Step:
    """Where a step led, the blocks that moved (B,), products it took (B,), the method's state, and the next look."""

    there: Iterate
    moved: Tensor
    hvps: Tensor
    state: Any
    look: Look | None = None


class Method(Protocol):
    """What tells one descent method from another. `factor` and `tol` as in `Goal.of`."""

    @property
    def factor(self) -> float: ...
    @property
    def tol(self) -> float | None: ...

    def step(self, problem: LocalProblem, here: Iterate, look: Look, goal: Goal, state: Any) -> Step:
        """One step of the active blocks; the state is None at first, or what `descend` was given."""
        ...


def descend(
    method: Method, problem: LocalProblem, u0: Tensor, reference: float | None, max_iter: int, state: Any = None
) -> LocalSolution:
    """Descend from u0 until every block meets the goal; the memory of the solution is the method's last state."""
    run = problem.shard.programs
    here = run(LocalProblem.at, problem, u0)
    goal = Goal.of(here, reference, method.factor, method.tol)
    hvps = iterations = count(here)
    look = run(looked, goal, here, here.finite, ~here.finite)
    for i in range(max_iter):
        active, doubt = look.flags()
        if doubt:
            goal, hvps = run(Goal.attainable, goal, problem, here, look.doubt), hvps + look.doubt
            look = run(looked, goal, here, look.alive, look.checked | look.doubt)
            active, _ = look.flags()
        if not active:
            break
        look = replace(look, told=None, round=i)
        step = method.step(problem, here, look, goal, state)
        here, state = step.there, step.state
        hvps, iterations = hvps + step.hvps, iterations + look.active
        look = step.look or run(looked, goal, here, look.alive & (step.moved | ~look.active), look.checked)
    converged, hvps = settle(goal, problem, here, hvps)
    return LocalSolution(here.u, converged, here.grad_norm, hvps, iterations, state)


def looked(goal: Goal, here: Iterate, alive: Tensor, checked: Tensor) -> Look:
    active = alive & ~goal.met(here)
    doubt = active & ~checked & (here.grad_norm <= CLOSE * here.floor)
    return Look(active, doubt, alive, checked, torch.stack([active.any(), doubt.any()]))


def searched(problem: LocalProblem, here: Iterate, look: Look, P: Tensor, hvps: Tensor, state: Any) -> Step:
    """The step along P that a line search finds."""
    there, moved = search(problem, here, select(look.active, P, P.new_zeros(())), look.active)
    return Step(there, moved, hvps, state)
