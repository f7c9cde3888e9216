"""A two-class loss for many classes: one column of the model per class, each against all others.

    φ(z, y) = Σ_c φ₂(z_c, s_c),   s_c = +1 if y = c, else −1

The columns are independent but for the rows, so one run solves all of these problems at once.

Shapes: R flat rows, C columns; z (R, C), y (R,) classes 0 … C−1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from auqadmm.blocks.corners import Corner
from auqadmm.blocks.curvature import DiagonalCurvature, RowCurvature
from auqadmm.blocks.rows import RowLoss


@dataclass(frozen=True)
class OneAgainstRest(RowLoss):
    """The sum of a two-class loss over all classes, each against the others.

    Parameters
    ----------
    loss
        Of two classes; its reduction is not used.
    reduction
        As of every loss: "sum", "mean" or "pooled".

    Examples
    --------
    >>> import auqadmm as aq
    >>> blocks = [([[0.0], [1.0]], ["a", "b"]), ([[2.0], [3.0]], ["b", "c"])]
    >>> problem = aq.Problem(aq.losses.OneAgainstRest(loss=aq.SmoothedHinge()), aq.L2(1.0), blocks)
    >>> problem.classes.tolist(), aq.solve(problem).coef.shape
    (['a', 'b', 'c'], (1, 3))
    """

    loss: RowLoss
    target_kind: ClassVar[str] = "classes"

    def columns_for(self, classes: int) -> int:
        return classes

    def eased(self, width: float) -> OneAgainstRest:
        return replace(self, loss=self.loss.eased(width))

    def easing(self, spread: float) -> float:
        return self.loss.easing(spread)

    @property
    def concordance(self) -> float:
        return self.loss.concordance

    @property
    def bend(self) -> float:
        return self.loss.bend

    @property
    def null_searched(self) -> bool:
        return self.loss.null_searched

    def null_logits(self, mean: Tensor, columns: int) -> Tensor:
        return torch.cat([self.loss.null_logits(2 * share - 1, 1) for share in mean.split(1)])

    @property
    def kinked(self) -> bool:
        return self.loss.kinked

    def row_corner(self, z: Tensor, y: Tensor) -> Corner | None:
        corner = self.loss.row_corner(*_flat(z, y))
        if corner is None:
            return None
        place, turn, rate = (x.reshape(z.shape) for x in (corner.place, corner.turn, corner.rate))
        return Corner(place, turn, rate, corner.height)

    def row_value(self, z: Tensor, y: Tensor) -> Tensor:
        return self.loss.row_value(*_flat(z, y)).reshape(z.shape).sum(1)

    def row_slope(self, s: Tensor, y: Tensor) -> Tensor:
        return self.loss.row_slope(*_flat(s, y)).reshape(s.shape)

    def row_curvature(self, s: Tensor, y: Tensor) -> RowCurvature:
        return DiagonalCurvature(self.loss.row_curvature(*_flat(s, y)).diagonal().reshape(s.shape))

    def row_expected(self, s: Tensor, y: Tensor, variance: Tensor) -> RowCurvature:
        each = self.loss.row_expected(*_flat(s, y), variance.repeat_interleave(s.shape[1]))
        return DiagonalCurvature(each.diagonal().reshape(s.shape))

    @property
    def expects(self) -> bool:
        return self.loss.expects

    def row_conjugate(self, a: Tensor, y: Tensor) -> Tensor:
        return self.loss.row_conjugate(*_flat(a, y)).reshape(a.shape).sum(1)


def _flat(z: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Every entry of z as a row of one column, with its sign."""
    sign = torch.full_like(z, -1.0).scatter(1, y[:, None], 1.0)
    return z.reshape(-1, 1), sign.reshape(-1)
