"""The same model as scikit-learn (for the smoothed hinge: as scipy), for any split of the rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from sklearn.linear_model import ElasticNet, LogisticRegression

import auqadmm as aq
from tests.estimators.conftest import LOADERS, far, quietly, smooth_hinge, split

SPLITS = ("iid", "by class", "uneven")


@pytest.mark.parametrize("name", LOADERS)
@pytest.mark.parametrize(("alpha", "l1_ratio"), [(1.0, 0.5), (0.01, 0.5), (0.01, 1.0), (0.1, 0.0)])
def test_elastic_net(data, name, alpha, l1_ratio):
    X, y = data(name)
    reference = quietly(ElasticNet(alpha=alpha, l1_ratio=l1_ratio, tol=1e-12, max_iter=500_000), X, y)
    for how in SPLITS:
        model = aq.ConsensusElasticNet(alpha, l1_ratio=l1_ratio).fit(X, y, sites=split(y, how))
        assert model.status_ == "converged"
        assert far(model.coef_, reference.coef_) < 1e-5, how
        np.testing.assert_allclose(model.predict(X), reference.predict(X), atol=1e-5 * np.abs(y).max())


@pytest.mark.parametrize("name", ["breast cancer", "wine"])
@pytest.mark.parametrize("how", SPLITS)
def test_logistic_regression_on_features_as_they_come(data, name, how):
    X, y = data(name)
    reference = quietly(LogisticRegression(C=1.0, solver="newton-cholesky", tol=1e-13, max_iter=1000), X, y)
    model = aq.ConsensusLogisticRegression().fit(X, y, sites=split(y, how))
    assert model.status_ == "converged"
    assert model.coef_.shape == reference.coef_.shape
    assert model.intercept_.shape == reference.intercept_.shape
    assert far(model.coef_, reference.coef_) < 1e-5
    np.testing.assert_allclose(model.predict_proba(X), reference.predict_proba(X), atol=1e-6)
    np.testing.assert_allclose(model.predict_log_proba(X), np.log(model.predict_proba(X)))
    np.testing.assert_array_equal(model.predict(X), reference.predict(X))
    np.testing.assert_allclose(model.decision_function(X), reference.decision_function(X), rtol=1e-4, atol=1e-4)


def test_ten_digits_one_per_site(data):
    X, y = data("digits")
    reference = quietly(LogisticRegression(C=0.1, solver="newton-cholesky", tol=1e-13, max_iter=1000), X / 16, y)
    model = aq.ConsensusLogisticRegression(C=0.1).fit(X / 16, y, sites=y)
    assert model.status_ == "converged"
    assert far(model.coef_, reference.coef_) < 1e-5
    assert far(model.intercept_, reference.intercept_) < 1e-5


@pytest.mark.parametrize("l1_ratio", [1.0, 0.5])
def test_logistic_regression_with_l1(data, l1_ratio):
    X, y = data("breast cancer")
    X = (X - X.mean(0)) / X.std(0)
    reference = LogisticRegression(C=0.1, l1_ratio=l1_ratio, solver="saga", tol=1e-9, max_iter=100_000)
    quietly(reference, X, y)
    model = aq.ConsensusLogisticRegression(C=0.1, l1_ratio=l1_ratio).fit(X, y, sites=split(y, "iid"))
    assert far(model.coef_, reference.coef_) < 1e-5
    assert (model.coef_ == 0).sum() == (reference.coef_ == 0).sum() > 0


def test_multinomial_elastic_net(data):
    X, y = data("wine")
    X = (X - X.mean(0)) / X.std(0)
    reference = LogisticRegression(C=0.5, l1_ratio=0.5, solver="saga", tol=1e-9, max_iter=100_000)
    quietly(reference, X, y)
    model = aq.ConsensusLogisticRegression(C=0.5, l1_ratio=0.5).fit(X, y, sites=split(y, "uneven"))
    assert far(model.coef_, reference.coef_) < 1e-5


def test_no_penalty(data):
    X, y = data("diabetes")
    A = np.hstack([X, np.ones((len(y), 1))])
    exact = np.linalg.lstsq(A, y)[0]
    model = aq.ConsensusElasticNet(alpha=0.0).fit(X, y, sites=split(y, "iid"))
    assert far(np.append(model.coef_, model.intercept_), exact) < 1e-5
    hard = (y > np.median(y)).astype(int)
    reference = LogisticRegression(C=np.inf, solver="newton-cholesky", tol=1e-13, max_iter=1000).fit(X, hard)
    free = aq.ConsensusLogisticRegression(C=np.inf, max_iter=1000).fit(X, hard, sites=split(y, "iid"))
    assert far(free.coef_, reference.coef_) < 1e-5


@pytest.mark.parametrize("how", SPLITS)
def test_smoothed_hinge_of_two_classes(data, how):
    X, y = data("breast cancer")
    exact = smooth_hinge(X, 2.0 * y - 1, C=1.0, eps=0.1)
    model = aq.ConsensusLinearSVC().fit(X, y, sites=split(y, how))
    assert model.status_ == "converged"
    assert far(np.append(model.coef_, model.intercept_), exact) < 1e-5


def test_smoothed_hinge_one_against_the_rest(data):
    X, y = data("wine")
    model = aq.ConsensusLinearSVC(C=0.5, smoothing=0.05).fit(X, y, sites=y)
    assert model.coef_.shape == (3, 13)
    assert len(model.n_iter_) == len(model.history_) == len(model.certificate_) == 3
    for k in range(3):
        exact = smooth_hinge(X, np.where(y == k, 1.0, -1.0), C=0.5, eps=0.05)
        assert far(np.append(model.coef_[k], model.intercept_[k]), exact) < 1e-5
    assert model.score(X, y) > 0.95


@given(
    sites=st.lists(st.integers(0, 6), min_size=60, max_size=60),
    empty=st.lists(st.integers(0, 7), max_size=3),
    intercept=st.booleans(),
)
@settings(max_examples=8, phases=[Phase.explicit, Phase.generate])  # sixty numbers shrink for minutes
def test_any_split_gives_the_same_model(sites, empty, intercept):
    X, y = LOADERS["wine"](return_X_y=True)
    rows = np.arange(0, 178, 3)
    X, y, sites = X[rows], y[rows], np.array(sites)
    Xs, ys = [X[sites == j] for j in range(7)], [y[sites == j] for j in range(7)]
    for place in empty:
        Xs.insert(place, X[:0])
        ys.insert(place, y[:0])
    net = aq.ConsensusElasticNet(0.05, fit_intercept=intercept)
    whole = net.fit(X, y).coef_
    assert far(net.fit(Xs, ys).coef_, whole) < 1e-5
    logistic = aq.ConsensusLogisticRegression(C=0.1, fit_intercept=intercept)
    whole = logistic.fit(X, y).coef_
    assert far(logistic.fit(Xs, ys).coef_, whole) < 1e-5
    assert logistic.status_ == "converged"


@pytest.mark.parametrize("method", ["lbfgs", "owl-qn", "fista", "auq-lr"])
def test_any_method(data, method):
    X, y = data("diabetes")
    X = X / X.std(0)
    l1_ratio = 0.0 if method == "lbfgs" else 0.5
    reference = ElasticNet(alpha=1.0, l1_ratio=l1_ratio, tol=1e-12, max_iter=100_000)
    quietly(reference, X, y)
    model = aq.ConsensusElasticNet(1.0, l1_ratio=l1_ratio, method=method, n_blocks=3, max_iter=2000).fit(X, y)
    assert far(model.coef_, reference.coef_) < 1e-5
