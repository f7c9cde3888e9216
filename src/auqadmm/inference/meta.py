"""Estimates that every site made alone, combined: the classical meta-analysis.

    fixed   μ = Σ w_j y_j / Σ w_j with w_j = 1/s_j²: all sites estimate one number
    reml    w_j = 1/(s_j² + τ²): sites vary around μ with variance τ², the most likely one given what is left beside μ

    Q       Σ (y_j − μ)²/s_j² at the fixed μ, to be compared with χ² of k − 1 degrees for k sites
    I²      fixed: max(0, (Q − df)/Q); reml: τ²/(τ² + s²), s² the typical variance within sites

Shapes: N sites, m columns, k sites that know a column; y, s (k,).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from auqadmm.errors import InputError

METHODS = ("fixed", "reml")
META_PARTS = 400  # of the range of τ² in which the slope of the likelihood is looked at for sign changes


@dataclass(frozen=True, eq=False)
class Combined:
    """One estimate per column, with what is known about it, each (m,); NaN where no site knows the column.

    Attributes
    ----------
    method, level
        "fixed" or "reml", and the level of intervals.
    estimate, se, z, p, low, high
        The combined estimate, its standard error, its test of zero and the ends of its interval, by the normal
        distribution.
    tau2
        The variance between sites; 0 for "fixed".
    q, df, q_p
        Cochran's Q, its degrees of freedom (sites less one), and the probability of a larger Q where sites do not
        differ.
    i2
        The share of the variation between estimates that chance within sites does not explain.
    """

    method: str
    level: float
    estimate: np.ndarray
    se: np.ndarray
    z: np.ndarray
    p: np.ndarray
    low: np.ndarray
    high: np.ndarray
    tau2: np.ndarray
    q: np.ndarray
    df: np.ndarray
    q_p: np.ndarray
    i2: np.ndarray


def combine(estimates: ArrayLike, errors: ArrayLike, method: str = "fixed", level: float = 0.95) -> Combined:
    """Combine estimates of sites, column by column.

    Parameters
    ----------
    estimates, errors
        What every site found alone, and its standard errors: (N, m), sites in rows. A site that does not know a column
        has NaN in either, and is left out there.
    method
        "fixed": weights by the errors alone; "reml": sites vary, by as much as is most likely.
    level
        Of intervals.

    Returns
    -------
    Combined
        An estimate per column, with errors, tests, and how much sites differ.

    Raises
    ------
    InputError
        Shapes differ, an error is not above zero, or an option has a value that it cannot have.

    Examples
    --------
    >>> from auqadmm.inference.meta import combine
    >>> found = combine([[0.2], [1.1]], [[0.2], [0.3]])
    >>> found.estimate.round(3), found.se.round(3), found.q_p.round(3)
    (array([0.477]), array([0.166]), array([0.013]))
    >>> found = combine([[0.2], [1.1]], [[0.2], [0.3]], "reml")
    >>> found.estimate.round(3), found.se.round(3), found.tau2.round(3)
    (array([0.622]), array([0.449]), array([0.34]))
    """
    from scipy import stats

    if method not in METHODS:
        raise InputError(f"method must be 'fixed' or 'reml', got {method!r}.")
    if not isinstance(level, float | int) or isinstance(level, bool) or not 0 < level < 1:
        raise InputError(f"level must be between 0 and 1, got {level!r}.")
    Y, S = _tables(estimates, errors)
    columns = [_column(y[known], s[known], method) for y, s, known in zip(Y.T, S.T, _known(Y, S).T, strict=True)]
    estimate, se, tau2, q, df, i2 = np.array(columns, dtype=np.float64).reshape(-1, 6).T
    z, far = estimate / se, stats.norm.ppf(0.5 + level / 2) * se
    q_p = np.where(df > 0, stats.chi2.sf(q, np.maximum(df, 1)), np.where(df == 0, 1.0, np.nan))
    p = 2 * stats.norm.sf(np.abs(z))
    return Combined(method, float(level), estimate, se, z, p, estimate - far, estimate + far, tau2, q, df, q_p, i2)


def _column(y: np.ndarray, s: np.ndarray, method: str) -> tuple[float, ...]:
    """Estimate, error, τ², Q, df and I² of one column."""
    k = len(y)
    if k == 0:
        return (np.nan,) * 6
    v = s * s
    q, df = _restricted(y, v, 0.0)[2], k - 1
    if method == "fixed":
        tau2, i2 = 0.0, (max(0.0, (q - df) / q) if q > 0 else 0.0)
    else:
        tau2 = _reml(y, v)
        w = 1 / v
        i2 = tau2 / (tau2 + df / (w.sum() - (w * w).sum() / w.sum())) if tau2 > 0 else 0.0
    w = 1 / (v + tau2)
    centre = y.mean()
    return centre + float(w @ (y - centre) / w.sum()), float(1 / np.sqrt(w.sum())), tau2, q, df, i2


def _reml(y: np.ndarray, v: np.ndarray) -> float:
    """τ² where the restricted likelihood is largest: among zero and all places where its slope turns negative."""
    from scipy.optimize import brentq

    if len(y) < 2:
        return 0.0
    top = float(np.ptp(y)) ** 2 + float(v.max())
    while _restricted(y, v, top)[1] >= 0:
        top *= 2
    grid = np.append(0.0, np.geomspace(1e-8 * float(v.min()), top, META_PARTS))
    slopes = np.array([_restricted(y, v, t)[1] for t in grid])
    turns = np.flatnonzero((slopes[:-1] > 0) & (slopes[1:] <= 0))
    found = [0.0, *(brentq(lambda t: _restricted(y, v, t)[1], *grid[[k, k + 1]], xtol=1e-300) for k in turns)]
    return float(max(found, key=lambda t: _restricted(y, v, t)[0]))


def _restricted(y: np.ndarray, v: np.ndarray, tau2: float) -> tuple[float, float, float]:
    """The restricted log-likelihood at τ² up to a constant, its slope, and Σ w(y − μ)²."""
    w = 1 / (v + tau2)
    total = w.sum()
    away = y - y.mean()
    away = away - w @ away / total
    q = float(w @ away**2)
    value = 0.5 * (np.log(w).sum() - np.log(total) - q)
    slope = 0.5 * (-total + (w * w).sum() / total + (w * w) @ away**2)
    return float(value), float(slope), q


def _tables(estimates: ArrayLike, errors: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    try:
        Y, S = np.asarray(estimates, dtype=np.float64), np.asarray(errors, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError("estimates and errors must hold numbers, one row per site, one column per estimate.") from None
    if Y.ndim != 2 or Y.shape != S.shape or not len(Y):
        raise InputError(
            f"estimates and errors must both be (sites, columns), with a site at least; got {Y.shape} and {S.shape}."
        )
    bad = np.argwhere(_known(Y, S) & ~((S > 0) & np.isfinite(S * S) & (S * S > 0) & np.isfinite(Y)))
    if len(bad):
        j, c = bad[0]
        raise InputError(
            f"Site {j}, column {c}: the estimate {Y[j, c]:g} has the error {S[j, c]:g}; estimates are finite and "
            "errors above zero, or NaN where a site has none."
        )
    return Y, S


def _known(Y: np.ndarray, S: np.ndarray) -> np.ndarray:
    return ~(np.isnan(Y) | np.isnan(S))
