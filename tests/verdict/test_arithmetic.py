"""The small formulas of a verdict, each against its definition: whole runs hide a wrong constant in them."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import auqadmm as aq
from auqadmm.core.stopping import Certificate
from auqadmm.verdict.model import QuadraticModel
from auqadmm.verdict.monitor import Gate, Monitor, is_due
from auqadmm.verdict.point import JudgedPoint, Verdict, agrees, at_rounding, inflation, relative_to
from tests.problems import regression_blocks
from tests.verdict.asking import judge_of, verdict

ULP = 2.0**-52
NOTHING = torch.zeros(1, 1, dtype=torch.float64)


def point(**changes):
    parts = {"F": 10.0, "scale": 4.0, "floor": 1e-4, "noise": 1e-12, "known": Certificate(10.0), "f": 0.0}
    return JudgedPoint(NOTHING, NOTHING, **{**parts, **changes})


def test_delta_with_every_logit_off_by_its_rounding():
    assert point().rounded(4e-4) == pytest.approx(9e-4, rel=1e-12)  # (0.02 + 0.01)²
    assert point().rounded(0.0) == pytest.approx(1e-4, rel=1e-12)
    assert point(floor=0.0).rounded(-1e-20) == 0.0


def test_inflation_begins_with_a_third_of_x():
    """2(x + (1 − x)ln(1 − x))/x² = 1 + x/3 + x²/6 + …, whichever branch computes it."""
    for x in (1e-6, 5e-5, 9.9e-5, 1.1e-4, 1e-3):
        assert inflation(x) == pytest.approx(1 + x / 3 + x**2 / 6, abs=max(x**2, 1e-7))
        assert inflation(x) > 1 + x / 4


def test_a_proof_counts_where_it_is_finite_and_beats_the_gap():
    bare = point().judged(1e-3, 2e-3)
    assert (bare.delta, bare.gap_bound, bare.relative, bare.evidence) == (1e-3, 2e-3, 5e-4, "proved")
    known = Certificate(10.0, duality_gap=1e-3, gap_bound=1e-3, relative=2.5e-4, evidence="proved")
    assert point(known=known).judged(1e-3, 2e-3).gap_bound == 1e-3
    assert point(known=known).judged(1e-4, 2e-4).gap_bound == 2e-4
    assert point().judged(1e-3, math.inf).evidence == "none"


def test_an_estimate_is_four_times_what_the_second_look_saw():
    found = agrees(point(), delta=1e-3, fell=1.2e-3, after=1e-4, small=0.0, certificate=Certificate(10.0))
    assert found.evidence == "estimated"
    assert found.gap_bound == pytest.approx(4 * (1.2e-3 + 2e-4), rel=1e-12)
    assert found.relative == pytest.approx(found.gap_bound / 4.0)
    assert agrees(point(), 1e-3, 0.8e-3, 0.0, 0.0, Certificate(10.0)).gap_bound == pytest.approx(4e-3, rel=1e-12)


@pytest.mark.parametrize(
    ("fell", "after", "holds"),
    [(1e-3, 2.4e-4, True), (1e-3, 2.6e-4, False), (1.4e-3, 0, True), (1.6e-3, 0, False), (0.4e-3, 0, False)],
)
def test_a_second_look_must_find_what_the_model_said(fell, after, holds):
    """What is left a quarter of δ at most, what fell δ up to a half of it."""
    found = agrees(point(), 1e-3, fell, after, 0.0, Certificate(10.0))
    assert (found.evidence == "estimated") == holds
    assert bool(found.reason) != holds


def test_when_it_is_asked_in_any_case():
    assert [k for k in range(5000) if is_due(k)] == [16, 64, 256, 1024, 4096]


def test_after_wrong_answers_it_waits_twice_as_long_each_time():
    judge = SimpleNamespace(scale=lambda F: 1.0, loss=SimpleNamespace(cornered=False), spent=0.0, price=1.0)
    for wrong, wait in ((0, 1), (1, 2), (3, 8), (4, 16)):
        gate = Gate(asked=100, wrong=wrong, ratio=1.0)
        opens = [k for k in range(101, 140) if gate.opens(judge, k, 0.0, 1.0, 1e-5)]
        assert opens[0] == 100 + wait, wrong


def test_an_estimate_must_be_below_the_tolerance_or_the_floor():
    judge = SimpleNamespace(scale=lambda F: 2.0, loss=SimpleNamespace(cornered=False), spent=0.0, price=1.0)
    gate = Gate(ratio=1.0, inflation=1.5)
    assert gate.opens(judge, 5, 1.3e-5, 1.0, 1e-5)
    assert not gate.opens(judge, 5, 1.4e-5, 1.0, 1e-5)
    assert Gate(ratio=1.0, inflation=1.5, floor=1e-3).opens(judge, 5, 6e-4, 1.0, 1e-5)
    assert not gate.opens(judge, 5, 0.0, math.nan, 1e-5)
    assert not gate.opens(judge, 16, 0.0, 1.0, 1e-5)  # not yet worth its price, whatever the estimate
    judge.spent = 1.0
    assert gate.opens(judge, 16, 1.0, 1.0, 1e-5)


def test_a_run_ends_after_three_iterations_without_a_way_on():
    watch = Monitor(SimpleNamespace(), 1e-5)
    found = Certificate(1.0, reason="Columns are collinear.")
    for rest, ends in ((0, False), (2, False), (3, True), (4, True)):
        watch.gate = Gate(rest=rest)
        assert (watch.ends(found) is not None) == ends, rest
    for over_already in (Certificate(1.0, evidence="rounding"), Certificate(1.0, relative=1e-6, evidence="proved")):
        assert watch.ends(over_already) is None


def test_the_scale_is_the_smaller_of_what_is_left_and_what_was_explained():
    judge = judge_of(aq.Problem(aq.LeastSquares(), aq.L2(0.1), regression_blocks()))
    judge.begin()
    assert judge.columns.infimum == 0.0
    for null, scale in ((13.0, 3.0), (1000.0, 10.0), (10.0, 1e-3), (9.0, 1e-3)):
        judge.null = null
        assert judge.scale(10.0) == pytest.approx(scale, rel=1e-12), null
    judge.null = None
    assert (judge.scale(10.0), judge.scale(10.0, least=False)) == pytest.approx((1e-3, 10.0))


def test_relative_gaps():
    assert relative_to(0.0, 0.0) == 0.0
    assert relative_to(1e-3, 0.0) == math.inf
    assert relative_to(1e-3, 4.0) == 2.5e-4
    assert at_rounding(8 * (1e-12 + ULP * 10), 1e-12, -10.0)
    assert not at_rounding(8.1 * (1e-12 + ULP * 10), 1e-12, -10.0)


def test_slack_grows_with_the_condition_of_the_hessian():
    """1 + 4εp/λ_min of the Hessian scaled to a unit diagonal."""
    for c in (0.0, 0.9, 1 - 1e-9):
        H = torch.tensor([[[1.0, c], [c, 1.0]]], dtype=torch.float64)
        none = torch.zeros(2, 1, dtype=torch.bool)
        model = QuadraticModel.of(H, torch.zeros(2, 1, dtype=torch.float64), none)
        assert model.slack - 1 == pytest.approx(4 * ULP * 2 / (1 - c), rel=0.3)


def test_delta_of_a_parabola_is_half_the_newton_decrement():
    rng = np.random.default_rng(0)
    A = rng.normal(size=(9, 4))
    H, G, v = A.T @ A, rng.normal(size=4), rng.normal(size=4)
    model = QuadraticModel.of(
        torch.from_numpy(H)[None], torch.full((4, 1), 0.3, dtype=torch.float64), torch.zeros(4, 1).bool()
    )
    step = model.newton(torch.from_numpy(G)[:, None], torch.from_numpy(v)[:, None])
    r = G + 0.3 * v
    d = -np.linalg.solve(H + 0.3 * np.eye(4), r)
    np.testing.assert_allclose(step.d.numpy()[:, 0], d, rtol=1e-10)
    assert step.delta == pytest.approx(-0.5 * r @ d, rel=1e-10)


def test_an_objective_below_its_floor_of_rounding_is_judged_no_further():
    judge = judge_of(aq.Problem(aq.LeastSquares(), aq.Zero(), regression_blocks()))
    judge.begin()
    v = torch.zeros(6, 1, dtype=torch.float64)
    for left, ends in ((1e-3, True), (0.0, True), (1e-2, False), (1.0, False), (-1e-3, False)):
        numbers = {"f": left, "floor": 1e-2, "noise": 1e-9}
        sums = {name: torch.tensor(x, dtype=torch.float64) for name, x in numbers.items()} | {"G": v}
        found = judge.at(v, sums, Certificate(left))
        assert isinstance(found, Verdict) == ends, left
        assert not ends or found.certificate.evidence == "rounding"


def test_the_bound_of_a_logistic_model_is_the_theorems():
    """One feature and no penalty: R = max|x_i|/√H and δ = G²/(2H), by hand; the bound is inflation(R√(2δ))·δ. With the
    reach of rows that came along, and with the one that is asked for where δ is small enough and the bound is not."""
    X = np.array([3.0, 2.9, -0.5, 0.4, 1.0, -1.2, 0.7, 0.2, -0.3, 0.9] * 2)
    y = np.array([1.0, -1, -1, 1, 1, -1, 1, 1, 1, 1, 1, 1, -1, 1, 1, -1, 1, -1, 1, 1])
    problem = aq.Problem(aq.Logistic(), aq.Zero(), [(X[:8, None], y[:8]), (X[8:, None], y[8:])])
    grid = np.linspace(-1, 2, 30_001)
    F = np.logaddexp(0, -y * X * grid[:, None]).sum(1)
    v = grid[F.argmin()] + 0.15
    p = 1 / (1 + np.exp(-X * v))
    G, H = X @ (p - (y > 0)), X**2 @ (p * (1 - p))
    delta = G**2 / (2 * H)
    x = np.sum(np.abs(X) ** 16) ** (1 / 16) / np.sqrt(H) * np.sqrt(2 * delta)
    assert 0.3 < x < 0.8
    known = judge_of(problem)
    first = verdict(problem, [[v]], 0.9, known)
    rounds = known.reduce.traffic.rounds
    for tol, more in ((0.9, 0), (1.01 * delta / first.scale, 1)):
        judge = judge_of(problem)
        found = verdict(problem, [[v]], tol, judge)
        assert judge.reduce.traffic.rounds == rounds + more
        assert found.delta == pytest.approx(delta, rel=1e-6)
        assert found.gap_bound == pytest.approx(inflation(x) * delta, rel=1e-6)
        assert np.logaddexp(0, -y * X * v).sum() - F.min() <= found.gap_bound
