"""What has no figure, and what is refused; estimators; what it costs."""

from __future__ import annotations

import pickle

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from sklearn import metrics
from sklearn.datasets import load_breast_cancer, load_iris

import auqadmm as aq


def two_sites(seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(120, 2))
    y = np.where(rng.random(120) < 1 / (1 + np.exp(-X[:, 0])), "sick", "well")
    return X, y


def test_a_site_of_one_class_has_no_auc_and_it_is_said():
    X, y = two_sites()
    one = y == "sick"
    blocks = [(X, y), (X[one], y[one]), (X[:0], y[:0])]
    found = aq.solve(aq.Problem(aq.Logistic(), aq.L2(1.0), blocks, intercept=True)).quality()
    assert [site["auc"] is None for site in found.site_figures] == [False, True, True]
    assert found.site_figures[1]["deviance_explained"] is None
    assert found.notes == ("No AUC of its own, for want of rows of both classes: 'block 1'.",)
    assert "–" in found.summary()
    assert np.isnan(found.sites.loc["block 1", "auc"])


def test_separated_classes_have_no_slope():
    X = np.arange(20.0)[:, None]
    y = (X[:, 0] > 9).astype(int)
    found = aq.solve(aq.Problem(aq.Logistic(), aq.L2(1.0), [(X[::2], y[::2]), (X[1::2], y[1::2])], intercept=True))
    figures = found.quality().figures
    assert (figures["auc"], figures["calibration_slope"]) == (1.0, None)


def test_constant_scores():
    X, y = two_sites()
    problem = aq.Problem(aq.Logistic(), aq.L1(1e4), [(X[:50], y[:50]), (X[50:], y[50:])], intercept=True)
    figures = aq.solve(problem).quality().figures
    assert figures["auc"] == 0.5
    assert figures["calibration_slope"] is None
    assert figures["deviance_explained"] == pytest.approx(0.0, abs=1e-8)


def test_sites_whose_own_intercept_is_infinite_are_not_counted():
    X, y = two_sites()
    one = y == "sick"
    problem = aq.Problem(aq.Logistic(), aq.L2(1.0), [(X, y), (X[one], y[one])], site_intercepts=True)
    found = aq.solve(problem).quality()
    alone = aq.solve(aq.Problem(aq.Logistic(), aq.L2(1.0), [(X, y)], site_intercepts=True)).quality()
    assert found.figures == pytest.approx(alone.figures, rel=1e-6)
    assert found.rows == 120
    assert found.notes[0].startswith("Not counted: 'block 1'")


def test_weights_of_means_are_refused_and_losses_that_are_not_of_rows():
    X, y = two_sites()
    w = np.ones(120)
    problem = aq.Problem(aq.Logistic(reduction="mean"), aq.L2(1.0), [(X, y, w)])
    with pytest.raises(aq.InputError, match="reduction='mean' divides"):
        aq.solve(problem).quality()

    own = aq.Problem(aq.CustomLoss(lambda u, X, y: (X @ u - y).square().sum()), aq.L2(1.0), [(X, X[:, 0])])
    with pytest.raises(aq.InputError, match="quality needs a loss of rows, and CustomLoss is none"):
        aq.solve(own).quality()


def test_a_result_that_was_loaded():
    X, y = two_sites()
    problem = aq.Problem(aq.Logistic(), aq.L2(1.0), [(X, y)], intercept=True)
    result = pickle.loads(pickle.dumps(aq.solve(problem)))
    with pytest.raises(aq.InputError, match="Solve with quality=True"):
        result.quality()
    asked = aq.solve(problem, quality=True)
    assert pickle.loads(pickle.dumps(asked)).quality().figures == asked.quality().figures
    plain = aq.solve(problem)
    assert asked.quality().figures == plain.quality().figures
    more = asked.history[-1].rounds - plain.history[-1].rounds
    assert more == asked.quality().rounds


def test_what_it_takes():
    X, y = two_sites()
    blocks = [(X[:50], y[:50]), (X[50:], y[50:])]
    own = aq.solve(aq.Problem(aq.Logistic(), aq.Zero(), blocks, intercept=True), certificate_tol=1e-20)
    assert own.quality().rounds == 2  # the model is its own calibration
    assert own.quality(sites=False).numbers < 3 * 4096 + 40
    assert own.quality(sites=False).site_figures == ()


def test_everything_as_plain_values():
    X, y = two_sites()
    found = aq.solve(aq.Problem(aq.Logistic(), aq.L2(1.0), [(X, y)], intercept=True)).quality()
    told = found.to_dict()
    assert told["figures"]["auc"] == found.figures["auc"]
    assert len(told["calibration"]["predicted"]) == 10
    assert told["sites"][0]["name"] == "block 0"


# ---------------------------------------------------------------------- estimators
def test_estimators_of_classes():
    X, y = load_breast_cancer(return_X_y=True)
    X, label, site = (X - X.mean(0)) / X.std(0), np.array(["bad", "good"])[y], np.arange(len(y)) % 3
    for model in (aq.ConsensusLogisticRegression(C=0.1), aq.ConsensusLinearSVC(C=0.01)):
        model.fit(X, label, sites=site)
        found = model.quality(X, label, sites=site)
        assert found.figures["accuracy"] == pytest.approx(model.score(X, label))
        assert found.figures["auc"] == pytest.approx(metrics.roc_auc_score(y, model.decision_function(X)), abs=1e-4)
        assert found.site_names == ("0", "1", "2")
        assert model.quality(X[:20], label[:20]).rows == 20
        with pytest.raises(aq.InputError, match=r"y\[0\] is .*'odd'.*does not know"):
            model.quality(X[:1], ["odd"])
        only = model.quality(X[y == 1], label[y == 1])
        assert only.figures["auc"] is None
    X, y = load_iris(return_X_y=True)
    for model in (aq.ConsensusLogisticRegression(), aq.ConsensusLinearSVC()):
        model.fit(X, y)
        assert model.quality(X, y).figures["accuracy"] == pytest.approx(model.score(X, y))


def test_estimators_of_numbers_and_ways_to_give_rows():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(90, 3))
    y, w, site = X @ [1.0, 0.0, -1.0] + rng.normal(size=90), rng.uniform(1, 2, size=90), np.repeat([0, 1, 2], 30)
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    for model in (aq.ConsensusRidge(), aq.ConsensusLasso(alpha=0.1)):
        model.fit(frame, y, sites=site, sample_weight=w)
        found = model.quality(frame, y, sites=site, sample_weight=w)
        assert found.figures["r2"] == pytest.approx(model.score(frame, y, sample_weight=w), rel=1e-10)
        parts = [frame[site == j] for j in range(3)]
        listed = model.quality(parts, [y[site == j] for j in range(3)], sample_weight=[w[site == j] for j in range(3)])
        assert listed.figures == found.figures
        assert listed.site_figures == found.site_figures
    model.fit(X, y)
    sparse = model.quality(scipy.sparse.csr_matrix(X), y)
    assert sparse.figures == pytest.approx(model.quality(X, y).figures)
    with pytest.raises(aq.InputError, match="X has 90 rows but y has 3 values"):
        model.quality(X, y[:3])
    with pytest.raises(aq.InputError, match="must be lists too"):
        model.quality([X], y)


def test_a_glm_with_exposure_and_site_intercepts():
    rng = np.random.default_rng(0)
    X, days, site = rng.normal(size=(300, 2)), rng.uniform(1, 9, size=300), np.arange(300) % 3
    y = rng.poisson(days * np.exp(0.5 * X[:, 0] - 1 + 0.3 * site))
    for own in (False, True):
        model = aq.ConsensusGLM("poisson", site_intercepts=own).fit(X, y, sites=site, exposure=days)
        found = model.quality(X, y, sites=site, exposure=days)
        assert found.figures["deviance_explained"] == pytest.approx(model.inference_.pseudo_r2, rel=1e-9)
        assert found.figures["observed_expected"] == pytest.approx(1.0, rel=1e-9)
    with pytest.raises(aq.InputError, match="exposure is for families with a logarithmic link"):
        aq.ConsensusGLM().fit(X, y).quality(X, y, exposure=days)
