"""Rows at a corner of their loss, with a dual variable each: curvature that does not jump from step to step.

    φ'(z) = a + bρ,   ρ = t/s(t)        t is affine in z, s > 0 smooth or nearly so; ρ in [−1, 1] says on which side a
                                        row is, and all of it changes within the width of the corner

    φ''(z) = h(1 − σρ)|t'|/s            the derivative, σ = ds/dt and h the height of the corner
         w ← ρ + (1 − σw)(t'/s)Δz       a step of Newton's method for the pair sw = t, put back into [−1, 1]
           h(1 − σw)|t'|/s              the curvature used: never negative, equal to φ'' where w = ρ

With w in place of ρ the equation sw = t is linearised instead of w = t/s, which is almost a step function: the model
holds over steps far longer than the corner is wide. w follows from the points that were visited, so nobody has to keep
it: workers compute it anew from those points.

References: T. F. Chan, G. H. Golub, P. Mulet, A nonlinear primal-dual method for total variation-based image
restoration, SIAM J. Sci. Comput. 20, 1999.

Shapes: r rows, C columns, K points visited; z, w (r, C).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from auqadmm.blocks.curvature import DiagonalCurvature

if TYPE_CHECKING:
    from auqadmm.blocks.rows import RowLoss


@dataclass(frozen=True)
class Corner:
    """Rows beside their corner: `place` ρ, `turn` σ, `rate` t'/s, all (r, C), and `height` h."""

    place: Tensor
    turn: Tensor
    rate: Tensor
    height: float

    def curvature(self, w: Tensor) -> DiagonalCurvature:
        return DiagonalCurvature(self.height * self.rate.abs() * (1 - w * self.turn).clamp(min=0))

    def moved(self, w: Tensor, dz: Tensor) -> Tensor:
        """w after logits moved by dz."""
        return (self.place + (1 - w * self.turn) * self.rate * dz).clamp(-1, 1)


@dataclass(frozen=True)
class Visited:
    """The points before this one, (K, m, C), first to last, how wide corners were at each, and which part of the step
    from there was taken: the duals take all of it."""

    points: Tensor
    widths: tuple[float, ...]
    lengths: tuple[float, ...]

    @property
    def columns(self) -> Tensor:
        """All of them side by side, (m, KC): one product serves them all."""
        return self.points.movedim(0, 1).flatten(1)


def smoothed_curvature(
    loss: RowLoss, now: RowLoss, visited: Visited, past: Tensor, z: Tensor, y: Tensor
) -> DiagonalCurvature:
    """The curvature of `now` at z with the duals that `visited` leads to: `past` (r, KC) are the logits there, `loss`
    the one whose corners are widened."""
    w = torch.zeros_like(z)
    logits = [*past.unflatten(1, (len(visited.widths), z.shape[1])).unbind(1), z]
    for width, t, before, after in zip(visited.widths, visited.lengths, logits[:-1], logits[1:], strict=True):
        then = loss.eased(width) if width > 1 else loss
        w = _corner(then, before, y).moved(w, (after - before) / t)
    return _corner(now, z, y).curvature(w)


def _corner(loss: RowLoss, z: Tensor, y: Tensor) -> Corner:
    corner = loss.row_corner(z, y)
    assert corner is not None  # asked only of losses with corners
    return corner
