"""The smooth part: f_j(u) = Σ_i c_i φ(x_iᵀu, y_i) over the rows of block j (S1, S11).

    LeastSquares    ½ (z − y)²
    Multinomial     log Σ_k exp(z_k) − z_y              y a class 0 … C−1
    Logistic        log(1 + exp(−yz))                   y = ±1
    SmoothedHinge   (t + √(t² + ε²)) / 2, t = 1 − yz    y = ±1
    Huber           ½ r² for |r| ≤ δ, δ|r| − ½δ² beyond, r = z − y
    Poisson         exp(z) − yz                         y ≥ 0, logarithmic link
    Quantile        (q − ½)r + ½√(r² + ε²), r = y − z   (quantile.py)

c_i is the row's sample weight times the scale of `reduction`; rows that pad a block weigh 0. Formulas are arranged
so that nothing overflows or cancels for logits of ±1000 (but see `Poisson`).

Shapes: R flat rows (padding included), C columns; logits z (R, C), targets y (R,), dual points a (R, C).
"""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from auqadmm.blocks.curvature import Corner, DiagonalCurvature, RowCurvature, SoftmaxCurvature
from auqadmm.blocks.rows import RowLoss
from auqadmm.problem.ingest import InputError

NO_SHARE = 1e-12  # a share or a mean below this counts as zero
FAR_LOGIT = 1e6  # bound of the logit of a constant model


@dataclass(frozen=True)
class LeastSquares(RowLoss):
    """½(z − y)²: linear regression.

    Parameters
    ----------
    reduction
        "sum", "mean" (over the rows of each block) or "pooled" (over all rows).

    Raises
    ------
    InputError
        `reduction` is none of the three.

    Examples
    --------
    >>> import numpy as np
    >>> import auqadmm as aq
    >>> X = np.array([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0], [2.0, 1.0]])
    >>> y = np.array([1.0, 2.0, 3.0, 5.0])
    >>> problem = aq.Problem(aq.LeastSquares(), aq.L2(0.1), [(X[:2], y[:2]), (X[2:], y[2:])])
    >>> aq.solve(problem).coef.round(2)
    array([1.97, 1.  ])
    """

    quadratic: ClassVar[bool] = True
    unit_curvature: ClassVar[bool] = True

    @property
    def concordance(self) -> float:
        return 0.0

    @property
    def bend(self) -> float:
        return 1.0

    def null_logits(self, mean: Tensor, columns: int) -> Tensor:
        return mean.expand(columns)

    def row_value(self, z: Tensor, y: Tensor) -> Tensor:
        return 0.5 * (z[:, 0] - y).square()

    def row_slope(self, s: Tensor, y: Tensor) -> Tensor:
        return s - y[:, None]

    def row_curvature(self, s: Tensor, y: Tensor) -> RowCurvature:
        return DiagonalCurvature(torch.ones_like(s))

    def row_conjugate(self, a: Tensor, y: Tensor) -> Tensor:
        return a[:, 0] * (0.5 * a[:, 0] + y)


@dataclass(frozen=True)
class Multinomial(RowLoss):
    """log Σ_k exp(z_k) − z_y: softmax regression, one column of u per class.

    Parameters
    ----------
    reduction
        "sum", "mean" (over the rows of each block) or "pooled" (over all rows).

    Raises
    ------
    InputError
        `reduction` is none of the three.

    Examples
    --------
    >>> import numpy as np
    >>> import auqadmm as aq
    >>> X = np.array([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0], [2.0, 1.0]])
    >>> y = np.array(["a", "b", "c", "c"])
    >>> problem = aq.Problem(aq.Multinomial(), aq.L2(0.1), [(X[:2], y[:2]), (X[2:], y[2:])])
    >>> aq.solve(problem).coef.round(2)
    array([[-1.89,  1.13,  0.76],
           [ 1.51, -2.12,  0.61]])
    """

    target_kind: ClassVar[str] = "classes"

    def columns_for(self, classes: int) -> int:
        return classes

    def prepare(self, z: Tensor) -> Tensor:
        if z.is_cuda:
            return torch.softmax(z, dim=1)
        e = torch.exp(z - z.amax(1, keepdim=True))  # a third of the time of the function above
        return e / e.sum(1, keepdim=True)

    @property
    def concordance(self) -> float:
        # φ‴ is the third central moment of ζ under p: |ζ_k − mean| ≤ max ζ − min ζ ≤ √2‖ζ‖
        return math.sqrt(2)

    @property
    def bend(self) -> float:
        return 0.5  # the variance of ζ under p is at most (max ζ − min ζ)²/4, and that at most ‖ζ‖²/2

    @property
    def gauge(self) -> bool:
        return True

    def null_logits(self, mean: Tensor, columns: int) -> Tensor:
        return mean.clamp(min=NO_SHARE).log()

    def row_value(self, z: Tensor, y: Tensor) -> Tensor:
        # log1p of all terms but the largest: a row fitted well keeps its digits
        top, where = z.max(dim=1, keepdim=True)
        rest = torch.exp(z - top).scatter(1, where, 0.0).sum(1)
        return torch.log1p(rest) + (top - z.gather(1, y[:, None])).squeeze(1)

    def row_slope(self, s: Tensor, y: Tensor) -> Tensor:
        # p − e_y, with p_y − 1 as minus the sum of the others: no cancellation where p_y is close to 1
        others = s.scatter(1, y[:, None], 0.0)
        return others.scatter(1, y[:, None], -others.sum(1, keepdim=True))

    def row_curvature(self, s: Tensor, y: Tensor) -> RowCurvature:
        return SoftmaxCurvature(s)

    def row_conjugate(self, a: Tensor, y: Tensor) -> Tensor:
        # Σ_k q_k log q_k, q = a + e_y, on the simplex; rounding may leave it by a few units in the last place
        slack = 4 * a.shape[1] * torch.finfo(a.dtype).eps
        others = a.scatter(1, y[:, None], 0.0)
        own = a.gather(1, y[:, None]).squeeze(1)
        outside = (others < 0).any(1) | (own < -1 - slack) | (a.sum(1).abs() > slack)
        own = own.clamp(min=-1.0)
        entropy = torch.xlogy(others, others).sum(1) + torch.special.xlog1py(1 + own, own)
        return torch.where(outside, math.inf, entropy)


@dataclass(frozen=True)
class Logistic(RowLoss):
    """log(1 + exp(−yz)), y = ±1: two-class logistic regression.

    Parameters
    ----------
    reduction
        "sum", "mean" (over the rows of each block) or "pooled" (over all rows).

    Raises
    ------
    InputError
        `reduction` is none of the three.

    Examples
    --------
    >>> import numpy as np
    >>> import auqadmm as aq
    >>> X = np.array([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0], [2.0, 1.0]])
    >>> y = np.array([0, 0, 1, 1])
    >>> problem = aq.Problem(aq.Logistic(), aq.L2(0.1), [(X[:2], y[:2]), (X[2:], y[2:])])
    >>> aq.solve(problem).coef.round(2)
    array([0.66, 0.07])
    """

    target_kind: ClassVar[str] = "binary"

    @property
    def concordance(self) -> float:
        return 1.0  # φ‴ = φ″·(1 − 2σ(z))

    @property
    def bend(self) -> float:
        return 0.25

    def null_logits(self, mean: Tensor, columns: int) -> Tensor:
        odds = (1 + mean).clamp(min=NO_SHARE) / (1 - mean).clamp(min=NO_SHARE)
        return odds.log().expand(columns)

    def row_value(self, z: Tensor, y: Tensor) -> Tensor:
        return -torch.nn.functional.logsigmoid(y * z[:, 0])

    def row_slope(self, s: Tensor, y: Tensor) -> Tensor:
        sign = y[:, None]
        return -sign * torch.sigmoid(-sign * s)

    def row_curvature(self, s: Tensor, y: Tensor) -> RowCurvature:
        return DiagonalCurvature(torch.sigmoid(s) * torch.sigmoid(-s))

    def row_conjugate(self, a: Tensor, y: Tensor) -> Tensor:
        q = -y * a[:, 0]
        entropy = torch.xlogy(q, q) + torch.special.xlog1py(1 - q, -q)
        return torch.where((q < 0) | (q > 1), math.inf, entropy)


@dataclass(frozen=True)
class SmoothedHinge(RowLoss):
    """h(t) = (t + √(t² + ε²))/2 with t = 1 − yz, y = ±1: the support vector machine, made smooth.

    Parameters
    ----------
    eps
        Width ε of the rounded corner; h exceeds the hinge by at most ε/2.
    reduction
        "sum", "mean" (over the rows of each block) or "pooled" (over all rows).

    Raises
    ------
    InputError
        `eps` is no positive finite number, or `reduction` none of the three.

    Examples
    --------
    >>> import numpy as np
    >>> import auqadmm as aq
    >>> X = np.array([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0], [2.0, 1.0]])
    >>> y = np.array([0, 0, 1, 1])
    >>> problem = aq.Problem(aq.SmoothedHinge(eps=0.1), aq.L2(0.1), [(X[:2], y[:2]), (X[2:], y[2:])])
    >>> aq.solve(problem).coef.round(1)
    array([0.5, 0.2])
    """

    eps: float = 1 / 5000
    target_kind: ClassVar[str] = "binary"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("SmoothedHinge", "eps", self.eps)

    @property
    def cornered(self) -> bool:  # type: ignore[override]
        return self.eps < 0.1

    def eased(self, width: float) -> SmoothedHinge:
        return replace(self, eps=width * self.eps)

    def easing(self, spread: float) -> float:
        return max(1.0, 1.0 / self.eps)

    @property
    def concordance(self) -> float:
        return 1.5 / self.eps  # φ‴/φ″ = 3t/(t² + ε²), largest at t = ε

    @property
    def bend(self) -> float:
        return 0.5 / self.eps

    def null_logits(self, mean: Tensor, columns: int) -> Tensor:
        # shares of the classes times their slopes cancel; the slope of the sum rises with the logit
        more, less = (1 + mean).clamp(min=NO_SHARE), (1 - mean).clamp(min=NO_SHARE)
        low, high = torch.full_like(mean, -FAR_LOGIT), torch.full_like(mean, FAR_LOGIT)
        for _ in range(200):
            z = 0.5 * (low + high)
            (h, root), (g, other) = self._hinge(1 - z), self._hinge(1 + z)
            rising = less * (g / other) > more * (h / root)
            low, high = torch.where(rising, low, z), torch.where(rising, z, high)
        return (0.5 * (low + high)).expand(columns)

    def row_value(self, z: Tensor, y: Tensor) -> Tensor:
        return self._hinge(1 - y * z[:, 0])[0]

    def row_slope(self, s: Tensor, y: Tensor) -> Tensor:
        h, root = self._hinge(1 - y[:, None] * s)
        return -y[:, None] * (h / root)  # h' = h/√(t² + ε²)

    def row_curvature(self, s: Tensor, y: Tensor) -> RowCurvature:
        root = self._hinge(1 - y[:, None] * s)[1]
        return DiagonalCurvature((self.eps / root).square() / (2 * root))

    @property
    def kinked(self) -> bool:
        return True

    def row_corner(self, z: Tensor, y: Tensor) -> Corner:
        t = 1 - y[:, None] * z
        root = self._hinge(t)[1]
        return Corner(t / root, t / root, -y[:, None] / root, 0.5)

    def row_expected(self, s: Tensor, y: Tensor, variance: Tensor) -> RowCurvature:
        # a spike of mass 1 and width ε, blurred: the normal density at t, of variance + ε²
        t = 1 - y[:, None] * s
        spread = variance[:, None] + self.eps**2
        return DiagonalCurvature(torch.exp(-0.5 * t * t / spread) / torch.sqrt(2 * math.pi * spread))

    def row_conjugate(self, a: Tensor, y: Tensor) -> Tensor:
        b = -y * a[:, 0]  # h*(b) = −ε√(b(1−b)) on [0, 1]
        value = -b - self.eps * (b * (1 - b)).clamp(min=0).sqrt()
        return torch.where((b < 0) | (b > 1), math.inf, value)

    def _hinge(self, t: Tensor) -> tuple[Tensor, Tensor]:
        return rounded(t, self.eps)


@dataclass(frozen=True)
class Huber(RowLoss):
    """½r² for |r| ≤ δ and δ|r| − ½δ² beyond, r = z − y: robust regression.

    Parameters
    ----------
    delta
        Residual δ at which the square turns into a straight line.
    reduction
        "sum", "mean" (over the rows of each block) or "pooled" (over all rows).

    Raises
    ------
    InputError
        `delta` is no positive finite number, or `reduction` none of the three.

    Examples
    --------
    >>> import numpy as np
    >>> import auqadmm as aq
    >>> X = np.array([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0], [2.0, 1.0]])
    >>> y = np.array([1.0, 2.0, 3.0, 5.0])
    >>> problem = aq.Problem(aq.Huber(delta=0.5), aq.L2(0.1), [(X[:2], y[:2]), (X[2:], y[2:])])
    >>> aq.solve(problem).coef.round(2)
    array([1.97, 1.  ])
    """

    delta: float = 1.0
    dispersed: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("Huber", "delta", self.delta)

    def eased(self, width: float) -> Times:
        return Times(replace(self, delta=width * self.delta), 1 / width)  # the same slope far away

    def easing(self, spread: float) -> float:
        return max(1.0, 4 * spread / self.delta)

    @property
    def bend(self) -> float:
        return 1.0

    def null_logits(self, mean: Tensor, columns: int) -> Tensor:
        return mean.expand(columns)

    @property
    def null_searched(self) -> bool:
        return True

    def row_value(self, z: Tensor, y: Tensor) -> Tensor:
        r = z[:, 0] - y
        near = r.clamp(-self.delta, self.delta)
        return near * (r - 0.5 * near)

    def row_slope(self, s: Tensor, y: Tensor) -> Tensor:
        return (s - y[:, None]).clamp(-self.delta, self.delta)

    def row_curvature(self, s: Tensor, y: Tensor) -> RowCurvature:
        return DiagonalCurvature(((s - y[:, None]).abs() <= self.delta).to(s.dtype))

    @property
    def kinked(self) -> bool:
        return True

    def row_corner(self, z: Tensor, y: Tensor) -> Corner:
        r = z - y[:, None]
        size = r.abs().clamp(min=self.delta)
        return Corner(r / size, torch.where(r.abs() > self.delta, r.sign(), 0.0), 1 / size, self.delta)

    def row_expected(self, s: Tensor, y: Tensor, variance: Tensor) -> RowCurvature:
        # the probability that the uncertain residual is in the quadratic part
        r, spread = s - y[:, None], variance.sqrt()[:, None].clamp(min=torch.finfo(s.dtype).tiny)
        inside = torch.special.ndtr((self.delta - r) / spread) - torch.special.ndtr((-self.delta - r) / spread)
        return DiagonalCurvature(inside)

    def row_conjugate(self, a: Tensor, y: Tensor) -> Tensor:
        value = a[:, 0] * (0.5 * a[:, 0] + y)
        return torch.where(a[:, 0].abs() > self.delta, math.inf, value)


@dataclass(frozen=True)
class Poisson(RowLoss):
    """exp(z) − yz, y ≥ 0: regression of counts or rates with a logarithmic link.

    y need not be whole: counts per unit of exposure with the exposure as weight have the same coefficients as counts
    with an offset. statsmodels takes them too, R with a warning.

    The value is infinite where exp(z) overflows (z > 709 in float64, z > 88 in float32), and a line search
    rejects it. Slope and curvature are cut at the largest float times its precision: their sums over rows
    then stay finite, where 0 · inf and inf − inf would be NaN.

    Parameters
    ----------
    reduction
        "sum", "mean" (over the rows of each block) or "pooled" (over all rows).

    Raises
    ------
    InputError
        `reduction` is none of the three.

    Examples
    --------
    >>> import numpy as np
    >>> import auqadmm as aq
    >>> X = np.array([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0], [2.0, 1.0]])
    >>> y = np.array([0, 1, 2, 6])
    >>> problem = aq.Problem(aq.Poisson(), aq.L2(0.1), [(X[:2], y[:2]), (X[2:], y[2:])])
    >>> aq.solve(problem).coef.round(2)
    array([ 0.93, -0.21])
    """

    def check_target(self, name: str, y: np.ndarray) -> None:
        bad = np.flatnonzero(y < 0)
        if bad.size:
            raise InputError(
                f"{name}: y[{bad[0]}] is {y[bad[0]]}; Poisson needs counts or rates, which are not negative."
            )

    @property
    def concordance(self) -> float:
        return 1.0  # φ‴ = φ″

    def row_infimum(self, y: Tensor) -> Tensor:
        return y - torch.xlogy(y, y)  # at z = log y

    def null_logits(self, mean: Tensor, columns: int) -> Tensor:
        return mean.clamp(min=NO_SHARE).log().expand(columns)

    def prepare(self, z: Tensor) -> Tensor:
        info = torch.finfo(z.dtype)
        return torch.exp(z).clamp(max=info.max * info.eps)

    def row_value(self, z: Tensor, y: Tensor) -> Tensor:
        return torch.exp(z[:, 0]) - y * z[:, 0]

    def row_slope(self, s: Tensor, y: Tensor) -> Tensor:
        return s - y[:, None]

    def row_curvature(self, s: Tensor, y: Tensor) -> RowCurvature:
        return DiagonalCurvature(s)

    def row_conjugate(self, a: Tensor, y: Tensor) -> Tensor:
        q = a[:, 0] + y
        return torch.where(q < 0, math.inf, torch.xlogy(q, q) - q)


@dataclass(frozen=True)
class Times(RowLoss):
    """A multiple of another loss of real targets."""

    loss: RowLoss
    factor: float

    @property
    def bend(self) -> float:
        return self.factor * self.loss.bend

    def row_value(self, z: Tensor, y: Tensor) -> Tensor:
        return self.factor * self.loss.row_value(z, y)

    def row_slope(self, s: Tensor, y: Tensor) -> Tensor:
        return self.factor * self.loss.row_slope(s, y)

    def row_curvature(self, s: Tensor, y: Tensor) -> RowCurvature:
        return DiagonalCurvature(self.factor * self.loss.row_curvature(s, y).diagonal())

    @property
    def kinked(self) -> bool:
        return self.loss.kinked

    def row_corner(self, z: Tensor, y: Tensor) -> Corner | None:
        corner = self.loss.row_corner(z, y)
        return None if corner is None else replace(corner, height=self.factor * corner.height)

    def row_conjugate(self, a: Tensor, y: Tensor) -> Tensor:
        return self.factor * self.loss.row_conjugate(a / self.factor, y)


def rounded(t: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """h(t) = (t + √(t² + ε²))/2 and √(t² + ε²). For t < 0 the sum t + √ cancels; its equal ε²/(√ − t) does not."""
    root = torch.hypot(t, torch.full_like(t, eps))
    total = t.abs() + root
    return torch.where(t < 0, eps * (eps / (2 * total)), total / 2), root


def check_positive(loss: str, name: str, value: float) -> None:
    if not isinstance(value, numbers.Real) or isinstance(value, bool) or not 0 < value < math.inf:
        raise InputError(f"{loss}: {name} must be a positive finite number; got {value!r}.")
