"""From one look at the data: paths, cross-validations and single fits of squares, against scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import ElasticNet, ElasticNetCV, Lasso, LassoCV, Ridge, RidgeCV
from sklearn.linear_model import enet_path as reference_path
from sklearn.model_selection import GridSearchCV, KFold, LeaveOneOut, RepeatedKFold, ShuffleSplit

import auqadmm as aq
from auqadmm.estimators import squares
from auqadmm.estimators.moments import Moments
from auqadmm.estimators.quadratic import Quadratics
from tests.estimators.conftest import far, quietly, split

TIGHT = {"tol": 1e-14, "max_iter": 1_000_000}


def made(kind: str, seed: int = 0):
    """X and y of a kind: "plain", "raw" (means 300, scales 1e-3 … 1e3), "wide" (more columns than rows), "sparse"."""
    rng = np.random.default_rng(seed)
    n, m = (40, 90) if kind == "wide" else (150, 12)
    X = rng.normal(size=(n, m)) + 0.5 * rng.normal(size=(n, 1))
    if kind == "sparse":
        X = X * (rng.random((n, m)) < 0.2)
        X[:, 0] = 300 + rng.normal(size=n)  # a column without zeros, far from zero
    y = X[:, :5] @ rng.normal(size=5) + 0.5 * rng.normal(size=n) + 7
    if kind == "raw":
        X = X * np.geomspace(1e-3, 1e3, m) + 300
    return X, y


KINDS = ["plain", "raw", "wide", "sparse"]


def handed(X, kind):
    return scipy.sparse.csr_array(X) if kind == "sparse" else X


# ---------------------------------------------------------------------- one model
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("intercept", [True, False])
def test_single_fits(kind, weighted, intercept):
    X, y = made(kind)
    weight = np.random.default_rng(1).integers(0, 4, len(y)).astype(float) if weighted else None
    for ours, theirs in (
        (aq.ConsensusElasticNet(0.1, l1_ratio=0.7), ElasticNet(0.1, l1_ratio=0.7, **TIGHT)),
        (aq.ConsensusLasso(0.1), Lasso(0.1, **TIGHT)),
        (aq.ConsensusRidge(2.0), Ridge(2.0, solver="svd" if kind != "sparse" else "auto", tol=1e-14)),
    ):
        model = ours.set_params(n_blocks=3, fit_intercept=intercept).fit(handed(X, kind), y, sample_weight=weight)
        reference = quietly(theirs.set_params(fit_intercept=intercept), X, y, sample_weight=weight)
        assert objective(model, X, y, weight) <= (1 + 1e-13) * objective(model, X, y, weight, reference)
        if intercept or kind != "raw":  # columns far from zero are all alike without an intercept
            assert far(model.coef_ * X.std(0), reference.coef_ * X.std(0)) < 1e-7
        assert model.status_ in ("converged", "rounding")
        assert model.history_[-1].rounds == 1 + intercept
        assert model.n_iter_ == 1


def objective(model, X, y, weight, at=None):
    """F of one of our models, or of another one's coefficients."""
    weight = np.ones(len(y)) if weight is None else weight
    at = model if at is None else at
    ratio = getattr(model, "l1_ratio", 0.0)
    alpha = model.alpha / weight.sum() if isinstance(model, aq.ConsensusRidge) else model.alpha
    loss = 0.5 * np.average((X @ at.coef_ + at.intercept_ - y) ** 2, weights=weight)
    return loss + alpha * (ratio * np.abs(at.coef_).sum() + 0.5 * (1 - ratio) * (at.coef_**2).sum())


def test_a_certificate_from_sums_tells_the_objective_and_the_gap():
    X, y = made("plain")
    model = aq.ConsensusElasticNet(0.1, n_blocks=3).fit(X, y)
    residual = model.predict(X) - y
    value = 0.5 * np.mean(residual**2) + 0.05 * np.abs(model.coef_).sum() + 0.025 * np.sum(model.coef_**2)
    assert model.certificate_.objective == pytest.approx(value, rel=1e-12)
    assert model.certificate_.evidence == "proved"
    assert model.certificate_.relative < 1e-25
    assert model.message_.startswith("Converged: within ")
    # away from the optimum the bound must hold: F* is known by now
    moments = sums(X, y)
    for step in (1e-3, 1e-6):
        moved = model.coef_ + step * np.random.default_rng(0).normal(size=len(model.coef_))
        found = squares.certified(moments, moved[None], np.array([0.05]), np.array([0.05]))
        assert found.objective - value <= found.gap_bound <= 1e3 * (found.objective - value)
        assert found.objective - value <= found.duality_gap


def sums(X, y):
    """Moments of all rows, by numpy."""
    centred, target = X - X.mean(0), y - y.mean()
    parts = [float(len(y))], X.mean(0)[None], [y.mean()], (centred.T @ centred)[None], (centred.T @ target)[None]
    return Moments(*map(np.array, (*parts, [target @ target])))


def test_collinear_columns_and_no_penalty_go_another_way():
    X, y = made("plain")
    twice = np.hstack([X, X[:, :2]])
    lasso = aq.ConsensusLasso(0.05, n_blocks=2).fit(twice, y)
    assert lasso.status_ in ("converged", "rounding")
    reference = quietly(Lasso(0.05, **TIGHT), X, y)
    np.testing.assert_allclose(lasso.predict(twice), reference.predict(X), rtol=1e-8)
    with pytest.warns(UserWarning, match="collinear"):
        aq.ConsensusElasticNet(0.0, max_iter=20).fit(twice, y)


@pytest.mark.campaign  # half a minute of line searches
def test_numbers_whose_squares_overflow_go_another_way():
    X, y = made("plain")
    X[:, 0] *= 1e200
    with pytest.warns(ConvergenceWarning, match="Rescale"):
        aq.ConsensusElasticNet(0.1, n_blocks=2).fit(X, y)


def test_numbers_whose_squares_overflow_cannot_be_chosen_by():
    X, y = made("plain")
    X[:, 0] *= 1e200
    with pytest.raises(ValueError, match="Squares of X or y exceed the range of double precision"):
        aq.ConsensusRidgeCV().fit(X, y)


# ---------------------------------------------------------------------- the solver at the server
@pytest.mark.parametrize("shape", [(100, 20), (30, 60), (300, 200)])
@pytest.mark.parametrize("ratio", [0.3, 1.0])
def test_all_optimality_conditions_hold_along_a_path(shape, ratio):
    rng = np.random.default_rng(0)
    X = rng.normal(size=shape) @ (np.eye(shape[1]) + 0.3 * rng.normal(size=(shape[1], shape[1])))
    y = X[:, :6] @ rng.normal(size=6) + rng.normal(size=shape[0])
    G, p = X.T @ X, X.T @ y
    alphas = np.geomspace(1.0, 1e-4, 40) * np.abs(p).max() / ratio
    v, reached = Quadratics(G[None], p[None], np.array([y @ y])).path(ratio * alphas[None], (1 - ratio) * alphas[None])
    assert reached.all()
    slope = v[0] @ G - p + ((1 - ratio) * alphas)[:, None] * v[0]
    l1 = (ratio * alphas)[:, None]
    off = np.where(v[0] == 0, np.maximum(np.abs(slope) - l1, 0), slope + l1 * np.sign(v[0]))
    assert np.abs(off).max() < 1e-12 * np.abs(p).max()
    assert not v[0, 0].any()


def test_problems_that_go_together_are_what_they_are_alone():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(3, 50, 8)), rng.normal(size=(3, 50))
    G, p, q = np.einsum("kni,knj->kij", X, X), np.einsum("kni,kn->ki", X, y), (y**2).sum(1)
    l1 = np.geomspace(10, 0.01, 20) * np.ones((3, 1))
    together = Quadratics(G, p, q).path(l1, 0 * l1)[0]
    alone = [Quadratics(G[[k]], p[[k]], q[[k]]).path(l1[[k]], 0 * l1[[k]])[0][0] for k in range(3)]
    np.testing.assert_allclose(together, np.array(alone), atol=1e-13)


# ---------------------------------------------------------------------- paths and choices
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ratio", [0.5, 1.0])
def test_paths(kind, ratio):
    X, y = made(kind)
    found = aq.enet_path(handed(X, kind), y, l1_ratio=ratio, alphas=20, n_blocks=3)
    _, coefs, _ = reference_path(X - X.mean(0), y - y.mean(), l1_ratio=ratio, alphas=found.alphas, **TIGHT)
    assert far(found.coef * X.std(0), coefs.T * X.std(0)) < 1e-6
    assert found.rounds == 2
    assert found.bytes == 8 * (1 + X.shape[1] + 1) * 2 + 8 * (1 + X.shape[1] + X.shape[1] * (X.shape[1] + 1) // 2)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.thin(2)
def test_choices_of_elastic_nets_and_lassos(kind, weighted, intercept):
    X, y = made(kind)
    weight = np.random.default_rng(1).uniform(0.5, 3, len(y)) if weighted else None
    folds = list(KFold(4, shuffle=True, random_state=0).split(X))
    shared = {"alphas": 15, "cv": folds, "fit_intercept": intercept, "eps": 1e-2}
    for ours, theirs in (
        (aq.ConsensusElasticNetCV(l1_ratio=[0.4, 0.9], **shared), ElasticNetCV(l1_ratio=[0.4, 0.9], **shared, **TIGHT)),
        (aq.ConsensusLassoCV(**shared), LassoCV(**shared, **TIGHT)),
    ):
        model = ours.set_params(n_blocks=3).fit(handed(X, kind), y, sample_weight=weight)
        reference = quietly(theirs, X, y, sample_weight=weight)
        np.testing.assert_allclose(model.alphas_, reference.alphas_, rtol=1e-9)
        np.testing.assert_allclose(model.mse_path_, reference.mse_path_, rtol=1e-6)
        assert model.alpha_ == pytest.approx(reference.alpha_, rel=1e-9)
        assert far(model.coef_ * X.std(0), reference.coef_ * X.std(0)) < 1e-6
        assert model.n_rounds_ <= 3


@pytest.mark.parametrize(
    "cv",
    [
        ShuffleSplit(7, test_size=0.3, random_state=0),
        RepeatedKFold(n_splits=3, n_repeats=2, random_state=0),
        LeaveOneOut(),
    ],
    ids=["overlapping", "repeated", "one"],
)
def test_folds_of_every_kind(cv, data):
    X, y = data("diabetes")
    X, y = X[:60], y[:60]
    reference = quietly(ElasticNetCV(alphas=6, cv=cv, **TIGHT), X, y)
    model = aq.ConsensusElasticNetCV(alphas=6, cv=cv).fit(X, y, sites=split(y, "iid"))
    np.testing.assert_allclose(model.mse_path_, reference.mse_path_, rtol=1e-7)
    assert far(model.coef_, reference.coef_) < 1e-8


def test_models_that_leave_nothing_are_scored_row_by_row():
    """Squares that cancel to fifteen digits are asked for once more."""
    X, _ = made("plain")
    y = X[:, :3] @ np.array([1.0, 2.0, 3.0])
    folds = list(KFold(3).split(X))
    alphas = [1e-7, 1e-8]
    model = aq.ConsensusElasticNetCV(alphas=alphas, cv=folds, n_blocks=2).fit(X, y)
    assert model.n_rounds_ == 3
    for k, (train, test) in enumerate(folds):
        path = aq.enet_path(X[train], y[train], alphas=alphas)
        left = X[test] @ path.coef.T + path.intercept - y[test, None]
        np.testing.assert_allclose(model.mse_path_[:, k], (left**2).mean(0), rtol=1e-6)
        reference = quietly(ElasticNet(alphas[1], tol=1e-16, max_iter=1_000_000), X[train], y[train])
        assert model.mse_path_[1, k] == pytest.approx(np.mean((reference.predict(X[test]) - y[test]) ** 2), rel=1e-3)


def test_a_choice_by_runs_is_the_same(data):
    X, y = data("diabetes")
    sites = split(y, "by class")
    quick = aq.ConsensusElasticNetCV(alphas=5, cv=3).fit(X, y, sites=sites)
    slow = aq.ConsensusElasticNetCV(alphas=5, cv=3, method="auq-lr").fit(X, y, sites=sites)
    np.testing.assert_allclose(quick.mse_path_, slow.mse_path_, rtol=1e-7)
    assert far(quick.coef_, slow.coef_) < 1e-6
    assert quick.n_rounds_ == 2 < slow.n_rounds_


# ---------------------------------------------------------------------- ridge
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("intercept", [True, False])
def test_ridge_by_rows_left_out(kind, weighted, intercept):
    X, y = made(kind)
    weight = np.random.default_rng(1).uniform(0.5, 3, len(y)) if weighted else None
    alphas = np.geomspace(0.1, 1e3, 9)
    for scoring in (None, "r2", "neg_mean_squared_error"):
        reference = RidgeCV(alphas, fit_intercept=intercept, scoring=scoring).fit(X, y, sample_weight=weight)
        model = aq.ConsensusRidgeCV(alphas, fit_intercept=intercept, scoring=scoring, n_blocks=3)
        model.fit(handed(X, kind), y, sample_weight=weight)
        assert model.alpha_ == reference.alpha_
        digits = 1e-6 if kind == "raw" else 1e-8
        assert model.best_score_ == pytest.approx(reference.best_score_, rel=digits)
        if intercept or kind != "raw":
            assert far(model.coef_ * X.std(0), reference.coef_ * X.std(0)) < digits
        assert model.n_rounds_ == 2 + intercept
    assert model.scores_.shape == (9,)


@pytest.mark.parametrize("kind", ["plain", "raw", "wide"])
@pytest.mark.parametrize("weighted", [False, True])
def test_ridge_by_folds(kind, weighted):
    X, y = made(kind)
    weight = np.random.default_rng(1).uniform(0.5, 3, len(y)) if weighted else None
    folds = list(KFold(4, shuffle=True, random_state=0).split(X))
    alphas = np.geomspace(0.1, 1e3, 9)
    reference = RidgeCV(alphas, cv=folds).fit(X, y, sample_weight=weight)
    model = aq.ConsensusRidgeCV(alphas, cv=folds, n_blocks=3).fit(X, y, sample_weight=weight)
    assert model.alpha_ == reference.alpha_
    assert model.best_score_ == pytest.approx(reference.best_score_, rel=1e-8)
    assert far(model.coef_ * X.std(0), reference.coef_ * X.std(0)) < 1e-8
    search = GridSearchCV(Ridge(), {"alpha": alphas}, cv=folds, scoring="neg_mean_squared_error")
    search.fit(X, y, sample_weight=weight)
    errors = aq.ConsensusRidgeCV(alphas, cv=folds, scoring="neg_mean_squared_error").fit(X, y, sample_weight=weight)
    np.testing.assert_allclose(errors.scores_.mean(1), search.cv_results_["mean_test_score"], rtol=1e-8)
    assert errors.n_rounds_ == 2


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (aq.ConsensusRidgeCV([0.0]), "alphas must be a finite number > 0, got 0.0"),
        (aq.ConsensusRidgeCV([]), "alphas is empty: give at least one strength"),
        (aq.ConsensusRidgeCV(scoring="accuracy"), "scoring must be one of None, 'r2', 'neg_mean_squared_error'"),
        (aq.ConsensusRidge(-1.0), "alpha must be a finite number ≥ 0, got -1.0"),
        (aq.ConsensusElasticNetCV(l1_ratio=0), "With l1_ratio=0 no strength leaves all coefficients 0"),
        (aq.ConsensusElasticNetCV(alphas=[]), "alphas is empty: give at least one strength, or how many"),
    ],
)
def test_what_cannot_be_used_is_said_in_one_sentence(model, message, data):
    X, y = data("diabetes")
    with pytest.raises(ValueError, match=message):
        model.fit(X, y)


def test_more_features_than_a_gram_matrix_should_have(monkeypatch, data):
    X, y = data("diabetes")
    monkeypatch.setattr(squares, "MOST_FEATURES", 5)
    with pytest.raises(ValueError, match=r"X has 10 features, .* takes a Gram matrix, of at most 5; pass cv"):
        aq.ConsensusRidgeCV().fit(X, y)
    assert aq.ConsensusElasticNet(0.1).fit(X, y).history_[-1].rounds > 2
