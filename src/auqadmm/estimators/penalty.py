"""The elastic net with strengths of its own for every entry: what a plain one becomes when features are rescaled.

    g(v) = Σ_ik l1_ik |v_ik| + l2_ik/2 v_ik²

Shapes: v, s, grad (m, C); l1, l2 (m, 1) or (m, C).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from auqadmm.errors import InputError
from auqadmm.problem.regularizers import (
    Metric,
    Regularizer,
    elastic_fall,
    elastic_subgradient,
    indicator,
    scale_into,
    slack,
    soft_slope,
)


@dataclass(frozen=True, eq=False)
class WeightedElasticNet(Regularizer):
    """Strengths l1 and l2, entry by entry, both ≥ 0."""

    l1: Tensor
    l2: Tensor

    @staticmethod
    def scaled(l1: float | np.ndarray, l2: float | np.ndarray, scale: np.ndarray) -> WeightedElasticNet:
        """Strengths (one number, or one per column) on features that were divided by `scale` (m,)."""
        d = scale[:, None]
        return WeightedElasticNet(torch.from_numpy(l1 / d * np.ones(1)), torch.from_numpy(l2 / d**2 * np.ones(1)))

    def check(self, features: int) -> None:
        if self.l1.shape[0] != features:
            raise InputError(f"WeightedElasticNet: {self.l1.shape[0]} strengths for {features} features.")

    def value(self, v: Tensor) -> Tensor:
        return (self.l1 * v.abs()).sum() + 0.5 * (self.l2 * v.square()).sum()

    def fall(self, v: Tensor, there: Tensor) -> tuple[Tensor, Tensor]:
        return elastic_fall(self.l1, self.l2, v, there)

    def some(self, rows: Tensor, features: int) -> Regularizer | None:
        l1, l2 = (x if len(x) == 1 else x[rows.to(x.device)] for x in (self.l1, self.l2))
        return WeightedElasticNet(l1, l2)

    def prox(self, s: Tensor, K: Metric) -> Tensor:
        soft = s if self.quadratic else s.sign() * (s.abs() - self.l1).clamp(min=0)
        return soft / (K + self.l2)

    def prox_slope(self, s: Tensor, K: Metric) -> Tensor | None:
        return soft_slope(s, self.l1, self.quadratic) / (K + self.l2)

    def subgradient(self, v: Tensor, grad: Tensor) -> Tensor:
        return elastic_subgradient(self.l1, self.l2, v, grad)

    def subgradient_distance(self, v: Tensor, grad: Tensor) -> Tensor:
        return self.subgradient(v, grad).norm()

    def convexity(self, v: Tensor) -> Tensor:
        return self.l2.to(v).expand_as(v)

    def conjugate(self, w: Tensor) -> Tensor:
        l1, l2 = self.l1.to(w).expand_as(w), self.l2.to(w).expand_as(w)
        if self._kinks_alone:
            return indicator(w.abs() <= l1 * slack(w), w)
        over = (w.abs() - l1).clamp(min=0)
        curved = torch.where(l2 > 0, over.square() / (2 * torch.where(l2 > 0, l2, 1.0)), 0.0)
        return curved.sum() + indicator((w.abs() <= l1 * slack(w)) | (l2 > 0), w)

    def dual_scale(self, w: Tensor) -> float | None:
        l1, l2 = self.l1.to(w).expand_as(w), self.l2.to(w).expand_as(w)
        if self._kinks_alone:
            return scale_into(w.abs(), l1)
        if bool(((l1 == 0) & (l2 == 0)).any()):
            return None
        return scale_into(w.abs()[l2 == 0], l1[l2 == 0])

    def at_rest(self, w: Tensor, radius: Tensor) -> Tensor | None:
        return w.abs() + radius < self.l1.to(w).expand_as(w)

    @property
    def strong_convexity(self) -> float:
        """The lower quartile of l2: what uncertainty weights take as each block's share of the prior.

        One feature of huge scale, whose l2 is next to nothing, would otherwise leave all blocks without a prior: runs
        on few rows per block then took ten times the rounds, or did not end.
        """
        return float(self.l2.flatten().sort().values[self.l2.numel() // 4])

    @property
    def separable(self) -> bool:
        return True

    @cached_property
    def quadratic(self) -> bool:
        return not bool((self.l1 > 0).any())

    @cached_property
    def _kinks_alone(self) -> bool:
        """Is every l1 > 0, and every l2 = 0?"""
        return bool((self.l1 > 0).all()) and not bool((self.l2 > 0).any())
