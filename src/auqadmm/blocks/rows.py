"""Losses of the logits, row by row: what every loss shares, and how row functions become f_j (S1).

    f_j(u) = Σ_i c_i φ(z_i, y_i), z_i = x_iᵀu + o_i      o_i the row's offset, mostly zero
    ∇f_j = Σ_i x_i c_i φ'(z_i)ᵀ        ∇²f_j[P] = Σ_i x_i (c_i φ''(z_i) Pᵀx_i)ᵀ

With the logits of all rows in one flat array a loss is defined by φ, φ', φ'' and φ* of a single row. The conjugate
φ*(a) = sup_z aᵀz − φ(z) serves the duality gap (S10); with an offset it is φ*(a) − aᵀo.

Shapes: B blocks, R flat rows (padding included), m features, C columns, k right-hand sides;
u (B, m, C), z (R, C), y (R,), c (R,).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from auqadmm.blocks.curvature import RowCurvature, RowHessian, RowModel, times
from auqadmm.errors import InputError

if TYPE_CHECKING:
    from auqadmm.blocks.corners import Corner
    from auqadmm.blocks.parts import Part
    from auqadmm.blocks.shard import Shard

REDUCTIONS = ("sum", "mean", "pooled")
# Numbers that the products of one chunk of unit vectors may occupy while a Hessian's diagonal is computed.
DIAGONAL_CHUNK = 2**22


class Line(ABC):
    """f_j along the ray u + tP, one step length per block: what line searches ask `Point.line` for.

    Examples
    --------
    >>> import torch
    >>> import auqadmm as aq
    >>> shard = aq.Problem(aq.LeastSquares(), aq.Zero(), [([[1.0], [2.0]], [1.0, 1.0])]).shard(torch.float64, "cpu")
    >>> u = P = torch.ones(1, 1, 1, dtype=torch.float64)
    >>> line = shard.linearize(u).line(P)
    >>> [float(line.at(torch.tensor([t])).value) for t in (-1.0, -0.5, 0.0)]
    [1.0, 0.125, 0.5]
    """

    @abstractmethod
    def at(self, t: Tensor) -> Point:
        """A point of the ray.

        Parameters
        ----------
        t
            How far to go along P, a number for each block: (B,).

        Returns
        -------
        Point
            That at u + t·P.
        """


@dataclass(frozen=True, eq=False)
class PlainLine(Line):
    """A ray whose points are computed anew: for losses without anything to reuse between step lengths.

    Parameters
    ----------
    shard
        The blocks, as `auqadmm.losses` describes them.
    u, P
        Where the ray starts, and its direction, (B, m, C).

    Examples
    --------
    >>> import torch
    >>> import auqadmm as aq
    >>> shard = aq.Problem(aq.LeastSquares(), aq.Zero(), [([[1.0], [2.0]], [1.0, 1.0])]).shard(torch.float64, "cpu")
    >>> u = P = torch.ones(1, 1, 1, dtype=torch.float64)
    >>> float(aq.losses.PlainLine(shard, u, P).at(torch.tensor([-0.5])).value)
    0.125
    """

    shard: Shard
    u: Tensor
    P: Tensor

    def at(self, t: Tensor) -> Point:
        return self.shard.linearize(self.u + t[:, None, None] * self.P)


class Hessian(Protocol):
    """∇²f_j of every block at some point."""

    def hvp(self, P: Tensor) -> Tensor: ...


class Point(ABC):
    """f_j and its derivatives at u (B, m, C), for every block of a shard.

    A subclass sets `shard` and `u` and computes `value`, `grad` and `hvp`; the rest has defaults, slower than
    special versions could be.

    Attributes
    ----------
    shard
        The blocks, as `auqadmm.losses` describes them.
    u
        The point, (B, m, C).

    Examples
    --------
    >>> import torch
    >>> import auqadmm as aq
    >>> shard = aq.Problem(aq.LeastSquares(), aq.Zero(), [([[1.0], [2.0]], [1.0, 1.0])]).shard(torch.float64, "cpu")
    >>> point = shard.linearize(torch.ones(1, 1, 1, dtype=torch.float64))
    >>> float(point.value), float(point.grad), float(point.hessian_diagonal())
    (0.5, 2.0, 5.0)
    """

    shard: Shard
    u: Tensor

    @property
    @abstractmethod
    def value(self) -> Tensor:
        """f_j(u_j), (B,)."""

    @property
    @abstractmethod
    def grad(self) -> Tensor:
        """∇f_j(u_j), (B, m, C)."""

    @abstractmethod
    def hvp(self, P: Tensor) -> Tensor:
        """∇²f_j(u_j)[P_j]: products of the Hessians with directions.

        Parameters
        ----------
        P
            (B, m, C), or (B, m, C, k) with k directions per block.

        Returns
        -------
        Tensor
            In the shape of P.
        """

    @property
    def hessian(self) -> Hessian:
        """The Hessian alone: for many products at one point."""
        return self

    def hessian_diagonal(self) -> Tensor:
        """The diagonal of ∇²f_j(u_j), exact: by products with unit vectors unless overridden.

        Returns
        -------
        Tensor
            (B, m, C).
        """
        B, m, C = self.u.shape
        n = m * C
        width = max(1, DIAGONAL_CHUNK // (self.shard.design.rows * C + B * n))
        parts = []
        for first in range(0, n, width):
            count = min(width, n - first)
            unit = self.u.new_zeros(n, count)
            unit[first : first + count].fill_diagonal_(1.0)
            HE = self.hvp(unit.reshape(m, C, count).expand(B, m, C, count)).reshape(B, n, count)
            parts.append(HE[:, first : first + count].diagonal(dim1=1, dim2=2))
        return torch.cat(parts, 1).reshape(B, m, C)

    def line(self, P: Tensor) -> Line:
        """The ray from u, for line searches; a subclass may keep what its points share, such as XP.

        Parameters
        ----------
        P
            Its direction, (B, m, C).

        Returns
        -------
        Line
            f_j at u + tP for any t.
        """
        return PlainLine(self.shard, self.u, P)

    def row_model(self, variance: Tensor | None) -> RowModel | None:
        """The Hessian as a sum over rows, Σ_i x_ix_iᵀ ⊗ c_iφ''(z_i), from which AUQ-LR makes its weights (S12).

        Parameters
        ----------
        variance
            Of every row's logits, (R,): φ'' is then its mean over that uncertainty (`RowLoss.row_expected`).

        Returns
        -------
        RowModel or None
            None: f_j is not a sum over rows of a function of logits.
        """
        return None

    def conjugate(self, scale: float) -> Tensor | None:
        """Σ_i c_i φ_i*(scale · φ_i'(z_i)): the loss's part of the dual value (S10).

        Parameters
        ----------
        scale
            In [0, 1]: slopes times it are the dual point.

        Returns
        -------
        Tensor or None
            (B,), infinite where a slope leaves the domain of φ*; None if φ* is unknown.
        """
        return None


@dataclass(frozen=True, kw_only=True)
class Loss(ABC):
    """What all losses share. A subclass writes `linearize`, which gives a `Point`; rows of a block may interact.

    Parameters
    ----------
    reduction
        `"sum"` over rows (the objective does not depend on how rows are split), `"mean"` over each block's
        own rows, or `"pooled"`: the sum divided by the rows of all blocks. A row of weight w counts w times.

    Raises
    ------
    InputError
        `reduction` is none of the three.

    Examples
    --------
    The squared distance from the mean of a block's rows, so that u becomes the mean of means:

    >>> from dataclasses import dataclass
    >>> import torch
    >>> import auqadmm as aq
    >>> @dataclass(frozen=True)
    ... class ToMean(aq.losses.Loss):
    ...     def linearize(self, shard, u):
    ...         count = shard.row_weight[:, None]
    ...         mean = shard.design.adjoint(count) / shard.design.sum_rows(count)[:, None]
    ...         return ToMeanPoint(shard, u, mean)
    >>> @dataclass(frozen=True, eq=False)
    ... class ToMeanPoint(aq.losses.Point):
    ...     shard: object
    ...     u: torch.Tensor
    ...     mean: torch.Tensor
    ...     @property
    ...     def value(self):
    ...         return 0.5 * self.grad.square().flatten(1).sum(1)
    ...     @property
    ...     def grad(self):
    ...         return self.u - self.mean
    ...     def hvp(self, P):
    ...         return P
    >>> blocks = [([[1.0, 0.0], [3.0, 0.0]], [0.0, 0.0]), ([[4.0, 1.0]], [0.0])]
    >>> aq.solve(aq.Problem(ToMean(), aq.Zero(), blocks), certificate_tol=1e-10).coef.round(4)
    array([3. , 0.5])
    """

    reduction: str = "sum"

    target_kind: ClassVar[str] = "real"
    """What y holds: `"real"` numbers, `"binary"` ±1, or `"classes"` 0 … K−1."""
    quadratic: ClassVar[bool] = False
    """Whether the Hessian is the same at every u."""
    unit_curvature: ClassVar[bool] = False
    """Whether φ'' = 1 in every row, so that ∇²f_j = X_jᵀ diag(c) X_j: the direct local solver relies on it."""
    recordable: ClassVar[bool] = False
    """Whether its code never branches on the values of tensors (`runtime.py`)."""
    takes_offset: ClassVar[bool] = False
    """Whether its points begin with `shard.logits`, so that rows may have offsets."""
    takes_intercept: ClassVar[bool] = True
    """Whether a constant added to all logits of a block makes any difference."""
    target_columns: ClassVar[int] = 1
    """Columns of `shard.target`: with one it is (R,), with more (R, columns), in double precision."""
    silence: ClassVar[str] = ""
    """What is said where all blocks are `silent`."""
    dispersed: ClassVar[bool] = False
    """Whether a likelihood would use φ over its mean, not φ itself: φ has the units of y."""

    @property
    def cornered(self) -> bool:
        """Whether rows have curvature near one point only, so that few of them have it at a time."""
        return False

    def __post_init__(self) -> None:
        if self.reduction not in REDUCTIONS:
            raise InputError(f"reduction must be 'sum', 'mean' or 'pooled'; got {self.reduction!r}.")

    def columns_for(self, classes: int) -> int:
        """C, the columns of u.

        Parameters
        ----------
        classes
            Labels that all blocks together have; of use where `target_kind` is `"classes"`.

        Returns
        -------
        int
            1 unless a subclass has a column per class.
        """
        return 1

    def check_target(self, name: str, y: np.ndarray) -> None:
        """Refuse targets that the loss is not defined for, by an `InputError`; accepts all unless overridden.

        Parameters
        ----------
        name
            Of the block, to begin the message with.
        y
            Its target as floats, (n,); classes are not asked about.
        """
        return

    def arranged(self, name: str, y: np.ndarray) -> np.ndarray:
        """Targets of a block as points use them, from numbers as given.

        Parameters
        ----------
        name
            The block, for sentences.
        y
            Its targets.

        Returns
        -------
        ndarray
            (n,) or (n, `target_columns`).

        Raises
        ------
        InputError
            A target that the loss cannot have, as of `check_target`.
        """
        self.check_target(name, y)
        return y

    def silent(self, y: np.ndarray, weight: np.ndarray) -> bool:
        """Do these rows say nothing, whatever u is?

        Parameters
        ----------
        y, weight
            Targets and weights of a block.

        Returns
        -------
        bool
            Where all blocks are silent, `silence` is raised.
        """
        return False

    # ------------------------------------------------------------------ used by verdicts
    @property
    def concordance(self) -> float:
        """M with |φ‴[ζ, ζ, ζ]| ≤ M‖ζ‖ φ″[ζ, ζ]: how fast curvature may change; infinite where no bound is known."""
        return math.inf

    @property
    def bend(self) -> float:
        """L with φ″ ≤ L at every point; infinite where no bound is known."""
        return math.inf

    @property
    def gauge(self) -> bool:
        """Does φ stay the same when one number is added to all logits of a row?"""
        return False

    def row_infimum(self, y: Tensor) -> Tensor:
        """inf_z φ(z, y) of every row: gaps are relative to the loss above it.

        Parameters
        ----------
        y
            Target, (R,).

        Returns
        -------
        Tensor
            (R,) in float64; zeros unless overridden.
        """
        return torch.zeros(len(y), dtype=torch.float64, device=y.device)

    @property
    def null_searched(self) -> bool:
        """Is `null_logits` only a start for the search of the best constant, which does not follow from means?"""
        return False

    def null_logits(self, mean: Tensor, columns: int) -> Tensor:
        """Logits of the model that is a constant, at or near its best (`null_searched`).

        Parameters
        ----------
        mean
            The weighted mean of the target, (1,), or the shares of all classes, (C,).
        columns
            C.

        Returns
        -------
        Tensor
            (C,) in float64; zeros unless overridden.
        """
        return torch.zeros(columns, dtype=torch.float64, device=mean.device)

    def eased(self, width: float) -> Any:
        """The loss with wider corners, which Newton's method passes on its way to this one.

        Parameters
        ----------
        width
            How many times as wide, at least 1.

        Returns
        -------
        Loss
            Of the same slope far from corners; without corners, itself.
        """
        return self

    def easing(self, spread: float) -> float:
        """How wide corners should be at first, where Newton's method starts without a warm start.

        Parameters
        ----------
        spread
            Standard deviation of the target; without an intercept its root mean square.

        Returns
        -------
        float
            The first `width` of `eased`; 1: as they are.
        """
        return 1.0

    def sharpness(self, spread: float) -> float:
        """How sharp corners are for targets of that size: what `auto` estimates rounds from.

        Parameters
        ----------
        spread
            As in `easing`.

        Returns
        -------
        float
            `easing` of targets of spread 1, unless corners are given in units of y.
        """
        return self.easing(1.0)

    @property
    def kinked(self) -> bool:
        """Has φ′ a corner, of which `row_corner` tells?"""
        return False

    @abstractmethod
    def linearize(self, shard: Shard, u: Tensor) -> Point:
        """Every f_j and its derivatives at a point.

        Parameters
        ----------
        shard
            The blocks of a process, as `auqadmm.losses` describes them.
        u
            (B, m, C).

        Returns
        -------
        Point
            Value, gradient and products with the Hessian.
        """


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
