"""AUQ-LR: weights that keep the low-rank factor of the curvature, over-relaxed and accelerated (S12).

    W_j = (U_j M_j U_jᵀ + diag d_j) ⊗ S_j + φ_j I      the precision of block j's posterior, the prior shared equally;
                                                       classes that interact stay coupled in the directions

The iteration is S2 written on z_j = W_j v − λ_j. One round:

    server   v ← argmin g(v) + ½⟨v, Kv⟩ − ⟨Σ_j z_j, v⟩,  K = Σ_j W_j
    blocks   u_j from a local solve in the metric W_j, T z_j = z_j + αW_j(u_j − v)          (blocks.py)
    server   Anderson on z, from scalars; Σ_j z_j follows from Σ_j T z_j  (server.py)

In the metric W = H the reflected resolvent of a quadratic f vanishes, so α near 2 makes this Newton's method.
Weights are renewed at iterations 2, 4, 7, …, 1024 if they changed by a tenth (server.py): finitely often, so
S8 applies. What blocks send of them is in blocks.py, what is proved in docs/theory.md.

Shapes: N blocks, m features, C columns, r directions per block; v and sums over blocks (m, C).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from auqadmm.blocks.rows import RowLoss
from auqadmm.checks import at_least_one, is_number, one_of, relaxation, round_cost, whole_number
from auqadmm.core.consensus import start_blocks
from auqadmm.core.reduce import Reduce, failed_blocks
from auqadmm.core.state import ROUND_COST, Blocks, Consensus, Residuals, Setup, State
from auqadmm.curvature.posterior import Posterior, second_wins, typical_curvature
from auqadmm.errors import InputError
from auqadmm.methods.auq_lr.blocks import BlockRound, Directive, directions, first_parts, next_parts, unpacked
from auqadmm.methods.auq_lr.server import (
    EPSILON,
    Anderson,
    D,
    RoundSums,
    Schedule,
    ServerState,
    first_z,
    next_z,
    tolerance,
    watch_objective,
)
from auqadmm.metrics.lowrank import LowRank
from auqadmm.metrics.vstep import LowRankMetric
from auqadmm.problem.wrappers import ScaledRegularizer

if TYPE_CHECKING:
    from auqadmm.blocks.loss import Loss
    from auqadmm.problem.regularizers import Regularizer

# Factors are geometric means over the runs of results/ablation, by the name of the switch there; the rest was chosen,
# not measured by itself.
ALPHA = 1.8  # over-relaxation: with 1.6 rounds × 1.01 (alpha-1.6), with 1 rounds × 1.14 (alpha-1)
DIRECTIONS_BYTES = 2**30  # memory that the directions of all blocks may take on the server
MOST_DIRECTIONS = 140  # directions that a block may keep from the start: without a limit rounds × 1.00 (no-cap)
# rounds that a factor e of coupled directions saves, twice what images show with 30 to 140 of them: cost is flat there,
# and more directions also save products; how often weights are sent; what renewing them may cost
COUPLING_WORTH, COUPLING_RENEWALS, COUPLING_PRODUCTS = 17.0, 5, 180
# products of a block in a local solve: runs that converge take fewer than 80; one class and a weak ridge ever more;
# without it rounds × 1.00 (products-any)
BOUND = 100
FEWEST_COUPLED = 16  # with fewer coupled directions, many uncoupled ones are better
# With labels the curvature of rows is largest at zero, and falls as they are classified: of that at zero the first
# weights take this share, else the first rounds only track its fall (first-whole: rounds × 1.02, and l2 = 0.1 does not
# arrive in its time); and this share where classes stay coupled
FIRST_SHARE, FIRST_SHARE_COUPLED = 0.3, 0.1


@dataclass(frozen=True)
class AUQLR:
    """Low-rank uncertainty weights.

    Parameters
    ----------
    rank
        Directions kept per block, at most a quarter of its rows; "auto": every block keeps as many as pay for
        themselves (`curvature/posterior.py`), at most 140 and at most what the server has room for.
    relaxation
        α of S2, 1 ≤ α < 2; None: 1.8, and 1 without local solves.
    memory
        Columns of Anderson acceleration; 0 switches it off.
    local
        Solve local problems (True), or take one gradient step per round (False): cheaper, but not covered by the
        convergence proof.
    refresh
        Iterations whose local solves use renewed weights.
    skip
        Weights that changed by less than this, relatively, are kept.
    columns
        "auto": centred and scaled inside where that helps (`columns.py`); "raw": as they are.
    round_cost
        What a round costs beside the numbers it carries, in numbers: the dearer, the more directions pay.
    products
        Hessian products that a block may spend on one local solve, which then returns its iterate; None: as many as
        it takes. Where one class and a weak ridge make a block diverge, more cost time and save no round. For a
        loss with corners, four times as many.

    Raises
    ------
    ValueError
        A parameter has a value that it cannot have; the message names it.

    Notes
    -----
    Where the problem says that features are the pixels of an image (`Problem(image=...)`), what the directions leave
    over is taken as diagonal in the basis of cosines from the second iteration on, if that fits the data better.

    Examples
    --------
    >>> import numpy as np
    >>> import auqadmm as aq
    >>> X, y = np.array([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0], [2.0, 1.0]]), np.array([1.0, 2.0, 3.0, 6.0])
    >>> problem = aq.Problem(aq.LeastSquares(), aq.L2(1.0), [(X[:2], y[:2]), (X[2:], y[2:])])
    >>> aq.solve(problem, aq.methods.AUQLR(rank=1)).coef.round(1)
    array([2., 1.])
    """

    rank: int | str = "auto"
    relaxation: float | None = None
    memory: int = 16
    local: bool = True
    refresh: tuple[int, ...] = (2, 4, 7, 11, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024)
    skip: float = 0.1
    columns: str = "auto"
    round_cost: float = ROUND_COST
    products: int | None = BOUND
    name: ClassVar[str] = "auq-lr"

    def __post_init__(self) -> None:
        if self.relaxation is not None:
            relaxation(self.relaxation)
        if self.rank != "auto":
            whole_number("rank", self.rank)  # type: ignore[arg-type]
        whole_number("memory", self.memory)
        if self.products is not None:
            at_least_one("products", self.products)
        one_of("columns", self.columns, ("auto", "raw"))
        round_cost(self.round_cost)
        if not isinstance(self.refresh, tuple | list):
            raise InputError(f"refresh must be a tuple of iterations, got {self.refresh!r}.")
        if not (is_number(self.skip) and self.skip >= 0):
            raise InputError(f"skip must be a number ≥ 0, got {self.skip!r}.")
        for k in self.refresh:
            at_least_one("refresh", k)

    @property
    def _round(self) -> BlockRound:
        return BlockRound(self.memory, self.local, self.skip, self.products)

    @property
    def _schedule(self) -> Schedule:
        return Schedule(self.refresh)

    @property
    def _alpha(self) -> float:
        if self.relaxation is not None:
            return self.relaxation
        return ALPHA if self.local else 1.0

    def init(self, setup: Setup, reduce: Reduce) -> State:
        warm = setup.warm
        zero = torch.zeros(setup.features, setup.columns, dtype=torch.float64, device=setup.device)
        v = zero if warm is None else warm.v.to(zero)
        lam = None if warm is None or warm.lam is None else reduce.scatter(warm.lam)
        posterior = posterior_for(self.rank, curvature_of(setup.regularizer), setup, self.round_cost)
        coupled = coupled_directions(setup, self.round_cost)
        if coupled >= FEWEST_COUPLED:
            rank = min(posterior.rank, coupled) if self.rank == "auto" else posterior.rank
            posterior = replace(posterior, coupled=True, rank=rank)
        if warm is None and curvature_falls(setup.loss):
            posterior = replace(posterior, first=FIRST_SHARE_COUPLED if posterior.coupled else FIRST_SHARE)
        shared = Consensus(setup=setup, iteration=0, v=v)
        blocks = reduce.place(start_blocks, lam, shared)
        typical = 0.0
        if posterior.l2 == 0:  # only then may a block without rows get zero weight
            typical = float(reduce(typical_curvature, blocks, v)[1]["mean"]) / setup.blocks
        cosines = None if setup.image is None else replace(posterior, image=setup.image)
        directive = Directive(posterior, typical, self._alpha, refresh=True, contest=cosines)
        shared = replace(shared, memory=ServerState(Anderson.empty(self.memory, v), directive, zero))
        blocks, sums = reduce(self._round, blocks, (directive, _broadcast(shared)), down=(v,))
        return State(blocks, self._received(shared, sums, blocks, reduce))

    def step(self, state: State, reduce: Reduce) -> State:
        old = state.shared
        metric = old.metric
        assert isinstance(metric, LowRankMetric)
        failed = failed_blocks(state, reduce)
        k, g = old.iteration + 1, old.setup.regularizer
        server = next_z(old.memory) if k > 1 else first_z(old.memory, metric, g, old.v)
        server = watch_objective(server, metric, g, old.v, old.scored)
        v_step = metric.solve(g, server.z, old.v, tolerance(server))
        server = replace(self._schedule.directed(server, k), v_residual=v_step.residual)
        shared = replace(
            old,
            iteration=k,
            v=v_step.v,
            v_prev=old.v,
            memory=server,
            failed_blocks=failed,
            cost=reduce.cost(old.hvps),
        )
        if server.directive.refresh:  # K changes before the next v-step
            metric.drop_cache()
        sent = (v_step.v, server.directive.gamma, server.directive.home)
        down = tuple(x for x in sent if x is not None)
        blocks, sums = reduce(self._round, state.blocks, (server.directive, _broadcast(shared)), down=down)
        return State(blocks, self._received(shared, sums, blocks, reduce))

    def _received(self, shared: Consensus, sums: Mapping[str, Tensor], blocks: Blocks, reduce: Reduce) -> Consensus:
        """Update the state with the sums of a round; renewed weights give a new metric K."""
        setup, server, metric = shared.setup, shared.memory, shared.metric
        N = setup.blocks
        if server.directive.refresh:
            new = server.U is None
            parts = reduce.concat(first_parts if new else next_parts, blocks)
            U = directions(parts) if new else server.U
            # v and the multipliers stay: Σλ = Kv − Σz in the old metric and in the new
            lam_sum = sums["lam_sum"] if metric is None else metric.apply(shared.v) - server.z
            metric = LowRankMetric(unpacked(U, parts, setup.columns, server.directive.posterior.basis(shared.v)))
            server = replace(server, U=U, z=metric.apply(shared.v) - lam_sum)
        names = ("rr", "dual", "primal", "u", "lam", "hvps", "failed", "not_finite")
        numbers = torch.stack([sums[name].double() for name in names] + [shared.v.norm()]).tolist()  # one transfer
        rr, dual, primal, u, lam, hvps, inner_failures, not_finite, v_norm = numbers
        norm, dual = math.sqrt(max(rr, 0.0)), math.sqrt(dual)
        last_sums = RoundSums(
            Tz=sums["Tz"],
            r=sums["Tz"] - server.z,
            norm=norm,
            dual=dual,
            gram=sums.get("gram"),
            heft=sums.get("heft"),
            against=sums.get("against"),
            stale="stale" in sums and bool(sums["stale"] > 0),
            contest_won="contest" in sums and second_wins(sums["contest"], N * setup.features),
        )
        residuals = Residuals(
            primal=math.sqrt(primal),
            dual=dual,
            u_norm=math.sqrt(u),
            v_norm=math.sqrt(N) * v_norm,
            lam_norm=math.sqrt(lam),
            reference=norm,
            scale=math.sqrt(N * setup.unknowns),
        )
        # inner errors must be summable for the proof; the bound is far above ‖r‖ unless the run stagnates
        first_norm = norm if server.anderson.first is None else server.anderson.first
        summable = D * first_norm * (shared.iteration + 1) ** -(1 + EPSILON)
        return replace(
            shared,
            metric=metric,
            memory=replace(server, sums=last_sums),
            residuals=residuals,
            reference=min(norm, summable) / math.sqrt(N),
            hvps=shared.hvps + int(hvps),
            inner_failures=int(inner_failures),
            not_finite=int(not_finite),
            scored={name: sums[name] for name in ("f", "G", "norms")} if setup.scoring else None,
            # by the blocks' own models: Σ_j ½‖u_j − v‖² in the metric W_j
            predicted=0.5 * rr / server.directive.relaxation**2,
        )


def posterior_for(rank: int | str, l2: float, setup: Setup, round_cost: float) -> Posterior:
    """How the weights of a problem are made."""
    most = most_directions(rank, setup)
    choose = rank == "auto"
    return Posterior(most, l2, setup.blocks, setup.seed, choose, intercept=setup.intercept, round_cost=round_cost)


def most_directions(rank: int | str, setup: Setup) -> int:
    """Directions that a block may keep from the start."""
    if rank != "auto":
        return int(rank)
    return min(MOST_DIRECTIONS, DIRECTIONS_BYTES // (8 * setup.blocks * setup.features))


def coupled_directions(setup: Setup, round_cost: float) -> int:
    """How many directions a block may keep in which classes stay coupled. r of them cost P·r²/2 numbers whenever
    weights are renewed, and save WORTH·log r rounds; a renewal takes (rC)³ operations per block, which should cost no
    more than PRODUCTS with the data, and (rC)² numbers of the server's memory."""
    N, C = setup.blocks, setup.columns
    pairs = C * (C - 1) / 2
    if not pairs:
        return 0
    cheapest = math.sqrt(COUPLING_WORTH * (setup.unknowns + round_cost) / (COUPLING_RENEWALS * pairs))
    quick = (COUPLING_PRODUCTS * setup.rows * setup.unknowns / N) ** (1 / 3) / C if setup.rows else cheapest
    return min(round(min(cheapest, quick)), math.isqrt(DIRECTIONS_BYTES // (8 * N)) // C)


def curvature_falls(loss: Loss) -> bool:
    """Is the curvature of rows largest where logits are zero?"""
    labels = loss.target_kind in ("binary", "classes")
    return labels and isinstance(loss, RowLoss) and not loss.cornered and not loss.expects


def _broadcast(shared: Consensus) -> Consensus:
    """What blocks need of the replicated state: v and the tolerances, not the server's own memory."""
    return replace(shared, memory=None, metric=None)


def curvature_of(regularizer: Regularizer) -> float:
    """l2 of g on the penalised rows; in other columns the least of them (blocks know the rest: `Frame.prior`)."""
    if isinstance(regularizer, ScaledRegularizer):
        return regularizer.least
    return float(getattr(regularizer, "inner", regularizer).strong_convexity)


def directions_sentence(weights: object) -> str:
    """A summary of a run's weights, directions per block and the basis of the rest, as the end of a sentence that
    begins with "; "; empty for weights other than AUQ-LR's."""
    if not isinstance(weights, LowRank):
        return ""
    ranks = (weights.U != 0).any(1).sum(1)
    least, most = int(ranks.min()), int(ranks.max())
    count = f"{most}" if least == most else f"{least} to {most}"
    basis = "" if weights.F is None else ", the rest in cosines"
    return f"; {count} direction{'s' * (most != 1)} per block paid for themselves{basis}"
