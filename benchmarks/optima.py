"""The optimum of each workload, by methods that have nothing to do with ADMM, certified and kept in optima.json.

elastic        ½vᵀHv − bᵀv + l1‖v‖₁ + l2/2‖v‖², H = Σ_i c_i x_i x_iᵀ formed once: block principal pivoting on the
               signs of v, each step one Cholesky factorisation; it ends after finitely many steps with the exact signs
multinomial,   trust-region Newton with preconditioned conjugate gradients (Steihaug) on Σ_j f_j(v) + l2/2‖v‖²;
svm            where function values stop telling points apart, the length of the gradient decides; the corner of the
               hinge is sharpened step by step

An optimum is kept when its relative KKT residual is at most 1e-9, as the library's certificate defines it; the
duality gap beside it bounds how far the objective can be off. torch alone, on the CPU or a GPU:

    python benchmarks/optima.py --workloads 'mnist-*' --device cuda

Reference: J. Kim, H. Park, Fast active-set-type algorithms for l1-regularized linear regression, AISTATS 2010;
T. Steihaug, SIAM J. Numer. Anal. 20 (1983).

Shapes: N blocks, R rows, m features, C columns; v, gradients (m, C).
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from workloads import Workload, select

import auqadmm as aq
from auqadmm.core.certificate import Certifier
from auqadmm.core.reduce import Reduce
from auqadmm.data import DataError
from auqadmm.engines import LocalEngine

FILE = Path(__file__).with_name("optima.json")
KKT = 1e-9
# the solvers aim lower than what is asked of them
AIM = 1e-11


@dataclass(frozen=True)
class Optimum:
    """The best value found, with its certificate: relative KKT residual and (absolute) duality gap."""

    objective: float
    kkt: float
    gap: float | None
    how: str


def compute(problem: aq.Problem, device: str = "cpu") -> Optimum:
    """Solve and certify."""
    shard = problem.shard(torch.float64, torch.device(device))
    elastic = isinstance(problem.loss, aq.LeastSquares)
    v, how = (_pivoting if elastic else _newton)(shard, problem.regularizer)
    certifier = Certifier(Reduce(LocalEngine(shard)), problem.g, torch.zeros_like(v), None)
    found = certifier.certify(None, v, gap=True)
    return Optimum(found.objective, found.kkt, found.gap, how)


# ---------------------------------------------------------------------- least squares with an elastic net
def _pivoting(shard: Any, g: aq.ElasticNet) -> tuple[Tensor, str]:
    H, b = _normal_equations(shard)
    H.diagonal().add_(g.l2)
    signs = torch.sign(torch.where(b.abs() > g.l1, b, 0.0))
    fewest, patience = math.inf, 3
    for step in range(1, 1000):
        v, slope = _with_signs(H, b, signs, g.l1)
        # rounding of Hv bounds what a sign at zero can mean
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


def _normal_equations(shard: Any) -> tuple[Tensor, Tensor]:
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

    def __init__(self, shard: Any, l2: float, v: Tensor) -> None:
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


def _newton(shard: Any, g: aq.L2) -> tuple[Tensor, str]:
    v = torch.zeros(shard.shape[1:], dtype=torch.float64, device=shard.device)
    products, steps = 0, 0
    for smoother in _path(shard):
        v, more, used = _trust_region(smoother, g.strength, v, AIM if smoother is shard else 1e-7)
        steps, products = steps + more, products + used
    return v, f"trust-region Newton-CG, {steps} steps, {products} Hessian products"


def _path(shard: Any) -> list[Any]:
    """The hinge's corner is so narrow that a quadratic model of it is good for tiny steps only: sharpen it slowly."""
    if not isinstance(shard.loss, aq.SmoothedHinge):
        return [shard]
    eps = shard.loss.eps
    wider = [eps * 2**k for k in range(10, 0, -1)]
    return [replace(shard, loss=replace(shard.loss, eps=width)) for width in wider if width < 1] + [shard]


def _trust_region(shard: Any, l2: float, v: Tensor, aim: float) -> tuple[Tensor, int, int]:
    """From v to a relative KKT residual `aim`; also the numbers of steps and of Hessian products."""
    here = _Smooth(shard, l2, v)
    at_zero = float(_Smooth(shard, l2, torch.zeros_like(v)).grad.norm())
    radius, products, steps = math.inf, 0, 0
    while (kkt := float(here.grad.norm()) / (at_zero + here.norms)) > aim and steps < 500:
        steps += 1
        scale = here.diagonal().sqrt()
        # superlinear, but no more exact than the goal
        tolerance = max(min(0.1, math.sqrt(kkt)), 0.3 * aim / kkt) * float((here.grad / scale).norm())
        step, Hstep, used = _steihaug(here.hvp, here.grad, scale, radius, tolerance)
        products += used
        there = _Smooth(shard, l2, here.v + step)
        predicted = -float((here.grad * step).sum()) - 0.5 * float((step * Hstep).sum())
        length = float((scale * step).norm())
        if predicted > 1e-10 * abs(here.value):
            ratio = (here.value - there.value) / predicted
        else:  # both values agree to rounding
            shorter = float(there.grad.norm()) < float(here.grad.norm())
            ratio = 1.0 if shorter else 0.0
        if not ratio > 0.25:  # NaN too
            radius = 0.25 * length
        elif ratio > 0.75 and length > 0.99 * radius:
            radius = 2 * radius
        if ratio > 1e-3:
            here = there
        elif length < 1e-15 * float((scale * here.v).norm()):
            break
    return here.v, steps, products


def _steihaug(
    hvp: Callable[[Tensor], Tensor], grad: Tensor, scale: Tensor, radius: float, tolerance: float
) -> tuple[Tensor, Tensor, int]:
    """Conjugate gradients for min ⟨grad, p⟩ + ½⟨p, Hp⟩, ‖scale∘p‖ ≤ radius, in the variable scale∘p.

    Returns p, Hp and the number of products; at the boundary the path is cut.
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


# ---------------------------------------------------------------------- the file
def known() -> dict[str, Optimum]:
    """The optima in optima.json."""
    if not FILE.is_file():
        return {}
    return {name: Optimum(**entry) for name, entry in json.loads(FILE.read_text(encoding="utf-8")).items()}


def write(found: dict[str, Optimum], path: Path | None = None) -> None:
    entries = {name: vars(found[name]) for name in sorted(found)}
    (path or FILE).write_text(json.dumps(entries, indent=2) + "\n", encoding="utf-8")


def optimum(workload: Workload, problem: aq.Problem | None = None, device: str = "cpu") -> Optimum:
    """From the file, else computed now and added to it."""
    found = known()
    name = workload.pooled.name
    if name not in found:
        if problem is None or workload.pooled != workload:
            problem = workload.pooled.make()
        new = compute(problem, device)
        if not new.kkt <= KKT:
            raise RuntimeError(f"{name}: KKT residual {new.kkt:.1e}, above {KKT:.0e} ({new.how})")
        found = known() | {name: new}
        write(found)
    return found[name]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Compute reference optima and keep them in optima.json.")
    parser.add_argument("--workloads", nargs="+", default=["*"], metavar="GLOB")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--force", action="store_true", help="compute again what is already known")
    parser.add_argument("--out", type=Path, help="copy the file there when done")
    given = parser.parse_args(arguments)
    failures = 0
    for workload in dict.fromkeys(w.pooled for w in select(given.workloads)):
        if given.force:
            write({name: entry for name, entry in known().items() if name != workload.name})
        began = time.perf_counter()
        try:
            found = optimum(workload, device=given.device)
        except DataError as error:
            print(f"{workload.name:32} skipped: {error}", flush=True)
            continue
        except RuntimeError as error:
            failures += 1
            print(f"{workload.name:32} FAILED: {error}", flush=True)
            continue
        seconds = time.perf_counter() - began
        gap = "none" if found.gap is None else f"{found.gap / abs(found.objective):.0e}"
        print(
            f"{workload.name:32} {found.objective:.12g}  KKT {found.kkt:.0e}  relative gap {gap}  {seconds:.1f} s  "
            f"{found.how}",
            flush=True,
        )
        if given.out is not None:
            given.out.mkdir(parents=True, exist_ok=True)
            write(known(), given.out / FILE.name)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
