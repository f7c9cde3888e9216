"""L-BFGS, and OWL-QN for an l1 term: pairs (s, y), a direction, a search, and what happens when a search fails.

The search of L-BFGS, a step length for a descent direction by the strong Wolfe conditions:

    φ(t) = F(v + tP), φ'(0) < 0        φ(t) ≤ φ(0) + c₁tφ'(0)   and   |φ'(t)| ≤ c₂|φ'(0)|

`lo` is the best end of the bracket so far: it has sufficient decrease and φ falls from it towards `hi`; as long as
there is no `hi`, steps grow. New trials are minimisers of cubics, kept away from the ends of the bracket.

Values of F near its minimum agree to all digits while slopes still differ. Where a difference of values
is within `noise`, sufficient decrease is therefore tested by the slope: φ'(t) ≤ (2c₁ − 1)φ'(0), which for a parabola
is the same condition.

Around it:

    minimise over v   F(v) = Σ_j f_j(v) + l1‖v‖₁ + l2/2‖v‖²
    P = −H∇F,   v⁺ = a point on the search path of P that lowers F,   s = v⁺ − v,   y = ∇⁺ − ∇ of the smooth part

H is replicated: every process holds the pairs. One reduction per trial point, one trial in most iterations. A failed
search is repeated once without pairs, along the steepest descent. If that fails too, v is optimal to rounding: it
stays, and later iterations cost nothing.

L-BFGS, for l1 = 0: v ← v + tP, t by the strong Wolfe conditions, 1 tried first.

OWL-QN:

    ◇    the pseudo-gradient: ∇ + l1·sign(v) where v ≠ 0, else the slope of the side on which F falls, or 0
    P    −H◇, entries set to 0 that do not point along −◇
    ξ    sign(v), where v = 0 sign(−◇): the orthant to stay in
    v ←  π(v + tP),  π sets entries that leave the orthant to exactly 0,
         t = 1, ½, ¼, … until F(v⁺) ≤ F(v) + c₁⟨◇, v⁺ − v⟩

Rows without an l1 term (an intercept) have no orthant: P and v are not projected there. The pairs come from the
gradient of the smooth part, which leaves l1 out. Where differences of F are below rounding, ‖◇‖ has to fall.

Reference: J. Nocedal, S. J. Wright, Numerical Optimization, 2nd ed., algorithms 3.5 and 3.6; for the slopes
W. W. Hager, H. Zhang, SIAM J. Optim. 16 (2005), section 1.

Reference: J. Nocedal, S. J. Wright, Numerical Optimization, 2nd ed., algorithms 7.4 and 7.5; D. C. Liu, J. Nocedal, On
the limited memory BFGS method for large scale optimization, 1989; G. Andrew, J. Gao, Scalable training of
L1-regularized log-linear models, 2007.

Shapes: m features, C columns, h pairs; v, P, ◇, ξ, gradients (m, C); pairs carry a leading axis of length 1.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from auqadmm.baselines.objective import (
    OBJECTIVE_ULPS,
    Elastic,
    Objective,
    ObjectivePoint,
    advance,
    diverged,
    dot,
    elastic,
    unchanged,
)
from auqadmm.checks import at_least_one, one_of
from auqadmm.core.reduce import Reduce
from auqadmm.core.state import Consensus, Setup, State
from auqadmm.errors import InputError
from auqadmm.local.lbfgs import Pairs

WOLFE_DECREASE = 1e-4  # c₁ of Wolfe's conditions, as in Nocedal and Wright, section 3.1
C2 = 0.9  # c₂ of the curvature condition, the usual one of quasi-Newton methods
WOLFE_TRIALS = 25  # step lengths of one search, each a round
GROW = (1.1, 4.0)  # how far past `lo` the next trial is while there is no upper end, in lengths of the last step
INSIDE = 0.1  # the share of a bracket that a trial keeps from either end
WOLFE_SHRINK = 0.66  # a bracket that two trials did not cut to this share is halved


@dataclass(frozen=True)
class Trial:
    """φ(t) and φ'(t); `at` is the caller's data for this t."""

    t: float
    value: float
    slope: float
    at: Any = None

    @property
    def finite(self) -> bool:
        return math.isfinite(self.value) and math.isfinite(self.slope)


def search(
    phi: Callable[[float], Trial], start: Trial, first: float, noise: float = 0.0, trials: int = WOLFE_TRIALS
) -> tuple[Trial | None, bool]:
    """Find a Wolfe step.

    Parameters
    ----------
    phi
        Evaluates a trial; called at most `trials` times.
    start
        φ at t = 0, with φ'(0) < 0.
    first
        The first trial.
    noise
        Differences of values up to this are rounding.

    Returns
    -------
    Trial or None, bool
        The last trial and True; or, where no trial was a Wolfe step, the lowest one below φ(0) (None if there is
        none) and False.
    """
    lo, before, hi, best = start, start, None, None
    t, widths = first, [math.inf, math.inf]
    for _ in range(trials):
        trial = phi(t)
        if trial.finite and trial.value < (start if best is None else best).value:
            best = trial
        if not _low(trial, start, noise) or trial.value > lo.value + noise:
            hi = trial
        elif abs(trial.slope) <= C2 * abs(start.slope):
            return trial, True
        else:
            end = math.inf if hi is None else hi.t
            if trial.slope * (end - lo.t) >= 0:  # the minimum lies between them, and the trial is the better end
                hi = lo
            before, lo = lo, trial
        if hi is None:
            t = _ahead(before, lo, noise)
        else:
            width = abs(hi.t - lo.t)
            # the ends are neighbours in floating point, or a step overflowed: stop
            if not math.ulp(lo.t) < width < math.inf:
                break
            t = _between(lo, hi, noise, halve=width > WOLFE_SHRINK * widths[-2])
            widths.append(width)
    return best, False


def _low(trial: Trial, start: Trial, noise: float) -> bool:
    """Sufficient decrease; False for a trial that overflowed, which went too far."""
    if not trial.finite:
        return False
    if trial.value <= start.value + WOLFE_DECREASE * trial.t * start.slope:
        return True
    return abs(trial.value - start.value) <= noise and trial.slope <= (2 * WOLFE_DECREASE - 1) * start.slope


def _ahead(before: Trial, lo: Trial, noise: float) -> float:
    """φ still falls at `lo`: further on, by the cubic where it has a minimum."""
    stride = lo.t - before.t
    least, most = (lo.t + share * stride for share in GROW)
    t = _minimiser(before, lo, noise)
    return min(max(t, least), most) if t > lo.t else most  # minimum behind `lo`, or NaN: φ is concave there


def _between(lo: Trial, hi: Trial, noise: float, halve: bool) -> float:
    width = hi.t - lo.t
    if not hi.finite:  # only says that it is too far
        return lo.t + INSIDE * width
    share = 0.5 if halve else (_minimiser(lo, hi, noise) - lo.t) / width
    # NaN: neither the cubic nor the secant has a minimum
    return lo.t + (min(max(share, INSIDE), 1 - INSIDE) if math.isfinite(share) else 0.5) * width


def _minimiser(a: Trial, b: Trial, noise: float) -> float:
    """Of the cubic through both values and slopes; of the parabola through both slopes where values are noise."""
    width = b.t - a.t
    bend = b.slope - a.slope
    if abs(b.value - a.value) <= noise:
        return a.t - a.slope * width / bend if bend != 0 else math.nan  # equal slopes: a line
    d1 = a.slope + b.slope - 3 * (b.value - a.value) / width
    square = d1 * d1 - a.slope * b.slope
    if not square >= 0:  # the cubic is monotone (also refuses NaN from an overflow)
        return math.nan
    d2 = math.copysign(math.sqrt(square), width)
    below = bend + 2 * d2
    return b.t - width * (b.slope + d2 - d1) / below if below != 0 else math.nan  # a line


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
            return diverged(state, reduce.cost(hvps=0))
        if memory.stalled:
            return unchanged(state, reduce.cost(hvps=0), memory)
        F = self.objective(state.shared, state.blocks, reduce)
        there = self.search(F, point, memory)
        if there is None and not memory.fresh:
            memory = replace(memory, pairs=self.no_pairs(point.v), fresh=True, ahead=None)
            there = self.search(F, point, memory)
        if there is None:
            return unchanged(state, reduce.cost(hvps=0), replace(memory, stalled=True))
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

        def phi(t: float) -> Trial:
            there = F.at(point.v + t * P)
            return Trial(t, there.value, dot(there.grad, P), there)

        start = Trial(0.0, point.value, slope, point)
        trial, good = search(phi, start, first_step(memory, P), noise(point, memory.ulp))
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
