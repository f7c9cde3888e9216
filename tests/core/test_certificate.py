"""The certificate against definitions: KKT residual, duality gap, their scale (S10)."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import auqadmm as aq
from auqadmm.core.reduce import Reduce
from auqadmm.engines.local import LocalEngine
from auqadmm.verdict.duality import Certifier
from tests.problems import class_blocks, regression_blocks

LOSSES = {
    "least-squares": (aq.LeastSquares(), "real"),
    "huber": (aq.Huber(0.3), "real"),
    "quantile": (aq.Quantile(0.7, eps=0.2), "real"),
    "poisson": (aq.Poisson(), "count"),
    "logistic": (aq.Logistic(), "class"),
    "hinge": (aq.SmoothedHinge(0.1), "class"),
    "multinomial": (aq.Multinomial(), "class"),
}
PENALTIES = {
    "l2": aq.L2(0.7),
    "elastic-net": aq.ElasticNet(0.4, 0.3),
    "l1": aq.L1(0.8),
    "group": aq.GroupLasso(0.5, groups=[0, 0, 1, 1, 2]),
    "box": aq.Box(-0.3, 0.4),
}


def make(loss, penalty):
    loss, kind = LOSSES[loss]
    blocks = class_blocks(classes=2, per_block=12)
    if kind != "class":
        blocks = [(X, np.floor(2 * np.abs(X[:, 0])) if kind == "count" else X[:, 0] + y) for X, y in blocks]
    return aq.Problem(loss, PENALTIES[penalty], blocks)


def certifier(problem):
    shard = problem.shard(torch.float64, torch.device("cpu"))
    zero = torch.zeros(shard.shape[1:], dtype=torch.float64)
    return Certifier(Reduce(LocalEngine(shard)), problem.g, zero)


@pytest.mark.thin(8)
@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize("loss", LOSSES)
def test_gap_bounds_the_suboptimality_and_closes(loss, penalty):
    problem = make(loss, penalty)
    best = aq.solve(problem, "ac-admm", max_iter=3000, certificate_tol=1e-12)
    assert best.status == "converged"
    judge = certifier(problem)
    rng = np.random.default_rng(0)
    for size in (1.0, 1e-2, 1e-4):
        v = best.v + size * torch.from_numpy(rng.normal(size=best.v.shape))
        if penalty == "box":
            v = v.clamp(-0.3, 0.4)
        found = judge.certify(v)
        assert found.gap >= found.objective - best.objective - 1e-8 * abs(best.objective)
    assert judge.certify(best.v).gap <= 1e-4 * abs(best.objective)


@given(seed=st.integers(0, 10**6), l2=st.floats(1e-3, 1e3), size=st.floats(0, 10))
def test_gap_is_at_most_kkt_squared_over_twice_l2(seed, l2, size):
    problem = aq.Problem(aq.LeastSquares(), aq.ElasticNet(0.3, l2), regression_blocks())
    judge = certifier(problem)
    v = size * torch.from_numpy(np.random.default_rng(seed).normal(size=(6, 1)))
    found = judge.certify(v)
    G = sum(X.T @ (X @ v.numpy() - y[:, None]) for X, y in regression_blocks())
    distance = float(problem.g.subgradient_distance(v, torch.from_numpy(G)))
    assert found.gap <= distance**2 / (2 * l2) * (1 + 1e-9) + 1e-9


def test_kkt_is_the_distance_over_the_scale():
    blocks = regression_blocks()
    problem = aq.Problem(aq.LeastSquares(), aq.L2(0.7), blocks)
    v = np.linspace(-1, 1, 6)[:, None]
    grads = [X.T @ (X @ v - y[:, None]) for X, y in blocks]
    at_zero = np.linalg.norm(sum(X.T @ y for X, y in blocks))
    expected = np.linalg.norm(sum(grads) + 0.7 * v) / (at_zero + sum(np.linalg.norm(g) for g in grads))
    found = certifier(problem).certify(torch.from_numpy(v))
    assert found.kkt == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("c", [1e-8, 1.0, 1e8])
def test_scaling_the_problem_does_not_change_the_verdict(c):
    """v = 0 is not certified just because the objective is small."""
    blocks = [(np.sqrt(c) * X, np.sqrt(c) * y) for X, y in regression_blocks()]
    problem = aq.Problem(aq.LeastSquares(), aq.L2(0.7 * c), blocks)
    found = aq.solve(problem, "auq-lr", max_iter=0).certificate
    assert found.kkt == pytest.approx(0.5, abs=0.3)
    assert not found.passes(1e-3)
    plain = aq.solve(aq.Problem(aq.LeastSquares(), aq.L2(0.7), regression_blocks()), "auq-lr", max_iter=0).certificate
    assert found.relative == pytest.approx(plain.relative, rel=1e-9)
    assert found.relative > 1e-2
    assert certifier(problem).certify(torch.zeros(6, 1, dtype=torch.float64)).gap > 1e-2 * found.objective


@pytest.mark.parametrize(
    "regularizer",
    [aq.Zero(), aq.NonNegative(), aq.CustomRegularizer(lambda v: 0 * v.sum(), lambda s, K: s / K), aq.Box(0, np.inf)],
)
def test_no_finite_dual_means_no_gap(regularizer):
    problem = aq.Problem(aq.LeastSquares(), regularizer, regression_blocks())
    assert aq.solve(problem, max_iter=2).certificate.gap is None


def test_custom_loss_has_a_gap_exactly_where_no_conjugate_is_needed():
    loss = aq.CustomLoss(lambda u, X, y: 0.5 * (X @ u - y) ** 2)
    for regularizer, known in ((aq.L2(1.0), True), (aq.L1(0.1), False)):
        problem = aq.Problem(loss, regularizer, regression_blocks())
        found = certifier(problem).certify(torch.ones(6, 1, dtype=torch.float64))
        assert (found.gap is not None) == known


def test_a_model_of_zero_data_is_optimal():
    problem = aq.Problem(aq.LeastSquares(), aq.L2(1.0), [(np.zeros((3, 2)), np.zeros(3))])
    run = aq.solve(problem)
    assert run.status == "converged"
    assert run.certificate.kkt == 0.0
