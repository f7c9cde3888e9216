"""What a user on a bad day does: each gets an answer that is right, or one clear sentence."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import torch

import auqadmm as aq
from auqadmm.core.reduce import Reduce
from auqadmm.engines import LocalEngine
from auqadmm.verdict.duality import Certifier, at_least_rounding
from tests.core.checkpoints import assert_same
from tests.problems import least_squares, multinomial, regression_blocks

RNG = np.random.default_rng(0)
X = RNG.normal(size=(120, 6))
Y = X @ RNG.normal(size=6) + 0.1 * RNG.normal(size=120)


def two(X, y):
    return [(X[:60], y[:60]), (X[60:], y[60:])]


def ls(blocks, g=None, **options):
    return aq.Problem(aq.LeastSquares(), g or aq.L2(1.0), blocks, **options)


# ------------------------------------------------------------------ statuses that must not lie
@pytest.mark.parametrize("method", ["lbfgs", "lbfgs-w", "owl-qn", "fista"])
def test_a_method_without_residuals_stops_by_its_certificate(method, tmp_path):
    run = aq.solve(ls(two(X, Y), intercept=True), method, stop="residuals", max_iter=500)
    assert run.status == "converged"
    assert run.certificate.passes(1e-5)
    for limit in (2, 500):
        options = {"stop": "residuals", "max_iter": limit, "checkpoint": tmp_path}
        again = aq.solve(ls(two(X, Y), intercept=True), method, **options)
    assert_same(again, run)


def test_a_custom_regularizer_is_not_certified_far_from_the_optimum():
    box = aq.CustomRegularizer(lambda v: 0.0 * v.sum(), lambda s, K: (s / K).clamp(-1, 1))
    for scale in (1.0, 1e3):
        custom = aq.solve(ls(two(X * scale, Y * scale), box), "fista", max_iter=2000)
        known = aq.solve(ls(two(X * scale, Y * scale), aq.Box(-1, 1)), "fista", max_iter=2000)
        assert custom.objective == pytest.approx(known.objective, rel=1e-6)


@pytest.mark.parametrize("method", ["c-admm", "auq-admm", "auq-lr", "lbfgs", "fista"])
def test_overflow_is_called_divergence(method):
    run = aq.solve(ls(two(X * 1e160, Y)), method, max_iter=20)
    assert run.status == "diverged"
    assert run.v.isfinite().all()


def test_a_gap_is_never_smaller_than_its_rounding():
    """Terms that cancel to less than nothing, or to nothing: what is known of the gap is their rounding."""
    ulp = 2.0**-52
    assert at_least_rounding([1.0, -1.0], ulp) == 2 * ulp
    assert at_least_rounding([1.0, -1.0 - 1e-12], ulp) == pytest.approx(2 * ulp, rel=1e-9)
    assert at_least_rounding([1.0, -1.0], ulp, noise=1e-9) == pytest.approx(1e-9, rel=1e-6)
    assert at_least_rounding([1.0, -0.5], ulp) == 0.5
    assert at_least_rounding([1.0, math.inf], ulp) is None
    for g in (aq.L1(0.5), aq.L2(1.0), aq.ElasticNet(0.5, 0.1)):
        problem = ls(two(X, Y), g)
        run = aq.solve(problem, "fista", certificate_tol=1e-15, max_iter=3000)
        assert run.status == "converged", run.message
        assert run.certificate.gap_bound > 0
        zero = torch.zeros_like(run.v)
        judge = Certifier(Reduce(LocalEngine(problem.shard(torch.float64, torch.device("cpu")))), problem.g, zero)
        rng = np.random.default_rng(0)
        for _ in range(20):  # around the optimum to the last bits
            v = run.v * (1 + ulp * torch.from_numpy(rng.integers(-4, 5, run.v.shape)))
            assert judge.certify(v).gap >= ulp * run.objective


def test_time_limit_before_the_first_iteration():
    run = aq.solve(least_squares(), time_limit=1e-9)
    assert run.status == "time_limit"
    assert "before the first iteration" in run.message


# ------------------------------------------------------------------ input
def test_frames_with_columns_in_another_order_are_refused():
    frame = pd.DataFrame({"age": [1.0, 2, 3, 4], "pay": [4.0, 3, 1, 2]})
    y = np.arange(4.0)
    with pytest.raises(aq.InputError, match=r"block 1 has 'pay' where block 0 has 'age' \(column 0\)"):
        ls([(frame, y), (frame[["pay", "age"]], y)])


def test_masked_values_are_missing_values():
    y = np.ma.masked_array(Y, Y > 2)
    row = int(np.flatnonzero(Y > 2)[0])
    with pytest.raises(aq.InputError, match=f"block 0: y has a masked .* row {row}"):
        ls([(X, y)])
    with pytest.raises(aq.InputError, match="block 0: X has a masked"):
        ls([(np.ma.masked_array(X, X > 2), Y)])


def test_large_integer_labels_stay_apart_or_are_refused():
    labels = np.array([2**63 + 1, 2**63 + 2, 5], np.uint64)[np.arange(120) % 3]
    assert len(aq.Problem(aq.Multinomial(), aq.L2(1.0), two(X, labels)).classes) == 3
    ints = np.array([2**60, 2**60 + 1])[np.arange(60) % 2]
    with pytest.raises(aq.InputError, match="become equal as float64"):
        aq.Problem(aq.Multinomial(), aq.L2(1.0), [(X[:60], ints), (X[60:], np.arange(60.0) % 2)])


def test_dates_are_labels_and_stay_dates():
    days = np.array(["2020-01-01", "2020-01-02"], dtype="datetime64[D]")[np.arange(120) % 2]
    problem = aq.Problem(aq.Logistic(), aq.L2(1.0), two(X, days))
    assert problem.classes.dtype.kind == "M"


BAD = [
    (lambda: ls(two(X, Y), intercept=2), "intercept must be True or False, got 2"),
    (lambda: ls([(scipy.sparse.csr_matrix((120, 0)), Y)]), "X has no columns"),
    (lambda: aq.Problem(aq.Logistic(), aq.L2(1.0), [(X[:3], pd.array(["a", None, "b"], dtype="string"))]), "missing"),
    (lambda: aq.solve(least_squares(), max_iter=None), "max_iter must be a whole number"),
    (lambda: aq.solve(least_squares(), max_iter=float("inf")), "max_iter must be a whole number"),
    (lambda: aq.solve(least_squares(), abs_tol="a"), "abs_tol must be a finite number"),
    (lambda: aq.solve(least_squares(), time_limit="5"), "time_limit must be a positive number"),
    (lambda: aq.solve(least_squares(), evaluate_every=None), "evaluate_every must be a whole number"),
    (lambda: aq.solve(least_squares(), seed="a"), "seed must be a whole number"),
    (lambda: aq.solve(least_squares(), seed=10**20), r"seed must be below 2\*\*31"),
    (lambda: aq.solve(least_squares(), callbacks=print), "callbacks must be a list of functions"),
    (lambda: aq.solve(least_squares(), callbacks=[3]), "callbacks must be a list of functions"),
    (lambda: aq.solve(least_squares(), engine=None), "Unknown engine None"),
    (lambda: aq.solve(least_squares(), device="meta"), "device 'meta' is not supported"),
    (lambda: aq.solve(least_squares(), warm_start="abc"), "warm_start: v must be an array of numbers"),
    (lambda: aq.solve(least_squares(), warm_start=aq.WarmStart(np.zeros(6), np.full((4, 6, 1), np.nan))), "NaN"),
    (lambda: aq.methods.C(rho="a"), "rho must be a finite number"),
    (lambda: aq.methods.C(rho=True), "rho must be a finite number"),
    (lambda: aq.methods.AC(correlation=5), r"correlation must lie in \[0, 1\)"),
    (lambda: aq.methods.UQ(interval=5), "interval must be"),
    (lambda: aq.methods.UQ(interval=("a", "b")), "interval must be"),
    (lambda: aq.methods.C(relaxation="a"), "relaxation must lie"),
]


@pytest.mark.parametrize(("make", "words"), BAD, ids=[w[:30] for _, w in BAD])
def test_one_clear_sentence(make, words):
    with pytest.raises(ValueError, match=words) as caught:
        make()
    assert "\n" not in str(caught.value)


# ------------------------------------------------------------------ conveniences people expect
def test_classes_stand_for_their_defaults():
    run = aq.solve(multinomial(), aq.methods.AUQ, local=aq.local.NewtonCG, dtype=np.float32, max_iter=3)
    assert run.n_iter == 3


def test_another_regularizer_on_the_same_blocks():
    problem = least_squares()
    other = replace(problem, regularizer=aq.L2(3.0))
    fresh = least_squares(regression_blocks(), regularizer=aq.L2(3.0))
    assert torch.equal(aq.solve(other, max_iter=5).v, aq.solve(fresh, max_iter=5).v)


def test_parameters_win_over_a_warm_start():
    first = aq.solve(least_squares(), aq.methods.C(rho=1.0), max_iter=5)
    again = aq.solve(least_squares(), aq.methods.C(rho=100.0), warm_start=first, max_iter=2)
    assert (again.weights.rho == 100.0).all()


def test_a_warm_start_may_have_another_precision():
    wide = aq.solve(multinomial(), "ac-admm", max_iter=6)
    narrow = aq.solve(multinomial(), "ac-admm", dtype="float32", warm_start=wide, max_iter=6)
    assert narrow.weights.rho.dtype == torch.float32
    back = aq.solve(multinomial(), "ac-admm", warm_start=narrow, max_iter=6)
    assert back.weights.rho.dtype == torch.float64


def test_a_generator_of_callbacks_is_not_used_up():
    seen = []
    aq.solve(least_squares(), "c-admm", max_iter=4, callbacks=(f for f in [lambda e: seen.append(e) and False]))
    assert len(seen) == 4
