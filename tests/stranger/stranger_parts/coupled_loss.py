"""A loss whose rows interact: squares around the mean residual of each block, which has an offset of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

import auqadmm as aq


@dataclass(frozen=True)
class Within(aq.losses.Loss):
    """f_j(u) = ½ Σ_i c_i (r_i − r̄)², r = Xu − y, r̄ the weighted mean of the block."""

    quadratic: ClassVar[bool] = True

    def linearize(self, shard, u):
        return WithinPoint(shard, u)


class WithinPoint(aq.losses.Point):
    def __init__(self, shard, u):
        self.shard, self.u = shard, u
        self.residual = shard.design.forward(u) - shard.target[:, None]

    def centred(self, z):
        """c_i (z_i − z̄), z (R, …)."""
        c, design = self.shard.row_weight, self.shard.design
        c = c.reshape(-1, *[1] * (z.ndim - 1))
        mean = design.sum_rows(c * z) / design.sum_rows(c).clamp(min=torch.finfo(c.dtype).tiny)
        return c * (z - mean[design.block_of_row])

    value = property(lambda self: 0.5 * self.shard.design.sum_rows(self.residual * self.centred(self.residual))[:, 0])
    grad = property(lambda self: self.shard.design.adjoint(self.centred(self.residual)))

    def hvp(self, P):
        return self.shard.design.adjoint(self.centred(self.shard.design.forward(P)))
