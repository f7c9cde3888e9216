"""Truncated Newton for the u-step: conjugate gradients on the Newton system, all blocks at once.

    (∇²f_j + W_j) P = −∇F_j   until   ‖residual‖ ≤ η‖∇F_j‖,   η = min(0.1, √(‖∇F_j‖ / its terms))
    u ← u + tP

preconditioned by the diagonal, or by W_j where it models the curvature. W_j makes every system positive definite,
separable data included. η falls with the gradient, so convergence is superlinear; a quadratic loss needs one system
only, solved to the target at once.
∇²f_j is averaged over the last step's length (`secant`), which carries Newton's method over the corners of a hinge.

Reference: J. Nocedal, S. J. Wright, Numerical Optimization, 2nd ed., section 7.1; R. S. Dembo, S. C. Eisenstat,
T. Steihaug, SIAM J. Numer. Anal. 19 (1982).

Shapes: B blocks, m features, C columns; vectors (B, m, C), one number per block (B,).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from auqadmm.local.base import (
    Goal,
    Iterate,
    LocalProblem,
    LocalSolution,
    check_count,
    check_tolerance,
    dot,
    over,
    select,
)
from auqadmm.local.descent import descend
from auqadmm.local.secant import averaged
from auqadmm.problem.rows import Point


@dataclass(frozen=True)
class NewtonCG:
    """Newton's method with conjugate gradients inside: products with X only, so sparse blocks are welcome.

    Parameters
    ----------
    factor
        The target for ‖∇F_j‖ relative to the outer residual.
    tol
        An absolute target instead.
    max_iter, max_cg
        Newton steps of one solve, and conjugate-gradient steps of one Newton step.
    """

    factor: float = 0.01
    tol: float | None = None
    max_iter: int = 100
    max_cg: int = 250

    def __post_init__(self) -> None:
        check_tolerance(self.factor, self.tol)
        check_count("max_iter", self.max_iter)
        check_count("max_cg", self.max_cg)

    def solve(self, problem: LocalProblem, u0: Tensor, reference: float | None, memory: Any) -> LocalSolution:
        start = problem.at(u0)
        goal = Goal.of(start, reference, self.factor, self.tol)
        return descend(self, problem, start, goal, self.max_iter)

    def direction(
        self, problem: LocalProblem, here: Iterate, active: Tensor, goal: Goal, state: Any
    ) -> tuple[Tensor, Tensor, Any]:
        """The Newton direction of the active blocks, as far as it pays to know it; the state is the last point."""
        quadratic = problem.shard.loss.quadratic
        model = here.point if quadratic else averaged(here.point, state)
        precondition = problem.preconditioner(model)
        enough = 0.5 * goal.at(here)
        if goal.share is not None or not quadratic:
            eta = (here.grad_norm / here.scale).sqrt().clamp(max=0.1)
            enough = torch.maximum(enough, eta * here.grad_norm)
        P, hvps = _conjugate_gradients(problem, model, here.grad, precondition, active, enough, self.max_cg)
        # Rounding may spoil the direction of a system at the edge of singularity; the gradient always descends.
        descends = dot(here.grad, P) < 0
        return select(descends, P, -precondition(here.grad)), hvps, here.point


def _conjugate_gradients(
    problem: LocalProblem,
    model: Point,
    grad: Tensor,
    precondition: Callable[[Tensor], Tensor],
    active: Tensor,
    enough: Tensor,
    max_cg: int,
) -> tuple[Tensor, Tensor]:
    """Solve (∇²f_j + W_j)P = −∇F_j to residual `enough` (B,), from P = 0: every step of it is a descent direction."""
    P = torch.zeros_like(grad)
    r = select(active, -grad, P)
    p = precondition(r)
    rz = dot(r, p)
    hvps = torch.zeros_like(active, dtype=torch.int64)
    open_ = active
    for _ in range(max_cg):
        Hp = problem.hvp(model, p)
        hvps = hvps + open_
        curvature = dot(p, Hp)
        # Not positive, or NaN: p is at the level of rounding, or the data overflow. Keep what there is.
        good = open_ & (curvature > 0) & curvature.isfinite()
        alpha = over(torch.where(good, rz / curvature, 0.0), P)
        P = P + alpha * p
        r = select(good, r - alpha * Hp, r)
        z = precondition(r)
        rz_next = dot(r, z)
        open_ = good & (problem.norm(r) > enough)
        if not open_.any():
            break
        beta = over(torch.where(open_, rz_next / rz, 0.0), P)
        p = select(open_, z + beta * p, p.new_zeros(()))
        rz = rz_next
    return P, hvps
