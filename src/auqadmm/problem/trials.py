"""Successes of trials: a loss of two classes whose rows stand for many trials each.

    φ(z, y) = y φ₁(z) + (1 − y) φ₀(z)      y the share of successes, the weight of a row its number of trials

φ₁ and φ₀ are the losses of a success and of a failure. Two rows with the successes and the failures as weights have the
same objective; only here a row is one observation, whose spread tells of overdispersion.

Shapes: R flat rows; logits z (R, 1), targets y (R,).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from auqadmm.blocks.curvature import DiagonalCurvature, RowCurvature, times
from auqadmm.blocks.rows import RowLoss
from auqadmm.errors import InputError, InputTypeError
from auqadmm.problem.losses import Logistic


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
