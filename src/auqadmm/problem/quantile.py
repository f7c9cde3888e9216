"""Quantile regression: the pinball loss with a rounded corner.

    φ(z, y) = (q − ½)r + ½√(r² + ε²),  r = y − z      q·r for r > 0 and (q − 1)·r for r < 0, rounded within about ε

With the rounded hinge h(t) = (t + √(t² + ε²))/2 this is q·h(r) + (1 − q)·h(−r): no term is negative, and nothing
cancels. φ exceeds the pinball loss by at most ε/2, at r = 0, and is ε√(q(1 − q)) at its least.

Shapes: R flat rows; logits z and dual points a (R, 1), targets y (R,).
"""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from auqadmm.blocks.curvature import Corner, DiagonalCurvature, RowCurvature
from auqadmm.blocks.rows import RowLoss
from auqadmm.problem.ingest import InputError
from auqadmm.problem.losses import check_positive, rounded


@dataclass(frozen=True)
class Quantile(RowLoss):
    """(q − ½)r + ½√(r² + ε²) with r = y − z: the q-th quantile of y given x, its corner made smooth.

    Parameters
    ----------
    q
        Which quantile, between 0 and 1: 0.5 is the median.
    eps
        Width ε of the rounded corner, in units of the target: the loss of a row cannot depend on other rows. φ
        exceeds the pinball loss by at most ε/2, so a hundredth of the target's spread is a good choice.
    reduction
        "sum", "mean" (over the rows of each block) or "pooled" (over all rows).

    Raises
    ------
    InputError
        `q` is not between 0 and 1, `eps` no positive finite number, or `reduction` none of the three.

    Examples
    --------
    >>> import numpy as np
    >>> import auqadmm as aq
    >>> X = np.array([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0], [2.0, 1.0]])
    >>> y = np.array([1.0, 2.0, 3.0, 5.0])
    >>> problem = aq.Problem(aq.Quantile(0.5, eps=0.1), aq.L2(0.1), [(X[:2], y[:2]), (X[2:], y[2:])])
    >>> aq.solve(problem).coef.round(2)
    array([1.99, 1.  ])
    """

    q: float = 0.5
    eps: float = field(default=0.01, kw_only=True)
    dispersed: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.q, numbers.Real) or isinstance(self.q, bool) or not 0 < self.q < 1:
            raise InputError(f"Quantile: q must be a number between 0 and 1; got {self.q!r}.")
        check_positive("Quantile", "eps", self.eps)

    def eased(self, width: float) -> Quantile:
        return replace(self, eps=width * self.eps)

    def easing(self, spread: float) -> float:
        return max(1.0, spread / self.eps)

    def sharpness(self, spread: float) -> float:
        return self.easing(spread)

    @property
    def concordance(self) -> float:
        return 1.5 / self.eps  # that of the hinge, from which φ differs by a straight line

    @property
    def bend(self) -> float:
        return 0.5 / self.eps

    def row_infimum(self, y: Tensor) -> Tensor:
        least = self.eps * math.sqrt(self.q * (1 - self.q))  # at r = ε(½ − q)/√(q(1 − q))
        return torch.full((len(y),), least, dtype=torch.float64, device=y.device)

    def null_logits(self, mean: Tensor, columns: int) -> Tensor:
        return mean.expand(columns)

    @property
    def null_searched(self) -> bool:
        return True

    def row_value(self, z: Tensor, y: Tensor) -> Tensor:
        above, below, _ = self._sides(y - z[:, 0])
        return above + below

    def row_slope(self, s: Tensor, y: Tensor) -> Tensor:
        above, below, root = self._sides(y[:, None] - s)
        return (below - above) / root  # h' = h/√(t² + ε²)

    def row_curvature(self, s: Tensor, y: Tensor) -> RowCurvature:
        root = rounded(y[:, None] - s, self.eps)[1]
        return DiagonalCurvature((self.eps / root).square() / (2 * root))

    @property
    def kinked(self) -> bool:
        return True

    def row_corner(self, z: Tensor, y: Tensor) -> Corner:
        r = y[:, None] - z
        root = rounded(r, self.eps)[1]
        return Corner(r / root, r / root, -1 / root, 0.5)

    def row_expected(self, s: Tensor, y: Tensor, variance: Tensor) -> RowCurvature:
        # a spike of mass 1 and width ε, blurred: the normal density at r, of variance + ε²
        r = y[:, None] - s
        spread = variance[:, None] + self.eps**2
        return DiagonalCurvature(torch.exp(-0.5 * r * r / spread) / torch.sqrt(2 * math.pi * spread))

    def row_conjugate(self, a: Tensor, y: Tensor) -> Tensor:
        b = a[:, 0] + self.q
        value = a[:, 0] * y - self.eps * (b * (1 - b)).clamp(min=0).sqrt()
        return torch.where((b < 0) | (b > 1), math.inf, value)

    def _sides(self, r: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q·h(r), (1 − q)·h(−r) and √(r² + ε²)."""
        h, root = rounded(r, self.eps)
        return self.q * h, (1 - self.q) * rounded(-r, self.eps)[0], root
