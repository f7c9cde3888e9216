"""The optimum of a problem, by methods other than ADMM, certified; torch alone, on the CPU or a GPU.

elastic        ½vᵀHv − bᵀv + l1‖v‖₁ + l2/2‖v‖², H = Σ_i c_i x_i x_iᵀ formed once: block principal pivoting on the
               signs of v, each step one Cholesky factorisation; it ends after finitely many steps with the exact signs
multinomial,   trust-region Newton with preconditioned conjugate gradients (Steihaug) on Σ_j f_j(v) + l2/2‖v‖²;
svm            where function values agree to rounding, the gradient norm decides; the corner of the
               hinge is sharpened step by step

The certificate is the library's own: relative KKT residual, and the duality gap, which bounds how far the objective
can be off. `comparison.reference` solves more kinds of problems, with scipy and scikit-learn, on the CPU.

Reference: J. Kim, H. Park, Fast active-set-type algorithms for l1-regularized linear regression, AISTATS 2010;
T. Steihaug, SIAM J. Numer. Anal. 20 (1983).

Shapes: N blocks, R rows, m features, C columns; v, gradients (m, C).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from auqadmm.core.reduce import Reduce
from auqadmm.engines import LocalEngine
from auqadmm.problem import L2, ElasticNet, InputError, LeastSquares, Problem, SmoothedHinge
from auqadmm.verdict.duality import Certifier

if TYPE_CHECKING:
    from auqadmm.blocks.shard import Shard

# the solvers aim below the required tolerance
KKT = 1e-9
AIM = 1e-11


@dataclass(frozen=True)
class Optimum:
    """The best value found, with its certificate: relative KKT residual and (absolute) duality gap."""

    objective: float
    kkt: float
    gap: float | None
    how: str


def compute(problem: Problem, device: str = "cpu") -> Optimum:
    """Solve and certify."""
    shard = problem.shard(torch.float64, torch.device(device))
    match problem.loss, problem.regularizer:
        case LeastSquares(), ElasticNet() as g:
            v, how = _pivoting(shard, g)
        case _, L2() as g:
            v, how = _newton(shard, g)
        case loss, g:
            raise InputError(f"No optimum is known how to find for {type(loss).__name__} with {type(g).__name__}.")
    certifier = Certifier(Reduce(LocalEngine(shard)), problem.g, torch.zeros_like(v))
    certificate = certifier.certify(v)
    return Optimum(certificate.objective, certificate.kkt, certificate.gap, how)


# ---------------------------------------------------------------------- least squares with an elastic net
def _pivoting(shard: Shard, g: ElasticNet) -> tuple[Tensor, str]:
    H, b = _normal_equations(shard)
    H.diagonal().add_(g.l2)
    signs = torch.sign(torch.where(b.abs() > g.l1, b, 0.0))
    fewest, patience = math.inf, 3
    for step in range(1, 1000):
        v, slope = _with_signs(H, b, signs, g.l1)
        # below the rounding of Hv a sign at zero is meaningless
        slack = 1e-13 * float(b.abs().max())
        wrong = torch.where(signs != 0, v * signs < 0, slope.abs() > g.l1 + slack)
        count = int(wrong.sum())
        if count == 0:
            return v[:, None], f"pivoting on signs, {step} factorisations, {int((signs != 0).sum())} of {len(v)} active"
        if count < fewest:
            fewest, patience = count, 3
        elif patience > 0:
            patience -= 1
        else:  # all at once may cycle; the last alone cannot (Murty's rule)
            last = int(wrong.nonzero()[-1])
            wrong = torch.zeros_like(wrong)
            wrong[last] = True
        signs = torch.where(wrong, torch.where(signs != 0, 0.0, -slope.sign()), signs)
    raise RuntimeError("pivoting did not settle the signs in 1000 steps")


def _normal_equations(shard: Shard) -> tuple[Tensor, Tensor]:
    """H = Σ_i c_i x_i x_iᵀ (m, m) and b = Σ_i c_i y_i x_i (m,), block by block."""
    m = shard.design.features
    H = torch.zeros(m, m, dtype=torch.float64, device=shard.device)
    b = torch.zeros(m, dtype=torch.float64, device=shard.device)
    flat = zip(shard.design.pieces, *(shard.design.split(x) for x in (shard.row_weight, shard.target)), strict=True)
    for piece, weight, target in flat:
        height = piece.X.shape[1]
        for X, c, y in zip(piece.X, weight.split(height), target.split(height), strict=True):
            cX = c[:, None] * X
            H += X.T @ cX
            b += cX.T @ y
    return H, b


def _with_signs(H: Tensor, b: Tensor, signs: Tensor, l1: float) -> tuple[Tensor, Tensor]:
    """The minimiser over vectors with these signs, wrong ones allowed, and the slope Hv − b there."""
    active = signs.nonzero()[:, 0]
    v = torch.zeros_like(b)
    if len(active):
        factor = torch.linalg.cholesky(H[active][:, active])
        for _ in range(3):  # once to solve, twice to refine
            residual = (b - H @ v - l1 * signs)[active]
            v[active] += torch.cholesky_solve(residual[:, None], factor)[:, 0]
    return v, H @ v - b


# ---------------------------------------------------------------------- smooth problems
class _Smooth:
    """F(v) = Σ_j f_j(v) + l2/2‖v‖² at one point."""

    def __init__(self, shard: Shard, l2: float, v: Tensor) -> None:
        self.shard, self.l2, self.v = shard, l2, v
        self.point = shard.linearize(shard.expand(v))
        self.value = float(self.point.value.sum()) + 0.5 * l2 * float(v.square().sum())
        blocks = self.point.grad
        self.grad = blocks.sum(0) + l2 * v
        self.norms = float(blocks.flatten(1).norm(dim=1).sum())

    def hvp(self, P: Tensor) -> Tensor:
        return self.point.hvp(self.shard.expand(P)).sum(0) + self.l2 * P

    def diagonal(self) -> Tensor:
        return self.point.hessian_diagonal().sum(0) + self.l2


def _newton(shard: Shard, g: L2) -> tuple[Tensor, str]:
    v = torch.zeros(shard.shape[1:], dtype=torch.float64, device=shard.device)
    products, steps = 0, 0
    for smoother in _path(shard):
        v, more, used = _trust_region(smoother, g.strength, v, AIM if smoother is shard else 1e-7)
        steps, products = steps + more, products + used
    return v, f"trust-region Newton-CG, {steps} steps, {products} Hessian products"


def _path(shard: Shard) -> list[Any]:
    """The hinge's corner is so narrow that a quadratic model holds for tiny steps only: sharpen it slowly."""
    if not isinstance(shard.loss, SmoothedHinge):
        return [shard]
    eps = shard.loss.eps
    wider = [eps * 2**k for k in range(10, 0, -1)]
    return [replace(shard, loss=replace(shard.loss, eps=width)) for width in wider if width < 1] + [shard]


def _trust_region(shard: Shard, l2: float, v: Tensor, aim: float) -> tuple[Tensor, int, int]:
    """From v to a relative KKT residual `aim`; also the numbers of steps and of Hessian products."""
    current = _Smooth(shard, l2, v)
    at_zero = float(_Smooth(shard, l2, torch.zeros_like(v)).grad.norm())
    radius, products, steps = math.inf, 0, 0
    while (kkt := float(current.grad.norm()) / (at_zero + current.norms)) > aim and steps < 500:
        steps += 1
        scale = current.diagonal().sqrt()
        # superlinear, but no more accurate than the goal
        tolerance = max(min(0.1, math.sqrt(kkt)), 0.3 * aim / kkt) * float((current.grad / scale).norm())
        step, Hstep, used = _steihaug(current.hvp, current.grad, scale, radius, tolerance)
        products += used
        there = _Smooth(shard, l2, current.v + step)
        predicted = -float((current.grad * step).sum()) - 0.5 * float((step * Hstep).sum())
        length = float((scale * step).norm())
        if predicted > 1e-10 * abs(current.value):
            ratio = (current.value - there.value) / predicted
        else:  # both values agree to rounding
            shorter = float(there.grad.norm()) < float(current.grad.norm())
            ratio = 1.0 if shorter else 0.0
        if not ratio > 0.25:  # NaN too
            radius = 0.25 * length
        elif ratio > 0.75 and length > 0.99 * radius:
            radius = 2 * radius
        if ratio > 1e-3:
            current = there
        elif length < 1e-15 * float((scale * current.v).norm()):
            break
    return current.v, steps, products


def _steihaug(
    hvp: Callable[[Tensor], Tensor], grad: Tensor, scale: Tensor, radius: float, tolerance: float
) -> tuple[Tensor, Tensor, int]:
    """Conjugate gradients for min ⟨grad, p⟩ + ½⟨p, Hp⟩, ‖scale∘p‖ ≤ radius, in the variable scale∘p.

    Returns p, Hp and the number of products; at the boundary the path is truncated.
    """
    x = torch.zeros_like(grad)
    Hx = torch.zeros_like(grad)
    r = grad / scale
    d, rr = -r, float(r.square().sum())
    for k in range(1, 20 * grad.numel()):
        Hd = hvp(d / scale) / scale
        curvature = float((d * Hd).sum())
        t = rr / curvature if curvature > 0 else math.inf
        if t * float(d.norm()) == math.inf or float((x + t * d).norm()) >= radius:
            xx, xd, dd = float(x.square().sum()), float((x * d).sum()), float(d.square().sum())
            t = (math.sqrt(xd * xd + dd * (radius * radius - xx)) - xd) / dd
            return (x + t * d) / scale, (Hx + t * Hd) * scale, k
        x, Hx, r = x + t * d, Hx + t * Hd, r + t * Hd
        new = float(r.square().sum())
        if math.sqrt(new) <= tolerance:
            break
        d, rr = -r + (new / rr) * d, new
    return x / scale, Hx * scale, k
