"""AUQ-LR watches F: a run that has lost its way goes back to its best v, once, and on without over-relaxation."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

import auqadmm as aq


@pytest.fixture(scope="module")
def separable():
    Z = np.random.default_rng(0).normal(size=(300, 6))
    return Z, np.sign(Z[:, 0] + 1e-9)


def problem_of(separable):
    Z, y = separable
    return aq.Problem(aq.Logistic(), aq.L2(1e-6), [(Z[j::4], y[j::4]) for j in range(4)], intercept=True)


def test_it_goes_home_once_and_arrives(separable):
    relaxations, homes = [], []

    def watch(event):
        told = event.state.shared.memory.directive
        relaxations.append(told.relaxation)
        homes.append(told.home is not None)

    run = aq.solve(problem_of(separable), "auq-lr", max_iter=60, certificate_tol=1e-6, callbacks=[watch])
    assert run.status == "converged", run.message
    assert sum(homes) == 1
    k = homes.index(True)
    assert set(relaxations[:k]) == {1.8}
    assert set(relaxations[k:]) == {1.0}
    Z, y = separable
    peer = LogisticRegression(C=1e6, tol=1e-10, max_iter=10_000, solver="newton-cholesky").fit(Z, y)
    F = float(np.logaddexp(0, -y * peer.decision_function(Z)).sum() + 5e-7 * (peer.coef_**2).sum())
    assert run.objective == pytest.approx(F, rel=1e-5)


def test_a_run_that_falls_stays_as_it_was():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(200, 5))
    y = np.sign(X @ rng.normal(size=5) + rng.normal(size=200))
    problem = aq.Problem(aq.Logistic(), aq.L2(1.0), [(X[j::4], y[j::4]) for j in range(4)])
    told = []
    aq.solve(problem, "auq-lr", callbacks=[lambda event: told.append(event.state.shared.memory.directive)])
    assert all(d.home is None and d.relaxation == 1.8 for d in told)
