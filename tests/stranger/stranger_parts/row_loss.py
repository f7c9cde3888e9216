"""A loss of the rows: log cosh of the residual, quadratic near zero and linear far out."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

import auqadmm as aq


@dataclass(frozen=True)
class LogCosh(aq.losses.RowLoss):
    """φ = log cosh(z − y), of which nothing overflows."""

    @property
    def concordance(self):
        return 2.0  # φ‴ = −2 tanh(r) φ″

    @property
    def bend(self):
        return 1.0

    def row_value(self, z, y):
        r = (z[:, 0] - y).abs()
        return r + torch.nn.functional.softplus(-2 * r) - math.log(2)

    def row_slope(self, s, y):
        return torch.tanh(s - y[:, None])

    def row_curvature(self, s, y):
        return aq.losses.DiagonalCurvature(1 / torch.cosh((s - y[:, None]).clamp(-300, 300)).square())

    def row_conjugate(self, a, y):
        a = a[:, 0]
        entropy = torch.special.xlog1py(1 + a, a) + torch.special.xlog1py(1 - a, -a)
        return torch.where(a.abs() > 1, math.inf, a * y + entropy / 2)
