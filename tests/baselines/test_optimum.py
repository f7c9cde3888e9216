"""Every baseline reaches the optimum that scikit-learn or scipy finds, through the library's one loop."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import lsq_linear, minimize, nnls
from scipy.special import logsumexp
from sklearn.linear_model import LogisticRegression

import auqadmm as aq
from auqadmm.baselines import FISTA, LBFGS, OWLQN, PreconditionedLBFGS
from tests.methods.test_optimum import elastic_net_optimum, multinomial_optimum, svm_optimum
from tests.problems import class_blocks, least_squares, multinomial, pooled, regression_blocks, svm


def logistic_l1_optimum(blocks, l1, intercept):
    """v = p − q with p, q ≥ 0 makes the objective smooth; the last entry of x is the intercept."""
    X, y = pooled(blocks)
    y, m = 2.0 * y - 1, X.shape[1]

    def split(x):
        u = x[:m] - x[m : 2 * m]
        t = y * (X @ u + intercept * x[-1])
        s = -y * np.exp(-np.logaddexp(0, t))
        slope = X.T @ s
        return np.logaddexp(0, -t).sum() + l1 * x[:-1].sum(), np.r_[slope + l1, l1 - slope, intercept * s.sum()]

    bounds = [(0, None)] * (2 * m) + [(None, None)]
    options = {"ftol": 1e-16, "gtol": 1e-11, "maxiter": 10**4, "maxfun": 10**5}
    return minimize(split, np.zeros(2 * m + 1), jac=True, method="L-BFGS-B", bounds=bounds, options=options).fun


def multinomial_intercept_optimum(blocks, l2):
    X, y = pooled(blocks)
    model = LogisticRegression(C=1 / l2, tol=1e-13, max_iter=10**5, solver="newton-cg").fit(X, y)
    Z = X @ model.coef_.T + model.intercept_
    return np.sum(logsumexp(Z, axis=1) - Z[np.arange(len(y)), y]) + 0.5 * l2 * np.sum(model.coef_**2)


def elastic_net():
    blocks = [(X, y.astype(float)) for X, y in class_blocks(features=8)]
    return least_squares(blocks), elastic_net_optimum(blocks, 0.05, 0.1)


def softmax():
    return multinomial(class_blocks()), multinomial_optimum(class_blocks(), 0.1)


def softmax_intercept():
    blocks = class_blocks()
    problem = aq.Problem(aq.Multinomial(reduction="sum"), aq.L2(0.5), blocks, intercept=True)
    return problem, multinomial_intercept_optimum(blocks, 0.5)


def smooth_svm():
    blocks = class_blocks(classes=2, per_block=30)
    return svm(blocks), svm_optimum(blocks, 0.5, 0.1)


def logistic_l1(intercept=False):
    blocks = class_blocks(classes=2, per_block=30, features=12)
    problem = aq.Problem(aq.Logistic(reduction="sum"), aq.L1(2.0), blocks, intercept=intercept)
    return problem, logistic_l1_optimum(blocks, 2.0, float(intercept))


def logistic_l1_intercept():
    return logistic_l1(intercept=True)


def non_negative():
    blocks = regression_blocks()
    problem = aq.Problem(aq.LeastSquares(reduction="sum"), aq.NonNegative(), blocks)
    return problem, 0.5 * nnls(*pooled(blocks))[1] ** 2


def box():
    blocks = regression_blocks()
    problem = aq.Problem(aq.LeastSquares(reduction="sum"), aq.Box(-0.1, 0.2), blocks)
    return problem, lsq_linear(*pooled(blocks), bounds=(-0.1, 0.2), tol=1e-14).cost


CASES = [
    (elastic_net, (OWLQN, FISTA)),
    (softmax, (LBFGS, PreconditionedLBFGS, OWLQN, FISTA)),
    (softmax_intercept, (LBFGS, PreconditionedLBFGS, OWLQN, FISTA)),
    (smooth_svm, (LBFGS, PreconditionedLBFGS, OWLQN, FISTA)),
    (logistic_l1, (OWLQN, FISTA)),
    (logistic_l1_intercept, (OWLQN, FISTA)),
    (non_negative, (FISTA,)),
    (box, (FISTA,)),
]


@pytest.mark.parametrize(
    ("make", "method"),
    [pytest.param(make, method, id=f"{make.__name__}-{method.name}") for make, able in CASES for method in able],
)
def test_reaches_the_optimum(make, method):
    problem, optimum = make()
    result = aq.solve(problem, method=method(), stop="certificate", certificate_tol=1e-9, max_iter=500)
    assert result.status == "converged", result.message
    assert abs(result.objective - optimum) <= 1e-8 * abs(optimum)


@pytest.mark.parametrize("method", [LBFGS, OWLQN, FISTA])
def test_where_rows_live_does_not_matter(method):
    blocks = class_blocks(classes=4, per_block=15)
    found = [
        aq.solve(aq.Problem(aq.Multinomial(reduction="sum"), aq.L2(1.0), split, intercept=True), method(), max_iter=8).v
        for split in (blocks, blocks[::-1], [pooled(blocks)])
    ]
    # FISTA's first step length is a difference of gradients nearby, which keeps half of the digits
    atol = 1e-8 if method is FISTA else 1e-10
    for other in found[1:]:
        np.testing.assert_allclose(other, found[0], rtol=1e-8, atol=atol)


@pytest.mark.parametrize("method", [LBFGS, PreconditionedLBFGS, OWLQN, FISTA])
def test_single_precision_gets_as_far_as_it_can(method):
    problem = multinomial(regularizer=aq.L2(0.1))
    result = aq.solve(problem, method(), stop="certificate", certificate_tol=1e-6, dtype="float32", max_iter=200)
    assert result.status == "converged"
    onward = aq.solve(problem, method(), stop="certificate", certificate_tol=0, dtype="float32", max_iter=100)
    assert onward.certificate.kkt <= 1e-6, "going on at the limit of rounding must not lead away"


def test_group_lasso_and_custom_regularizers_work_with_fista():
    blocks = regression_blocks()
    group = aq.Problem(aq.LeastSquares(), aq.GroupLasso(3.0, groups=[0, 0, 1, 1, 2, 2]), blocks)
    assert aq.solve(group, FISTA(), certificate_tol=1e-15, max_iter=300).certificate.kkt <= 1e-8
    ridge = aq.CustomRegularizer(lambda v: 0.5 * v.square().sum(), lambda s, K: s / (K + 1))
    custom = aq.solve(aq.Problem(aq.LeastSquares(), ridge, blocks), FISTA(), certificate_tol=1e-15, max_iter=300)
    known = aq.solve(aq.Problem(aq.LeastSquares(), aq.L2(1.0), blocks), LBFGS(), certificate_tol=1e-15)
    np.testing.assert_allclose(custom.v, known.v, atol=1e-7)
