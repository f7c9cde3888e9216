"""Newton's system of the few rows that bend: the bound on what is left, and solutions of sharp hinges in few steps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import auqadmm as aq
from auqadmm.local import Mixed, NewtonCG, newton_cg
from auqadmm.local.base import LocalProblem
from auqadmm.local.hinge import MOST_ROWS, active_row_inverse, active_rows, add_other_rows, is_applicable
from auqadmm.metrics.lowrank import LowRank
from auqadmm.metrics.weights import Scalar
from tests.local.cases import gradient, local_problem, shard_of, start_of


def margins(sizes=(400, 300), features=30, reduction="sum", eps=1e-3, seed=0):
    """A hinge of separable-but-for-noise rows."""
    rng = np.random.default_rng(seed)
    truth = rng.normal(size=features)
    blocks = []
    for n in sizes:
        X = rng.normal(size=(n, features))
        blocks.append((X, np.where(X @ truth + rng.normal(size=n) > 0, 1.0, -1.0)))
    loss = aq.SmoothedHinge(eps=eps, reduction=reduction)
    return aq.Problem(loss, aq.L2(1.0), blocks).placed().shard(torch.float64, torch.device("cpu"))


def near_corner(shard):
    """Local problems of weight 1 and a point where some rows are at their corner."""
    W = Scalar(torch.ones(shard.blocks, dtype=torch.float64), shard.shape[1], 1)
    local = LocalProblem(shard, W, shard.zeros(), 0.1 * start_of(shard))
    return local, NewtonCG(tol=1e-3).solve(local, start_of(shard), None, None).u


def low_rank(shard):
    blocks, m, _ = shard.shape
    coins = torch.Generator().manual_seed(4)
    U = torch.linalg.qr(torch.randn(blocks, m, 2, generator=coins, dtype=torch.float64)).Q
    M = torch.diag_embed(torch.tensor([3.0, 1.0], dtype=torch.float64)).repeat(blocks, 1, 1)
    d = 0.5 + torch.rand(blocks, m, generator=coins, dtype=torch.float64)
    one = torch.ones(blocks, 1, 1, dtype=torch.float64)
    return LowRank(U, M, d, one, torch.full((blocks,), 0.1, dtype=torch.float64))


def matrix(local, point, eta, active=None):
    """The rows that bend, and M made of them."""
    active = torch.ones(len(point.u), dtype=torch.bool) if active is None else active
    near = active_rows(local, point.hessian, torch.full((len(active),), eta, dtype=torch.float64), active)
    return near, active_row_inverse(add_other_rows(local, point.hessian_diagonal(), near), near)


@pytest.mark.parametrize("weights", ["scalar", "diagonal", "low-rank"])
@pytest.mark.parametrize("eta", [0.5, 0.1, 1e-3])
def test_what_is_left_of_the_system_is_within_the_bound(eta, weights):
    """Against the system itself, in the norm of the problem."""
    shard = shard_of("SmoothedHinge", (60, 40, 70))
    local = local_problem(shard, "scalar" if weights == "low-rank" else weights)
    if weights == "low-rank":
        local = replace(local, W=low_rank(shard))
    assert is_applicable(local)
    u = NewtonCG(tol=1e-2).solve(local, start_of(shard), None, None).u
    here = local.at(u)
    near, found = matrix(local, here.point, eta)
    assert found is not None
    P = -found.solve(here.grad)
    residual = local.norm(local.hvp(here.point.hessian, P) + here.grad)
    assert (~near.enough | (residual <= eta * here.grad_norm * (1 + 1e-9))).all()
    assert ((here.grad * P).sum((1, 2)) < 0).all()


@pytest.mark.parametrize(("eta", "enough"), [(1e-12, False), (1e3, True)])
def test_the_inverse_is_one(eta, enough):
    shard = margins()
    local, u = near_corner(shard)
    near, found = matrix(local, shard.linearize(u), eta)
    assert near.enough.tolist() == [enough] * 2
    d = shard.linearize(u).hessian.curvature.diagonal().reshape(-1)
    x = start_of(shard, seed=5)
    for j, rows in enumerate((slice(0, 400), slice(400, 700))):
        (piece,) = [p for p in shard.design.pieces if j in p.blocks.tolist()]
        X = piece.X[piece.blocks.tolist().index(j)]
        own = d[rows] if len(shard.design.pieces) == 2 else d.reshape(2, -1)[j]
        top = (own * X.square().sum(1)).topk(int(near.there[j].sum())).indices
        M = torch.eye(30, dtype=torch.float64) + X[top].T @ (own[top, None] * X[top])
        if not enough:  # the others, by their diagonal
            M += torch.diag(own @ X.square() - own[top] @ X[top].square())
        torch.testing.assert_close(found.solve(x)[j], torch.linalg.solve(M, x[j]), rtol=1e-8, atol=1e-8)


def test_blocks_that_are_done_ask_for_no_rows():
    shard = margins()
    local, u = near_corner(shard)
    near, none = matrix(local, shard.linearize(u), 0.1, torch.zeros(2, dtype=torch.bool))
    assert near.X.shape[1] == none.WA.shape[2] == 0
    x = start_of(shard)
    assert torch.equal(none.solve(x), x)


@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("tol", [1e-2, 1e-8])
def test_a_sharp_hinge_takes_few_steps(reduction, tol):
    shard = margins((3000, 2500), 60, reduction, eps=2e-4)
    W = Scalar(torch.ones(2, dtype=torch.float64), 60, 1)
    local = LocalProblem(shard, W, shard.zeros(), shard.zeros())
    found = Mixed(tol=tol).solve(local, shard.zeros(), None, None)
    assert found.converged.all()
    assert gradient(local, found.u).max() <= 1.05 * tol
    again = Mixed(tol=tol).solve(LocalProblem(shard, W, 0.05 * found.u, local.lam), found.u, None, found.memory)
    assert again.converged.all()
    assert again.hvps.max() <= 8


def test_who_is_suited():
    assert is_applicable(local_problem(shard_of("SmoothedHinge"), "scalar"))
    assert not is_applicable(local_problem(shard_of("SmoothedHinge"), "dense"))
    assert not is_applicable(local_problem(shard_of("Logistic"), "scalar"))
    assert not is_applicable(local_problem(shard_of("Huber"), "scalar"))
    assert not aq.SmoothedHinge(eps=0.5).cornered


def test_no_more_rows_than_there_is_room_for():
    """A wide corner: as many rows as may be, and it is said that they are not enough."""
    shard = margins((4000,), 600, "sum", eps=0.09)
    local, u = near_corner(shard)
    near, _ = matrix(local, shard.linearize(u), 1e-6)
    assert near.X.shape[1] == MOST_ROWS
    assert not near.enough.any()


def test_rows_that_are_left_out_count_too(monkeypatch):
    """Columns of very different size, and too many rows at the corner: still far fewer products than without."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(8000, 40)) * np.geomspace(1e-2, 1e2, 40)
    y = np.where(X @ np.geomspace(1e2, 1e-2, 40) + 20 * rng.normal(size=8000) > 0, 1.0, -1.0)
    loss = aq.SmoothedHinge(eps=1e-2, reduction="pooled")
    shard = aq.Problem(loss, aq.L2(1.0), [(X, y)]).placed().shard(torch.float64, torch.device("cpu"))
    local = LocalProblem(shard, Scalar(torch.ones(1, dtype=torch.float64), 40, 1), shard.zeros(), shard.zeros())
    solver = NewtonCG(tol=1e-6)
    leaps = solver.solve(local, shard.zeros(), None, None)
    monkeypatch.setattr(newton_cg, "LEAPS", 0)
    found = solver.solve(local, shard.zeros(), None, None)
    monkeypatch.setattr(newton_cg, "hinge_applies", lambda problem: False)
    plain = solver.solve(local, shard.zeros(), None, None)
    for one in (leaps, found):
        assert one.converged.all()
        torch.testing.assert_close(one.u, plain.u, rtol=1e-4, atol=1e-5)
    assert leaps.hvps.max() < plain.hvps.max()
    assert found.hvps.max() < 0.8 * plain.hvps.max()
