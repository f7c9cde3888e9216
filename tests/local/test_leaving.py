"""Blocks that are solved leave the batch, and blocks of very different height are solved apart: the same solutions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import auqadmm as aq
from auqadmm.blocks.design import Design
from auqadmm.local import LBFGS, Mixed, NewtonCG, descent
from auqadmm.metrics.lowrank import LowRank
from tests.local.cases import gradient, local_problem, shard_of, start_of

SOLVERS = [LBFGS(tol=1e-9, max_iter=2000), NewtonCG(tol=1e-9)]


@pytest.fixture
def leave(monkeypatch):
    """Small problems too, and count who left."""
    monkeypatch.setattr(descent, "LEAVE_CPU", 0)
    left, plain = [], descent.part

    def spied(shard, keep, copies):
        left.append((shard.blocks, len(keep)))
        return plain(shard, keep, copies)

    monkeypatch.setattr(descent, "part", spied)
    return left


def almost_solved(local, solver, far):
    """A start at the solution, but for the blocks in `far`."""
    u0 = solver.solve(local, start_of(local.shard), None, None).u
    u0[far] += 1.0
    return u0


@pytest.mark.thin(2)
@pytest.mark.parametrize("weights", ["scalar", "diagonal", "dense", "curved"])
@pytest.mark.parametrize("loss", ["Multinomial", "Logistic", "SmoothedHinge"])
@pytest.mark.parametrize("solver", SOLVERS, ids=lambda s: type(s).__name__)
def test_the_others_go_on_to_the_same_solution(solver, loss, weights, leave, monkeypatch):
    local = local_problem(shard_of(loss, (9,) * 8), weights)
    with monkeypatch.context() as context:
        context.setattr(descent, "LEAVE_CPU", 2**62)
        u0 = almost_solved(local, solver, [2, 5])
        together = replace(solver, tol=1e-7).solve(local, u0, None, None)
        assert not leave
    apart = replace(solver, tol=1e-7).solve(local, u0, None, None)
    assert leave[0] == (8, 2)
    assert apart.converged.all()
    assert gradient(local, apart.u).max() <= 1e-7
    torch.testing.assert_close(apart.u, together.u, rtol=1e-6, atol=1e-6)
    assert apart.hvps.tolist() == pytest.approx(together.hvps.tolist(), abs=2)
    assert apart.iterations[[0, 1, 3, 4, 6, 7]].max() == 0


def test_memories_are_complete(leave):
    """After a solve in which blocks left, the next one starts with what all of them learned."""
    local = local_problem(shard_of("Logistic", (30,) * 8), "diagonal")
    solver = LBFGS(tol=1e-9, max_iter=500)
    first = solver.solve(local, start_of(local.shard), None, None)
    u0 = first.u.clone()
    u0[3] += 0.5
    calm = replace(first.memory, path=replace(first.memory.path, share=torch.zeros(8, dtype=torch.float64)))
    second = replace(solver, tol=1e-8).solve(local, u0, None, calm)
    assert leave
    same = [j for j in range(8) if j != 3]
    assert torch.equal(second.memory.inverse.S[same], first.memory.inverse.S[same])
    assert not torch.equal(second.memory.inverse.S[3], first.memory.inverse.S[3])
    steps = second.memory.inverse.S.mT.reshape(*local.shard.shape, -1)
    assert second.memory.inverse.Y.shape == second.memory.inverse.S.shape
    assert (steps * second.memory.inverse.Y.mT.reshape(steps.shape)).sum((1, 2)).min() >= 0  # curvature of every pair


def test_the_weights_of_auq_lr_are_not_factored_again():
    coins = torch.Generator().manual_seed(0)
    U = torch.linalg.qr(torch.randn(8, 5, 2, generator=coins, dtype=torch.float64))[0]
    ones = torch.ones(8, dtype=torch.float64)
    W = LowRank(U, torch.diag_embed(ones[:, None].expand(8, 2)), ones[:, None].expand(8, 5), ones[:, None, None], ones)
    W.ready()
    x = torch.randn(8, 5, 1, generator=coins, dtype=torch.float64)
    expected = W.solve(x)[[1, 4]]
    some = W.take(torch.tensor([1, 4]))
    assert "_inverse" in vars(some)
    torch.testing.assert_close(some.solve(x[[1, 4]]), expected)


def uneven_problem(loss=None):
    rng = np.random.default_rng(0)
    truth = rng.normal(size=6)
    blocks = []
    for n in (600, 5, 4, 6, 5, 0):
        X = rng.normal(size=(n, 6))
        blocks.append((X, np.where(X @ truth + rng.normal(size=n) > 0, 1.0, -1.0)))
    return aq.Problem(loss or aq.Logistic(), aq.L2(1.0), blocks)


@pytest.mark.parametrize("weights", ["scalar", "diagonal", "curved"])
def test_groups_are_solved_apart(weights):
    shard = uneven_problem().shard(torch.float64, torch.device("cpu"))
    assert [g.blocks.tolist() for g in shard.groups] == [[0], [1, 2, 3, 4, 5]]
    local = local_problem(shard, weights)
    expected = NewtonCG(tol=1e-9).solve(local, start_of(shard), None, None)
    solver, u, memory = Mixed(tol=1e-9), start_of(shard), None
    for _ in range(3):
        found = solver.solve(local, u, None, memory)
        assert found.converged.all()
        torch.testing.assert_close(found.u, expected.u, rtol=1e-6, atol=1e-7)
        u, memory = found.u, found.memory


def test_small_blocks_do_not_pay_for_the_huge_one(monkeypatch):
    """No product is one of all blocks."""
    problem = uneven_problem()
    shard = problem.shard(torch.float64, torch.device("cpu"))
    local = local_problem(shard, "scalar")
    calls = []
    plain = Design.adjoint
    monkeypatch.setattr(Design, "adjoint", lambda self, *z: calls.append(self.blocks) or plain(self, *z))
    Mixed(tol=1e-9).solve(local, start_of(shard), None, None)
    assert set(calls) == {1, 5}


@pytest.mark.parametrize("method", ["c-admm", "auq-admm", "auq-lr"])
@pytest.mark.thin(2)
def test_uneven_runs_end_at_the_optimum(method):
    problem = uneven_problem()
    found = aq.solve(problem, method, stop="certificate", certificate_tol=1e-9, max_iter=5000)
    tight = aq.solve(problem, "lbfgs", stop="certificate", certificate_tol=1e-12, max_iter=5000)
    assert found.objective == pytest.approx(tight.objective, rel=1e-8)
