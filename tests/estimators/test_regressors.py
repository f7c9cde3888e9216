"""Poisson, Huber's and quantile regression against scikit-learn; penalty factors against glmnet; scores of sites."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
from scipy.optimize import minimize
from sklearn.linear_model import HuberRegressor, PoissonRegressor, QuantileRegressor

import auqadmm as aq

FIXTURES = Path(__file__).parents[1] / "inference" / "fixtures"
MODELS = json.loads((FIXTURES / "models.json").read_text())
TABLE = np.genfromtxt(FIXTURES / "study.csv", delimiter=",", names=True)


def rows(seed=0, n=200):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 4)) * [1.0, 10.0, 0.1, 1.0]
    z = X @ [0.5, 0.03, -4.0, 0.0]
    return X, z, rng.choice(4, size=n, p=[0.5, 0.3, 0.15, 0.05]), rng.integers(1, 4, size=n).astype(float), rng


@pytest.mark.parametrize("alpha", [0.0, 0.05, 2.0])
@pytest.mark.parametrize("intercept", [True, False])
def test_poisson_is_that_of_scikit_learn(alpha, intercept):
    X, z, site, w, rng = rows()
    y = rng.poisson(np.exp(z))
    model = aq.ConsensusPoissonRegressor(alpha, fit_intercept=intercept).fit(X, y, sites=site, sample_weight=w)
    truth = PoissonRegressor(alpha=alpha, fit_intercept=intercept, tol=1e-12, max_iter=10000, solver="newton-cholesky")
    truth.fit(X, y, sample_weight=w)
    np.testing.assert_allclose(model.coef_, truth.coef_, rtol=1e-8)
    np.testing.assert_allclose(model.predict(X), truth.predict(X), rtol=1e-8)
    assert model.score(X, y, w) == pytest.approx(truth.score(X, y, w), rel=1e-8)


@pytest.mark.parametrize(("epsilon", "alpha"), [(1.35, 1e-4), (1.05, 0.5), (3.0, 10.0)])
@pytest.mark.parametrize("seed", range(2))
def test_huber_and_its_scale_are_those_of_scikit_learn(epsilon, alpha, seed):
    X, z, site, w, rng = rows(seed)
    y = 5 + 30 * z + rng.standard_t(2, size=len(z)) * 7
    model = aq.ConsensusHuberRegressor(epsilon, alpha).fit(X, y, sites=site, sample_weight=w)
    truth = HuberRegressor(epsilon=epsilon, alpha=alpha, tol=1e-12, max_iter=100000).fit(X, y, sample_weight=w)

    def value(coef, intercept, scale):
        r = np.abs(X @ coef + intercept - y) / scale
        return w @ (scale + scale * np.where(r < epsilon, r * r, 2 * epsilon * r - epsilon**2)) + alpha * coef @ coef

    assert value(model.coef_, model.intercept_, model.scale_) <= value(truth.coef_, truth.intercept_, truth.scale_)
    A = np.column_stack([X, np.ones(len(y))])
    best = huber_optimum(A, y, w, epsilon, alpha, np.r_[truth.coef_, truth.intercept_, truth.scale_])
    np.testing.assert_allclose(np.r_[model.coef_, model.intercept_, model.scale_], best, rtol=1e-8)


def huber_optimum(A, y, w, epsilon, alpha, u):
    """Newton's method from scikit-learn's answer on, which stops some 1e-4 short: F is squares where no row changes
    sides, and a perspective in the scale."""
    ridge = alpha * np.r_[np.ones(A.shape[1] - 1), 0.0]
    for _ in range(50):
        b, s = u[:-1], u[-1]
        e = A @ b - y
        near = np.abs(e) < epsilon * s
        slope = np.where(near, 2 * e / s, 2 * epsilon * np.sign(e))
        grad = np.r_[A.T @ (w * slope) + 2 * ridge * b, w @ np.where(near, 1 - (e / s) ** 2, 1 - epsilon**2)]
        B = np.column_stack([A, -e / s]) * (w * near * 2 / s)[:, None] ** 0.5
        step = np.linalg.solve(B.T @ B + np.diag(np.r_[2 * ridge, 0.0]), -grad)
        u = u + step
        if np.abs(step).max() < 1e-13 * np.abs(u).max():
            return u
    raise AssertionError("no optimum was found")


def test_huber_of_rows_that_lie_on_a_plane():
    X, z, site, _, _ = rows()
    model = aq.ConsensusHuberRegressor(alpha=0.0).fit(X, z, sites=site)
    np.testing.assert_allclose(model.coef_, [0.5, 0.03, -4.0, 0.0], atol=1e-6)
    assert model.scale_ < 1e-6


def test_rounded_quantiles_are_the_optimum():
    """Of the loss as it is stated, by Newton's method of scipy."""
    X, z, site, w, rng = rows(5)
    y, eps = 5 + z + rng.normal(size=len(z)), 0.05
    model = aq.ConsensusGLM(aq.Quantile(0.7, eps=eps)).fit(X, y, sites=site, sample_weight=w)
    A = np.column_stack([X, np.ones(len(y))])

    def parts(u):
        r = y - A @ u
        root = np.hypot(r, eps)
        return w @ (0.2 * r + root / 2), -A.T @ (w * (0.2 + r / root / 2)), (A.T * (w * eps**2 / root**3 / 2)) @ A

    found = minimize(
        lambda u: parts(u)[0], np.linalg.lstsq(A, y, rcond=None)[0], jac=lambda u: parts(u)[1],
        hess=lambda u: parts(u)[2], method="trust-exact", options={"gtol": 1e-12, "maxiter": 500},
    )  # fmt: skip
    best = found.x - np.linalg.solve(parts(found.x)[2], parts(found.x)[1])
    np.testing.assert_allclose(np.append(model.coef_, model.intercept_), best, rtol=1e-8)


@pytest.mark.parametrize(("quantile", "alpha"), [(0.5, 0.0), (0.5, 0.05), (0.9, 0.01)])
def test_quantiles_are_those_of_scikit_learn(quantile, alpha):
    X, z, site, w, rng = rows()
    X = X / [1.0, 10.0, 0.1, 1.0]
    y = 5 + z + rng.normal(size=len(z))
    model = aq.ConsensusQuantileRegressor(quantile, alpha).fit(X, y, sites=site, sample_weight=w)
    truth = QuantileRegressor(quantile=quantile, alpha=alpha, solver="highs").fit(X, y, sample_weight=w)

    def value(m):
        r = y - X @ m.coef_ - m.intercept_
        return np.average(np.maximum(quantile * r, (quantile - 1) * r), weights=w) + alpha * np.abs(m.coef_).sum()

    assert value(truth) <= value(model) <= value(truth) + 0.5e-3 * y.std()
    np.testing.assert_allclose(model.coef_, truth.coef_, atol=0.03)
    sharp = aq.ConsensusQuantileRegressor(quantile, alpha, eps=1e-6).fit(X, y, sites=site, sample_weight=w)
    assert value(sharp) <= value(truth) + 1e-6


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (aq.ConsensusPoissonRegressor(-1.0), "alpha must be a finite number ≥ 0"),
        (aq.ConsensusHuberRegressor(1.0), "epsilon must be above 1, got 1"),
        (aq.ConsensusQuantileRegressor(1.5), "q must be a number between 0 and 1; got 1.5"),
        (aq.ConsensusQuantileRegressor(eps=0.0), "eps must be"),
        (aq.ConsensusRidge(penalty_factors=[1.0]), r"penalty_factors has the shape \(1,\); 4 features need one number"),
        (aq.ConsensusLasso(penalty_factors=[1, 1, -1, 1]), r"penalty_factors\[2\] is -1; factors are finite and not"),
        (aq.ConsensusGLM(l1=1.0, penalty_factors="ab"), "penalty_factors must hold numbers, got str"),
    ],
)
def test_what_cannot_be_is_a_sentence(model, sentence):
    X, z, site, _, _ = rows()
    with pytest.raises(aq.InputError, match=sentence):
        model.fit(X, z, sites=site)
    with pytest.raises(aq.InputError, match=r"Poisson needs counts"):
        aq.ConsensusPoissonRegressor().fit(X, -np.ones(len(z)))


# ---------------------------------------------------------------------- penalty factors
def scaled():
    shape = MODELS["columns"]
    X = np.column_stack([TABLE[c] for c in ("age", "dose", "bmi", "days")])
    factors = np.array(shape["factors"])
    return (X - shape["middle"]) / shape["spread"], factors, factors * len(factors) / factors.sum()


@pytest.mark.parametrize("name", ["net", "net-factors"])
def test_an_elastic_net_of_classes_is_that_of_glmnet(name):
    X, _, rescaled = scaled()
    factors = rescaled if name.endswith("factors") else None
    n, lam, ratio = len(X), 0.02, 0.6
    truth = np.append(MODELS[name]["coef"], MODELS[name]["intercept"])
    logistic = aq.ConsensusLogisticRegression(1 / (n * lam), l1_ratio=ratio, penalty_factors=factors)
    glm = aq.ConsensusGLM("binomial", l1=n * lam * ratio, l2=n * lam * (1 - ratio), penalty_factors=factors)
    for model in (logistic, glm):
        model.fit(X, TABLE["sick"], sites=TABLE["site"])
        np.testing.assert_allclose(np.append(model.coef_, model.intercept_), truth, rtol=1e-8)


@pytest.mark.parametrize(("name", "ratio"), [("lasso-factors", 1.0), ("enet-factors", 0.4)])
def test_squares_with_factors_are_those_of_glmnet(name, ratio):
    X, _, rescaled = scaled()
    y, n = TABLE["cost"], len(X)
    l2 = 1.5 * (1 - ratio) / y.std()  # glmnet divides the target by its spread, and this strength with it
    models = [aq.ConsensusGLM(l1=n * 1.5 * ratio, l2=n * l2, penalty_factors=rescaled)]
    strength = 1.5 * ratio + l2
    models.append(aq.ConsensusElasticNet(strength, l1_ratio=1.5 * ratio / strength, penalty_factors=rescaled))
    if ratio == 1:
        models.append(aq.ConsensusLasso(1.5, penalty_factors=rescaled))
    for model in models:
        model.fit(X, y, sites=TABLE["site"])
        np.testing.assert_allclose(model.coef_, MODELS[name]["coef"], rtol=1e-8)


def test_factors_are_strengths_of_columns():
    X, factors, _ = scaled()
    y, site = TABLE["cost"], TABLE["site"]
    ridge = aq.ConsensusRidge(3.0, penalty_factors=factors).fit(X, y, sites=site)
    A = np.column_stack([X, np.ones(len(y))])
    truth = np.linalg.solve(A.T @ A + np.diag([*(3.0 * factors), 0.0]), A.T @ y)
    np.testing.assert_allclose(np.append(ridge.coef_, ridge.intercept_), truth, rtol=1e-8)
    glm = aq.ConsensusGLM(l2=3.0, penalty_factors=factors).fit(X, y, sites=site)
    np.testing.assert_allclose(glm.coef_, ridge.coef_, rtol=1e-8)
    assert glm.inference_.p is None
    same = aq.ConsensusElasticNet(0.3).fit(X, y, sites=site)
    ones = aq.ConsensusElasticNet(0.3, penalty_factors=np.ones(4)).fit(X, y, sites=site)
    np.testing.assert_allclose(ones.coef_, same.coef_, rtol=1e-8)
    classes = np.digitize(y, [8, 15])
    free = aq.ConsensusLogisticRegression(penalty_factors=[0, 1, 1, 1]).fit(X, classes, sites=site)
    np.testing.assert_allclose(free.coef_.sum(0), 0, atol=1e-6)


# ---------------------------------------------------------------------- scores of sites
def test_scores_of_sites():
    pandas = pytest.importorskip("pandas")
    X, z, site, w, rng = rows()
    y = z + rng.normal(size=len(z))
    names = np.array(["a", "b", "c", "d"])[site]
    for model, target in (
        (aq.ConsensusGLM(), y),
        (aq.ConsensusRidge(), y),
        (aq.ConsensusHuberRegressor(), y),
        (aq.ConsensusLogisticRegression(), y > 0),
    ):
        model.fit(X, target, sites=names)
        found = model.site_scores(X, target, names, w)
        assert list(found) == ["a", "b", "c", "d"]
        assert found["b"] == model.score(X[site == 1], target[site == 1], w[site == 1])
        assert model.site_scores(scipy.sparse.csr_matrix(X), target, names, w) == pytest.approx(found)
    frame = pandas.DataFrame(X, columns=list("pqrs"))
    model = aq.ConsensusGLM("binomial").fit(frame, y > 0, sites=names)
    assert set(model.site_scores(frame, y > 0, names)) == set("abcd")
    with pytest.raises(aq.InputError, match="sites has 2 labels but X has 200 rows"):
        model.site_scores(frame, y > 0, ["a", "b"])
    own = aq.ConsensusGLM("binomial", site_intercepts=True).fit(X, y > 0, sites=names)
    assert set(own.site_scores(X, y > 0, names)) == set("abcd")
