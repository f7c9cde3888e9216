"""AUQ-LR: weights that keep the low-rank factor of the curvature, over-relaxed and accelerated (S12).

    W_j = (U_j M_j U_jᵀ + diag d_j) ⊗ S_j + φ_j I      the precision of block j's posterior, the prior shared equally

The iteration is S2 written on z_j = W_j v − λ_j. One round:

    server   v ← argmin g(v) + ½⟨v, Kv⟩ − ⟨Σ_j z_j, v⟩,  K = Σ_j W_j
    block    λ_j = W_j v − z_j;  W_j renewed when due;  u_j ≈ argmin f_j(u) − ⟨λ_j, u − v⟩ + ½‖u − v‖²_{W_j}
             T z_j = W_j(αu_j + (1−α)v) − λ_j,   r_j = T z_j − z_j,   ‖r‖² = Σ_j ⟨r_j, W_j⁻¹r_j⟩
    server   Anderson on z, from scalars; Σ_j z_j follows from Σ_j T z_j

In the metric W = H the reflected resolvent of a quadratic f vanishes, so α near 2 makes this Newton's method.
`local=False` replaces the local solve by one gradient step u_j = v − W_j⁻¹(∇f_j(v) − λ_j).
Weights are renewed at iterations 1, 2, 4, 8, 16, 32 if they changed by a tenth: finitely often, so S8 applies.

Shapes: B blocks here, N in all, m features, C columns, q columns of memory; z, Tz, r (B, m, C), dR, dZ (B, m, C, q).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from auqadmm.core.acceleration import EPSILON, Anderson, D
from auqadmm.core.certificate import score
from auqadmm.core.consensus import failed_blocks, start_blocks
from auqadmm.core.lowrank import LowRank
from auqadmm.core.reduce import Reduce
from auqadmm.core.state import Blocks, Consensus, Residuals, Setup, State
from auqadmm.core.vstep import LowRankMetric
from auqadmm.core.weights import sum_blocks
from auqadmm.curvature.posterior import Posterior, mean_diagonal
from auqadmm.methods.checks import at_least_one

Sums = dict[str, Tensor]

# What a block does with its z before the round: keep it, take the plain step Tz, the accelerated one, or go back.
KEEP, PLAIN, ACCELERATE, BACK = range(4)


@dataclass(frozen=True)
class Directive:
    """What the server tells the blocks along with v."""

    action: int = KEEP
    gamma: Tensor | None = None
    refresh: bool = False
    look_ahead: bool = False


@dataclass(frozen=True)
class Server:
    """The replicated half of the state: sums over blocks of z, Tz, r of this round and the last."""

    anderson: Anderson
    directive: Directive
    posterior: Posterior
    typical: float
    z: Tensor
    Tz: Tensor | None = None
    r: Tensor | None = None
    z_old: Tensor | None = None
    r_old: Tensor | None = None
    plain: Tensor | None = None
    row: Tensor | None = None
    heft: Tensor | None = None
    against: Tensor | None = None
    norm: float = math.inf
    dual: float = math.inf
    stale: bool = False
    v_residual: float = 0.0


@dataclass(frozen=True)
class AUQLR:
    """Low-rank uncertainty weights.

    Parameters
    ----------
    rank
        Directions kept per block.
    relaxation
        α of S2, 1 ≤ α < 2.
    memory
        Columns of Anderson acceleration; 0 switches it off.
    local
        Solve local problems (True), or take one gradient step per round (False).
    refresh
        Iterations whose local solves use renewed weights.
    skip
        Weights that changed by less than this, relatively, are kept.
    """

    rank: int = 20
    relaxation: float = 1.6
    memory: int = 8
    local: bool = True
    refresh: tuple[int, ...] = (2, 4, 8, 16, 32)
    skip: float = 0.1
    name: ClassVar[str] = "auq-lr"

    def __post_init__(self) -> None:
        if not 1.0 <= self.relaxation < 2.0:
            raise ValueError(f"relaxation must lie in [1, 2), got {self.relaxation!r}.")
        if int(self.rank) != self.rank or self.rank < 0:
            raise ValueError(f"rank must be a whole number ≥ 0, got {self.rank!r}.")
        if int(self.memory) != self.memory or self.memory < 0:
            raise ValueError(f"memory must be a whole number ≥ 0, got {self.memory!r}.")
        for k in self.refresh:
            at_least_one("refresh", k)

    # ------------------------------------------------------------------ the server's side
    def init(self, setup: Setup, reduce: Reduce) -> State:
        warm = setup.warm
        zero = torch.zeros(setup.features, setup.columns, dtype=torch.float64, device=setup.device)
        v = zero if warm is None else warm.v.to(zero)
        lam = None if warm is None or warm.lam is None else reduce.scatter(warm.lam)
        posterior = Posterior(self.rank, _curvature_of(setup.regularizer), setup.blocks, setup.seed)
        shared = Consensus(setup=setup, iteration=0, v=v)
        blocks = reduce.place(start_blocks, lam, shared)
        typical = 0.0
        if posterior.l2 == 0:  # only then can a block without rows be left without weight
            typical = float(reduce(_typical, blocks, v)[1]["mean"]) / setup.blocks
        server = Server(Anderson.empty(self.memory, v), Directive(refresh=True), posterior, typical, z=zero)
        shared = replace(shared, memory=server)
        blocks, sums = reduce(self.round, blocks, shared, down=(v,))
        return State(blocks, self._received(shared, sums, blocks, reduce))

    def step(self, state: State, reduce: Reduce) -> State:
        old, server = state.shared, state.shared.memory
        failed = failed_blocks(state, reduce)
        server = self._next_z(server)
        found = old.metric.solve(old.setup.regularizer, server.z, old.v, self._tolerance(server))
        k = old.iteration + 1
        renew = server.stale and (k + 1) in self.refresh
        directive = replace(server.directive, refresh=renew, look_ahead=(k + 2) in self.refresh)
        if renew:
            server = replace(server, anderson=server.anderson.cleared())
        server = replace(server, directive=directive, v_residual=found.residual)
        shared = replace(
            old,
            iteration=k,
            v=found.v,
            v_prev=old.v,
            memory=server,
            failed_blocks=failed,
            cost=reduce.cost(old.hvps),
        )
        gamma = () if directive.gamma is None else (directive.gamma,)
        blocks, sums = reduce(self.round, state.blocks, shared, down=(found.v, *gamma))
        return State(blocks, self._received(shared, sums, blocks, reduce))

    def _next_z(self, server: Server) -> Server:
        """Judge the round that came back, and choose the next Σz: accelerated, plain, or the step taken back."""
        anderson = server.anderson
        accelerated = server.directive.action == ACCELERATE
        # a round with new weights measures r in another norm: no verdict on the step before it
        if anderson.worse(server.norm, accelerated and not server.directive.refresh):
            back = Directive(action=BACK)
            return replace(server, anderson=anderson.cleared(), directive=back, z=server.plain, z_old=None, r_old=None)
        anderson = anderson.measured(server.norm)
        if server.row is not None and self.memory:
            column = (server.r - server.r_old) + (server.z - server.z_old)
            anderson = anderson.extended(server.row, server.heft, column)
        gamma = anderson.coefficients(server.against) if self.memory and server.against is not None else None
        z = server.Tz
        directive = Directive(action=PLAIN)
        if gamma is not None:
            z = z - anderson.columns @ gamma
            directive = Directive(action=ACCELERATE, gamma=gamma)
            anderson = anderson.step()
        return replace(
            server,
            anderson=anderson,
            directive=directive,
            z=z,
            z_old=server.z,
            r_old=server.r,
            plain=server.Tz,
        )

    def _tolerance(self, server: Server) -> float:
        """The v-step is solved far below the residual it follows, in the units of a gradient."""
        scale = float(server.z.norm())
        return min(1e-9 * scale, max(1e-5 * server.dual, 1e-13 * scale))

    def _received(self, shared: Consensus, sums: Mapping[str, Tensor], blocks: Any, reduce: Reduce) -> Consensus:
        """Book the sums of a round; renewed weights bring a new metric K."""
        server: Server = shared.memory
        N, n = shared.setup.blocks, shared.setup.unknowns
        metric = shared.metric
        z = server.z
        if server.directive.refresh:
            parts = reduce.concat(_parts, blocks)
            old, metric = metric, LowRankMetric(**parts)
            # v and the multipliers stay: Σλ = Kv − Σz in the old metric and in the new
            lam_sum = sums["lam_sum"] if old is None else old.apply(shared.v) - z
            z = metric.apply(shared.v) - lam_sum
        norm = math.sqrt(max(float(sums["rr"]), 0.0))
        server = replace(
            server,
            z=z,
            Tz=sums["Tz"],
            r=sums["Tz"] - z,
            row=sums.get("row"),
            heft=sums.get("heft"),
            against=sums.get("against"),
            norm=norm,
            dual=math.sqrt(float(sums["dual"])),
            stale=bool(sums["stale"] > 0) if "stale" in sums else False,
        )
        residuals = Residuals(
            primal=math.sqrt(float(sums["primal"])),
            dual=math.sqrt(float(sums["dual"])),
            u_norm=math.sqrt(float(sums["u"])),
            v_norm=math.sqrt(N) * float(shared.v.norm()),
            lam_norm=math.sqrt(float(sums["lam"])),
            reference=norm,
            scale=math.sqrt(N * n),
        )
        scored = {name: sums[name] for name in ("f", "G", "norms")} if shared.setup.scoring else None
        return replace(
            shared,
            metric=metric,
            memory=server,
            residuals=residuals,
            reference=min(norm, self._summable(server, norm, shared.iteration)) / math.sqrt(N),
            hvps=shared.hvps + int(sums["hvps"]),
            inner_failures=int(sums["failed"]),
            not_finite=int(sums["not_finite"]),
            scored=scored,
        )

    @staticmethod
    def _summable(server: Server, norm: float, k: int) -> float:
        """A summable bound on inner errors, far above ‖r‖ unless the run stagnates: the proof asks for it."""
        first = norm if server.anderson.first is None else server.anderson.first
        return D * first * (k + 1) ** -(1 + EPSILON)

    # ------------------------------------------------------------------ the blocks' side
    def round(self, shard: Any, blocks: Blocks, shared: Consensus) -> tuple[Blocks, Sums]:
        """λ_j from z_j, new weights when due, the local solve, T z_j and what the server needs of it."""
        server: Server = shared.memory
        directive = server.directive
        memory = _moved(blocks.memory, directive)
        v = shard.expand(shared.v)
        sums: Sums = {}
        W, lam = blocks.W, blocks.lam
        if W is not None:
            lam = W.apply(v) - memory["z"]
        if directive.refresh:
            U = memory["U"] if "U" in memory else server.posterior.directions(shard, shared.v)
            W = server.posterior.weights(shard, shared.v, U, W, server.typical)
            memory = {"U": U, "z": W.apply(v) - lam}
            if blocks.W is None:
                sums["lam_sum"] = sum_blocks(lam)
                sums["stale"] = torch.tensor(0.0 if shard.loss.quadratic else 1.0, dtype=torch.float64)
        point = shard.linearize(v)
        u, spent = self._local(shard, W, v, lam, blocks, shared, point)
        Tz = W.apply(self.relaxation * u.u + (1 - self.relaxation) * v) - lam
        r = Tz - memory["z"]
        Wr = W.solve(r)
        memory, more = self._columns(W, memory, r, Wr)
        if directive.look_ahead:
            new = server.posterior.weights(shard, shared.v, memory["U"], W, server.typical)
            sums["stale"] = (new.change(W) >= self.skip).sum().double()
        gap = u.u - v
        healthy = u.grad_norm.isfinite() & Tz.isfinite().flatten(1).all(1)
        sums |= more | {
            "Tz": sum_blocks(Tz),
            "rr": sum_blocks((r * Wr).flatten(1).sum(1)),
            "primal": _square(gap),
            "dual": _square(W.apply(gap)),
            "u": _square(u.u),
            "lam": _square(lam),
            "hvps": spent.double(),
            "failed": (~u.converged).sum().double(),
            "not_finite": (~healthy).sum().double(),
        }
        if shared.setup.scoring:
            sums |= score(shard, None, shared.v)[1]
        memory = {**memory, "Tz": Tz, "r": r, "Wr": Wr}
        return Blocks(u.u, lam, W, ~u.converged, memory, u.memory), sums

    def _local(
        self, shard: Any, W: Any, v: Tensor, lam: Tensor, blocks: Blocks, shared: Consensus, point: Any
    ) -> tuple[Any, Tensor]:
        if not self.local:
            u = v - W.solve(point.grad - lam)
            done = torch.ones(shard.blocks, dtype=torch.bool, device=shard.device)
            norm = u.flatten(1).norm(dim=1)
            return _Stepped(u, done, norm, None), torch.zeros((), device=shard.device)
        found = shared.setup.solve(shard, W, v, lam, blocks.u, shared.reference, blocks.solver_memory, 1.0)
        return found, found.hvps.sum()

    def _columns(self, W: Any, memory: dict[str, Tensor], r: Tensor, Wr: Tensor) -> tuple[dict[str, Tensor], Sums]:
        """Append the newest difference; its Gram row and ⟨ΔR_i, r⟩ go to the server."""
        if not self.memory or "r_old" not in memory:
            return memory, {}
        a, b = r - memory["r_old"], memory["z"] - memory["z_old"]
        Wa = Wr - memory["Wr_old"]
        dR, dZ = _append(memory.get("dR"), a), _append(memory.get("dZ"), b)
        sums = {"row": _inner(dR, Wa), "heft": _inner(dR + dZ, Wa + W.solve(b))}
        dR, dZ = dR[..., -self.memory :], dZ[..., -self.memory :]
        return {**memory, "dR": dR, "dZ": dZ}, sums | {"against": _inner(dR, Wr)}


@dataclass(frozen=True)
class _Stepped:
    """A gradient step, in the form of a local solution."""

    u: Tensor
    converged: Tensor
    grad_norm: Tensor
    memory: Any


def _moved(memory: Mapping[str, Tensor], directive: Directive) -> dict[str, Tensor]:
    """z_j of this round from what the server decided, with the last round kept for differences."""
    kept = dict(memory)
    if directive.action == KEEP:
        return kept
    if directive.action == BACK:
        return {"U": kept["U"], "z": kept["plain"]}
    z = kept["Tz"]
    if directive.action == ACCELERATE:
        assert directive.gamma is not None
        z = z - (kept["dR"] + kept["dZ"]) @ directive.gamma.to(z)
    return {
        **kept,
        "z": z,
        "plain": kept["Tz"],
        "z_old": kept["z"],
        "r_old": kept["r"],
        "Wr_old": kept["Wr"],
    }


def _append(columns: Tensor | None, new: Tensor) -> Tensor:
    new = new.unsqueeze(-1)
    return new if columns is None else torch.cat([columns, new], -1)


def _inner(columns: Tensor, x: Tensor) -> Tensor:
    """⟨column_i, x⟩ over all blocks here, (q,) in float64."""
    return sum_blocks(torch.einsum("bmcq,bmc->bq", columns, x))


def _parts(shard: Any, blocks: Blocks) -> dict[str, Tensor]:
    W: LowRank = blocks.W
    return {"U": W.U, "M": W.M, "d": W.d, "S": W.S, "phi": W.phi}


def _typical(shard: Any, blocks: Blocks, v: Tensor) -> tuple[Blocks, Sums]:
    return blocks, {"mean": sum_blocks(mean_diagonal(shard, v))}


def _curvature_of(regularizer: Any) -> float:
    """l2 of g on the penalised rows."""
    return float(getattr(regularizer, "inner", regularizer).strong_convexity)


def _square(x: Tensor) -> Tensor:
    return sum_blocks(x.flatten(1).double().square().sum(1))
