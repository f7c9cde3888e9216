"""The regularizer g of ``minimise Σ_j f_j(v) + g(v)`` (S1), with everything that solvers use.

    Zero 0,  L1 c‖v‖₁,  L2 c/2‖v‖²,  ElasticNet l1‖v‖₁ + l2/2‖v‖²,  GroupLasso (its own file),
    Box and NonNegative 0 inside, inf outside;  g by the user, with a free intercept or in scaled columns: wrappers.py.

The consensus step needs the proximal map in the (s, K) form of S2, K a positive diagonal metric:

    prox(s, K) = argmin_v g(v) + ½⟨v, Kv⟩ − ⟨s, v⟩      ⇔      s − Kv ∈ ∂g(v)

and the certificate (S10) needs dist(−∇, ∂g(v)), the conjugate g*(w) = sup_v ⟨w, v⟩ − g(v), and the factor
that scales a dual point into its domain.

Shapes: v, s, grad, w (m, C), m features (rows), C columns; K a number or broadcastable to (m, C).
"""

from __future__ import annotations

import hashlib
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from auqadmm.errors import InputError

Metric = Tensor | float


class Regularizer(ABC):
    """A closed convex function g of v, shape (m, C), that has a proximal map in diagonal metrics.

    A subclass writes `value`, `prox` and `subgradient_distance`; its other methods, if given, make runs faster.

    Examples
    --------
    The largest size of a coefficient, bounded by 1:

    >>> import torch
    >>> import auqadmm as aq
    >>> class Bounded(aq.regularizers.Regularizer):
    ...     def value(self, v):
    ...         return torch.where((v.abs() <= 1).all(), 0.0, torch.inf)
    ...     def prox(self, s, K):
    ...         return (s / K).clamp(-1, 1)
    ...     def subgradient_distance(self, v, grad):
    ...         outwards = (v.abs() == 1) & (grad * v < 0)
    ...         return torch.where(outwards, 0.0, grad).norm()
    >>> problem = aq.Problem(aq.LeastSquares(), Bounded(), [([[1.0, 0.0], [0.0, 1.0]], [3.0, 0.5])])
    >>> aq.solve(problem, certificate_tol=1e-10).coef.round(3)
    array([1. , 0.5])
    """

    @abstractmethod
    def value(self, v: Tensor) -> Tensor:
        """g at a point.

        Parameters
        ----------
        v
            (m, C).

        Returns
        -------
        Tensor
            0-dim; inf where v is infeasible.
        """

    @abstractmethod
    def prox(self, s: Tensor, K: Metric) -> Tensor:
        """The proximal map, which is the v-step of S2: argmin_v g(v) + ½⟨v, Kv⟩ − ⟨s, v⟩.

        Parameters
        ----------
        s
            (m, C).
        K
            Diagonal of the metric, positive: a number, or broadcastable to (m, C).

        Returns
        -------
        Tensor
            v, (m, C).
        """

    def prox_slope(self, s: Tensor, K: Metric) -> Tensor | None:
        """The derivative of the proximal map by s, where g is separable.

        Parameters
        ----------
        s, K
            As in `prox`.

        Returns
        -------
        Tensor or None
            ∂prox_i/∂s_i, (m, C); None: torch differentiates `prox` instead.
        """
        return None

    @abstractmethod
    def subgradient_distance(self, v: Tensor, grad: Tensor) -> Tensor:
        """Euclidean distance from −grad to ∂g(v), the KKT residual of S10.

        Parameters
        ----------
        v
            (m, C).
        grad
            Σ_j ∇f_j(v), (m, C).

        Returns
        -------
        Tensor
            0-dim; inf where v is infeasible.
        """

    def subgradient(self, v: Tensor, grad: Tensor) -> Tensor | None:
        """The element of grad + ∂g(v) closest to 0, whose norm is `subgradient_distance`.

        Parameters
        ----------
        v
            Feasible, (m, C).
        grad
            Σ_j ∇f_j(v), (m, C).

        Returns
        -------
        Tensor or None
            (m, C); None: only its norm is known.
        """
        return None

    def fall(self, v: Tensor, there: Tensor) -> tuple[Tensor, Tensor]:
        """How far g falls from one point to another: for near points more accurate than two values, where g is a sum
        over entries.

        Parameters
        ----------
        v, there
            (m, C).

        Returns
        -------
        fall, size : Tensor
            g(v) − g(there), and the sum of the sizes of its terms, which bounds the rounding; both 0-dim.
        """
        before, after = self.value(v), self.value(there)
        return before - after, before.abs() + after.abs()

    def conjugate(self, w: Tensor) -> Tensor:
        """g*(w) = sup_v ⟨w, v⟩ − g(v): its part of a duality gap (S10).

        Parameters
        ----------
        w
            Dual point, (m, C).

        Returns
        -------
        Tensor
            0-dim; inf outside of the domain of g*, and where g* is unknown (the only bound that always holds).
        """
        return w.new_full((), math.inf)

    def dual_scale(self, w: Tensor) -> float | None:
        """How far a dual point must shrink to lie in the domain of g* (S10).

        Parameters
        ----------
        w
            (m, C).

        Returns
        -------
        float or None
            The largest c in [0, 1] with g*(c·w) finite; None where there is none in general.
        """
        return None

    def at_rest(self, w: Tensor, radius: Tensor) -> Tensor | None:
        """Which unknowns are zero at the optimum, whatever the exact dual point: screening.

        Parameters
        ----------
        w
            A dual point, (m, C).
        radius
            How far the optimal one may be from it, (m, C).

        Returns
        -------
        Tensor or None
            (m, C) of bool: zero in the minimiser of g − ⟨w′, ·⟩ for every w′ within `radius` of w, row by row; None
            where that is not known.
        """
        return None

    @property
    def strong_convexity(self) -> float:
        """A modulus of strong convexity valid on every coordinate; 0.0 if there is none."""
        return 0.0

    def some(self, rows: Tensor, features: int) -> Regularizer | None:
        """g of some rows of v alone, the others fixed: for steps in a working set.

        Parameters
        ----------
        rows
            Which, by number.
        features
            m, rows of v.

        Returns
        -------
        Regularizer or None
            A function of as many rows; None: not available, and the general way is taken.
        """
        return None

    def convexity(self, v: Tensor) -> Tensor:
        """Strong convexity of g entry by entry: g less Σ_i c_i v_i²/2 is still convex.

        Parameters
        ----------
        v
            (m, C), of which only the shape and kind matter.

        Returns
        -------
        Tensor
            c, (m, C): `strong_convexity` everywhere unless overridden.
        """
        return torch.full_like(v, self.strong_convexity)

    @property
    def separable(self) -> bool:
        """Does the proximal map in a diagonal metric act on each entry by itself?"""
        return False

    @property
    def quadratic(self) -> bool:
        """Is g a quadratic function, so that the proximal map is linear?"""
        return False

    def check(self, features: int) -> None:  # noqa: B027  (a hook: most regularizers fit any shape)
        """Raise an `InputError` (a ValueError) if this regularizer cannot act on so many rows.

        Parameters
        ----------
        features
            m, rows of v, without an intercept's.
        """


def number(name: str, value: Any) -> float:
    """Return `value` as a finite float ≥ 0 or raise ValueError."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise InputError(f"{name} must be a finite number ≥ 0, got {value!r}") from None
    if not 0.0 <= number < math.inf:  # also false for NaN
        raise InputError(f"{name} must be a finite number ≥ 0, got {number}")
    return number


def check_length(name: str, entries: object, features: int) -> None:
    """Raise ValueError if `entries` is a tuple that does not have one entry per feature."""
    if isinstance(entries, tuple) and len(entries) != features:
        raise InputError(f"{name} must have one entry per feature, got {len(entries)} for {features} features")


def in_brief(entries: object) -> str:
    """A value as `repr` shows it; of many entries the first ones, their number, and a digest of all."""
    if not isinstance(entries, tuple) or len(entries) <= 8:
        return repr(entries)
    digest = hashlib.sha256(repr(entries).encode()).hexdigest()[:8]
    return f"({', '.join(map(repr, entries[:4]))}, … {len(entries)} entries, digest {digest})"


def name_of(fn: object) -> str:
    """A function by its name, other callables by their repr."""
    return str(getattr(fn, "__qualname__", None) or re.sub(r" at 0x[0-9a-f]+", "", repr(fn)))


def elastic_fall(l1: Metric, l2: Metric, v: Tensor, there: Tensor) -> tuple[Tensor, Tensor]:
    """`Regularizer.fall` of Σ l1|v| + l2/2 v², entry by entry."""
    falls = l1 * (v.abs() - there.abs()) + 0.5 * l2 * (v - there) * (v + there)
    return falls.sum(), falls.abs().sum()


def elastic_subgradient(l1: Metric, l2: Metric, v: Tensor, grad: Tensor) -> Tensor:
    """The element of grad + l2·v + l1·∂|v| closest to 0."""
    smooth = grad + l2 * v
    at_zero = smooth.sign() * (smooth.abs() - l1).clamp(min=0)  # ∂|0| is the whole interval [−1, 1]
    return torch.where(v == 0, at_zero, smooth + l1 * v.sign())


def indicator(inside: Tensor, like: Tensor) -> Tensor:
    """0 if all of `inside` holds, else inf."""
    return like.new_zeros(()).masked_fill(~inside.all(), math.inf)


def slack(w: Tensor, terms: int = 0) -> float:
    """1 + a few ulps. dual_scale puts c·w on the very boundary of the domain of g*; rounding of the product
    and of a float64 sum of `terms` numbers may push it across, which must not turn g* = 0 into inf."""
    return 1 + 8 * torch.finfo(w.dtype).eps + terms * torch.finfo(torch.float64).eps


def soft_slope(s: Tensor, l1: Tensor | float, linear: bool) -> Tensor:
    """The derivative of soft thresholding: 1 where the result is nonzero or on the edge, else 0; `linear`: l1 = 0."""
    return torch.ones_like(s) if linear else ((s.abs() >= l1) & (s != 0)).to(s)


def scale_into(sizes: Tensor, limits: Tensor | float) -> float:
    """Largest c in [0, 1] with c·sizes ≤ limits, for limits > 0."""
    # Sizes within their limit (w = 0 among them) allow c = 1 and must not divide.
    over = sizes > limits
    if not bool(over.any()):
        return 1.0
    limits = torch.as_tensor(limits, dtype=sizes.dtype, device=sizes.device).expand_as(sizes)
    return float((limits[over] / sizes[over]).min())


class _Elastic(Regularizer):
    """l1‖v‖₁ + l2/2‖v‖²: the family of Zero, L1, L2 and ElasticNet, whose fields are all strengths."""

    @abstractmethod
    def _strengths(self) -> tuple[float, float]:
        """Return l1 and l2."""

    def __post_init__(self) -> None:
        for name in (f.name for f in fields(self)):  # type: ignore[arg-type]  # subclasses are dataclasses
            object.__setattr__(self, name, number(f"{type(self).__name__}: {name}", getattr(self, name)))

    def value(self, v: Tensor) -> Tensor:
        l1, l2 = self._strengths()
        return l1 * v.abs().sum() + 0.5 * l2 * v.square().sum()

    def fall(self, v: Tensor, there: Tensor) -> tuple[Tensor, Tensor]:
        l1, l2 = self._strengths()
        return elastic_fall(l1, l2, v, there)

    def some(self, rows: Tensor, features: int) -> Regularizer | None:
        return self

    def prox(self, s: Tensor, K: Metric) -> Tensor:
        l1, l2 = self._strengths()
        soft = s if l1 == 0 else s.sign() * (s.abs() - l1).clamp(min=0)  # l1 = 0: linear, at s = 0 too
        return soft / (K + l2)  # S2; K > 0, so no division by 0

    def prox_slope(self, s: Tensor, K: Metric) -> Tensor | None:
        l1, l2 = self._strengths()
        return soft_slope(s, l1, l1 == 0) / (K + l2)

    def subgradient(self, v: Tensor, grad: Tensor) -> Tensor:
        return elastic_subgradient(*self._strengths(), v, grad)

    def subgradient_distance(self, v: Tensor, grad: Tensor) -> Tensor:
        return self.subgradient(v, grad).norm()

    def conjugate(self, w: Tensor) -> Tensor:
        l1, l2 = self._strengths()
        if l2 > 0:
            return (w.abs() - l1).clamp(min=0).square().sum() / (2 * l2)
        return indicator(w.abs() <= l1 * slack(w), w)

    def dual_scale(self, w: Tensor) -> float | None:
        l1, l2 = self._strengths()
        if l2 > 0:
            return 1.0
        return scale_into(w.abs(), l1) if l1 > 0 else None

    def at_rest(self, w: Tensor, radius: Tensor) -> Tensor | None:
        return w.abs() + radius < self._strengths()[0]

    @property
    def strong_convexity(self) -> float:
        return self._strengths()[1]

    @property
    def separable(self) -> bool:
        return True

    @property
    def quadratic(self) -> bool:
        return self._strengths()[0] == 0


@dataclass(frozen=True)
class Zero(_Elastic):
    """g = 0.

    Examples
    --------
    >>> import torch
    >>> import auqadmm as aq
    >>> g = aq.Zero()
    >>> v = torch.tensor([[3.0], [-2.5]], dtype=torch.float64)
    >>> float(g.value(v))
    0.0
    >>> g.prox(v, torch.tensor(1.0)).flatten().tolist()
    [3.0, -2.5]
    """

    def _strengths(self) -> tuple[float, float]:
        return 0.0, 0.0


@dataclass(frozen=True)
class L1(_Elastic):
    """strength·‖v‖₁, strength ≥ 0.

    Parameters
    ----------
    strength
        A finite number ≥ 0.

    Raises
    ------
    ValueError
        A strength is no finite number ≥ 0.

    Examples
    --------
    >>> import torch
    >>> import auqadmm as aq
    >>> g = aq.L1(2.0)
    >>> v = torch.tensor([[3.0], [-2.5]], dtype=torch.float64)
    >>> float(g.value(v))
    11.0
    >>> g.prox(v, torch.tensor(1.0)).flatten().tolist()
    [1.0, -0.5]
    """

    strength: float

    def _strengths(self) -> tuple[float, float]:
        return self.strength, 0.0


@dataclass(frozen=True)
class L2(_Elastic):
    """strength/2·‖v‖², strength ≥ 0.

    Parameters
    ----------
    strength
        A finite number ≥ 0.

    Raises
    ------
    ValueError
        A strength is no finite number ≥ 0.

    Examples
    --------
    >>> import torch
    >>> import auqadmm as aq
    >>> g = aq.L2(1.0)
    >>> v = torch.tensor([[3.0], [-2.5]], dtype=torch.float64)
    >>> float(g.value(v))
    7.625
    >>> g.prox(v, torch.tensor(1.0)).flatten().tolist()
    [1.5, -1.25]
    """

    strength: float

    def _strengths(self) -> tuple[float, float]:
        return 0.0, self.strength


@dataclass(frozen=True)
class ElasticNet(_Elastic):
    """l1·‖v‖₁ + l2/2·‖v‖², l1 ≥ 0 and l2 ≥ 0.

    Parameters
    ----------
    l1, l2
        Finite numbers ≥ 0: strengths of the two parts.

    Raises
    ------
    ValueError
        A strength is no finite number ≥ 0.

    Examples
    --------
    >>> import torch
    >>> import auqadmm as aq
    >>> g = aq.ElasticNet(l1=2.0, l2=1.0)
    >>> v = torch.tensor([[3.0], [-2.5]], dtype=torch.float64)
    >>> float(g.value(v))
    18.625
    >>> g.prox(v, torch.tensor(1.0)).flatten().tolist()
    [0.5, -0.25]
    """

    l1: float
    l2: float

    def _strengths(self) -> tuple[float, float]:
        return self.l1, self.l2


def _bound(name: str, value: object) -> float | tuple[float, ...]:
    """Return one number or a tuple of numbers, or raise ValueError."""
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        array = np.empty((0, 0))
    if array.ndim > 1:
        raise InputError(f"Box: {name} must be a number or a sequence of one number per feature, got {value!r}")
    return float(array) if array.ndim == 0 else tuple(array.tolist())


@dataclass(frozen=True)
class Box(Regularizer):
    """Indicator of lower ≤ v ≤ upper.

    Parameters
    ----------
    lower, upper : float or sequence of float
        One number, or one per feature (row of v); −inf and inf leave a side open.

    Raises
    ------
    ValueError
        A lower bound lies above the upper one, or the two are not equally long.

    Examples
    --------
    >>> import torch
    >>> import auqadmm as aq
    >>> g = aq.Box(-0.5, [1.0, 2.0])
    >>> v = torch.tensor([[3.0], [-2.5]], dtype=torch.float64)
    >>> float(g.value(v))
    inf
    >>> g.prox(v, torch.tensor(1.0)).flatten().tolist()
    [1.0, -0.5]
    """

    lower: float | Sequence[float]
    upper: float | Sequence[float]

    def __post_init__(self) -> None:
        lower, upper = _bound("lower", self.lower), _bound("upper", self.upper)
        object.__setattr__(self, "lower", lower)
        object.__setattr__(self, "upper", upper)
        if isinstance(lower, tuple) and isinstance(upper, tuple) and len(lower) != len(upper):
            raise InputError(f"Box: lower and upper must be equally long, got {len(lower)} and {len(upper)} entries")
        for i, (lo, up) in enumerate(np.broadcast(lower, upper)):
            if not (lo <= up and lo < math.inf and up > -math.inf):  # also false for NaN
                got = f"lower {lo} and upper {up} at entry {i}"
                raise InputError(f"Box: lower ≤ upper must hold, lower < inf and upper > -inf, got {got}")

    def __repr__(self) -> str:
        return f"{type(self).__name__}(lower={in_brief(self.lower)}, upper={in_brief(self.upper)})"

    def check(self, features: int) -> None:
        check_length("Box: lower", self.lower, features)
        check_length("Box: upper", self.upper, features)

    def _bounds(self, v: Tensor) -> list[Tensor]:
        """Lower and upper, each 0-dim or (m, 1), like `v`."""
        self.check(v.shape[0])
        bounds = (v.new_tensor(bound) for bound in (self.lower, self.upper))
        return [bound[:, None] if bound.ndim else bound for bound in bounds]

    @property
    def separable(self) -> bool:
        return True

    def value(self, v: Tensor) -> Tensor:
        lower, upper = self._bounds(v)
        return indicator((lower <= v) & (v <= upper), v)

    def prox(self, s: Tensor, K: Metric) -> Tensor:
        return (s / K).clamp(*self._bounds(s))  # K > 0; separable, so K only moves the centre

    def subgradient(self, v: Tensor, grad: Tensor) -> Tensor:
        lower, upper = self._bounds(v)
        # At a bound the normal cone absorbs a gradient whose descent direction leaves the box.
        rest = torch.where(v == lower, grad.clamp(max=0), grad)
        return torch.where(v == upper, rest.clamp(min=0), rest)

    def subgradient_distance(self, v: Tensor, grad: Tensor) -> Tensor:
        return self.subgradient(v, grad).norm() + self.value(v)

    def conjugate(self, w: Tensor) -> Tensor:
        lower, upper = self._bounds(w)
        # Chosen by sign, not as a maximum of products: an infinite bound times w = 0 would be NaN.
        return torch.where(w > 0, upper * w, torch.where(w < 0, lower * w, 0.0)).sum()

    def dual_scale(self, w: Tensor) -> float | None:
        return 1.0 if np.isfinite(self.lower).all() and np.isfinite(self.upper).all() else None


@dataclass(frozen=True)
class NonNegative(Box):
    """Indicator of v ≥ 0.

    Examples
    --------
    >>> import torch
    >>> import auqadmm as aq
    >>> g = aq.NonNegative()
    >>> v = torch.tensor([[3.0], [-2.5]], dtype=torch.float64)
    >>> float(g.value(v))
    inf
    >>> g.prox(v, torch.tensor(1.0)).flatten().tolist()
    [3.0, 0.0]
    """

    lower: float = field(default=0.0, init=False, repr=False)
    upper: float = field(default=math.inf, init=False, repr=False)
