"""minimise f(v) + g(v), f(v) = ½⟨v, Kv⟩ − ⟨s, v⟩, with K known by products and g by its proximal map.

A forward-backward step from x in the diagonal metric Γ = ℓ·diag K ≽ K also measures optimality:

    z = prox_g(y, Γ),  y = Γx − ∇f(x),     ξ = y − Γz ∈ ∂g(z),     so  dist(0, ∂(f + g)(z)) ≤ ‖∇f(z) + ξ‖.

That number is the residual reported everywhere: an upper bound for any g and Γ, the distance itself where g is smooth.

`accelerated` repeats the step with momentum, which is dropped when it points uphill. It
needs of g only the proximal map; the number of steps grows with the condition of K scaled by its diagonal. `pivot`
is the method for separable g.

References: A. Beck, M. Teboulle, A fast iterative shrinkage-thresholding algorithm, SIAM J. Imaging Sci. 2, 2009;
B. O'Donoghue, E. Candès, Adaptive restart for accelerated gradient schemes, Found. Comput. Math. 15, 2015.

Shapes: x, z, s, D (m, C).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from auqadmm.metrics.cg import Operator
from auqadmm.metrics.weights import Proximal

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
