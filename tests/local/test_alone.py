"""A block solved alone and among others: the same steps, products and solution, solve after solve."""

from __future__ import annotations

import pytest
import torch

import auqadmm as aq
from auqadmm.blocks import single_precision
from auqadmm.local import LBFGS, LocalProblem, Mixed, NewtonCG, cg, descent, mixed
from auqadmm.metrics.weights import Diagonal, Scalar
from tests.local.cases import CPU, alone, data

SIZES = (300, 220, 60, 280, 14)
FEATURES = 9
SOLVES = 5


@pytest.fixture
def large(monkeypatch):
    """What pays for large data only."""
    monkeypatch.setattr(cg, "LEAVE_CPU", 0)
    monkeypatch.setattr(descent, "LEAVE_CPU", 0)
    monkeypatch.setattr(mixed, "SMALL_PRODUCT", 0)


def solved(shard, index, solver, kind):
    """Solve after solve, the weights of some blocks changing: u, products and steps of each."""
    _, m, C = shard.shape
    coins = torch.Generator().manual_seed(1)
    rho = 10 ** (2 * torch.rand(len(SIZES), generator=coins, dtype=torch.float64) - 3)
    shape = 0.5 + torch.rand(len(SIZES), m, C, generator=coins, dtype=torch.float64)
    v = torch.randn(m, C, generator=coins, dtype=torch.float64)
    lam = 0.01 * torch.randn(len(SIZES), m, C, generator=coins, dtype=torch.float64)
    u, memory, path = shard.zeros(), None, []
    for k in range(SOLVES):
        own = rho[index] * (1 + k // 3 * torch.tensor([j % 2 for j in index]))
        W = Scalar(own, m, C) if kind == "scalar" else Diagonal(own[:, None, None] * shape[index])
        local = LocalProblem(shard, W, shard.expand(0.6**k * v if k else 0 * v), k * 0.8**k * lam[index])
        found = solver.solve(local, u, 0.3 * 0.5**k if k else None, memory)
        u, memory = found.u, found.memory
        path.append((found.u, found.hvps, found.iterations))
    return path


def compared(loss, solver, kind, tolerance):
    problem = aq.Problem(getattr(aq, loss)(reduction="mean"), aq.Zero(), data(loss, SIZES, features=FEATURES))
    together = solved(problem.shard(torch.float64, CPU), list(range(len(SIZES))), solver, kind)
    for j in range(len(SIZES)):
        apart = solved(alone(problem, j), [j], solver, kind)
        for (u, hvps, steps), (v, *spent) in zip(together, apart, strict=True):
            assert [int(hvps[j]), int(steps[j])] == [int(x[0]) for x in spent]
            torch.testing.assert_close(u[j], v[0], rtol=tolerance, atol=tolerance)


@pytest.mark.thin(3)
@pytest.mark.parametrize("kind", ["scalar", "diagonal"])
@pytest.mark.parametrize("solver", [NewtonCG(), LBFGS(), Mixed()], ids=lambda s: type(s).__name__)
@pytest.mark.parametrize("loss", ["Multinomial", "Logistic", "Poisson"])
def test_alone_or_among_others(loss, solver, kind, large):
    compared(loss, solver, kind, 1e-10)


@pytest.mark.parametrize("solver", [NewtonCG(), Mixed()], ids=lambda s: type(s).__name__)
def test_small_problems(solver):
    compared("Multinomial", solver, "diagonal", 1e-10)


@pytest.mark.parametrize("kind", ["scalar", "diagonal"])
def test_hinges(kind):
    """Rounding grows where rows cross their corners: to the digits that are left, with solves to the end."""
    compared("SmoothedHinge", NewtonCG(tol=1e-10), kind, 1e-8)


@pytest.mark.parametrize("solver", [NewtonCG(), LBFGS(), Mixed()], ids=lambda s: type(s).__name__)
def test_single_precision(solver, large, monkeypatch):
    """Of sums of one block or of several, which round differently."""
    monkeypatch.setattr(single_precision, "SMALL_DATA", 0)
    compared("Logistic", solver, "scalar", 1e-4)


def test_a_block_that_single_precision_does_not_suit(large, monkeypatch):
    """It is multiplied in double precision, the others are not."""
    monkeypatch.setattr(single_precision, "SMALL_DATA", 0)
    blocks = data("Logistic", (60, 50, 70), features=FEATURES)
    blocks[1][0][:, 3] = 1e6 + blocks[1][0][:, 3]
    problem = aq.Problem(aq.Logistic(reduction="mean"), aq.Zero(), blocks)
    shard = problem.shard(torch.float64, CPU)
    assert shard.single_precision
    assert shard.design.coarse.tolist() == [False, True, False]
    assert [alone(problem, j).single_precision for j in range(3)] == [True, False, True]
    u = torch.randn(shard.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    exact, rough = shard.design.forward(u), shard.design.forward(u, single_precision=True)
    mine = shard.design.block_of_row == 1
    assert torch.equal(exact[mine], rough[mine])
    assert not torch.equal(exact[~mine], rough[~mine])
    for adjoint in (shard.design.adjoint, shard.design.adjoint_squared):
        torch.testing.assert_close(adjoint(exact, single_precision=True)[1], adjoint(exact)[1], rtol=1e-12, atol=0)
