"""The columns that a method works in: centred where a free intercept takes up the difference, and scaled, exactly.

    x̃ = (x − μ)/s,    ũ = s∘u,    b̃ = b + μᵀu,    ∇_u = s∘∇̃_u + μ∇̃_b,    ∇_b = ∇̃_b      the same logits

μ are the weighted means (none without an intercept), and

    s² = (Σc(x − μ)² + l2/φ″)/n,    n the weight of the rows in which x is not zero, φ″ the curvature of the null model

for a column without zeros its variance, for a sparse one the mean square of its non-zeros, so that neither units nor
sparsity matter; where the prior dominates the data, its scale. s is rounded to a power of two:
then ũ ↔ u loses no digit, and columns in other such units give the same x̃ to the last bit.

Well-scaled columns are left unchanged (`needed`).

Shapes: m features (the intercept's ones last), C columns; centre, scale, prior (m,), v, gradients (…, m, C).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from auqadmm.metrics import double_double
from auqadmm.verdict.moments import ColumnMoments

FAR_MEAN = 4.0  # how many spreads a mean may be away from zero: images have up to 3
WIDE = 64.0  # the ratio of scales: images have up to 6
RARE_ROWS = 1 / 16  # a column that is zero but for this share of the rows may have any scale
LEAST_EXPONENT, MOST_EXPONENT = -400, 400  # exponents of a scale: squares of it neither overflow nor vanish


@dataclass(frozen=True)
class Frame:
    """`centre` (None: zero) and `scale`, powers of two; 0 and 1 for the intercept. `prior` is l2/s²."""

    centre: Tensor | None
    scale: Tensor
    prior: Tensor

    @classmethod
    def of(cls, columns: ColumnMoments, nonzero: Tensor, l2: Tensor, curvature: float) -> Frame | None:
        """From round 0: `nonzero` (m,) is n, `l2` (m,), `curvature` φ″. None: leave columns as they are."""
        if not is_needed(columns, _column_sizes(columns, nonzero, torch.zeros_like(l2)), nonzero):
            return None
        size = _column_sizes(columns, nonzero, l2 / curvature)
        scale = _power_of_two(torch.where(size > 0, size, 1.0))
        return cls(columns.centre, scale, l2 / scale.square())

    # ------------------------------------------------------------------ models
    def inside(self, v: Tensor) -> Tensor:
        """v (m, C) in these columns; its intercept is summed in double-double precision."""
        scaled = v * self.scale[:, None]
        if self.centre is None:
            return scaled
        return torch.cat([scaled[:-1], double_double.dot(self.centre[:-1], v[:-1], v[-1])[None]])

    def outside(self, v: Tensor) -> Tensor:
        """The inverse of `inside`."""
        raw = v / self.scale[:, None]
        if self.centre is None:
            return raw
        return torch.cat([raw[:-1], double_double.dot(-self.centre[:-1], raw[:-1], v[-1])[None]])

    def models_outside(self, u: Tensor) -> Tensor:
        """`outside` for the models of blocks (B, m, C), in their own precision."""
        raw = u / self.scale[:, None].to(u)
        if self.centre is None:
            return raw
        moved = raw[:, -1:] - (self.centre[:-1, None].to(u) * raw[:, :-1]).sum(1, keepdim=True)
        return torch.cat([raw[:, :-1], moved], 1)

    # ------------------------------------------------------------------ gradients and multipliers
    def slopes_inside(self, G: Tensor) -> Tensor:
        if self.centre is not None:
            mu = self.centre[:-1, None].to(G)
            G = torch.cat([G[..., :-1, :] - mu * G[..., -1:, :], G[..., -1:, :]], -2)
        return G / self.scale[:, None].to(G)

    def slopes_outside(self, G: Tensor) -> Tensor:
        G = G * self.scale[:, None].to(G)
        if self.centre is None:
            return G
        mu = self.centre[:-1, None].to(G)
        return torch.cat([G[..., :-1, :] + mu * G[..., -1:, :], G[..., -1:, :]], -2)


def is_needed(columns: ColumnMoments, size: Tensor, nonzero: Tensor) -> bool:
    """Is a mean further than FAR spreads from zero, or a column WIDE times as large as another that is not rare?"""
    filled = size > 0
    if columns.centre is not None:
        spread = (columns.spread / columns.weight).sqrt()
        if bool((filled & (columns.centre.abs() > FAR_MEAN * spread)).any()):
            return True
    common = filled & (nonzero >= RARE_ROWS * columns.weight)
    if not bool(common.any()):
        common = filled
    return bool(filled.any()) and float(size[filled].max()) > WIDE * float(size[common].min())


def _column_sizes(columns: ColumnMoments, nonzero: Tensor, prior: Tensor) -> Tensor:
    """s before it is rounded; 0 where it is undefined: the intercept, columns of zeros, overflow."""
    known = ~columns.empty & (nonzero > 0) & columns.spread.isfinite()
    if columns.intercept:
        known[-1] = False
    size = ((columns.spread + prior) / torch.where(known, nonzero, 1.0)).sqrt()
    return torch.where(known & size.isfinite(), size, 0.0)


def _power_of_two(x: Tensor) -> Tensor:
    """The nearest to x > 0, by ratio: of 2x that of x, doubled, whatever the rounding of logarithms."""
    mantissa, exponent = np.frexp(x.cpu().numpy())  # ½ ≤ mantissa < 1
    exponent = np.clip(exponent - (mantissa < np.sqrt(0.5)), LEAST_EXPONENT, MOST_EXPONENT)
    return torch.from_numpy(np.ldexp(1.0, exponent)).to(x)
