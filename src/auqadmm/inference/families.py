"""What statistics knows of a loss: the family that it is −log-likelihood of, up to a constant and the dispersion.

    expected   E φ'' over y given x, (dμ/dz)²/V(μ): the expected information of a row
    pearson    (y − μ)²/V(μ)
    constant   c(log-likelihood + φ) of a row of weight c, with dispersion 1

With dispersion s a row's log-likelihood depends on φ/s. Binomial, Poisson and negative binomial have s = 1, the others
estimate it by Pearson's statistic over n − p, which for the normal family is the residual variance.

Shapes: r rows; z, y and what is returned (r,).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from auqadmm.blocks.curvature import times
from auqadmm.blocks.loss import Loss
from auqadmm.blocks.rows import RowLoss
from auqadmm.problem.cox import Cox
from auqadmm.problem.families import CLogLog, Gamma, NegativeBinomial, Probit, Tweedie, mills
from auqadmm.problem.losses import LeastSquares, Logistic, Multinomial, Poisson
from auqadmm.problem.made_of_losses import Trials, loss_of_rows

RowFunction = Callable[[RowLoss, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Family:
    """Name and link, whether φ'' does not depend on y, whether the dispersion is estimated, what exp(coef) is."""

    name: str
    link: str
    canonical: bool
    estimated: bool
    ratio: str
    expected: RowFunction
    pearson: RowFunction
    constant: RowFunction

    def log_likelihood(
        self,
        f: float,
        infimum: float,
        constant: float,
        n: float,
        dispersion: float,
        log_weights: float | None,
        series: float | None = None,
    ) -> float | None:
        """Of all rows; None where it is no function of these sums. `log_weights`: Σ log w of precision weights, None:
        weights are frequencies; `series`: Tweedie's, for this dispersion. The normal family's is at its most likely
        variance."""
        if self.name == "Gaussian":
            return (
                -0.5 * n * (math.log(2 * math.pi * 2 * f / n) + 1) + 0.5 * (log_weights or 0.0) if f > 0 else math.inf
            )
        if self.name == "Gamma":
            if log_weights:
                return None
            a, logs = 1 / dispersion, infimum - n  # Σ log y
            return a * (n * math.log(a) + logs - f) - n * math.lgamma(a) - logs
        if self.name == "Tweedie":
            return None if series is None else series - f / dispersion
        return constant - f


def family_of(loss: Loss) -> Family | None:
    """The family of a loss, of one with site intercepts that of its rows; None: it is no likelihood that is known."""
    rows = loss_of_rows(loss)
    if not isinstance(rows, Trials):
        return FAMILIES.get(type(rows))
    one = FAMILIES.get(type(rows.inner))
    return None if one is None else _of_trials(one)


def _of_trials(one: Family) -> Family:
    """Of successes of trials, from that of one trial."""

    def expected(loss: RowLoss, z: Tensor, y: Tensor) -> Tensor:
        return one.expected(loss.inner, z, torch.ones_like(y))  # type: ignore[attr-defined]

    def pearson(loss: RowLoss, z: Tensor, y: Tensor) -> Tensor:
        won, lost = (one.pearson(loss.inner, z, x) for x in (torch.ones_like(y), -torch.ones_like(y)))  # type: ignore[attr-defined]
        return times(y, y * won) + times(1 - y, (1 - y) * lost) - 2 * y * (1 - y)

    def constant(loss: RowLoss, y: Tensor, c: Tensor) -> Tensor:
        return torch.lgamma(c + 1) - torch.lgamma(c * y + 1) - torch.lgamma(c * (1 - y) + 1)

    return replace(one, expected=expected, pearson=pearson, constant=constant)


def _zero(loss: RowLoss, y: Tensor, c: Tensor) -> Tensor:
    return torch.zeros_like(y)


def _curvature(loss: RowLoss, z: Tensor, y: Tensor) -> Tensor:
    return loss.row_curvature(loss.prepare(z[:, None]), y).diagonal()[:, 0]


def _probit(loss: RowLoss, z: Tensor, y: Tensor) -> Tensor:
    return (mills(z[:, None])[0] * mills(-z[:, None])[0])[:, 0]


def _cloglog(loss: RowLoss, z: Tensor, y: Tensor) -> Tensor:
    e = torch.exp(z)
    return torch.where(e < 700, e.square() / torch.expm1(e.clamp(1e-300, 700)), 0.0)


def _by_variance(variance: Callable[[RowLoss, Tensor], Tensor]) -> RowFunction:
    def pearson(loss: RowLoss, z: Tensor, y: Tensor) -> Tensor:
        mu = torch.exp(z)
        return (y - mu).square() / variance(loss, mu)

    return pearson


def _log_factorial(loss: RowLoss, y: Tensor, c: Tensor) -> Tensor:
    return times(c, -torch.lgamma(y + 1))


def _ways(loss: RowLoss, y: Tensor, c: Tensor) -> Tensor:
    k = torch.full_like(y, loss.k)  # type: ignore[attr-defined]
    return times(c, torch.lgamma(y + k) - torch.lgamma(y + 1) - torch.lgamma(k))


FAMILIES: dict[type[Loss], Family] = {
    LeastSquares: Family(
        "Gaussian", "identity", True, True, "", _curvature, lambda loss, z, y: (y - z).square(), _zero
    ),
    Logistic: Family(
        "Binomial", "logit", True, False, "odds ratio", _curvature, lambda loss, z, y: torch.exp(-y * z), _zero
    ),
    Multinomial: Family("Multinomial", "logit", True, False, "odds ratio", _curvature, _curvature, _zero),
    Probit: Family(
        "Binomial", "probit", False, False, "", _probit,
        lambda loss, z, y: torch.exp(torch.special.log_ndtr(-y * z) - torch.special.log_ndtr(y * z)), _zero,
    ),
    CLogLog: Family(
        "Binomial", "cloglog", False, False, "hazard ratio", _cloglog,
        lambda loss, z, y: torch.expm1(torch.exp(z)).pow(-y), _zero,
    ),
    Poisson: Family(
        "Poisson", "log", True, False, "rate ratio", _curvature, _by_variance(lambda loss, mu: mu), _log_factorial
    ),
    Gamma: Family(
        "Gamma", "log", False, True, "ratio of means", lambda loss, z, y: torch.ones_like(z),
        _by_variance(lambda loss, mu: mu.square()), _zero,
    ),
    NegativeBinomial: Family(
        "NegativeBinomial", "log", False, False, "rate ratio",
        lambda loss, z, y: loss.k * torch.sigmoid(z - math.log(loss.k)),  # type: ignore[attr-defined]
        _by_variance(lambda loss, mu: mu + mu.square() / loss.k), _ways,  # type: ignore[attr-defined]
    ),
    Tweedie: Family(
        "Tweedie", "log", False, True, "ratio of means",
        lambda loss, z, y: torch.exp((2 - loss.power) * z),  # type: ignore[attr-defined]
        _by_variance(lambda loss, mu: mu.pow(loss.power)), _zero,  # type: ignore[attr-defined]
    ),
    # rows are no likelihoods of their own (survival.py)
    Cox: Family("Cox", "log", True, False, "hazard ratio", _curvature, _curvature, _zero),
}  # fmt: skip
