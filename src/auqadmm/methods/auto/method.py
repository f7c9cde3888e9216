"""`auto`: the method that should cost least, monitored, and replaced where it costs more than expected.

A method is left when
    F has not fallen below its best for a few iterations, local solves take too much, or v is NaN or infinite;
    its working set has grown so much that the next Hessian would cost more than all of another method;
    by how its steps shrink, the rest would cost more than all of another, or take AUQ-LR longer than L-BFGS with W;
    it has cost twice what was expected of it, and more than all of another, and so would the rest.
Newton's method decreases F in every iteration and converges however hard the problem: not left otherwise. The next one
starts from the best v so far (with λ_j = −∇f_j(v), where it has multipliers), in the same run; where that one fails,
one that was left for a cheaper one may return.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar
from uuid import uuid4

from torch import Tensor

from auqadmm.checks import round_cost
from auqadmm.columns import InColumns, InnerReduce, in_columns
from auqadmm.core.reduce import Reduce
from auqadmm.core.state import Consensus, Setup, State, WarmStart
from auqadmm.methods.auto.cost import ROUND_COST, CostEstimate, estimates, facts_of
from auqadmm.methods.newton.working_set import SET_GROWTH, numbers

# Chosen, not measured one by one; what `auto` costs with all of them as they are: results/auto.
AUTO_PATIENCE = 3  # iterations without progress, or too hard, before another method takes over
RATE_LEAST, RATE_MOST = 8, 16  # iterations that a rate is measured over, at least and at most
AUTO_START = 6  # iterations in which a method may be worse than the one before
GOAL = 1e-7  # of F: where runs are expected to end
HARD = 50  # Hessian products of a block in one iteration, on average; at the bound it is too hard in any case
# of the rounds of L-BFGS with weights: it continues from AUQ-LR's iterate, so that a switch costs nothing
FEWER_ROUNDS = 0.8
# of its expected cost: no switch before, nor before a good part of the other one's cost is spent
BEFORE_LEAVING = 1.0
NEAR_BEST = 1e-3  # of F, above the best so far: still progressing
TWICE = 2.0  # the expected cost: a method that took more may be left
DEARER = 3.0  # the remaining cost of a method over all of another's


REST, DEAR, LONGER = "the rest would cost more", "it has cost more than another would", "the rest would take longer"
ACTIVE = "too many unknowns are active"
PROMISED = (REST, DEAR, LONGER, ACTIVE)  # reasons to leave a method that did not fail


@dataclass(frozen=True)
class Auto:
    """The method of least expected cost, and a switch to another where it costs more.

    Parameters
    ----------
    round_cost
        What a round costs beside the numbers it carries, in numbers.

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
    >>> aq.solve(problem, aq.methods.Auto(round_cost=4000)).coef.round(1)
    array([2., 1.])
    """

    round_cost: float = ROUND_COST
    _run: str = field(default_factory=lambda: uuid4().hex, init=False, repr=False, compare=False)
    _made: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    _known: list[Any] = field(default_factory=list, init=False, repr=False, compare=False)
    name: ClassVar[str] = "auto"

    def __post_init__(self) -> None:
        round_cost(self.round_cost)

    def init(self, setup: Setup, reduce: Reduce) -> State:
        first = self._estimates(setup)[0]
        state = self._method(first.method).init(setup, reduce)
        plan = AutoPlan(first.method, state.shared.memory)
        return State(state.blocks, replace(state.shared, memory=plan))

    def step(self, state: State, reduce: Reduce) -> State:
        shared, plan = state.shared, state.shared.memory
        inner = replace(shared, iteration=shared.iteration - plan.first, memory=plan.inner)
        new = self._method(plan.method).step(State(state.blocks, inner), reduce)
        k = shared.iteration + 1
        plan = _observe(plan, new.shared)
        why, other = self._left(plan, new.shared)
        cost = replace(new.shared.cost, hvps=new.shared.cost.hvps + plan.before)
        if other is None:
            return State(new.blocks, replace(new.shared, iteration=k, cost=cost, memory=plan))
        v = plan.best_v if plan.best_v is not None else shared.v
        up = new.shared.cost.up // 8
        change = Change(k, plan.method, other.method, why, new.shared.cost.rounds, up)
        setup = shared.setup
        begun = self._method(other.method).init(replace(setup, warm=WarmStart(v)), reduce)
        plan = AutoPlan(
            other.method, begun.shared.memory, k, reduce.traffic.rounds, reduce.traffic.up // 8, plan.best, plan.best_v,
            before=cost.hvps, changes=(*plan.changes, change),
        )  # fmt: skip
        fresh = replace(begun.shared, setup=setup, iteration=k, v_prev=shared.v, cost=cost, memory=plan)
        return State(begun.blocks, fresh)

    # ------------------------------------------------------------------ decisions
    def _estimates(self, setup: Setup) -> tuple[CostEstimate, ...]:
        if not self._known or self._known[0] is not setup:
            self._known[:] = [setup, estimates(facts_of(setup), self.round_cost)]
        known: tuple[CostEstimate, ...] = self._known[1]
        return known

    def _left(self, plan: AutoPlan, shared: Consensus) -> tuple[str, CostEstimate | None]:
        """Why to leave the method, and for which one; None: keep it."""
        tried = {plan.method, *(c.old for c in plan.changes)}
        known = self._estimates(shared.setup)
        others = [e for e in known if e.method not in tried]
        if plan.best_v is None:
            return "", None
        if plan.method != "newton":
            instead = self._instead(plan, known, others)
            if instead is not None and (why := _failure(plan, shared)):
                return why, instead
        if not others:
            return "", None
        if plan.method == "newton":
            dear = _next_hessian(plan.inner) > others[0].cost(self.round_cost)
            return (ACTIVE, others[0]) if dear else ("", None)
        mine = next(e for e in known if e.method == plan.method)
        spent = (shared.cost.rounds - plan.rounds) * self.round_cost + shared.cost.up / 8 - plan.numbers
        if plan.method == "lbfgs-w":  # would lose the weights that it gains by
            others = [e for e in others if e.method != "lbfgs"]
            if not others:
                return "", None
        ahead, other = _iterations_left(plan), others[0]
        rest = _remaining_cost(plan, spent, shared.iteration)
        if (plan.method, other.method) == ("auq-lr", "lbfgs-w") and (ahead or 0.0) > FEWER_ROUNDS * other.rounds:
            return LONGER, other
        least = max(BEFORE_LEAVING * mine.cost(self.round_cost), other.cost(self.round_cost) / DEARER)
        if spent > least and (rest or 0.0) > DEARER * other.cost(self.round_cost):
            return REST, other
        dear = spent > TWICE * mine.cost(self.round_cost) and spent > other.cost(self.round_cost)
        if dear and (rest is None or rest > other.cost(self.round_cost)):
            return DEAR, other
        return "", None

    def _instead(
        self, plan: AutoPlan, known: tuple[CostEstimate, ...], others: list[CostEstimate]
    ) -> CostEstimate | None:
        """The cheapest method that has not been tried, or that was left, once, for a cheaper estimate: its remaining
        cost was more than the other's."""
        cost = {e.method: e.cost(self.round_cost) for e in known}
        prices = {e.method: cost[e.method] for e in others}
        begun = [c.new for c in plan.changes]
        for change in plan.changes:
            if change.why in PROMISED and change.old not in begun and change.old != plan.method:
                prices[change.old] = max(cost[change.old], DEARER * cost[change.new])
        least = min(prices, key=prices.__getitem__, default=None)
        return next((e for e in known if e.method == least), None)

    def _method(self, name: str) -> Any:
        from auqadmm import baselines, methods  # late: they import this module

        if name not in self._made:
            method = methods.resolve(name, {**methods.KNOWN, **baselines.KNOWN})
            if hasattr(method, "round_cost"):
                method = replace(method, round_cost=self.round_cost)
            self._made[name] = method if name == "newton" else in_columns(method, self._run)
        return self._made[name]

    # ------------------------------------------------------------------ data in other columns (`inside`)
    def view(self, reduce: Reduce) -> Reduce:
        """The reductions of a run whose columns the method centred and scaled: its maps get such a shard.

        Parameters
        ----------
        reduce
            Reductions over the blocks as the problem has them.

        Returns
        -------
        Reduce
            The same traffic, counted once.
        """
        return InnerReduce(reduce, self._run)

    def resume(self, shared: Consensus, reduce: Reduce) -> None:
        """Centre and scale the columns of the blocks again, before a saved state is put in place.

        Parameters
        ----------
        shared
            The replicated half of the saved state.
        reduce
            Reductions of the run that goes on.
        """
        plan = shared.memory
        if isinstance(method := self._method(plan.method), InColumns):
            method.resume(replace(shared, memory=plan.inner), reduce)

    def leave(self, reduce: Reduce) -> None:
        """Drop what blocks store for this run alone: their data in other columns.

        Parameters
        ----------
        reduce
            Reductions of the run that ends.
        """
        for method in self._made.values():
            if isinstance(method, InColumns):
                method.leave(reduce)

    # ------------------------------------------------------------------ for people
    def named(self, state: State) -> str:
        """The method that runs.

        Parameters
        ----------
        state
            Of the run, after any iteration.

        Returns
        -------
        str
            Its name, as `solve(method=…)` takes it.
        """
        return state.shared.memory.method

    def chosen(self, state: State) -> Choice:
        """What was chosen, and why.

        Parameters
        ----------
        state
            Of the run, after any iteration.

        Returns
        -------
        Choice
            Estimates, changes and a sentence, without the rounds that a whole run took.
        """
        plan, setup = state.shared.memory, state.shared.setup
        known = self._estimates(setup)
        names = [c.old for c in plan.changes] + [plan.method]
        reason = next(e.why for e in known if e.method == names[0])
        for change in plan.changes:
            reason += f"; after iteration {change.iteration} {change.new}, {change.why}"
        screened = getattr(plan.inner, "screened", 0)
        return Choice(plan.method, names[0], reason, known, plan.changes, self.round_cost, screened=screened)


def _observe(plan: AutoPlan, shared: Consensus) -> AutoPlan:
    """With the products, the objective and the expected decrease of the new iterate."""
    hard = shared.inner_failures > 0 or shared.hvps - plan.hvps > HARD * shared.setup.blocks
    hard = hard and not shared.setup.loss.cornered  # whose active rows change: many products, and few rounds
    plan = replace(plan, inner=shared.memory, hvps=shared.hvps, hard=plan.hard + 1 if hard else 0)
    sums = shared.scored
    if sums is None:
        return plan
    F = float(sums["f"]) + float(shared.setup.regularizer.value(shared.v))
    better = math.isfinite(F) and plan.best > F
    delta = shared.predicted
    if delta is None and better and math.isfinite(plan.best):
        delta = plan.best - F  # shrinks with the gap
    expected = plan.expected if delta is None else (*plan.expected, delta / max(abs(F), 1e-300))[-RATE_MOST:]
    if better:
        return replace(plan, best=F, best_v=shared.v, waited=0, expected=expected)
    near = math.isfinite(F) and F - plan.best <= NEAR_BEST * abs(plan.best)
    new = shared.iteration <= AUTO_START and bool(plan.changes)
    return replace(plan, waited=plan.waited if near or new else plan.waited + 1, expected=expected)


def _failure(plan: AutoPlan, shared: Consensus) -> str:
    """Why a method has failed; empty: it has not."""
    if not bool(shared.v.isfinite().all()) or shared.not_finite:
        return "numbers that are not finite"
    if plan.waited >= AUTO_PATIENCE:
        return f"no progress in {AUTO_PATIENCE} iterations"
    return "local problems are too hard" if plan.hard >= AUTO_PATIENCE else ""


def _next_hessian(newton: Any) -> float:
    """Numbers that a working set of Newton's method will send next, if that is what it has."""
    if getattr(newton, "complete", True) or newton.stalled:
        return 0.0
    active = int((newton.inside != 0).sum())
    known = len(newton.index) if newton.gram is not None else 0
    return numbers(min(int(SET_GROWTH * active), newton.inside.numel())) - numbers(known)


def _remaining_cost(plan: AutoPlan, spent: float, iterations: int) -> float | None:
    """The remaining cost of the method; None: not known yet."""
    ahead = _iterations_left(plan)
    return None if ahead is None else spent / max(iterations, 1) * ahead


def _iterations_left(plan: AutoPlan) -> float | None:
    """Remaining iterations, by how fast expected decreases shrink; None: not known yet."""
    seen = [x for x in plan.expected if 0 < x < math.inf]
    if len(seen) < RATE_LEAST:
        return None
    logs, middle = [math.log(x) for x in seen], (len(seen) - 1) / 2
    slope = sum((k - middle) * y for k, y in enumerate(logs)) / sum((k - middle) ** 2 for k in range(len(logs)))
    left = sum(logs) / len(logs) + slope * middle - math.log(GOAL)
    if left <= 0:
        return 0.0
    return math.inf if slope >= 0 else left / -slope


# ---------------------------------------------------------------------- decisions, and their outcome


@dataclass(frozen=True)
class Change:
    """After an iteration: from one method to another, why, and the traffic until then."""

    iteration: int
    old: str
    new: str
    why: str
    rounds: int
    numbers: int


@dataclass(frozen=True)
class AutoPlan:
    """Replicated. The method that runs, since which iteration and at which cost, with its own memory; the best point so
    far; Hessian products now and of methods before; how much F was expected to fall, iteration by iteration; and every
    change."""

    method: str
    inner: Any
    first: int = 0
    rounds: int = 0
    numbers: int = 0
    best: float = float("inf")
    best_v: Tensor | None = None
    waited: int = 0
    hard: int = 0
    hvps: int = 0
    before: int = 0
    expected: tuple[float, ...] = ()
    changes: tuple[Change, ...] = ()

    @property
    def exactly(self) -> Any:
        """The method's own sums at v (`Consensus.exactly`)."""
        return getattr(self.inner, "exactly", None)

    @property
    def still(self) -> bool:
        """Whether it cannot progress (`Consensus.still`)."""
        return getattr(self.inner, "still", False)


@dataclass(frozen=True)
class Choice:
    """What `auto` chose and why; `explain()` puts estimates beside what happened.

    Attributes
    ----------
    method, first
        The method that the run ended with, and the one it began with.
    reason
        In one line.
    estimates
        Rounds and numbers that were expected, the cheapest first.
    changes
        Of method, during the run.
    round_cost
        What a round costs beside the numbers it carries, in numbers.
    rounds, numbers
        What it took.
    screened
        Unknowns that a duality gap of Newton's method proved to be zero on the way.
    """

    method: str
    first: str
    reason: str
    estimates: tuple[CostEstimate, ...]
    changes: tuple[Change, ...]
    round_cost: float
    rounds: int = 0
    numbers: int = 0
    screened: int = 0

    def explain(self) -> str:
        """A table: estimates, and what happened."""
        lines = [f"{'method':<12}{'rounds':>9}{'numbers':>14}{'cost':>14}   why"]
        for e in self.estimates:
            cost = e.cost(self.round_cost)
            lines.append(f"{e.method:<12}{e.rounds:>9.0f}{e.numbers:>14.3g}{cost:>14.3g}   {e.why}")
        cost = self.rounds * self.round_cost + self.numbers
        lines.append(f"{'happened':<12}{self.rounds:>9}{self.numbers:>14.3g}{cost:>14.3g}   {self.reason}")
        lines += [f"after iteration {c.iteration}: {c.old} → {c.new}, {c.why}" for c in self.changes]
        if self.screened:
            lines.append(f"{self.screened} unknowns were proved to be zero on the way")
        return "\n".join(lines)
