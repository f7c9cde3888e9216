"""Curvature over the length of a step, in place of curvature at a point.

    h_i = (φ'(z_i + w) − φ'(z_i − w)) / 2w,   w² = the mean square of the last change of the logits

is the average of φ'' within w of z_i, for any convex loss of one column. Where φ'' is a spike (the smoothed hinge)
or jumps (Huber), φ''(z_i) knows nothing of the corner that the very next step will cross: Newton's method then moves
like a gradient method. Seen over the last step's length the corner is there, and as steps shrink h_i becomes φ''(z_i)
and Newton's method fast. Losses without corners hardly notice.

Shapes: B blocks, R flat rows; z, w, h (R, 1).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from auqadmm.problem.curvature import Curvature, DiagonalCurvature
from auqadmm.problem.rows import Point, RowPoint


@dataclass(frozen=True, eq=False)
class SecantPoint(RowPoint):
    """A point whose Hessian is built from average curvatures; value and gradient are those of the point."""

    width: Tensor = field(kw_only=True)

    @cached_property
    def curvature(self) -> Curvature:
        # Below this width the difference of slopes, and of z ± w itself, is rounding; φ'' is then average enough.
        tiny = torch.finfo(self.z.dtype).eps ** 0.5 * (1 + self.z.abs())
        w = torch.maximum(self.width, tiny)
        average = (self._slope_at(self.z + w) - self._slope_at(self.z - w)) / (2 * w)
        exact = self.loss.row_curvature(self._prepared, self.shard.target).diagonal()
        return DiagonalCurvature(torch.where(self.width > tiny, average, exact))

    def _slope_at(self, z: Tensor) -> Tensor:
        return self.loss.row_slope(self.loss.prepare(z), self.shard.target)


def averaged(point: Point, last: Point | None) -> Point:
    """The point with its curvature averaged over the way from `last`; as it is if there is none or C > 1."""
    if not isinstance(point, RowPoint) or not isinstance(last, RowPoint) or point.z.shape[1] > 1:
        return point
    shard = point.shard
    c = shard.row_weight
    # a block without rows has Σc = 0, and no logits to speak of
    total = shard.design.sum_rows(c).clamp(min=torch.finfo(c.dtype).tiny)
    square = shard.design.sum_rows(c * (point.z - last.z).square()[:, 0]) / total
    width = square.sqrt()[shard.design.block_of_row, None]
    return SecantPoint(point.loss, shard, point.u, point.z, point.anchor, width=width)
