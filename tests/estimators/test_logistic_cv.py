"""The choice of a logistic regression, against scikit-learn's."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
from sklearn.linear_model import LogisticRegressionCV
from sklearn.model_selection import KFold, StratifiedKFold

import auqadmm as aq
from tests.estimators.conftest import far, quietly, split

CS = [0.01, 0.3]


def made(data, name):
    X, y = data(name)
    return (X - X.mean(0)) / X.std(0), y


def reference(X, y, cv, weight=None, **options):
    settings = {"Cs": CS, "l1_ratios": (0.0,), "solver": "newton-cholesky", "tol": 1e-13, "max_iter": 10_000}
    model = LogisticRegressionCV(cv=cv, use_legacy_attributes=False, **{**settings, **options})
    return quietly(model, X, y, sample_weight=weight)


@pytest.mark.parametrize("name", ["breast cancer", "wine"])
@pytest.mark.parametrize("scoring", [None, "neg_log_loss"])
def test_strengths_of_l2(data, name, scoring):
    X, y = made(data, name)
    cv = list(StratifiedKFold(3, shuffle=True, random_state=0).split(X, y))
    best = reference(X, y, cv, scoring=scoring)
    model = aq.ConsensusLogisticRegressionCV(Cs=CS, cv=cv, scoring=scoring).fit(X, y, sites=split(y, "iid"))
    assert (model.C_, model.l1_ratio_) == (best.C_, 0.0)
    assert model.scores_.shape == best.scores_.shape
    np.testing.assert_allclose(model.scores_, best.scores_, rtol=1e-7)
    assert far(model.coefs_paths_, best.coefs_paths_) < 1e-6
    assert far(model.coef_, best.coef_) < 1e-6
    assert model.score(X, y) == pytest.approx(np.mean(model.predict(X) == y))


def test_weights_classes_and_no_intercept(data):
    X, y = made(data, "breast cancer")
    weight = np.random.default_rng(0).uniform(0.5, 2, len(y))
    cv = list(StratifiedKFold(3).split(X, y))
    shared = {"scoring": "neg_log_loss", "class_weight": "balanced", "fit_intercept": False}
    best = reference(X, y, cv, weight, **shared)
    model = aq.ConsensusLogisticRegressionCV(Cs=CS, cv=cv, n_blocks=3, **shared)
    model.fit(scipy.sparse.csr_array(X), np.array(["no", "yes"])[y], sample_weight=weight)
    assert model.C_ == best.C_
    np.testing.assert_allclose(model.scores_, best.scores_, rtol=1e-6)
    assert far(model.coef_, best.coef_) < 1e-6
    assert model.coefs_paths_.shape == (3, 1, 2, 1, 30)


def test_shares_of_l1(data):
    X, y = made(data, "breast cancer")
    X = X[:, :8]
    cv = list(StratifiedKFold(2).split(X, y))
    ratios, shared = (0.5, 1.0), {"scoring": "neg_log_loss"}
    best = reference(X, y, cv, l1_ratios=ratios, solver="saga", max_iter=50_000, **shared)
    model = aq.ConsensusLogisticRegressionCV(Cs=CS, l1_ratios=ratios, cv=cv, n_blocks=2, **shared).fit(X, y)
    assert (model.C_, model.l1_ratio_) == (best.C_, best.l1_ratio_)
    np.testing.assert_allclose(model.scores_, best.scores_, rtol=1e-6)
    assert far(model.coefs_paths_, best.coefs_paths_) < 1e-5
    assert model.l1_ratios_.tolist() == list(ratios)


def test_the_mean_of_the_best_of_all_folds(data):
    X, y = made(data, "breast cancer")
    cv = list(KFold(3, shuffle=True, random_state=0).split(X))
    best = reference(X, y, cv, refit=False, scoring="neg_log_loss")
    model = aq.ConsensusLogisticRegressionCV(Cs=CS, cv=cv, refit=False, scoring="neg_log_loss").fit(X, y)
    assert pytest.approx(best.C_) == model.C_
    assert far(model.coef_, best.coef_) < 1e-6
    np.testing.assert_allclose(model.intercept_, best.intercept_, atol=1e-6)


def test_every_class_of_every_site_is_in_every_fold(data):
    X, y = made(data, "wine")
    model = aq.ConsensusLogisticRegressionCV(Cs=[0.1], cv=3, tol=1e-8).fit(X, y, sites=y)
    assert model.scores_.shape == (3, 1, 1)
    assert model.scores_.min() > 0.9
    with pytest.raises(ValueError, match="cv leaves a fold without rows of the label 0 to fit"):
        aq.ConsensusLogisticRegressionCV(cv=[(np.flatnonzero(y > 0), [0])]).fit(X, y)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"Cs": []}, "Cs is empty: give at least one inverse strength"),
        ({"Cs": [0.0]}, "Cs must be a number > 0, got 0.0"),
        ({"l1_ratios": []}, "l1_ratios is empty: give at least one share"),
        ({"l1_ratios": [2.0]}, "l1_ratios must be a number between 0 and 1, got 2.0"),
        ({"refit": 3}, "refit must be True or False, got 3"),
    ],
)
def test_what_cannot_be_used_is_said_in_one_sentence(data, options, message):
    with pytest.raises(ValueError, match=message):
        aq.ConsensusLogisticRegressionCV(**options).fit(*data("wine"))
