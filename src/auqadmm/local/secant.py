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

from auqadmm.blocks.curvature import DiagonalCurvature, RowCurvature
from auqadmm.blocks.rows import Point, RowLoss, RowPoint


@dataclass(frozen=True, eq=False)
class SecantPoint(RowPoint):
    """A point whose Hessian is built from average curvatures; value and gradient are those of the point."""

    width: Tensor = field(kw_only=True)

    @cached_property
    def curvature(self) -> RowCurvature:
        return DiagonalCurvature(average(self.loss, self.z, self.shard.target, self.width))


def average(loss: RowLoss, z: Tensor, y: Tensor, width: Tensor) -> Tensor:
    """φ'' of rows of one column (R, 1), averaged within `width` of z."""
    # Below this width the difference of slopes, and of z ± w itself, is rounding; φ'' is then average enough.
    tiny = torch.finfo(z.dtype).eps ** 0.5 * (1 + z.abs())
    w = torch.maximum(width, tiny)
    ends = torch.cat([z + w, z - w])
    high, low = loss.row_slope(loss.prepare(ends), torch.cat([y, y])).chunk(2)
    found = (high - low) / (2 * w)
    if not z.is_cuda and bool((width > tiny).all()):  # a look costs nothing there
        return found
    return torch.where(width > tiny, found, loss.row_curvature(loss.prepare(z), y).diagonal())


def averaged(point: Point, last: Point | None, width: Tensor | None = None) -> Point:
    """The point with its curvature averaged over the way from `last`, or within `width` (B,) of its logits; as it is
    if neither is known or C > 1."""
    if not isinstance(point, RowPoint) or point.z.shape[1] > 1:
        return point
    if isinstance(last, RowPoint):
        width = moved(last, point)
    if width is None:
        return point
    rows = width[point.shard.design.block_of_row, None]
    return SecantPoint(point.loss, point.shard, point.u, point.z, point.anchor, width=rows)


def moved(last: RowPoint, point: RowPoint) -> Tensor:
    """How far the logits of a block moved, in the mean square, (B,)."""
    design, c = point.shard.design, point.shard.row_weight
    # a block without rows has Σc = 0, and no logits to speak of
    total = design.sum_rows(c).clamp(min=torch.finfo(c.dtype).tiny)
    return (design.sum_rows(c * (point.z - last.z).square()[:, 0]) / total).sqrt()
