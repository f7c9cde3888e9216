"""L-BFGS that starts from the weights of AUQ-LR: the same curvature, without ADMM around it (S12).

    minimise over v   F(v) = Σ_j f_j(v) + l2/2‖v‖²
    P = −H∇F(v),   v ← v + tP,   H built from the pairs on top of (K + l2 I)⁻¹,   K = Σ_j W_j

Line search, pairs and rounds are those of L-BFGS. W_j is made as in `methods/auq_lr/method.py` and sent likewise: the
directions once, the rest whenever renewed, with the sums of the point that it belongs to. No worker knows then whether
the line search will take this point, so in an iteration with new weights each trial sends them: bytes, no round.
New weights replace the matrix under the pairs, and the pairs stay: they are valid for F whatever the initial matrix.

Every W_j includes its share l2/N already, so l2 counts twice. K⁻¹ alone was tried: on the workloads of `benchmarks/` it
took up to two fifths fewer rounds on the digits, and up to a fifth more on MNIST, which takes more rounds.

Reference: J. Nocedal, S. J. Wright, Numerical Optimization, 2nd ed., section 7.2, on H_k⁰; the weights as in
`curvature/posterior.py`.

Shapes: N blocks, m features, C columns, r directions; v, P, ∇F (m, C), U (N, m, r).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from auqadmm.baselines.objective import Objective, ObjectivePoint, Sums, dot, summands
from auqadmm.baselines.quasi_newton import LBFGS, QuasiNewtonMemory, direction, started
from auqadmm.checks import at_least_one, is_number
from auqadmm.core.reduce import Reduce
from auqadmm.core.state import ROUND_COST, Blocks, Consensus, Setup, State
from auqadmm.curvature.posterior import Posterior, second_wins, typical_curvature
from auqadmm.errors import InputError
from auqadmm.methods.auq_lr.blocks import directions, first_parts, next_parts, unpacked
from auqadmm.methods.auq_lr.method import AUQLR, curvature_of, posterior_for
from auqadmm.metrics.lowrank import LowRank
from auqadmm.metrics.vstep import LowRankMetric
from auqadmm.problem.regularizers import Regularizer

if TYPE_CHECKING:
    from auqadmm.blocks.shard import Shard


# ---------------------------------------------------------------------- on the workers
@dataclass(frozen=True)
class WeightsQuery:
    """One evaluation: f_j and its gradient, and the server's queries about the weights.

    `renew`: weights at v. `look_ahead`: would new ones differ by `skip`? `contest`: is another way to make them better?
    """

    posterior: Posterior
    typical: float
    skip: float
    scoring: bool
    renew: bool = False
    look_ahead: bool = False
    contest: Posterior | None = None

    def __call__(self, shard: Shard, blocks: Blocks | None, v: Tensor) -> tuple[Blocks, Sums]:
        u = shard.expand(v)
        point = shard.linearize(u)
        sums = summands(shard, point, self.scoring)
        U = self.posterior.directions(shard, v) if blocks is None else blocks.memory["U"]
        W: Any = None if blocks is None else blocks.W
        if self.renew:
            W = self.posterior.weights(shard, v, U, W, self.typical)
        if self.look_ahead:
            sums["stale"] = self._stale(shard, v, U, W, first=blocks is None)
        if self.contest is not None:
            sums["contest"] = torch.stack([p.unexplained(shard, v, U) for p in (self.posterior, self.contest)])
        failed = torch.zeros(shard.blocks, dtype=torch.bool, device=shard.device)
        # at a solution the local gradients are the multipliers: so a result can start ADMM
        return Blocks(u, point.grad, W, failed, {"U": U}), sums

    def _stale(self, shard: Shard, v: Tensor, U: Tensor, W: LowRank, first: bool) -> Tensor:
        if first:  # v is about to move: weights stay valid only where curvature is constant
            return torch.tensor(float(not shard.loss.quadratic), dtype=torch.float64, device=shard.device)
        new = self.posterior.weights(shard, v, U, W, self.typical)
        return (new.change(W) >= self.skip).sum().double()


# ---------------------------------------------------------------------- replicated
@dataclass(frozen=True)
class MetricInverse:
    """(K + l2 I)⁻¹, applied to (1, m, C); unpenalised rows have no l2."""

    metric: LowRankMetric
    g: Regularizer

    def __call__(self, q: Tensor) -> Tensor:
        return self.metric.solve(self.g, q[0]).v[None]


@dataclass(frozen=True)
class WeightedPoint(ObjectivePoint):
    """A point together with its query results: the blocks' state, the parts of new weights, the other answers."""

    visit: WeightsQuery | None = None
    blocks: Any = None
    parts: Mapping[str, Tensor] | None = None
    stale: bool = False
    turn: bool = False


@dataclass(frozen=True)
class PreconditionedMemory(QuasiNewtonMemory):
    """The memory of L-BFGS; besides, the last `visit`, its answers, and the directions of all blocks."""

    visit: WeightsQuery | None = None
    U: Tensor | None = None
    stale: bool = False
    turn: bool = False


@dataclass(frozen=True)
class WeightedObjective(Objective):
    """F, and with each point the weights there, if they are due."""

    visit: WeightsQuery | None = None
    blocks: Any = None

    def at(self, v: Tensor) -> WeightedPoint:
        """One round."""
        visit, cost = self.visit, self.reduce.cost(hvps=0)
        assert visit is not None
        blocks, sums = self.reduce(visit, self.blocks, v, down=(v,))
        pack = first_parts if self.blocks is None else next_parts
        return WeightedPoint(
            **vars(self.point(v, sums, cost)),
            visit=visit,
            blocks=blocks,
            parts=self.reduce.concat(pack, blocks) if visit.renew else None,
            stale="stale" in sums and float(sums["stale"]) > 0,
            turn="contest" in sums and second_wins(sums["contest"], visit.posterior.blocks * v.shape[0]),
        )


# ---------------------------------------------------------------------- the method
@dataclass(frozen=True)
class PreconditionedLBFGS(LBFGS):
    """L-BFGS on the sum over all workers, preconditioned with low-rank uncertainty weights; g must be smooth.

    Parameters
    ----------
    history
        Pairs (s, y) kept.
    rank
        Directions kept per block, as in AUQ-LR: at most a quarter of its rows; "auto": as many as pay for themselves.
    refresh
        Iterations whose directions use renewed weights.
    skip
        Weights that changed by less than this, relatively, are kept.
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
    >>> aq.solve(problem, aq.baselines.PreconditionedLBFGS(history=5)).coef.round(1)
    array([2., 1.])
    """

    rank: int | str = "auto"
    refresh: tuple[int, ...] = (2, 4, 8, 16, 32)
    skip: float = 0.1
    name: ClassVar[str] = "lbfgs-w"

    def __post_init__(self) -> None:
        super().__post_init__()
        AUQLR(rank=self.rank)  # rejects an invalid rank
        if not isinstance(self.refresh, tuple | list):
            raise InputError(f"refresh must be a tuple of iterations, got {self.refresh!r}.")
        for k in self.refresh:
            at_least_one("refresh", k)
        if not (is_number(self.skip) and self.skip >= 0):
            raise InputError(f"skip must be a number ≥ 0, got {self.skip!r}.")

    def init(self, setup: Setup, reduce: Reduce) -> State:
        v = setup.first_v()
        penalty = self.penalty(setup, v)
        l2 = curvature_of(setup.regularizer)
        posterior = posterior_for(self.rank, l2, setup, ROUND_COST)
        typical = 0.0
        if l2 == 0:  # only then may a block without rows get zero weight
            typical = float(reduce(typical_curvature, None, v)[1]["mean"]) / setup.blocks
        cosines = None if setup.image is None else replace(posterior, image=setup.image)
        look_ahead = 2 in self.refresh
        visit = WeightsQuery(
            posterior, typical, self.skip, setup.scoring, renew=True, look_ahead=look_ahead, contest=cosines
        )
        point = WeightedObjective(reduce, setup.regularizer, penalty, setup.scoring, visit).at(v)
        memory = PreconditionedMemory(point, self.no_pairs(v), penalty, setup.precision)
        return State(point.blocks, started(setup, point, _memory_after(memory, point, setup)))

    def objective(self, shared: Consensus, blocks: Any, reduce: Reduce) -> WeightedObjective:
        """F; W_j is renewed at the v from which iteration k + 1 starts. Whether it is stale is known from before."""
        setup, memory, k = shared.setup, shared.memory, shared.iteration + 1
        last = memory.visit
        visit = replace(
            last,
            posterior=last.contest if memory.turn else last.posterior,
            renew=memory.turn or (k + 1 in self.refresh and memory.stale),
            look_ahead=k + 2 in self.refresh,
            contest=None,
        )
        return WeightedObjective(reduce, setup.regularizer, memory.penalty, setup.scoring, visit, blocks)

    def arrived(self, state: State, there: WeightedPoint, memory: PreconditionedMemory) -> State:
        """The matrix is a model of the Hessian: its predicted decrease tells when a verdict is worthwhile."""
        memory = replace(_memory_after(memory, there, state.shared.setup), ahead=None)
        P = direction(memory, there.grad)
        new = super().arrived(state, there, replace(memory, ahead=P))
        promised = -0.5 * dot(there.grad, P)
        cornered = getattr(state.shared.setup.loss, "cornered", False)  # curvature jumps: the prediction is too small
        return State(there.blocks, replace(new.shared, predicted=promised if promised >= 0 and not cornered else None))


def _memory_after(memory: PreconditionedMemory, there: WeightedPoint, setup: Setup) -> PreconditionedMemory:
    """Update from an accepted point: new weights replace the initial matrix under the pairs."""
    U, initial, visit = memory.U, memory.initial, there.visit
    assert visit is not None
    if there.parts is not None:
        U = directions(there.parts) if U is None else U
        weights = unpacked(U, there.parts, setup.columns, visit.posterior.basis(there.v))
        initial = MetricInverse(LowRankMetric(weights), setup.regularizer)
    point = replace(there, blocks=None, parts=None)
    return replace(memory, point=point, initial=initial, visit=visit, U=U, stale=there.stale, turn=there.turn)
