"""When a block counts as solved, what it cost, and what happens when numbers fail."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import auqadmm as aq
from auqadmm.blocks.curvature import RowHessian
from auqadmm.blocks.rows import RowPoint
from auqadmm.local import LBFGS, Direct, LocalProblem, NewtonCG, Released
from auqadmm.metrics.weights import Scalar
from tests.local.cases import (
    CPU,
    EVEN,
    UNEVEN,
    alone,
    gradient,
    local_problem,
    oracle,
    problem_of,
    shard_of,
    start_of,
)

EXACT = [Direct(tol=1e-9), NewtonCG(tol=1e-9), LBFGS(tol=1e-9, max_iter=2000)]
ALL = [*EXACT, Released()]
ITERATIVE = [NewtonCG, LBFGS]


def ids(x):
    return x.__name__ if isinstance(x, type) else type(x).__name__


# ------------------------------------------------------------------ targets
@pytest.mark.parametrize("Solver", ITERATIVE, ids=ids)
def test_the_target_is_the_tolerance_or_follows_the_reference(Solver):
    local = local_problem(shard_of("Multinomial"), "diagonal")
    u0 = start_of(local.shard)
    for solver, reference, target in [
        (Solver(tol=1e-3), 100.0, 1e-3),
        (Solver(), 0.5, 0.05),
        (Solver(factor=0.01), 0.5, 0.005),
    ]:
        found = solver.solve(local, u0, reference, None)
        assert found.converged.all()
        assert (gradient(local, found.u) <= 1.01 * target).all()
    loose = Solver().solve(local, u0, 1e6, None)
    assert torch.equal(loose.u, u0)  # already there: no work
    assert loose.converged.all()
    assert loose.iterations.sum() == loose.hvps.sum() == 0


@pytest.mark.parametrize("Solver", ITERATIVE, ids=ids)
def test_without_a_reference_the_gradient_falls_below_a_share_of_the_step(Solver):
    local = local_problem(shard_of("SmoothedHinge"), "scalar")
    u0 = start_of(local.shard)
    found = Solver().solve(local, u0, None, None)
    size = local.W.apply(found.u - local.v).flatten(1).norm(dim=1)
    assert found.converged.all()
    assert (gradient(local, found.u) <= 0.101 * torch.minimum(size, gradient(local, u0))).all()


def test_small_weights_do_not_excuse_a_coarse_first_solve():
    """From u = v = 0 with a steep loss, a tenth of the gradient would leave u a hundred times too large."""
    rng = np.random.default_rng(0)
    X = np.abs(rng.normal(size=(300, 40)))
    blocks = [(X, np.ones(300)), (X[:250], -np.ones(250))]
    shard = aq.Problem(aq.SmoothedHinge(), aq.Zero(), blocks).shard(torch.float64, CPU)
    W = Scalar(torch.full((2,), 0.1, dtype=torch.float64), *shard.shape[1:])
    local = LocalProblem(shard, W, shard.zeros(), shard.zeros())
    rough = NewtonCG().solve(local, shard.zeros(), None, None)
    exact = NewtonCG(tol=1e-10).solve(local, shard.zeros(), None, None)
    assert rough.converged.all()
    assert ((rough.u - exact.u).flatten(1).norm(dim=1) <= 0.1 * exact.u.flatten(1).norm(dim=1)).all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("solver", EXACT, ids=ids)
def test_a_block_at_the_limit_of_rounding_is_converged(solver, dtype):
    """Columns that cancel: the gradient cannot get near an ulp of its own norm."""
    rng = np.random.default_rng(0)
    X = 30 * (1 + 1e-2 * rng.normal(size=(60, 12)))
    blocks = [(X[:20], 0 * X[:20, 0]), (X[20:50], rng.normal(size=30)), (X[50:], rng.normal(size=10))]
    shard = aq.Problem(aq.LeastSquares(), aq.Zero(), blocks).shard(dtype, CPU)
    local = local_problem(shard, "dense")
    solver = replace(solver, tol=0.0)
    found = solver.solve(local, start_of(shard), None, None)
    again = solver.solve(local, found.u, None, found.memory)
    assert again.converged.all()
    assert (again.iterations <= 50).all()


@pytest.mark.parametrize("Solver", ITERATIVE, ids=ids)
@pytest.mark.parametrize("loss", ["Multinomial", "SmoothedHinge", "Poisson"])
def test_one_step_is_not_called_converged(Solver, loss):
    local = local_problem(shard_of(loss), "dense")
    found = Solver(tol=1e-12, max_iter=1).solve(local, start_of(local.shard), None, None)
    assert not found.converged.any()
    assert (found.iterations == 1).all()
    torch.testing.assert_close(gradient(local, found.u), found.grad_norm, rtol=1e-6, atol=0)
    assert (found.grad_norm > 1e-12).all()


def test_truncated_conjugate_gradients_are_not_called_converged():
    local = local_problem(shard_of("LeastSquares", features=12), "dense")
    found = NewtonCG(tol=1e-10, max_iter=1, max_cg=2).solve(local, start_of(local.shard), None, None)
    assert not found.converged.any()


def test_newton_is_superlinear():
    local = local_problem(shard_of("Multinomial"), "dense")
    found = NewtonCG(tol=1e-11).solve(local, start_of(local.shard), None, None)
    assert found.converged.all()
    assert found.iterations.max() <= 10


# ------------------------------------------------------------------ cost
@pytest.mark.parametrize("loss", ["LeastSquares", "Multinomial", "Huber"])
@pytest.mark.parametrize("solver", EXACT[1:], ids=ids)
def test_products_are_counted(solver, loss, monkeypatch):
    """Of a block on its own, every product is its own; among others, it never pays for them.

    A product is one with the Hessian, or a step of L-BFGS, which reads X as often.
    """
    calls = []
    plain, ray = RowHessian.both, RowPoint.line
    monkeypatch.setattr(RowHessian, "both", lambda self, *P: calls.append(1) or plain(self, *P))
    if isinstance(solver, LBFGS):
        monkeypatch.setattr(RowPoint, "line", lambda self, P: calls.append(1) or ray(self, P))
    problem = problem_of(loss, UNEVEN)
    local = local_problem(problem.shard(torch.float64, CPU), "scalar")
    u0 = start_of(local.shard)
    together = solver.solve(local, u0, None, None)
    assert 0 < together.hvps.max() <= len(calls) <= together.hvps.sum()
    for j in range(local.shard.blocks):
        calls.clear()
        W = Scalar(local.W.rho[j : j + 1], *local.shard.shape[1:])
        rows = slice(j, j + 1)
        single = LocalProblem(alone(problem, j), W, local.v[rows], local.lam[rows])
        assert solver.solve(single, u0[rows], None, None).hvps.sum() == len(calls)


@pytest.mark.parametrize("solver", [*EXACT[1:]], ids=ids)
def test_a_solved_block_costs_nothing_more(solver):
    local = local_problem(shard_of("Multinomial"), "diagonal")
    u0 = start_of(local.shard)
    u0[1] = oracle("Multinomial", EVEN, "diagonal")[1]
    found = replace(solver, tol=1e-7).solve(local, u0, None, None)
    assert found.iterations[1] == found.hvps[1] == 0
    assert torch.equal(found.u[1], u0[1])
    assert (found.iterations[[0, 2]] > 0).all()


def test_line_searches_leave_the_data_alone(monkeypatch):
    """A Newton step multiplies with X once along its direction, whatever the number of trials."""
    local = local_problem(shard_of("SmoothedHinge", (30, 30)), "scalar")
    forward = []
    design = type(local.shard.design)
    plain = design.forward
    monkeypatch.setattr(design, "forward", lambda self, *u: forward.append(1) or plain(self, *u))
    found = LBFGS(tol=1e-8, max_iter=2000).solve(local, 5 * start_of(local.shard), None, None)
    assert found.converged.all()
    # one at the start, one per step, and one per Hessian-vector product (start, and rounding in doubt)
    assert len(forward) <= 1 + found.iterations.max() + found.hvps.sum()


@pytest.mark.thin(3)
# ------------------------------------------------------------------ numbers that are not finite
@pytest.mark.parametrize("where", ["lam", "v", "u0", "W"])
@pytest.mark.parametrize("solver", ALL, ids=ids)
def test_a_block_that_is_not_a_number_leaves_the_others_alone(solver, where):
    shard = shard_of("LeastSquares", UNEVEN)
    local = local_problem(shard, "dense")
    u0 = start_of(shard)
    clean = solver.solve(local, u0, None, None)
    v, lam, M, start = local.v.clone(), local.lam.clone(), local.W.M.clone(), u0.clone()
    {"lam": lam, "v": v, "u0": start, "W": M}[where][1, 0] = math.nan
    found = solver.solve(LocalProblem(shard, replace(local.W, M=M), v, lam), start, None, None)
    others = [0, 2, 3, 4]
    assert not found.converged[1]
    assert not found.grad_norm[1].isfinite()
    assert found.converged[others].all()
    torch.testing.assert_close(found.u[others], clean.u[others], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(found.u[1], start[1], equal_nan=True)


@pytest.mark.parametrize("solver", EXACT[1:], ids=ids)
def test_a_search_that_overflows_comes_back(solver):
    """exp(z) of the first Newton step, from far below, is infinite; the minimum is at moderate z."""
    shard = shard_of("Poisson", (20, 20))
    local = local_problem(shard, "scalar")
    found = solver.solve(local, -30 + start_of(shard), None, None)
    assert found.converged.all()
    assert found.u.isfinite().all()
    infinite = solver.solve(local, torch.full_like(found.u, 1e6), None, None)
    assert infinite.u.isfinite().all()
    assert (infinite.converged <= infinite.grad_norm.isfinite()).all()


def test_the_released_loop_stops_at_the_last_finite_model():
    shard = shard_of("Poisson", (20, 20))
    local = local_problem(shard, "scalar")
    u0 = start_of(shard)
    u0[1] = 300.0  # exp(z) overflows somewhere on the way: the steps have no line search
    found = Released(lr=1.0).solve(local, u0, None, None)
    assert found.u.isfinite().all()


def test_tolerances_and_limits_are_checked():
    for make in (
        lambda: NewtonCG(factor=0),
        lambda: LBFGS(tol=-1.0),
        lambda: Direct(factor=math.nan),
        lambda: NewtonCG(max_iter=0),
        lambda: NewtonCG(max_cg=0),
        lambda: LBFGS(history=0),
        lambda: Released(calls=0),
        lambda: Released(lr=0.0),
    ):
        with pytest.raises(ValueError, match="must be"):
            make()
