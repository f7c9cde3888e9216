"""What L-BFGS and OWL-QN share: pairs (s, y), a direction, a search, and what happens when a search fails.

    P = −H∇F,   v⁺ = a point on the search path of P that lowers F,   s = v⁺ − v,   y = ∇⁺ − ∇ of the smooth part

A failed search is repeated once without pairs, along the steepest descent. If that fails too, v is
optimal to rounding: it stays, and later iterations cost nothing.

Reference: J. Nocedal, S. J. Wright, Numerical Optimization, 2nd ed., algorithms 7.4 and 7.5.

Shapes: m features, C columns, h pairs; v, gradients (m, C); pairs carry a leading axis of length 1.
"""

from __future__ import annotations

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
    dot,
    elastic,
    first_point,
    spoiled,
    stay,
)
from auqadmm.core.reduce import Reduce
from auqadmm.core.state import Consensus, Setup, State
from auqadmm.errors import InputError
from auqadmm.local.pairs import Pairs
from auqadmm.methods.checks import at_least_one, one_of


@dataclass(frozen=True)
class QuasiNewtonMemory:
    """Replicated: F at v, the pairs, the penalty row by row, an ulp of the blocks' arithmetic.

    `initial` applies H₀, by default γI. `ahead`: −H∇F, where it is known already.
    """

    here: ObjectivePoint
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
        "auto": centred and scaled inside where that helps (`columns/method.py`); "raw": as they are.
    """

    history: int = 10
    columns: str = field(default="auto", kw_only=True)
    name: ClassVar[str] = ""

    def __post_init__(self) -> None:
        at_least_one("history", self.history)
        one_of("columns", self.columns, ("auto", "raw"))

    @abstractmethod
    def penalty(self, setup: Setup, v: Tensor) -> Elastic:
        """The strengths of g, or a ValueError that names a method for this g."""

    @abstractmethod
    def search(self, F: Objective, point: ObjectivePoint, memory: QuasiNewtonMemory) -> ObjectivePoint | None:
        """A better point on the path of −H∇F; None if there is none. At most a fixed number of rounds."""

    def init(self, setup: Setup, reduce: Reduce) -> State:
        v = first_point(setup)
        penalty = self.penalty(setup, v)
        point = Objective(reduce, setup.regularizer, penalty, setup.scoring).at(v)
        memory = QuasiNewtonMemory(point, self.no_pairs(v), penalty, setup.precision)
        return State(None, started(setup, point, memory))

    def step(self, state: State, reduce: Reduce) -> State:
        memory = state.shared.memory
        point = memory.here
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


def penalty_of(name: str, setup: Setup, v: Tensor, smooth: bool) -> Elastic:
    """The strengths of g, refused where the method cannot handle them."""
    strengths = elastic(setup.regularizer, v)
    if strengths is not None and (strengths.smooth or not smooth):
        return strengths
    g = setup.regularizer
    while hasattr(g, "inner"):
        g = g.inner
    if smooth:
        able = "a smooth regularizer: Zero, L2, or ElasticNet with l1 = 0"
        other = "'fista'" if strengths is None else "'owl-qn' or 'fista'"
    else:
        able, other = "Zero, L1, L2 or ElasticNet", "'fista'"
    raise InputError(f"{name!r} needs {able}; got {type(g).__name__}. Use {other} instead.")


def _update_pairs(memory: QuasiNewtonMemory, there: ObjectivePoint) -> QuasiNewtonMemory:
    s, y = there.v - memory.here.v, there.grad - memory.here.grad
    # F is convex, so ⟨s,y⟩ ≥ 0; a pair without curvature, or at rounding level, is skipped
    keep = dot(s, y) > torch.finfo(y.dtype).eps * float(s.norm() * y.norm())
    if not keep:
        return replace(memory, here=there)
    pairs = memory.pairs.push(s[None], y[None], torch.ones(1, dtype=torch.bool, device=s.device))
    return replace(memory, here=there, pairs=pairs, fresh=False)
