"""ConsensusGLM against statsmodels, and what it refuses."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import scipy.sparse
import statsmodels.api as sm

import auqadmm as aq
from tests.problem.family_cases import CASES, oracle, study

FAMILY = {
    "gaussian": ("gaussian", None),
    "logit": ("binomial", None),
    "probit": ("binomial", "probit"),
    "cloglog": ("binomial", "cloglog"),
    "poisson": ("poisson", "log"),
    "gamma": ("gamma", None),
    "negative-binomial": (aq.NegativeBinomial(1.7), None),
    "tweedie": (aq.Tweedie(1.6), None),
}


@pytest.mark.parametrize("name", CASES)
def test_fits_are_those_of_statsmodels(name):
    case = CASES[name]
    data = study(case, 2)
    rows = np.random.default_rng(0).permutation(len(data.y))
    X, y, w, o, site = (x[rows] for x in (data.X, data.y, data.weight, data.offset, data.site))
    model = aq.ConsensusGLM(*FAMILY[name]).fit(X, y, sites=site, sample_weight=w, offset=o)
    truth = oracle(case, data, True, True)
    np.testing.assert_allclose(np.append(model.coef_, model.intercept_), truth.params, rtol=1e-8)
    np.testing.assert_allclose(model.inference("expected").se, truth.bse, rtol=1e-8)
    np.testing.assert_allclose(
        model.predict(X, offset=o), truth.predict(data.design, offset=data.offset)[rows], rtol=1e-8
    )
    assert model.inference_.deviance == pytest.approx(truth.deviance, rel=1e-9)
    assert pickle.loads(pickle.dumps(model)).inference_.aic == model.inference_.aic


def test_exposure_sites_by_name_and_lists():
    case = CASES["poisson"]
    data = study(case, 3)
    names = np.array(["north", "south", "east", "west", "sea"])[data.site]
    E = np.exp(data.offset)
    model = aq.ConsensusGLM("poisson").fit(data.X, data.y, sites=names, exposure=E)
    truth = oracle(case, data, offset=True)
    np.testing.assert_allclose(model.coef_, truth.params[:-1], rtol=1e-8)
    assert set(model.inference_.site_names) == set(names)
    parts = [(data.X[data.site == j], data.y[data.site == j], E[data.site == j]) for j in range(5)]
    X, y, exposure = (list(x) for x in zip(*parts, strict=True))
    again = aq.ConsensusGLM("poisson").fit(X, y, exposure=exposure)
    np.testing.assert_allclose(again.coef_, model.coef_, rtol=1e-8)
    sparse = aq.ConsensusGLM("poisson").fit(scipy.sparse.csr_matrix(data.X), data.y, sites=names, exposure=E)
    np.testing.assert_allclose(sparse.coef_, model.coef_, rtol=1e-8)
    assert model.score(data.X, data.y) > 0


def test_penalties_site_intercepts_and_successes_of_trials():
    case = CASES["logit"]
    data = study(case, 4)
    ridge = aq.ConsensusGLM("binomial", l2=1.0).fit(data.X, data.y, sites=data.site)
    assert ridge.inference_.p is None
    own = aq.ConsensusGLM("binomial", site_intercepts=True).fit(data.X[:, :3], data.y, sites=data.site)
    assert own.intercept_ == 0
    assert np.isfinite(own.inference_.se).all()
    with pytest.raises(aq.InputError, match="say with sites= which one owns a row"):
        own.predict(data.X[:, :3])
    trials, won = np.array([9, 7, 5, 8, 6, 9]), np.array([2, 3, 1, 6, 5, 7])
    x = np.arange(6.0)[:, None]
    grouped = aq.ConsensusGLM("binomial").fit(
        np.vstack([x, x]), np.repeat([1, 0], 6), sample_weight=np.r_[won, trials - won]
    )
    single = np.concatenate([np.r_[np.ones(k), np.zeros(n - k)] for k, n in zip(won, trials, strict=True)])
    flat = aq.ConsensusGLM("binomial").fit(np.repeat(x, trials, axis=0), single)
    np.testing.assert_allclose(grouped.inference_.se, flat.inference_.se, rtol=1e-8)


X, Y = np.arange(6.0)[:, None], np.array([0.0, 1.0, 2.0, 0.0, 3.0, 1.0])


@pytest.mark.parametrize(
    ("model", "options", "sentence"),
    [
        (aq.ConsensusGLM("poison"), {}, "Unknown family 'poison'; use gaussian, binomial"),
        (aq.ConsensusGLM("poisson", "logit"), {}, "link 'logit' is not offered for family 'poisson'; use log"),
        (aq.ConsensusGLM(aq.Poisson(), "log"), {}, "link has no place beside"),
        (aq.ConsensusGLM("binomial"), {}, r"block 0: y\[2\] is 2; family 'binomial' needs 0 and 1"),
        (aq.ConsensusGLM("gamma"), {}, r"y\[0\] is 0.0; Gamma needs targets above zero"),
        (
            aq.ConsensusGLM("poisson"),
            {"exposure": [1, 2, 0, 1, 1, 1]},
            r"exposure\[2\] is 0; exposures are finite and above",
        ),
        (aq.ConsensusGLM("poisson"), {"offset": [1, 2]}, "offset has 2 values but X has 6 rows"),
        (aq.ConsensusGLM("poisson"), {"offset": [1, 2, np.nan, 1, 1, 1]}, r"offset\[2\] is nan; offsets are finite"),
        (aq.ConsensusGLM(), {"exposure": np.ones(6)}, "exposure is for families with a logarithmic link"),
        (aq.ConsensusGLM(l2=-1.0), {}, "l2 must be a finite number ≥ 0"),
        (aq.ConsensusGLM(site_intercepts="yes"), {}, "site_intercepts must be True or False"),
    ],
)
def test_what_cannot_be_used_is_a_sentence(model, options, sentence):
    with pytest.raises(aq.InputError, match=sentence):
        model.fit(X, Y, **options)


@pytest.mark.parametrize("name", ["gaussian", "logit", "poisson"])
def test_predictions_with_site_intercepts_are_those_of_indicator_columns(name):
    case = CASES[name]
    data = study(case, 4)
    X, names = data.X[:, :2] * [1e3, 1.0] + [50.0, 0.0], np.array(["north", "south", "east", "west"])[data.site % 4]
    o = np.linspace(-0.5, 0.5, len(names))
    model = aq.ConsensusGLM(case.loss, site_intercepts=True).fit(X, data.y, sites=names, offset=o)
    design = np.column_stack([(X - X.mean(0)) / X.std(0), *(names == label for label in np.unique(names))])
    known = sm.GLM(data.y, design, family=case.family, offset=o).fit(tol=1e-13, tol_criterion="params")
    np.testing.assert_allclose(model.predict(X, offset=o, sites=names), known.fittedvalues, rtol=1e-8)
    shift = X.mean(0) @ model.coef_
    assert list(model.site_intercepts_) == sorted(set(names))
    np.testing.assert_allclose(np.array(list(model.site_intercepts_.values())) + shift, known.params[2:], rtol=1e-8)
    plain = aq.ConsensusGLM(case.loss, site_intercepts=True).fit(X, data.y, sites=names)
    dummies = sm.GLM(data.y, design, family=case.family).fit(tol=1e-13, tol_criterion="params")
    explained = 1 - dummies.deviance / dummies.null_deviance
    assert plain.score(X, data.y, sites=names) == pytest.approx(explained, rel=1e-8)
    assert set(plain.site_scores(X, data.y, names)) == set(names)
    for model_of, sites, told in (
        (model, ["sea"] * 2, "Site 'sea' is none of the fit, 'east', 'north', 'south', 'west'"),
        (model, ["west"], "sites has 1 labels but X has 2 rows"),
        (aq.ConsensusGLM().fit(X, data.y), ["west"] * 2, "one intercept for all sites"),
    ):
        with pytest.raises(aq.InputError, match=told):
            model_of.predict(X[:2], sites=sites)


def test_a_site_without_events_has_no_finite_intercept():
    X, y, site = np.arange(8.0)[:, None], np.array([1, 0, 2, 1, 3, 0, 0, 0]), np.repeat(["a", "b"], [5, 3])
    model = aq.ConsensusGLM("poisson", site_intercepts=True).fit(X, y, sites=site)
    assert np.isnan(model.site_intercepts_["b"])
    assert np.isfinite(model.predict(X[:2], sites=["a", "a"])).all()
    with pytest.raises(aq.InputError, match="Site 'b' has no finite intercept"):
        model.predict(X[:2], sites=["a", "b"])
