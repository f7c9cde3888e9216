"""Standard errors, tests and fit against statsmodels on the pooled rows."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest
import statsmodels.api as sm

import auqadmm as aq
from tests.problem.family_cases import CASES, glm, oracle, study

SCALES = {"plain": 1.0, "far apart": np.array([1e4, 1e-3, 1.0, 7.0])}


def fitted(case, data, weights=False, offset=False, **options):
    problem = aq.Problem(case.loss, aq.Zero(), data.blocks(weights, offset), intercept=True)
    return aq.solve(problem, certificate_tol=1e-20, **options)


def same(ours, theirs, rel=1e-8):
    np.testing.assert_allclose(ours, theirs, rtol=rel, atol=0)


@pytest.fixture(autouse=True)
def _quiet():
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="cov_type not fully supported")
        yield


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(("weights", "offset"), [(False, False), (True, True)])
@pytest.mark.parametrize(("seed", "scale"), [(3, "plain"), (8, "far apart")])
@pytest.mark.thin(12)
def test_everything_is_that_of_statsmodels(name, weights, offset, seed, scale):
    case = CASES[name]
    data = study(case, seed, scale=SCALES[scale])
    result = fitted(case, data, weights, offset)
    truth = oracle(case, data, weights, offset)
    found = result.inference("expected", use_t=False)
    same(found.coef, truth.params)
    same(found.se, truth.bse)
    same(found.statistic, truth.tvalues)
    same(found.p, truth.pvalues)
    same(found.interval, truth.conf_int())
    same(found.vcov, truth.cov_params())
    for ours, theirs in (
        (found.deviance, truth.deviance),
        (found.null_deviance, truth.null_deviance),
        (found.dispersion, truth.scale),
        (found.nobs, truth.df_resid + 5),
        (found.df_resid, truth.df_resid),
    ):
        assert ours == pytest.approx(theirs, rel=1e-8)
    if name != "tweedie":  # its likelihood is a series: test_likelihoods
        assert (found.llf, found.aic, found.bic) == pytest.approx((truth.llf, truth.aic, truth.bic_llf), rel=1e-8)
    robust = oracle(case, data, weights, offset, cov_type="HC0")
    same(result.inference("robust").se, robust.bse)
    by_site = {"groups": data.site, "use_correction": False}
    clustered = oracle(case, data, weights, offset, cov_type="cluster", cov_kwds=by_site)
    same(result.inference("cluster").se, clustered.bse)


@pytest.mark.parametrize("name", ["probit", "cloglog", "gamma", "negative-binomial", "tweedie"])
def test_the_observed_information(name):
    case = CASES[name]
    data = study(case, 5)
    found = fitted(case, data).inference()
    truth = oracle(case, data)
    H = -glm(case, data, data.design).hessian(truth.params, scale=1.0, observed=True)
    same(found.se, np.sqrt(np.diag(np.linalg.inv(H)) * truth.scale))


def test_least_squares_are_those_of_ols():
    case = CASES["gaussian"]
    data = study(case, 6)
    found = fitted(case, data).inference(level=0.9)
    truth = sm.OLS(data.y, data.design).fit()
    assert found.use_t
    same(found.p, truth.pvalues)
    same(found.interval, truth.conf_int(0.1))
    assert found.pseudo_r2 == pytest.approx(truth.rsquared, rel=1e-10)
    assert (found.llf, found.aic, found.bic) == pytest.approx((truth.llf, truth.aic, truth.bic), rel=1e-10)


def test_clusters_with_the_correction_of_few():
    case = CASES["poisson"]
    data = study(case, 6)
    truth = oracle(case, data, cov_type="cluster", cov_kwds={"groups": data.site})
    same(fitted(case, data).inference("cluster", correction=True).se, truth.bse)


def test_rows_of_weight_three_are_three_rows():
    case = CASES["gamma"]
    data = study(case, 7)
    rows = np.repeat(np.arange(len(data.y)), data.weight.astype(int))
    many = replace(data, **{k: x[rows] for k, x in vars(data).items()})
    a, b = fitted(case, data, True), fitted(case, many)
    for cov in ("model", "expected", "robust", "cluster"):
        one, other = a.inference(cov), b.inference(cov)
        same(one.se, other.se)
        assert (one.nobs, one.df_resid) == (other.nobs, other.df_resid)
        assert (one.llf, one.aic) == pytest.approx((other.llf, other.aic), rel=1e-10)


@pytest.mark.parametrize("name", ["gaussian", "poisson"])
def test_precision_weights(name):
    case = CASES[name]
    data = study(case, 8)
    data = replace(data, weight=np.random.default_rng(0).uniform(0.3, 2.0, size=len(data.y)))
    model = sm.GLM(data.y, data.design, family=case.family, var_weights=data.weight)
    result = fitted(case, data, True)
    for cov, kind in (("expected", "nonrobust"), ("robust", "HC0")):
        truth = model.fit(tol=1e-13, tol_criterion="params", cov_type=kind)
        found = result.inference(cov, weights="precision")
        same(found.se, truth.bse)
        assert found.df_resid == truth.df_resid
    if name == "gaussian":
        wls = sm.WLS(data.y, data.design, weights=data.weight).fit()
        assert found.llf == pytest.approx(wls.llf, rel=1e-10)


def test_a_quasi_likelihood():
    case = CASES["poisson"]
    data = study(case, 9)
    truth = glm(case, data, data.design).fit(scale="X2", tol=1e-13, tol_criterion="params")
    found = fitted(case, data).inference("expected", dispersion="pearson")
    same(found.se, truth.bse)
    assert found.dispersion == pytest.approx(truth.scale, rel=1e-10)


def test_reductions_are_the_same_model():
    case = CASES["logit"]
    data = study(case, 10)
    plain = fitted(case, data).inference()
    pooled = aq.Problem(replace(case.loss, reduction="pooled"), aq.Zero(), data.blocks(), intercept=True)
    found = aq.solve(pooled, certificate_tol=1e-20).inference()
    same(found.se, plain.se)
    assert (found.deviance, found.nobs) == pytest.approx((plain.deviance, plain.nobs), rel=1e-12)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(("weights", "offset"), [(False, False), (True, True)])
@pytest.mark.thin(6)
def test_site_intercepts_are_indicator_columns(name, weights, offset):
    case = CASES[name]
    data = study(case, 1, (90, 41, 9, 6, 120))
    data = replace(data, X=data.X[:, :3] + np.array([1e3, 0.0, -50.0]))
    wide = np.hstack([data.X - data.X.mean(0), data.site[:, None] == np.arange(5)])
    problem = aq.Problem(case.loss, aq.Zero(), data.blocks(weights, offset), site_intercepts=True)
    result = aq.solve(problem, certificate_tol=1e-20)
    model = glm(case, data, wide, weights, offset)
    options = {"tol": 1e-13, "tol_criterion": "params", "maxiter": 500}
    truth = model.fit(**options)
    found = result.inference("expected", use_t=False)
    same(found.coef, truth.params[:3])
    same(found.se, truth.bse[:3])
    same(result.inference("robust").se, model.fit(cov_type="HC0", **options).bse[:3])
    assert (found.deviance, found.df_resid) == pytest.approx((truth.deviance, truth.df_resid), rel=1e-9)
    if name != "tweedie":
        assert (found.llf, found.aic) == pytest.approx((truth.llf, truth.aic), rel=1e-9)


def test_sites_of_squares_are_exact():
    """Q is the fall of the residual squares when every site has coefficients of its own; estimates are each site's."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(90, 2))
    site = np.repeat([0, 1, 2], [40, 30, 20])
    y = X @ [1.0, -1.0] + 0.5 * site * X[:, 0] + rng.normal(size=90)
    blocks = [(X[site == j], y[site == j]) for j in range(3)]
    result = aq.solve(aq.Problem(aq.LeastSquares(), aq.Zero(), blocks, intercept=True), certificate_tol=1e-20)
    found = result.inference(sites=True)
    design = sm.add_constant(X, prepend=False)
    apart = [sm.OLS(y[site == j], design[site == j]).fit() for j in range(3)]
    whole = sm.OLS(y, design).fit()
    h = found.heterogeneity
    assert h.statistic * whole.scale == pytest.approx(whole.ssr - sum(a.ssr for a in apart), rel=1e-10)
    assert h.df == 6
    assert h.i2 == pytest.approx((h.statistic - 6) / h.statistic)
    same(found.site_coef, [a.params for a in apart])
    same(found.site_se[0], apart[0].bse * np.sqrt(whole.scale / apart[0].scale))
    assert found.sites.shape == (9, 4)


def test_heterogeneity_is_near_the_likelihood_ratio():
    case = CASES["poisson"]
    data = study(case, 12, (400, 300, 300))
    data = replace(data, X=data.X[:, :3], y=np.random.default_rng(1).poisson(np.exp(0.3 * data.site * data.X[:, 0])))
    found = fitted(case, data).inference()
    whole = oracle(case, data).deviance
    apart = 0.0
    for j in range(3):
        rows = data.site == j
        apart += oracle(case, replace(data, **{k: x[rows] for k, x in vars(data).items()})).deviance
    assert found.heterogeneity.statistic == pytest.approx(whole - apart, rel=0.15)
    assert found.heterogeneity.df == 8
    assert found.heterogeneity.p < 1e-4


def test_no_more_is_found_than_there_is():
    """Sites that do not differ: p is uniform, so of 40 studies about two are below 0.05."""
    case = CASES["logit"]
    below = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(600, 2))
        y = case.draw(X @ [0.4, -0.3], rng)
        blocks = [(X[i], y[i]) for i in np.array_split(np.arange(600), 3)]
        found = aq.solve(aq.Problem(case.loss, aq.Zero(), blocks, intercept=True), certificate_tol=1e-9).inference()
        below += found.heterogeneity.p < 0.05
    assert below <= 7
