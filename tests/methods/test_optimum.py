"""Every method reaches the optimum that scikit-learn or scipy finds, iid and one class per worker."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import logsumexp
from sklearn.linear_model import ElasticNet, LogisticRegression

import auqadmm as aq
from tests.problems import class_blocks, least_squares, multinomial, pooled, svm

# iterations within which each method must arrive (means, small and well scaled): 1.5 times what was measured, at most
# 40, 127, 32 (C); 40, 84, 32 (RB); 36, 38, 32 (AC); 130, 195, 60 (UQ); 358, 94, 182 (AUQ)
LIMITS = {
    "c-admm": {"elastic-net": 62, "multinomial": 192, "svm": 50},
    "rb-admm": {"elastic-net": 62, "multinomial": 130, "svm": 50},
    "ac-admm": {"elastic-net": 55, "multinomial": 58, "svm": 50},
    "uq-admm": {"elastic-net": 195, "multinomial": 293, "svm": 90},
    "auq-admm": {"elastic-net": 536, "multinomial": 142, "svm": 273},
}
SOLVERS = {
    "elastic-net": ["direct", "newton-cg", "lbfgs"],
    "multinomial": ["newton-cg", "lbfgs"],
    "svm": ["newton-cg", "lbfgs"],
}


def elastic_net_optimum(blocks, l1, l2):
    """Σ_j mean_j ½(x·u − y)² + l1|u| + l2/2 u²: scale the rows, then it is scikit-learn's objective times rows."""
    rows = [np.asarray(X) / np.sqrt(len(y)) for X, y in blocks]
    targets = [np.asarray(y, dtype=float) / np.sqrt(len(y)) for _, y in blocks]
    X, y = np.concatenate(rows), np.concatenate(targets)
    n = len(y)
    model = ElasticNet(alpha=(l1 + l2) / n, l1_ratio=l1 / (l1 + l2), fit_intercept=False, tol=1e-14, max_iter=10**6)
    u = model.fit(X, y).coef_
    return 0.5 * np.sum((X @ u - y) ** 2) + l1 * np.abs(u).sum() + 0.5 * l2 * u @ u


def multinomial_optimum(blocks, l2):
    """Equal blocks: the mean over each block is one weight for all rows, so LogisticRegression(C) applies."""
    X, y = pooled(blocks)
    n = len(blocks[0][1])
    model = LogisticRegression(C=1 / (n * l2), fit_intercept=False, tol=1e-12, max_iter=10**5, solver="newton-cg")
    u = model.fit(X, y).coef_.T
    Z = X @ u
    return np.sum(logsumexp(Z, axis=1) - Z[np.arange(len(y)), y]) / n + 0.5 * l2 * np.sum(u * u)


def svm_optimum(blocks, l2, eps):
    X, y = pooled(blocks)
    n, y = len(blocks[0][1]), 2.0 * y - 1

    def objective(u):
        t = 1 - y * (X @ u)
        root = np.sqrt(t * t + eps * eps)
        value = np.sum(t + root) / (2 * n) + 0.5 * l2 * u @ u
        return value, -X.T @ (y * (1 + t / root)) / (2 * n) + l2 * u

    return minimize(objective, np.zeros(X.shape[1]), jac=True, method="BFGS", options={"gtol": 1e-11}).fun


def make(model, one_class):
    if model == "elastic-net":
        blocks = [(X, y.astype(float)) for X, y in class_blocks(one_class=one_class)]
        return least_squares(blocks), elastic_net_optimum(blocks, 0.05, 0.1)
    if model == "multinomial":
        blocks = class_blocks(one_class=one_class)
        return multinomial(blocks), multinomial_optimum(blocks, 0.1)
    blocks = class_blocks(classes=2, per_block=30, one_class=one_class)
    return svm(blocks), svm_optimum(blocks, 0.5, 0.1)


@pytest.mark.thin(4)
@pytest.mark.parametrize("one_class", [False, True], ids=["iid", "one-class"])
@pytest.mark.parametrize("method", LIMITS)
@pytest.mark.parametrize(("model", "solver"), [(m, s) for m in SOLVERS for s in SOLVERS[m]])
def test_reaches_the_optimum(model, solver, method, one_class):
    problem, optimum = make(model, one_class)

    def arrived(event):
        return event.row.kkt <= 1e-6 and abs(event.row.objective - optimum) <= 1e-6 * abs(optimum)

    limit = LIMITS[method][model]
    result = aq.solve(
        problem, method, local=solver, max_iter=limit, certificate_tol=0, evaluate_every=1, callbacks=[arrived]
    )
    gap = (result.objective - optimum) / abs(optimum)
    assert result.status == "interrupted", f"gap {gap:.1e}, KKT {result.certificate.kkt:.1e} after {result.n_iter}"
    assert gap >= -1e-9, "below the optimum: the oracle or the objective is wrong"
    assert not any(row.failed_blocks for row in result.history)
