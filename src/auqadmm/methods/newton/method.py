"""Proximal Newton on sums: few rounds, whatever the split of the rows, and only sums over sites are sent.

    d ← argmin g(v + d) + ⟨G, d⟩ + ½⟨d, Hd⟩           at the server, on all unknowns or a working set (`working_set`)
    v ← v + td,  t = 1 if F falls by 10⁻⁴ of the linear model's decrease; else the t of a fan at which F is least

One round sums value, gradient and Hessian at v + d, and the values of the fan: the next step reuses the
sums of this test. A rejected step takes one more round. Where the fan found twice the step to be clearly
better, the next one is doubled. Losses with corners are eased at first, and a third as much after every accepted step,
or two thirds where steps were rejected; their curvature goes by a dual variable of each row, which follows from the
points that were visited (blocks/curvature.py), and by the Hessian itself near the optimum. For squares the Hessian is
summed once, column by column as the working set grows.

Columns are centred inside (verdict/queries.py), so that neither means nor units of columns matter; v, multipliers and
certificates are the user's. Descent and convergence: docs/theory.md.

What a round sums, over all rows and nothing of a single site, in double precision (blocks/exact.py):

    up     f, ∇f and the Hessian of some unknowns at v, each once; f alone at v_old + t·d for every t of a fan;
           rounding errors of f and of δ; for a duality gap Σφ*(rφ′) of a few scales r, and Σxθ and Σφ*(rθ) of
           the slopes θ that the step predicts
    down   v and d; where the loss has corners, the points before v

Where corners are eased on the way, f, ∇f and the Hessian are those of the eased loss, the fan that of the one before,
and value and gradient of the loss itself are sent too.

References: J. D. Lee, Y. Sun, M. A. Saunders, Proximal Newton-type methods for minimizing composite functions, SIAM J.
Optim. 24, 2014.

Shapes: m features, C columns; v, G, d (m, C); index flat.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from auqadmm.blocks.curvature import Visited
from auqadmm.checks import round_cost
from auqadmm.core.reduce import B, Reduce, Sums
from auqadmm.core.state import ROUND_COST, Consensus, Cost, Setup, State
from auqadmm.errors import InputError
from auqadmm.methods.newton.model import NewtonStep, into_domain
from auqadmm.methods.newton.state import NewtonState, drop_screened, state_from_sums
from auqadmm.methods.newton.working_set import (
    Movers,
    affordable,
    chosen,
    columns_independent,
    coupled_groups,
    everything,
    full_hessian_numbers,
    scales,
    some_rest,
)
from auqadmm.verdict.queries import ColumnMoments, NullQuery, moments

if TYPE_CHECKING:
    from auqadmm.blocks.shard import Shard
    from auqadmm.problem.regularizers import Regularizer

# Chosen, not measured one by one; rounds with all of them as they are: results/rounds and results/auto, method newton.
FAN = (2.0, 1.0, 0.5, 0.25, 0.1, 0.03, 0.01, 0.001)  # step lengths that are tried in one round
DECREASE = 1e-4  # of the decrease that the linear model predicts
FORESEEN_DECREASE = 0.1  # of F: steps that predict no larger decrease have slopes accurate enough to send
DOUBTFUL = 10.0  # times the last promise: what the Hessian itself predicts at corners is not believed beyond
NEARER = 0.1  # a Hessian that was not believed: the next one is asked for that much nearer to the optimum
CLEARLY = 0.1  # better at twice the step: share of the decrease
TIGHTER, SLOWER = 0.35, 0.7  # corners after an accepted step; and after a rejected one
WIDTH_STEPS = 12  # steps at one width: then corners get narrower all the same; F may have no minimum
VANISHED_LOSS = 1e-9  # of the null model: less loss than that, and the Hessian itself is summed, for the reason why
CLOSE = (0.5, 0.1)  # of F: corners get narrower where no larger decrease is predicted; once they were widened
FARAWAY = 0.03, 1e-3  # of F: corners are widened where a rejected step predicted more, and a part of it gained more
WIDER, WIDENINGS = 3.0, 10  # times as wide; how often
LAST_EASE = 1.5  # corners that are no wider than this many times are as wide as asked for
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
        v = setup.first_v()
        if setup.warm is None and setup.intercept:  # the best constant is a better start than zero
            v = columns.outside(torch.cat([v[:-1], columns.null.to(v)]))
        if setup.warm is not None:  # columns of zeros are determined by g alone
            rest = setup.regularizer.prox(setup.zeros(), torch.ones_like(v))
            v = torch.where(columns.empty.to(v.device)[:, None], rest, v)
        inside = columns.inside(v)
        index = self._first(setup, columns, inside)
        cost = reduce.cost(hvps=0)
        ease = _easing(setup, columns) if setup.warm is None else 1.0
        spread = columns.spread if 0 < setup.loss.concordance < math.inf else None
        complete = self._complete(setup)
        aside = _aside(setup, complete)
        some = () if complete else scales(setup.regularizer, setup.loss, inside)
        exact = not setup.loss.kinked or setup.warm is not None
        ask = NewtonQuery(
            columns.centre, index, None, (), spread if complete else None, columns.null, aside, ease, ease, some,
            visited=None if exact else Visited(inside[None][:0], (), ()),
        )  # fmt: skip
        sums = reduce(ask, None, (inside, None), down=(inside,))[1]
        at = NewtonState(
            columns, inside, 0.0, 0.0, inside, {}, sums["noise"], sums["floor"], index, null=sums["null"], ease=ease,
            eased=ease > 1, tighter=TIGHTER, least=affordable(self.round_cost),
            apart=columns_independent(setup.loss, setup.columns), complete=complete, scales=some, exact=exact,
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
        if setup.loss.kinked and current.exact and current.move(setup).delta > DOUBTFUL * current.promised:
            current = self._smoothed(current, setup, reduce)
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
        easier = current.ease
        close = move.delta <= CLOSE[min(current.widened, 1)] * abs(current.F) or current.kept_widths(WIDTH_STEPS)
        if current.shrink == 1 and close:
            easier = _narrower(current.tighter * current.ease)
        fan = () if setup.loss.quadratic else tuple(current.shrink * t for t in FAN)
        x, penalty = _along(g, current, move, full)
        v, inside = _outside(columns, x)
        index = self._next(current, setup, inside)
        cost = reduce.cost(hvps=0)
        offsets = tuple(t - full for t in fan)
        foreseen = full == 1 and current.exact and move.linear <= FORESEEN_DECREASE * abs(current.F)
        near = easier == 1 and (move.delta <= current.near * abs(current.F) or current.vanished(VANISHED_LOSS))
        ahead = current.ahead(full, near, move.delta) if setup.loss.kinked else current
        sums = self._ask(ahead, setup, reduce, inside, move.d, index, offsets, easier, current.ease, foreseen)
        values = {t: float(f) for t, f in zip(fan, sums.get("fan", ()), strict=True)}
        values.setdefault(full, float(sums["f"]))
        F = {t: f + (penalty if t == full else _along(g, current, move, t)[1]) for t, f in values.items()}
        slack = NEWTON_NOISE * float(current.noise + torch.where(sums["noise"].isfinite(), sums["noise"], 0.0))
        good = {t for t, x in F.items() if x <= current.F - DECREASE * t * move.linear + slack}
        if full in good:
            twice = F.get(2 * full, math.inf)
            longer = current.shrink == 1 and (not setup.loss.kinked or current.kept_widths(WIDTH_STEPS // 2))
            stretch = 2.0 if longer and twice < F[full] - CLEARLY * (current.F - F[full]) else 1.0
            tighter = max(TIGHTER, SLOWER * current.tighter)
            new = replace(
                ahead, ease=easier, tighter=tighter, stretch=stretch, shrink=1.0, fell=max(current.F - F[full], 0.0)
            )
            return v, state_from_sums(new, setup, inside, sums, index), cost
        good -= {t for t in good if not F[t] < current.F}  # a smaller step must lower F, not only not raise it
        if not good:
            return v, None, cost
        t = min(good, key=lambda t: F[t])
        v, inside = _outside(columns, _along(g, current, move, t)[0])
        index = self._next(current, setup, inside)
        cost = reduce.cost(hvps=0)
        ease, widened = self._rejected(current, setup, move, current.F - F[t])
        if setup.loss.kinked:
            ahead = current.ahead(t, False, move.delta)
        sums = self._ask(ahead, setup, reduce, inside, None, index, (), ease, ease)
        new = replace(
            ahead,
            ease=ease,
            widened=widened,
            eased=True,
            tighter=SLOWER,
            stretch=1.0,
            shrink=1.0,
            fell=max(current.F - F[t], 0.0),
        )
        return v, state_from_sums(new, setup, inside, sums, index), cost

    def _rejected(self, current: NewtonState, setup: Setup, move: NewtonStep, fell: float) -> tuple[float, int]:
        """How wide corners are after a rejected step, and how often they were widened."""
        first = _easing(setup, current.columns)
        if not current.eased:  # a warm start that was far from the optimum
            return first, current.widened
        far = move.delta > FARAWAY[0] * abs(current.F) and fell > FARAWAY[1] * abs(current.F)
        if far and current.ease < first and current.widened < WIDENINGS:
            return min(first, WIDER * current.ease), current.widened + 1
        return current.ease, current.widened

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
        """One round at `inside`, `current` on its way there; for squares only products not yet known."""
        known = None
        if current.gram is not None:
            index, known = drop_screened(index, current.index), current.index
        aside = current.aside is not None
        visited = None if current.exact else current.visited()
        ask = NewtonQuery(
            current.columns.centre, index, known, fan, None, None, aside, ease, eased, current.scales, foreseen, visited
        )
        down = (inside,) if d is None else (inside, d)
        if visited is not None:
            down = (*down, visited.points)
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
            movers,
            coupled_groups(setup.regularizer, inside.shape, inside.device),
            affordable(self.round_cost),
            setup.columns,
        )

    def _complete(self, setup: Setup) -> bool:
        """Is the Hessian of all unknowns formed? Not where g keeps most of many at their kinks."""
        shape = (setup.features, setup.columns)
        if some_rest(setup.regularizer, setup.loss, shape, self.round_cost):
            return False
        size, n = full_hessian_numbers(setup.loss, shape), setup.unknowns
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
        return chosen(
            movers, coupled_groups(setup.regularizer, inside.shape, inside.device), current.least, setup.columns
        )

    def _wider(self, current: NewtonState, setup: Setup, reduce: Reduce) -> NewtonState:
        """One more round at the same point, for unknowns that would move farther than all in the working set."""
        index = chosen(
            current.movers(setup),
            coupled_groups(setup.regularizer, current.inside.shape, current.inside.device),
            current.least,
            setup.columns,
        )
        sums = self._ask(current, setup, reduce, current.inside, None, index, (), current.ease, current.ease)
        return state_from_sums(current, setup, current.inside, sums, index)

    def _smoothed(self, current: NewtonState, setup: Setup, reduce: Reduce) -> NewtonState:
        """One more round at the same point, for curvature that the path makes smooth: that of the loss itself has too
        few rows at their corners."""
        index, ease = current.index, current.ease
        current = replace(current, exact=False, near=NEARER * current.near)
        sums = self._ask(current, setup, reduce, current.inside, None, index, (), ease, ease)
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


def _narrower(ease: float) -> float:
    """No step for the last bit of it."""
    return ease if ease > LAST_EASE else 1.0


def _easing(setup: Setup, columns: ColumnMoments) -> float:
    """How many times as wide corners are at first."""
    return setup.loss.easing(columns.target_spread if setup.intercept else columns.target_size)


def _aside(setup: Setup, complete: bool) -> bool:
    """Are the products of all columns with the intercept worth sending? A duality gap needs them."""
    return setup.intercept and setup.columns == 1 and not complete and hasattr(setup.loss, "row_value")


# ---------------------------------------------------------------------- one round


@dataclass(frozen=True)
class NewtonQuery:
    """The query. `index`: unknowns whose Hessian is needed, `known`: those already sent (squares);
    `aside`: are products with the intercept needed; `ease` and `eased`: how many times as wide corners are now, and
    were when d was computed; `foreseen`: whether to send slopes predicted by d's model; `visited`: the points that make
    the curvature at corners smooth, None for the Hessian itself."""

    centre: Tensor | None
    index: Tensor
    known: Tensor | None = None
    fan: tuple[float, ...] = ()
    spread: Tensor | None = None
    null: Tensor | None = None
    aside: bool = False
    ease: float = 1.0
    eased: float = 1.0
    scales: tuple[float, ...] = ()
    foreseen: bool = False
    visited: Visited | None = None

    def __call__(self, shard: Shard, blocks: B, points: tuple[Tensor, Tensor | None]) -> tuple[B, Sums]:
        v, index, loss = points[0].to(shard.device), self.index.to(shard.device), shard.loss
        d, known = (None if x is None else x.to(shard.device) for x in (points[1], self.known))
        now = shard.exact(self.centre, loss.eased(self.ease) if self.ease > 1 else None)
        same = self.eased == self.ease
        scales = self.scales if self.ease == 1 else ()
        foreseen = self.foreseen and same and bool(scales)
        sums = now.step(v, d, self.fan if same else (), index, known, scales, self.aside, foreseen, self.visited)
        if not same:
            before = shard.exact(self.centre, loss.eased(self.eased))
            sums["fan"] = before.step(v, d, self.fan, index[:0], None)["fan"]
        if self.ease > 1:
            plain = shard.exact(self.centre).step(v, None, (), index[:0], None)
            sums |= {"plain_f": plain["f"], "plain_G": plain["G"]}
        if self.spread is not None:
            sums["reach"] = now.reach_apart(self.spread.to(shard.device))
        if self.null is not None:
            sums |= NullQuery(self.null)(shard, None, v)[1]
        return blocks, sums
