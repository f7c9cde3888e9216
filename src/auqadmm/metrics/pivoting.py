"""Block pivoting for separable g: minimise ½⟨v, Kv⟩ − ⟨s, v⟩ + Σ_i g_i(v_i), g_i piecewise quadratic with kinks.

Every coordinate is guessed to be at a kink of g_i (v_i = t_i) or to move on a smooth piece, the active set A,
where g_i′(v) = ξ_i + h_i(v − t_i). One linear system gives the point of this guess,

    v_i = t_i off A,       (K + diag h)_AA d_A = (s − Kv − ξ − h(v − t))_A,   v ← v + d

and the point corrects the guess. Pieces are known through the proximal map alone: prox(y, γ) = v and its slope p
name the piece that contains (v, y − γv), h = 1/p − γ, p = 0 on a kink. A guess moves to the next piece only:

    active, still on its piece          keep
    active, past the end of its piece   γ → 0 stops it on the kink there (a large γ would jump over it)
    on a kink, optimality violated     γ → ∞ lets it go to the piece next to it (a small γ would jump over it)

When nothing moves, v is the solution. As a rule that takes less than ten rounds, whatever the condition of K, but
it may cycle. Then the proximal point method takes over: rounds on K + μD and s + μDc, D = diag K, with the centre c
moved to each solution. They settle for μ large enough, and μ shrinks as long as they do, so convergence is
superlinear; the price is a few rounds for each decade of μ. Linear systems are solved by conjugate gradients, loosely
until rounds fail to settle (with an exact factor of the active part one iteration is enough anyhow).

References: J. J. Júdice, F. M. Pires, A block principal pivoting algorithm for large-scale strictly monotone linear
complementarity problems, Comput. Oper. Res. 21, 1994; J. Kim, H. Park, Fast active-set-type algorithms for
l1-regularized linear regression, AISTATS 2010; R. T. Rockafellar, Monotone operators and the proximal point
algorithm, SIAM J. Control Optim. 14, 1976.

Shapes: v, s, D and all parts of a guess (m, C).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from auqadmm.metrics.cg import cg
from auqadmm.metrics.proximal_gradient import BestIterate, Composite
from auqadmm.metrics.weights import prox_and_slope

PIVOT_ROUNDS = 30  # of one attempt
PIVOT_PATIENCE = 6  # rounds without fewer moves
BUDGET = 400  # rounds in all
LEAVE_PIECE, LEAVE_KINK = 1e-9, 30.0  # γ/D for coordinates that leave a piece and a kink
PIVOT_SHRINK = 8.0  # by which the added curvature falls after an attempt that worked, and grows after one that failed
PIVOT_LOOSE, PIVOT_TIGHT = 1e-3, 1e-8  # accuracy of the linear systems in the energy norm, at first and after failures
PIVOT_CG = 1000  # conjugate gradient iterations for one


@dataclass(frozen=True)
class ActivePieces:
    """Kink or piece of every coordinate: active, and ξ + h(v − t) on the piece, v = t on the kink."""

    active: Tensor
    t: Tensor
    xi: Tensor
    h: Tensor

    @classmethod
    def at(cls, problem: Composite, y: Tensor, gamma: Tensor) -> ActivePieces:
        t, p = prox_and_slope(problem.g, y, gamma)
        active = p > 0
        h = torch.where(active, 1 / torch.where(active, p, 1.0) - gamma, 0.0).clamp(min=0)
        return cls(active, t, y - gamma * t, h)

    def line(self, v: Tensor) -> Tensor:
        """g′ of the piece, continued to v."""
        return self.xi + self.h * (v - self.t)

    def moved(self, problem: Composite, v: Tensor, w: Tensor) -> tuple[ActivePieces, int]:
        """The next guess at v with w = s − Kv, and how many coordinates changed theirs."""
        D, line = problem.D, self.line(v)
        prox, p = prox_and_slope(problem.g, D * v + line, D)
        on_piece = self.active & (p > 0) & ((prox - v).abs() <= 1e-12 * (prox.abs() + v.abs()))
        pull, gamma = torch.where(self.active, line, w), torch.where(self.active, LEAVE_PIECE, LEAVE_KINK) * D
        new = ActivePieces.at(problem, gamma * v + pull, gamma)
        over = ~(self.active | new.active) & (new.t != self.t)  # from kink to kink: the piece between them is short
        if over.any():
            new = new.where(~over, self._farther(problem, v, w, over))
        stays = on_piece | ~(self.active | new.active)
        return self.where(stays, new), int((~stays).sum())

    def _farther(self, problem: Composite, v: Tensor, w: Tensor, over: Tensor) -> ActivePieces:
        """Pieces next to the kinks of `over`, with γ as large as it takes to find them."""
        gamma = LEAVE_KINK * problem.D
        for _ in range(8):
            gamma = torch.where(over, LEAVE_KINK * gamma, gamma)
            near = ActivePieces.at(problem, gamma * v + w, gamma)
            over = over & ~near.active & (near.t != self.t)
            if not over.any():
                break
        # once more in the metric D: a large γ would swamp h
        return ActivePieces.at(problem, problem.D * near.t + near.xi, problem.D)

    def where(self, mask: Tensor, other: ActivePieces) -> ActivePieces:
        """This guess where `mask` holds, the other one elsewhere."""
        mine, others = vars(self), vars(other)
        return ActivePieces(**{name: torch.where(mask, mine[name], others[name]) for name in mine})

    def solve(self, problem: Composite, v: Tensor, tol: float, forcing: float) -> tuple[Tensor, bool]:
        """The point of this guess, and whether it was solved to the requested accuracy."""
        v = torch.where(self.active, v, self.t)
        b = torch.where(self.active, problem.s - problem.apply(v) - self.line(v), 0.0)
        if not self.active.any():
            return v, True
        d, k, sound = cg(
            lambda x: torch.where(self.active, problem.apply(x) + self.h * x, 0.0),
            problem.restricted(self.active, self.h),
            b,
            tol,
            PIVOT_CG,
            forcing,
        )
        return v + d, sound and k < PIVOT_CG


def pivot(problem: Composite, v: Tensor, tol: float) -> BestIterate:
    """Solve for separable g, from v, until the residual is `tol` or as small as rounding allows."""
    forcing, mu = PIVOT_LOOSE, 1.0
    settled, best = _attempt(problem, v, tol, forcing)
    if settled:
        return best
    centre, total = best.v, best.iterations
    while total < BUDGET and mu < 1 / LEAVE_PIECE:
        near = max(0.3 * tol, 1e-3 * best.residual)
        settled, trial = _attempt(_with_proximal_term(problem, mu, centre), centre, near, forcing)
        total += trial.iterations
        if not settled:
            mu, forcing = PIVOT_SHRINK * mu, max(0.01 * forcing, PIVOT_TIGHT)
            continue
        centre = trial.v
        v, _, residual = problem.backward(centre, problem.apply(centre), problem.gamma)
        best = best.after(v, residual, total)
        if residual <= max(tol, problem.floor(v)) or mu == 0.0:
            break
        mu = mu / PIVOT_SHRINK if mu > torch.finfo(v.dtype).eps else 0.0
    return replace(best, iterations=total)


def _attempt(problem: Composite, v: Tensor, tol: float, forcing: float) -> tuple[bool, BestIterate]:
    """Rounds from v until nothing moves and the residual is `tol` or no longer falls; False if they cycle."""
    best, fewest, patience, still = BestIterate(v), math.inf, PIVOT_PATIENCE, math.inf
    for k, (x, residual, moves, solved) in enumerate(_rounds(problem, v, tol, forcing)):
        best = best.after(x, residual, k)
        exhausted = moves == 0 and solved and residual > 0.5 * still  # the same guess again: rounding level
        if residual <= max(tol, problem.floor(x)) or exhausted:
            return True, best
        still = residual if moves == 0 else math.inf
        patience = PIVOT_PATIENCE if moves < fewest else patience - 1
        fewest = min(fewest, moves)
        if patience == 0 or k == PIVOT_ROUNDS:
            break
    return False, best


def _rounds(problem: Composite, v: Tensor, tol: float, forcing: float) -> Iterator[tuple[Tensor, float, float, bool]]:
    """Prox point, residual, moves, and whether the solve succeeded, of the start and each round."""
    guess: ActivePieces | None = None
    moves, solved = math.inf, True
    while True:
        Kv = problem.apply(v)
        z, _, residual = problem.backward(v, Kv, problem.gamma)
        yield z, residual, moves, solved
        w = problem.s - Kv
        if guess is None:
            guess = ActivePieces.at(problem, problem.D * v + w, problem.D)
        else:
            guess, moves = guess.moved(problem, v, w)
        v, solved = guess.solve(problem, v, 0.1 * tol, forcing)


def _with_proximal_term(problem: Composite, mu: float, centre: Tensor) -> Composite:
    """f + ½μ‖v − c‖²_D in place of f."""
    pull = mu * problem.D
    return replace(
        problem,
        apply=lambda x: problem.apply(x) + pull * x,
        restricted=lambda active, h: problem.restricted(active, h + torch.where(active, pull, 0.0)),
        s=problem.s + pull * centre,
        D=problem.D + pull,
        gamma=problem.gamma + pull,
    )
