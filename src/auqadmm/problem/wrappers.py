"""Regularizers made of something else: a user's functions, or another regularizer with a free intercept (S1, S10) or in
scaled columns.

Shapes: v, s, grad, w (m, C), m features (rows), C columns; K a number or broadcastable to (m, C).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from auqadmm.errors import InputError, InputTypeError
from auqadmm.problem.regularizers import Metric, Regularizer, indicator, name_of


@dataclass(frozen=True, init=False)
class CustomRegularizer(Regularizer):
    """A regularizer made of your own functions.

    Parameters
    ----------
    value : callable
        ``value(v)`` returns g(v), one number.
    prox : callable
        ``prox(s, K)`` returns argmin_v g(v) + ½⟨v, Kv⟩ − ⟨s, v⟩; K is a tensor, 0-dim or broadcastable to s.
    subgradient_distance : callable, optional
        ``subgradient_distance(v, grad)`` returns the distance from −grad to ∂g(v). Without it the natural
        residual t‖v − prox(tv − grad, t)‖ stands in, t ≥ 1 such that the step is about as long as v: it vanishes at the
        same points, but never exceeds the distance, so the certificate (S10) is then less strict.
    separable : bool, default=False
        Does g add up over entries, so that entry i of the proximal map depends on entry i of s and K alone? Then the
        consensus step of low-rank weights and Newton's method is fast (block pivoting), and `prox` must be made of
        torch operations, which are differentiated, or come with its derivative.
    prox_slope : callable, optional
        ``prox_slope(s, K)`` returns the derivative of `prox` by s, entry by entry; for separable g only.

    Raises
    ------
    TypeError
        One of the three is no function.

    Examples
    --------
    >>> import numpy as np
    >>> import torch
    >>> import auqadmm as aq
    >>> g = aq.CustomRegularizer(lambda v: 0.5 * v.square().sum(), lambda s, K: s / (K + 1))
    >>> X, y = np.array([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0], [2.0, 1.0]]), np.array([1.0, 2.0, 3.0, 6.0])
    >>> result = aq.solve(aq.Problem(aq.LeastSquares(), g, [(X[:2], y[:2]), (X[2:], y[2:])]))
    >>> result.coef.round(1)
    array([2., 1.])
    """

    value_fn: Callable[[Tensor], Tensor]
    prox_fn: Callable[[Tensor, Tensor], Tensor]
    distance_fn: Callable[[Tensor, Tensor], Tensor] | None
    # not described in checkpoints (init=False): older ones lack them
    by_entries: bool = field(init=False)
    slope_fn: Callable[[Tensor, Tensor], Tensor] | None = field(init=False)

    def __init__(
        self,
        value: Callable[[Tensor], Tensor],
        prox: Callable[[Tensor, Tensor], Tensor],
        subgradient_distance: Callable[[Tensor, Tensor], Tensor] | None = None,
        separable: bool = False,
        prox_slope: Callable[[Tensor, Tensor], Tensor] | None = None,
    ) -> None:
        optional = {"subgradient_distance": subgradient_distance, "prox_slope": prox_slope}
        parts = {"value": value, "prox": prox} | optional
        attributes = ("value_fn", "prox_fn", "distance_fn", "slope_fn")
        if not isinstance(separable, bool):
            raise InputError(f"CustomRegularizer: separable must be True or False, got {separable!r}")
        if prox_slope is not None and not separable:
            raise InputError(
                "CustomRegularizer: prox_slope is of use where separable=True only; say it or leave it out"
            )
        object.__setattr__(self, "by_entries", separable)
        for (name, fn), attribute in zip(parts.items(), attributes, strict=True):
            if not callable(fn) and (fn is not None or name not in optional):
                raise InputTypeError(f"CustomRegularizer: {name} must be a function, got {fn!r}")
            object.__setattr__(self, attribute, fn)

    def __repr__(self) -> str:
        parts = {"value": self.value_fn, "prox": self.prox_fn, "subgradient_distance": self.distance_fn}
        parts |= {"prox_slope": self.slope_fn}
        arguments = [f"{name}={name_of(fn)}" for name, fn in parts.items() if fn is not None]
        return f"CustomRegularizer({', '.join(arguments)}{', separable=True' * self.separable})"

    @staticmethod
    def _returned(name: str, result: object, like: Tensor) -> Tensor:
        """Check the shape of what a user's function returned: a wrong one would broadcast silently."""
        result = torch.as_tensor(result, dtype=like.dtype, device=like.device)
        if result.shape != like.shape:
            shapes = f"{tuple(like.shape)}, got {tuple(result.shape)}"
            raise InputError(f"CustomRegularizer: {name} must return a tensor of shape {shapes}")
        return result

    def value(self, v: Tensor) -> Tensor:
        return self._returned("value", self.value_fn(v), v.new_empty(()))

    def prox(self, s: Tensor, K: Metric) -> Tensor:
        return self._returned("prox", self.prox_fn(s, torch.as_tensor(K, dtype=s.dtype, device=s.device)), s)

    @property
    def separable(self) -> bool:
        return self.by_entries

    def prox_slope(self, s: Tensor, K: Metric) -> Tensor | None:
        if self.slope_fn is None:
            return None
        return self._returned("prox_slope", self.slope_fn(s, torch.as_tensor(K, dtype=s.dtype, device=s.device)), s)

    def subgradient_distance(self, v: Tensor, grad: Tensor) -> Tensor:
        if self.distance_fn is not None:
            return self._returned("subgradient_distance", self.distance_fn(v, grad), v.new_empty(()))
        # a step that moves v by about its own size: with step 1 a prox of bounded range would mask a large gradient
        size, slope = float(v.norm()), float(grad.norm())
        t = max(1.0, slope / size) if size > 0 else max(1.0, slope)
        residual = t * (v - self.prox(t * v - grad, t)).norm()
        return torch.where(torch.isfinite(self.value(v)), residual, math.inf)


@dataclass(frozen=True)
class FreeIntercept(Regularizer):
    """`inner` on v[:-1]; the last row, the intercept, is unpenalised, so there is no finite dual (S10).

    Parameters
    ----------
    inner
        Its groups and bounds count the real features only, one fewer than the rows of v.

    Raises
    ------
    InputTypeError
        `inner` is not a regularizer.

    Examples
    --------
    >>> import torch
    >>> import auqadmm as aq
    >>> g = aq.regularizers.FreeIntercept(aq.L1(1.0))
    >>> g.value(torch.tensor([[2.0], [-1.0], [5.0]])).item()
    3.0
    """

    inner: Regularizer

    def __post_init__(self) -> None:
        if not isinstance(self.inner, Regularizer):
            raise InputTypeError(f"FreeIntercept: inner must be a Regularizer, got {self.inner!r}")

    def check(self, features: int) -> None:
        self.inner.check(features - 1)

    @property
    def separable(self) -> bool:
        return self.inner.separable

    @property
    def quadratic(self) -> bool:
        return self.inner.quadratic

    def value(self, v: Tensor) -> Tensor:
        return self.inner.value(v[:-1])

    def fall(self, v: Tensor, there: Tensor) -> tuple[Tensor, Tensor]:
        return self.inner.fall(v[:-1], there[:-1])

    def some(self, rows: Tensor, features: int) -> Regularizer | None:
        last = rows == features - 1
        if not bool(last.any()):
            return self.inner.some(rows, features - 1)
        inner = self.inner.some(rows[:-1], features - 1) if bool(last[-1]) else None
        return None if inner is None else FreeIntercept(inner)

    def prox(self, s: Tensor, K: Metric) -> Tensor:
        by_row = isinstance(K, Tensor) and K.ndim > 1 and K.shape[0] > 1
        first, last = (K[:-1], K[-1:]) if by_row else (K, K)  # type: ignore[index]
        return torch.cat([self.inner.prox(s[:-1], first), s[-1:] / last])  # K > 0

    def prox_slope(self, s: Tensor, K: Metric) -> Tensor | None:
        by_row = isinstance(K, Tensor) and K.ndim > 1 and K.shape[0] > 1
        first, last = (K[:-1], K[-1:]) if by_row else (K, K)  # type: ignore[index]
        slope = self.inner.prox_slope(s[:-1], first)
        return None if slope is None else torch.cat([slope, torch.ones_like(s[-1:]) / last])

    def subgradient(self, v: Tensor, grad: Tensor) -> Tensor | None:
        nearest = self.inner.subgradient(v[:-1], grad[:-1])
        return None if nearest is None else torch.cat([nearest, grad[-1:]])

    def subgradient_distance(self, v: Tensor, grad: Tensor) -> Tensor:
        return torch.hypot(self.inner.subgradient_distance(v[:-1], grad[:-1]), grad[-1].norm())

    def convexity(self, v: Tensor) -> Tensor:
        return torch.cat([self.inner.convexity(v[:-1]), torch.zeros_like(v[-1:])])

    def conjugate(self, w: Tensor) -> Tensor:
        return self.inner.conjugate(w[:-1]) + indicator(w[-1] == 0, w)

    def at_rest(self, w: Tensor, radius: Tensor) -> Tensor | None:
        resting = self.inner.at_rest(w[:-1], radius[:-1])
        return None if resting is None else torch.cat([resting, torch.zeros_like(resting[:1])])


@dataclass(frozen=True, eq=False)
class ScaledRegularizer(Regularizer):
    """g̃(ũ) = g(ũ/s): `inner` in scaled columns, s a power of two per feature, so that nothing is rounded.

        prox̃(t, K) = s∘prox_g(s∘t, s²∘K)      g̃*(w) = g*(s∘w)      ∂g̃(ũ) = ∂g(u)/s

    l1 becomes l1/s, l2 becomes l2/s², bounds s·bound; groups keep their norms. `subgradient_distance` is measured in
    the columns of `inner`. `scale` is s, (m,).
    """

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
