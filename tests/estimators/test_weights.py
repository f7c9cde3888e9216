"""Weights of rows and classes, intercepts, warm starts, scales of features."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.utils.class_weight import compute_sample_weight

import auqadmm as aq
from tests.estimators.conftest import far, split

MODELS = [aq.ConsensusElasticNet(0.05), aq.ConsensusLogisticRegression(0.1), aq.ConsensusLinearSVC(0.1)]
each_model = pytest.mark.parametrize("model", MODELS, ids=lambda m: type(m).__name__)


@pytest.fixture
def wine(data):
    X, y = data("wine")
    return X[::2], y[::2]


@each_model
def test_a_weight_is_as_many_rows(model, wine, rng):
    X, y = wine
    sites, weight = split(y, "iid"), rng.integers(0, 4, len(y))
    weighted = model.fit(X, y, sites=sites, sample_weight=weight).coef_
    repeated = model.fit(X.repeat(weight, 0), y.repeat(weight), sites=sites.repeat(weight)).coef_
    assert far(weighted, repeated) < 1e-6


@each_model
def test_one_weight_for_all_is_none_where_strengths_are_per_row(model, wine):
    X, y = wine
    plain = model.fit(X, y).coef_
    if isinstance(model, aq.ConsensusElasticNet):
        assert far(model.fit(X, y, sample_weight=3.0).coef_, plain) < 1e-6
    else:  # C multiplies the sum over rows
        other = type(model)(C=0.1 / 3).fit(X, y, sample_weight=3.0).coef_
        assert far(other, plain) < 1e-6


@pytest.mark.parametrize("kind", [aq.ConsensusLogisticRegression, aq.ConsensusLinearSVC])
def test_class_weights_are_sample_weights(wine, kind):
    X, y = wine
    for class_weight in ("balanced", {0: 3.0, 2: 0.5}):
        by_class = kind(0.1, class_weight=class_weight, n_blocks=3).fit(X, y).coef_
        by_row = kind(0.1, n_blocks=3).fit(X, y, sample_weight=compute_sample_weight(class_weight, y)).coef_
        assert far(by_class, by_row) < 1e-6


def test_balanced_classes_are_those_of_scikit_learn(data):
    X, y = data("breast cancer")
    X = (X - X.mean(0)) / X.std(0)
    reference = LogisticRegression(class_weight="balanced", solver="newton-cholesky", tol=1e-12).fit(X, y)
    model = aq.ConsensusLogisticRegression(class_weight="balanced").fit(X, y, sites=split(y, "by class"))
    assert far(model.coef_, reference.coef_) < 1e-5


def test_a_class_without_weight_is_never_predicted(wine):
    X, y = wine
    weight = (y != 1).astype(float)
    model = aq.ConsensusLinearSVC(0.1).fit(X, y, sample_weight=weight)
    assert model.classes_.tolist() == [0, 1, 2]
    assert model.coef_.shape == (3, X.shape[1])
    assert set(model.predict(X)) == {0, 2}


@each_model
def test_the_intercept_is_not_penalised(model, wine):
    X, y = wine
    plain = model.fit(X, y)
    coef, logits = plain.coef_, X @ np.atleast_2d(plain.coef_).T + plain.intercept_
    moved = model.fit(X + 100.0, y)
    assert far(moved.coef_, coef) < 1e-5
    np.testing.assert_allclose((X + 100.0) @ np.atleast_2d(moved.coef_).T + moved.intercept_, logits, atol=1e-4)
    without = model.set_params(fit_intercept=False).fit(X, y)
    assert np.all(without.intercept_ == 0)
    model.set_params(fit_intercept=True)


@each_model
def test_constant_and_tiny_and_huge_columns(model, wine):
    X, y = wine
    odd = np.hstack([X, np.full((len(y), 1), 1e9), np.zeros((len(y), 1)), X[:, :1] * 1e9])
    model = clone(model).set_params(tol=1e-14).fit(odd, y, sites=np.arange(len(y)) % 3)
    assert model.status_ == "converged"
    assert np.all(np.abs(np.atleast_2d(model.coef_)[:, [13, 14]]) < 1e-12)


@each_model
def test_a_warm_start_at_the_solution_ends_at_once(model, wine):
    X, y = wine
    sites = split(y, "iid")
    model = clone(model).set_params(warm_start=True)  # other tests have fitted the original
    if isinstance(model, aq.ConsensusElasticNet):  # which "auto" does not iterate
        model.set_params(method="auq-lr")
    model.fit(X, y, sites=sites)
    cold, coef = np.max(model.n_iter_), model.coef_
    model.fit(X, y, sites=sites)
    assert np.max(model.n_iter_) <= 2 < cold
    assert far(model.coef_, coef) < 1e-6
    model.fit(X, y, sites=1 - sites)  # other blocks: the model still serves
    assert np.max(model.n_iter_) <= 2
    model.fit(X[:, :5], y)  # another shape: a cold start
    assert model.coef_.shape[-1] == 5


def test_a_warm_start_near_the_solution_helps(data):
    X, y = data("breast cancer")
    sites = split(y, "iid")
    cold = aq.ConsensusLogisticRegression(1.02).fit(X, y, sites=sites)
    model = aq.ConsensusLogisticRegression(1.0, warm_start=True).fit(X, y, sites=sites)
    model.set_params(C=1.02).fit(X, y, sites=sites)
    assert far(model.coef_, cold.coef_) < 1e-6
    assert model.n_iter_ < cold.n_iter_
