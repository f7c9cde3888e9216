"""The verdict where the triangle of the Hessian is cheap beside the data: δ exactly, then a proof or an estimate.

Shapes: m features, C columns; v, G, d (m, C).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from auqadmm.core.stopping import Certificate
from auqadmm.metrics.triangles import unpack
from auqadmm.verdict.duality import gap_ahead
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
    root,
)
from auqadmm.verdict.queries import ProductsQuery, ReachQuery, SlopeSizesQuery, TriangleQuery

if TYPE_CHECKING:
    from auqadmm.verdict.judge import Judge

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
