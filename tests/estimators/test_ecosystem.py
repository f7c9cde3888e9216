"""In the company of scikit-learn: pipelines, searches, routing, copies; and what a fit tells."""

from __future__ import annotations

import pickle
import subprocess
import sys

import joblib
import numpy as np
import pandas as pd
import pytest
import sklearn
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import auqadmm as aq
from tests.estimators.conftest import far, split


@pytest.fixture
def wine(data):
    return data("wine")


def test_pipeline_and_search(wine):
    X, y = wine
    frame = pd.DataFrame(X, columns=[f"feature {k}" for k in range(13)])
    pipe = make_pipeline(StandardScaler(), aq.ConsensusLogisticRegression(n_blocks=3)).set_output(transform="pandas")
    search = GridSearchCV(pipe, {"consensuslogisticregression__C": [0.01, 1.0]}, cv=3).fit(frame, y)
    assert search.best_score_ > 0.95
    assert search.best_estimator_[-1].feature_names_in_.tolist() == frame.columns.tolist()
    assert cross_val_score(aq.ConsensusElasticNet(0.01, n_blocks=2), X, y, cv=3).shape == (3,)


def test_sites_are_routed_through_a_search(wine):
    X, y = wine
    sites = np.array(["north", "south", "west"])[np.arange(len(y)) % 3]
    seen = []

    class Watching(aq.ConsensusLogisticRegression):
        def fit(self, X, y, sites=None, sample_weight=None):
            seen.append((None if sites is None else len(sites), len(y)))
            return super().fit(X, y, sites=sites, sample_weight=sample_weight)

    with sklearn.config_context(enable_metadata_routing=True):
        model = Watching(0.1).set_fit_request(sites=True, sample_weight=True).set_score_request(sample_weight=True)
        pipe = make_pipeline(StandardScaler().set_fit_request(sample_weight=False), model)
        GridSearchCV(pipe, {"watching__C": [0.1, 1.0]}, cv=KFold(2, shuffle=True, random_state=0)).fit(
            X, y, sites=sites, sample_weight=np.ones(len(y))
        )
    assert len(seen) == 5
    assert all(held == rows for held, rows in seen)


@pytest.mark.parametrize(
    "model",
    [aq.ConsensusElasticNet(0.1), aq.ConsensusLogisticRegression(), aq.ConsensusLinearSVC()],
    ids=lambda m: type(m).__name__,
)
def test_copies(model, wine, tmp_path):
    X, y = wine
    X = (X - X.mean(0)) / X.std(0)
    model = clone(model).fit(X, y, sites=y)
    assert not hasattr(clone(model), "coef_")
    for copy in (pickle.loads(pickle.dumps(model)), joblib.load(joblib.dump(model, tmp_path / "model")[0])):
        np.testing.assert_array_equal(copy.predict(X), model.predict(X))
        assert copy.status_ == model.status_ == "converged"
        assert np.size(copy.n_iter_) == (1 if not isinstance(copy.history_, list) else len(copy.history_))
    again = clone(model).fit(X, y, sites=y)
    np.testing.assert_array_equal(again.coef_, model.coef_)


def test_what_a_fit_tells(data):
    X, y = data("breast cancer")
    model = aq.ConsensusLogisticRegression().fit(X, y, sites=split(y, "iid"))
    assert model.status_ == "converged"
    assert model.message_.startswith("Converged: within ")
    assert model.certificate_.passes(model.tol)
    assert model.certificate_.kkt <= 1e-8
    assert len(model.history_) == model.n_iter_
    assert model.history_[-1].rounds >= model.n_iter_
    z = model.decision_function(X)
    value = np.logaddexp(0, -(2 * y - 1) * z).mean() + 0.5 * (model.coef_**2).sum() / len(y)
    assert model.certificate_.objective == pytest.approx(value, rel=1e-9)


def test_a_fit_that_ran_out_of_iterations_says_so(data):
    X, y = data("breast cancer")
    model = aq.ConsensusLogisticRegression(max_iter=2)
    with pytest.warns(
        ConvergenceWarning, match="LogisticRegression: Not converged: stopped at the limit of 2 iterations"
    ):
        model.fit(X, y, sites=split(y, "iid"))
    assert model.status_ == "max_iter"
    assert model.n_iter_ == 2
    with pytest.warns(ConvergenceWarning, match="ConsensusElasticNet: Not converged"):
        aq.ConsensusElasticNet(0.01, max_iter=1, method="auq-lr").fit(X, y, sites=split(y, "iid"))


@pytest.mark.parametrize("method", ["auto", "auq-lr"])
def test_verbose_writes_lines_to_standard_error(data, capsys, method):
    X, y = data("diabetes")
    model = aq.ConsensusElasticNet(0.01, verbose=1, method=method).fit(X, y, sites=split(y, "iid"))
    shown = capsys.readouterr()
    assert shown.out == ""
    assert len(shown.err.splitlines()) == model.n_iter_
    assert ", gap " in shown.err
    model.set_params(verbose=0).fit(X, y)
    assert capsys.readouterr().err == ""


def test_predictions_before_a_fit(wine):
    for name in ("ConsensusElasticNet", "ConsensusLogisticRegression", "ConsensusLinearSVC", "ConsensusElasticNetCV"):
        with pytest.raises(NotFittedError):
            getattr(aq, name)().predict(wine[0])


def test_single_precision_is_enough_to_hand_over(wine):
    X, y = wine
    model = aq.ConsensusLogisticRegression(0.1)
    exact = model.fit(X.astype(np.float32).astype(np.float64), y).coef_
    assert far(model.fit(X.astype(np.float32), y).coef_, exact) < 1e-6


def test_names_are_there_without_importing_scikit_learn():
    code = (
        "import sys, auqadmm as aq; assert 'sklearn' not in sys.modules; assert 'ConsensusElasticNet' in dir(aq);"
        "aq.ConsensusElasticNet; assert 'sklearn' in sys.modules; assert not hasattr(aq, 'ConsensusNothing')"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_reasons_name_the_columns_of_a_data_frame(rng):
    X = pd.DataFrame(rng.normal(size=(60, 3)), columns=["age", "dose", "weight"])
    X["grams"] = 2 * X["dose"]
    y = X["age"] + X["dose"] + rng.normal(size=60)
    with pytest.warns(ConvergenceWarning, match="Column 'dose' and column 'grams' are collinear to rounding"):
        aq.ConsensusElasticNet(0.0, max_iter=20).fit(X, y, sites=y > 0)
    with pytest.warns(ConvergenceWarning, match="Column 1 and column 3 are collinear to rounding"):
        aq.ConsensusElasticNet(0.0, max_iter=20).fit(X.to_numpy(), y)
