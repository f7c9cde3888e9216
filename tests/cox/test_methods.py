"""Methods, penalties and checkpoints; certificates are proved."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
import torch

import auqadmm as aq
from tests.cox.rows import study, truth


def problem(penalty, **kind):
    return aq.Problem(aq.Cox(), penalty, study().blocks(**kind))


def test_newton_needs_few_rounds_and_proves_it():
    result = aq.solve(problem(aq.Zero()), "newton", certificate_tol=1e-12)
    assert result.status == "converged"
    assert result.n_iter <= 5
    assert result.certificate.evidence == "proved"
    np.testing.assert_allclose(result.coef, truth()["plain.efron.coef"], rtol=1e-8)


@pytest.mark.parametrize(
    "method", ["auq-lr", "lbfgs", "fista", "auto", pytest.param("c-admm", marks=pytest.mark.campaign)]
)
@pytest.mark.parametrize("penalty", [aq.Zero(), aq.L2(3.0), aq.ElasticNet(2.0, 0.5)])
def test_every_method_finds_the_optimum(method, penalty):
    if method == "lbfgs" and isinstance(penalty, aq.ElasticNet):
        return
    data = study()
    y, X = data.y(True, True), (data.X - [60, 0.5, 0]) / [9, 0.5, 1]
    blocks = [(X[data.site == s], y[data.site == s], data.weight[data.site == s]) for s in np.unique(data.site)]
    made = aq.Problem(aq.Cox(), penalty, blocks)
    best = aq.solve(made, "newton", certificate_tol=1e-12)
    result = aq.solve(made, method, certificate_tol=1e-6, max_iter=3000)
    assert result.status == "converged", result.message
    assert result.certificate.evidence == "proved"
    assert result.objective == pytest.approx(best.objective, rel=1e-6)


@pytest.mark.parametrize("l1", [40.0, 8.0, 1.0])
def test_a_path_of_l1_ends_where_its_subgradient_says(l1):
    """|∇f| ≤ l1 at zeros, −l1·sign elsewhere: the gradient by finite differences of the value."""
    rng = np.random.default_rng(0)
    X = np.where(rng.random((120, 12)) < 0.4, rng.normal(size=(120, 12)), 0.0)
    time = rng.exponential(np.exp(-X[:, 0] + 0.5 * X[:, 1])).round(1) + 0.1
    y = np.column_stack([time, rng.random(120) < 0.7])
    blocks = [(scipy.sparse.csr_matrix(X[i]), y[i]) for i in np.array_split(np.arange(120), 3)]
    made = aq.Problem(aq.Cox(), aq.L1(l1), blocks)
    coef = aq.solve(made, certificate_tol=1e-14).coef
    shard = made.shard(torch.float64, torch.device("cpu"))

    def f(u):
        return float(shard.linearize(shard.expand(torch.from_numpy(u)[:, None])).value.sum())

    step = 1e-5 * np.eye(12)
    G = np.array([f(coef + e) - f(coef - e) for e in step]) / 2e-5
    assert (np.abs(G[coef == 0]) <= l1 * (1 + 1e-6)).all()
    np.testing.assert_allclose(G[coef != 0], -l1 * np.sign(coef[coef != 0]), atol=1e-5 * l1)
    assert 0 < (coef != 0).sum() < 12 or l1 != 8.0


def test_far_columns():
    data = study()
    y = data.y()
    blocks = [(data.X[i] * [1e3, 1, 1e-4] + [1e6, 0, 3], y[i]) for i in (data.site == s for s in range(6))]
    found = aq.solve(aq.Problem(aq.Cox(), aq.Zero(), blocks), certificate_tol=1e-16, inference=True)
    np.testing.assert_allclose(found.coef * [1e3, 1, 1e-4], truth()["plain.efron.coef"], rtol=1e-8)
    vcov = truth()["plain.efron.vcov"].reshape(3, 3)
    np.testing.assert_allclose(found.inference().se * [1e3, 1, 1e-4], np.sqrt(np.diag(vcov)), rtol=1e-8)


def test_offsets_move_the_hazard():
    data = study()
    y, o = data.y(), 0.5 * data.X[:, 2]
    blocks = [(data.X[i], y[i], None, o[i]) for i in (data.site == s for s in range(6))]
    found = aq.solve(aq.Problem(aq.Cox(), aq.Zero(), blocks), certificate_tol=1e-18)
    np.testing.assert_allclose(found.coef + np.array([0, 0, 0.5]), truth()["plain.efron.coef"], rtol=1e-8)


@pytest.mark.parametrize("method", ["newton", "auq-lr"])
def test_a_run_goes_on_from_a_checkpoint(method, tmp_path):
    made = problem(aq.L2(1.0), entry=True, strata=True)
    kept = {"checkpoint": aq.Checkpoint(tmp_path, every=1), "certificate_tol": 1e-14}
    aq.solve(made, method, max_iter=2, **kept)
    found = aq.solve(made, method, **kept)
    whole = aq.solve(made, method, certificate_tol=1e-14)
    assert found.n_iter == whole.n_iter
    np.testing.assert_allclose(found.coef, whole.coef, rtol=1e-10)
    with pytest.raises(aq.CheckpointError):
        aq.solve(problem(aq.L2(1.0)), method, **kept)
