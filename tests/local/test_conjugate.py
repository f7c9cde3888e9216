"""Conjugate gradients of many blocks against dense matrices: what is read, and what adds up."""

from __future__ import annotations

import pytest
import torch

from auqadmm.blocks import single_precision
from auqadmm.blocks.design import DensePiece
from auqadmm.local import NewtonCG, cg
from auqadmm.local.cg import CGState, NewtonSystem, cg_step, open_runs, zero_products
from auqadmm.metrics.weights import dot
from tests.local.cases import EVEN, gradient, local_problem, shard_of, start_of

FOUR = (30, 30, 30, 30)


@pytest.fixture
def every(monkeypatch):
    """Small problems too."""
    monkeypatch.setattr(cg, "LEAVE_CPU", 0)
    monkeypatch.setattr(single_precision, "SMALL_DATA", 0)


def dense(design):
    """X (R, B·m): every block's rows at its own columns."""
    X = torch.zeros(design.rows, design.blocks, design.features, dtype=torch.float64)
    first = 0
    for piece in design.pieces:
        rows = piece.X.flatten(0, 1)
        X[torch.arange(first, first + len(rows)), design.block_of_row[first : first + len(rows)]] = rows
        first += len(rows)
    return X.flatten(1)


@pytest.mark.parametrize("left", [[True, False, True], [False, True, True], [False, True, False]])
@pytest.mark.parametrize("lightly", [False, True])
@pytest.mark.parametrize("heights", [EVEN, (11, 0, 5)])
def test_products_of_some_blocks(heights, lightly, left, every):
    local = local_problem(shard_of("Logistic", heights), "scalar")
    design, runs = local.shard.design, open_runs(local, torch.tensor(left))
    assert [j for run in runs for j in range(run.start, run.stop)] == [j for j in range(3) if left[j]]
    coins, X = torch.Generator().manual_seed(0), dense(design)
    inside = torch.tensor(left)
    u = torch.randn(3, design.features, 1, generator=coins, dtype=torch.float64) * inside[:, None, None]
    z = torch.randn(design.rows, 1, generator=coins, dtype=torch.float64) * inside[design.block_of_row, None]
    close = {"rtol": 1e-5, "atol": 1e-5} if lightly else {"rtol": 1e-12, "atol": 1e-12}
    torch.testing.assert_close(design.forward(u, lightly, runs), X @ u.reshape(-1, 1), **close)
    torch.testing.assert_close(design.adjoint(z, lightly, runs).reshape(-1, 1), X.T @ z, **close)


def test_all_blocks_and_small_ones_need_no_runs(every, monkeypatch):
    local = local_problem(shard_of("Logistic", EVEN), "scalar")
    assert open_runs(local, torch.tensor([True] * 3)) == ()
    assert open_runs(local, torch.tensor([False] * 3)) is None
    monkeypatch.setattr(cg, "SCATTERED_RUNS", 1)
    assert open_runs(local, torch.tensor([True, False, True])) == ()
    monkeypatch.setattr(cg, "BLOCKS_UNASKED", 2)
    assert open_runs(local, torch.tensor([False, True, True])) == ()
    assert open_runs(local, torch.tensor([False] * 3)) is None
    monkeypatch.setattr(cg, "LEAVE_CPU", 10**9)
    assert open_runs(local, torch.tensor([True, False, True])) == ()


@pytest.mark.parametrize("weights", ["scalar", "curved"])
@pytest.mark.parametrize("loss", ["Logistic", "Multinomial"])
def test_rows_add_up_and_blocks_at_rest_stay(loss, weights, every):
    local = local_problem(shard_of(loss, FOUR), weights)
    here = local.at(start_of(local.shard))
    open_ = torch.tensor([True, False, True, True])
    r = torch.where(open_[:, None, None], -here.grad, 0.0)
    p = local.W.solve(r)
    count, XP = torch.zeros(4, dtype=torch.int64), zero_products(here.point)
    way = CGState(torch.zeros_like(r), r, p, dot(r, p), open_, count, XP)
    system = NewtonSystem(here.point.hessian, local.W, 1e-9 * here.grad_norm)
    for _ in range(4):
        way = cg_step(way, system, local, 100, open_runs(local, way.open) or ())
    expected = dense(local.shard.design) @ way.P.reshape(-1, way.P.shape[2])
    torch.testing.assert_close(way.XP, expected, rtol=1e-10, atol=1e-10)
    assert not way.P[1].any()
    assert way.hvps[1] == 0
    residual = -here.grad - local.hvp(here.point, way.P)
    torch.testing.assert_close(way.r[open_], residual[open_], rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("tol", [1e-3, 1e-8])
@pytest.mark.parametrize("weights", ["scalar", "diagonal", "curved"])
def test_blocks_that_are_solved_are_not_read(weights, tol, every, monkeypatch):
    """One block starts at its solution, one near it."""
    monkeypatch.setenv("AUQADMM_LIGHT", "0")
    local = local_problem(shard_of("Logistic", FOUR), weights)
    u = start_of(local.shard)
    exact = NewtonCG(tol=1e-11).solve(local, u, None, None).u
    u[1], u[2] = exact[1], exact[2] + 1e-3
    read = []
    plain = DensePiece.forward
    monkeypatch.setattr(
        DensePiece, "forward", lambda self, *x: read.append(x[2] if len(x) > 2 else ()) or plain(self, *x)
    )
    found = NewtonCG(tol=tol).solve(local, u, None, None)
    assert found.converged.all()
    assert gradient(local, found.u).max() <= tol
    torch.testing.assert_close(found.u, exact, rtol=0, atol=100 * tol)
    assert torch.equal(found.u[1], exact[1])
    assert sum(bool(runs) for runs in read) >= found.hvps.max()
    assert not any(run.start <= 1 < run.stop for runs in read for run in runs)
