"""Paths and choices of squares with too many columns for a Gram matrix: working sets, against scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
from sklearn.linear_model import ElasticNetCV, LassoCV, Ridge, RidgeCV
from sklearn.linear_model import enet_path as reference_path
from sklearn.model_selection import KFold, ShuffleSplit

import auqadmm as aq
from auqadmm.core.reduce import Reduce
from auqadmm.engines.protocol import dumps, loads
from auqadmm.estimators import squares, wide
from tests.estimators.conftest import far, quietly

TIGHT = {"tol": 1e-14, "max_iter": 1_000_000}


@pytest.fixture
def narrow(monkeypatch):
    """Gram matrices of eight columns at most, and working sets that begin with as many."""
    monkeypatch.setattr(squares, "MOST_FEATURES", 8)
    monkeypatch.setattr(wide, "AFFORDABLE", 8)


def made(kind: str, seed: int = 0):
    """X and y: "plain", "raw" (means 300, scales 1e-3 … 1e3), "wide" (p ≫ n), "sparse", "twins" (repeated columns)."""
    rng = np.random.default_rng(seed)
    n, m = (40, 160) if kind == "wide" else (120, 60)
    X = rng.normal(size=(n, m)) + 0.5 * rng.normal(size=(n, 1))
    if kind == "sparse":
        X = X * (rng.random((n, m)) < 0.2)
        X[:, 0] = 300 + rng.normal(size=n)  # a column without zeros, far from zero
    y = X[:, :5] @ rng.normal(size=5) + 0.5 * rng.normal(size=n) + 7
    if kind == "raw":
        X = X * np.geomspace(1e-3, 1e3, m) + 300
    if kind == "twins":
        X = np.hstack([X, X[:, :20], np.full((n, 1), 3.0), np.zeros((n, 1))])
    return X, y


KINDS = ["plain", "raw", "wide", "sparse", "twins"]


def handed(X, kind):
    return scipy.sparse.csr_array(X) if kind == "sparse" else X


def off(X, y, coef, l1, l2, weight=None):
    """The largest violation of an optimality condition, in units of the largest slope at zero; by numpy alone."""
    weight = np.ones(len(y)) if weight is None else weight
    Z, t = X - np.average(X, axis=0, weights=weight), y - np.average(y, weights=weight)
    slope = Z.T @ (weight * (Z @ coef - t)) / weight.sum() + l2 * coef
    start = np.abs(Z.T @ (weight * t)).max() / weight.sum()
    return np.where(coef == 0, np.maximum(np.abs(slope) - l1, 0), np.abs(slope + l1 * np.sign(coef))).max() / start


# ---------------------------------------------------------------------- paths
@pytest.mark.thin(3)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ratio", [0.5, 1.0])
@pytest.mark.parametrize("sites", [1, 4, 7])
def test_paths(kind, ratio, sites, narrow):
    X, y = made(kind)
    found = aq.enet_path(handed(X, kind), y, l1_ratio=ratio, alphas=30, n_blocks=sites)
    (run,) = found.results
    assert run.method == "gram"
    assert run.status in ("converged", "rounding")
    for alpha, coef in zip(found.alphas, found.coef, strict=True):
        assert off(X, y, coef, ratio * alpha, (1 - ratio) * alpha) < 1e-11
    _, coefs, _ = reference_path(X - X.mean(0), y - y.mean(), l1_ratio=ratio, alphas=found.alphas, **TIGHT)
    fitted, reference = X @ found.coef.T + found.intercept, (X - X.mean(0)) @ coefs + y.mean()
    assert far(fitted, reference) < 1e-6
    if kind != "twins":
        assert far(found.coef * X.std(0), coefs.T * X.std(0)) < 1e-6


def test_a_path_of_a_hundred_strengths_with_many_more_columns_than_rows():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 5000)) + 0.5 * rng.normal(size=(60, 1))
    y = X[:, :8] @ rng.normal(size=8) + 0.3 * rng.normal(size=60) - 2
    weight = rng.uniform(0.5, 2, 60)
    found = aq.enet_path(X, y, l1_ratio=1.0, n_blocks=4, sample_weight=weight)
    assert len(found.alphas) == 100
    assert not found.coef[0].any()
    worst = max(off(X, y, c, a, 0.0, weight) for a, c in zip(found.alphas, found.coef, strict=True))
    assert worst < 1e-11
    certificate = found.results[0].certificate
    left = y[:, None] - X @ found.coef.T - found.intercept
    value = 0.5 * np.average(left**2, axis=0, weights=weight) + found.alphas * np.abs(found.coef).sum(1)
    assert certificate.objective == pytest.approx(value.sum(), rel=1e-10)
    assert certificate.duality_gap < 1e-10 * value.sum()
    assert found.rounds < 50
    assert found.bytes / 8 < 5000 * 5001 / 2 / 3


def test_celer_finds_the_same(narrow):
    celer = pytest.importorskip("celer")
    X, y = made("wide")
    found = aq.enet_path(X, y, l1_ratio=1.0, alphas=20, eps=1e-2, n_blocks=3, fit_intercept=False)
    _, coefs, *_ = celer.celer_path(np.asfortranarray(X), y, "lasso", alphas=found.alphas, tol=1e-14, max_iter=1000)
    assert far(found.coef, coefs.T) < 1e-4  # as near as it gets with its tolerance


def test_an_empty_block_and_a_constant_target(narrow):
    X, y = made("plain")
    whole = aq.enet_path(X, y, alphas=12)
    parts = aq.enet_path([X[:50], X[:0], X[50:]], [y[:50], y[:0], y[50:]], alphas=12)
    np.testing.assert_allclose(parts.coef, whole.coef, atol=1e-12)
    assert parts.rounds == whole.rounds
    flat = aq.enet_path(X, np.full(len(y), 2.0), alphas=5)
    assert not flat.coef.any()
    assert np.allclose(flat.intercept, 2.0)


# ---------------------------------------------------------------------- choices
@pytest.mark.thin(3)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("intercept", [True, False])
def test_choices(kind, weighted, intercept, narrow):
    X, y = made(kind)
    if kind == "raw" and not intercept:
        pytest.skip("columns far from zero are all alike without an intercept")
    weight = np.random.default_rng(1).uniform(0.5, 3, len(y)) if weighted else None
    folds = list(KFold(4, shuffle=True, random_state=0).split(X))
    shared = {"alphas": 15, "cv": folds, "fit_intercept": intercept, "eps": 1e-2}
    for ours, theirs in (
        (aq.ConsensusElasticNetCV(l1_ratio=[0.4, 0.9], **shared), ElasticNetCV(l1_ratio=[0.4, 0.9], **shared, **TIGHT)),
        (aq.ConsensusLassoCV(**shared), LassoCV(**shared, **TIGHT)),
    ):
        model = ours.set_params(n_blocks=4).fit(handed(X, kind), y, sample_weight=weight)
        reference = quietly(theirs, X, y, sample_weight=weight)
        np.testing.assert_allclose(model.alphas_, reference.alphas_, rtol=1e-9)
        np.testing.assert_allclose(model.mse_path_, reference.mse_path_, rtol=1e-6)
        assert model.alpha_ == pytest.approx(reference.alpha_, rel=1e-9)
        np.testing.assert_allclose(model.predict(X), reference.predict(X), atol=1e-7 * np.abs(y).max())
        assert model.status_ in ("converged", "rounding")
        assert model.n_rounds_ == model.history_[-1].rounds < 40


def test_a_choice_of_sparse_columns():
    rng = np.random.default_rng(0)
    X = scipy.sparse.random(300, 6000, 0.02, "csr", random_state=0)
    y = X @ np.where(np.arange(6000) < 25, 5.0, 0.0) + 0.3 * rng.normal(size=300)
    folds = list(KFold(3, shuffle=True, random_state=0).split(np.zeros(300)))
    model = aq.ConsensusLassoCV(alphas=25, eps=0.03, cv=folds).fit(X, y, sites=np.arange(300) % 7)
    reference = LassoCV(alphas=25, eps=0.03, cv=folds, tol=1e-10, max_iter=100_000).fit(X, y)
    np.testing.assert_allclose(model.mse_path_, reference.mse_path_, rtol=1e-6)
    assert model.alpha_ == pytest.approx(reference.alpha_)
    assert far(model.coef_, reference.coef_) < 1e-6


def test_folds_that_overlap(narrow):
    X, y = made("plain")
    cv = ShuffleSplit(7, test_size=0.3, random_state=0)
    model = aq.ConsensusLassoCV(alphas=6, cv=cv, n_blocks=3).fit(X, y)
    reference = quietly(LassoCV(alphas=6, cv=cv, **TIGHT), X, y)
    np.testing.assert_allclose(model.mse_path_, reference.mse_path_, rtol=1e-7)
    assert far(model.coef_, reference.coef_) < 1e-8


# ---------------------------------------------------------------------- what travels
def test_rounds_and_numbers_are_counted(narrow, monkeypatch):
    """Of every group two numbers per column, products of columns in its set once, slopes of models that are asked."""
    told = []

    def counted(self, fn, blocks, shared, down=()):
        fn, shared = loads(dumps((fn, shared)))  # as a cluster would carry them
        out = original(self, fn, loads(dumps(blocks, own_code=True), own_code=True), shared, down)
        told.append((type(fn).__name__, shared, {k: x.numel() for k, x in out[1].items()}))
        return out

    original = Reduce.__call__
    monkeypatch.setattr(Reduce, "__call__", counted)
    X, y = made("wide")
    m = X.shape[1]
    model = aq.ConsensusLassoCV(alphas=20, cv=3, n_blocks=4).fit(X, y)
    assert [name for name, *_ in told][:3] == ["Means", "Sides", "Wider"]
    assert model.n_rounds_ == len(told)
    assert model.history_[-1].bytes_up == 8 * sum(sum(sizes.values()) for *_, sizes in told)
    rounds = [(shared, sizes) for name, shared, sizes in told if name == "Wider"]
    for k in range(4):
        sent = sum(sizes.get(f"border{k}", 0) + sizes.get(f"corner{k}", 0) for _, sizes in rounds)
        columns = sum(len(shared[k][0]) for shared, _ in rounds)
        assert sent == columns * (columns + 1) // 2
        asked = sum(shared[k][1].shape[1] for shared, _ in rounds)
        assert sum(sizes.get(f"slopes{k}", 0) for _, sizes in rounds) == asked * m
        assert 20 <= asked < 60 if k < 3 else 1 <= asked < 4


def test_sets_that_would_be_too_large_are_left_for_runs(narrow, monkeypatch):
    X, y = made("plain")
    expected = aq.ConsensusLassoCV(alphas=4, cv=3).fit(X, y)
    path = aq.enet_path(X, y, alphas=4)
    monkeypatch.setattr(wide, "MOST_COLUMNS", 10)
    model = aq.ConsensusLassoCV(alphas=4, cv=3).fit(X, y)
    np.testing.assert_allclose(model.mse_path_, expected.mse_path_, rtol=1e-7)
    assert far(model.coef_, expected.coef_) < 1e-7
    assert model.n_rounds_ > model.history_[-1].rounds + 3
    other = aq.enet_path(X, y, alphas=4)
    assert far(other.coef, path.coef) < 1e-7
    assert other.rounds > other.spent > 2


# ---------------------------------------------------------------------- ridge
def test_ridge_by_folds_takes_a_fit_for_each(narrow):
    X, y = made("wide")
    folds = list(KFold(3, shuffle=True, random_state=0).split(X))
    alphas = [1.0, 100.0]
    reference = RidgeCV(alphas, cv=folds).fit(X, y)
    model = aq.ConsensusRidgeCV(alphas, cv=folds, n_blocks=3).fit(X, y)
    assert model.alpha_ == reference.alpha_
    assert model.best_score_ == pytest.approx(reference.best_score_, rel=1e-7)
    assert far(model.coef_, Ridge(reference.alpha_).fit(X, y).coef_) < 1e-7
    assert "More than 8 features: 7 ordinary fits" in model.message_
    assert model.n_rounds_ > model.history_[-1].rounds
    with pytest.raises(
        ValueError, match="X has 160 features, and leaving out one row after another takes a Gram matrix"
    ):
        aq.ConsensusRidgeCV(alphas).fit(X, y)
