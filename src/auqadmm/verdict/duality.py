"""The duality gap at v: F(v) − F* ≤ F(v) + Σ_i φ_i*(cθ_i) + g*(−c Σ_i x_iθ_iᵀ) for any slopes θ of the rows (S10).

θ_i = φ'(z_i) are the slopes at v. Where −G = −Σxθ must be scaled into the domain of g* (L1, GroupLasso), c < 1. A free
intercept is content with slopes that add up to zero only: θ_i = φ'_i − φ''_i a with a = H_bb⁺G_b, the step it would
take, makes them do so and leaves them in the domain of φ* where a is small. With c = 1 and no intercept f_j needs no
conjugate.

No gap where no finite dual value is at hand: no regularizer, half-open constraints, a loss without a conjugate.

Shapes: m features, C columns; v, G (m, C), B = HE_b (m, C, C).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

ROUNDINGS = 64.0  # of the slopes, that their sum may be off by


def plain_gap(g: Any, v: Tensor, G: Tensor, precision: float) -> float | None:
    """The gap where it costs nothing: no intercept, and −G in the domain of g*. None elsewhere."""
    if g.dual_scale(-G) != 1.0:
        return None
    return at_least_rounding([float(g.value(v)), float((G * v).sum()), float(g.conjugate(-G))], precision)


def full_gap(
    g: Any,
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
        inner, inverse = g.inner, intercept_inverse(B[-1])
        if inverse is None:
            return None
        shift = inverse @ G[-1]
        moved = G - B @ shift
        shift, moved = shift + inverse @ moved[-1], moved - B @ (inverse @ moved[-1])  # once more, for the digits
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
    """The sum of terms that cancel; what is below their rounding is not known to be smaller."""
    gap, rounding = sum(terms), precision * sum(map(abs, terms)) + noise
    return max(gap, rounding) if math.isfinite(gap) else None
