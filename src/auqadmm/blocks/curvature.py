"""φ''(z_i) of every row, a C×C matrix each that is never formed, and the Hessians that are made of them (S1).

    ∇²f_j[P] = Σ_i x_i (c_i φ''(z_i) Pᵀx_i)ᵀ

Rows at a corner of their loss have a dual variable each, so that curvature does not jump from step to step:

    φ'(z) = a + bρ,   ρ = t/s(t)        t is affine in z, s > 0 smooth or nearly so; ρ in [−1, 1] says on which side a
                                        row is, and all of it changes within the width of the corner

    φ''(z) = h(1 − σρ)|t'|/s            the derivative, σ = ds/dt and h the height of the corner
         w ← ρ + (1 − σw)(t'/s)Δz       a step of Newton's method for the pair sw = t, put back into [−1, 1]
           h(1 − σw)|t'|/s              the curvature used: never negative, equal to φ'' where w = ρ

With w in place of ρ the equation sw = t is linearised instead of w = t/s, which is almost a step function: the model
holds over steps far longer than the corner is wide. w follows from the points that were visited, so it need not be
kept: workers compute it anew from those points.

References: T. F. Chan, G. H. Golub, P. Mulet, A nonlinear primal-dual method for total variation-based image
restoration, SIAM J. Sci. Comput. 20, 1999.

Shapes: B blocks, R flat rows (padding included), r of them, m features, C columns, k right-hand sides, K points
visited; P (R, C) or (R, C, k), c (R,); z, w (r, C).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

if TYPE_CHECKING:
    from auqadmm.blocks.design import Design, Runs
    from auqadmm.blocks.rows import RowLoss


class RowCurvature(Protocol):
    """φ''(z_i) of every row, a C×C matrix each, never formed."""

    def apply(self, P: Tensor) -> Tensor:
        """Products φ''(z_i) P_i.

        Parameters
        ----------
        P
            (R, C), or (R, C, k) with k right-hand sides.

        Returns
        -------
        Tensor
            In the shape of P.
        """
        ...

    def diagonal(self) -> Tensor:
        """The diagonals of all φ''(z_i).

        Returns
        -------
        Tensor
            (R, C).
        """
        ...

    def total(self, design: Design, a: Tensor) -> Tensor:
        """Σ_i a_i φ''(z_i) over the rows of each block.

        Parameters
        ----------
        design
            Of the shard: it knows which rows are whose.
        a
            A factor per row, (R,).

        Returns
        -------
        Tensor
            (B, C, C).
        """
        ...

    def weighted(self, c: Tensor) -> RowCurvature:
        """The curvature with row weights.

        Parameters
        ----------
        c
            (R,).

        Returns
        -------
        RowCurvature
            c_i φ''(z_i), exactly 0 where c_i is.
        """
        ...


@dataclass(frozen=True, eq=False)
class DiagonalCurvature:
    """φ'' with h (R, C) on the diagonal: every loss of one column.

    Parameters
    ----------
    h
        φ'' of every flat row and column, ≥ 0, (R, C).

    Examples
    --------
    >>> import torch
    >>> import auqadmm as aq
    >>> curvature = aq.losses.DiagonalCurvature(torch.tensor([[2.0], [3.0]]))
    >>> curvature.apply(torch.ones(2, 1)).flatten().tolist()
    [2.0, 3.0]
    """

    h: Tensor

    def apply(self, P: Tensor) -> Tensor:
        return with_trailing_axes(self.h, P) * P

    def diagonal(self) -> Tensor:
        return self.h

    def total(self, design: Design, a: Tensor) -> Tensor:
        return torch.diag_embed(design.sum_rows(a[:, None] * self.h))

    def weighted(self, c: Tensor) -> DiagonalCurvature:
        return DiagonalCurvature(times(c, self.h))


@dataclass(frozen=True, eq=False)
class SoftmaxCurvature:
    """φ'' = diag(q) − qpᵀ: that of a softmax.

    Parameters
    ----------
    p
        Probabilities of the classes, (R, C).
    q
        p times the weight of its row, (R, C); None: p itself.

    Examples
    --------
    >>> import torch
    >>> import auqadmm as aq
    >>> curvature = aq.losses.SoftmaxCurvature(torch.tensor([[0.5, 0.5]]))
    >>> curvature.apply(torch.tensor([[1.0, 0.0]])).tolist(), curvature.pair(0, 1).tolist()
    ([[0.25, -0.25]], [0.25])
    """

    p: Tensor
    q: Tensor | None = None

    def apply(self, P: Tensor) -> Tensor:
        p = with_trailing_axes(self.p, P)
        q = p if self.q is None else with_trailing_axes(self.q, P)
        return q * (P - (p * P).sum(1, keepdim=True))

    def diagonal(self) -> Tensor:
        return (self.p if self.q is None else self.q) * (1 - self.p)

    def total(self, design: Design, a: Tensor) -> Tensor:
        weighted = a[:, None] * (self.p if self.q is None else self.q)
        return torch.diag_embed(design.sum_rows(weighted)) - design.inner(weighted, self.p)

    def weighted(self, c: Tensor) -> SoftmaxCurvature:
        return SoftmaxCurvature(self.p, times(c, self.p if self.q is None else self.q))

    def pair(self, a: int, b: int) -> Tensor:
        """−φ''_ab of every row: φ'' = Σ_{a<b} q_a p_b (e_a − e_b)(e_a − e_b)ᵀ.

        Parameters
        ----------
        a, b
            Two different classes, by number.

        Returns
        -------
        Tensor
            (R,).
        """
        return (self.p if self.q is None else self.q)[:, a] * self.p[:, b]


@dataclass(frozen=True, eq=False)
class RowHessian:
    """∇²f_j[P] = Xᵀ(c φ'' XP): the curvature includes the row weights."""

    design: Design
    curvature: RowCurvature
    single_precision: bool = False

    def hvp(self, P: Tensor) -> Tensor:
        return self.both(P)[1]

    def both(self, P: Tensor, only: Runs = ()) -> tuple[Tensor, Tensor]:
        """XP (R, C) and ∇²f_j[P]; `only`: P is zero in other blocks (`Design.forward`)."""
        XP = self.design.forward(P, self.single_precision, only)
        return XP, self.design.adjoint(self.curvature.apply(XP), self.single_precision, only)

    def diagonal(self) -> Tensor:
        return self.design.adjoint_squared(self.curvature.diagonal(), self.single_precision)


@dataclass(frozen=True, eq=False)
class RowModel:
    """∇²f_j as Σ_i x_ix_iᵀ ⊗ S_i: w_i = tr S_i (R,), Σ|x_i|²w_i (B,), Σ|x_i|²S_i (B, C, C), and the S_i themselves."""

    trace: Tensor
    energy: Tensor
    S: Tensor
    rows: RowCurvature


def times(c: Tensor, x: Tensor) -> Tensor:
    """c_i x_i, and 0 where c_i is 0, whatever x_i."""
    c = with_trailing_axes(c, x)
    return torch.where(c == 0, 0.0, c * x)


def with_trailing_axes(x: Tensor, like: Tensor) -> Tensor:
    """x with trailing axes of length 1, to multiply `like`."""
    return x.reshape(x.shape + (1,) * (like.ndim - x.ndim))


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
