"""The reference optimum: what scikit-learn finds, certified, and refused where there is no solver."""

import numpy as np
import pytest
import scipy.sparse
import torch
from sklearn.linear_model import ElasticNet, LinearRegression, LogisticRegression, Ridge

import auqadmm as aq
from auqadmm.comparison import digits_elastic_net, digits_multinomial, reference


def regression(rows=(30, 45, 25), features=6, seed=0):
    rng = np.random.default_rng(seed)
    truth = rng.normal(size=features) * (np.arange(features) % 2)
    blocks = []
    for n in rows:
        X = rng.normal(size=(n, features))
        blocks.append((X, X @ truth + 0.1 * rng.normal(size=n), rng.uniform(0.5, 2.0, size=n)))
    return blocks


def pooled(blocks):
    X, y, w = (np.concatenate(part) for part in zip(*blocks, strict=True))
    return X, y, w


@pytest.mark.parametrize("make", [digits_multinomial, digits_elastic_net])
def test_digits_are_solved_to_rounding(make):
    found = reference(make())
    assert found.kkt <= 1e-8
    census = make().census
    assert tuple(found.v.shape) == (census.features, census.columns)


@pytest.mark.parametrize("intercept", [False, True])
def test_elastic_net_agrees_with_scikit_learn(intercept):
    blocks = regression()
    l1, l2 = 3.0, 0.5
    problem = aq.Problem(aq.LeastSquares(), aq.ElasticNet(l1, l2), blocks, intercept=intercept)
    v = reference(problem).v.numpy()[:, 0]
    X, y, w = pooled(blocks)
    root = np.sqrt(w)
    if not intercept:  # rows weighted by hand
        model = ElasticNet(alpha=(l1 + l2) / len(y), l1_ratio=l1 / (l1 + l2), fit_intercept=False, tol=1e-12)
        model.fit(X * root[:, None], y * root)
        assert np.allclose(v, model.coef_, atol=1e-6)
    else:
        model = ElasticNet(alpha=(l1 + l2) / w.sum(), l1_ratio=l1 / (l1 + l2), tol=1e-12)
        model.fit(X, y, sample_weight=w)
        assert np.allclose(v, [*model.coef_, model.intercept_], atol=1e-6)


def test_lasso_and_every_reduction_are_certified():
    for reduction in ("sum", "mean", "pooled"):
        problem = aq.Problem(aq.LeastSquares(reduction=reduction), aq.L1(0.05), regression())
        assert reference(problem).kkt <= 1e-8


def test_sparse_blocks_give_the_same_optimum():
    blocks = regression()
    mixed = [(scipy.sparse.csr_matrix(X), y, w) for X, y, w in blocks[:2]] + blocks[2:]
    for g in (aq.ElasticNet(1.0, 0.1), aq.L2(1.0)):
        dense = reference(aq.Problem(aq.LeastSquares(), g, blocks))
        sparse = reference(aq.Problem(aq.LeastSquares(), g, mixed))
        assert sparse.objective == pytest.approx(dense.objective, rel=1e-10)


@pytest.mark.parametrize("intercept", [False, True])
def test_ridge_and_least_squares_agree_with_scikit_learn(intercept):
    blocks = regression()
    X, y, w = pooled(blocks)
    cases = (
        (aq.L2(2.0), Ridge(alpha=2.0, fit_intercept=intercept)),
        (aq.Zero(), LinearRegression(fit_intercept=intercept)),
    )
    for g, model in cases:
        v = reference(aq.Problem(aq.LeastSquares(), g, blocks, intercept=intercept)).v.numpy()[:, 0]
        model.fit(X, y, sample_weight=w)
        assert np.allclose(v, [*model.coef_, model.intercept_] if intercept else model.coef_, atol=1e-8)


def test_multinomial_agrees_with_scikit_learn():
    rng = np.random.default_rng(1)
    X, y = rng.normal(size=(90, 4)), rng.integers(0, 3, size=90)
    problem = aq.Problem(aq.Multinomial(), aq.L2(1.0), [(X[:30], y[:30]), (X[30:], y[30:])])
    model = LogisticRegression(C=1.0, fit_intercept=False, tol=1e-10, max_iter=5000).fit(X, y)
    assert np.allclose(reference(problem).v.numpy(), model.coef_.T, atol=1e-5)


def test_l1_needs_least_squares():
    rng = np.random.default_rng(1)
    X, y = rng.normal(size=(30, 4)), rng.integers(0, 2, size=30)
    with pytest.raises(aq.InputError, match=r"Logistic with L1.*must be LeastSquares"):
        reference(aq.Problem(aq.Logistic(), aq.L1(1.0), [(X, y)]))


def test_other_regularizers_are_refused():
    with pytest.raises(aq.InputError, match="No reference solver for NonNegative"):
        reference(aq.Problem(aq.LeastSquares(), aq.NonNegative(), regression()))


def test_what_the_certificate_does_not_confirm_is_not_handed_out(monkeypatch):
    monkeypatch.setattr("auqadmm.comparison._smooth", lambda problem, *_: torch.ones(6, 1).double())
    with pytest.raises(RuntimeError, match=r"KKT residual of .* above 1e-08"):
        reference(aq.Problem(aq.LeastSquares(), aq.L2(1.0), regression()))
