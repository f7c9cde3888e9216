"""A regularizer in scaled columns: g̃(ũ) = g(ũ/s), s a power of two per feature, so that nothing is rounded.

    prox̃(t, K) = s∘prox_g(s∘t, s²∘K)      g̃*(w) = g*(s∘w)      ∂g̃(ũ) = ∂g(u)/s

l1 becomes l1/s, l2 becomes l2/s², bounds s·bound; groups keep their norms.

Shapes: v, t, grad, w (m, C), m features (rows), C columns; K a number or broadcastable to (m, C); scale (m,).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from auqadmm.problem.regularizers import Metric, Regularizer
from auqadmm.problem.wrappers import FreeIntercept


@dataclass(frozen=True, eq=False)
class ScaledRegularizer(Regularizer):
    """`inner` of v/scale. `subgradient_distance` is measured in the columns of `inner`."""

    inner: Regularizer
    scale: Tensor

    def check(self, features: int) -> None:
        self.inner.check(features)

    def _s(self, v: Tensor) -> Tensor:
        return self.scale[:, None].to(v)

    def value(self, v: Tensor) -> Tensor:
        return self.inner.value(v / self._s(v))

    def fall(self, v: Tensor, there: Tensor) -> tuple[Tensor, Tensor]:
        s = self._s(v)
        return self.inner.fall(v / s, there / s)

    def some(self, rows: Tensor, features: int) -> Regularizer | None:
        inner = self.inner.some(rows, features)
        return None if inner is None else ScaledRegularizer(inner, self.scale[rows.to(self.scale.device)])

    def prox(self, t: Tensor, K: Metric) -> Tensor:
        s = self._s(t)
        return s * self.inner.prox(s * t, s.square() * K)

    def subgradient(self, v: Tensor, grad: Tensor) -> Tensor | None:
        s = self._s(v)
        nearest = self.inner.subgradient(v / s, s * grad)
        return None if nearest is None else nearest / s

    def subgradient_distance(self, v: Tensor, grad: Tensor) -> Tensor:
        s = self._s(v)
        return self.inner.subgradient_distance(v / s, s * grad)

    def conjugate(self, w: Tensor) -> Tensor:
        return self.inner.conjugate(self._s(w) * w)

    def dual_scale(self, w: Tensor) -> float | None:
        return self.inner.dual_scale(self._s(w) * w)

    def at_rest(self, w: Tensor, radius: Tensor) -> Tensor | None:
        return self.inner.at_rest(self._s(w) * w, self._s(w) * radius)

    def convexity(self, v: Tensor) -> Tensor:
        s = self._s(v)
        return self.inner.convexity(v / s) / s.square()

    @property
    def strong_convexity(self) -> float:
        return float(self._strengths().min())

    @property
    def least(self) -> float:
        """The least l2/s² of a feature, without an intercept."""
        free = int(isinstance(self.inner, FreeIntercept))
        strengths = self._strengths()[: len(self.scale) - free]
        return float(strengths.min()) if len(strengths) else 0.0

    def _strengths(self) -> Tensor:
        return self.convexity(torch.ones_like(self.scale[:, None]))

    @property
    def separable(self) -> bool:
        return self.inner.separable

    @property
    def quadratic(self) -> bool:
        return self.inner.quadratic
