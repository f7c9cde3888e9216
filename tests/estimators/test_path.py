"""Many strengths in one run, and the choice among them."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import ElasticNetCV
from sklearn.linear_model import enet_path as reference_path
from sklearn.model_selection import KFold, LeaveOneGroupOut

import auqadmm as aq
from auqadmm.estimators.elastic_net_cv import site_folds
from tests.estimators.conftest import far, split


@pytest.mark.parametrize("name", ["diabetes", "wine"])
@pytest.mark.parametrize("together", [100, 7, 1])
def test_a_path_is_that_of_scikit_learn(data, name, together):
    X, y = data(name)
    found = aq.enet_path(X, y, alphas=15, l1_ratio=0.7, sites=split(y, "iid"), together=together, method="auq-lr")
    centred = X - X.mean(0)
    alphas, coefs, _ = reference_path(centred, y - y.mean(), l1_ratio=0.7, alphas=15, tol=1e-13, max_iter=200_000)
    np.testing.assert_allclose(found.alphas, alphas)
    assert far(found.coef, coefs.T) < 1e-6
    np.testing.assert_allclose(X.mean(0) @ found.coef.T + found.intercept, y.mean())
    assert len(found.results) == -(-15 // together)
    np.testing.assert_allclose(found.coef[0], 0.0, atol=1e-7 * np.abs(coefs).max())


def test_together_takes_a_third_of_the_rounds_at_most(data):
    X, y = data("diabetes")
    sites = split(y, "by class")
    together = aq.enet_path(X, y, alphas=12, sites=sites, method="auq-lr")
    cold = [aq.enet_path(X, y, alphas=[a], sites=sites, method="auq-lr") for a in together.alphas]
    assert 3 * together.rounds <= sum(p.rounds for p in cold)
    assert far(together.coef, np.vstack([p.coef for p in cold])) < 1e-6


def test_given_strengths_are_sorted_and_nothing_else(data):
    X, y = data("diabetes")
    found = aq.enet_path(X, y, alphas=[0.1, 1.0, 0.01], fit_intercept=False)
    assert found.alphas.tolist() == [1.0, 0.1, 0.01]
    assert not found.intercept.any()
    alone = aq.ConsensusElasticNet(0.01, fit_intercept=False).fit(X, y)
    assert far(found.coef[2], alone.coef_) < 1e-6
    weighted = aq.enet_path(X, y, alphas=[0.1], sample_weight=np.full(len(y), 2.0), n_blocks=3)
    assert far(weighted.coef[0], aq.ConsensusElasticNet(0.1).fit(X, y).coef_) < 1e-6
    with pytest.warns(ConvergenceWarning):
        aq.enet_path(X, y, alphas=[0.01], n_blocks=4, max_iter=1, method="auq-lr")


def test_the_choice_is_that_of_scikit_learn(data):
    X, y = data("diabetes")
    folds = list(KFold(4, shuffle=True, random_state=0).split(X))
    ratios = [0.3, 1.0]
    reference = ElasticNetCV(l1_ratio=ratios, alphas=12, cv=folds, tol=1e-11, max_iter=100_000).fit(X, y)
    model = aq.ConsensusElasticNetCV(l1_ratio=ratios, alphas=12, cv=folds).fit(X, y, sites=split(y, "by class"))
    assert (model.alpha_, model.l1_ratio_) == (pytest.approx(reference.alpha_), reference.l1_ratio_)
    np.testing.assert_allclose(model.mse_path_, reference.mse_path_, rtol=1e-6)
    np.testing.assert_allclose(model.alphas_, reference.alphas_)
    assert far(model.coef_, reference.coef_) < 1e-5
    assert model.score(X, y) == pytest.approx(reference.score(X, y), abs=1e-6)
    assert model.n_rounds_ == 2


def test_every_site_is_in_every_fold():
    sizes = [20, 3, 1, 0, 7]
    fold = site_folds(sizes, 5)
    first = fold[:20]
    assert np.bincount(first, minlength=5).tolist() == [4] * 5
    assert (np.diff(first) >= 0).all()
    assert len(set(fold[20:23])) == 3
    assert np.bincount(fold[24:], minlength=5).min() >= 1
    assert set(site_folds([1] * 6, 3)) == {0, 1, 2}


def test_folds_by_number_and_by_site(data):
    X, y = data("diabetes")
    sites = split(y, "iid")
    model = aq.ConsensusElasticNetCV(alphas=4, cv=3).fit(X, y, sites=sites)
    assert model.mse_path_.shape == (4, 3)
    assert model.alphas_.shape == (4,)
    assert model.alpha_ == model.alphas_[model.mse_path_.mean(1).argmin()]
    left_out = aq.ConsensusElasticNetCV(alphas=4, cv=LeaveOneGroupOut()).fit(X, y, sites=sites)
    assert left_out.mse_path_.shape == (4, 4)
    lists = [X[sites == j] for j in range(4)], [y[sites == j] for j in range(4)]
    same = aq.ConsensusElasticNetCV(alphas=4, cv=LeaveOneGroupOut()).fit(*lists)
    np.testing.assert_allclose(same.mse_path_, left_out.mse_path_, rtol=1e-7)
    with pytest.raises(ValueError, match="cv leaves a fold without rows to fit or to score"):
        aq.ConsensusElasticNetCV(alphas=4, cv=[(np.arange(5), [])]).fit(X, y)
