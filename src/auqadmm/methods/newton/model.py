"""The quadratic model of F on some unknowns, minimised: d = argmin g(v + d) + ⟨G, d⟩ + ½⟨d, Hd⟩, zero elsewhere.

Shapes: m features, C columns; v, G, d (m, C); index flat, H (p, p) of p unknowns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from auqadmm.methods.newton.inner import minimise_model
from auqadmm.metrics.triangles import unpack
from auqadmm.verdict.model import QuadraticModel

if TYPE_CHECKING:
    from auqadmm.problem.regularizers import Regularizer

LIFTS = (1e-6, 1e-4, 1e-2)  # of the diagonal of a singular GroupedHessian, one after the other
SHARP = 1e100  # a metric in which a proximal step moves nothing that may stay at its kink


@dataclass(frozen=True)
class RestrictedRegularizer:
    """g as a function of some unknowns, the others fixed at v."""

    g: Regularizer
    v: Tensor
    index: Tensor

    @property
    def quadratic(self) -> bool:
        return self.g.quadratic

    @property
    def separable(self) -> bool:
        return self.g.separable

    def prox(self, t: Tensor, K: Tensor | float) -> Tensor:
        return self._some(self.g.prox(self._whole(t, 0.0), self._whole(torch.as_tensor(K).expand_as(t), 1.0)))

    def value(self, x: Tensor) -> Tensor:
        return self.g.value(self._at(x))

    def fall(self, v: Tensor, there: Tensor) -> tuple[Tensor, Tensor]:
        return self.g.fall(self._at(v), self._at(there))

    def subgradient(self, v: Tensor, grad: Tensor) -> Tensor | None:
        nearest = self.g.subgradient(self._at(v), self._whole(grad, 0.0))
        return None if nearest is None else self._some(nearest)

    def _some(self, x: Tensor) -> Tensor:
        return x.reshape(-1)[self.index][:, None]

    def _whole(self, x: Tensor, rest: float) -> Tensor:
        whole = torch.full((self.v.numel(),), rest, dtype=x.dtype, device=x.device)
        return whole.index_put((self.index,), x[:, 0]).reshape(self.v.shape)

    def _at(self, x: Tensor) -> Tensor:
        return self.v.reshape(-1).index_put((self.index,), x[:, 0]).reshape(self.v.shape)


@dataclass(frozen=True)
class GroupedHessian:
    """H of some unknowns, in groups that do not interact: flat indices and matrices."""

    groups: tuple[tuple[Tensor, Tensor], ...]

    @classmethod
    def of(cls, upper: Tensor, index: Tensor, columns: int, apart: bool) -> GroupedHessian:
        """From the sums of workers: a triangle for every class (`apart`), or one for all."""
        parts = [index[index % columns == c] for c in range(columns)] if apart else [index]
        groups, first = [], 0
        for part in parts:
            size = len(part) * (len(part) + 1) // 2
            if len(part):
                groups.append((part, unpack(upper[None, first : first + size])[0]))
            first += size
        return cls(tuple(groups))

    def joined(self) -> GroupedHessian:
        """Merged into one group."""
        if len(self.groups) <= 1:
            return self
        index = torch.cat([i for i, _ in self.groups])
        return GroupedHessian(((index, torch.block_diag(*[H for _, H in self.groups])),))

    def where(self, flat: Tensor) -> GroupedHessian:
        """Restricted to the unknowns where `flat` is True."""
        groups = []
        for index, H in self.groups:
            few = flat[index].nonzero()[:, 0]
            groups.append((index[few], H.index_select(0, few).index_select(1, few)))
        return GroupedHessian(tuple(groups))

    def lifted(self, share: float) -> GroupedHessian:
        """With more curvature, a share of the diagonal."""
        return GroupedHessian(tuple((index, _lifted(H, share)) for index, H in self.groups))

    def diagonal(self, like: Tensor) -> Tensor:
        """The diagonal where it is known, NaN elsewhere, in the shape of v."""
        out = torch.full_like(like.reshape(-1), torch.nan)
        for index, H in self.groups:
            out[index] = H.diagonal().to(out)
        return out.reshape(like.shape)

    def apply(self, d: Tensor) -> Tensor:
        """Hd on the unknowns of H, zero elsewhere."""
        flat, out = d.reshape(-1), torch.zeros_like(d.reshape(-1))
        for index, H in self.groups:
            out[index] = H @ flat[index]
        return out.reshape(d.shape)


def _lifted(H: Tensor, share: float) -> Tensor:
    return H + torch.diag(share * H.diagonal())


@dataclass(frozen=True)
class NewtonStep:
    """d, the decrease of the model δ, and its linear part ⟨−G, d⟩ + g(v) − g(v + d) ≥ δ."""

    d: Tensor
    delta: float
    linear: float


def into_domain(g: Regularizer, x: Tensor) -> tuple[Tensor, float]:
    """x, moved by a rounding error into the domain of g if needed, and g there."""
    value = float(g.value(x))
    if math.isfinite(value):
        return x, value
    K = torch.full_like(x, SHARP)
    x = g.prox(K * x, K)
    return x, float(g.value(x))


def newton_step(
    g: Regularizer, v: Tensor, G: Tensor, H: GroupedHessian, enough: float, share: float | None = None
) -> NewtonStep:
    """The step; a singular H gets a little extra curvature in every direction, and more where the step would not lower
    the model. With a `share` of δ that may be missing, δ is the decrease attained, else an upper bound."""
    step = _newton_step(g, v, G, H, enough, share)
    for lift in LIFTS:
        if math.isfinite(step.linear) and step.linear >= -enough:
            break
        step = _newton_step(g, v, G, H.lifted(lift), enough, share)
    return step


def _newton_step(
    g: Regularizer, v: Tensor, G: Tensor, H: GroupedHessian, enough: float, share: float | None
) -> NewtonStep:
    groups: Sequence[tuple[Tensor, Tensor]] = H.groups if g.separable or g.quadratic else H.joined().groups
    l2, d, delta = g.convexity(v).reshape(-1), torch.zeros_like(v.reshape(-1)), 0.0
    for index, matrix in groups:
        slopes, some = (x.reshape(-1)[index][:, None] for x in (G, v))
        quick = None
        if share is not None and g.separable and not g.quadratic:
            few = (g.some(index, len(v)) if v.shape[1] == 1 else None) or RestrictedRegularizer(g, v, index)
            quick = minimise_model(few, matrix.to(v), slopes, some, enough, share)
            # with more unknowns than curved rows pivoting may not end, and a step need not be exact; several columns
            # may be singular by their intercepts alone, which is harmless
            for lift in LIFTS if quick is None and share > 0 and v.shape[1] == 1 else ():
                quick = quick or minimise_model(few, _lifted(matrix, lift).to(v), slopes, some, enough, share)
        if quick is not None:
            d[index] = (quick.x - some)[:, 0]
            delta += max(-quick.value, 0.0)
            continue
        strength = l2[index][:, None]
        absent = torch.zeros_like(strength, dtype=torch.bool)
        model = QuadraticModel.of(matrix[None].to(v), strength, absent)
        if model.singular:
            model = model.lifted()
        proximal = model.step(RestrictedRegularizer(g, v, index), slopes, some, enough)
        d[index] = proximal.d[:, 0]
        delta += proximal.delta
    d = d.reshape(v.shape)
    fell = float(g.fall(v, into_domain(g, v + d)[0])[0])
    return NewtonStep(d, delta, fell - float((G * d).sum()))
