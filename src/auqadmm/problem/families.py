"""More families of generalised linear models, as functions of a row's logit z = x·u (+ offset), and all by name.

    Gamma              z + y exp(−z)                                        y > 0, μ = exp(z)
    NegativeBinomial   k log(1 + μ/k) + y log(1 + k/μ)                      y ≥ 0, μ = exp(z), variance μ + μ²/k
    Tweedie            y exp((1−p)z)/(p−1) + exp((2−p)z)/(2−p)              y ≥ 0, μ = exp(z), 1 < p < 2
    Probit             −log Φ(yz)                                           y = ±1, Φ the normal distribution
    CLogLog            −log(1 − exp(−eᶻ)) for y = 1, eᶻ for y = −1          complementary log-log

All are convex. φ − inf φ is half the unit deviance of the family. How fast φ'' may change, |φ‴| ≤ M φ'':

    Gamma              φ‴ = −φ''                                            M = 1
    NegativeBinomial   φ'' = (k + y)σ(1 − σ), φ‴ = φ''(1 − 2σ)              M = 1
    Tweedie            two exponentials of rates p − 1 and 2 − p            M = max(p − 1, 2 − p)
    Probit, CLogLog    φ‴/φ'' is about −z and −eᶻ for rows that fit well    none: verdicts are estimates

Formulas are arranged so that nothing cancels for logits of ±1000; where exp overflows they do as `Poisson`.

By name: "binomial" with link "probit" is the loss `Probit`.

`parameter` is the one number that some families have: k of the negative binomial, the power of Tweedie, delta of Huber,
q of a quantile.

Shapes: R flat rows; logits z and dual points a (R, 1), targets y (R,).
"""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from auqadmm.blocks.curvature import DiagonalCurvature, RowCurvature
from auqadmm.blocks.loss import Loss
from auqadmm.blocks.rows import RowLoss
from auqadmm.errors import InputError
from auqadmm.problem.losses import NO_SHARE, Huber, LeastSquares, Logistic, Poisson, check_positive
from auqadmm.problem.quantile import Quantile

SERIES_BELOW = 0.1  # below this series are exact to rounding
FAR_MARGIN = -100.0  # a margin below which Mills' ratio is its asymptotic series


@dataclass(frozen=True)
class Gamma(RowLoss):
    """z + y·exp(−z), y > 0: positive targets whose spread is proportional to their mean, logarithmic link.

    Parameters
    ----------
    reduction
        "sum", "mean" (over the rows of each block) or "pooled" (over all rows).

    Raises
    ------
    InputError
        `reduction` is none of the three.

    Examples
    --------
    >>> import numpy as np
    >>> import auqadmm as aq
    >>> X = np.array([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0], [2.0, 1.0]])
    >>> y = np.array([1.0, 2.0, 3.0, 5.0])
    >>> problem = aq.Problem(aq.Gamma(), aq.L2(0.1), [(X[:2], y[:2]), (X[2:], y[2:])])
    >>> aq.solve(problem).coef.round(2)
    array([0.74, 0.16])
    """

    def check_target(self, name: str, y: np.ndarray) -> None:
        bad = np.flatnonzero(y <= 0)
        if bad.size:
            raise InputError(f"{name}: y[{bad[0]}] is {y[bad[0]]}; Gamma needs targets above zero.")

    @property
    def concordance(self) -> float:
        return 1.0

    def row_infimum(self, y: Tensor) -> Tensor:
        return 1 + torch.log(y)  # at z = log y

    def null_logits(self, mean: Tensor, columns: int) -> Tensor:
        return mean.clamp(min=NO_SHARE).log().expand(columns)

    def prepare(self, z: Tensor) -> Tensor:
        return bounded_exp(-z)

    def row_value(self, z: Tensor, y: Tensor) -> Tensor:
        return z[:, 0] + y * torch.exp(-z[:, 0])

    def row_slope(self, s: Tensor, y: Tensor) -> Tensor:
        return 1 - y[:, None] * s

    def row_curvature(self, s: Tensor, y: Tensor) -> RowCurvature:
        return DiagonalCurvature(y[:, None] * s)

    def row_conjugate(self, a: Tensor, y: Tensor) -> Tensor:
        q = 1 - a[:, 0]
        return torch.where(q < 0, math.inf, torch.xlogy(q, q / y) - q)


@dataclass(frozen=True)
class NegativeBinomial(RowLoss):
    """k·log(1 + μ/k) + y·log(1 + k/μ), μ = exp(z): counts that vary more than Poisson's, with variance μ + μ²/k.

    As for `Poisson`, y ≥ 0 need not be whole: the equations of the coefficients ask for means and variances only.
    statsmodels takes such targets too, R with a warning.

    Parameters
    ----------
    k
        The size: `theta` of R's MASS, 1/alpha of statsmodels. The larger, the closer to `Poisson`.
    reduction
        "sum", "mean" (over the rows of each block) or "pooled" (over all rows).

    Raises
    ------
    InputError
        `k` is no positive finite number, or `reduction` none of the three.

    Examples
    --------
    >>> import numpy as np
    >>> import auqadmm as aq
    >>> X = np.array([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0], [2.0, 1.0]])
    >>> y = np.array([0, 1, 2, 6])
    >>> problem = aq.Problem(aq.NegativeBinomial(2.0), aq.L2(0.1), [(X[:2], y[:2]), (X[2:], y[2:])])
    >>> aq.solve(problem).coef.round(2)
    array([ 0.98, -0.4 ])
    """

    k: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("NegativeBinomial", "k", self.k)

    def check_target(self, name: str, y: np.ndarray) -> None:
        bad = np.flatnonzero(y < 0)
        if bad.size:
            raise InputError(
                f"{name}: y[{bad[0]}] is {y[bad[0]]}; NegativeBinomial needs counts or rates, which are not negative."
            )

    @property
    def concordance(self) -> float:
        return 1.0

    def row_infimum(self, y: Tensor) -> Tensor:
        some = torch.where(y > 0, y, 1.0)
        return self.k * torch.log1p(y / self.k) + torch.where(y > 0, y * torch.log1p(self.k / some), 0.0)  # at μ = y

    def null_logits(self, mean: Tensor, columns: int) -> Tensor:
        return mean.clamp(min=NO_SHARE).log().expand(columns)

    def row_value(self, z: Tensor, y: Tensor) -> Tensor:
        t = z[:, 0] - math.log(self.k)
        return -self.k * logsigmoid(-t) - y * logsigmoid(t)  # torch's softplus is cut at 20

    def row_slope(self, s: Tensor, y: Tensor) -> Tensor:
        t = s - math.log(self.k)
        return self.k * torch.sigmoid(t) - y[:, None] * torch.sigmoid(-t)

    def row_curvature(self, s: Tensor, y: Tensor) -> RowCurvature:
        t = s - math.log(self.k)
        return DiagonalCurvature((self.k + y[:, None]) * (torch.sigmoid(t) * torch.sigmoid(-t)))

    def row_conjugate(self, a: Tensor, y: Tensor) -> Tensor:
        # (k + y)·(q log q + (1 − q) log(1 − q)) + a log k with q = (a + y)/(k + y), between 0 and 1
        up, down, whole = a[:, 0] + y, self.k - a[:, 0], self.k + y
        q = up / whole
        entropy = torch.xlogy(up, q) + torch.special.xlog1py(down, -q)
        return torch.where((up < 0) | (down < 0), math.inf, entropy + a[:, 0] * math.log(self.k))


@dataclass(frozen=True)
class Tweedie(RowLoss):
    """y·exp((1−p)z)/(p−1) + exp((2−p)z)/(2−p), y ≥ 0: amounts that are often zero, such as claims.

    The variance is proportional to μᵖ, μ = exp(z): between Poisson (p = 1) and Gamma (p = 2).

    Parameters
    ----------
    power
        p, between 1 and 2.
    reduction
        "sum", "mean" (over the rows of each block) or "pooled" (over all rows).

    Raises
    ------
    InputError
        `power` is not between 1 and 2, or `reduction` none of the three.

    Examples
    --------
    >>> import numpy as np
    >>> import auqadmm as aq
    >>> X = np.array([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0], [2.0, 1.0]])
    >>> y = np.array([0.0, 1.5, 2.0, 6.0])
    >>> problem = aq.Problem(aq.Tweedie(1.5), aq.L2(0.1), [(X[:2], y[:2]), (X[2:], y[2:])])
    >>> aq.solve(problem).coef.round(2)
    array([ 1.14, -0.65])
    """

    power: float = 1.5

    def __post_init__(self) -> None:
        super().__post_init__()
        p = self.power
        if not isinstance(p, numbers.Real) or isinstance(p, bool) or not 1 < p < 2:
            raise InputError(
                f"Tweedie: power must be between 1 and 2, got {p!r}; Poisson is the model of 1, Gamma that of 2."
            )

    def check_target(self, name: str, y: np.ndarray) -> None:
        bad = np.flatnonzero(y < 0)
        if bad.size:
            raise InputError(f"{name}: y[{bad[0]}] is {y[bad[0]]}; Tweedie needs amounts, which are not negative.")

    @property
    def concordance(self) -> float:
        return max(self.power - 1, 2 - self.power)

    def row_infimum(self, y: Tensor) -> Tensor:
        p = self.power
        return y.clamp(min=0).pow(2 - p) / ((p - 1) * (2 - p))  # at z = log y

    def null_logits(self, mean: Tensor, columns: int) -> Tensor:
        return mean.clamp(min=NO_SHARE).log().expand(columns)

    def row_value(self, z: Tensor, y: Tensor) -> Tensor:
        p, z = self.power, z[:, 0]
        # y = 0 adds nothing, however large the exponential
        less = torch.where(y == 0, 0.0, y * torch.exp((1 - p) * z))
        return less / (p - 1) + torch.exp((2 - p) * z) / (2 - p)

    def row_slope(self, s: Tensor, y: Tensor) -> Tensor:
        less, more = self._terms(s, y)
        return more - less

    def row_curvature(self, s: Tensor, y: Tensor) -> RowCurvature:
        less, more = self._terms(s, y)
        return DiagonalCurvature((self.power - 1) * less + (2 - self.power) * more)

    def _terms(self, z: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        p = self.power
        return y[:, None] * bounded_exp((1 - p) * z), bounded_exp((2 - p) * z)


@dataclass(frozen=True)
class Probit(RowLoss):
    """−log Φ(yz), y = ±1: two classes with a normal latent variable.

    φ'' falls like a normal density for rows that fit well, faster than any bound of verdicts follows: they are
    estimates unless a duality gap is known.

    Parameters
    ----------
    reduction
        "sum", "mean" (over the rows of each block) or "pooled" (over all rows).

    Raises
    ------
    InputError
        `reduction` is none of the three.

    Examples
    --------
    >>> import numpy as np
    >>> import auqadmm as aq
    >>> X = np.array([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0], [2.0, 1.0]])
    >>> y = np.array([0, 0, 1, 1])
    >>> problem = aq.Problem(aq.Probit(), aq.L2(0.1), [(X[:2], y[:2]), (X[2:], y[2:])])
    >>> aq.solve(problem).coef.round(2)
    array([0.44, 0.04])
    """

    target_kind: ClassVar[str] = "binary"

    @property
    def bend(self) -> float:
        return 1.0  # the variance of a truncated normal variable is 1 − φ'', and not negative

    def null_logits(self, mean: Tensor, columns: int) -> Tensor:
        share = (0.5 * (1 + mean)).clamp(NO_SHARE, 1 - NO_SHARE)
        return torch.special.ndtri(share).expand(columns)

    def row_value(self, z: Tensor, y: Tensor) -> Tensor:
        return -torch.special.log_ndtr(y * z[:, 0])

    def row_slope(self, s: Tensor, y: Tensor) -> Tensor:
        return -y[:, None] * mills(y[:, None] * s)[0]

    def row_curvature(self, s: Tensor, y: Tensor) -> RowCurvature:
        r, beyond = mills(y[:, None] * s)
        return DiagonalCurvature(torch.where(r == 0, 0.0, r * beyond))


@dataclass(frozen=True)
class CLogLog(RowLoss):
    """−log(1 − exp(−eᶻ)) for y = 1 and eᶻ for y = −1: the complementary log-log link, e.g. for survival in intervals.

    exp(u) are ratios of hazards. φ'' vanishes doubly exponentially for rows of the positive class that fit well,
    faster than any bound of verdicts follows: they are estimates unless a duality gap is known.

    Parameters
    ----------
    reduction
        "sum", "mean" (over the rows of each block) or "pooled" (over all rows).

    Raises
    ------
    InputError
        `reduction` is none of the three.

    Examples
    --------
    >>> import numpy as np
    >>> import auqadmm as aq
    >>> X = np.array([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0], [2.0, 1.0]])
    >>> y = np.array([0, 0, 1, 1])
    >>> problem = aq.Problem(aq.CLogLog(), aq.L2(0.1), [(X[:2], y[:2]), (X[2:], y[2:])])
    >>> aq.solve(problem).coef.round(2)
    array([ 0.27, -0.07])
    """

    target_kind: ClassVar[str] = "binary"

    def null_logits(self, mean: Tensor, columns: int) -> Tensor:
        share = (0.5 * (1 + mean)).clamp(NO_SHARE, 1 - NO_SHARE)
        return torch.log(-torch.log1p(-share)).expand(columns)

    def prepare(self, z: Tensor) -> Tensor:
        return bounded_exp(z)

    def row_value(self, z: Tensor, y: Tensor) -> Tensor:
        z = z[:, 0]
        e = torch.exp(z)
        near = torch.where(e > math.log(2), -torch.log1p(-torch.exp(-e)), -torch.log(-torch.expm1(-e)))
        positive = torch.where(e < SERIES_BELOW / 100, -z + e * (0.5 - e / 24), near)  # where exp underflows, −z
        return torch.where(y > 0, positive, e)

    def row_slope(self, s: Tensor, y: Tensor) -> Tensor:
        return torch.where(y[:, None] > 0, -_ratio(s)[0], s)

    def row_curvature(self, s: Tensor, y: Tensor) -> RowCurvature:
        b, more = _ratio(s)
        return DiagonalCurvature(torch.where(y[:, None] > 0, torch.where(b == 0, 0.0, b * more), s))


def bounded_exp(z: Tensor) -> Tensor:
    """exp(z), cut at the largest float times its precision: sums over rows stay finite."""
    info = torch.finfo(z.dtype)
    return torch.exp(z).clamp(max=info.max * info.eps)


def mills(m: Tensor) -> tuple[Tensor, Tensor]:
    """r = φ(m)/Φ(m) of the normal density and distribution, and r + m, which would cancel for m far below zero."""
    r = math.sqrt(2 / math.pi) / torch.special.erfcx(-m / math.sqrt(2))
    w = 1 / torch.where(m < FAR_MARGIN, m, FAR_MARGIN)
    q = w * w
    beyond = -w * (1 - q * (2 - q * (10 - 74 * q)))
    return r, torch.where(m < FAR_MARGIN, beyond, r + m)


def _ratio(e: Tensor) -> tuple[Tensor, Tensor]:
    """b = e/(exp(e) − 1) and b + e − 1, for e ≥ 0: 1 and e/2 near zero."""
    x = e.clamp(max=SERIES_BELOW)
    q = x * x
    more = x * (0.5 + x * (1 / 12 - q * (1 / 720 - q * (1 / 30240 - q / 1209600))))
    b = e / torch.expm1(e.clamp(min=SERIES_BELOW))
    return torch.where(e < SERIES_BELOW, 1 - x + more, b), torch.where(e < SERIES_BELOW, more, b + (e - 1))


FAMILIES: dict[str, dict[str, type[RowLoss]]] = {
    "gaussian": {"identity": LeastSquares},
    "binomial": {"logit": Logistic, "probit": Probit, "cloglog": CLogLog},
    "poisson": {"log": Poisson},
    "gamma": {"log": Gamma},
    "negative-binomial": {"log": NegativeBinomial},
    "tweedie": {"log": Tweedie},
    "huber": {"identity": Huber},
    "quantile": {"identity": Quantile},
}
PARAMETERS = {"negative-binomial": "k", "tweedie": "power", "huber": "delta", "quantile": "q"}
LOGARITHMIC = (Poisson, Gamma, NegativeBinomial, Tweedie)


@dataclass(frozen=True)
class NamedFamily:
    """A family, its link, and its parameter where it has one; None: the default of the loss."""

    name: str
    link: str
    parameter: float | None = None

    @staticmethod
    def of(family: str, link: str | None = None, parameter: float | None = None) -> NamedFamily:
        """The family that a user asks for; `link` None: the first that it has."""
        name = str(family).lower().replace("_", "-")
        if name not in FAMILIES:
            raise InputError(f"Unknown family {family!r}; use {', '.join(FAMILIES)} or a loss such as Tweedie(1.7).")
        links = FAMILIES[name]
        if link is not None and link not in links:
            raise InputError(f"link {link!r} is not offered for family {name!r}; use {' or '.join(links)}.")
        if parameter is not None and name not in PARAMETERS:
            raise InputError(f"Family {name!r} has no parameter; {', '.join(PARAMETERS)} have one.")
        made = NamedFamily(name, link or next(iter(links)), parameter)
        made.loss()  # refuses a parameter that the loss cannot have
        return made

    @staticmethod
    def of_loss(loss: Loss) -> NamedFamily | None:
        """The name of a loss; None where it has none."""
        for name, links in FAMILIES.items():
            for link, kind in links.items():
                if type(loss) is kind:
                    own = PARAMETERS.get(name)
                    return NamedFamily(name, link, None if own is None else float(getattr(loss, own)))
        return None

    def loss(self) -> RowLoss:
        """Sums over rows, as likelihoods are."""
        kind: Any = FAMILIES[self.name][self.link]
        return kind() if self.parameter is None else kind(**{PARAMETERS[self.name]: self.parameter})

    @property
    def labels(self) -> bool:
        """Whether the target is one of two labels."""
        return self.name == "binomial"

    @property
    def searched(self) -> bool:
        """Whether its parameter is found from the rows: k of the negative binomial, where it is not given."""
        return self.name == "negative-binomial" and self.parameter is None

    @property
    def takes_exposure(self) -> bool:
        return FAMILIES[self.name][self.link] in LOGARITHMIC

    def mean(self, z: np.ndarray) -> np.ndarray:
        """The expected target at logits z."""
        return mean_of(self.loss(), torch.from_numpy(z)).numpy()

    def message(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {part.name: getattr(self, part.name) for part in fields(self)}


def mean_of(loss: RowLoss, z: Tensor) -> Tensor:
    """The expected target at logits z."""
    if isinstance(loss, Logistic):
        return torch.sigmoid(z)
    if isinstance(loss, Probit):
        return torch.special.ndtr(z)
    if isinstance(loss, CLogLog):
        return -torch.expm1(-torch.exp(z))
    return torch.exp(z) if isinstance(loss, LOGARITHMIC) else z
