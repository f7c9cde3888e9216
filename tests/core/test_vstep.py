"""The consensus step in the metric of low-rank weights, against dense matrices and a plain solver in numpy."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from auqadmm.metrics import composite, kronecker_sum, vstep
from auqadmm.metrics.vstep import LowRankMetric
from auqadmm.problem.group_lasso import GroupLasso
from auqadmm.problem.regularizers import L1, L2, ElasticNet
from tests.core.test_lowrank import explicit
from tests.core.vstep_cases import CASES, SEPARABLE, blocks, case, reference, target

__all__ = ["case"]  # a fixture


@pytest.mark.parametrize("name", CASES)
@pytest.mark.thin(3)
def test_it_finds_the_solution_that_a_plain_solver_finds(case, name):
    metric, K, s = case
    g, prox = CASES[name]
    found = metric.solve(g, s, tol=1e-10 * float(s.norm()))
    expected = reference(K, s.numpy(), prox)
    assert found.residual <= 1e-10 * float(s.norm())
    np.testing.assert_allclose(found.v, expected, atol=1e-8 * max(1.0, np.abs(expected).max()))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.thin(3)
def test_a_warm_start_at_the_solution_stays_there(case, name):
    metric, _, s = case
    g, _ = CASES[name]
    tol = 1e-9 * float(s.norm())
    found = metric.solve(g, s, tol=tol)
    again = metric.solve(g, s, found.v, 1.01 * tol)
    assert again.iterations <= 1
    torch.testing.assert_close(again.v, found.v, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", [name for name in CASES if name != "custom"])
@pytest.mark.thin(3)
def test_the_residual_bounds_the_distance_to_the_subdifferential(case, name):
    metric, _, s = case
    g, _ = CASES[name]
    size = float(s.norm())
    for tol in (1e-2 * size, 1e-7 * size, 0.0 if g.separable else 1e-9 * size):
        found = metric.solve(g, s, tol=tol)
        distance = float(g.subgradient_distance(found.v, metric.apply(found.v) - s))
        assert distance <= found.residual * (1 + 1e-6) + 1e-12 * size
        assert found.residual <= max(tol, 1e-12 * size)


@given(seed=st.integers(0, 50), name=st.sampled_from(list(CASES)), C=st.sampled_from([1, 2, 4]))
def test_optimality_in_random_problems(seed, name, C):
    g, _ = CASES[name]
    W = blocks(N=2, m=7, C=C, r=2, seed=seed, condition=10.0 ** (seed % 4))
    metric = LowRankMetric(W)
    s = target(metric, 7, C, seed)
    found = metric.solve(g, s)
    assert found.residual <= 1e-10 * float(s.norm())
    assert metric.prox(g, s).equal(found.v), "prox is solve, and both are deterministic"


@pytest.mark.parametrize("C", [1, 3])
@pytest.mark.parametrize("name", SEPARABLE)
def test_ill_conditioned_metrics(name, C):
    """Stiff directions 1e8 times the floor, and not along the axes: scaling by the diagonal does not help."""
    g, _ = CASES[name]
    metric = LowRankMetric(blocks(m=40, C=C, r=4, condition=1e8))
    s = target(metric, 40, C)
    found = metric.solve(g, s)
    assert found.residual <= 1e-10 * float(s.norm())
    distance = float(g.subgradient_distance(found.v, metric.apply(found.v) - s))
    assert distance <= 2e-10 * float(s.norm())


@pytest.mark.parametrize("name", ["l1", "box"])
def test_ill_conditioned_metrics_by_conjugate_gradients(monkeypatch, name):
    """Where no part of K is formed the linear systems are solved loosely at first; failures make them exact."""
    monkeypatch.setattr(kronecker_sum, "K_ACTIVE", 0)
    metric = LowRankMetric(blocks(m=40, C=3, r=4, condition=1e6))
    s = target(metric, 40, 3)
    assert metric.solve(CASES[name][0], s).residual <= 1e-10 * float(s.norm())


@pytest.mark.parametrize("C", [1, 3])
@pytest.mark.parametrize("condition", [1e8, 1e12])
def test_ill_conditioned_linear_systems(condition, C):
    metric = LowRankMetric(blocks(m=40, C=C, r=4, condition=condition))
    s = target(metric, 40, C)
    assert metric.solve(L2(0.1), s).residual <= 1e-10 * float(s.norm())


@pytest.mark.parametrize("name", SEPARABLE)
def test_a_cycle_is_left_by_the_proximal_point_method(monkeypatch, name):
    monkeypatch.setattr(composite, "PIVOT_ROUNDS", 2)
    g, prox = CASES[name]
    W = blocks(C=3)
    metric = LowRankMetric(W)
    s = target(metric, 12, 3)
    found = metric.solve(g, s)
    assert found.residual <= 1e-10 * float(s.norm())
    expected = reference(explicit(W).sum(0).numpy(), s.numpy(), prox)
    np.testing.assert_allclose(found.v, expected, atol=1e-8 * max(1.0, np.abs(expected).max()))


def test_when_the_steps_run_out_the_best_point_comes_with_its_residual(monkeypatch):
    monkeypatch.setattr(vstep, "MAX_STEPS", 5)
    monkeypatch.setattr(composite, "PIVOT_ROUNDS", 1)
    monkeypatch.setattr(composite, "PIVOT_BUDGET", 3)
    metric = LowRankMetric(blocks(condition=1e4))
    s = target(metric, 12, 1)
    for g in (GroupLasso(0.5), L1(0.8)):
        found = metric.solve(g, s, tol=0.0)
        distance = float(g.subgradient_distance(found.v, metric.apply(found.v) - s))
        assert 1e-9 < distance <= found.residual * (1 + 1e-9)


@pytest.mark.parametrize("name", CASES)
def test_nothing_asked_nothing_done(name):
    """s = 0, from zero: v = 0 (or the nearest feasible point), without a division by ‖s‖."""
    g, _ = CASES[name]
    found = LowRankMetric(blocks(C=2)).solve(g, torch.zeros(12, 2, dtype=torch.float64))
    assert found.v.isfinite().all()
    assert found.residual <= 1e-12
    if float(g.value(torch.zeros(12, 2, dtype=torch.float64))) == 0:
        assert (found.v == 0).all()


@pytest.mark.parametrize("factor", [1e-12, 1e12])
@pytest.mark.parametrize("C", [1, 3])
def test_units_do_not_matter(factor, C):
    """K, s and g times the same number: the same v."""
    W = blocks(C=C)
    metric, scaled = LowRankMetric(W), LowRankMetric(replace(W, M=factor * W.M, d=factor * W.d, phi=factor * W.phi))
    s = target(metric, 12, C)
    for g, h in ((L2(0.3), L2(0.3 * factor)), (ElasticNet(0.8, 0.3), ElasticNet(0.8 * factor, 0.3 * factor))):
        torch.testing.assert_close(scaled.prox(h, factor * s), metric.prox(g, s), rtol=1e-8, atol=1e-9)


def test_a_useless_guess_is_not_believed():
    metric = LowRankMetric(blocks())
    s = target(metric, 12, 1)
    for guess in (torch.full_like(s, math.inf), torch.full_like(s, 1e30)):
        assert metric.solve(L2(1.0), s, guess).residual <= 1e-10 * float(s.norm())


@pytest.mark.parametrize("C", [1, 3])
@pytest.mark.parametrize("name", ["l2", "l1", "box", "group lasso"])
def test_what_is_not_finite_ends_quickly_and_is_not_called_solved(name, C):
    g, _ = CASES[name]
    W = blocks(C=C)
    s = target(LowRankMetric(W), 12, C)
    broken = s.clone()
    broken[3, 0] = torch.nan
    assert not LowRankMetric(W).solve(g, broken, tol=1e-6).residual <= 1e-6
    M = W.M.clone()
    M[1, 0, 0] = torch.nan
    assert not LowRankMetric(replace(W, M=M)).solve(g, s, tol=1e-6).residual <= 1e-6
