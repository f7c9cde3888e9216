"""What every loss is (S1): `Loss` what all share, `Point` f_j and its derivatives at u, `Line` f_j along a ray.

Nothing here knows how f_j is computed; losses that are functions of logits are in `rows.py`.

Shapes: B blocks, R flat rows (padding included), m features, C columns, k right-hand sides; u (B, m, C), y (R,).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from auqadmm.blocks.curvature import RowModel
from auqadmm.errors import InputError

if TYPE_CHECKING:
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
class _PlainLine(Line):
    """A ray whose points are computed anew: for losses without anything to reuse between step lengths."""

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
        return _PlainLine(self.shard, self.u, P)

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

    def rounding(self, eps: float) -> tuple[Tensor, Tensor] | None:
        """What rounding errors of `eps` in every operation may change: f_j, and δ, as verdicts need to know.

        Parameters
        ----------
        eps
            The relative rounding error.

        Returns
        -------
        tuple of two Tensors, or None
            (B,) each: of f_j, and of the decrease that a Newton step predicts; None: taken from the size of f_j and of
            the Hessian.
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
    cornered: ClassVar[bool] = False
    """Whether rows have curvature near one point only, so that few of them have it at a time."""

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

    def exact_rows(self, shard: Shard) -> Shard:
        """The blocks as sums for verdicts and for Newton's method take them.

        Parameters
        ----------
        shard
            The blocks.

        Returns
        -------
        Shard
            The same blocks; in double precision and less the means of their columns, if that changes no f_j.
        """
        return shard

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
