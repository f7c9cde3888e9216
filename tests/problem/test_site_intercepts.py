"""Site intercepts: the same as indicator columns, without their unknowns."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse

import auqadmm as aq
from tests.problem.family_cases import CASES, glm, study


def dummies(data):
    return np.hstack([data.X, (data.site[:, None] == np.unique(data.site)).astype(float)])


def some(case, seed, sizes=(90, 41, 9, 6, 120)):
    data = study(case, seed, sizes)
    return replace(data, X=data.X[:, :3])


@pytest.mark.thin(2)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(("weights", "offset"), [(False, False), (True, True)])
def test_coefficients_are_those_of_indicator_columns(name, weights, offset):
    case = CASES[name]
    data = some(case, 1)
    problem = aq.Problem(case.loss, aq.Zero(), data.blocks(weights, offset), site_intercepts=True)
    result = aq.solve(problem, "newton", certificate_tol=1e-20)
    assert str(result.status) in ("converged", "rounding")
    truth = glm(case, data, dummies(data), weights, offset).fit(tol=1e-13, tol_criterion="params", maxiter=500)
    assert np.allclose(result.coef, truth.params[:3], rtol=1e-8, atol=1e-10)


@pytest.mark.campaign
@pytest.mark.parametrize("method", ["c-admm", "auq-lr", "lbfgs", "fista", "auto"])
@pytest.mark.parametrize("penalty", [aq.L2(1.0), aq.ElasticNet(2.0, 0.5)])
@pytest.mark.thin(3)
def test_every_method_takes_them(method, penalty):
    if method == "lbfgs" and isinstance(penalty, aq.ElasticNet):
        return
    case = CASES["poisson"]
    problem = aq.Problem(case.loss, penalty, some(case, 2).blocks(True, True), site_intercepts=True)
    best = aq.solve(problem, "newton", certificate_tol=1e-12)
    result = aq.solve(problem, method, certificate_tol=1e-6, max_iter=3000)
    assert result.status == "converged", result.message
    assert result.objective == pytest.approx(best.objective, rel=1e-6)


def test_a_site_of_one_class_says_nothing():
    case = CASES["logit"]
    data = some(case, 3)
    lone = replace(data, y=np.where(data.site == 1, 1, data.y))
    without = replace(data, **{k: v[data.site != 1] for k, v in vars(data).items()})
    a, b = (
        aq.solve(aq.Problem(case.loss, aq.L2(0.1), d.blocks(), site_intercepts=True), "newton", certificate_tol=1e-15)
        for d in (lone, without)
    )
    assert a.objective == pytest.approx(b.objective, rel=1e-12)
    assert np.allclose(a.coef, b.coef, rtol=1e-8)


def test_a_site_without_events_says_nothing():
    case = CASES["poisson"]
    data = some(case, 3)
    idle = replace(data, y=np.where(data.site == 2, 0.0, data.y))
    result = aq.solve(aq.Problem(case.loss, aq.Zero(), idle.blocks(), site_intercepts=True), certificate_tol=1e-12)
    kept = idle.site != 2
    without = replace(idle, **{k: v[kept] for k, v in vars(idle).items()})
    truth = glm(case, without, dummies(without)).fit(tol=1e-13, tol_criterion="params")
    assert np.allclose(result.coef, truth.params[:3], rtol=1e-6)


def test_far_columns_sparse_rows_and_float32():
    """Columns of mean 10⁴ are no harder: every site centres its own."""
    case = CASES["logit"]
    data = some(case, 4)
    moved = replace(data, X=data.X + np.array([1e4, -300.0, 0.0]))
    sparse = [(scipy.sparse.csr_matrix(b[0]), *b[1:]) for b in data.blocks(True)]

    def fit(blocks, **options):
        return aq.solve(aq.Problem(case.loss, aq.L2(0.3), blocks, site_intercepts=True), **options).coef

    plain = fit(data.blocks(True), certificate_tol=1e-12)
    assert np.allclose(fit(moved.blocks(True), certificate_tol=1e-12), plain, rtol=1e-5)
    assert np.allclose(fit(sparse, certificate_tol=1e-12), plain, rtol=1e-8)
    assert np.allclose(fit(data.blocks(True), dtype="float32"), plain, atol=3e-3)


def test_large_targets_and_sites_that_differ_much():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2))
    y = X @ [1.0, -2.0] + np.repeat([1e5, -4e5, 3.0], 20) + rng.normal(size=60)
    for loss in (aq.LeastSquares(), aq.Huber(2.0), aq.Quantile(0.4, eps=0.2)):
        blocks = [(X[i], y[i]) for i in np.arange(60).reshape(3, 20)]
        moved = [(X[i], y[i] - m) for i, m in zip(np.arange(60).reshape(3, 20), [1e5, -4e5, 3.0], strict=True)]
        a, b = (
            aq.solve(aq.Problem(loss, aq.L2(0.1), x, site_intercepts=True), certificate_tol=1e-9)
            for x in (blocks, moved)
        )
        assert np.allclose(a.coef, b.coef, atol=1e-4)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: _problem(intercept=True, site_intercepts=True), "in place of intercept: leave one of the two out"),
        (lambda: _problem(site_intercepts=1), "site_intercepts must be True or False, got 1"),
        (
            lambda: _problem(aq.CustomLoss(lambda u, X, y: (X @ u - y) ** 2), site_intercepts=True),
            "needs a loss of rows, such as .* CustomLoss is none",
        ),
        (lambda: _problem(aq.Multinomial(), site_intercepts=True), "one column, and Multinomial has one per class"),
    ],
)
def test_what_cannot_be_used_is_a_sentence(make, sentence):
    with pytest.raises(aq.InputError, match=sentence):
        make()


def _problem(loss=None, **options):
    return aq.Problem(loss or aq.Logistic(), aq.Zero(), [(np.ones((2, 1)), [0, 1])], **options)
