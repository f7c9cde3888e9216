"""Distributed L-BFGS for a smooth objective.

    minimise over v   F(v) = Σ_j f_j(v) + l2/2‖v‖²
    P = −H∇F(v),   v ← v + tP,   t by the strong Wolfe conditions, 1 tried first

H is replicated: every process holds the pairs. One reduction per trial point, one trial in most iterations.

Reference: D. C. Liu, J. Nocedal, On the limited memory BFGS method for large scale optimization, 1989.

Shapes: m features, C columns; v, P, ∇F (m, C).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from auqadmm.baselines import wolfe
from auqadmm.baselines.objective import Elastic, Objective, ObjectivePoint, dot
from auqadmm.baselines.quasi_newton import QuasiNewton, QuasiNewtonMemory, direction, first_step, noise, penalty_of
from auqadmm.core.state import Setup


@dataclass(frozen=True)
class LBFGS(QuasiNewton):
    """L-BFGS on the sum over all workers; g must be smooth: Zero, L2, or ElasticNet with l1 = 0.

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
    >>> aq.solve(problem, aq.baselines.LBFGS(history=5)).coef.round(1)
    array([2., 1.])
    """

    name: ClassVar[str] = "lbfgs"

    def penalty(self, setup: Setup, v: Tensor) -> Elastic:
        return penalty_of(self.name, setup, v, smooth=True)

    def search(self, F: Objective, point: ObjectivePoint, memory: QuasiNewtonMemory) -> ObjectivePoint | None:
        P = direction(memory, point.grad)
        slope = dot(point.grad, P)
        if not slope < 0:  # ∇F = 0, or pairs so ill-conditioned that −H∇F is an ascent direction
            return None

        def phi(t: float) -> wolfe.Trial:
            there = F.at(point.v + t * P)
            return wolfe.Trial(t, there.value, dot(there.grad, P), there)

        start = wolfe.Trial(0.0, point.value, slope, point)
        trial, good = wolfe.search(phi, start, first_step(memory, P), noise(point, memory.ulp))
        if trial is None:
            return None
        # an earlier trial may turn out best only at the end of the search
        return trial.at if good else replace(trial.at, cost=F.reduce.cost(hvps=0))
