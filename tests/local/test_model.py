"""What curvature is taken for before pairs tell more: against dense Hessians, and what it saves."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

import auqadmm as aq
from auqadmm.local import LBFGS, LocalProblem
from auqadmm.local import lbfgs as module
from auqadmm.local.lbfgs import is_outdated, model_at, reweight, same_kind
from auqadmm.metrics.lowrank import LowRank
from auqadmm.metrics.weights import Diagonal, Scalar
from tests.local.cases import CPU, gradient, local_problem, oracle, problem_of, shard_of, sparse, start_of

TALL = (60, 60, 60)


def point_of(shard, scale=1.0):
    coins = torch.Generator().manual_seed(3)
    return shard.linearize(scale * torch.randn(shard.shape, generator=coins, dtype=torch.float64).to(shard.dtype))


def dense_hessian(point):
    """(B, n, n), column by column."""
    B, m, C = point.u.shape
    columns = torch.eye(m * C, dtype=point.u.dtype).reshape(m * C, 1, m, C).expand(-1, B, -1, -1)
    return torch.stack([point.hvp(e).flatten(1) for e in columns], 2)


# ------------------------------------------------------------------ the model
@pytest.mark.parametrize("loss", ["LeastSquares", "Logistic", "Poisson"])
def test_one_column_and_every_direction_is_the_hessian(loss):
    shard = shard_of(loss, (160,) * 3)  # as many directions as features
    local, point = local_problem(shard, "scalar"), point_of(shard)
    found = model_at(local, point, None)
    assert isinstance(found, LowRank)
    torch.testing.assert_close(found.dense(), dense_hessian(point) + local.W.dense(), rtol=1e-9, atol=1e-9)


def test_rows_that_bend_alike_are_known_exactly():
    """At u = 0 the curvature of a softmax is the same for all rows: a Kronecker product."""
    shard = shard_of("Multinomial", (160,) * 3)
    local, point = local_problem(shard, "scalar"), shard.linearize(torch.zeros(shard.shape, dtype=torch.float64))
    found = model_at(local, point, None)
    torch.testing.assert_close(found.dense(), dense_hessian(point) + local.W.dense(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("loss", ["Multinomial", "Logistic"])
def test_few_directions_keep_diagonal_and_trace(loss):
    """U_jᵀA_jU_j and the diagonal of A_j are exact whatever U_j is, for A_j the sum over columns."""
    shard = shard_of(loss, TALL)
    local, point = local_problem(shard, "scalar"), point_of(shard)
    found = model_at(local, point, None)
    B, m, C = shard.shape
    assert found.U.shape[2] == 3 < m
    A = dense_hessian(point).reshape(B, m, C, m, C).diagonal(dim1=2, dim2=4).sum(-1)
    low = found.U @ found.M @ found.U.mT
    torch.testing.assert_close(found.U.mT @ A @ found.U, found.M)
    own, left = A.diagonal(dim1=1, dim2=2), low.diagonal(dim1=1, dim2=2)
    torch.testing.assert_close(found.d, (own - left).clamp(min=0))
    torch.testing.assert_close(found.S.diagonal(dim1=1, dim2=2).sum(1), torch.ones(B, dtype=torch.float64))


def test_directions_get_better_each_time():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 12)) * np.geomspace(3, 0.3, 12) @ np.linalg.qr(rng.normal(size=(12, 12)))[0]
    problem = aq.Problem(aq.LeastSquares(), aq.Zero(), [(X, X[:, 0])])
    shard = problem.shard(torch.float64, CPU)
    local = LocalProblem(shard, Scalar(torch.ones(1, dtype=torch.float64), 12, 1), *torch.zeros(2, 1, 12, 1).double())
    best = np.linalg.eigvalsh(X.T @ X)[::-1][:12].sum()
    found, traces = None, []
    for _ in range(4):
        found = model_at(local, local.at(torch.zeros(1, 12, 1, dtype=torch.float64)).point, found)
        traces.append(float(found.M.diagonal(dim1=1, dim2=2).sum()))
    assert all(b >= a * (1 - 1e-12) for a, b in itertools.pairwise(traces))
    assert traces[-1] <= best * (1 + 1e-12)


def test_blocks_without_rows_or_numbers():
    """No rows: W_j alone. Curvature that is not a number spoils no other block."""
    problem = aq.Problem(aq.Poisson(), aq.Zero(), [(np.ones((80, 5)), np.ones(80)), (np.ones((0, 5)), np.ones(0))])
    shard = problem.shard(torch.float64, CPU)
    zeros = torch.zeros(2, 5, 1, dtype=torch.float64)
    local = LocalProblem(shard, Scalar(torch.tensor([2.0, 3.0]).double(), 5, 1), zeros, zeros)
    found = model_at(local, shard.linearize(zeros), None)
    torch.testing.assert_close(found.dense()[1], 3.0 * torch.eye(5, dtype=torch.float64))
    far = torch.full_like(zeros, float("nan"))
    found = model_at(local, shard.linearize(far), None)
    torch.testing.assert_close(found.dense()[0], 2.0 * torch.eye(5, dtype=torch.float64))
    assert found.solve(torch.ones_like(zeros)).isfinite().all()


@pytest.mark.parametrize("kind", ["diagonal", "dense"])
def test_other_weights_get_the_diagonal(kind):
    shard = shard_of("Multinomial", TALL)
    local, point = local_problem(shard, kind), point_of(shard)
    found = model_at(local, point, None)
    assert isinstance(found, Diagonal)
    assert same_kind(found, local, point)
    torch.testing.assert_close(found.d, point.hessian_diagonal() + local.W.diagonal())


@pytest.mark.parametrize("loss", ["SmoothedHinge", "Huber", "Quantile"])
def test_curvature_of_a_moment_gets_the_diagonal(loss):
    shard = shard_of(loss, TALL)
    assert isinstance(model_at(local_problem(shard, "scalar"), point_of(shard), None), Diagonal)


def test_sparse_and_few_rows_get_the_diagonal():
    thin = shard_of("Logistic")
    assert isinstance(model_at(local_problem(thin, "scalar"), point_of(thin), None), Diagonal)
    spread = sparse(problem_of("Logistic", TALL)).shard(torch.float64, CPU)
    assert isinstance(model_at(local_problem(spread, "scalar"), point_of(spread), None), Diagonal)


@pytest.mark.parametrize("kind", ["scalar", "diagonal"])
def test_it_follows_the_weights(kind):
    shard = shard_of("Logistic", (160,) * 3)
    before, point = local_problem(shard, kind, seed=1), point_of(shard)
    after = replace(before, W=local_problem(shard, kind, seed=2).W)
    found = reweight(model_at(before, point, None), before.W, after.W)
    torch.testing.assert_close(found.dense(), model_at(after, point, None).dense(), rtol=1e-9, atol=1e-12)


def test_it_is_renewed_where_the_curvature_went():
    shard = shard_of("Multinomial", TALL)
    local = local_problem(shard, "scalar")
    zero = torch.zeros(shard.shape, dtype=torch.float64)
    found = model_at(local, shard.linearize(zero), None)
    assert not is_outdated(found, shard.linearize(zero)).any()
    own = torch.tensor([0.0, 40.0, 0.0]).double()[:, None, None] * torch.randn(shard.shape, dtype=torch.float64)
    assert is_outdated(found, shard.linearize(own)).tolist() == [False, True, False]


# ------------------------------------------------------------------ what it is good for
def wide(columns=3, rows=120, features=30):
    """Two blocks whose rows lie along a few directions, one class each but for a tenth."""
    rng = np.random.default_rng(0)
    blocks = []
    for j in range(2):
        X = rng.normal(size=(rows, features)) * np.geomspace(6, 0.05, features)
        blocks.append((X, np.where(rng.random(rows) < 0.1, rng.integers(0, columns, rows), j)))
    return aq.Problem(aq.Multinomial(), aq.L2(1.0), blocks)


def test_it_saves_steps(monkeypatch):
    options = {"max_iter": 20, "abs_tol": 0.0, "rel_tol": 0.0, "stop": "residuals", "local": LBFGS()}
    few = aq.solve(wide(), "c-admm", **options)
    monkeypatch.setattr(module, "MODEL_RANK", 0)
    none = aq.solve(wide(), "c-admm", **options)
    assert few.history[-1].hvps < 0.7 * none.history[-1].hvps
    torch.testing.assert_close(few.v, none.v, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_both_precisions_meet_the_goal(dtype):
    shard = shard_of("Multinomial", TALL, dtype=getattr(torch, dtype))
    local = local_problem(shard, "scalar")
    tol = {"float32": 1e-4, "float64": 1e-9}[dtype]
    found = LBFGS(tol=tol, max_iter=1000).solve(local, start_of(shard), None, None)
    assert found.converged.all()
    assert isinstance(found.memory.inverse.model, LowRank)
    assert gradient(local, found.u).max() <= 10 * tol
    expected = oracle("Multinomial", TALL, "scalar").to(found.u.dtype)
    torch.testing.assert_close(found.u, expected, rtol=1e-2, atol=1e3 * tol)


@pytest.mark.parametrize("after", [3, 7])
def test_a_run_that_was_interrupted_goes_on_to_the_same_bits(after, tmp_path):
    options = {"local": LBFGS(), "abs_tol": 0.0, "rel_tol": 0.0, "stop": "residuals"}
    whole = aq.solve(wide(), "c-admm", max_iter=12, **options)
    aq.solve(wide(), "c-admm", max_iter=after, checkpoint=tmp_path, **options)
    again = aq.solve(wide(), "c-admm", max_iter=12, checkpoint=tmp_path, **options)
    assert torch.equal(again.v, whole.v)
    assert again.history[-1].hvps == whole.history[-1].hvps
