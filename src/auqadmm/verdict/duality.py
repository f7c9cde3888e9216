"""The duality gap at v: F(v) − F* ≤ F(v) + Σ_i φ_i*(cθ_i) + g*(−c Σ_i x_iθ_iᵀ) for any slopes θ of the rows (S10).

θ_i = φ'(z_i) are the slopes at v. Where −G = −Σxθ must be scaled into the domain of g* (L1, GroupLasso), c < 1. A free
intercept requires slopes that add up to zero: θ_i = φ'_i − φ''_i a with a = H_bb⁺G_b, the step it would
take, makes them do so and leaves them in the domain of φ* where a is small. With c = 1 and no intercept f_j needs no
conjugate.

No gap where no finite dual value exists: no regularizer, half-open constraints, a loss without a conjugate.

Shapes: m features, C columns; v, G (m, C), B = HE_b (m, C, C).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from auqadmm.core.reduce import Reduce, score
from auqadmm.core.stopping import Certificate
from auqadmm.verdict.model import EPS
from auqadmm.verdict.point import OBJECTIVE_ROUNDING, JudgedPoint, relative_to
from auqadmm.verdict.queries import ConjugateQuery, ProductsQuery

if TYPE_CHECKING:
    from auqadmm.problem.regularizers import Regularizer
    from auqadmm.verdict.judge import Judge

# Chosen, not measured.
ROUNDINGS = 64.0  # of the slopes: how many rounding errors their sum may be off by


def plain_gap(g: Regularizer, v: Tensor, G: Tensor, precision: float) -> float | None:
    """The gap where it costs nothing: no intercept, and −G in the domain of g*. None elsewhere."""
    if g.dual_scale(-G) != 1.0:
        return None
    return at_least_rounding([float(g.value(v)), float((G * v).sum()), float(g.conjugate(-G))], precision)


def full_gap(
    g: Regularizer,
    v: Tensor,
    f: float,
    G: Tensor,
    B: Tensor | None,
    conjugate: Callable[[float, Tensor | None], float],
    precision: float,
    noise: float = 0.0,
) -> float | None:
    """The gap with conjugates of the rows, `conjugate(scale, shift)`: one round. B where there is an intercept."""
    inner, shift, slopes = g, None, G
    if B is not None:
        inner, inverse = penalised(g), intercept_inverse(B[-1])
        if inverse is None:  # then slopes must add up to zero by themselves
            inverse = torch.zeros_like(B[-1])
        shift = inverse @ G[-1]
        moved = G - B @ shift
        shift, moved = shift + inverse @ moved[-1], moved - B @ (inverse @ moved[-1])  # once more: iterative refinement
        left = float(moved[-1].abs().sum())
        if left > ROUNDINGS * noise:  # slopes that do not add up to zero are no dual point
            return None
        slopes, noise = moved[:-1], noise + left * float(v[-1].abs().max())
        v = v[:-1]
    scale = inner.dual_scale(-slopes)
    if scale is None:
        return None
    terms = [f, float(inner.value(v)), conjugate(scale, shift), float(inner.conjugate(-scale * slopes))]
    return at_least_rounding(terms, precision, noise)


def penalised(g: Regularizer) -> Regularizer:
    """g of the rows that it penalises: all but a free intercept's, the last."""
    return getattr(g, "inner", g)


def intercept_inverse(block: Tensor) -> Tensor | None:
    """The inverse of H_bb (C, C), however rare a class is; where one number may be added to all classes, on the rest.
    None where it is singular otherwise."""
    H = 0.5 * (block + block.mT)
    d = H.diagonal()
    if not bool((d > 0).all()) or not bool(H.isfinite().all()):
        return None
    root = d.sqrt()
    K = H / root / root[:, None]
    if len(d) > 1 and float(H.sum(1).abs().max()) <= 1e-9 * float(d.max()):
        flat = root / root.norm()
        K = K + flat[:, None] * flat
    L, info = torch.linalg.cholesky_ex(K)
    if not bool(info == 0):
        return None
    return torch.cholesky_inverse(L) / root / root[:, None]


def at_least_rounding(terms: list[float], precision: float, noise: float = 0.0) -> float | None:
    """The sum of terms that cancel; never reported smaller than their rounding error."""
    gap, rounding = sum(terms), precision * sum(map(abs, terms)) + noise
    return max(gap, rounding) if math.isfinite(gap) else None


# ---------------------------------------------------------------------- with a round of its own

GAP_ROUNDING = 1e-8  # of a gap: the share that rounding of slopes times distant bounds may make up


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
        v_there = v.to(judge.setup.device)
        return float(judge.reduce.judging(ConjugateQuery(centre, scale, shift), v_there, (v_there,))["conjugate"])

    B = None if B is None else B.to(v)
    gap = full_gap(judge.g, v, float(at.f), at.G, B, conjugate, EPS, at.noise)
    if gap is None or (known is not None and known <= gap):
        return None if known is None else at.known
    return replace(at.known, duality_gap=gap, gap_bound=gap, relative=relative_to(gap, at.scale), evidence="proved")


def gap_ahead(judge: Judge, at: JudgedPoint, d: Tensor) -> Certificate | None:
    """The duality gap with the slopes of v + d, which are nearer to the optimal ones: two rounds."""
    columns, there = judge.columns, at.v + d
    assert columns is not None
    inner = penalised(judge.g) if judge.setup.intercept else judge.g
    G = at.G[:-1] if judge.setup.intercept else at.G
    if not hasattr(judge.loss, "row_value") or inner.dual_scale(-G) is None:
        return at.known if at.known.duality_gap is not None else None
    v_ahead = there.to(judge.setup.device)
    E = intercept_directions(judge, v_ahead)
    sums = judge.reduce.judging(ProductsQuery(columns.centre, score=True), (v_ahead, E), (v_ahead,))
    F = float(sums["f"]) + float(judge.g.value(v_ahead))
    if not math.isfinite(F) or not bool(sums["G"].isfinite().all()):
        return at.known if at.known.duality_gap is not None else None
    ahead = replace(at, v=v_ahead, G=sums["G"], F=F, f=sums["f"], known=replace(at.known, duality_gap=None))
    certificate = gap_at(judge, ahead, sums.get("HP"))
    known = at.known
    if certificate is None or certificate.duality_gap is None:
        return known if known.duality_gap is not None else None
    gap = (1 + GAP_ROUNDING) * (max(at.F - F, 0.0) + certificate.duality_gap) + OBJECTIVE_ROUNDING * at.noise
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


# ---------------------------------------------------------------------- without a run
class Certifier:
    """Computes certificates, uncounted; remembers ‖Σ ∇f_j(0)‖, the scale of the problem."""

    def __init__(self, reduce: Reduce, regularizer: Regularizer, zero: Tensor, precision: float = 2.3e-16) -> None:
        self.reduce, self.g, self.precision = reduce, regularizer, precision
        self.grad_at_zero = float(reduce.free(score, None, zero)["G"].norm())

    def certify(self, v: Tensor) -> Certificate:
        """The gap is None where a free intercept would need its own slopes."""
        sums = self.reduce.free(score, None, v)
        f, G = float(sums["f"]), sums["G"]
        scale = self.grad_at_zero + float(sums["norms"])
        distance = float(self.g.subgradient_distance(v, G))
        kkt = distance / scale if scale > 0 else distance
        gap = plain_gap(self.g, v, G, self.precision)
        if gap is None and self.g.dual_scale(-G) is not None:
            gap = full_gap(self.g, v, f, G, None, partial(self._conjugate, v), self.precision)
        return Certificate(f + float(self.g.value(v)), kkt, gap)

    def _conjugate(self, v: Tensor, scale: float, shift: Tensor | None) -> float:
        return float(self.reduce.free(ConjugateQuery(None, scale, shift), None, v)["conjugate"])
