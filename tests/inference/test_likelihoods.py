"""A size k that is searched, successes of trials, and Tweedie's series."""

from __future__ import annotations

import warnings
from dataclasses import replace

import mpmath
import numpy as np
import pytest
import statsmodels.api as sm
import torch

import auqadmm as aq
from auqadmm.inference.sums import log_series
from tests.problem.family_cases import CASES, FAMILY, LINK, study


def same(ours, theirs, rel=1e-8):
    np.testing.assert_allclose(ours, theirs, rtol=rel, atol=0)


# ---------------------------------------------------------------------- the size of the negative binomial
def counts(seed=3, k=1.7, sizes=(300, 200, 150, 20, 5)):
    data = study(CASES["negative-binomial"], seed, sizes)
    rng = np.random.default_rng(seed)
    mu = np.exp(data.X @ np.array([0.5, -0.4, 0.6, 0.3]) - 0.2 + data.offset)
    return replace(data, y=rng.poisson(rng.gamma(k, mu / k)).astype(float))


def discrete(y, design, offset=None, **options):
    """statsmodels' joint maximum in coefficients and alpha = 1/k, to rounding."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = sm.NegativeBinomial(y, design, offset=offset)
        start = model.fit(method="bfgs", maxiter=2000, disp=0).params
        start = model.fit(start_params=start, method="newton", maxiter=200, disp=0).params
        return model.fit(start_params=start, method="newton", maxiter=200, disp=0, tol=1e-15, **options)


@pytest.mark.parametrize(("seed", "k"), [(3, 1.7), (4, 0.3), (5, 8.0)])
@pytest.mark.parametrize("offset", [False, True])
@pytest.mark.thin(3)
def test_a_size_that_is_searched(seed, k, offset):
    data = counts(seed, k)
    o = data.offset if offset else None
    model = aq.ConsensusGLM("negative-binomial").fit(data.X, data.y, sites=data.site, offset=o)
    truth = discrete(data.y, data.design, o)
    found, alpha = model.inference_, truth.params[-1]
    same(model.k_, 1 / alpha)
    same(found.coef, truth.params[:-1])
    same(found.se, truth.bse[:-1])
    same(found.k_se, truth.bse[-1] / alpha**2)
    assert (found.llf, found.aic, found.bic) == pytest.approx((truth.llf, truth.aic, truth.bic), rel=1e-10)
    by_site = {"groups": data.site, "use_correction": False}
    for cov, options in (("robust", {"cov_type": "HC0"}), ("cluster", {"cov_type": "cluster", "cov_kwds": by_site})):
        other = discrete(data.y, data.design, o, **options)
        same(model.inference(cov).se, other.bse[:-1])
        same(model.inference(cov).k_se, other.bse[-1] / alpha**2)
    assert f"k = {model.k_:.6g} (standard error" in found.summary()
    assert model.rounds_ < 100


def test_a_size_with_weights_and_intercepts_of_sites():
    data = counts(6, 2.0, (120, 90, 60))
    data = replace(data, X=data.X[:, :3])
    rows = np.repeat(np.arange(len(data.y)), data.weight.astype(int))
    model = aq.ConsensusGLM("negative-binomial").fit(data.X, data.y, sites=data.site, sample_weight=data.weight)
    many = discrete(data.y[rows], data.design[rows])
    same(model.k_, 1 / many.params[-1])
    same(model.inference_.se, many.bse[:-1])
    own = aq.ConsensusGLM("negative-binomial", site_intercepts=True).fit(data.X, data.y, sites=data.site)
    wide = np.hstack([data.X, data.site[:, None] == np.arange(3)])
    truth = discrete(data.y, wide)
    same(own.k_, 1 / truth.params[-1])
    same(own.inference_.se, truth.bse[:3])
    same(own.inference_.k_se, truth.bse[-1] / truth.params[-1] ** 2)
    same(own.inference("robust").se, discrete(data.y, wide, cov_type="HC0").bse[:3])
    assert own.inference_.aic == pytest.approx(truth.aic, rel=1e-10)


def test_a_size_of_a_penalised_model_is_the_best():
    data = counts(7)
    for options in ({"l2": 3.0}, {"l1": 5.0}):
        model = aq.ConsensusGLM("negative-binomial", **options).fit(data.X, data.y, sites=data.site)

        def value(k, options=options):
            given = aq.ConsensusGLM(aq.NegativeBinomial(k), **options).fit(data.X, data.y, sites=data.site)
            at = given._fitted.statistics
            v = given.coef_
            return (
                at.number("constant")
                - at.number("f")
                - sum(s * (np.abs(v).sum() if name == "l1" else 0.5 * v @ v) for name, s in options.items())
            )

        middle, low, high = (value(model.k_ * x) for x in (1.0, 0.999, 1.001))
        assert middle > max(low, high)
        assert middle - low == pytest.approx(middle - high, rel=0.01)
        assert model.inference_.p is None


def test_a_size_that_is_given_stays():
    data = counts()
    model = aq.ConsensusGLM(aq.NegativeBinomial(2.0)).fit(data.X, data.y, sites=data.site)
    assert (model.k_, model.inference_.k, model.inference_.k_se) == (2.0, 2.0, None)
    assert "k = 2 (given)" in model.inference_.summary()


def test_counts_that_vary_less_than_poissons():
    data = counts()
    y = np.random.default_rng(0).binomial(10, 0.5, size=len(data.y))
    with pytest.raises(aq.InputError, match=r"vary no more than Poisson's: the most likely k is infinite; use family"):
        aq.ConsensusGLM("negative-binomial").fit(data.X, y, sites=data.site)


# ---------------------------------------------------------------------- successes of trials
@pytest.mark.parametrize("name", ["logit", "probit", "cloglog"])
@pytest.mark.parametrize("own", [False, True])
def test_successes_of_trials_are_those_of_statsmodels(name, own):
    data = study(CASES[name], 4, (60, 41, 30, 9))
    data = replace(data, X=data.X[:, :3])
    rng = np.random.default_rng(0)
    trials = rng.integers(1, 12, size=len(data.y))
    won = rng.binomial(trials, 1 / (1 + np.exp(-data.X @ [0.5, -0.4, 0.6])))
    family = FAMILY.Binomial({"logit": LINK.Logit, "probit": LINK.Probit, "cloglog": LINK.CLogLog}[name]())
    design = np.hstack([data.X, data.site[:, None] == np.arange(4)]) if own else data.design
    theirs = sm.GLM(np.column_stack([won, trials - won]), design, family=family, offset=data.offset)
    model = aq.ConsensusGLM("binomial", name, site_intercepts=own)
    model.fit(data.X, won, sites=data.site, trials=trials, offset=data.offset)
    keep = slice(0, 3 if own else 4)
    for cov, kind in (("expected", "nonrobust"), ("robust", "HC0")):
        truth = theirs.fit(tol=1e-13, tol_criterion="params", maxiter=300, cov_type=kind)
        found = model.inference(cov)
        same(found.coef, truth.params[keep])
        same(found.se, truth.bse[keep])
    parts = [(x.deviance, x.llf, x.aic, x.df_resid) for x in (found, truth)]
    assert parts[0] == pytest.approx(parts[1], rel=1e-9)
    if not own:
        assert found.null_deviance == pytest.approx(truth.null_deviance, rel=1e-9)


def test_rows_without_trials_are_no_observations():
    X, won, trials = np.arange(5.0)[:, None], np.array([1, 3, 0, 4, 7]), np.array([8, 9, 0, 7, 8])
    whole = aq.ConsensusGLM("binomial").fit(X, won, trials=trials)
    some = aq.ConsensusGLM("binomial").fit(X[trials > 0], won[trials > 0], trials=trials[trials > 0])
    same(whole.inference_.se, some.inference_.se)
    assert whole.inference_.nobs == 4


@pytest.mark.parametrize(
    ("family", "options", "sentence"),
    [
        ("poisson", {"trials": [2, 2, 2]}, "trials is for family 'binomial'"),
        ("binomial", {"trials": [2, 2, 2]}, r"block 0: y\[1\] is 3, of 2 trials; successes are between none and all"),
        ("binomial", {"trials": [3, 3, 3], "sample_weight": [1, 1, 1]}, "sample_weight has no place beside trials"),
        ("binomial", {"trials": [3, 3]}, "has 2 values|2 weights|shape"),
        ("binomial", {"trials": [3, 3, -1]}, "-1"),
        (aq.losses.Trials(aq.Logistic()), {}, r"y\[1\] is 3.0; Trials needs shares of successes"),
    ],
)
def test_trials_that_cannot_be(family, options, sentence):
    with pytest.raises(aq.InputError, match=sentence):
        aq.ConsensusGLM(family).fit(np.arange(3.0)[:, None], [1, 3, 0], **options)
    with pytest.raises(aq.InputTypeError, match="Trials needs a loss of two classes"):
        aq.losses.Trials(aq.Poisson())


# ---------------------------------------------------------------------- Tweedie's series
@pytest.mark.parametrize("p", [1.02, 1.3, 1.6, 1.95])
@pytest.mark.parametrize("s", [2e-3, 0.03, 1.0, 40.0])
def test_the_series_in_many_digits(p, s):
    y = [1e-3, 0.2, 1.0, 30.0]
    if p == 1.02:
        y = y[2:]
    found = log_series(torch.tensor(y, dtype=torch.float64), torch.full((len(y),), s, dtype=torch.float64), p)
    for value, there in zip(y, found.tolist(), strict=True):
        with mpmath.workdps(40):
            P, S, Y = mpmath.mpf(p), mpmath.mpf(s), mpmath.mpf(value)
            a = (2 - P) / (P - 1)
            log_t = a * mpmath.log(Y) - a * mpmath.log(P - 1) - (1 + a) * mpmath.log(S) - mpmath.log(2 - P)
            top = int(Y ** (2 - P) / (S * (2 - P)))
            reach = 60 + int(14 * mpmath.sqrt(top))
            first = max(1, top - reach)
            terms = [j * log_t - mpmath.loggamma(j + 1) - mpmath.loggamma(a * j) for j in range(first, top + reach)]
            most = max(terms)
            truth = float(most + mpmath.log(sum(mpmath.exp(x - most) for x in terms)) - mpmath.log(Y))
        assert there == pytest.approx(truth, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("weights", ["none", "frequency", "precision"])
def test_the_likelihood_of_tweedie_is_that_of_statsmodels(weights):
    case = CASES["tweedie"]
    data = study(case, 3)
    family = FAMILY.Tweedie(LINK.Log(), var_power=1.6, eql=False)
    more = {"frequency": {"freq_weights": data.weight}, "precision": {"var_weights": data.weight}}.get(weights, {})
    truth = sm.GLM(data.y, data.design, family=family, **more).fit(tol=1e-13, tol_criterion="params", maxiter=300)
    problem = aq.Problem(case.loss, aq.Zero(), data.blocks(weights != "none"), intercept=True)
    result = aq.solve(problem, certificate_tol=1e-20)
    found = result.inference(weights="precision" if weights == "precision" else "frequency")
    assert (found.llf, found.aic) == pytest.approx((truth.llf, truth.aic), rel=1e-8)
    assert found.rounds == 2
    assert result.inference(dispersion=2.0).llf is None
    bic = -2 * found.llf + 5 * np.log(found.nobs)
    assert found.bic == pytest.approx(bic)


def test_tweedie_with_intercepts_of_sites():
    case = CASES["tweedie"]
    data = study(case, 1, (90, 41, 9, 6, 120))
    data = replace(data, X=data.X[:, :3])
    y = np.where(data.site == 3, 0.0, data.y)  # a site that says nothing
    data = replace(data, y=y)
    result = aq.solve(
        aq.Problem(case.loss, aq.Zero(), data.blocks(), site_intercepts=True), certificate_tol=1e-20
    ).inference()
    some = data.site != 3
    wide = np.hstack([data.X, data.site[:, None] == np.arange(5)])[some][:, [0, 1, 2, 3, 4, 5, 7]]
    family = FAMILY.Tweedie(LINK.Log(), var_power=1.6, eql=False)
    truth = sm.GLM(y[some], wide, family=family).fit(tol=1e-13, tol_criterion="params", maxiter=300)
    assert result.llf == pytest.approx(truth.llf, rel=1e-8)
