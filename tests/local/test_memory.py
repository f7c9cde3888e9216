"""What a solve leaves to the next: pairs, a model, and where the solutions lead."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import auqadmm as aq
from auqadmm.local import LBFGS, LocalProblem, Mixed, NewtonCG, mixed, newton_cg
from auqadmm.local import lbfgs as module
from auqadmm.local.descent import extrapolate
from auqadmm.metrics.weights import Diagonal
from auqadmm.runtime import Programs
from tests.local.cases import EVEN, UNEVEN, gradient, local_problem, oracle, shard_of, start_of, weights_of

PLAIN = Programs(torch.device("cpu"))


# ------------------------------------------------------------------ from solve to solve
def test_solutions_on_a_line_are_foreseen():
    a, d = torch.randn(2, 4, 1, dtype=torch.float64), torch.randn(2, 4, 1, dtype=torch.float64)
    path = extrapolate(a, a + d, None, PLAIN)
    assert torch.equal(path.ahead(a + d, PLAIN), a + d)  # one step tells nothing of the next
    path = extrapolate(a + d, a + 1.5 * d, path, PLAIN)  # half of it came again
    torch.testing.assert_close(path.ahead(a + 1.5 * d, PLAIN), a + 1.75 * d)
    back = extrapolate(a + 1.5 * d, a + d, path, PLAIN)  # and turned back
    assert torch.equal(back.ahead(a + d, PLAIN), a + d)


def test_a_solution_that_does_not_move_leads_nowhere():
    a = torch.randn(2, 4, 1, dtype=torch.float64)
    path = extrapolate(a, a, extrapolate(a, a, None, PLAIN), PLAIN)
    assert torch.equal(path.ahead(a, PLAIN), a)


@pytest.mark.thin(2)
@pytest.mark.parametrize("loss", ["Multinomial", "Logistic", "Huber", "Poisson", "SmoothedHinge", "Quantile"])
@pytest.mark.parametrize("sizes", [EVEN, UNEVEN], ids=["even", "uneven"])
@pytest.mark.parametrize("solver", [LBFGS(tol=1e-9, max_iter=3000), NewtonCG(tol=1e-9), Mixed(tol=1e-9)], ids=repr)
def test_a_memory_of_other_problems_does_not_mislead(solver, sizes, loss):
    """After solves with other weights, other centres and multipliers the minimiser is the same as without."""
    shard = shard_of(loss, sizes)
    u, memory = start_of(shard), None
    for seed, kind in enumerate(("diagonal", "scalar", "dense")):
        found = solver.solve(local_problem(shard, kind, seed), u, None, memory)
        u, memory = found.u, found.memory
    found = solver.solve(local_problem(shard, "scalar"), u, None, memory)
    assert found.converged.all()
    torch.testing.assert_close(found.u, oracle(loss, sizes, "scalar"), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", ["scalar", "diagonal", "dense"])
def test_pairs_follow_the_weights(kind):
    """y = ∇²F s for the weights of the next solve: exact where f is quadratic."""
    shard = shard_of("LeastSquares")
    first = local_problem(shard, "scalar")
    memory = LBFGS(tol=1e-9).solve(first, start_of(shard), None, None).memory
    other = replace(first, W=weights_of(kind, shard.shape, seed=9))
    here = other.at(start_of(shard))
    curve = module._first_inverse(other, here, here.finite, memory, 10)
    steps = curve.S.mT.reshape(*shard.shape, -1)
    exact = here.point.hvp(steps) + other.W.apply(steps)
    kept = (curve.S != 0).any(2)
    assert kept.any()
    torch.testing.assert_close(curve.Y, exact.reshape(curve.S.mT.shape).mT.contiguous(), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("solver", [LBFGS(), NewtonCG()], ids=lambda s: type(s).__name__)
def test_it_saves_work(solver):
    """The same run of C-ADMM, with and without what the last solve left."""
    rng = np.random.default_rng(0)
    blocks = [(rng.normal(size=(60, 12)) * np.linspace(0.1, 3, 12), np.sign(rng.normal(size=60))) for _ in range(4)]
    problem = aq.Problem(aq.Logistic(), aq.L2(1.0), blocks)
    options = {"max_iter": 40, "abs_tol": 0.0, "rel_tol": 0.0, "stop": "residuals"}
    with_memory = aq.solve(problem, "c-admm", local=solver, **options)
    without = aq.solve(problem, "c-admm", local=Forgetful(solver), **options)
    assert with_memory.history[-1].hvps < 0.7 * without.history[-1].hvps
    tight = aq.solve(problem, "c-admm", local=replace(solver, tol=1e-9), **options)
    torch.testing.assert_close(with_memory.v, tight.v, rtol=1e-4, atol=1e-5)


class Forgetful:
    def __init__(self, solver):
        self.solver = solver

    def solve(self, problem, u0, reference, memory):
        return replace(self.solver.solve(problem, u0, reference, None), memory=None)


def test_rounding_errors_are_not_learned():
    """Solves that begin solved, to the last digit: the pairs stay what they were."""
    local = local_problem(shard_of("Multinomial"), "scalar")
    solver = LBFGS(tol=1e-10, max_iter=1000)
    found = solver.solve(local, start_of(local.shard), None, None)
    kept = found.memory
    for _ in range(5):
        found = replace(solver, tol=0.0, max_iter=20).solve(local, found.u, None, found.memory)
    assert gradient(local, found.u).max() < 1e-12
    moved = replace(local, v=local.v + 1e-3)
    plain = solver.solve(moved, found.u, None, kept)
    late = solver.solve(moved, found.u, None, found.memory)
    assert late.converged.all()
    assert late.iterations.max() <= plain.iterations.max() + 3


# ------------------------------------------------------------------ which of them
def test_mixed_finishes_with_newton(monkeypatch):
    monkeypatch.setattr(mixed, "SMALL_PRODUCT", 0)
    monkeypatch.setattr(mixed, "LBFGS_STEPS", 2)
    local = local_problem(shard_of("Multinomial", (200, 200, 200)), "diagonal")
    found = Mixed(tol=1e-9).solve(local, start_of(local.shard), None, None)
    assert found.converged.all()
    assert isinstance(found.memory, mixed.MixedMemory)
    assert not found.memory.hard.any()
    assert found.iterations.max() > 2


def test_mixed_takes_newton_for_small_problems_and_blocks(monkeypatch):
    """Where products are cheap; and where pairs would take more room than the data."""
    large = local_problem(shard_of("Logistic", (80,) * 3), "scalar")
    assert isinstance(Mixed().solve(large, start_of(large.shard), None, None).memory, newton_cg.NewtonMemory)
    monkeypatch.setattr(mixed, "SMALL_PRODUCT", 0)
    small = local_problem(shard_of("Logistic", (3,) * 20), "scalar")
    for local, pairs in ((small, False), (large, True)):
        found = Mixed(tol=1e-9).solve(local, start_of(local.shard), None, None)
        assert found.converged.all()
        assert isinstance(found.memory, mixed.MixedMemory) is pairs


def test_mixed_takes_newton_where_the_weights_model_the_curvature():
    local = local_problem(shard_of("Logistic", (40,) * 3), "curved")
    assert Mixed().solve(local, start_of(local.shard), None, None).memory is None


def test_weights_that_change_a_lot():
    """From W to 1e6 W and back: nothing is lost."""
    shard = shard_of("Logistic", (40,) * 3)
    local = local_problem(shard, "diagonal")
    solver, u, memory = LBFGS(tol=1e-8, max_iter=2000), start_of(shard), None
    for scale in (1.0, 1e6, 1.0, 1e-4, 1.0):
        posed = LocalProblem(shard, Diagonal(scale * local.W.d), local.v, local.lam)
        found = solver.solve(posed, u, None, memory)
        assert found.converged.all(), scale
        u, memory = found.u, found.memory
