"""ConsensusGLM against statsmodels, and what it refuses."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import scipy.sparse

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
    with pytest.raises(aq.InputError, match="known at the sites alone"):
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
