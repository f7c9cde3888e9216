"""Proximal Newton on sums: few rounds, whatever the split of the rows, and only sums over sites are sent.

    d ← argmin g(v + d) + ⟨G, d⟩ + ½⟨d, Hd⟩           at the server, on all unknowns or a working set (`working_set`)
    v ← v + td,  t = 1 if F falls by 10⁻⁴ of the linear model's decrease; else the t of a fan at which F is least

One round sums value, gradient and Hessian at v + d, and the values of the fan: the next step reuses the
sums of this test. A rejected step takes one more round. Where the fan found twice the step to be clearly
better, the next one is doubled. Losses with corners are eased at first, and a third as much after every accepted step,
or two thirds where steps were rejected. For squares the Hessian is summed once, column by column as the working
set grows.

Columns are centred inside, so that neither means nor units of columns matter; v, multipliers and certificates are the
user's. Descent and convergence: docs/theory.md.

References: J. D. Lee, Y. Sun, M. A. Saunders, Proximal Newton-type methods for minimizing composite functions, SIAM J.
Optim. 24, 2014.

Shapes: m features, C columns; v, G, d (m, C).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from auqadmm.core.reduce import Reduce
from auqadmm.core.state import ROUND_COST, Consensus, Cost, Setup, State
from auqadmm.errors import InputError
from auqadmm.methods.checks import round_cost
from auqadmm.methods.newton.dual import scales
from auqadmm.methods.newton.model import NewtonStep, into_domain
from auqadmm.methods.newton.query import NewtonQuery
from auqadmm.methods.newton.state import NewtonState
from auqadmm.methods.newton.sums import drop_screened, state_from_sums
from auqadmm.methods.newton.working_set import (
    Movers,
    affordable,
    apart,
    chosen,
    everything,
    some_rest,
    together,
    whole,
)
from auqadmm.verdict.moments import ColumnMoments
from auqadmm.verdict.queries import moments

if TYPE_CHECKING:
    from auqadmm.problem.regularizers import Regularizer

FAN = (2.0, 1.0, 0.5, 0.25, 0.1, 0.03, 0.01, 0.001)
DECREASE = 1e-4  # of the decrease that the linear model predicts
FORESEEN_DECREASE = 0.1  # of F: steps that predict no larger decrease have slopes accurate enough to send
CLEARLY = 0.1  # better at twice the step: share of the decrease
TIGHTER, SLOWER = 0.35, 0.7  # corners after an accepted step; and after a rejected one
TRIES = 4  # fans, each a thousand times as small
NEWTON_NOISE = 4.0  # rounding errors of F that a difference may be off by
HESSIAN_ROOM = 2**27  # numbers of a Hessian


@dataclass(frozen=True)
class Newton:
    """Proximal Newton with the exact Hessian of the sum.

    Its rounds do not depend on how rows are split, nor on scales and means of columns. One round sends n(n + 1)/2
    numbers for n unknowns (with l1, group lasso or bounds: of the working set), so it is for few unknowns, few active
    ones, or dear rounds.

    Parameters
    ----------
    round_cost
        What a round costs beside the numbers it carries, in numbers: working sets have at least as many unknowns as
        make a round twice as dear.

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
    >>> aq.solve(problem, aq.methods.Newton()).coef.round(1)
    array([2., 1.])
    """

    round_cost: float = ROUND_COST
    name: ClassVar[str] = "newton"

    def __post_init__(self) -> None:
        round_cost(self.round_cost)

    def init(self, setup: Setup, reduce: Reduce) -> State:
        columns = setup.seen
        if columns is None:
            columns = ColumnMoments.of(reduce.once(moments), setup.intercept, setup.loss, setup.columns)
        zero = torch.zeros(setup.features, setup.columns, dtype=torch.float64, device=setup.device)
        v = zero if setup.warm is None else setup.warm.v.to(zero)
        if setup.warm is None and setup.intercept:  # the best constant is a better start than zero
            v = columns.outside(torch.cat([v[:-1], columns.null.to(v)]))
        if setup.warm is not None:  # columns of zeros are determined by g alone
            rest = setup.regularizer.prox(zero, torch.ones_like(zero))
            v = torch.where(columns.empty.to(v.device)[:, None], rest, v)
        inside = columns.inside(v)
        index = self._first(setup, columns, inside)
        cost = reduce.cost(hvps=0)
        ease = _easing(setup, columns) if setup.warm is None else 1.0
        spread = columns.spread if 0 < setup.loss.concordance < math.inf else None
        complete = self._complete(setup)
        aside = _aside(setup, complete)
        some = () if complete else scales(setup.regularizer, setup.loss, inside)
        ask = NewtonQuery(
            columns.centre, index, None, (), spread if complete else None, columns.null, aside, ease, ease, some
        )
        sums = reduce(ask, None, (inside, None), down=(inside,))[1]
        at = NewtonState(
            columns, inside, 0.0, 0.0, inside, {}, sums["noise"], sums["floor"], index, null=sums["null"], ease=ease,
            eased=ease > 1, tighter=TIGHTER, least=affordable(self.round_cost),
            apart=apart(setup.loss, setup.columns), complete=complete, scales=some,
        )  # fmt: skip
        return State(None, self._shared(setup, 0, v, state_from_sums(at, setup, inside, sums, index), cost))

    def step(self, state: State, reduce: Reduce) -> State:
        old, current = state.shared, state.shared.memory
        setup = old.setup
        if not current.finite:
            return State(None, replace(old, iteration=old.iteration + 1, v=torch.full_like(old.v, math.nan)))
        if current.stalled:
            return State(None, self._shared(setup, old.iteration + 1, old.v, current, reduce.cost(hvps=0), old))
        if not current.complete and current.movers(setup).outside(current.index):
            current = self._wider(current, setup, reduce)
        for _ in range(TRIES):
            v, there, cost = self._tried(current, setup, reduce)
            if there is not None:
                return State(None, self._shared(setup, old.iteration + 1, v, there, cost, old))
            current = replace(current, shrink=current.shrink * FAN[-1], stretch=1.0)
            if current.move(setup).linear <= NEWTON_NOISE * float(current.noise):
                break
        return State(None, self._shared(setup, old.iteration + 1, old.v, current.rest(), reduce.cost(hvps=0), old))

    # ------------------------------------------------------------------ one step
    def _tried(self, current: NewtonState, setup: Setup, reduce: Reduce) -> tuple[Tensor, NewtonState | None, Cost]:
        """A step along d that lowers F, in one round or two; None if no t of the fan does."""
        columns, move, g = current.columns, current.move(setup), setup.regularizer
        full = current.stretch * current.shrink
        easier = max(1.0, current.tighter * current.ease) if current.shrink == 1 else current.ease
        fan = () if setup.loss.quadratic else tuple(current.shrink * t for t in FAN)
        x, penalty = _along(g, current, move, full)
        v, inside = _outside(columns, x)
        index = self._next(current, setup, inside)
        cost = reduce.cost(hvps=0)
        offsets = tuple(t - full for t in fan)
        foreseen = full == 1 and move.linear <= FORESEEN_DECREASE * abs(current.F)
        sums = self._ask(current, setup, reduce, inside, move.d, index, offsets, easier, current.ease, foreseen)
        values = {t: float(f) for t, f in zip(fan, sums.get("fan", ()), strict=True)}
        values.setdefault(full, float(sums["f"]))
        F = {t: f + (penalty if t == full else _along(g, current, move, t)[1]) for t, f in values.items()}
        slack = NEWTON_NOISE * float(current.noise + torch.where(sums["noise"].isfinite(), sums["noise"], 0.0))
        good = {t for t, x in F.items() if x <= current.F - DECREASE * t * move.linear + slack}
        if full in good:
            twice = F.get(2 * full, math.inf)
            stretch = 2.0 if twice < F[full] - CLEARLY * (current.F - F[full]) and current.shrink == 1 else 1.0
            tighter = max(TIGHTER, SLOWER * current.tighter)
            new = replace(
                current, ease=easier, tighter=tighter, stretch=stretch, shrink=1.0, fell=max(current.F - F[full], 0.0)
            )
            return v, state_from_sums(new, setup, inside, sums, index), cost
        good -= {t for t in good if not F[t] < current.F}  # a smaller step must lower F, not only not raise it
        if not good:
            return v, None, cost
        t = min(good, key=lambda t: F[t])
        v, inside = _outside(columns, _along(g, current, move, t)[0])
        index = self._next(current, setup, inside)
        cost = reduce.cost(hvps=0)
        ease = current.ease if current.eased else _easing(setup, columns)  # a warm start that was far from the optimum
        sums = self._ask(current, setup, reduce, inside, None, index, (), ease, ease)
        new = replace(
            current,
            ease=ease,
            eased=True,
            tighter=SLOWER,
            stretch=1.0,
            shrink=1.0,
            fell=max(current.F - F[t], 0.0),
        )
        return v, state_from_sums(new, setup, inside, sums, index), cost

    def _ask(
        self,
        current: NewtonState,
        setup: Setup,
        reduce: Reduce,
        inside: Tensor,
        d: Tensor | None,
        index: Tensor,
        fan: tuple[float, ...],
        ease: float,
        eased: float,
        foreseen: bool = False,
    ) -> dict[str, Tensor]:
        """One round at `inside`; for squares only products not yet known."""
        known = None
        if current.gram is not None:
            index, known = drop_screened(index, current.index), current.index
        aside = current.aside is not None
        ask = NewtonQuery(
            current.columns.centre, index, known, fan, None, None, aside, ease, eased, current.scales, foreseen
        )
        down = (inside,) if d is None else (inside, d)
        if not current.complete:  # workers need the index of the working set
            down = (*down, index)
        return reduce(ask, None, (inside, d), down=down)[1]

    # ------------------------------------------------------------------ the working set
    def _first(self, setup: Setup, columns: ColumnMoments, inside: Tensor) -> Tensor:
        """Of the first round: all unknowns, or by the gradient of round 0."""
        free = ~columns.empty.to(inside.device)[:, None].expand(inside.shape)
        if self._complete(setup):
            return everything((setup.features, setup.columns), free)
        G = columns.slopes(columns.start.to(inside))
        D = columns.spread.to(inside)[:, None].expand(inside.shape)
        movers = Movers.at(setup.regularizer, inside, G, D, free)
        return chosen(
            movers, together(setup.regularizer, inside.shape, inside.device), affordable(self.round_cost), setup.columns
        )

    def _complete(self, setup: Setup) -> bool:
        """Is the Hessian of all unknowns formed? Not where g keeps most of many at their kinks."""
        shape = (setup.features, setup.columns)
        if some_rest(setup.regularizer, setup.loss, shape, self.round_cost):
            return False
        size, n = whole(setup.loss, shape), setup.unknowns
        if size > HESSIAN_ROOM:
            raise InputError(
                f"'newton' would send {size:.1e} numbers a round for {n} unknowns, none of which this regularizer sets "
                "to zero; use 'auq-lr' or 'lbfgs' instead."
            )
        return True

    def _next(self, current: NewtonState, setup: Setup, inside: Tensor) -> Tensor:
        """Of the round at `inside`: its support, and those that would move farthest by the current gradient."""
        if current.complete:
            return current.index
        movers = current.movers(setup)
        rest = setup.regularizer.prox(torch.zeros_like(inside), torch.ones_like(inside))
        movers = replace(movers, support=(inside != rest) & current.free)
        return chosen(movers, together(setup.regularizer, inside.shape, inside.device), current.least, setup.columns)

    def _wider(self, current: NewtonState, setup: Setup, reduce: Reduce) -> NewtonState:
        """One more round at the same point, for unknowns that would move farther than all in the working set."""
        index = chosen(
            current.movers(setup),
            together(setup.regularizer, current.inside.shape, current.inside.device),
            current.least,
            setup.columns,
        )
        sums = self._ask(current, setup, reduce, current.inside, None, index, (), current.ease, current.ease)
        return state_from_sums(current, setup, current.inside, sums, index)

    # ------------------------------------------------------------------ bookkeeping
    def _shared(
        self, setup: Setup, k: int, v: Tensor, current: NewtonState, cost: Cost, old: Consensus | None = None
    ) -> Consensus:
        finite = current.finite
        return Consensus(
            setup=setup,
            iteration=k,
            v=v,
            v_prev=None if old is None else old.v,
            cost=cost,
            memory=current,
            scored=current.scored if setup.scoring else None,
            predicted=current.expected(setup) if finite and setup.scoring else None,
        )


def _along(g: Regularizer, current: NewtonState, move: NewtonStep, t: float) -> tuple[Tensor, float]:
    """v + td, and g there; between v and v + d rounding may not leave the domain of g."""
    x = current.inside + t * move.d
    return into_domain(g, x) if t <= 1 else (x, float(g.value(x)))


def _outside(columns: ColumnMoments, inside: Tensor) -> tuple[Tensor, Tensor]:
    """v in the user's columns, and the same point in centred columns, exactly."""
    v = columns.outside(inside)
    return v, columns.inside(v)


def _easing(setup: Setup, columns: ColumnMoments) -> float:
    """How many times as wide corners are at first."""
    return setup.loss.easing(columns.target_spread if setup.intercept else columns.target_size)


def _aside(setup: Setup, complete: bool) -> bool:
    """Are the products of all columns with the intercept worth sending? A duality gap needs them."""
    return setup.intercept and setup.columns == 1 and not complete and hasattr(setup.loss, "row_value")
