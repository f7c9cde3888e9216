"""Parts of the verdict that whole verdicts hide: falls of g, forbidden shifts, gaps below their rounding, gates."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import auqadmm as aq
from auqadmm.estimators.fitting import WeightedElasticNet
from auqadmm.problem.wrappers import FreeIntercept
from auqadmm.verdict.point import inflation
from tests.verdict.asking import judge_of, verdict
from tests.verdict.cases import TOL


def blocks(X, y, parts=3):
    return [(X[i], y[i]) for i in np.array_split(np.arange(len(y)), parts)]


@pytest.mark.parametrize(
    "g",
    [
        aq.L1(0.7),
        aq.ElasticNet(0.7, 0.3),
        WeightedElasticNet(torch.full((4, 1), 0.7), torch.full((4, 1), 0.3)),
        FreeIntercept(aq.L1(0.7)),
        aq.GroupLasso(0.5),
        aq.Box(-10.0, 10.0),
    ],
    ids=lambda g: type(g).__name__,
)
def test_the_fall_of_a_penalty_keeps_its_digits(g):
    v = torch.tensor([[1.0], [-2.0], [3.0], [0.5]], dtype=torch.float64)
    there = v * (1 - 1e-13)
    fall, rounding = g.fall(v, there)
    assert fall == pytest.approx(float(g.value(v) - g.value(there)), abs=1e-15)
    assert rounding >= 0
    far, _ = g.fall(v, 0 * v)
    assert far == pytest.approx(float(g.value(v)) - float(g.value(0 * v)), rel=1e-12)


def test_inflation_is_that_of_the_theorem():
    assert inflation(0.0) == 1.0
    x = np.linspace(1e-5, 0.999, 50)
    known = [2 * (a + (1 - a) * math.log1p(-a)) / a**2 for a in x]
    assert np.allclose([inflation(float(a)) for a in x], known, rtol=1e-5)
    assert all(1 <= inflation(float(a)) <= 2 for a in x)
    assert inflation(1.0) == math.inf
    # the worst F of its kind: one row, f = (e^{-t} + t - 1) / R^2 beyond v, attains the bound
    R, delta = 1.0, 0.3
    s = math.sqrt(2 * delta)
    tau = -math.log(1 - R * s)
    assert s * tau - (math.exp(-R * tau) + R * tau - 1) / R**2 == pytest.approx(inflation(R * s) * delta)


def test_a_bound_that_forbids_shifts_of_all_classes_is_judged():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((120, 3))
    y = np.digitize(X @ [1.0, -1.0, 0.5] + rng.standard_normal(120), [-1, 1])
    problem = aq.Problem(aq.Multinomial(), aq.NonNegative(), blocks(X, y))
    result = aq.solve(problem, "fista", max_iter=5000)
    best = aq.solve(problem, "fista", max_iter=5000, certificate_tol=0.0)
    if result.status == "converged":
        assert result.objective - best.objective <= 1.01 * result.certificate.gap_bound
    else:
        assert result.certificate.reason


def test_a_tolerance_below_the_rounding_of_a_duality_gap_ends_the_run():
    rng = np.random.default_rng(1)
    X, y = rng.standard_normal((20, 60)), rng.standard_normal(20)
    result = aq.solve(aq.Problem(aq.LeastSquares(), aq.L1(1.0), blocks(X, y)), certificate_tol=1e-30, max_iter=2000)
    assert result.status == "rounding"
    assert result.certificate.relative < 1e-11


def test_a_second_question_about_squares_sends_no_second_triangle():
    rng = np.random.default_rng(2)
    X = rng.standard_normal((100, 8))
    problem = aq.Problem(aq.LeastSquares(), aq.L2(1.0), blocks(X, X @ np.ones(8) + rng.standard_normal(100)))
    judge = judge_of(problem)
    sent = []
    for off in (0.1, 0.0):
        before = judge.reduce.traffic.up
        found = verdict(problem, np.ones((8, 1)) + off, TOL, judge)
        sent.append(judge.reduce.traffic.up - before)
        assert math.isfinite(found.delta)
    assert sent[0] - sent[1] >= 8 * 8 * 9 / 2
    fresh = verdict(problem, np.ones((8, 1)), TOL)
    assert found.delta == pytest.approx(fresh.delta, rel=1e-12)


def test_a_run_that_stops_in_between_asks_when_it_would_have_asked(tmp_path):
    rng = np.random.default_rng(3)
    X = rng.standard_normal((90, 5))
    y = np.sign(X @ np.ones(5) + rng.standard_normal(90))
    problem = aq.Problem(aq.Logistic(), aq.L2(0.1), blocks(X, y), intercept=True)
    whole = aq.solve(problem, "c-admm", max_iter=500)
    for limit in (5, 20, 500):
        parts = aq.solve(problem, "c-admm", max_iter=limit, checkpoint=tmp_path / "run")
    assert parts.n_iter == whole.n_iter
    assert parts.status == whole.status == "converged"
    assert parts.certificate == whole.certificate
    assert [r.rounds for r in parts.history][:-1] == [r.rounds for r in whole.history][:-1]
    assert parts.history[-1].rounds == whole.history[-1].rounds
