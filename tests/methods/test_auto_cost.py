"""What `auto` goes by: how hard a problem is by round 0, what is left of a method's way, what a verdict may cost."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.datasets import load_digits

import auqadmm as aq
from auqadmm.local.base import LocalStep
from auqadmm.methods.auto.cost import CostEstimate, Facts, estimates, hardness
from auqadmm.methods.auto.method import GOAL, RATE_LEAST, REST, Auto, AutoPlan, Change, _observe, _remaining_cost
from tests.verdict.asking import judge_of


def split(X, y, parts=4):
    return [(X[j::parts], y[j::parts]) for j in range(parts)]


def pair(a=5, b=8):
    X, y = load_digits(return_X_y=True)
    some = (y == a) | (y == b)
    return X[some] / 16, np.where(y[some] == a, 1.0, -1.0)


def seen(problem):
    judge = judge_of(problem)
    judge.begin()
    return aq.core.state.Setup(**{**vars(judge.setup), "seen": judge.columns})


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize(
    ("loss", "bend", "slope"), [(aq.Logistic(), 0.25, 0.5), (aq.SmoothedHinge(1.0), 0.1768, 0.8536)]
)
def test_hardness_is_what_numpy_says(intercept, loss, bend, slope):
    X, y = pair()
    stiff, far = hardness(seen(aq.Problem(loss, aq.L2(3.0), split(X, y), intercept=intercept)))
    Z = X - X.mean(0) if intercept else X
    trace = (Z**2).sum()
    assert stiff == pytest.approx(bend * trace / 3.0, rel=1e-3)
    G = slope * np.linalg.norm(Z.T @ y)
    assert far == pytest.approx(math.sqrt(trace / len(y)) * G / 3.0, rel=1e-3)


def test_without_a_ridge_nothing_is_known():
    X, y = pair()
    assert hardness(seen(aq.Problem(aq.Logistic(), aq.L1(1.0), split(X, y)))) == (math.inf, math.inf)


def test_a_strong_ridge_makes_gradients_cheap():
    """Few gradients are enough where rows hardly move; with a weak ridge corners need curvature."""
    X, y = pair()
    loss = aq.SmoothedHinge(reduction="mean")
    strong = aq.solve(aq.Problem(loss, aq.L2(100.0), split(X, y)), round_cost=4000)
    assert strong.choice.first in ("lbfgs", "lbfgs-w")
    assert strong.n_iter <= 6
    weak = aq.solve(aq.Problem(loss, aq.L2(1e-3), split(X, y, 20)), round_cost=4000)
    assert weak.choice.first == "newton"


def test_stiffness_orders_methods():
    def first(stiff, cost):
        return estimates(Facts(10, 300, 1, aq.Logistic(), aq.L2(1.0), None, stiff, 1.0), cost)[0].method

    assert first(1e3, 32_000) == "auq-lr"
    assert first(1e7, 32_000) == "newton"
    assert first(1e3, 1e6) == "newton"


def test_blocks_of_few_rows_have_few_directions():
    """Then AUQ-LR needs more rounds; and dear rounds do not make it faster than it can be."""

    def rounds(rows, cost=32_000):
        facts = Facts(29, 1070, 1, aq.LeastSquares(), aq.L2(1.0), None, 2.7e3, 700.0, rows=rows)
        return {e.method: e.rounds for e in estimates(facts, cost)}

    many, few = rounds(29 * 1000), rounds(29 * 64)
    assert few["auq-lr"] == pytest.approx(many["auq-lr"] * math.sqrt(250 / 16))
    assert few["lbfgs-w"] == many["lbfgs-w"] < few["auq-lr"]
    assert rounds(29 * 1000, 1e7)["auq-lr"] == 6.0
    assert rounds(29 * 4)["lbfgs-w"] > 5 * many["lbfgs-w"]  # fewer rows than features


def test_l_bfgs_with_weights_is_considered_where_rows_bend_one_after_another():
    """A median of sparse rows in many blocks: local solves gain little there."""
    facts = Facts(12, 422, 1, aq.Quantile(0.5, eps=0.06), aq.L2(1.0), None, 300.0, 68.0, 6.1, rows=373)
    assert [estimates(facts, cost)[0].method for cost in (4000, 32_000, 256_000)] == ["lbfgs-w", "newton", "newton"]


def test_the_rest_follows_the_rate():
    falls = tuple(1e-2 * 0.5**k for k in range(RATE_LEAST))
    rest = _remaining_cost(AutoPlan("auq-lr", None, expected=falls), 100.0 * RATE_LEAST, RATE_LEAST)
    assert rest == pytest.approx(100.0 * math.log(falls[-1] / GOAL) / math.log(2), rel=1e-6)
    assert _remaining_cost(AutoPlan("auq-lr", None, expected=falls[1:]), 1.0, RATE_LEAST) is None
    assert _remaining_cost(AutoPlan("auq-lr", None, expected=falls[::-1]), 1.0, RATE_LEAST) == math.inf
    noisy = tuple(x * (3.0 if k % 2 else 1 / 3) for k, x in enumerate(falls))  # two points alone would mislead
    assert 0 < _remaining_cost(AutoPlan("auq-lr", None, expected=noisy), 100.0 * RATE_LEAST, RATE_LEAST) < 4 * rest


@pytest.mark.parametrize("cost", [1000.0, 1e6])
def test_a_verdict_is_not_dearer_than_the_run_before_it(cost):
    """An elastic net without an intercept has a gap that costs nothing: the triangle waits until that is dearer."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 200)) @ np.diag(1 / (1 + np.arange(200)) ** 0.5)
    y = X @ rng.normal(size=200) + rng.normal(size=600)
    problem = aq.Problem(aq.LeastSquares(), aq.ElasticNet(5.0, 1e-2), split(X, y))
    run = aq.solve(problem, "auq-lr", certificate_tol=1e-8, round_cost=cost, max_iter=300)
    assert run.status == "converged"
    last, triangle = run.history[-1], 200 * 201 // 2
    if cost == 1000.0:
        assert last.bytes_up / 8 < triangle or last.rounds * cost + last.bytes_up / 8 >= 2 * triangle
    else:
        assert last.bytes_up / 8 > triangle  # rounds are dearer


def test_a_method_that_was_left_for_a_promise_comes_back_once_where_the_promise_fails():
    known = (
        CostEstimate("lbfgs-w", 600, 5e6, ""),
        CostEstimate("auq-lr", 260, 9e6, ""),
        CostEstimate("lbfgs", 7000, 6e7, ""),
    )
    auto = Auto(round_cost=4000)

    def instead(plan):
        tried = {plan.method, *(c.old for c in plan.changes)}
        found = auto._instead(plan, known, [e for e in known if e.method not in tried])
        return found and found.method

    promised = Change(266, "lbfgs-w", "auq-lr", REST, 300, 1000)
    failed = Change(269, "auq-lr", "lbfgs-w", "local problems are too hard", 310, 1100)
    assert instead(AutoPlan("lbfgs-w", None)) == "auq-lr"
    assert instead(AutoPlan("auq-lr", None, changes=(promised,))) == "lbfgs-w"  # though lbfgs has not been tried
    assert instead(AutoPlan("lbfgs-w", None, changes=(promised, failed))) == "lbfgs"  # nobody comes back twice
    last = Change(400, "lbfgs-w", "lbfgs", "no progress in 3 iterations", 500, 2000)
    assert instead(AutoPlan("lbfgs", None, changes=(promised, failed, last))) is None
    dear = replace(promised, why="no progress in 3 iterations")
    assert instead(AutoPlan("auq-lr", None, changes=(dear,))) == "lbfgs"  # what has failed does not come back


@pytest.mark.parametrize(("loss", "hard"), [(aq.SmoothedHinge(), 0), (aq.Logistic(), 1)])
def test_where_rows_bend_by_turns_many_products_are_no_failure(loss, hard):
    setup = SimpleNamespace(loss=loss, blocks=2)
    shared = SimpleNamespace(setup=setup, hvps=10**6, inner_failures=2, memory=None, scored=None)
    assert _observe(AutoPlan("auq-lr", None), shared).hard == hard


@pytest.mark.parametrize(("loss", "most"), [(aq.SmoothedHinge(), 28), (aq.Logistic(), 7)])
def test_where_rows_bend_by_turns_a_local_solve_may_take_four_times_the_products(loss, most, monkeypatch):
    asked, solve = [], LocalStep.__call__

    def watched(self, *args, **options):
        asked.append(args[8])
        return solve(self, *args, **options)

    monkeypatch.setattr(LocalStep, "__call__", watched)
    aq.solve(aq.Problem(loss, aq.L2(1.0), split(*pair(), 2)), aq.methods.AUQLR(products=7), max_iter=2)
    assert set(asked) == {most}
