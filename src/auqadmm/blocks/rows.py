"""Losses of the logits, row by row: how row functions become f_j (S1).

    f_j(u) = Σ_i c_i φ(z_i, y_i), z_i = x_iᵀu + o_i      o_i the row's offset, mostly zero
    ∇f_j = Σ_i x_i c_i φ'(z_i)ᵀ        ∇²f_j[P] = Σ_i x_i (c_i φ''(z_i) Pᵀx_i)ᵀ

With the logits of all rows in one flat array a loss is defined by φ, φ', φ'' and φ* of a single row. The conjugate
φ*(a) = sup_z aᵀz − φ(z) serves the duality gap (S10); with an offset it is φ*(a) − aᵀo.

Shapes: B blocks, R flat rows (padding included), m features, C columns, k right-hand sides;
u (B, m, C), z (R, C), y (R,), c (R,).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from auqadmm.blocks.curvature import RowCurvature, RowHessian, RowModel, times
from auqadmm.blocks.loss import Line, Loss, Point

if TYPE_CHECKING:
    from auqadmm.blocks.curvature import Corner
    from auqadmm.blocks.parts import Part
    from auqadmm.blocks.shard import Shard


@dataclass(frozen=True, kw_only=True)
class RowLoss(Loss):
    """A loss of the logits, row by row. Subclasses write φ, φ', φ'' and, where they know it, φ* for flat rows.

    Slope and curvature take s = `prepare(z)` in place of z: what they share is computed once per point.

    Parameters
    ----------
    reduction
        As in `Loss`.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> import torch
    >>> import auqadmm as aq
    >>> @dataclass(frozen=True)
    ... class LogCosh(aq.losses.RowLoss):
    ...     def row_value(self, z, y):
    ...         return torch.log(torch.cosh(z[:, 0] - y))
    ...     def row_slope(self, z, y):
    ...         return torch.tanh(z - y[:, None])
    ...     def row_curvature(self, z, y):
    ...         return aq.losses.DiagonalCurvature(1 - torch.tanh(z - y[:, None]).square())
    >>> problem = aq.Problem(LogCosh(), aq.Zero(), [([[1.0]], [1.0]), ([[1.0]], [3.0])])
    >>> round(float(aq.solve(problem).v), 3)
    2.0
    """

    recordable: ClassVar[bool] = True
    takes_offset: ClassVar[bool] = True

    def prepare(self, z: Tensor) -> Tensor:
        """What slope and curvature have in common, such as the probabilities of a softmax.

        Parameters
        ----------
        z
            Logits of flat rows, (R, C).

        Returns
        -------
        Tensor
            s, the first argument of `row_slope` and `row_curvature`: z itself unless a subclass precomputes more.
        """
        return z

    @abstractmethod
    def row_value(self, z: Tensor, y: Tensor) -> Tensor:
        """φ of every row.

        Parameters
        ----------
        z
            Logits, (R, C).
        y
            Target, (R,): real, ±1, or the number of a class (`target_kind`).

        Returns
        -------
        Tensor
            (R,), without row weights.
        """

    @abstractmethod
    def row_slope(self, s: Tensor, y: Tensor) -> Tensor:
        """φ' of every row, by its logits.

        Parameters
        ----------
        s
            What `prepare` makes of the logits.
        y
            Target, (R,).

        Returns
        -------
        Tensor
            (R, C), without row weights.
        """

    @abstractmethod
    def row_curvature(self, s: Tensor, y: Tensor) -> RowCurvature:
        """φ'' of every row.

        Parameters
        ----------
        s
            What `prepare` makes of the logits.
        y
            Target, (R,).

        Returns
        -------
        RowCurvature
            Without row weights; with one column `DiagonalCurvature`.
        """

    def row_corner(self, z: Tensor, y: Tensor) -> Corner | None:
        """Where rows are beside the corner of φ', which tells Newton's method how far a step will turn the slope.

        Parameters
        ----------
        z
            Logits, (R, C).
        y
            Target, (R,).

        Returns
        -------
        Corner or None
            None: φ' has no corner (`kinked`).
        """
        return None

    def row_expected(self, s: Tensor, y: Tensor, variance: Tensor) -> RowCurvature:
        """E φ''(z + ξ), ξ ~ N(0, variance): curvature averaged over the uncertainty of z (S12).

        Parameters
        ----------
        s
            What `prepare` makes of the logits.
        y
            Target, (R,).
        variance
            Of each row's logits, (R,).

        Returns
        -------
        RowCurvature
            The plain φ'' unless that is a spike or a step, which says nothing about nearby points.
        """
        return self.row_curvature(s, y)

    @property
    def expects(self) -> bool:
        """Does `row_expected` depend on the variance?"""
        return type(self).row_expected is not RowLoss.row_expected

    def row_conjugate(self, a: Tensor, y: Tensor) -> Tensor:
        """φ*(a, y) = sup_z aᵀz − φ(z, y): with it `Result` has a duality gap.

        Parameters
        ----------
        a
            Dual point, multiples of slopes, (R, C).
        y
            Target, (R,).

        Returns
        -------
        Tensor
            (R,), infinite outside the domain of φ* and, by default, everywhere: φ* is unknown.
        """
        return torch.full_like(a[:, 0], math.inf)

    def linearize(self, shard: Shard, u: Tensor) -> RowPoint:
        return RowPoint(self, shard, u, shard.logits(u))


@dataclass(frozen=True, eq=False)
class RowPoint(Point):
    """A point of a row loss: the logits z (R, C) are known, the rest is computed on first use.

    With an `anchor`, products with X are in single precision, and used only for differences from it
    (`single_precision.py`).
    """

    loss: RowLoss
    shard: Shard
    u: Tensor
    z: Tensor
    anchor: RowPoint | None = None

    @cached_property
    def value(self) -> Tensor:
        rows, a = self.loss.row_value(self.z, self.shard.target), self.anchor
        if a is None:
            return self.shard.design.sum_rows(self._weigh(rows))
        rows = rows - (a.slope * (self.z - a.z)).sum(1)
        return self.shard.design.sum_rows(self._weigh(rows)) + (a.grad * (self.u - a.u)).flatten(1).sum(1)

    @cached_property
    def grad(self) -> Tensor:
        a = self.anchor
        if a is None:
            return self.shard.design.adjoint(self._weigh(self.slope))
        return a.grad + self.shard.design.adjoint(self._weigh(self.slope - a.slope), single_precision=True)

    @cached_property
    def moved(self) -> Tensor:
        """‖∇f_j(u) − ∇f_j(u_a)‖ from the anchor at u_a, (B,)."""
        assert self.anchor is not None
        return torch.linalg.vector_norm((self.grad - self.anchor.grad).flatten(1), dim=1)

    @cached_property
    def slope(self) -> Tensor:
        """φ'(z), (R, C), unweighted."""
        return self.loss.row_slope(self._prepared, self.shard.target)

    @cached_property
    def curvature(self) -> RowCurvature:
        """φ''(z) of every row, unweighted."""
        return self.loss.row_curvature(self._prepared, self.shard.target)

    def row_model(self, variance: Tensor | None) -> RowModel:
        curvature = self.curvature
        if variance is not None:
            variance = variance * self._dispersion if self.loss.dispersed else variance
            curvature = self.loss.row_expected(self._prepared, self.shard.target, variance)
        design, c = self.shard.design, self.shard.row_weight
        squares = design.squares(self.u)
        trace = torch.where(c == 0, 0.0, c * curvature.diagonal().sum(1))
        total = curvature.total(design, c * squares)
        return RowModel(trace, design.sum_rows(squares * trace), total, curvature.weighted(c))

    @cached_property
    def hessian(self) -> RowHessian:
        shard = self.shard
        weighted = self.curvature if shard.plain else self.curvature.weighted(shard.row_weight)
        return RowHessian(shard.design, weighted, self.anchor is not None)

    def hvp(self, P: Tensor) -> Tensor:
        return self.hessian.hvp(P)

    def hessian_diagonal(self) -> Tensor:
        return self.hessian.diagonal()

    def line(self, P: Tensor) -> RowLine:
        return RowLine(self, P, self.shard.design.forward(P, self.anchor is not None))

    def take(self, some: Part) -> RowPoint:
        """The same point of some blocks only, with its cached values."""
        anchor = None if self.anchor is None else self.anchor.take(some)
        point = RowPoint(self.loss, some.shard, self.u[some.blocks], self.z[some.rows], anchor)
        known = {"value": some.blocks, "grad": some.blocks, "slope": some.rows, "_prepared": some.rows}
        vars(point).update({name: vars(self)[name][where] for name, where in known.items() if name in vars(self)})
        return point

    def conjugate(self, scale: float) -> Tensor:
        rows, offset = self.loss.row_conjugate(scale * self.slope, self.shard.target), self.shard.offset
        if offset is not None:
            rows = rows - scale * self.slope.sum(1) * offset
        return self.shard.design.sum_rows(self._weigh(rows))

    @cached_property
    def _prepared(self) -> Tensor:
        return self.loss.prepare(self.z)

    @property
    def _dispersion(self) -> Tensor:
        """The mean of c_iφ in the block of every row, (R,): the most likely scale of a likelihood exp(−φ/scale).

        Variances made of ∇²f_j, times that, depend neither on the reduction nor on units of the target.
        """
        design = self.shard.design
        counts = design.sum_rows((self.shard.row_weight > 0).to(self.value))
        return (self.value / counts.clamp(min=1))[design.block_of_row]

    def _weigh(self, x: Tensor) -> Tensor:
        """c_i x_i; a row of weight 0 adds exactly 0, even where its x_i is infinite."""
        return x if self.shard.plain else times(self.shard.row_weight, x)


@dataclass(frozen=True, eq=False)
class RowLine(Line):
    """z + t·XP: stepping along the ray needs no product with X."""

    start: RowPoint
    P: Tensor
    XP: Tensor

    def at(self, t: Tensor) -> RowPoint:
        start = self.start
        u = start.u + t[:, None, None] * self.P
        t_row = t[start.shard.design.block_of_row, None]
        return RowPoint(start.loss, start.shard, u, start.z + t_row * self.XP, start.anchor)

    def slope(self, point: RowPoint) -> Tensor:
        """⟨∇f_j, P⟩ at a point of the line, (B,): Σ_i c_i φ'(z_i)·(XP)_i, which needs no product with X."""
        a, shard = point.anchor, point.shard
        change = point.slope if a is None else point.slope - a.slope
        slope = shard.design.sum_rows(point._weigh((change * self.XP).sum(1)))
        return slope if a is None else slope + (a.grad * self.P).flatten(1).sum(1)
