"""L-BFGS, and OWL-QN for an l1 term: pairs (s, y), a direction, a search, and what happens when a search fails.

    minimise over v   F(v) = Σ_j f_j(v) + l1‖v‖₁ + l2/2‖v‖²
    P = −H∇F,   v⁺ = a point on the search path of P that lowers F,   s = v⁺ − v,   y = ∇⁺ − ∇ of the smooth part

H is replicated: every process holds the pairs. One reduction per trial point, one trial in most iterations. A failed
search is repeated once without pairs, along the steepest descent. If that fails too, v is optimal to rounding: it
stays, and later iterations cost nothing.

L-BFGS, for l1 = 0: v ← v + tP, t by the strong Wolfe conditions (wolfe.py), 1 tried first.

OWL-QN:

    ◇    the pseudo-gradient: ∇ + l1·sign(v) where v ≠ 0, else the slope of the side on which F falls, or 0
    P    −H◇, entries set to 0 that do not point along −◇
    ξ    sign(v), where v = 0 sign(−◇): the orthant to stay in
    v ←  π(v + tP),  π sets entries that leave the orthant to exactly 0,
         t = 1, ½, ¼, … until F(v⁺) ≤ F(v) + c₁⟨◇, v⁺ − v⟩

Rows without an l1 term (an intercept) have no orthant: P and v are not projected there. The pairs come from the
gradient of the smooth part, which leaves l1 out. Where differences of F are below rounding, ‖◇‖ has to fall.

Reference: J. Nocedal, S. J. Wright, Numerical Optimization, 2nd ed., algorithms 7.4 and 7.5; D. C. Liu, J. Nocedal, On
the limited memory BFGS method for large scale optimization, 1989; G. Andrew, J. Gao, Scalable training of
L1-regularized log-linear models, 2007.

Shapes: m features, C columns, h pairs; v, P, ◇, ξ, gradients (m, C); pairs carry a leading axis of length 1.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from auqadmm.baselines import wolfe
from auqadmm.baselines.objective import (
    OBJECTIVE_ULPS,
    Elastic,
    Objective,
    ObjectivePoint,
    advance,
    dot,
    elastic,
    spoiled,
    stay,
)
from auqadmm.core.reduce import Reduce
from auqadmm.core.state import Consensus, Setup, State
from auqadmm.errors import InputError
from auqadmm.local.inverse_hessian import Pairs
from auqadmm.methods.checks import at_least_one, one_of

OWLQN_DECREASE = 1e-4  # of the slope, that F must fall by: the usual constant of Armijo's rule
OWLQN_TRIALS = 25  # step lengths of one search, each a round


@dataclass(frozen=True)
class QuasiNewtonMemory:
    """Replicated: F at v, the pairs, the penalty row by row, an ulp of the blocks' arithmetic.

    `initial` applies H₀, by default γI. `ahead`: −H∇F, where it is known already.
    """

    point: ObjectivePoint
    pairs: Pairs
    penalty: Elastic
    ulp: float
    fresh: bool = True
    stalled: bool = False
    initial: Callable[[Tensor], Tensor] | None = None
    ahead: Tensor | None = None


@dataclass(frozen=True)
class QuasiNewton(ABC):
    """Base of the limited-memory methods.

    Parameters
    ----------
    history
        Pairs (s, y) kept.
    columns
        "auto": centred and scaled inside where that helps (`columns.py`); "raw": as they are.
    """

    history: int = 10
    columns: str = field(default="auto", kw_only=True)
    name: ClassVar[str] = ""
    smooth: ClassVar[bool] = True  # must g be?

    def __post_init__(self) -> None:
        at_least_one("history", self.history)
        one_of("columns", self.columns, ("auto", "raw"))

    def penalty(self, setup: Setup, v: Tensor) -> Elastic:
        """The strengths of g, or a ValueError that names a method for this g."""
        strengths, g = elastic(setup.regularizer, v), setup.regularizer
        if strengths is not None and (strengths.smooth or not self.smooth):
            return strengths
        while hasattr(g, "inner"):
            g = g.inner
        if self.smooth:
            able = "a smooth regularizer: Zero, L2, or ElasticNet with l1 = 0"
            other = "'fista'" if strengths is None else "'owl-qn' or 'fista'"
        else:
            able, other = "Zero, L1, L2 or ElasticNet", "'fista'"
        raise InputError(f"{self.name!r} needs {able}; got {type(g).__name__}. Use {other} instead.")

    @abstractmethod
    def search(self, F: Objective, point: ObjectivePoint, memory: QuasiNewtonMemory) -> ObjectivePoint | None:
        """A better point on the path of −H∇F; None if there is none. At most a fixed number of rounds."""

    def init(self, setup: Setup, reduce: Reduce) -> State:
        v = setup.first_v()
        penalty = self.penalty(setup, v)
        point = Objective(reduce, setup.regularizer, penalty, setup.scoring).at(v)
        memory = QuasiNewtonMemory(point, self.no_pairs(v), penalty, setup.precision)
        return State(None, started(setup, point, memory))

    def step(self, state: State, reduce: Reduce) -> State:
        memory = state.shared.memory
        point = memory.point
        if not point.finite:
            return spoiled(state, reduce.cost(hvps=0))
        if memory.stalled:
            return stay(state, reduce.cost(hvps=0), memory)
        F = self.objective(state.shared, state.blocks, reduce)
        there = self.search(F, point, memory)
        if there is None and not memory.fresh:
            memory = replace(memory, pairs=self.no_pairs(point.v), fresh=True, ahead=None)
            there = self.search(F, point, memory)
        if there is None:
            return stay(state, reduce.cost(hvps=0), replace(memory, stalled=True))
        return self.arrived(state, there, _update_pairs(memory, there))

    def objective(self, shared: Consensus, blocks: Any, reduce: Reduce) -> Objective:
        """F as this iteration evaluates it."""
        setup = shared.setup
        return Objective(reduce, setup.regularizer, shared.memory.penalty, setup.scoring)

    def arrived(self, state: State, there: Any, memory: Any) -> State:
        """The state at the new point."""
        return advance(state, there.v, there.cost, memory, there.scored)

    def no_pairs(self, v: Tensor) -> Pairs:
        return Pairs.none(self.history, v.new_ones(1), v[None])


def started(setup: Setup, point: ObjectivePoint, memory: QuasiNewtonMemory) -> Consensus:
    """The replicated state before the first iteration."""
    return Consensus(setup=setup, iteration=0, v=point.v, cost=point.cost, memory=memory, scored=point.scored)


def direction(memory: QuasiNewtonMemory, grad: Tensor) -> Tensor:
    """−H∇F; without pairs and an `initial` matrix the steepest descent."""
    if memory.ahead is not None:
        return memory.ahead
    return -memory.pairs.apply(grad[None], memory.initial)[0]


def first_step(memory: QuasiNewtonMemory, P: Tensor) -> float:
    """1; at most a step of norm 1 as long as the scale is unknown."""
    length = float(P.norm())
    unknown = memory.fresh and memory.initial is None
    return min(1.0, 1.0 / length) if unknown and length > 0 else 1.0


def noise(point: ObjectivePoint, ulp: float) -> float:
    """Differences of F up to this are rounding."""
    return OBJECTIVE_ULPS * ulp * abs(point.value)


def _update_pairs(memory: QuasiNewtonMemory, there: ObjectivePoint) -> QuasiNewtonMemory:
    s, y = there.v - memory.point.v, there.grad - memory.point.grad
    # F is convex, so ⟨s,y⟩ ≥ 0; a pair without curvature, or at rounding level, is skipped
    keep = dot(s, y) > torch.finfo(y.dtype).eps * float(s.norm() * y.norm())
    if not keep:
        return replace(memory, point=there)
    pairs = memory.pairs.push(s[None], y[None], torch.ones(1, dtype=torch.bool, device=s.device))
    return replace(memory, point=there, pairs=pairs, fresh=False)


# ---------------------------------------------------------------------- L-BFGS


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


# ---------------------------------------------------------------------- OWL-QN


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
    smooth: ClassVar[bool] = False

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
