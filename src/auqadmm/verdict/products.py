"""The verdict from a few Hessian products, where the triangle is too large: δ bounded from above, or a duality gap.

Shapes: m features, C columns; v, G, d (m, C), directions (m, C, k).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from auqadmm.core.certificate import Certificate
from auqadmm.verdict import large
from auqadmm.verdict.duality import gap_at, intercept_directions
from auqadmm.verdict.point import Verdict, agrees, expected_inflation, inflation, relative_to, root
from auqadmm.verdict.queries import DiagonalReachQuery, ProductsQuery
from auqadmm.verdict.sentences import undecidable

if TYPE_CHECKING:
    from auqadmm.verdict.judge import Judge


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
        O = large.random_signs(v, min(large.DIRECTIONS, v.numel()), intercept)
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
    out = large.EliminatedIntercept.of(B, v)
    if not bool(out.inverse.isfinite().all()):
        return Verdict(
            replace(certificate, reason="The intercept hardly bends the objective any more."), floor=at.floor
        )
    HO = out.products(sums["HP"] if B is None else sums["HP"][:, :, :-C])
    Q = large.orthonormal_basis(HO)
    HQ = _products(judge, v, Q)
    P = large.Preconditioner.of(out.products(HQ), Q, out.diagonal(sums["diagonal"]), l2, kept)
    slopes, base, step = out.slopes(at.G)
    enough = tol * at.scale

    def multiply(p: Tensor) -> Tensor:
        return out.products(_products(judge, v, p[:, :, None]))[:, :, 0] + torch.where(kept, l2 * p, 0.0)

    r = torch.where(kept, slopes + l2 * v, 0.0)
    of = large.bounds(multiply, P, r, base, enough / 1.3)
    of = replace(of, upper=at.rounded(of.upper))
    M = judge.loss.concordance
    x = 0.0 if M == 0 else math.inf
    if 0 < M < math.inf and of.upper <= enough:
        alpha, beta, gamma = large.diagonal_reach(P, out, (v.shape[0], v.shape[1]))
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
