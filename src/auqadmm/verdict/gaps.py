"""Duality gaps, asked for: at v, or with the slopes of a step ahead, which are nearer to the optimal ones.

Shapes: m features, C columns; v, d (m, C), B = HE_b (m, C, C).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from auqadmm.core.certificate import Certificate
from auqadmm.verdict.duality import full_gap
from auqadmm.verdict.model import EPS
from auqadmm.verdict.point import ROUNDED, JudgedPoint, relative_to
from auqadmm.verdict.queries import ConjugateQuery, ProductsQuery

DIGITS = 1e-8  # of a gap, that the rounding of slopes times far bounds may take

if TYPE_CHECKING:
    from auqadmm.verdict.judge import Judge


def gap_at(judge: Judge, at: JudgedPoint, B: Tensor | None) -> Certificate | None:
    """The certificate with the duality gap, at one round where conjugates are needed; None where there is none."""
    assert judge.columns is not None
    centre, v = judge.columns.centre, at.v
    known = at.known.duality_gap
    if known is not None and judge.g.dual_scale(-at.G) == 1.0:  # exactly
        return at.known
    if not hasattr(judge.loss, "row_value"):
        return None

    def conjugate(scale: float, shift: Tensor | None) -> float:
        here = v.to(judge.setup.device)
        return float(judge.reduce.judging(ConjugateQuery(centre, scale, shift), here, (here,))["conjugate"])

    B = None if B is None else B.to(v)
    gap = full_gap(judge.g, v, float(at.f), at.G, B, conjugate, EPS, at.noise)
    if gap is None or (known is not None and known <= gap):
        return None if known is None else at.known
    return replace(at.known, duality_gap=gap, gap_bound=gap, relative=relative_to(gap, at.scale), evidence="proved")


def gap_ahead(judge: Judge, at: JudgedPoint, d: Tensor) -> Certificate | None:
    """The duality gap with the slopes of v + d, which are nearer to the optimal ones: two rounds."""
    columns, there = judge.columns, at.v + d
    assert columns is not None
    inner = judge.g.inner if judge.setup.intercept else judge.g
    G = at.G[:-1] if judge.setup.intercept else at.G
    if not hasattr(judge.loss, "row_value") or inner.dual_scale(-G) is None:
        return at.known if at.known.duality_gap is not None else None
    here = there.to(judge.setup.device)
    E = intercept_directions(judge, here)
    sums = judge.reduce.judging(ProductsQuery(columns.centre, score=True), (here, E), (here,))
    F = float(sums["f"]) + float(judge.g.value(here))
    if not math.isfinite(F) or not bool(sums["G"].isfinite().all()):
        return at.known if at.known.duality_gap is not None else None
    ahead = replace(at, v=here, G=sums["G"], F=F, f=sums["f"], known=replace(at.known, duality_gap=None))
    found = gap_at(judge, ahead, sums.get("HP"))
    known = at.known
    if found is None or found.duality_gap is None:
        return known if known.duality_gap is not None else None
    gap = (1 + DIGITS) * (max(at.F - F, 0.0) + found.duality_gap) + ROUNDED * at.noise
    if known.duality_gap is not None and known.duality_gap <= gap:
        return known
    return replace(known, duality_gap=gap, gap_bound=gap, relative=relative_to(gap, at.scale), evidence="proved")


def intercept_directions(judge: Judge, v: Tensor) -> Tensor | None:
    """The intercept's unknowns as directions (m, C, C)."""
    if not judge.setup.intercept:
        return None
    E = torch.zeros(*v.shape, v.shape[1], dtype=v.dtype, device=v.device)
    E[-1] = torch.eye(v.shape[1], dtype=v.dtype, device=v.device)
    return E
