"""Losses made of another loss: trials, one class against the rest, an intercept of its own for every block.

`Trials`: successes of trials, a loss of two classes whose rows stand for many trials each.

    φ(z, y) = y φ₁(z) + (1 − y) φ₀(z)      y the share of successes, the weight of a row its number of trials

φ₁ and φ₀ are the losses of a success and of a failure. Two rows with the successes and the failures as weights have the
same objective; only here a row is one observation, whose spread tells of overdispersion.

`OneAgainstRest`: a two-class loss for many classes, one column of the model per class, each against all others.

    φ(z, y) = Σ_c φ₂(z_c, s_c),   s_c = +1 if y = c, else −1

The columns are independent but for the rows, so one run solves all of these problems at once.

`SiteIntercepts`: an intercept of its own for every block, minimised out where the rows are.

    f_j(u) = min_b Σ_i c_i φ(x_iᵀu + o_i + b, y_i)

    ∇f_j  = Σ_i x_i c_i φ'_i                            at the best b: the envelope theorem
    ∇²f_j = Σ_i c_i φ''_i (x_i − x̄)(x_i − x̄)ᵀ          x̄ the mean with weights c_i φ''_i: a Schur complement

The model is that of one indicator column per block, but b_j never leaves its block, and u has no unknown for it. Where
all rows of a block want b to grow without end (one class only, counts that are all zero) its f_j is the constant that
it comes arbitrarily near to: such a block says nothing about u.

Shapes: R flat rows, C columns; z (R, C), targets y (R,), classes 0 … C−1; trials have C = 1. Site intercepts:
B blocks, m features, k right-hand sides; u, ∇f (B, m, 1), z (R, 1), b (B,).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from auqadmm.blocks.curvature import Corner, DiagonalCurvature, RowCurvature, times
from auqadmm.blocks.loss import Line, Loss, Point
from auqadmm.blocks.rows import RowLoss
from auqadmm.blocks.within import sizes, within
from auqadmm.errors import InputError, InputTypeError
from auqadmm.problem.losses import Logistic

if TYPE_CHECKING:
    from auqadmm.blocks.shard import Shard


@dataclass(frozen=True)
class Trials(RowLoss):
    """Successes of trials: y is their share, between 0 and 1, and the weight of a row the number of trials.

    Parameters
    ----------
    inner
        The loss of one trial: `Logistic()`, `Probit()` or `CLogLog()`.
    reduction
        "sum", "mean" (over the trials of each block) or "pooled" (over all trials); that of `inner` has no say.

    Raises
    ------
    InputTypeError
        `inner` is no loss of two classes.

    Examples
    --------
    >>> import numpy as np
    >>> import auqadmm as aq
    >>> X, won, trials = np.arange(4.0)[:, None], np.array([1, 3, 4, 7]), np.array([8, 9, 7, 8])
    >>> loss = aq.losses.Trials(aq.Logistic())
    >>> result = aq.solve(aq.Problem(loss, aq.Zero(), [(X, won / trials, trials)], intercept=True))
    >>> result.coef.round(2), result.inference().nobs
    (array([1.24]), 4.0)
    """

    inner: RowLoss = field(default_factory=Logistic, kw_only=False)

    def __post_init__(self) -> None:
        if not isinstance(self.inner, RowLoss) or self.inner.target_kind != "binary":
            raise InputTypeError(
                f"Trials needs a loss of two classes, such as Logistic(); {type(self.inner).__name__} is none."
            )
        super().__post_init__()

    def check_target(self, name: str, y: np.ndarray) -> None:
        bad = np.flatnonzero((y < 0) | (y > 1))
        if bad.size:
            raise InputError(
                f"{name}: y[{bad[0]}] is {y[bad[0]]}; Trials needs shares of successes, between 0 and 1, and the "
                "number of trials as weight."
            )

    @property
    def concordance(self) -> float:
        return self.inner.concordance

    @property
    def bend(self) -> float:
        return self.inner.bend

    def row_infimum(self, y: Tensor) -> Tensor:
        return -torch.xlogy(y, y) - torch.special.xlog1py(1 - y, -y)  # where the probability is y

    def null_logits(self, mean: Tensor, columns: int) -> Tensor:
        return self.inner.null_logits(2 * mean - 1, columns)

    def prepare(self, z: Tensor) -> Tensor:
        return self.inner.prepare(z)

    def row_value(self, z: Tensor, y: Tensor) -> Tensor:
        one = torch.ones_like(y)
        return times(y, self.inner.row_value(z, one)) + times(1 - y, self.inner.row_value(z, -one))

    def row_slope(self, s: Tensor, y: Tensor) -> Tensor:
        one = torch.ones_like(y)
        return times(y, self.inner.row_slope(s, one)) + times(1 - y, self.inner.row_slope(s, -one))

    def row_curvature(self, s: Tensor, y: Tensor) -> RowCurvature:
        one = torch.ones_like(y)
        won, lost = (self.inner.row_curvature(s, sign * one).diagonal() for sign in (1, -1))
        return DiagonalCurvature(times(y, won) + times(1 - y, lost))

    def row_conjugate(self, a: Tensor, y: Tensor) -> Tensor:
        if isinstance(self.inner, Logistic):  # log(1 + exp(z)) − yz
            return self.inner.row_conjugate(a + y[:, None], -torch.ones_like(y))
        return super().row_conjugate(a, y)


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


FAR = 60.0  # a logit at which exponentials are rounding beside any row that wants another
FIRST_REACH = 5.0  # how far the first step of b may lead, twice as far after every step that was cut
INTERCEPT_STEPS = 200
SLOPE_ROUNDINGS = 4.0  # of the slope by b: how many rounding errors of its terms are none


@dataclass(frozen=True)
class SiteIntercepts(Loss):
    """min_b Σ φ(z + b): a loss of rows with an intercept for every block, which stays there.

    `Problem(…, site_intercepts=True)` makes one of its loss.

    Parameters
    ----------
    inner
        The loss of rows, with one column, e.g. `Logistic()`.
    reduction
        Taken from `inner`.

    Raises
    ------
    InputTypeError
        `inner` is no loss of rows.

    Examples
    --------
    >>> import numpy as np
    >>> import auqadmm as aq
    >>> X, y = np.array([[0.0], [1.0], [1.0], [2.0]]), np.array([1.0, 2.0, 13.0, 14.0])
    >>> problem = aq.Problem(aq.LeastSquares(), aq.Zero(), [(X[:2], y[:2]), (X[2:], y[2:])], site_intercepts=True)
    >>> problem.loss.inner
    LeastSquares(reduction='sum')
    >>> aq.solve(problem).coef.round(6)
    array([1.])
    """

    inner: RowLoss = field(kw_only=False)

    def __post_init__(self) -> None:
        if not isinstance(self.inner, RowLoss):
            raise InputTypeError(
                f"site_intercepts needs a loss of rows, such as Logistic() or a RowLoss of your own; "
                f"{type(self.inner).__name__} is none."
            )
        object.__setattr__(self, "reduction", self.inner.reduction)
        super().__post_init__()

    @property
    def target_kind(self) -> str:  # type: ignore[override]
        return self.inner.target_kind

    @property
    def takes_offset(self) -> bool:  # type: ignore[override]
        return True

    @property
    def quadratic(self) -> bool:  # type: ignore[override]
        return self.inner.quadratic

    @property
    def concordance(self) -> float:
        # of squares: 0; else rows do not add up to f_j, and nothing is proved
        return 0.0 if self.inner.quadratic else super().concordance

    @property
    def bend(self) -> float:
        return self.inner.bend

    def columns_for(self, classes: int) -> int:
        return self.inner.columns_for(classes)

    def check_target(self, name: str, y: np.ndarray) -> None:
        self.inner.check_target(name, y)

    def row_infimum(self, y: Tensor) -> Tensor:
        return self.inner.row_infimum(y)

    def exact_rows(self, shard: Shard) -> Shard:
        return within(shard)  # b_j takes up any shift

    def linearize(self, shard: Shard, u: Tensor) -> ProfilePoint:
        z = shard.logits(u)
        return ProfilePoint(self, shard, u, z, best_intercepts(self.inner, shard, z))


@dataclass(frozen=True, eq=False)
class ProfilePoint(Point):
    """f_j at u: logits without the intercept z (R, 1), and the best intercepts b (B,)."""

    loss: SiteIntercepts
    shard: Shard
    u: Tensor
    z: Tensor
    b: Tensor

    @cached_property
    def value(self) -> Tensor:
        design, c = self.shard.design, self.shard.row_weight
        rows = times(self._c, self.loss.inner.row_value(self._moved, self.shard.target))
        rest = times(c - self._c, self.loss.row_infimum(self.shard.target).to(c))  # of blocks without a finite b
        return design.sum_rows(rows + rest)

    @cached_property
    def grad(self) -> Tensor:
        slope = self.loss.inner.row_slope(self._prepared, self.shard.target)
        return self.shard.design.adjoint(times(self._c, slope))

    def hvp(self, P: Tensor) -> Tensor:
        design, h = self.shard.design, self._h[:, None]
        XP = design.forward(P.reshape(P.shape[0], P.shape[1], -1))
        mean = design.sum_rows(h * XP) / self._total[:, None]
        return design.adjoint(h * (XP - mean[design.block_of_row])).reshape(P.shape)

    def hessian_diagonal(self) -> Tensor:
        design, h = self.shard.design, self._h[:, None]
        return (design.adjoint_squared(h) - design.adjoint(h).square() / self._total[:, None, None]).clamp(min=0)

    def rounding(self, eps: float) -> tuple[Tensor, Tensor]:
        """As of a loss of rows (blocks/exact.py), with b a term of every logit."""
        design, y, offset = self.shard.design, self.shard.target, self.shard.offset
        slope = times(self._c, self.loss.inner.row_slope(self._prepared, y)[:, 0]).abs()
        size = sizes(design, self.u)[:, 0] + self.b.abs()[design.block_of_row]
        size = size + (y.abs() if self.loss.target_kind == "real" else 1.0) + (0.0 if offset is None else offset.abs())
        noise = eps * (design.sum_rows(slope * size) + self.value.abs())
        return noise, 0.5 * eps**2 * design.sum_rows(self._h * size.square())

    def line(self, P: Tensor) -> ProfileLine:
        return ProfileLine(self, P, self.shard.design.forward(P))

    @cached_property
    def _c(self) -> Tensor:
        """Weights of rows, 0 in blocks without a finite b."""
        idle = one_sided(self.loss.inner, self.shard)[self.shard.design.block_of_row]
        return torch.where(idle, 0.0, self.shard.row_weight)

    @cached_property
    def _moved(self) -> Tensor:
        return self.z + self.b[self.shard.design.block_of_row, None]

    @cached_property
    def _prepared(self) -> Tensor:
        return self.loss.inner.prepare(self._moved)

    @cached_property
    def _h(self) -> Tensor:
        return times(self._c, self.loss.inner.row_curvature(self._prepared, self.shard.target).diagonal()[:, 0])

    @cached_property
    def _total(self) -> Tensor:
        return self.shard.design.sum_rows(self._h).clamp(min=torch.finfo(self._h.dtype).tiny)


@dataclass(frozen=True, eq=False)
class ProfileLine(Line):
    """z + t·XP; the search for b begins at that of the start."""

    start: ProfilePoint
    P: Tensor
    XP: Tensor

    def at(self, t: Tensor) -> ProfilePoint:
        start, shard = self.start, self.start.shard
        z = start.z + t[shard.design.block_of_row, None] * self.XP
        b = best_intercepts(start.loss.inner, shard, z, start.b - t * mean_logits(shard, self.XP))
        return ProfilePoint(start.loss, shard, start.u + t[:, None, None] * self.P, z, b)


def best_intercepts(inner: RowLoss, shard: Shard, z: Tensor, b: Tensor | None = None) -> Tensor:
    """argmin_b Σ_i c_i φ(z_i + b, y_i) of every block, (B,): Newton's method, kept between bounds; 0 where there is
    none."""
    design, y = shard.design, shard.target
    idle = one_sided(inner, shard)
    c, eps = torch.where(idle[design.block_of_row], 0.0, shard.row_weight), torch.finfo(z.dtype).eps
    b = -mean_logits(shard, z) if b is None else b  # from far up exponentials come down by one at a time
    low, high = torch.full_like(b, -torch.inf), torch.full_like(b, torch.inf)
    reach = torch.full_like(b, torch.inf if inner.quadratic else FIRST_REACH)
    for _ in range(INTERCEPT_STEPS):
        s = inner.prepare(z + b[design.block_of_row, None])
        slopes = times(c, inner.row_slope(s, y)[:, 0])
        slope, size = design.sum_rows(slopes), design.sum_rows(slopes.abs())
        done = slope.abs() <= SLOPE_ROUNDINGS * eps * size
        if bool(done.all()):
            break
        low, high = torch.where(slope < 0, b, low), torch.where(slope > 0, b, high)
        bend = design.sum_rows(times(c, inner.row_curvature(s, y).diagonal()[:, 0]))
        step = torch.where(bend > 0, -slope / bend, -slope.sign() * torch.inf)
        cut = step.abs() > reach
        step = torch.minimum(torch.maximum(step, -reach), reach)
        reach = torch.where(cut, 2 * reach, reach)
        there = b + step
        outside = (there <= low) | (there >= high)
        middle = torch.where(low.isfinite() & high.isfinite(), 0.5 * (low + high), there)
        there = torch.where(done, b, torch.where(outside, middle, there))
        if bool((there == b).all()):
            break
        b = there
    return b


def loss_of_rows(loss: Loss) -> Any:
    """The loss of single rows: `inner` where blocks have intercepts of their own."""
    return loss.inner if isinstance(loss, SiteIntercepts) else loss


def mean_logits(shard: Shard, z: Tensor) -> Tensor:
    """The weighted mean of z (R, 1) over the rows of every block, (B,)."""
    c = shard.row_weight
    return shard.design.sum_rows(c * z[:, 0]) / shard.design.sum_rows(c).clamp(min=torch.finfo(c.dtype).tiny)


def one_sided(inner: RowLoss, shard: Shard) -> Tensor:
    """(B,): blocks whose rows all want their logits larger, or all smaller, without end; and those without rows."""
    cache = shard.design.cache
    if "one_sided" not in cache or cache["one_sided"][0] != inner:
        y, c = shard.target, shard.row_weight
        far = torch.full_like(c, FAR) + 4 * (y.abs() if inner.target_kind == "real" else 0.0)
        ends = []
        for z in (-far[:, None], far[:, None]):
            slope = inner.row_slope(inner.prepare(z), y)[:, 0]
            ends.append(shard.design.sum_rows(times(c, slope)))
        cache["one_sided"] = inner, ~((ends[0] < 0) & (ends[1] > 0))
    return cache["one_sided"][1]
