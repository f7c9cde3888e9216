"""minimise f(v) + g(v), f(v) = ½⟨v, Kv⟩ − ⟨s, v⟩, with K known by products and g by its proximal map.

Everything rests on the forward-backward step in the metric Γ = ℓ·diag K, where ℓ diag K ≽ K:

    z(x) = prox_g(Γx − ∇f(x), Γ),   ξ = Γ(x − z) − ∇f(x) ∈ ∂g(z),   so dist(0, ∂(f + g)(z)) ≤ ‖∇f(z) + ξ‖

the last number is the residual that is reported, an honest bound for any g, and on the envelope

    E(x) = f(x) + ⟨∇f(x), z − x⟩ + ½‖z − x‖²_Γ + g(z),

which has the minimisers and minimum of f + g, is finite everywhere, and falls along x → z.

`fista`    accelerated steps, restarted when they turn against the step; any g.
`newton`   separable g. A semismooth Newton step d on the natural map in the metric D = diag K, which guesses better
           than Γ which coordinates sit on a kink: with p = ∂prox(y, D)/∂y at y = Dx − ∇f(x), t = prox(y, D) and the
           active set A = {p > 0} (read off by automatic differentiation, whatever g is)

               d = t − x off A,     (K + diag(1/p − D))_AA d_A = (t − x)_A / p_A − K_A· d off A

           then x ← x + τd + (1 − τ)(z − x), τ = 1, ½, …, for a decrease of E (PANOC) or half the residual. A step
           that had to be cut is followed by a burst of `fista` steps, longer each time, which settle the kinks.
           Close to the solution τ = 1 and the first step is exact; in the worst case the bursts converge alone.

`pivoting` separable g, exact and fast where the active part of K can be factored; see there.

References: J. Kim, H. Park, Fast active-set-type algorithms for l1-regularized linear regression, AISTATS 2010;
P. Patrinos, L. Stella, A. Bemporad, Forward-backward truncated Newton methods, arXiv:1402.6655;
L. Stella, A. Themelis, P. Sopasakis, P. Patrinos, A simple and efficient algorithm for nonlinear model predictive
control (PANOC), CDC 2017; B. O'Donoghue, E. Candès, Adaptive restart for accelerated gradient schemes, 2015.

Shapes: x, z, s, D (m, C).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from auqadmm.core.pcg import Operator, cg

POWER = 30  # power iterations for ℓ
MARGIN, WIDER = 1.05, 1.25  # on what they find; by how much ℓ grows when it proves too small
ROUNDS = 60  # Newton steps
CUTS = 6  # halvings of one
BURST, GROWTH, LONGEST = 20, 1.5, 1000  # accelerated steps after a cut
PATIENCE = 8  # rounds without a better residual
FORCING = (0.1, 1e-3)  # inner accuracy far away, and after a full step
PIVOTS, BOLD = 40, 3  # exchanges of pieces; how many of them may be bold without success
INNER = 500  # conjugate gradient iterations per Newton step


@dataclass(frozen=True)
class Best:
    """The best point so far, its residual, and the iterations it took."""

    v: Tensor
    residual: float
    iterations: int = 0

    def or_better(self, v: Tensor, residual: float, iterations: int) -> Best:
        if residual < self.residual or not math.isfinite(self.residual):
            return Best(v, residual, iterations)
        return replace(self, iterations=iterations)


@dataclass(frozen=True)
class Point:
    """x with what the forward-backward step needs. y = Γx − ∇f(x); size = ‖Γ(z − x)‖."""

    x: Tensor
    Kx: Tensor
    y: Tensor
    z: Tensor
    envelope: float
    size: float


@dataclass(frozen=True)
class Composite:
    """f + g. `restricted(active, h)` is about the inverse of the active part of K + diag h; D = diag K; gamma = Γ."""

    apply: Operator
    restricted: Callable[[Tensor, Tensor], Operator]
    g: Any
    s: Tensor
    D: Tensor
    gamma: Tensor

    def at(self, x: Tensor, Kx: Tensor) -> Point:
        gradient = Kx - self.s
        y = self.gamma * x - gradient
        z = self.g.prox(y, self.gamma)
        R = z - x
        f = 0.5 * ((gradient - self.s) * x).sum()
        E = f + (gradient * R).sum() + 0.5 * (self.gamma * R.square()).sum() + self.g.value(z)
        return Point(x, Kx, y, z, float(E), float((self.gamma * R).norm()))

    def residual(self, here: Point, Kz: Tensor) -> float:
        """‖∇f(z) + ξ‖; ξ ∈ ∂g(z) holds to the last bit however Kx was obtained."""
        return float((Kz - self.s + here.y - self.gamma * here.z).norm())

    def floor(self, z: Tensor) -> float:
        """What rounding leaves of a residual."""
        return float(torch.finfo(z.dtype).eps * ((self.gamma * z).norm() + self.s.norm()))

    def bounded(self, here: Point, Kz: Tensor) -> bool:
        """Is K ≼ Γ along z − x? With room for the rounding of a short step."""
        R = here.z - here.x
        excess = (R * (Kz - here.Kx - self.gamma * R)).sum()
        return float(excess) <= 4 * self.floor(here.z) * float(R.norm())

    def wider(self) -> Composite:
        return replace(self, gamma=WIDER * self.gamma)


def scale(apply: Operator, D: Tensor) -> float:
    """ℓ with ℓ·diag K ≽ K as far as a few power iterations can tell; steps check it and `Composite.wider` mends it."""
    start = torch.randn(D.shape, generator=torch.Generator().manual_seed(0), dtype=D.dtype)
    x, root, largest = start.to(D.device), D.rsqrt(), 1.0
    for _ in range(POWER):
        x = x / x.norm()
        y = root * apply(root * x)
        largest = max(largest, float((x * y).sum()))
        x = y
    return MARGIN * largest


def fista(problem: Composite, x: Tensor, tol: float, max_iter: int) -> tuple[Best, Composite]:
    """Accelerated forward-backward steps from x until the residual is `tol`; any g."""
    point, Kpoint, t = x, problem.apply(x), 1.0  # extrapolated
    x, Kx = point, Kpoint
    best = Best(x, math.inf)
    for k in range(max_iter):
        here = problem.at(point, Kpoint)
        Kz = problem.apply(here.z)
        if not problem.bounded(here, Kz):
            problem = problem.wider()
            continue
        best = best.or_better(here.z, problem.residual(here, Kz), k + 1)
        if best.residual <= max(tol, problem.floor(best.v)):
            break
        if float((problem.gamma * (point - here.z) * (here.z - x)).sum()) > 0:  # the momentum points uphill
            point, Kpoint, t = here.z, Kz, 1.0
        else:
            t, old = (1 + math.sqrt(1 + 4 * t * t)) / 2, t
            point, Kpoint = here.z + (old - 1) / t * (here.z - x), Kz + (old - 1) / t * (Kz - Kx)
        x, Kx = here.z, Kz
    return best, problem


def newton(problem: Composite, x: Tensor, tol: float) -> Best:
    """Semismooth Newton steps, globalised by the envelope, from x until the residual is `tol`; separable g."""
    here = problem.at(x, problem.apply(x))
    best, least, burst, idle = Best(here.z, math.inf), math.inf, float(BURST), 0
    forcing = FORCING[0]
    for k in range(ROUNDS + 1):
        Kz = problem.apply(here.z)
        while not problem.bounded(here, Kz):
            problem = problem.wider()
            here = problem.at(here.x, here.Kx)
            Kz = problem.apply(here.z)
        R, KR = here.z - here.x, Kz - here.Kx
        residual = problem.residual(here, Kz)
        idle = 0 if residual < best.residual else idle + 1
        best = best.or_better(here.z, residual, k)
        if best.residual <= max(tol, problem.floor(best.v)) or idle > PATIENCE or k == ROUNDS:
            break
        least = min(least, here.size)
        d = _direction(problem, here, max(forcing * residual, 0.1 * tol))
        Kd = problem.apply(d)
        enough = here.envelope - 1e-4 * float((R * (problem.gamma * R - KR)).sum())
        tau, new = 1.0, problem.at(here.x + d, here.Kx + Kd)
        while not (new.envelope <= enough or new.size <= 0.5 * least):
            tau = 0.5 * tau if tau > 0.5**CUTS else 0.0
            new = problem.at(here.x + (1 - tau) * R + tau * d, here.Kx + (1 - tau) * KR + tau * Kd)
            if tau == 0.0:
                break
        forcing = FORCING[1] if tau == 1.0 else FORCING[0]
        if tau < 1.0:
            settled, problem = fista(problem, new.z, tol, int(burst))
            new = _lower(problem, new, settled.v)
            burst = min(GROWTH * burst, LONGEST)
        here = new
    return best


def pivoting(problem: Composite, x: Tensor, tol: float) -> Best:
    """Block principal pivoting from x: guess the linear piece of each coordinate's prox, solve, exchange the misfits.

    All misfits change at once while their number falls; when it has not for a few steps, only the last one does, which
    cannot cycle. Exact after finitely many steps where prox is piecewise linear; else `newton` goes on from here.
    """
    D, Kx = problem.D, problem.apply(x)
    value, p, q = _pieces(problem, x, Kx)
    best, fewest, patience = Best(value, math.inf), math.inf, BOLD
    for k in range(PIVOTS):
        active = p * D > 1e-12
        slope = torch.where(active, p, 1.0)
        h = torch.where(active, 1 / slope - D, 0.0).clamp(min=0)
        fixed = torch.where(active, 0.0, q)
        b = torch.where(active, problem.s + q / slope - problem.apply(fixed), 0.0)

        def system(z: Tensor, on: Tensor = active, more: Tensor = h) -> Tensor:
            return torch.where(on, problem.apply(z) + more * z, 0.0)

        inside, _, _ = cg(system, problem.restricted(active, h), b, 0.1 * tol, INNER)
        x = fixed + inside
        Kx = problem.apply(x)
        here = problem.at(x, Kx)
        best = best.or_better(here.z, problem.residual(here, problem.apply(here.z)), k + 1)
        if best.residual <= max(tol, problem.floor(best.v)):
            break
        _, p_new, q_new = _pieces(problem, x, Kx)
        misfit = ((p_new - p).abs() > 1e-9 * p) | ((q_new - q).abs() > 1e-9 * (q_new.abs() + q.abs()))
        count = int(misfit.sum())
        if count == 0:
            break
        if count < fewest:
            fewest, patience = count, BOLD
        elif patience > 0:
            patience -= 1
        else:
            last = misfit.flatten().nonzero()[-1]
            misfit = torch.zeros_like(misfit).flatten().index_fill(0, last, True).reshape(misfit.shape)
        # from one slanted piece to another (a sign turned) the way leads over the flat one between them
        turned = misfit & active & (p_new * D > 1e-12)
        between = problem.g.prox(torch.where(turned, -0.5 * (q + q_new) / slope, 0.0), D)
        p_new, q_new = torch.where(turned, 0.0, p_new), torch.where(turned, between, q_new)
        p, q = torch.where(misfit, p_new, p), torch.where(misfit, q_new, q)
    return best


def _pieces(problem: Composite, x: Tensor, Kx: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """prox(y, D) at y = Dx − ∇f(x), as p·y + q near y, entry by entry."""
    y = problem.D * x - (Kx - problem.s)
    value, p = prox_and_slope(problem.g, y, problem.D)
    return value, p, value - p * y


def _lower(problem: Composite, a: Point, x: Tensor) -> Point:
    """The point at x or `a`, whichever has the lower envelope (Γ may have changed, so both are evaluated)."""
    a, b = problem.at(a.x, a.Kx), problem.at(x, problem.apply(x))
    return b if b.envelope < a.envelope or not math.isfinite(a.envelope) else a


def _direction(problem: Composite, here: Point, tol: float) -> Tensor:
    """The semismooth Newton step on x = prox(Dx − ∇f(x), D)."""
    D = problem.D
    target, p = prox_and_slope(problem.g, D * here.x - (here.Kx - problem.s), D)
    active = p * D > 1e-12  # below: a kink, or curvature that leaves no room to move
    d = torch.where(active, 0.0, target - here.x)
    if not active.any():
        return d
    slope = torch.where(active, p, 1.0)
    h = torch.where(active, 1 / slope - D, 0.0).clamp(min=0)
    b = torch.where(active, (target - here.x) / slope - problem.apply(d), 0.0)
    inner, _, _ = cg(
        lambda x: torch.where(active, problem.apply(x) + h * x, 0.0), problem.restricted(active, h), b, tol, INNER
    )
    return d + inner


def prox_and_slope(g: Any, y: Tensor, D: Tensor) -> tuple[Tensor, Tensor]:
    """prox(y, D) of a separable g and its derivative, entry by entry."""
    with torch.enable_grad():
        y = y.detach().requires_grad_(True)
        value = g.prox(y, D)
        # each entry of the sum depends on its own y alone, so the gradient is the derivative entry by entry
        slope = torch.autograd.grad(value.sum(), y)[0] if value.requires_grad else torch.zeros_like(y)
    return value.detach(), slope
