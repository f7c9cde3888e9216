"""The blocks' side of AUQ-LR: one round in the processes with the data, and how weights are sent (S12; the method is in
method.py).

The weights, as blocks send them and as the server assembles them:

Blocks may keep different numbers of directions r_j, so parts are sent row after row, in the order of the blocks:

    first and only once   r_j and the r_j directions of m numbers
    whenever renewed      the upper triangles of M_j (where classes are coupled, of U_jᵀA_abU_j for every pair of them)
                          and S_j, d_j, φ_j

A round:

    λ_j = W_j v − z_j;   W_j renewed when due
    u_j ≈ argmin f_j(u) − ⟨λ_j, u − v⟩ + ½‖u − v‖²_{W_j}           or one gradient step v − W_j⁻¹(∇f_j(v) − λ_j)
    T z_j = W_j(αu_j + (1−α)v) − λ_j,   r_j = T z_j − z_j = αW_j(u_j − v),   ‖r‖² = Σ_j ⟨r_j, W_j⁻¹r_j⟩

Summed: T z, ‖r‖², the residuals of S3, and the scalars of Anderson acceleration.

Shapes: B local blocks, N in all, r the most directions of any block; rows (Σ_j r_j, m), triangles (Σ_j r_j(r_j+1)/2,);
m features, C columns; z, Tz, r (B, m, C); dR and dS = dR + dZ: columns, in pieces (B, q, m, C).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from auqadmm.core.reduce import score
from auqadmm.core.state import Blocks, Consensus
from auqadmm.curvature.posterior import Posterior
from auqadmm.metrics.coupled import Coupled, from_pairs, sum_over_pairs, to_pairs
from auqadmm.metrics.lowrank import Basis, LowRank, pieces
from auqadmm.metrics.weights import sum_blocks, sum_squares

if TYPE_CHECKING:
    from auqadmm.blocks.shard import Shard
    from auqadmm.local.base import LocalSolution
    from auqadmm.metrics.lowrank import LowRank


def first_parts(shard: Shard, blocks: Blocks) -> dict[str, Tensor]:
    W: LowRank = blocks.W
    used = _used(W.U)
    return {"rank": used.sum(1).double(), "rows": W.U.mT[used].double(), **next_parts(shard, blocks)}


def next_parts(shard: Shard, blocks: Blocks) -> dict[str, Tensor]:
    W: LowRank = blocks.W
    name, squares = ("pairs", to_pairs(W)) if isinstance(W, Coupled) else ("M", W.M[:, None])
    i, j = _triangle(W.S)
    parts = {name: _sent(W.U, squares), "d": W.d, "S": W.S[:, i, j], "phi": W.phi}
    return {name: x.double() for name, x in parts.items()}


def directions(parts: Mapping[str, Tensor]) -> Tensor:
    """U (N, m, r); unused columns of a block are zero."""
    rank, rows = parts["rank"], parts["rows"]
    N, r = len(rank), int(rank.max()) if len(rank) else 0
    used = torch.arange(r, device=rank.device)[None] < rank[:, None]
    U = rows.new_zeros(N, r, rows.shape[1])
    U[used] = rows
    return U.mT.contiguous()


def unpacked(U: Tensor, parts: Mapping[str, Tensor], columns: int, F: Basis) -> LowRank:
    """The weights of all blocks."""
    S = parts["S"]
    C = (math.isqrt(1 + 8 * S.shape[1]) - 1) // 2
    k, l = _triangle(S.new_zeros(1, C, C))
    full = S.new_zeros(len(S), C, C)
    full[:, k, l] = S
    joint = columns != C  # the flattened unknown has one column whatever C is
    rest = parts["d"], _symmetric(full), parts["phi"], None if joint else F
    if "pairs" in parts:
        return _coupled(U, parts["pairs"], C, *rest)
    return LowRank(U, _squares(U, parts["M"], 1)[:, 0], *rest, joint, columns if joint else 1)


def _coupled(U: Tensor, sent: Tensor, C: int, *rest: Any) -> Coupled:
    """In chunks of blocks: pairs are as large as H itself."""
    pairs, r = C * (C - 1) // 2, U.shape[2]
    M, H = U.new_empty(len(U), r, r), U.new_empty(len(U), r * C, r * C)
    used = _used(U).sum(1)
    ends = [0, *(pairs * (used * (used + 1) // 2).cumsum(0)).tolist()]
    for some in pieces(len(U), H[0].numel()):
        squares = _squares(U[some], sent[ends[some.start] : ends[some.stop]], pairs)
        M[some], H[some] = sum_over_pairs(squares), from_pairs(squares, C)
    return Coupled(U, M, *rest, H=H)


def _sent(U: Tensor, squares: Tensor) -> Tensor:
    """Of the upper triangles of (B, count, r, r), the entries of two directions in use, flat."""
    i, j = _triangle(squares)
    triangles = squares[..., i, j]
    return triangles[_both(U, squares).expand_as(triangles)]


def _squares(U: Tensor, sent: Tensor, count: int) -> Tensor:
    """(N, count, r, r) from the upper triangles of the directions in use."""
    square = U.new_zeros(len(U), count, U.shape[2], U.shape[2])
    i, j = _triangle(square)
    triangles = square.new_zeros(len(U), count, len(i))
    square[..., i, j] = triangles.masked_scatter_(_both(U, square).expand_as(triangles), sent)
    return _symmetric(square)


def _both(U: Tensor, like: Tensor) -> Tensor:
    """Which entries of an upper triangle belong to two directions in use, (B, 1, k)."""
    used = _used(U)
    i, j = _triangle(like)
    return (used[:, i] & used[:, j])[:, None]


def _used(U: Tensor) -> Tensor:
    """Which columns of U (B, m, r) are directions, (B, r)."""
    return (U != 0).any(1)


def _triangle(M: Tensor) -> Tensor:
    """Positions (2, k) of the upper triangle of M (…, n, n)."""
    return torch.triu_indices(M.shape[-1], M.shape[-1], device=M.device)


def _symmetric(upper: Tensor) -> Tensor:
    return upper + upper.triu(1).mT


Sums = dict[str, Tensor]


class Action(IntEnum):
    """Which z_j a block takes: the one it has, the plain step, the accelerated one, or the plain step of before."""

    KEEP, PLAIN, ACCELERATE, BACK = range(4)


# Arrays that a block keeps besides Tz, r and Wr.
KEPT = ("U", "z", "plain", "dR", "dS")

# Columns of Anderson memory per tensor: appending copies at most these. Chosen, not measured.
COLUMNS_PER_TENSOR = 8
# Accuracy of local solves, relative to the solver's own tolerance: in the norm of W⁻¹ a fourteenth of ‖r‖ is enough
# (results/ablation: with 1 products × 1.63 for rounds × 0.99, with 30 rounds × 1.16).
ACCURACY = 7.0
# Local solves start at this share of the last round's distance to v (results/ablation: at the last u products × 1.06,
# at v × 1.22, with all of the distance × 1.02).
START_SHARE = 0.5
TURNS = 4  # times the products of a local solve for losses with corners: a weak ridge takes up to 400 of them


@dataclass(frozen=True)
class Directive:
    """What the server sends the blocks along with v. `refresh`: renew the weights;
    `look_ahead`: would new weights differ? `forget` the differences of earlier rounds; `contest` is another way to
    make weights: which is better? `home`: restart at this v, with λ_j = ∇f_j(v)."""

    posterior: Posterior
    typical: float = 0.0
    relaxation: float = 1.0
    action: int = Action.KEEP
    gamma: Tensor | None = None
    refresh: bool = False
    look_ahead: bool = False
    forget: bool = False
    contest: Posterior | None = None
    home: Tensor | None = None


@dataclass(frozen=True)
class BlockRound:
    """One round of every block: `memory` columns, `local` solves, of at most so many `products` of a block, or gradient
    steps."""

    memory: int
    local: bool
    skip: float
    products: int | None = None

    def __call__(self, shard: Shard, blocks: Blocks, message: tuple[Directive, Consensus]) -> tuple[Blocks, Sums]:
        directive, shared = message
        memory = _apply_action(blocks.memory, directive)
        if directive.home is not None:
            home = shard.expand(directive.home)
            memory = {"U": memory["U"], "z": blocks.W.apply(home) - shard.linearize(home).grad}
        if directive.forget:
            memory = {name: memory[name] for name in ("U", "z", "plain") if name in memory}
        v = shard.expand(shared.v)
        sums: Sums = {}
        W, lam = blocks.W, blocks.lam
        if W is not None:
            lam = W.apply(v) - memory["z"]
        if directive.refresh:
            W, memory = self._renew(shard, W, v, lam, memory, directive, shared)
            if blocks.W is None:
                sums["lam_sum"] = sum_blocks(lam)
                sums["stale"] = torch.tensor(0.0 if shard.loss.quadratic else 1.0, dtype=torch.float64)
                if directive.contest is not None:
                    posteriors = (directive.posterior, directive.contest)
                    sums["contest"] = torch.stack([p.unexplained(shard, shared.v, memory["U"]) for p in posteriors])
        solution, spent = self._solve(shard, W, v, lam, blocks, shared)
        u = solution.u
        pull = W.apply(u - v)
        # λ_j = W_j v − z_j, so that r_j = αW_j(u_j − v): no difference of large numbers, no inverse
        r, Wr = directive.relaxation * pull, directive.relaxation * (u - v)
        Tz = memory["z"] + r
        memory, more = self._columns(W, memory, r, Wr)
        if directive.look_ahead and blocks.W is not None:
            sums["stale"] = self._stale(shard, W, memory["U"], directive, shared)
        healthy = solution.grad_norm.isfinite() & Tz.isfinite().flatten(1).all(1)
        sums |= more | {
            "Tz": sum_blocks(Tz),
            "rr": sum_blocks((r * Wr).flatten(1).sum(1)),
            "primal": sum_squares(u - v),
            "dual": sum_squares(pull),
            "u": sum_squares(u),
            "lam": sum_squares(lam),
            "hvps": spent.double(),
            "failed": (~solution.converged).sum().double(),
            "not_finite": (~healthy).sum().double(),
        }
        if shared.setup.scoring:
            sums |= score(shard, None, shared.v)[1]
        memory = {name: memory[name] for name in KEPT if name in memory} | {"Tz": Tz, "r": r, "Wr": Wr}
        return Blocks(u, lam, W, ~solution.converged, memory, solution.memory), sums

    def _renew(
        self,
        shard: Shard,
        W: LowRank | None,
        v: Tensor,
        lam: Tensor,
        memory: Mapping[str, Any],
        directive: Directive,
        shared: Consensus,
    ) -> tuple[LowRank, dict[str, Any]]:
        """New weights at v; v and λ_j stay, so z_j moves with W_j, and earlier differences are void."""
        posterior = directive.posterior
        U = memory["U"] if "U" in memory else posterior.directions(shard, shared.v)
        new = posterior.weights(shard, shared.v, U, W, directive.typical)
        if W is not None:
            W.drop_cache()
        return new, {"U": U, "z": new.apply(v) - lam}

    def _stale(self, shard: Shard, W: LowRank, U: Tensor, directive: Directive, shared: Consensus) -> Tensor:
        """The number of blocks whose weights would change at v."""
        if shard.loss.quadratic and self.skip > 0:  # the same curvature everywhere
            return torch.zeros((), dtype=torch.float64, device=shard.device)
        new = directive.posterior.weights(shard, shared.v, U, W, directive.typical)
        return (new.change(W) >= self.skip).sum().double()

    def _solve(
        self, shard: Shard, W: LowRank, v: Tensor, lam: Tensor, blocks: Blocks, shared: Consensus
    ) -> tuple[LocalSolution | _GradientSolution, Tensor]:
        if self.local:
            start = blocks.u
            # u_j moves with v and closer to it: saves a quarter of the products; not where the slope of f_j jumps
            if shared.v_prev is not None and not getattr(shard.loss, "expects", False):
                start = v + START_SHARE * (start - shard.expand(shared.v_prev))
            known = (shared.reference, blocks.solver_memory)
            by_turns = TURNS if shared.setup.loss.cornered else 1
            most = None if self.products is None else by_turns * self.products
            solution = shared.setup.solve(shard, W, v, lam, start, *known, ACCURACY, most)
            return solution, solution.hvps.sum()
        grad = shard.linearize(v).grad - lam
        done = torch.ones(shard.blocks, dtype=torch.bool, device=shard.device)
        stepped = _GradientSolution(v - W.solve(grad), done, grad.flatten(1).norm(dim=1), None)
        return stepped, torch.zeros((), device=shard.device)

    def _columns(self, W: LowRank, memory: dict[str, Any], r: Tensor, Wr: Tensor) -> tuple[dict[str, Any], Sums]:
        """Append the newest difference; its Gram rows and ⟨ΔR_i, r⟩ go to the server."""
        if not self.memory or "r_old" not in memory:
            return memory, {}
        a, b = r - memory["r_old"], memory["z"] - memory["z_old"]
        Wa = Wr - memory["Wr_old"]
        dR, dS = append(memory.get("dR", ()), a), append(memory.get("dS", ()), a + b)
        sums = {"gram": inner(dR, Wa), "heft": inner(dS, Wa + W.solve(b))}
        dR, dS = latest(dR, self.memory), latest(dS, self.memory)
        return {**memory, "dR": dR, "dS": dS}, sums | {"against": inner(dR, Wr)}


@dataclass(frozen=True)
class _GradientSolution:
    """A gradient step, in the form of a local solution."""

    u: Tensor
    converged: Tensor
    grad_norm: Tensor
    memory: None


def _apply_action(memory: Mapping[str, Any], directive: Directive) -> dict[str, Any]:
    """z_j of this round from what the server decided, keeping the last round for differences."""
    kept = dict(memory)
    if directive.action == Action.KEEP:
        return kept
    if directive.action == Action.BACK:
        return {"U": kept["U"], "z": kept["plain"]}
    z = kept["Tz"]
    if directive.action == Action.ACCELERATE:
        assert directive.gamma is not None
        z = z - combined(kept["dS"], directive.gamma)
    last = {"plain": kept["Tz"], "z_old": kept["z"], "r_old": kept["r"], "Wr_old": kept["Wr"]}
    return {**kept, "z": z, **last}


# ---------------------------------------------------------------------- Anderson columns of a block

Columns = tuple[Tensor, ...]


def append(columns: Columns, new: Tensor) -> Columns:
    """One column more, the newest last."""
    new = new[:, None]
    if columns and columns[-1].shape[1] < COLUMNS_PER_TENSOR:
        return (*columns[:-1], torch.cat([columns[-1], new], 1))
    return (*columns, new)


def latest(columns: Columns, most: int) -> Columns:
    """The newest: the oldest column is dropped once there are more than `most`."""
    if sum(piece.shape[1] for piece in columns) <= most:
        return columns
    first, *others = columns
    return (first[:, 1:], *others) if first.shape[1] > 1 else tuple(others)


def inner(columns: Columns, x: Tensor) -> Tensor:
    """⟨column_i, x⟩ over all blocks of this process, (q,) in float64."""
    rows = x.flatten(1)[:, None]  # vectors as rows: BLAS is slower with columns
    return sum_blocks(torch.cat([rows @ piece.flatten(2).mT for piece in columns], 2)[:, 0])


def combined(columns: Columns, gamma: Tensor) -> Tensor:
    """Σ_i γ_i column_i, (B, m, C)."""
    parts = gamma.to(columns[0]).split([piece.shape[1] for piece in columns])
    out = torch.zeros_like(columns[0][:, :1].flatten(2))
    for piece, part in zip(columns, parts, strict=True):
        out = torch.baddbmm(out, part.expand(len(piece), 1, -1), piece.flatten(2))
    return out.reshape(columns[0][:, 0].shape)
