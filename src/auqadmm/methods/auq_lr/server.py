"""The server's side of AUQ-LR between two rounds: which Σz comes next, and Anderson acceleration (S12).

Anderson acceleration (type II) of z ← Tz in the norm of W⁻¹, where only scalars are exchanged:

    γ = argmin ‖r − Σ_i γ_i ΔR_i‖_{W⁻¹}        z⁺ = Tz − Σ_i γ_i (ΔR_i + ΔZ_i)
    r = Tz − z,  ΔR_i, ΔZ_i the differences of r and z between neighbouring rounds

Blocks keep their own columns ΔR_i, ΔZ_i (`blocks.py`). What travels is one row of the Gram matrix ⟨ΔR_i, ΔR_new⟩ and
⟨ΔR_i, r⟩; the sums Σ_j of the columns, which the v-step needs, follow from Σ Tz and Σ z, which are known already.

Safeguard. T is averaged, so plain steps converge, and they still do when perturbed by a summable amount. An
accelerated step is taken only if it is such a perturbation, ‖z⁺ − Tz‖ ≤ D‖r⁰‖(a + 1)^{−(1+ε)} with a the number of
accelerated steps so far. Besides, a step that more than doubled ‖r‖ is taken back. docs/theory.md has the proof.

Reference: H. F. Walker, P. Ni, Anderson acceleration for fixed-point iterations, 2011; A. Fu, J. Zhang, S. Boyd,
Anderson accelerated Douglas–Rachford splitting, 2020 (a summability test on ‖r‖ instead).

Shapes: N blocks, m features, C columns, r directions per block, q columns of memory; v, z and other sums over blocks
(m, C), Anderson's columns (m, C, q), Gram matrices (q, q).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from auqadmm.methods.auq_lr.blocks import Action, Directive
from auqadmm.metrics.vstep import LowRankMetric

if TYPE_CHECKING:
    from auqadmm.problem.regularizers import Regularizer

# In brackets switches of results/ablation; the rest was chosen, not measured.
# on the scaled Gram matrix, so that it can be solved: columns of neighbouring rounds are nearly parallel (no-ridge:
# rounds × 1.00)
ANDERSON_RIDGE = 1e-9
STEP_BACK = 2.0  # growth of ‖r‖ beyond which an accelerated step is undone (no-step-back: met in one run of seven)
# of the allowance of accelerated steps, D‖r⁰‖(a + 1)^{−(1+ε)}: summable for any of these; without it nothing changes
# (no-allowance)
D, EPSILON = 1e3, 1e-6
TELLING = 1e-6  # relative differences below this count as none
STRAY = 1e-2  # of F: a run this far above its best F twice in a row has diverged (never-home: no run meets it)


@dataclass(frozen=True)
class RoundSums:
    """The sums of the last round: Tz and r (m, C), ‖r‖ in W⁻¹, the scalars for Anderson, whether weights are out of
    date (`stale`) and whether they would fit better in the other basis (`contest_won`)."""

    Tz: Tensor
    r: Tensor
    norm: float
    dual: float
    gram: Tensor | None
    heft: Tensor | None
    against: Tensor | None
    stale: bool
    contest_won: bool = False


@dataclass(frozen=True)
class ServerState:
    """The replicated half of the state. `z` is Σ_j z_j; `sums` are those of the last round; `before` are z and r of the
    round before; `plain` the step that acceleration replaced; `U` the directions of all blocks."""

    anderson: Anderson
    directive: Directive
    z: Tensor
    sums: RoundSums | None = None
    before: tuple[Tensor, Tensor] | None = None
    plain: Tensor | None = None
    U: Tensor | None = None
    v_residual: float = 0.0
    best: BestPoint | None = None
    strayed: int = 0


@dataclass(frozen=True)
class BestPoint:
    """The best F so far, with its v and Σ_j ∇f_j(v)."""

    F: float
    v: Tensor
    G: Tensor


def watch_objective(
    server: ServerState, metric: LowRankMetric, g: Regularizer, v: Tensor, sums: Mapping[str, Tensor] | None
) -> ServerState:
    """With F at v. Where the weights are far from the curvature, over-relaxed steps may diverge: such a
    run restarts at its best v, without over-relaxation."""
    if sums is None or server.directive.relaxation == 1.0:
        return server
    F, best = float(sums["f"]) + float(g.value(v)), server.best
    if best is None or best.F > F:
        return replace(server, best=BestPoint(F, v, sums["G"]), strayed=0)
    strayed = server.strayed + 1 if best.F + STRAY * abs(best.F) < F else 0
    if strayed < 2:
        return replace(server, strayed=strayed)
    home = replace(server.directive, action=Action.KEEP, gamma=None, relaxation=1.0, home=best.v)
    z = metric.apply(best.v) - best.G
    return replace(server, anderson=server.anderson.cleared(), directive=home, z=z, before=None, plain=None, best=None)


def first_z(server: ServerState, metric: LowRankMetric, g: Regularizer, v: Tensor) -> ServerState:
    """After the first round. A start whose v does not come from its z (a neighbour's model and multipliers, say) gives
    no information about T, nor does a solution: keep z, and begin with its own v."""
    assert server.sums is not None
    v_step = metric.solve(g, server.z, v, tolerance(server))
    consistent = float((v_step.v - v).norm()) <= TELLING * float(v.norm())
    if consistent and server.sums.dual > TELLING * float(server.z.norm()):
        return next_z(server)
    return replace(
        server, directive=replace(server.directive, action=Action.KEEP, gamma=None, refresh=False, home=None)
    )


def next_z(server: ServerState) -> ServerState:
    """Assess the last round, and choose the next Σz: accelerated, plain, or the step undone."""
    sums, anderson, last = server.sums, server.anderson, server.directive
    assert sums is not None
    quiet = replace(last, gamma=None, refresh=False, home=None)
    # a round with new weights measures r in another norm: the step before it cannot be assessed
    if anderson.worse(sums.norm, last.action == Action.ACCELERATE and not last.refresh) and server.plain is not None:
        back = replace(quiet, action=Action.BACK)
        return replace(server, anderson=anderson.cleared(), directive=back, z=server.plain, before=None)
    anderson = anderson.measured(sums.norm)
    if sums.gram is not None and sums.heft is not None and server.before is not None:
        z_old, r_old = server.before
        anderson = anderson.extended(sums.gram, sums.heft, (sums.r - r_old) + (server.z - z_old))
    gamma = None if sums.against is None else anderson.coefficients(sums.against)
    z, directive = sums.Tz, replace(quiet, action=Action.PLAIN)
    if gamma is not None:
        z, directive = z - anderson.columns @ gamma, replace(quiet, action=Action.ACCELERATE, gamma=gamma)
        anderson = anderson.step()
    before = (server.z, sums.r)
    return replace(server, anderson=anderson, directive=directive, z=z, before=before, plain=sums.Tz)


def tolerance(server: ServerState) -> float:
    """The tolerance of the v-step: far below the current residual, in the units of a gradient."""
    assert server.sums is not None
    scale = float(server.z.norm())
    return min(1e-9 * scale, max(1e-5 * server.sums.dual, 1e-13 * scale))


# ---------------------------------------------------------------------- when weights are renewed


@dataclass(frozen=True)
class Schedule:
    """`refresh` are the iterations whose local solves may use renewed weights."""

    refresh: tuple[int, ...]

    def directed(self, server: ServerState, k: int) -> ServerState:
        """The directive for iteration k + 1. Whether weights are stale is known from the round before."""
        sums, directive_before = server.sums, server.directive
        assert sums is not None
        renew = sums.contest_won or ((k + 1) in self.refresh and sums.stale)
        directive = replace(
            directive_before,
            posterior=directive_before.contest
            if sums.contest_won and directive_before.contest is not None
            else directive_before.posterior,
            refresh=renew,
            look_ahead=(k + 2) in self.refresh,
            forget=renew,  # another map T: earlier differences are void
            contest=None,
        )
        anderson = server.anderson.cleared() if renew else server.anderson
        return replace(server, directive=directive, anderson=anderson)


# ---------------------------------------------------------------------- Anderson acceleration


@dataclass(frozen=True)
class Anderson:
    """The replicated half of the acceleration.

    `columns` are Σ_j(ΔR_i + ΔZ_i), `gram` holds ⟨ΔR_i, ΔR_k⟩ and `heft` ⟨ΔR_i + ΔZ_i, ΔR_k + ΔZ_k⟩, in W⁻¹.
    """

    size: int
    gram: Tensor
    heft: Tensor
    columns: Tensor
    accelerated: int = 0
    first: float | None = None
    last: float | None = None

    @staticmethod
    def empty(size: int, like: Tensor) -> Anderson:
        """No memory yet, for sums shaped like `like` (m, C)."""
        return Anderson(size, like.new_zeros(0, 0), like.new_zeros(0, 0), like.new_zeros(*like.shape, 0))

    @property
    def used(self) -> int:
        return self.gram.shape[0]

    def cleared(self) -> Anderson:
        """Drop the columns (the map has changed), keep the counts."""
        none = self.gram.new_zeros(0, 0)
        return replace(self, gram=none, heft=none, columns=self.columns[..., :0])

    def worse(self, norm: float, was_accelerated: bool) -> bool:
        """Did an accelerated step more than double the residual?"""
        return was_accelerated and self.last is not None and norm > STEP_BACK * self.last

    def measured(self, norm: float) -> Anderson:
        """Remember the residual of an accepted point."""
        return replace(self, first=self.first if self.first is not None else norm, last=norm)

    def extended(self, gram_row: Tensor, heft_row: Tensor, column: Tensor) -> Anderson:
        """A new column (m, C), with its Gram entries (used + 1,) with the others and itself."""
        full = self.used == self.size
        columns = torch.cat([self.columns, column[..., None]], -1)
        return replace(
            self,
            gram=_bordered(self.gram, gram_row, full),
            heft=_bordered(self.heft, heft_row, full),
            columns=columns[..., 1:] if full else columns,
        )

    def coefficients(self, against: Tensor) -> Tensor | None:
        """γ (used,) for `against` = ⟨ΔR_i, r⟩; None: take the plain step."""
        if self.used == 0 or self.last is None or self.first is None:
            return None
        scale = self.gram.diagonal().clamp(min=0).sqrt()
        # a column of zeros: two neighbouring rounds had the same residual
        inverse = torch.where(scale > 0, 1 / torch.where(scale > 0, scale, 1.0), 0.0)
        G = inverse[:, None] * self.gram * inverse
        eye = torch.eye(self.used, dtype=G.dtype, device=G.device)
        # a system that cannot be solved (NaN among the scalars) fails the test below
        gamma = torch.linalg.solve_ex(G + ANDERSON_RIDGE * eye, inverse * against).result * inverse
        size = float(gamma @ self.heft @ gamma)
        return gamma if size <= self.allowance**2 else None  # False for NaN too

    @property
    def allowance(self) -> float:
        """How far an accelerated step may lead from the plain one: summable over all of them."""
        assert self.first is not None
        return D * self.first * (self.accelerated + 1) ** -(1 + EPSILON)

    def step(self) -> Anderson:
        return replace(self, accelerated=self.accelerated + 1)


def _bordered(gram: Tensor, row: Tensor, full: bool) -> Tensor:
    """One more row and column; the oldest make room when the memory is full."""
    wide = torch.cat([torch.cat([gram, row[:-1, None]], 1), row[None]], 0)
    return wide[1:, 1:] if full else wide
