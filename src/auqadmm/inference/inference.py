"""The table of a study: coefficients with intervals, fit, and how sites differ.

Shapes: m unknowns, N sites.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from auqadmm.errors import AuqadmmError, InputError
from auqadmm.inference import shown
from auqadmm.inference.covariance import Covariance, covariance, observations
from auqadmm.inference.families import family_of
from auqadmm.inference.statistics import Statistics
from auqadmm.problem.made_of_losses import loss_of_rows

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

LABELS = {
    "ridge": "Penalised: standard errors are the spread around a biased mean, and no tests of zero are offered.",
    "kinks": "Penalised with kinks: `one_step` is one Newton step without the penalty, and the standard errors are its "
    "own; no tests of zero are offered.",
}


@dataclass(frozen=True)
class Heterogeneity:
    """Do sites differ in their coefficients? Q = Σ_j λ_jᵀH_j⁻¹λ_j/dispersion, to be compared with χ² of df degrees.

    Parameters
    ----------
    statistic, df, p
        Q, its degrees of freedom Σ_j rank H_j − m, and the probability of a larger Q where sites do not differ.
    i2
        max(0, (Q − df)/Q): the share of the variation between sites that chance does not explain.
    """

    statistic: float
    df: float
    p: float
    i2: float


@dataclass(frozen=True, eq=False)
class Inference:
    """Standard errors, intervals and tests of a fitted model, and how well it fits.

    Made by `Result.inference`. Numbers that a model does not have are None.

    Attributes
    ----------
    names, coef, se
        Of every unknown, the intercept last.
    vcov
        The covariance of `coef`, (m, m); of `one_step` where that is given.
    cov, level
        Which covariance, and the level of intervals.
    family, link
        The likelihood, such as "Binomial" and "logit"; "" for losses that are none.
    nobs, df_resid, df_model
        Rows (the sum of frequency weights), rows less parameters, parameters (effective ones of a ridge).
    dispersion
        The variance beyond the family's own: 1 for Binomial, Poisson and NegativeBinomial, else estimated.
    llf, deviance, null_deviance, aic, bic, pseudo_r2
        Log-likelihood; twice its distance from a perfect fit, and of the best constant; −2 llf + 2 and + log(nobs)
        times the parameters; the share of the null deviance that is explained.
    heterogeneity
        `statistic`, `df`, `p` and `i2`: whether sites differ in their coefficients; None for fewer than two sites.
    distance
        How far the model is from the optimum, in standard errors.
    label
        What must be said of the numbers; "" for a plain maximum of the likelihood.
    one_step
        Where the penalty has kinks: the coefficients after a Newton step without it.
    k, k_se
        The size of the negative binomial, with variance μ + μ²/k; its standard error where it was searched.
    accuracy
        With `columns`: an estimated bound of the relative error of every standard error.
    use_t, exponentiated
        Whether tests and intervals use Student's distribution; whether the table shows exp(coef).
    rounds, numbers
        What it took: reductions, and numbers that one worker sent.
    events
        Of Cox's model: the rows with an event, which `bic` counts in place of all.
    site_names, site_coef, site_se
        With `sites=True`: the one-step estimates of every site and their errors, (N, m); NaN where it has too few rows.

    Examples
    --------
    >>> import numpy as np
    >>> import auqadmm as aq
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(200, 2))
    >>> y = rng.poisson(np.exp(0.5 * X[:, 0]))
    >>> problem = aq.Problem(aq.Poisson(), aq.Zero(), [(X[:90], y[:90]), (X[90:], y[90:])], intercept=True)
    >>> found = aq.solve(problem, certificate_tol=1e-10).inference()
    >>> found.table.round(2)
               coef    se     z     p   low  high
    x0         0.40  0.07  5.61  0.00  0.26  0.54
    x1         0.08  0.07  1.11  0.27 -0.06  0.21
    intercept  0.03  0.07  0.41  0.68 -0.11  0.17
    >>> found.heterogeneity.df
    3.0
    """

    names: tuple[str, ...]
    coef: np.ndarray
    se: np.ndarray
    vcov: np.ndarray = field(repr=False)
    cov: str
    level: float
    family: str
    link: str
    nobs: float
    df_resid: float
    df_model: float
    dispersion: float
    llf: float | None
    deviance: float | None
    null_deviance: float | None
    aic: float | None
    bic: float | None
    pseudo_r2: float | None
    heterogeneity: Heterogeneity | None
    distance: float
    label: str = ""
    one_step: np.ndarray | None = field(default=None, repr=False)
    k: float | None = None
    k_se: float | None = None
    accuracy: np.ndarray | None = field(default=None, repr=False)
    use_t: bool = False
    exponentiated: str = ""
    rounds: int = 0
    numbers: int = 0
    events: float | None = None
    site_names: tuple[str, ...] = field(default=(), repr=False)
    site_coef: np.ndarray | None = field(default=None, repr=False)
    site_se: np.ndarray | None = field(default=None, repr=False)

    def __repr__(self) -> str:
        return self.summary()

    # ------------------------------------------------------------------ tests and intervals
    @property
    def llnull(self) -> float | None:
        """The log-likelihood of the best constant, of Cox's model that of zero; None where `llf` or a fixed dispersion
        is missing."""
        if self.llf is None or self.deviance is None or self.null_deviance is None or self.dispersion != 1:
            return None
        return self.llf - 0.5 * (self.null_deviance - self.deviance)

    @property
    def lr_test(self) -> tuple[float, float, float] | None:
        """The likelihood ratio test that all coefficients but the intercept are zero: statistic, degrees of freedom
        and p; None for penalised fits, and where `llnull` is."""
        from scipy import stats

        null = self.llnull
        if null is None or self.llf is None or self.label or self.df_model > len(self.names):  # intercepts of sites
            return None
        statistic, df = 2 * (self.llf - null), float(len(self.names) - ("intercept" in self.names))
        return statistic, df, float(stats.chi2.sf(statistic, df))

    @property
    def statistic(self) -> np.ndarray | None:
        """coef/se, z or t; None for penalised fits."""
        return None if self.label else self.coef / self.se

    @property
    def p(self) -> np.ndarray | None:
        """Two-sided p-values of zero; None for penalised fits."""
        z = self.statistic
        return None if z is None else 2 * self._distribution.sf(np.abs(z))

    @property
    def interval(self) -> np.ndarray | None:
        """The ends of intervals, (m, 2); None for penalised fits."""
        if self.label:
            return None
        far = self._distribution.ppf(0.5 + self.level / 2) * self.se
        return np.stack([self.coef - far, self.coef + far], 1)

    @property
    def _distribution(self) -> Any:
        from scipy import stats

        return stats.t(self.df_resid) if self.use_t else stats.norm

    @property
    def columns(self) -> dict[str, np.ndarray]:
        """The columns of the table by name."""
        shown = np.exp(self.coef) if self.exponentiated else self.coef
        out = {"ratio" if self.exponentiated else "coef": shown}
        if self.one_step is not None:
            out["one_step"] = self.one_step
        out["se"] = shown * self.se if self.exponentiated else self.se
        ends, z, p = self.interval, self.statistic, self.p
        if ends is not None and z is not None and p is not None:
            ends = np.exp(ends) if self.exponentiated else ends
            out |= {"t" if self.use_t else "z": z, "p": p, "low": ends[:, 0], "high": ends[:, 1]}
        return out

    @property
    def table(self) -> pd.DataFrame:
        """coef, se, z or t, p, low, high of every unknown: a pandas data frame.

        With `exponentiate=True` the first column is `ratio`, exp(coef), with its own error and ends of intervals. Of
        penalised fits there are no z, p, low and high.
        """
        return _pandas().DataFrame(self.columns, index=list(self.names))

    @property
    def sites(self) -> pd.DataFrame:
        """One row per site and unknown: coef, se, low, high; made with `sites=True`."""
        coef, error = self._sites()
        far = self._distribution.ppf(0.5 + self.level / 2)
        index = _pandas().MultiIndex.from_product([self.site_names, self.names], names=["site", "column"])
        parts = {"coef": coef, "se": error, "low": coef - far * error, "high": coef + far * error}
        return _pandas().DataFrame({name: x.ravel() for name, x in parts.items()}, index=index)

    def _sites(self) -> tuple[np.ndarray, np.ndarray]:
        if self.site_coef is None or self.site_se is None:
            raise InputError("Estimates of sites were not asked for: use inference(sites=True).")
        return self.site_coef, self.site_se

    # ------------------------------------------------------------------ on paper
    def summary(self) -> str:
        """The table and the fit as text, laid out as statsmodels does.

        Returns
        -------
        str
            Lines to print.
        """
        return shown.summary(self)

    def to_latex(self) -> str:
        """The table for LaTeX, with the rules of the package booktabs.

        Returns
        -------
        str
            A tabular environment.
        """
        return shown.latex(self)

    def to_html(self) -> str:
        """The table for a page.

        Returns
        -------
        str
            A table element; names are escaped.
        """
        return shown.html(self)

    def to_dict(self) -> dict[str, Any]:
        """Everything but the covariance as plain values.

        Returns
        -------
        dict
            For JSON: the columns of the table, the fit, and where they were asked for the estimates of sites.
        """
        alone = ("cov", "level", "family", "link", "nobs", "df_resid", "df_model", "dispersion", "llf", "deviance",
                 "null_deviance", "aic", "bic", "pseudo_r2", "label", "exponentiated", "rounds", "numbers")  # fmt: skip
        sites = None
        if self.site_coef is not None and self.site_se is not None:
            far = self._distribution.ppf(0.5 + self.level / 2) * self.site_se
            show = np.exp if self.exponentiated else np.asarray
            ends = {"coef": self.site_coef, "low": self.site_coef - far, "high": self.site_coef + far}
            sites = {"names": list(self.site_names), **{name: show(x).tolist() for name, x in ends.items()}}
        return {
            "names": list(self.names),
            "table": {name: x.tolist() for name, x in self.columns.items()},
            **{name: getattr(self, name) for name in alone},
            "heterogeneity": None if self.heterogeneity is None else asdict(self.heterogeneity),
            "sites": sites,
        }

    def plot_forest(self, column: str | int = 0, ax: Axes | None = None) -> Axes:
        """The estimates of one coefficient at every site with intervals, and the common one below.

        Parameters
        ----------
        column
            The name or the number of the coefficient.
        ax
            The axes of matplotlib to draw on; None: new ones.

        Returns
        -------
        matplotlib.axes.Axes
            The axes; `.figure.savefig(…)` keeps the picture.

        Raises
        ------
        InputError
            There is no such coefficient, or `inference(sites=True)` was not asked for.
        """
        self._sites()
        if isinstance(column, str) and column not in self.names:
            raise InputError(f"There is no coefficient {column!r}; there are {', '.join(self.names)}.")
        k = self.names.index(column) if isinstance(column, str) else int(column)
        if not -len(self.names) <= k < len(self.names):
            raise InputError(f"There is no coefficient {column}; there are {len(self.names)}.")
        return shown.draw(self, k, ax)


def infer(
    at: Statistics,
    cov: str = "model",
    level: float = 0.95,
    *,
    dispersion: float | str | None = None,
    use_t: bool | None = None,
    correction: bool = False,
    exponentiate: bool = False,
) -> Inference:
    """The inference from sums that were measured."""
    if not isinstance(level, float | int) or isinstance(level, bool) or not 0 < level < 1:
        raise InputError(f"level must be between 0 and 1, got {level!r}.")
    family, found = family_of(at.loss), covariance(at, cov, dispersion, correction)
    n, own = observations(at), at.number("own")
    if exponentiate and (family is None or not family.ratio):
        name = type(loss_of_rows(at.loss)).__name__
        raise InputError(
            f"exponentiate=True is for odds, rates, hazards and means; exp(coef) of {name} has no meaning."
        )
    parameters = found.freedom + own
    events = at.number("events") if "events" in at.sums else None
    llf = deviance = null = share = aic = bic = None
    if family is not None:
        f, infimum = at.number("f"), at.number("infimum")
        weights = None if at.frequency else at.number("log_weights")
        deviance, null = 2 * (f - infimum), 2 * (at.null - infimum)
        llf = family.log_likelihood(f, infimum, at.number("constant"), n, found.dispersion, weights, _series(at, found))
        share = 1 - deviance / null if null > 0 else None
        if llf is not None:
            counted = parameters + at.searched  # k is a parameter too
            aic, bic = -2 * llf + 2 * counted, -2 * llf + math.log(events or n) * counted
    student = family is not None and family.estimated and dispersion is None and cov in ("model", "expected")
    sites = at.sites
    return Inference(
        names=at.names if at.chosen is None else tuple(at.names[k] for k in at.chosen.which),
        coef=found.coef,
        se=np.sqrt(np.maximum(np.diag(found.vcov), 0.0)),
        vcov=found.vcov,
        cov=cov,
        level=float(level),
        family="" if family is None else family.name,
        link="" if family is None else family.link,
        nobs=n,
        df_resid=n - parameters,
        df_model=parameters,
        dispersion=found.dispersion,
        llf=llf,
        deviance=deviance,
        null_deviance=null,
        aic=aic,
        bic=bic,
        pseudo_r2=share,
        heterogeneity=None if at.penalised or at.chosen is not None else _heterogeneity(at, found),
        distance=found.away,
        label=LABELS.get(at.penalised, ""),
        one_step=found.one_step,
        k=getattr(loss_of_rows(at.loss), "k", None) if family is not None else None,
        k_se=found.k_se,
        accuracy=None if at.chosen is None else at.chosen.accuracy,
        use_t=student if use_t is None else use_t,
        exponentiated=family.ratio if exponentiate and family is not None else "",
        rounds=at.rounds,
        numbers=at.numbers,
        events=events,
        site_names=at.blocks,
        site_coef=None if sites is None else sites[:, 0],
        site_se=None if sites is None else sites[:, 1] * math.sqrt(found.dispersion),
    )


def _series(at: Statistics, found: Covariance) -> float | None:
    """Tweedie's, where it was summed for this dispersion."""
    if not math.isclose(float(at.sums.get("series_dispersion", math.nan)), found.dispersion, rel_tol=1e-12):
        return None
    return at.number("series")


def _heterogeneity(at: Statistics, found: Covariance) -> Heterogeneity | None:
    from scipy import stats

    df = at.number("ranks") - len(at.names)
    if at.number("sites") < 2 or not df > 0:
        return None
    Q = at.number("Q") / found.dispersion
    return Heterogeneity(Q, df, float(stats.chi2.sf(Q, df)), max(0.0, (Q - df) / Q) if Q > 0 else 0.0)


def _pandas() -> ModuleType:
    try:
        import pandas
    except ModuleNotFoundError:
        raise AuqadmmError("Tables need pandas: pip install pandas. `summary()` does without.") from None
    return pandas
