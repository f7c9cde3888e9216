"""OWL-QN: L-BFGS for an objective with an l1 term.

    minimise over v   F(v) = Σ_j f_j(v) + l1‖v‖₁ + l2/2‖v‖²
    ◇    the pseudo-gradient: ∇ + l1·sign(v) where v ≠ 0, else the slope of the side on which F falls, or 0
    P    −H◇, entries set to 0 that do not point along −◇
    ξ    sign(v), where v = 0 sign(−◇): the orthant to stay in
    v ←  π(v + tP),  π sets entries that leave the orthant to exactly 0,
         t = 1, ½, ¼, … until F(v⁺) ≤ F(v) + c₁⟨◇, v⁺ − v⟩

Rows without an l1 term (an intercept) have no orthant: P and v are not projected there. The pairs come from the
gradient of the smooth part, which leaves l1 out. Where differences of F are below rounding, ‖◇‖ has to
fall.

Reference: G. Andrew, J. Gao, Scalable training of L1-regularized log-linear models, 2007.

Shapes: m features, C columns; v, P, ◇, ξ (m, C).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from auqadmm.baselines.objective import Elastic, Objective, ObjectivePoint, dot
from auqadmm.baselines.quasi_newton import QuasiNewton, QuasiNewtonMemory, direction, first_step, noise, penalty_of
from auqadmm.core.state import Setup

OWLQN_DECREASE = 1e-4  # of the slope, that F must fall by: the usual constant of Armijo's rule
OWLQN_TRIALS = 25  # step lengths of one search, each a round


@dataclass(frozen=True)
class OWLQN(QuasiNewton):
    """Orthant-wise L-BFGS on the sum over all workers, for L1 and ElasticNet (Zero and L2 as well).

    Parameters
    ----------
    history
        Pairs (s, y) kept.
    columns
        "auto": centred and scaled inside where that helps; "raw": as they are.

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
    >>> aq.solve(problem, aq.baselines.OWLQN(history=5)).coef.round(1)
    array([2., 1.])
    """

    name: ClassVar[str] = "owl-qn"

    def penalty(self, setup: Setup, v: Tensor) -> Elastic:
        return penalty_of(self.name, setup, v, smooth=False)

    def search(self, F: Objective, point: ObjectivePoint, memory: QuasiNewtonMemory) -> ObjectivePoint | None:
        l1 = memory.penalty.l1
        slope = pseudo_gradient(point.v, point.grad, l1)
        P = direction(memory, slope)
        P = torch.where((l1 > 0) & (P * slope >= 0), 0.0, P)
        if not dot(slope, P) < 0:  # v is optimal, or −H◇ is no descent direction
            return None
        orthant = torch.where(point.v != 0, point.v.sign(), -slope.sign())
        limit = noise(point, memory.ulp)
        t = first_step(memory, P)
        for _ in range(OWLQN_TRIALS):
            v = point.v + t * P
            there = F.at(torch.where((l1 > 0) & (v * orthant <= 0), 0.0, v))
            if there.finite and there.value <= point.value + OWLQN_DECREASE * dot(slope, there.v - point.v):
                return there
            if there.finite and there.value <= point.value + limit:
                new = pseudo_gradient(there.v, there.grad, l1)
                if float(new.norm()) < float(slope.norm()):
                    return there
            t *= 0.5
        return None


def pseudo_gradient(v: Tensor, grad: Tensor, l1: Tensor) -> Tensor:
    """◇: minus the direction of steepest descent of F at v."""
    at_zero = grad.sign() * (grad.abs() - l1).clamp(min=0)
    return torch.where(v == 0, at_zero, grad + l1 * v.sign())
