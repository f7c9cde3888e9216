"""The verdict from δ: exactly, from the triangle of the Hessian where that is cheap beside the data, then a proof or an
estimate; else from Hessian products, where δ is bounded from above, or a duality gap.

By products:

For g a parabola. A free intercept is eliminated: with B = HE_b, H̄ = H − BH_bb⁺Bᵀ and Ḡ = G − BH_bb⁺G_b,

    δ = ½⟨G_b, H_bb⁺G_b⟩ + ½⟨r, (H̄ + l2)⁻¹r⟩,   r = Ḡ + l2·w

A sketch of H̄ (two rounds) gives UUᵀ ≼ H̄, its Nyström part, and D, the rest of the diagonal. With P = UUᵀ + D + l2
    H̄ + l2 ≽ UUᵀ + l2 ≽ μP,    μ = min l2/(l2 + D),
and conjugate gradients preconditioned by P are a Gauss quadrature of ⟨r, (H̄ + l2)⁻¹r⟩ from below; with one more node,
prescribed at μ, it is one from above (Gauss–Radau). Both come with every product.

Reference: G. H. Golub, G. Meurant, Matrices, Moments and Quadrature with Applications, 2010; G. Meurant, P. Tichý,
Numer. Algorithms 62, 2013, for the coefficients.

Shapes: m features, C columns, k directions; v, G, d, D (m, C), directions and U (m, C, k); H_bb (C, C).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from auqadmm.core.stopping import Certificate
from auqadmm.metrics.sums import unpack
from auqadmm.verdict.duality import gap_ahead, gap_at, intercept_directions, intercept_inverse
from auqadmm.verdict.model import EPS, QuadraticModel
from auqadmm.verdict.point import (
    OBJECTIVE_ROUNDING,
    JudgedPoint,
    Verdict,
    agrees,
    collinear,
    expected_inflation,
    inflation,
    notes,
    relative_to,
    root,
    undecidable,
)
from auqadmm.verdict.queries import DiagonalReachQuery, ProductsQuery, ReachQuery, SlopeSizesQuery, TriangleQuery

if TYPE_CHECKING:
    from auqadmm.verdict.judge import Judge

# Chosen, not measured (results/verdict has the rounds of verdicts with them).
DIRECTIONS = 20  # random ones of a sketch of the Hessian
MOST_PRODUCTS = 20  # of conjugate gradients that bound δ, each a round
SKETCH_ROUNDING = 1e-12  # eigenvalues of the sketch below this share are rounding


@dataclass(frozen=True)
class EliminatedIntercept:
    """The intercept eliminated: B (m, C, b) and H_bb⁺ (b, b); without an intercept both are empty."""

    B: Tensor
    inverse: Tensor
    intercept: bool

    @classmethod
    def of(cls, B: Tensor | None, v: Tensor) -> EliminatedIntercept:
        if B is None:
            return cls(v.new_zeros(*v.shape, 0), v.new_zeros(0, 0), False)
        inverse = intercept_inverse(B[-1])
        return cls(B, torch.full_like(B[-1], math.nan) if inverse is None else inverse, True)

    def rows(self, x: Tensor) -> Tensor:
        """x with the intercept's row left out, as zeros."""
        if not self.intercept:
            return x
        out = x.clone()
        out[-1] = 0
        return out

    def products(self, HP: Tensor) -> Tensor:
        """H̄P from HP, P without an intercept; (m, C, k)."""
        if not self.intercept:
            return HP
        return self.rows(HP - torch.einsum("mcb,bd,dk->mck", self.B, self.inverse, HP[-1]))

    def slopes(self, G: Tensor) -> tuple[Tensor, float, Tensor]:
        """Ḡ, the decrease by the intercept's own step, and that step."""
        if not self.intercept:
            return G, 0.0, G.new_zeros(G.shape[1])
        step = self.inverse @ G[-1]
        return self.rows(G - self.B @ step), 0.5 * float(G[-1] @ step), -step

    def diagonal(self, D: Tensor) -> Tensor:
        if not self.intercept:
            return D
        return self.rows(D - torch.einsum("mcb,bd,mcd->mc", self.B, self.inverse, self.B)).clamp(min=0)

    def back(self, d: Tensor) -> Tensor:
        """The intercept's part of a step in the others, H_bb⁺Bᵀd."""
        return self.inverse @ torch.einsum("mcb,mc->b", self.B, d)


@dataclass(frozen=True)
class Preconditioner:
    """P = UUᵀ + Δ on the penalised unknowns (`kept`), Δ = D + l2, and μ with H̄ + l2 ≽ μP."""

    U: Tensor
    delta: Tensor
    kept: Tensor
    mu: float
    core: Tensor

    @classmethod
    def of(cls, HQ: Tensor, Q: Tensor, diagonal: Tensor, l2: Tensor, kept: Tensor) -> Preconditioner:
        k = HQ.shape[2]
        flat, basis = HQ.reshape(-1, k), Q.reshape(-1, k)
        M = basis.mT @ flat
        e, V = torch.linalg.eigh(0.5 * (M + M.mT))
        good = e > SKETCH_ROUNDING * e.max().clamp(min=1e-300)
        U = flat @ (V[:, good] / e[good].sqrt())
        D = (diagonal.reshape(-1) - U.square().sum(1)).clamp(min=0)
        D = torch.maximum(D, 1e-10 * diagonal.reshape(-1))
        prior = l2.reshape(-1)
        delta = torch.where(kept.reshape(-1), D + prior, 1.0)
        mu = float(torch.where(kept.reshape(-1), prior / delta, 1.0).min().clamp(max=1.0))
        core = torch.eye(U.shape[1], dtype=U.dtype, device=U.device) + U.mT @ (U / delta[:, None])
        return cls(U, delta, kept, mu, torch.linalg.cholesky(core))

    def solve(self, r: Tensor) -> Tensor:
        x = r.reshape(-1) / self.delta
        low = torch.cholesky_solve((self.U.mT @ x)[:, None], self.core)[:, 0]
        return (x - (self.U @ low) / self.delta).reshape(r.shape)


@dataclass(frozen=True)
class Bounds:
    """Of δ after some products, and the step they lead to (m, C)."""

    lower: float
    upper: float
    d: Tensor
    products: int


def bounds(
    multiply: Callable[[Tensor], Tensor],
    P: Preconditioner,
    r: Tensor,
    base: float,
    enough: float,
    most: int = MOST_PRODUCTS,
) -> Bounds:
    """Conjugate gradients on (H̄ + l2)d = −r until the upper bound is `enough`, the lower one exceeds it, or `most`
    products are spent. `base`: the intercept's part of δ."""
    z = P.solve(r)
    p, rz, d = z, float((r * z).sum()), torch.zeros_like(r)
    lower = 0.0
    node = 1 / P.mu if P.mu > 0 else math.inf
    best = Bounds(base, base + 0.5 * node * rz if rz > 0 else base, d, 0)
    tiny = 1e-26 * rz
    for k in range(1, most + 1):
        if not rz > tiny or best.upper <= enough or best.lower > enough:
            break
        Hp = multiply(p)
        pHp = float((p * Hp).sum())
        if not pHp > 0:
            break
        a = rz / pHp
        lower += 0.5 * a * rz
        d, r = d - a * p, r - a * Hp
        z = P.solve(r)
        new = float((r * z).sum())
        b = new / rz
        if math.isfinite(node):
            node = max((node - a) / (P.mu * (node - a) + b), 0.0) if new > tiny else 0.0
        p, rz = z + b * p, max(new, 0.0)
        best = Bounds(base + lower, base + lower + (0.5 * node * rz if rz > 0 else 0.0), d, k)
    return best


def random_signs(v: Tensor, k: int, intercept: bool) -> Tensor:
    """Directions (m, C, k) of random signs, zero on the intercept's row; the same in every process."""
    coins = torch.Generator().manual_seed(0)
    O = torch.randint(0, 2, (*v.shape, k), generator=coins, dtype=torch.int8).to(v.device).to(v.dtype).mul_(2).sub_(1)
    if intercept:
        O[-1] = 0
    return O


def orthonormal_basis(HO: Tensor) -> Tensor:
    """An orthonormal basis (m, C, ≤ k) of the directions, twice from their inner products: quicker than QR on a GPU."""
    m, C, k = HO.shape
    Q = HO.reshape(m * C, k)
    for _ in range(2):
        e, V = torch.linalg.eigh((Q.mT @ Q).cpu())
        good = e > SKETCH_ROUNDING * e.max().clamp(min=1e-300)
        Q = Q @ (V[:, good] / e[good].sqrt()).to(Q)
    return Q.reshape(m, C, -1)


def diagonal_reach(P: Preconditioner, out: EliminatedIntercept, shape: tuple[int, int]) -> tuple[Tensor, Tensor, float]:
    """α, β (m,) and γ: tr of ‖x ⊗ ·‖² in (H + l2)⁻¹ is at most Σ_k α_k x_k² − 2β_k x_k + γ (docs/theory.md)."""
    m, C = shape
    weight = torch.where(P.kept, 1 / (P.mu * P.delta.reshape(m, C)), 0.0)
    alpha = weight.sum(1)
    if not out.intercept:
        return alpha, torch.zeros_like(alpha), 0.0
    Y = torch.einsum("mcb,bd->mcd", out.B, out.inverse)
    beta = (weight * Y.diagonal(dim1=1, dim2=2)).sum(1)
    gamma = float((weight[:, :, None] * Y.square()).sum() + out.inverse.diagonal().sum())
    return alpha, beta, gamma


# ---------------------------------------------------------------------- the verdict
def by_products(
    judge: Judge, v: Tensor, tol: float, known: Certificate, sums: Mapping[str, Tensor] | None = None
) -> Verdict:
    """`sums`: value, gradient and rounding at v, where they are known, and products with the intercept's unknowns."""
    columns, C = judge.columns, judge.setup.columns
    assert columns is not None
    intercept, l2 = judge.setup.intercept, judge.g.convexity(v)
    kept = torch.ones_like(v, dtype=torch.bool)
    if intercept:
        kept[-1] = False
    bounded = judge.g.quadratic and bool((l2[kept] > 0).all())
    directions = E = intercept_directions(judge, v)
    if bounded:
        O = random_signs(v, min(DIRECTIONS, v.numel()), intercept)
        directions = O if E is None else torch.cat([O, E], 2)
    null = columns.null if judge.null is None else None
    ask = ProductsQuery(columns.centre, diagonal=bounded, score=True, null=null)
    if sums is None or bounded or (intercept and "HP" not in sums):
        sums = judge.reduce.judging(ask, (v, directions), (v,))  # directions are seeded, so they need not be sent
    judge.know_null(sums)
    at = judge.at(v, sums, known)
    if isinstance(at, Verdict):
        return at
    B = sums["HP"][:, :, -C:] if intercept else None
    dual = gap_at(judge, at, B)
    certificate = dual or at.known
    if certificate.passes(tol) or not bounded:
        if not certificate.passes(tol) and certificate.evidence == "none":
            certificate = replace(certificate, reason=undecidable(judge))
        elif not certificate.passes(tol) and at.untold(certificate.gap_bound):
            certificate = at.rounding(certificate, certificate.gap_bound)
        return Verdict(certificate, floor=at.floor)
    out = EliminatedIntercept.of(B, v)
    if not bool(out.inverse.isfinite().all()):
        return Verdict(
            replace(certificate, reason="The intercept hardly bends the objective any more."), floor=at.floor
        )
    HO = out.products(sums["HP"] if B is None else sums["HP"][:, :, :-C])
    Q = orthonormal_basis(HO)
    HQ = _products(judge, v, Q)
    P = Preconditioner.of(out.products(HQ), Q, out.diagonal(sums["diagonal"]), l2, kept)
    slopes, base, step = out.slopes(at.G)
    enough = tol * at.scale

    def multiply(p: Tensor) -> Tensor:
        return out.products(_products(judge, v, p[:, :, None]))[:, :, 0] + torch.where(kept, l2 * p, 0.0)

    r = torch.where(kept, slopes + l2 * v, 0.0)
    of = bounds(multiply, P, r, base, enough / 1.3)
    of = replace(of, upper=at.rounded(of.upper))
    M = judge.loss.concordance
    x = 0.0 if M == 0 else math.inf
    if 0 < M < math.inf and of.upper <= enough:
        alpha, beta, gamma = diagonal_reach(P, out, (v.shape[0], v.shape[1]))
        reach = judge.reduce.judging(DiagonalReachQuery(columns.centre, gamma), (alpha, beta), (alpha, beta))
        x = M * root(reach["reach"]) * math.sqrt(2 * of.upper)
    bound = inflation(x) * of.upper
    judged = at.judged(of.upper, bound)
    if dual is not None and dual.gap_bound < judged.gap_bound:
        judged = replace(dual, delta=of.upper)
    asked = of.upper <= enough or M == 0
    verdict = Verdict(judged, None, P, expected_inflation(x, of.upper, enough) if asked else 1.0, at.floor)
    if judged.passes(tol):
        return verdict
    if of.upper <= 4 * at.floor:
        return replace(verdict, certificate=at.rounding(judged))
    if of.upper <= enough and not math.isfinite(bound):
        d = of.d.clone()
        if intercept:
            d[-1] = step - out.back(of.d)
        there = v + d
        sums = judge.reduce.judging(ProductsQuery(columns.centre, score=True), (there, None), (there,))
        F, G = float(sums["f"]) + float(judge.g.value(there)), sums["G"]
        after = math.inf
        if math.isfinite(F):
            slopes, base, _ = out.slopes(G)
            r = torch.where(kept, slopes + l2 * there, 0.0)
            after = base + 0.5 * float((r * P.solve(r)).sum())
        return replace(verdict, certificate=agrees(at, of.upper, at.F - F, after, 0.01 * enough, judged))
    if of.lower <= enough < of.upper and not judged.reason:
        more = f"{of.products} Hessian products leave the gap between {relative_to(of.lower, at.scale):.1e} and "
        judged = replace(judged, reason=f"{more}{relative_to(of.upper, at.scale):.1e} of the optimum.")
    return replace(verdict, certificate=judged)


def _products(judge: Judge, v: Tensor, P: Tensor) -> Tensor:
    """H P, one counted round: directions go down, products come up."""
    assert judge.columns is not None
    return judge.reduce.judging(ProductsQuery(judge.columns.centre), (v, P), (P,))["HP"]


STATIONARY_ROUNDINGS = 64.0  # of the terms of a sum of slopes, root of the sum of squares: what it may be off by


def by_triangle(
    judge: Judge, v: Tensor, tol: float, known: Certificate, sums: Mapping[str, Tensor] | None = None
) -> Verdict:
    """`sums`: the sums of a round at v, where they are known."""
    columns, M = judge.columns, judge.loss.concordance
    assert columns is not None
    spread = columns.spread if 0 < M < math.inf else None
    null = columns.null if judge.null is None else None
    if sums is None and judge.gram is None:
        sums = judge.reduce.judging(TriangleQuery(columns.centre, spread, null), v, (v,))
    elif sums is None and judge.gram is not None:
        ask = ProductsQuery(columns.centre, score=True, null=null)
        sums = judge.reduce.judging(ask, (v, None), (v,)) | {"H": judge.gram}
    assert sums is not None
    judge.know_null(sums)
    at = judge.at(v, sums, known)
    if isinstance(at, Verdict):
        return at
    if judge.loss.quadratic:
        judge.gram = sums["H"]
    model = _model(judge, at, sums)
    at = replace(at, known=replace(at.known, notes=notes(judge)))
    v, G = at.v, at.G
    freed, reason = None, ""
    if model.singular:
        reason = collinear(judge, model)
        certificate = gap_ahead(judge, at, model.lifted().step(judge.g, G, v, 0.01 * tol * at.scale).d)
        if certificate is not None and certificate.passes(tol):
            return Verdict(certificate, floor=at.floor)
        if certificate is not None and at.untold(certificate.gap_bound):
            return Verdict(at.rounding(certificate, certificate.gap_bound), floor=at.floor)
        freed = _freed(judge, at, sums) if certificate is None else None
        if freed is None and model.vanished and judge.loss.kinked and _stationary(judge, at):
            return Verdict(at.rounding(certificate or at.known), floor=at.floor)
        if freed is None:
            return Verdict(replace(certificate or at.known, reason=reason), floor=at.floor)
        model = freed
    step = model.step(judge.g, G, v, 0.01 * tol * at.scale) if freed is None else model.newton(G, v)
    delta = at.rounded(model.slack * step.delta)
    # the rows' reach in a diagonal metric was summed in the same round; the exact one takes another
    x = 0.0 if M == 0 else math.inf
    if spread is not None:
        x = M * root(sums["reach"]) * math.sqrt(model.reach(spread.to(v)) * 2 * delta)
    bound = inflation(x) * delta if delta > 0 else 0.0
    if bound > tol * at.scale >= delta and math.isfinite(M):
        roots = model.roots()
        reach = judge.reduce.judging(ReachQuery(columns.centre), roots.to(judge.setup.device), (roots,))
        x = M * root(reach["reach"]) * math.sqrt(2 * delta)
        bound = inflation(x) * delta
    certificate = at.judged(delta, bound)
    verdict = Verdict(certificate, model, None, expected_inflation(x, delta, tol * at.scale), at.floor)
    if certificate.passes(tol):
        return verdict
    certificate = replace(certificate, reason=reason)
    if delta <= tol * at.scale and not math.isfinite(bound):
        dual = gap_ahead(judge, at, step.d)
        if dual is not None and dual.passes(tol):
            return replace(verdict, certificate=replace(dual, delta=delta))
    floor = max(at.floor, OBJECTIVE_ROUNDING * step.floor)
    if step.delta <= floor:
        return replace(verdict, certificate=at.rounding(certificate, floor))
    if delta > tol * at.scale or math.isfinite(bound):
        return replace(verdict, certificate=certificate)
    return replace(verdict, certificate=_second_look(judge, at, step.d, delta, tol, certificate))


def _second_look(
    judge: Judge, at: JudgedPoint, d: Tensor, delta: float, tol: float, certificate: Certificate
) -> Certificate:
    """No proof: is the model accurate at v + d?"""
    assert judge.columns is not None
    there = at.v + d
    sums = judge.reduce.judging(TriangleQuery(judge.columns.centre, None, None), there.to(judge.setup.device), (there,))
    F = float(sums["f"]) + float(judge.g.value(there))
    small, fell, after = 0.01 * tol * at.scale, at.F - F, math.inf
    if math.isfinite(F) and bool(sums["G"].isfinite().all()):
        model = _model(judge, replace(at, v=there), sums)
        if not model.singular:
            after = model.step(judge.g, sums["G"].to(there), there, small).delta
    return agrees(at, delta, fell, after, small, certificate)


def _stationary(judge: Judge, at: JudgedPoint) -> bool:
    """Is 0 a subgradient of F at v, as far as the sum of slopes tells? Then v is a minimiser, though no row bends."""
    s = judge.g.subgradient(at.v, at.G)
    if s is None:
        return False
    assert judge.columns is not None
    v = at.v.to(judge.setup.device)
    sizes = judge.reduce.judging(SlopeSizesQuery(judge.columns.centre), v, (v,))["sizes"].to(at.v)
    return bool((s.abs() <= STATIONARY_ROUNDINGS * EPS * (sizes.sqrt() + at.G.abs())).all())


def _freed(judge: Judge, at: JudgedPoint, sums: Mapping[str, Tensor]) -> QuadraticModel | None:
    """The model without g, where classes may be shifted together and g forbids it: where v minimises g, F without g
    can fall no less far. None elsewhere, or where that is singular too."""
    g, zero = judge.g, torch.zeros_like(at.v)
    least = float(g.value(at.v)) + float(g.conjugate(zero)) == 0
    if not judge.loss.gauge or not least or bool(g.convexity(at.v).any()):
        return None
    model = _model(judge, at, sums, free=True)
    return None if model.singular else model


def _model(judge: Judge, at: JudgedPoint, sums: Mapping[str, Tensor], free: bool = False) -> QuadraticModel:
    columns = judge.columns
    assert columns is not None
    H = unpack(sums["H"]).to(at.v)
    m, C = at.v.shape
    l2 = judge.g.convexity(at.v)
    diagonal = H.diagonal(dim1=1, dim2=2)
    coupled = H.shape[-1] == m * C
    size = diagonal[0].reshape(m, C) if coupled else diagonal.mT.expand(m, C)
    absent = columns.empty.to(l2.device)[:, None].expand(m, C)
    constant = columns.constant(size)
    absent = absent | constant
    judge.constant = tuple((constant & ~columns.empty.to(l2.device)[:, None]).all(1).nonzero()[:, 0].tolist())
    gauge = None
    if judge.loss.gauge and C > 1:
        free = free or judge.g.quadratic
        gauge = (l2 == 0).all(1) if free else torch.zeros(m, dtype=torch.bool, device=l2.device)
        if judge.setup.intercept:
            gauge[-1] = True
        gauge = gauge & ~absent.all(1)
    return QuadraticModel.of(H, l2, absent, gauge)
