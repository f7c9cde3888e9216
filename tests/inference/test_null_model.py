"""The null model: over the rows that the deviance counts, and searched once."""

import numpy as np
import pytest
import statsmodels.api as sm

import auqadmm as aq


@pytest.mark.parametrize("family", ["binomial", "poisson"])
def test_sites_that_leave_no_finite_intercept_are_in_neither_deviance(family):
    """A site whose outcomes are all alike has no part in the fit: statsmodels with one column per other site."""
    rng = np.random.default_rng(3)
    X, site, offset = rng.normal(size=(160, 2)), np.repeat(np.arange(4), 40), rng.normal(size=160) / 3
    mean = 0.4 * X[:, 0] + offset + 0.2 * site
    y = (
        rng.poisson(np.exp(mean))
        if family == "poisson"
        else (rng.uniform(size=160) < 1 / (1 + np.exp(-mean))).astype(int)
    )
    y[site == 2] = 0
    found = aq.ConsensusGLM(family, site_intercepts=True).fit(X, y, sites=site, offset=offset).inference_
    some = site != 2
    wide = np.column_stack([X, *(site == k for k in (0, 1, 3))]).astype(float)
    kind = sm.families.Poisson() if family == "poisson" else sm.families.Binomial()
    known = sm.GLM(y[some], wide[some], kind, offset=offset[some]).fit(tol=1e-14)
    null = sm.GLM(y[some], np.ones((some.sum(), 1)), kind, offset=offset[some]).fit(tol=1e-14)
    np.testing.assert_allclose(found.coef, known.params[:2], rtol=1e-8)
    assert found.deviance == pytest.approx(known.deviance, rel=1e-9)
    assert found.null_deviance == pytest.approx(null.deviance, rel=1e-9)


def test_the_search_for_k_asks_for_the_null_model_once(monkeypatch):
    rng = np.random.default_rng(8)
    X, offset = rng.normal(size=(300, 2)), rng.uniform(0, 1, size=300)
    y = rng.negative_binomial(2.0, 2.0 / (2.0 + np.exp(0.5 * X[:, 0] + offset)))
    from auqadmm.inference import statistics

    asked, plain = [], statistics.null_loss
    monkeypatch.setattr(statistics, "null_loss", lambda *given: asked.append(1) or plain(*given))
    model = aq.ConsensusGLM("negative-binomial").fit(X, y, sites=np.arange(300) % 3, offset=offset)
    assert len(asked) == 1
    family = sm.families.NegativeBinomial(alpha=1 / model.k_)
    known = sm.GLM(y, sm.add_constant(X, prepend=False), family, offset=offset).fit(tol=1e-14)
    null = sm.GLM(y, np.ones((300, 1)), family, offset=offset).fit(tol=1e-14)
    assert model.inference_.null_deviance == pytest.approx(null.deviance, rel=1e-9)
    np.testing.assert_allclose(model.coef_, known.params[:2], rtol=1e-8)  # statsmodels steps by expected information
