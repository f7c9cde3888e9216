"""Separated data never have numbers, others always do; a linear program is the judge.

Rows are separated where some direction d has s_i x_iᵀd ≥ 0 for all of them, s_i = ±1 the class, and not all zero: then
the likelihood grows along d without end (A. Albert, J. A. Anderson, Biometrika 71, 1984).
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import linprog

import auqadmm as aq

SCALES = np.array([1e4, 1.0, 1e-3])


def separated(X, y):
    A = np.column_stack([X / np.abs(X).max(0), np.ones(len(y))]) * np.where(y > 0, 1.0, -1.0)[:, None]
    found = linprog(-A.sum(0), A_ub=-A, b_ub=np.zeros(len(y)), bounds=[(-1, 1)] * A.shape[1], method="highs")
    return -found.fun > 1e-6


def separable(rng, X, level):
    return (X @ [1.0, -1.0, 0.5] > 0.1).astype(int)


def nearly_separable(rng, X, level):
    """One row on the wrong side."""
    y = separable(rng, X, level)
    k = np.argmin(np.abs(X @ [1.0, -1.0, 0.5] - 0.5))
    y[k] = 1 - y[k]
    return y


def one_level(rng, X, level):
    return np.where(level, 1, noise(rng, X, level))


def rare_level(rng, X, level):
    """Both outcomes in the level, one of them once."""
    y = one_level(rng, X, level)
    y[np.flatnonzero(level)[0]] = 0
    return y


def noise(rng, X, level):
    return rng.binomial(1, 1 / (1 + np.exp(-0.7 * X[:, 0])))


def rare_outcome(rng, X, level):
    y = np.zeros(len(X), dtype=int)
    y[rng.choice(len(X), 5, replace=False)] = 1
    return y


def steep(rng, X, level):
    return rng.binomial(1, 1 / (1 + np.exp(-4 * X[:, 0] + 2)))


CASES = [separable, nearly_separable, one_level, rare_level, noise, rare_outcome, steep]


def study(case, seed):
    rng = np.random.default_rng(seed)
    n = int(rng.choice([80, 200, 500]))
    X = rng.normal(size=(n, 3))
    level = rng.random(n) < 0.08
    level[:3] = True
    y = case(rng, X, level)
    if case in (one_level, rare_level):
        X = np.column_stack([X[:, :2], level])
    site = rng.integers(int(rng.choice([1, 3, 8])), size=n)
    return X * (SCALES if seed % 2 else 1.0), y, site


def told(loss, X, y, site, method, tol):
    """The standard errors, or None where there is a sentence in their place."""
    problem = aq.Problem(loss, aq.Zero(), [(X[site == j], y[site == j]) for j in np.unique(site)], intercept=True)
    try:
        return aq.solve(problem, method, certificate_tol=tol, max_iter=400).inference().se
    except aq.InputError:
        return None


def judged(case, seed, loss, method, tol):
    X, y, site = study(case, seed)
    if y.min() == y.max():
        return
    errors, bad = told(loss, X, y, site, method, tol), separated(X, y)
    assert (errors is None) == bad, (case.__name__, seed, errors)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("seed", range(4))
def test_separated_data_have_no_numbers_and_others_do(case, seed):
    judged(case, seed, aq.Logistic(), "newton", 1e-10)


@pytest.mark.campaign
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("seed", range(4, 6))
@pytest.mark.parametrize("loss", [aq.Logistic(), aq.Probit(), aq.CLogLog()], ids=lambda loss: type(loss).__name__)
@pytest.mark.parametrize(("method", "tol"), [("newton", 1e-6), ("newton", 1e-14), ("auto", 1e-8)])
def test_with_every_link_and_tolerance(case, seed, loss, method, tol):
    judged(case, seed, loss, method, tol)


@pytest.mark.parametrize("share", [1e-2, 1e-4, 1e-5])
@pytest.mark.parametrize("loss", [aq.LeastSquares(), aq.Logistic()], ids=lambda loss: type(loss).__name__)
def test_nearly_collinear_columns_have_numbers(share, loss):
    import statsmodels.api as sm

    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 2))
    X = np.column_stack([X, X[:, 0] + share * rng.normal(size=300)]) * SCALES
    y = noise(rng, X / SCALES, None) if isinstance(loss, aq.Logistic) else rng.normal(size=300)
    site = np.arange(300) % 3
    design = sm.add_constant(X / SCALES, prepend=False)
    if isinstance(loss, aq.Logistic):
        truth = sm.GLM(y, design, family=sm.families.Binomial()).fit(tol=1e-12).bse
    else:
        truth = sm.OLS(y, design).fit().bse
    np.testing.assert_allclose(told(loss, X, y, site, "newton", 1e-16) * [*SCALES, 1.0], truth, rtol=1e-5)


def split_and_shuffled(seed: int, share: float) -> None:
    """Rows in another order and in other blocks: the errors are statsmodels', or there is a sentence."""
    import statsmodels.api as sm

    rng = np.random.default_rng(seed)
    X = rng.normal(size=(300, 2)) + rng.choice([0.0, 5.0], size=2)
    X = np.column_stack([X, X[:, 0] + share * rng.normal(size=300)])
    y, site = rng.normal(size=300), rng.integers(rng.integers(1, 9), size=300)
    truth = sm.OLS(y, sm.add_constant(X, prepend=False)).fit()
    order = rng.permutation(300)
    found = told(aq.LeastSquares(), X[order] * SCALES, y[order], site[order], "newton", 1e-16)
    if found is not None:
        np.testing.assert_allclose(found * [*SCALES, 1.0], truth.bse, rtol=1e-5)
    assert found is not None or share < 5e-7  # collinear to rounding


@pytest.mark.parametrize("share", [1e-4, 1e-5, 1e-6])
@pytest.mark.parametrize("seed", range(2))
def test_order_and_split_do_not_change_errors_of_nearly_collinear_columns(seed, share):
    split_and_shuffled(seed, share)


@pytest.mark.campaign
@pytest.mark.parametrize("share", [1e-3, 1e-5, 3e-6, 1e-6, 3e-7, 1e-7])
@pytest.mark.parametrize("seed", range(2, 22))
def test_with_every_order_and_split(seed, share):
    split_and_shuffled(seed, share)
