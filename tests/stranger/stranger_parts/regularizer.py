"""A regularizer that adds up over entries: rising costs `up`, falling `down`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

import auqadmm as aq


@dataclass(frozen=True)
class Lopsided(aq.regularizers.Regularizer):
    """g(v) = Σ_i up·max(v_i, 0) + down·max(−v_i, 0)."""

    up: float
    down: float
    separable: ClassVar[bool] = True  # the fast consensus step

    def value(self, v):
        return (self.up * v.clamp(min=0) - self.down * v.clamp(max=0)).sum()

    def prox(self, s, K):
        return ((s - self.up).clamp(min=0) + (s + self.down).clamp(max=0)) / K

    def subgradient_distance(self, v, grad):
        at_zero = (grad - self.down).clamp(min=0) + (-grad - self.up).clamp(min=0)
        return torch.where(v == 0, at_zero, grad + torch.where(v > 0, self.up, -self.down)).norm()

    def conjugate(self, w):
        inside = (w <= self.up * (1 + 1e-12)) & (w >= -self.down * (1 + 1e-12))
        return w.new_zeros(()).masked_fill(~inside.all(), math.inf)

    def dual_scale(self, w):
        return 1 / max(1.0, float(w.max()) / self.up, -float(w.min()) / self.down)
