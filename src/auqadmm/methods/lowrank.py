"""AUQ-LR: weights that keep the low-rank factor of the curvature, over-relaxed and accelerated (S12).

    W_j = (U_j M_j U_jᵀ + diag d_j) ⊗ S_j + φ_j I      the precision of block j's posterior, the prior shared equally

The iteration is S2 written on z_j = W_j v − λ_j. One round:

    server   v ← argmin g(v) + ½⟨v, Kv⟩ − ⟨Σ_j z_j, v⟩,  K = Σ_j W_j
    blocks   u_j from a local solve in the metric W_j, T z_j = z_j + αW_j(u_j − v)          (lowrank_round.py)
    server   Anderson on z, from scalars (core/acceleration.py); Σ_j z_j follows from Σ_j T z_j

In the metric W = H the reflected resolvent of a quadratic f vanishes, so α near 2 makes this Newton's method.
Weights are renewed at iterations 2, 4, 8, …, 1024 if they changed by a tenth: finitely often, so S8 applies. What is
proved is in docs/theory.md.

Shapes: N blocks, m features, C columns, r directions per block; v and sums over blocks (m, C).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from auqadmm.core.acceleration import EPSILON, Anderson, D
from auqadmm.core.consensus import failed_blocks, start_blocks
from auqadmm.core.reduce import Reduce
from auqadmm.core.state import Consensus, Residuals, Setup, State
from auqadmm.core.vstep import LowRankMetric
from auqadmm.curvature.posterior import LATENCY, Posterior, second_wins, typical_curvature
from auqadmm.methods.checks import at_least_one, relaxation, whole
from auqadmm.methods.lowrank_parts import directions, first_parts, next_parts, unpacked
from auqadmm.methods.lowrank_round import ACCELERATE, BACK, KEEP, PLAIN, Directive, Round

ALPHA, ALPHA_LATER = 1.8, 1.6  # before and after PATIENCE
MOST = 64  # directions per block
PATIENCE = 32  # iterations from which a run counts as one that lasts
SPEND, GROWTH = 0.25, 1.25  # how many directions are bought then, see `_affordable`
TELLING = 1e-6  # relative differences below this count as none
ROOM = 2**30  # bytes that the directions of all blocks may take on the server


@dataclass(frozen=True)
class Heard:
    """The sums of the last round: Tz and r (m, C), ‖r‖ in W⁻¹, the scalars for Anderson, whether weights are out of
    date (`stale`) and whether they fit better in another basis (`turn`)."""

    Tz: Tensor
    r: Tensor
    norm: float
    dual: float
    gram: Tensor | None
    heft: Tensor | None
    against: Tensor | None
    stale: bool
    turn: bool = False


@dataclass(frozen=True)
class Server:
    """The replicated half of the state. `z` is Σ_j z_j; `before` are z and r of the round before; `plain` the step
    that acceleration replaced; `U` the directions of all blocks, `bought` the iteration they were sent in."""

    anderson: Anderson
    directive: Directive
    z: Tensor
    heard: Heard | None = None
    before: tuple[Tensor, Tensor] | None = None
    plain: Tensor | None = None
    U: Tensor | None = None
    bought: int = 0
    v_residual: float = 0.0


@dataclass(frozen=True)
class AUQLR:
    """Low-rank uncertainty weights.

    Parameters
    ----------
    rank
        Directions kept per block, at most a quarter of its rows; "auto": every block keeps as many as pay for
        themselves in bytes (`curvature/posterior.py`), at most 64 and at most what the server has room for, and a
        run that lasts buys more of them.
    relaxation
        α of S2, 1 ≤ α < 2; None: 1.8, from iteration 32 on 1.6; 1 without local solves.
    memory
        Columns of Anderson acceleration; 0 switches it off.
    local
        Solve local problems (True), or take one gradient step per round (False): cheaper, but not covered by the
        convergence proof.
    refresh
        Iterations whose local solves use renewed weights.
    skip
        Weights that changed by less than this, relatively, are kept.

    Where the problem says that features are the pixels of an image (`Problem(image=...)`), what the directions leave
    over is taken as diagonal in the basis of cosines from the second iteration on, if that fits the data better.
    """

    rank: int | str = "auto"
    relaxation: float | None = None
    memory: int = 16
    local: bool = True
    refresh: tuple[int, ...] = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
    skip: float = 0.1
    name: ClassVar[str] = "auq-lr"

    def __post_init__(self) -> None:
        if self.relaxation is not None:
            relaxation(self.relaxation)
        if self.rank != "auto":
            whole("rank", self.rank)  # type: ignore[arg-type]
        whole("memory", self.memory)
        for k in self.refresh:
            at_least_one("refresh", k)

    @property
    def _round(self) -> Round:
        return Round(self.memory, self.local, self.skip)

    def _alpha(self, k: int) -> float:
        """α of iteration k."""
        if self.relaxation is not None:
            return self.relaxation
        return 1.0 if not self.local else ALPHA if k < PATIENCE else ALPHA_LATER

    def init(self, setup: Setup, reduce: Reduce) -> State:
        warm = setup.warm
        zero = torch.zeros(setup.features, setup.columns, dtype=torch.float64, device=setup.device)
        v = zero if warm is None else warm.v.to(zero)
        lam = None if warm is None or warm.lam is None else reduce.scatter(warm.lam)
        posterior = posterior_for(self.rank, _curvature_of(setup.regularizer), setup)
        shared = Consensus(setup=setup, iteration=0, v=v)
        blocks = reduce.place(start_blocks, lam, shared)
        typical = 0.0
        if posterior.l2 == 0:  # only then can a block without rows be left without weight
            typical = float(reduce(typical_curvature, blocks, v)[1]["mean"]) / setup.blocks
        cosines = None if setup.image is None else replace(posterior, image=setup.image)
        directive = Directive(posterior, typical, self._alpha(1), refresh=True, contest=cosines)
        shared = replace(shared, memory=Server(Anderson.empty(self.memory, v), directive, zero))
        blocks, sums = reduce(self._round, blocks, (directive, _told(shared)), down=(v,))
        return State(blocks, self._received(shared, sums, blocks, reduce))

    def step(self, state: State, reduce: Reduce) -> State:
        old = state.shared
        metric = old.metric
        assert isinstance(metric, LowRankMetric)
        failed = failed_blocks(state, reduce)
        k, g = old.iteration + 1, old.setup.regularizer
        server = self._next_z(old.memory) if k > 1 else self._started(old, metric)
        found = metric.solve(g, server.z, old.v, _tolerance(server))
        server = replace(self._scheduled(old.setup, server, k), v_residual=found.residual)
        shared = replace(
            old,
            iteration=k,
            v=found.v,
            v_prev=old.v,
            memory=server,
            failed_blocks=failed,
            cost=reduce.cost(old.hvps),
        )
        gamma = server.directive.gamma
        down = (found.v,) if gamma is None else (found.v, gamma)
        blocks, sums = reduce(self._round, state.blocks, (server.directive, _told(shared)), down=down)
        return State(blocks, self._received(shared, sums, blocks, reduce))

    def _started(self, shared: Consensus, metric: LowRankMetric) -> Server:
        """After the first round. A start whose v does not come from its z (a neighbour's model and multipliers, say)
        has taught nothing of T, nor has one that was a solution: keep z, and begin with the v that belongs to it."""
        server: Server = shared.memory
        assert server.heard is not None
        found = metric.solve(shared.setup.regularizer, server.z, shared.v, _tolerance(server))
        consistent = float((found.v - shared.v).norm()) <= TELLING * float(shared.v.norm())
        if consistent and server.heard.dual > TELLING * float(server.z.norm()):
            return self._next_z(server)
        return replace(server, directive=replace(server.directive, action=KEEP, gamma=None, refresh=False))

    def _next_z(self, server: Server) -> Server:
        """Judge the round that came back, and choose the next Σz: accelerated, plain, or the step taken back."""
        heard, anderson, told = server.heard, server.anderson, server.directive
        assert heard is not None
        quiet = replace(told, gamma=None, refresh=False)
        # a round with new weights measures r in another norm: no verdict on the step before it
        if anderson.worse(heard.norm, told.action == ACCELERATE and not told.refresh) and server.plain is not None:
            back = replace(quiet, action=BACK)
            return replace(server, anderson=anderson.cleared(), directive=back, z=server.plain, before=None)
        anderson = anderson.measured(heard.norm)
        if heard.gram is not None and heard.heft is not None and server.before is not None:
            z_old, r_old = server.before
            anderson = anderson.extended(heard.gram, heard.heft, (heard.r - r_old) + (server.z - z_old))
        gamma = None if heard.against is None else anderson.coefficients(heard.against)
        z, directive = heard.Tz, replace(quiet, action=PLAIN)
        if gamma is not None:
            z, directive = z - anderson.columns @ gamma, replace(quiet, action=ACCELERATE, gamma=gamma)
            anderson = anderson.step()
        before = (server.z, heard.r)
        return replace(server, anderson=anderson, directive=directive, z=z, before=before, plain=heard.Tz)

    def _scheduled(self, setup: Setup, server: Server, k: int) -> Server:
        """Renew the weights in iteration k + 1? Whether they are stale was found out one round earlier."""
        heard, told = server.heard, server.directive
        assert heard is not None
        posterior = told.contest if heard.turn and told.contest is not None else told.posterior
        due = (k + 1) in self.refresh
        rank = self._affordable(setup, server, k) if due else 0
        turn = rank > 0
        renew = heard.turn or turn or (due and heard.stale)
        if turn:
            posterior = replace(posterior, rank=rank, choose=False)
        look_ahead, alpha = (k + 2) in self.refresh, self._alpha(k + 1)
        directive = replace(
            told,
            posterior=posterior,
            relaxation=alpha,
            refresh=renew,
            turn=turn,
            look_ahead=look_ahead,
            forget=renew or alpha != told.relaxation,  # another map: what was learned of the old one does not count
            contest=None,
        )
        anderson = server.anderson.cleared() if directive.forget else server.anderson
        return replace(server, directive=directive, anderson=anderson, bought=k if turn else server.bought)

    def _affordable(self, setup: Setup, server: Server, k: int) -> int:
        """New directions in iteration k + 1? As many as cost a quarter of the rounds since the last ones; 0: none.

        A run that lasts long will last long: the more rounds it has taken, the more will be saved.
        """
        assert server.U is not None
        if self.rank != "auto" or k + 1 < PATIENCE:
            return 0
        size, held = server.U.shape[1:]
        rank = int(SPEND * (k - server.bought) * (setup.unknowns + LATENCY) / size)
        rank = min(rank, ROOM // (8 * setup.blocks * size), size)
        return rank if rank >= GROWTH * max(held, 1) else 0

    def _received(self, shared: Consensus, sums: Mapping[str, Tensor], blocks: Any, reduce: Reduce) -> Consensus:
        """Book the sums of a round; renewed weights bring a new metric K."""
        setup, server, metric = shared.setup, shared.memory, shared.metric
        N = setup.blocks
        if server.directive.refresh:
            new = server.U is None or server.directive.turn
            parts = reduce.concat(first_parts if new else next_parts, blocks)
            U = directions(parts) if new else server.U
            # v and the multipliers stay: Σλ = Kv − Σz in the old metric and in the new
            lam_sum = sums["lam_sum"] if metric is None else metric.apply(shared.v) - server.z
            metric = LowRankMetric(unpacked(U, parts, setup.columns, server.directive.posterior.basis(shared.v)))
            server = replace(server, U=U, z=metric.apply(shared.v) - lam_sum)
        norm = math.sqrt(max(float(sums["rr"]), 0.0))
        dual = math.sqrt(float(sums["dual"]))
        heard = Heard(
            Tz=sums["Tz"],
            r=sums["Tz"] - server.z,
            norm=norm,
            dual=dual,
            gram=sums.get("gram"),
            heft=sums.get("heft"),
            against=sums.get("against"),
            stale="stale" in sums and bool(sums["stale"] > 0),
            turn="contest" in sums and second_wins(sums["contest"], N * setup.features),
        )
        residuals = Residuals(
            primal=math.sqrt(float(sums["primal"])),
            dual=dual,
            u_norm=math.sqrt(float(sums["u"])),
            v_norm=math.sqrt(N) * float(shared.v.norm()),
            lam_norm=math.sqrt(float(sums["lam"])),
            reference=norm,
            scale=math.sqrt(N * setup.unknowns),
        )
        # inner errors must be summable for the proof; the bound is far above ‖r‖ unless the run stagnates
        first_norm = norm if server.anderson.first is None else server.anderson.first
        summable = D * first_norm * (shared.iteration + 1) ** -(1 + EPSILON)
        return replace(
            shared,
            metric=metric,
            memory=replace(server, heard=heard),
            residuals=residuals,
            reference=min(norm, summable) / math.sqrt(N),
            hvps=shared.hvps + int(sums["hvps"]),
            inner_failures=int(sums["failed"]),
            not_finite=int(sums["not_finite"]),
            scored={name: sums[name] for name in ("f", "G", "norms")} if setup.scoring else None,
        )


def posterior_for(rank: int | str, l2: float, setup: Setup) -> Posterior:
    """How the weights of a problem are made."""
    most = most_directions(rank, setup.blocks, setup.features)
    return Posterior(most, l2, setup.blocks, setup.seed, rank == "auto", intercept=setup.intercept)


def most_directions(rank: int | str, blocks: int, features: int) -> int:
    """Directions that a block may keep from the start."""
    return min(MOST, ROOM // (8 * blocks * features)) if rank == "auto" else int(rank)


def _told(shared: Consensus) -> Consensus:
    """What blocks need of the replicated state: v and the tolerances, not the server's own memory."""
    return replace(shared, memory=None, metric=None)


def _tolerance(server: Server) -> float:
    """The v-step is solved far below the residual it follows, in the units of a gradient."""
    assert server.heard is not None
    scale = float(server.z.norm())
    return min(1e-9 * scale, max(1e-5 * server.heard.dual, 1e-13 * scale))


def _curvature_of(regularizer: Any) -> float:
    """l2 of g on the penalised rows."""
    return float(getattr(regularizer, "inner", regularizer).strong_convexity)
