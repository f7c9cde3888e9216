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


def plain_gap(g: Any, v: Tensor, G: Tensor, precision: float) -> float | None:
    """The gap where it costs nothing: no intercept, and −G in the domain of g*. None elsewhere."""
    if g.dual_scale(-G) != 1.0:
        return None
    return lifted([float(g.value(v)), float((G * v).sum()), float(g.conjugate(-G))], precision)


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
        inner = g.inner
        block = 0.5 * (B[-1] + B[-1].mT)
        shift = torch.linalg.pinv(block, hermitian=True) @ G[-1]
        slopes = (G - B @ shift)[:-1]
        v = v[:-1]
    scale = inner.dual_scale(-slopes)
    if scale is None:
        return None
    terms = [f, float(inner.value(v)), conjugate(scale, shift), float(inner.conjugate(-scale * slopes))]
    return lifted(terms, precision, noise)


def lifted(terms: list[float], precision: float, noise: float = 0.0) -> float | None:
    """The sum of terms that cancel; what is below their rounding is not known to be smaller."""
    gap, rounding = sum(terms), precision * sum(map(abs, terms)) + noise
    return max(gap, rounding) if math.isfinite(gap) else None
