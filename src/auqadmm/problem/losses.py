"""The smooth part: f_j(u) = Σ_i c_i φ(x_iᵀu, y_i) over the rows of block j (S1, S11).

    LeastSquares    ½ (z − y)²
    Multinomial     log Σ_k exp(z_k) − z_y              y a class 0 … C−1
    Logistic        log(1 + exp(−yz))                   y = ±1
    SmoothedHinge   (t + √(t² + ε²)) / 2, t = 1 − yz    y = ±1
    Huber           ½ r² for |r| ≤ δ, δ|r| − ½δ² beyond, r = z − y
    Poisson         exp(z) − yz                         y ≥ 0, logarithmic link

c_i is the row's sample weight times the scale of `reduction`; rows that pad a block weigh 0. With the logits
z_i = x_iᵀu of all rows in one flat array,

    ∇f_j = Σ_i x_i c_i φ'(z_i)ᵀ        ∇²f_j[P] = Σ_i x_i (c_i φ''(z_i) Pᵀx_i)ᵀ

so a loss is told by its row functions alone. The conjugate φ*(a) = sup_z aᵀz − φ(z) serves the duality gap
(S10). Formulas are arranged so that nothing overflows or cancels for logits of ±1000 (but see `Poisson`).

Shapes: B blocks, R flat rows (padding included), m features, C columns, k right-hand sides;
u (B, m, C), z (R, C), y (R,), c (R,).
"""

from __future__ import annotations

import math
import numbers
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from auqadmm.problem.design import Design, SparsePiece
from auqadmm.problem.ingest import InputError

if TYPE_CHECKING:
    from auqadmm.problem.shard import Shard

REDUCTIONS = ("sum", "mean", "pooled")


class Line(ABC):
    """f_j along the ray u + tP, one step length per block."""

    @abstractmethod
    def at(self, t: Tensor) -> Point:
        """The point u + t·P, t (B,)."""


class Point(ABC):
    """f_j and its derivatives at u (B, m, C), for every block of a shard."""

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
        """∇²f_j(u_j)[P_j] for P (B, m, C) or (B, m, C, k), in the shape of P."""

    @abstractmethod
    def hessian_diagonal(self) -> Tensor:
        """The diagonal of ∇²f_j(u_j), exact, (B, m, C)."""

    @abstractmethod
    def line(self, P: Tensor) -> Line:
        """The ray from u in the direction P (B, m, C)."""

    @abstractmethod
    def conjugate(self, scale: float) -> Tensor | None:
        """Σ_i c_i φ_i*(scale · φ_i'(z_i)) per block, (B,): the loss's part of the dual value (S10).

        Finite for scales in [0, 1], infinite where the slope leaves the domain of φ*; None if φ* is unknown.
        """


@dataclass(frozen=True, kw_only=True)
class Loss(ABC):
    """What all losses share.

    Parameters
    ----------
    reduction
        `"sum"` over rows (the objective does not depend on how rows are split), `"mean"` over each block's
        own rows, or `"pooled"`: the sum divided by the rows of all blocks. A row of weight w counts w times.
    """

    reduction: str = "sum"

    target_kind: ClassVar[str] = "real"
    """What y holds: `"real"` numbers, `"binary"` ±1, or `"classes"` 0 … K−1."""
    quadratic: ClassVar[bool] = False
    """Whether the Hessian is the same at every u."""

    def __post_init__(self) -> None:
        if self.reduction not in REDUCTIONS:
            raise InputError(f"reduction must be 'sum', 'mean' or 'pooled'; got {self.reduction!r}.")

    def columns_for(self, classes: int) -> int:
        """C, the columns of u, when the labels of all blocks form this many classes."""
        return 1

    def check_target(self, name: str, y: np.ndarray) -> None:
        """Refuse targets the loss is not defined for, naming the block and the row."""
        return

    @abstractmethod
    def linearize(self, shard: Shard, u: Tensor) -> Point:
        """Every f_j and its derivatives at u (B, m, C)."""


class Curvature(Protocol):
    """φ''(z_i) of every row, a C×C matrix each, never formed."""

    def apply(self, P: Tensor) -> Tensor:
        """φ''(z_i) P_i for P (R, C) or (R, C, k)."""
        ...

    def diagonal(self) -> Tensor:
        """(R, C)."""
        ...


@dataclass(frozen=True, eq=False)
class DiagonalCurvature:
    """φ'' with h (R, C) on the diagonal: every loss of one column."""

    h: Tensor

    def apply(self, P: Tensor) -> Tensor:
        return _beside(self.h, P) * P

    def diagonal(self) -> Tensor:
        return self.h


@dataclass(frozen=True, eq=False)
class SoftmaxCurvature:
    """φ'' = diag(p) − ppᵀ, with the probabilities p (R, C)."""

    p: Tensor

    def apply(self, P: Tensor) -> Tensor:
        p = _beside(self.p, P)
        return p * (P - (p * P).sum(1, keepdim=True))

    def diagonal(self) -> Tensor:
        return self.p * (1 - self.p)


@dataclass(frozen=True, kw_only=True)
class RowLoss(Loss):
    """A loss of the logits, row by row. Subclasses write φ, φ', φ'' and φ* for flat rows.

    Slope and curvature take s = `prepare(z)` in place of z: what they share is computed once per point.
    """

    def prepare(self, z: Tensor) -> Tensor:
        """What slope and curvature have in common: z itself unless it pays to say more."""
        return z

    @abstractmethod
    def row_value(self, z: Tensor, y: Tensor) -> Tensor:
        """φ(z, y), (R,)."""

    @abstractmethod
    def row_slope(self, s: Tensor, y: Tensor) -> Tensor:
        """φ'(z, y), (R, C)."""

    @abstractmethod
    def row_curvature(self, s: Tensor, y: Tensor) -> Curvature:
        """φ''(z, y)."""

    @abstractmethod
    def row_conjugate(self, a: Tensor, y: Tensor) -> Tensor:
        """φ*(a, y) for a (R, C), infinite outside its domain: (R,)."""

    def linearize(self, shard: Shard, u: Tensor) -> RowPoint:
        return RowPoint(self, shard, u, shard.design.forward(u))


@dataclass(frozen=True, eq=False)
class RowPoint(Point):
    """A point of a row loss: the logits z (R, C) are known, the rest is computed when first asked for."""

    loss: RowLoss
    shard: Shard
    u: Tensor
    z: Tensor

    @cached_property
    def value(self) -> Tensor:
        return self.shard.design.sum_rows(self._weigh(self.loss.row_value(self.z, self.shard.target)))

    @cached_property
    def grad(self) -> Tensor:
        return self.shard.design.adjoint(self._weigh(self.slope))

    @cached_property
    def slope(self) -> Tensor:
        """φ'(z), (R, C), unweighted."""
        return self.loss.row_slope(self._prepared, self.shard.target)

    @cached_property
    def curvature(self) -> Curvature:
        """φ''(z) of every row, unweighted."""
        return self.loss.row_curvature(self._prepared, self.shard.target)

    def hvp(self, P: Tensor) -> Tensor:
        design = self.shard.design
        return design.adjoint(self._weigh(self.curvature.apply(design.forward(P))))

    def hessian_diagonal(self) -> Tensor:
        return self.shard.design.adjoint_squared(self._weigh(self.curvature.diagonal()))

    def line(self, P: Tensor) -> RowLine:
        design = self.shard.design
        return RowLine(self, P, design.forward(P), _block_of_row(design))

    def conjugate(self, scale: float) -> Tensor:
        rows = self.loss.row_conjugate(scale * self.slope, self.shard.target)
        return self.shard.design.sum_rows(self._weigh(rows))

    @cached_property
    def _prepared(self) -> Tensor:
        return self.loss.prepare(self.z)

    def _weigh(self, x: Tensor) -> Tensor:
        """c_i x_i; a row of weight 0 adds exactly 0, even where its x_i is infinite."""
        c = _beside(self.shard.row_weight, x)
        return torch.where(c == 0, 0.0, c * x)


@dataclass(frozen=True, eq=False)
class RowLine(Line):
    """z + t·XP: stepping along the ray needs no product with X. `block` (R,) is the block of each row."""

    start: RowPoint
    P: Tensor
    XP: Tensor
    block: Tensor

    def at(self, t: Tensor) -> RowPoint:
        start = self.start
        u = start.u + t[:, None, None] * self.P
        return RowPoint(start.loss, start.shard, u, start.z + t[self.block, None] * self.XP)


@dataclass(frozen=True)
class LeastSquares(RowLoss):
    """½(z − y)²: linear regression."""

    quadratic: ClassVar[bool] = True

    def row_value(self, z: Tensor, y: Tensor) -> Tensor:
        return 0.5 * (z[:, 0] - y).square()

    def row_slope(self, s: Tensor, y: Tensor) -> Tensor:
        return s - y[:, None]

    def row_curvature(self, s: Tensor, y: Tensor) -> Curvature:
        return DiagonalCurvature(torch.ones_like(s))

    def row_conjugate(self, a: Tensor, y: Tensor) -> Tensor:
        return a[:, 0] * (0.5 * a[:, 0] + y)


@dataclass(frozen=True)
class Multinomial(RowLoss):
    """log Σ_k exp(z_k) − z_y: softmax regression, one column of u per class."""

    target_kind: ClassVar[str] = "classes"

    def columns_for(self, classes: int) -> int:
        return classes

    def prepare(self, z: Tensor) -> Tensor:
        return torch.softmax(z, dim=1)

    def row_value(self, z: Tensor, y: Tensor) -> Tensor:
        # log1p of all terms but the largest: a row fitted well keeps its digits
        top, where = z.max(dim=1, keepdim=True)
        rest = torch.exp(z - top).scatter(1, where, 0.0).sum(1)
        return torch.log1p(rest) + (top - z.gather(1, y[:, None])).squeeze(1)

    def row_slope(self, s: Tensor, y: Tensor) -> Tensor:
        # p − e_y, with p_y − 1 as minus the sum of the others: no cancellation where p_y is close to 1
        others = s.scatter(1, y[:, None], 0.0)
        return others.scatter(1, y[:, None], -others.sum(1, keepdim=True))

    def row_curvature(self, s: Tensor, y: Tensor) -> Curvature:
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
    """log(1 + exp(−yz)), y = ±1: two-class logistic regression."""

    target_kind: ClassVar[str] = "binary"

    def row_value(self, z: Tensor, y: Tensor) -> Tensor:
        return -torch.nn.functional.logsigmoid(y * z[:, 0])

    def row_slope(self, s: Tensor, y: Tensor) -> Tensor:
        sign = y[:, None]
        return -sign * torch.sigmoid(-sign * s)

    def row_curvature(self, s: Tensor, y: Tensor) -> Curvature:
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
    """

    eps: float = 1 / 5000
    target_kind: ClassVar[str] = "binary"

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_positive("SmoothedHinge", "eps", self.eps)

    def row_value(self, z: Tensor, y: Tensor) -> Tensor:
        return self._hinge(1 - y * z[:, 0])[0]

    def row_slope(self, s: Tensor, y: Tensor) -> Tensor:
        h, root = self._hinge(1 - y[:, None] * s)
        return -y[:, None] * (h / root)  # h' = h/√(t² + ε²)

    def row_curvature(self, s: Tensor, y: Tensor) -> Curvature:
        root = self._hinge(1 - y[:, None] * s)[1]
        return DiagonalCurvature((self.eps / root).square() / (2 * root))

    def row_conjugate(self, a: Tensor, y: Tensor) -> Tensor:
        b = -y * a[:, 0]  # h*(b) = −ε√(b(1−b)) on [0, 1]
        value = -b - self.eps * (b * (1 - b)).clamp(min=0).sqrt()
        return torch.where((b < 0) | (b > 1), math.inf, value)

    def _hinge(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """h(t) and √(t² + ε²). For t < 0 the sum t + √ cancels; its equal ε²/(√ − t) does not."""
        root = torch.hypot(t, torch.full_like(t, self.eps))
        total = t.abs() + root
        return torch.where(t < 0, self.eps * (self.eps / (2 * total)), total / 2), root


@dataclass(frozen=True)
class Huber(RowLoss):
    """½r² for |r| ≤ δ and δ|r| − ½δ² beyond, r = z − y: regression that outliers do not rule.

    Parameters
    ----------
    delta
        Residual δ at which the square turns into a straight line.
    """

    delta: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_positive("Huber", "delta", self.delta)

    def row_value(self, z: Tensor, y: Tensor) -> Tensor:
        r = z[:, 0] - y
        near = r.clamp(-self.delta, self.delta)
        return near * (r - 0.5 * near)

    def row_slope(self, s: Tensor, y: Tensor) -> Tensor:
        return (s - y[:, None]).clamp(-self.delta, self.delta)

    def row_curvature(self, s: Tensor, y: Tensor) -> Curvature:
        return DiagonalCurvature(((s - y[:, None]).abs() <= self.delta).to(s.dtype))

    def row_conjugate(self, a: Tensor, y: Tensor) -> Tensor:
        value = a[:, 0] * (0.5 * a[:, 0] + y)
        return torch.where(a[:, 0].abs() > self.delta, math.inf, value)


@dataclass(frozen=True)
class Poisson(RowLoss):
    """exp(z) − yz, y ≥ 0: regression of counts or rates with a logarithmic link.

    The value is infinite where exp(z) overflows (z > 709 in float64, z > 88 in float32), and a line search
    rejects it. Slope and curvature are cut at the largest float times its precision: their sums over rows
    then stay finite, where 0 · inf and inf − inf would be NaN.
    """

    def check_target(self, name: str, y: np.ndarray) -> None:
        bad = np.flatnonzero(y < 0)
        if bad.size:
            raise InputError(
                f"{name}: y[{bad[0]}] is {y[bad[0]]}; Poisson needs counts or rates, which are not negative."
            )

    def prepare(self, z: Tensor) -> Tensor:
        info = torch.finfo(z.dtype)
        return torch.exp(z).clamp(max=info.max * info.eps)

    def row_value(self, z: Tensor, y: Tensor) -> Tensor:
        return torch.exp(z[:, 0]) - y * z[:, 0]

    def row_slope(self, s: Tensor, y: Tensor) -> Tensor:
        return s - y[:, None]

    def row_curvature(self, s: Tensor, y: Tensor) -> Curvature:
        return DiagonalCurvature(s)

    def row_conjugate(self, a: Tensor, y: Tensor) -> Tensor:
        q = a[:, 0] + y
        return torch.where(q < 0, math.inf, torch.xlogy(q, q) - q)


def _beside(x: Tensor, like: Tensor) -> Tensor:
    """x with trailing axes of length 1, to multiply `like`."""
    return x.reshape(x.shape + (1,) * (like.ndim - x.ndim))


def _block_of_row(design: Design) -> Tensor:
    """(R,): which of the B blocks each flat row belongs to."""
    parts = []
    for piece in design.pieces:
        if isinstance(piece, SparsePiece):
            parts.append(piece.blocks.repeat_interleave(piece.heights, output_size=piece.rows))
        else:
            parts.append(piece.blocks.repeat_interleave(piece.rows // max(1, len(piece.blocks))))
    return torch.cat(parts)


def _check_positive(loss: str, name: str, value: float) -> None:
    if not isinstance(value, numbers.Real) or isinstance(value, bool) or not 0 < value < math.inf:
        raise InputError(f"{loss}: {name} must be a positive finite number; got {value!r}.")
