"""OWL-QN: exact zeros, orthants. FISTA: its bound, and a first L that is far off."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

import auqadmm as aq
from auqadmm.baselines import FISTA, OWLQN
from auqadmm.baselines.quasi_newton import pseudo_gradient
from tests.baselines.driving import objective, reduction, states
from tests.problems import class_blocks, least_squares, pooled, regression_blocks


def sparse_logistic(intercept=True):
    blocks = class_blocks(classes=2, per_block=30, features=12)
    return aq.Problem(aq.Logistic(reduction="sum"), aq.L1(3.0), blocks, intercept=intercept)


# ------------------------------------------------------------------ OWL-QN
def test_owlqn_zeros_are_exact_and_those_of_fista():
    tight = {"stop": "certificate", "certificate_tol": 1e-11, "max_iter": 2000}
    found = [aq.solve(sparse_logistic(), method, **tight).v for method in (OWLQN(), FISTA())]
    assert 0 < int((found[0] == 0).sum()) < found[0].numel()
    assert torch.equal(found[0] == 0, found[1] == 0)


def test_owlqn_never_crosses_an_orthant_but_an_intercept_may():
    for intercept in (False, True):
        found = [s.shared.v for s in states(OWLQN(), sparse_logistic(intercept), 40)]
        for old, new in itertools.pairwise(found):
            penalised = slice(0, -1) if intercept else slice(None)
            assert bool((old[penalised] * new[penalised] >= 0).all())


def test_owlqn_objective_never_rises():
    problem = sparse_logistic()
    values = [objective(problem, s.shared.v) for s in states(OWLQN(), problem, 25)]
    assert all(new <= old + 1e-12 * abs(old) for old, new in itertools.pairwise(values))


def test_the_pseudo_gradient_is_as_long_as_the_certificates_distance():
    rng = np.random.default_rng(0)
    v, grad = torch.from_numpy(rng.normal(size=(2, 9, 2)))
    v[::2] = 0
    expected = aq.L1(0.7).subgradient_distance(v, grad)
    assert torch.allclose(pseudo_gradient(v, grad, torch.full((9, 1), 0.7, dtype=v.dtype)).norm(), expected)


def test_a_penalty_that_kills_everything_leaves_zeros():
    problem = least_squares(regularizer=aq.L1(1e6))
    for method in (OWLQN(), FISTA()):
        result = aq.solve(problem, method, stop="certificate", certificate_tol=1e-12)
        assert result.status == "converged"
        assert not result.v.any()


# ------------------------------------------------------------------ FISTA
def lasso():
    blocks = regression_blocks(features=10, sizes=(8, 8, 8, 8))
    X, _ = pooled(blocks)
    return least_squares(blocks, "sum", aq.L1(0.5)), float(np.linalg.eigvalsh(X.T @ X)[-1])


@pytest.mark.parametrize("lipschitz", [None, 1e-6, 1e6])
def test_fista_keeps_its_bound(lipschitz):
    problem, largest = lasso()
    best = aq.solve(problem, FISTA(), stop="certificate", certificate_tol=1e-13, max_iter=5000)
    distance = float(best.v.square().sum())
    for k, state in enumerate(states(FISTA(restart=False, lipschitz=lipschitz), problem, 150)):
        if k == 0:
            continue
        gap = objective(problem, state.shared.v) - best.objective
        L, t = state.shared.memory.used
        assert gap <= 0.5 * L / t**2 * distance + 1e-12
        if lipschitz is None:
            assert L / largest <= 2.0 or gap <= 1e-10  # until the test meets rounding
            assert gap <= 2 * (2 * largest) * distance / (k + 1) ** 2 + 1e-12


@pytest.mark.parametrize("lipschitz", [1e-9, 1e-4, 1e4, 1e9])
@pytest.mark.parametrize("make", [lasso, lambda: (sparse_logistic(), None)], ids=["lasso", "logistic"])
def test_a_first_guess_far_off_costs_little(make, lipschitz):
    problem, _ = make()
    tight = {"stop": "certificate", "certificate_tol": 1e-9, "max_iter": 1000}
    measured = aq.solve(problem, FISTA(), **tight)
    guessed = aq.solve(problem, FISTA(lipschitz=lipschitz), **tight)
    assert guessed.status == "converged"
    assert guessed.n_iter <= 2 * measured.n_iter + 40
    assert guessed.history[-1].rounds <= 2 * guessed.n_iter + 40  # the dual point of l1 is scaled: one a time


def test_restarts_help_where_the_objective_is_strongly_convex():
    problem = least_squares(reduction="sum")
    tight = {"stop": "certificate", "certificate_tol": 1e-12, "max_iter": 3000}
    assert aq.solve(problem, FISTA(), **tight).n_iter < aq.solve(problem, FISTA(restart=False), **tight).n_iter


def test_curvature_that_collapses_on_the_way_down():
    """Poisson from far up: the first L is true there and 10⁸ times too large at the optimum."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 4))
    problem = aq.Problem(aq.Poisson(), aq.L2(0.1), [(X[:30], np.ones(30)), (X[30:], np.ones(30))])
    for lipschitz in (None, 1e-6, 1e10):
        method = FISTA(lipschitz=lipschitz)
        result = aq.solve(problem, method, stop="certificate", certificate_tol=1e-8, warm_start=np.full(4, 4.0))
        assert result.status in ("converged", "rounding"), result.message
        assert result.objective == pytest.approx(
            60, rel=1e-14
        )  # v = 0 fits every row: nothing is left to be relative to


def test_a_loss_without_slope_does_not_divide_by_zero():
    X = np.zeros((5, 3))
    problem = aq.Problem(aq.LeastSquares(), aq.L2(1.0), [(X, np.ones(5)), (X, np.ones(5))])
    reduce = reduction(problem)
    *_, last = states(FISTA(), problem, 3, reduce, warm=torch.ones(3, 1, dtype=torch.float64))
    assert last.shared.v.isfinite().all()
    assert float(last.shared.v.norm()) < 1.0
