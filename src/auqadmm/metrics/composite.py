"""minimise f(v) + g(v), f(v) = ½⟨v, Kv⟩ − ⟨s, v⟩, with K known by products and g by its proximal map, or without g.

Without g: preconditioned conjugate gradients that stop where rounding error dominates.

    minimise ½⟨x, Ax⟩ − ⟨b, x⟩,   A symmetric positive definite, known by products

The recursion's residual drifts away from b − Ax; `solve` measures the true one and starts again from there (iterative
refinement) as long as that helps. A preconditioner that rounding has made indefinite is replaced by the next one.

A forward-backward step from x in the diagonal metric Γ = ℓ·diag K ≽ K also measures optimality:

    z = prox_g(y, Γ),  y = Γx − ∇f(x),     ξ = y − Γz ∈ ∂g(z),     so  dist(0, ∂(f + g)(z)) ≤ ‖∇f(z) + ξ‖.

That number is the residual reported everywhere: an upper bound for any g and Γ, the distance itself where g is smooth.

`accelerated` repeats the step with momentum, which is dropped when it points uphill. It
needs of g only the proximal map; the number of steps grows with the condition of K scaled by its diagonal.

`pivot` is the method for separable g = Σ_i g_i(v_i), g_i piecewise quadratic with kinks: block pivoting.
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

Reference: Y. Saad, Iterative Methods for Sparse Linear Systems, 2nd ed., section 9.2.

References: A. Beck, M. Teboulle, A fast iterative shrinkage-thresholding algorithm, SIAM J. Imaging Sci. 2, 2009;
B. O'Donoghue, E. Candès, Adaptive restart for accelerated gradient schemes, Found. Comput. Math. 15, 2015;
J. J. Júdice, F. M. Pires, A block principal pivoting algorithm for large-scale strictly monotone linear
complementarity problems, Comput. Oper. Res. 21, 1994; J. Kim, H. Park, Fast active-set-type algorithms for
l1-regularized linear regression, AISTATS 2010; R. T. Rockafellar, Monotone operators and the proximal point
algorithm, SIAM J. Control Optim. 14, 1976.

Shapes: of conjugate gradients any, b and x alike; x, z, v, s, D and all parts of a guess (m, C).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from auqadmm.metrics.weights import Proximal, prox_and_slope
from auqadmm.runtime import Programs

Operator = Callable[[Tensor], Tensor]

RESTARTS = 8  # of the recursion from the true residual, for one preconditioner


@dataclass(frozen=True)
class PCGState:
    """The state of the recursion: ry = ⟨r, Mr⟩, steps so far, `open` while they go on, `sound` while A and M are
    positive; scalars are tensors."""

    x: Tensor
    r: Tensor
    p: Tensor
    ry: Tensor
    steps: Tensor
    open: Tensor
    sound: Tensor


def cg(
    apply: Operator,
    precondition: Operator,
    b: Tensor,
    tol: float,
    max_iter: int,
    relative: float = 0.0,
    programs: Programs | None = None,
) -> tuple[Tensor, int, bool]:
    """x with r = b − Ax, ‖r‖ ≤ tol or ⟨r, Mr⟩ ≤ relative²·⟨b, Mb⟩ by the recursion, from x = 0.

    With a good preconditioner M the second is the error in the energy norm, which sees the directions in which A is
    small. Returns x, the number of iterations, and whether A and M were positive on the way; if not, x is the last
    iterate for which they were. With `programs` a GPU does several steps between two host synchronisations.
    """
    y = precondition(b)
    ry = (b * y).sum()
    enough = torch.stack([b.new_full((), tol), relative**2 * ry])
    zero = torch.zeros((), dtype=torch.int64, device=b.device)
    sound = torch.ones((), dtype=torch.bool, device=b.device)
    run = PCGState(torch.zeros_like(b), b, y, ry, zero, ~_is_small(b, ry, enough), sound)
    several = programs is not None and programs.active
    steps = programs.notes.get(cg, 4) if programs is not None and several else 1
    done, left, fine = _to_host(run)
    while left and done < max_iter:
        steps = min(steps, max_iter - done)
        if programs is not None and several:
            run = programs.repeat(_step, steps, run, apply, precondition, enough)
        else:
            run = _step(run, apply, precondition, enough)
        done, left, fine = _to_host(run)
        steps = max(2, done // 4) if several else 1
    if programs is not None:
        programs.notes[cg] = max(done, 2)
    return run.x, int(done), bool(fine)


def _step(at: PCGState, apply: Operator, precondition: Operator, enough: Tensor) -> PCGState:
    """One step; once `open` is False it changes nothing."""
    q = apply(at.p)
    curvature = (at.p * q).sum()
    # not positive: rounding, or NaN
    sound = (at.ry > 0) & (curvature > 0) & curvature.isfinite()
    go = at.open & sound
    step = torch.where(go, at.ry / curvature, 0.0)
    x = torch.where(go, at.x + step * at.p, at.x)
    r = torch.where(go, at.r - step * q, at.r)
    y = precondition(r)
    ry = (r * y).sum()
    p = torch.where(go, y + (ry / at.ry) * at.p, at.p)
    left = go & ~_is_small(r, ry, enough)
    return PCGState(x, r, p, torch.where(go, ry, at.ry), at.steps + go, left, at.sound & (sound | ~at.open))


def _is_small(r: Tensor, ry: Tensor, enough: Tensor) -> Tensor:
    return (r.norm() <= enough[0]) | ((ry > 0) & (ry <= enough[1]))


def _to_host(run: PCGState) -> list[int]:
    """Steps, `open`, `sound`: one device-to-host transfer."""
    return torch.stack([run.steps, run.open.long(), run.sound.long()]).tolist()


def solve(
    apply: Operator,
    preconditioners: Sequence[Operator],
    b: Tensor,
    x: Tensor,
    tol: float,
    max_iter: int,
    programs: Programs | None = None,
) -> tuple[Tensor, float, int]:
    """x with ‖b − Ax‖ ≤ tol if rounding allows, from the given x.

    Returns x, the true ‖b − Ax‖ and the number of iterations.
    """
    r = b - apply(x)
    residual, iterations = float(r.norm()), 0
    if not math.isfinite(residual):  # a useless start: begin at zero
        x, r = b.new_zeros(b.shape), b
        residual = float(r.norm())
    for precondition in preconditioners:
        for _ in range(RESTARTS):
            if residual <= tol or iterations >= max_iter:
                return x, residual, iterations
            step, k, sound = cg(apply, precondition, r, tol, max_iter - iterations, programs=programs)
            iterations += k
            trial = x + step
            r_trial = b - apply(trial)
            new, old = float(r_trial.norm()), residual
            if new < residual:
                x, r, residual = trial, r_trial, new
            if sound and not new < 0.5 * old:  # as good as rounding allows
                return x, residual, iterations
            if not sound:
                break
    return x, residual, iterations


@dataclass(frozen=True)
class Reshaped:
    """An inverse that acts on x in its own shape; a joint weight takes (m·C, 1)."""

    inverse: Operator
    shape: tuple[int, int]

    def __call__(self, x: Tensor) -> Tensor:
        return self.inverse(x.reshape(self.shape)).reshape(x.shape)


@dataclass(frozen=True)
class Jacobi:
    """x ↦ x / D."""

    D: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        return x / self.D


POWER_STEPS = 30  # power iterations for ℓ
POWER_MARGIN, METRIC_WIDER = 1.05, 1.25  # safety factor on ℓ; by how much ℓ grows when it proves too small


@dataclass(frozen=True)
class Composite:
    """f + g. D = diag K, gamma = Γ; `restricted(active, h)` ≈ the inverse of the active part of K + diag h."""

    apply: Operator
    restricted: Callable[[Tensor, Tensor], Operator]
    g: Proximal
    s: Tensor
    D: Tensor
    gamma: Tensor

    def backward(self, x: Tensor, Kx: Tensor, gamma: Tensor) -> tuple[Tensor, Tensor, float]:
        """z, Kz and the residual at z, for any Γ > 0; ξ ∈ ∂g(z) holds to rounding however Kx was obtained."""
        y = gamma * x - (Kx - self.s)
        z = self.g.prox(y, gamma)
        Kz = self.apply(z)
        return z, Kz, float((Kz - self.s + y - gamma * z).norm())

    def floor(self, z: Tensor) -> float:
        """The residual's rounding error."""
        return float(torch.finfo(z.dtype).eps * ((self.gamma * z).norm() + self.s.norm()))


@dataclass(frozen=True)
class BestIterate:
    """The best point so far, its residual, and the iterations spent."""

    v: Tensor
    residual: float = math.inf
    iterations: int = 0

    def after(self, v: Tensor, residual: float, iterations: int) -> BestIterate:
        better = residual < self.residual
        return BestIterate(v, residual, iterations) if better else replace(self, iterations=iterations)


def scale(apply: Operator, D: Tensor) -> float:
    """ℓ with ℓ·diag K ≽ K, estimated by a few power iterations; `accelerated` checks it on every step."""
    start = torch.randn(D.shape, generator=torch.Generator().manual_seed(0), dtype=D.dtype)
    x, root, largest = start.to(D.device), D.rsqrt(), 1.0
    for _ in range(POWER_STEPS):
        x = x / x.norm()
        y = root * apply(root * x)
        largest = max(largest, float((x * y).sum()))
        x = y
    return POWER_MARGIN * largest


def accelerated(problem: Composite, x: Tensor, tol: float, max_iter: int) -> BestIterate:
    """Accelerated forward-backward steps from x until the residual is `tol`; any g."""
    gamma = problem.gamma
    point, Kpoint = x, problem.apply(x)  # extrapolated
    x, Kx, t = point, Kpoint, 1.0
    best = BestIterate(x)
    for k in range(1, max_iter + 1):
        z, Kz, residual = problem.backward(point, Kpoint, gamma)
        step = z - point
        excess = float((step * (Kz - Kpoint - gamma * step)).sum())
        if excess > 4 * problem.floor(z) * float(step.norm()):  # K ≼ Γ fails along the step, not by rounding
            gamma = METRIC_WIDER * gamma
            continue
        best = best.after(z, residual, k)
        if residual <= max(tol, problem.floor(z)) or not math.isfinite(residual):
            break
        uphill = float((gamma * step * (z - x)).sum()) < 0
        t, old = (1.0, 1.0) if uphill else ((1 + math.sqrt(1 + 4 * t * t)) / 2, t)
        momentum = (old - 1) / t
        point, Kpoint = z + momentum * (z - x), Kz + momentum * (Kz - Kx)
        x, Kx = z, Kz
    return best


# ---------------------------------------------------------------------- block pivoting
PIVOT_ROUNDS = 30  # of one attempt
PIVOT_PATIENCE = 6  # rounds without fewer moves
PIVOT_BUDGET = 400  # rounds in all
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
    while total < PIVOT_BUDGET and mu < 1 / LEAVE_PIECE:
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
