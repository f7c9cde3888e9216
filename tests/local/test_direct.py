"""Factorisations: kept while the weights stay the same, the two formulas agree, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

import auqadmm as aq
from auqadmm.local import Direct, LocalProblem
from auqadmm.local import direct as module
from auqadmm.metrics.weights import Diagonal, Scalar
from tests.alive import Alive
from tests.local.cases import (
    CPU,
    UNEVEN,
    WEIGHTS,
    gradient,
    local_problem,
    problem_of,
    shard_of,
    sparse,
    start_of,
    weights_of,
)
from tests.problems import least_squares, regression_blocks


@pytest.fixture
def factorisations(monkeypatch):
    """The shapes of the matrices factorised so far."""
    shapes = []
    plain = torch.linalg.cholesky_ex
    monkeypatch.setattr(torch.linalg, "cholesky_ex", lambda M: shapes.append(tuple(M.shape)) or plain(M))
    return shapes


def test_factors_are_reused_while_the_weights_are_the_same_object(factorisations):
    shard = shard_of("LeastSquares")
    local = local_problem(shard, "diagonal")
    first = Direct().solve(local, start_of(shard), None, None)
    assert factorisations == [(1, 5, 5)] * 3
    assert (first.hvps == 5).all()
    moved = replace(local, lam=-local.lam, v=local.v + 1)
    second = Direct().solve(moved, first.u, None, first.memory)
    assert len(factorisations) == 3
    assert all(part.inverted for part in second.memory.parts)  # weights that stay are worth an inverse
    assert (second.hvps == 0).all()
    third = Direct().solve(moved, first.u, None, second.memory)
    assert third.memory is second.memory
    assert torch.equal(third.u, second.u)
    fresh = Direct().solve(moved, first.u, None, None)
    torch.testing.assert_close(second.u, fresh.u, rtol=1e-12, atol=1e-13)


def test_new_weights_renew_the_factor_and_keep_the_gram_matrix(factorisations):
    shard = shard_of("LeastSquares", (8, 8, 3))
    local = local_problem(shard, "diagonal")
    first = Direct().solve(local, start_of(shard), None, None)
    other = replace(local, W=Diagonal(2 * local.W.d))
    second = Direct().solve(other, start_of(shard), None, first.memory)
    tall = [isinstance(part, module.TallFactor) for part in first.memory.parts]
    assert tall == [True, False]
    assert second.memory.parts[0].gram is first.memory.parts[0].gram
    assert len(factorisations) == 6
    assert second.hvps.tolist() == [0, 0, 3]
    torch.testing.assert_close(second.u, Direct().solve(other, start_of(shard), None, None).u)


def test_old_factors_make_room_for_new_ones_and_come_back_when_asked_for():
    shard = least_squares(regression_blocks((50,) * 8, features=40)).shard(torch.float64, CPU)
    local = local_problem(shard, "diagonal")
    first = Direct().solve(local, start_of(shard), None, None)
    old = first.memory.parts[0].factor
    kept, room, ref = old.clone(), old.nbytes, StorageWeakRef(old.untyped_storage())
    del old
    other = replace(local, W=Diagonal(2 * local.W.d))
    with Alive() as alive:
        second = Direct().solve(other, first.u, None, first.memory)
    assert ref.expired()
    assert alive.peak <= 1.5 * room
    torch.testing.assert_close(second.u, Direct().solve(other, start_of(shard), None, None).u)
    again = Direct().solve(local, start_of(shard), None, first.memory)
    assert torch.equal(again.memory.parts[0].factor, kept)
    assert torch.equal(again.u, first.u)


def test_equal_weights_that_are_another_object_are_not_trusted():
    shard = shard_of("LeastSquares")
    local = local_problem(shard, "scalar")
    first = Direct().solve(local, start_of(shard), None, None)
    twin = Scalar(local.W.rho, local.W.features, local.W.columns)
    assert Direct().solve(replace(local, W=twin), first.u, None, first.memory).memory is not first.memory


def test_the_memory_of_other_data_is_not_used():
    here, there = shard_of("LeastSquares", seed=0), shard_of("LeastSquares", seed=1)
    local = local_problem(here, "scalar")
    memory = Direct().solve(local, start_of(here), None, None).memory
    moved = LocalProblem(there, local.W, local.v, local.lam)
    found = Direct().solve(moved, start_of(here), None, memory)
    assert (gradient(moved, found.u) <= 1e-10).all()


@pytest.mark.parametrize("kind", WEIGHTS)
@pytest.mark.parametrize("sizes", [(4, 4, 4), (9, 3, 0, 5, 3)], ids=["one piece", "pieces"])
def test_woodbury_equals_cholesky(kind, sizes):
    """The same blocks with rows of weight 0 below them have more rows than features."""
    features = 6
    rng = np.random.default_rng(0)
    thin, padded = [], []
    for n in sizes:
        X, y, w = rng.normal(size=(n, features)), rng.normal(size=n), rng.uniform(0.5, 2, size=n)
        thin.append((X, y, w))
        more = np.ones((2 * features, features))
        padded.append((np.vstack([X, more]), np.append(y, more[:, 0]), np.append(w, np.zeros(len(more)))))
    models = []
    for blocks in (thin, padded):
        shard = aq.Problem(aq.LeastSquares(), aq.Zero(), blocks).shard(torch.float64, CPU)
        local = local_problem(shard, kind)
        found = Direct(tol=1e-11).solve(local, start_of(shard), None, None)
        assert found.converged.all()
        models.append(found)
    torch.testing.assert_close(models[0].u, models[1].u, rtol=1e-11, atol=1e-11)
    assert any(isinstance(part, module.WideFactor) for part in models[0].memory.parts)
    assert all(isinstance(part, module.TallFactor) for part in models[1].memory.parts)


@pytest.mark.parametrize("rows", [300, 40])
@pytest.mark.parametrize("weight", [1.0, 1e-6])
def test_refinement_reaches_rounding_where_the_matrix_is_ill_conditioned(rows, weight):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2 * rows, 80)) * np.logspace(0, -4, 80)
    blocks = [(X[:rows], X[:rows] @ np.ones(80)), (X[rows:], X[rows:] @ np.ones(80))]
    shard = aq.Problem(aq.LeastSquares(), aq.Zero(), blocks).shard(torch.float64, CPU)
    W = Scalar(torch.full((2,), weight, dtype=torch.float64), *shard.shape[1:])
    local = LocalProblem(shard, W, shard.zeros(), shard.zeros())
    found = Direct(tol=0.0).solve(local, start_of(shard), None, None)
    assert found.converged.all()
    assert (found.grad_norm <= 1e-14 * gradient(local, shard.zeros()) * rows).all()


def test_a_matrix_that_rounding_made_indefinite_is_lifted(factorisations):
    """Single precision: two equal columns of size 3e3 against a weight of 1e-3."""
    X = 3e3 * np.ones((40, 3)) + np.arange(40)[:, None]
    blocks = [(X, np.arange(40.0)), (np.eye(40)[:, :3], np.ones(40))]
    shard = aq.Problem(aq.LeastSquares(), aq.Zero(), blocks).shard(torch.float32, CPU)
    W = Scalar(torch.full((2,), 1e-3), *shard.shape[1:])
    local = LocalProblem(shard, W, shard.zeros(), shard.zeros())
    found = Direct(tol=1e-4).solve(local, shard.zeros(), None, None)
    assert len(factorisations) == 3  # one of them twice
    assert found.u.isfinite().all()
    assert found.grad_norm[0] < 1e-4 * gradient(local, shard.zeros())[0]
    assert found.converged[1]


def test_what_direct_cannot_solve_is_said_with_the_remedy():
    with pytest.raises(ValueError, match=r"Multinomial is not one; use local='newton-cg'"):
        Direct().solve(local_problem(shard_of("Multinomial")), start_of(shard_of("Multinomial")), None, None)
    shard = sparse(problem_of("LeastSquares", UNEVEN)).shard(torch.float64, CPU)
    with pytest.raises(ValueError, match=r"dense blocks and some are sparse; use local='newton-cg'"):
        Direct().solve(local_problem(shard), start_of(shard), None, None)


def test_factors_of_many_pieces_solve_the_system_of_each_block():
    shard = shard_of("LeastSquares", (12, 2, 0, 7, 2))
    W = weights_of("dense", shard.shape)
    local = LocalProblem(shard, W, shard.zeros(), shard.zeros())
    factors = Direct().solve(local, start_of(shard), None, None).memory
    assert len(factors.parts) == 4
    g = start_of(shard, seed=7)
    H = local.hvp(shard.linearize(shard.zeros()), factors.solve(g))
    torch.testing.assert_close(H, g, rtol=1e-10, atol=1e-10)
