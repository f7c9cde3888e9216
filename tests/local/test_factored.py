"""A factor of the Hessian at an earlier point: made when it pays, exact where it was made, of use for long."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import auqadmm as aq
from auqadmm.local import LocalProblem, Mixed, NewtonCG, cg
from auqadmm.local.newton_cg import NewtonMemory
from auqadmm.metrics.weights import Scalar
from tests.local.cases import CPU, gradient, local_problem, shard_of, sparse, start_of
from tests.local.cases import problem_of as posed

TALL = (12, 30, 12, 20)


@pytest.mark.parametrize("weights", ["scalar", "diagonal"])
@pytest.mark.parametrize("loss", ["Logistic", "Huber", "Poisson", "SmoothedHinge", "Quantile"])
def test_it_is_the_inverse(loss, weights):
    local = local_problem(shard_of(loss, TALL), weights)
    point = local.shard.linearize(start_of(local.shard))
    eye = torch.eye(5, dtype=torch.float64)[None, :, None].expand(4, 5, 1, 5)
    H = local.hvp(point, eye)[:, :, 0]
    x = start_of(local.shard, seed=8)
    found = cg.factored(local, point.hessian)
    torch.testing.assert_close(found.solve(x), torch.linalg.solve(H, x))
    some = found.take(torch.tensor([1, 3]), 4)
    torch.testing.assert_close(some.solve(x[[1, 3]]), found.solve(x)[[1, 3]])
    product = cg.KeptFactor(found.blocks, None, torch.cholesky_inverse(found.L))  # as on a GPU
    torch.testing.assert_close(product.solve(x), found.solve(x))


def test_where_it_suits(monkeypatch):
    assert cg.factor_is_applicable(shard_of("Logistic", TALL))
    assert not cg.factor_is_applicable(shard_of("Logistic", (4, 3)))  # fewer rows than features
    assert cg.factor_is_applicable(shard_of("Logistic", (30, 4)))
    assert not cg.factor_is_applicable(shard_of("Multinomial", TALL))
    assert not cg.factor_is_applicable(shard_of("SmoothedHinge", TALL))
    assert not cg.factor_is_applicable(sparse(posed("Logistic", TALL)).shard(torch.float64, CPU))
    monkeypatch.setattr(cg, "FACTOR_FEATURES", 4)
    assert not cg.factor_is_applicable(shard_of("Logistic", TALL))


def test_the_others_keep_the_diagonal():
    local = local_problem(shard_of("Logistic", (3, 30, 2, 20)), "diagonal")
    point = local.shard.linearize(start_of(local.shard))
    found = cg.factored(local, point.hessian)
    assert found.blocks.tolist() == [1, 3]
    assert found.take(torch.tensor([0, 1]), 4).blocks.tolist() == [1]
    assert found.take(torch.tensor([0, 2]), 4) is None
    eye = torch.eye(5, dtype=torch.float64)[None, :, None].expand(4, 5, 1, 5)
    H = local.hvp(point, eye)[:, :, 0]
    x = start_of(local.shard, seed=8)
    solved = replace(found, base=local.W).solve(x)
    torch.testing.assert_close(solved[[1, 3]], torch.linalg.solve(H, x)[[1, 3]])
    torch.testing.assert_close(solved[[0, 2]], local.W.solve(x)[[0, 2]])


def test_one_hard_block_among_easy_ones():
    """As on a GPU, where all blocks are solved together."""
    hard = hard_problem()
    rng = np.random.default_rng(1)
    raw = [(rng.normal(size=(6, 25)), np.sign(rng.normal(size=6))) for _ in range(5)]
    X, y = hard.shard.design.pieces[0].X[0].numpy(), hard.shard.target[:200].numpy()
    shard = aq.Problem(aq.Logistic(), aq.Zero(), [*raw[:2], (X, y), *raw[2:]]).shard(torch.float64, CPU)
    W = Scalar(torch.full((6,), 1e-4, dtype=torch.float64), *shard.shape[1:])
    u, memory, spent = shard.zeros(), None, []
    for k in range(8):
        local = LocalProblem(shard, W, shard.zeros() + 0.01 * k, shard.zeros())
        found = NewtonCG(tol=1e-8).solve(local, u, None, memory)
        assert found.converged.all()
        u, memory = found.u, found.memory
        spent.append(int(found.hvps[2]))
    assert memory.factor.blocks.tolist() == [2]
    assert max(spent[-3:]) < spent[0] / 4


def hard_problem(scale=1e4):
    """A Hessian whose diagonal says little of it, and small weights."""
    rng = np.random.default_rng(0)
    mix = np.linalg.qr(rng.normal(size=(25, 25)))[0] * np.geomspace(1, 1e-3, 25)
    blocks = []
    for _ in range(3):
        X = rng.normal(size=(200, 25)) @ mix @ mix.T
        blocks.append((X, np.where(X @ np.ones(25) + 0.1 * rng.normal(size=200) > 0, 1.0, -1.0)))
    shard = aq.Problem(aq.Logistic(), aq.Zero(), blocks).shard(torch.float64, CPU)
    W = Scalar(torch.full((3,), 1 / scale, dtype=torch.float64), *shard.shape[1:])
    return LocalProblem(shard, W, shard.zeros(), shard.zeros())


@pytest.mark.parametrize("solver", [NewtonCG(tol=1e-8), Mixed(tol=1e-8)], ids=lambda s: type(s).__name__)
def test_hard_systems_get_a_factor_and_are_easy_then(solver):
    local = hard_problem()
    u, memory, spent = local.shard.zeros(), None, []
    for k in range(8):
        posed_ = replace(local, v=local.v + 0.01 * k)
        found = solver.solve(posed_, u, None, memory)
        assert found.converged.all()
        assert gradient(posed_, found.u).max() <= 1e-8
        u, memory = found.u, found.memory
        spent.append(int(found.hvps.max()))
    assert isinstance(memory, NewtonMemory)
    assert memory.factor is not None
    assert max(spent[-3:]) < spent[0] / 4


def test_easy_systems_do_without():
    local = local_problem(shard_of("Logistic", TALL), "scalar")
    u, memory = start_of(local.shard), None
    for _ in range(6):
        found = NewtonCG(tol=1e-6).solve(local, u, None, memory)
        u, memory = found.u, found.memory
    assert memory.factor is None


def test_no_factor_in_rounded_numbers_is_no_harm(monkeypatch):
    local = hard_problem()
    nothing = lambda H: (torch.full_like(H, torch.nan), torch.ones(len(H), dtype=torch.int32))  # noqa: E731
    u, memory = local.shard.zeros(), None
    monkeypatch.setattr(torch.linalg, "cholesky_ex", nothing)
    for _ in range(3):
        found = NewtonCG(tol=1e-8).solve(local, u, None, memory)
        assert found.converged.all()
        memory = found.memory
    assert memory.factor is None
