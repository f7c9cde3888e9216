"""History, counters, warm starts, reproducibility, arguments: what the loop promises."""

from __future__ import annotations

import itertools
import math
import time
from dataclasses import replace

import numpy as np
import pytest
import torch

import auqadmm as aq
from tests.problems import class_blocks, least_squares, multinomial, regression_blocks, svm

METHODS = ["c-admm", "rb-admm", "ac-admm", "uq-admm", "auq-admm"]
MODELS = {"elastic-net": least_squares, "multinomial": multinomial, "svm": svm}


# ------------------------------------------------------------------ history and counters
def test_history_columns_and_pandas():
    result = aq.solve(least_squares(), "auq-lr", max_iter=5, certificate_tol=1e-14)
    frame = result.history.to_pandas()
    for name in (
        "iteration",
        "objective",
        "primal_residual",
        "dual_residual",
        "eps_primal",
        "eps_dual",
        "kkt",
        "seconds",
        "rounds",
        "bytes",
        "hvps",
        "rounds_verdict",
        "reductions",
        "relative",
        "expected",
    ):
        assert name in frame.columns
    assert frame["iteration"].tolist() == [1, 2, 3, 4, 5]
    assert frame["seconds"].is_monotonic_increasing
    assert result.history.column("kkt")[-1] == result.certificate.kkt
    with pytest.raises(KeyError, match="No column 'loss'"):
        result.history.column("loss")


@pytest.mark.parametrize(
    ("method", "rounds", "up"),
    [
        # per iteration, n = 6 unknowns: s (n) + 5 residual scalars + 3 counters, plus K when the weights change
        (aq.methods.C(), 1, 6 + 5 + 3),
        (aq.methods.UQ(), 1, 6 + 5 + 3),
        (aq.methods.AUQ(), 1, 6 + 5 + 3 + 6),
        (aq.methods.RB(mu=1e9), 2, 6 + 5 + 3),
        (aq.methods.UQ(normalize="global"), 1, 6 + 5 + 3),
        (aq.methods.AUQ(normalize="global"), 3, 6 + 5 + 3 + 6 + 2),
    ],
)
def test_budget_of_rounds_and_bytes(method, rounds, up):
    rows = aq.solve(least_squares(), method, max_iter=7, certificate_tol=0).history.rows
    for before, after in itertools.pairwise(rows[:-1]):  # the last row is all that was done
        assert after.rounds - before.rounds == rounds
        assert after.bytes_up - before.bytes_up == 8 * up
        assert after.bytes == after.bytes_up + after.bytes_down


def test_scoring_is_off_the_clock_and_not_communication():
    problem = least_squares()
    scored = aq.solve(problem, "c-admm", max_iter=20, certificate_tol=0, evaluate_every=1)
    silent = aq.solve(problem, "c-admm", max_iter=20, certificate_tol=0)
    sparse = aq.solve(problem, "c-admm", max_iter=20, certificate_tol=0, evaluate_every=5)
    assert torch.equal(scored.v, silent.v)
    for counted in ("rounds", "bytes", "rounds_verdict"):
        assert scored.history.column(counted)[:-1] == silent.history.column(counted)[:-1]
    assert all(row.objective is not None and row.kkt is not None for row in scored.history)
    assert silent.history[9].objective is None
    assert [row.objective is None for row in sparse.history][:5] == [True] * 4 + [False]


def test_the_clock_excludes_evaluation_and_callbacks():
    result = aq.solve(least_squares(), "auq-lr", max_iter=5, callbacks=[lambda event: time.sleep(0.3) is not None])
    assert result.history[-1].seconds < 1.0


def test_objective_in_the_history_is_the_objective():
    blocks = regression_blocks()
    result = aq.solve(least_squares(blocks), max_iter=4)
    v = result.coef
    f = sum(0.5 * np.mean((X @ v - y) ** 2) for X, y in blocks)
    g = 0.05 * np.abs(v).sum() + 0.05 * (v @ v)
    assert result.history[-1].objective == pytest.approx(f + g, rel=1e-12)


@pytest.mark.thin(3)
# ------------------------------------------------------------------ warm start
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("method", METHODS)
def test_started_at_its_own_solution_a_run_stops_within_two_iterations(model, method):
    problem = MODELS[model]()
    options = {"certificate_tol": 1e-8, "abs_tol": 1e-6, "rel_tol": 1e-6}
    first = aq.solve(problem, method, max_iter=3000, **options)
    assert first.status == "converged"
    again = aq.solve(problem, method, warm_start=first, **options)
    assert again.status == "converged"
    assert again.n_iter <= 2
    assert again.objective == pytest.approx(first.objective, rel=1e-7)
    bare = aq.solve(problem, method, warm_start=first.v, **options)
    assert bare.n_iter <= 8, "a model alone nearly suffices: its gradients are the multipliers"


def test_warm_start_that_does_not_fit_is_refused():
    result = aq.solve(least_squares(), "auq-lr", max_iter=3)
    other = least_squares(regression_blocks(features=4))
    with pytest.raises(aq.InputError, match=r"warm_start: v has shape \(6, 1\)"):
        aq.solve(other, warm_start=result)
    fewer = least_squares(regression_blocks(sizes=(12, 9)))
    with pytest.raises(aq.InputError, match="made with other blocks"):
        aq.solve(fewer, warm_start=result)
    with pytest.raises(aq.InputError, match="NaN or infinity"):
        aq.solve(other, warm_start=np.full(4, np.nan))


# ------------------------------------------------------------------ reproducibility, precision, arguments
@pytest.mark.parametrize("method", METHODS)
def test_the_same_answer_every_run(method):
    runs = [aq.solve(multinomial(), method, max_iter=15, start="random", seed=3) for _ in range(2)]
    assert torch.equal(runs[0].v, runs[1].v)
    other = aq.solve(multinomial(), method, max_iter=15, start="random", seed=4)
    assert not torch.equal(runs[0].v, other.v)


def test_float32_blocks_with_float64_sums():
    exact = aq.solve(multinomial(), "ac-admm", certificate_tol=1e-9, max_iter=500)
    single = aq.solve(multinomial(), "ac-admm", dtype="float32", certificate_tol=1e-6, max_iter=500)
    assert single.v.dtype == torch.float64
    assert single.lam.dtype == torch.float32
    assert single.objective == pytest.approx(exact.objective, rel=1e-5)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"method": "admm"},
            "Unknown method 'admm'.*'auto', 'c-admm', 'rb-admm', 'ac-admm', 'uq-admm', 'auq-admm', 'auq-lr'",
        ),
        ({"method": 3}, "method must be a name or an object"),
        ({"engine": "spark"}, "Unknown engine 'spark'"),
        ({"local": "sgd"}, "sgd.*direct.*newton-cg"),
        ({"stop": "never"}, "stop must be one of"),
        ({"max_iter": -1}, "max_iter must be a whole number"),
        ({"max_iter": 2.5}, "max_iter must be a whole number"),
        ({"abs_tol": -1.0}, "abs_tol must be a finite number"),
        ({"certificate_tol": math.nan}, "certificate_tol must be a finite number"),
        ({"time_limit": 0}, "time_limit must be a positive"),
        ({"dtype": "float16"}, "dtype must be 'float64' or 'float32'"),
        ({"device": "abacus"}, "Unknown device 'abacus'"),
        ({"start": "middle"}, "start must be 'zeros' or 'random'"),
        ({"evaluate_every": -1}, "evaluate_every must be a whole number"),
    ],
)
def test_wrong_arguments_get_one_sentence(options, words):
    with pytest.raises(ValueError, match=words):
        aq.solve(least_squares(), **options)


def test_not_a_problem():
    with pytest.raises(aq.InputError, match=r"must be an auqadmm\.Problem"):
        aq.solve(class_blocks())


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_cuda_without_a_gpu_is_refused():
    with pytest.raises(ValueError, match="sees no CUDA device"):
        aq.solve(least_squares(), device="cuda")


def test_callbacks_see_every_row_the_last_included():
    seen = []
    result = aq.solve(least_squares(), "c-admm", callbacks=[lambda event: seen.append(event.row) and False])
    *rows, last = result.history.rows
    assert seen[:-1] == rows
    totals = ("rounds", "bytes", "bytes_up", "bytes_down", "rounds_verdict", "reductions")
    assert seen[-1] == replace(last, **{name: getattr(seen[-1], name) for name in totals})
    assert all(getattr(last, name) >= getattr(seen[-1], name) for name in totals)


def test_what_tells_when_to_ask_travels_with_the_iteration():
    """One round before the first for the columns, n + 2 more numbers in every one (the gradient, the value, the norms),
    and the same iterates."""
    options = {"max_iter": 12, "abs_tol": 0, "rel_tol": 0}
    silent = aq.solve(least_squares(), "c-admm", stop="residuals", evaluate_every=1, **options)
    asking = aq.solve(least_squares(), "c-admm", certificate_tol=1e-300, **options)
    assert torch.equal(silent.v, asking.v)
    assert silent.history.column("kkt") == pytest.approx(asking.history.column("kkt"), rel=1e-12)
    assert silent.history.column("objective") == pytest.approx(asking.history.column("objective"), rel=1e-12)
    pairs = list(zip(asking.history, silent.history, strict=True))[:-1]
    assert {a.rounds - b.rounds for a, b in pairs} == {1}
    shard = least_squares().shard(torch.float64, torch.device("cpu"))
    columns = 8 * sum(x.numel() for x in shard.exact().moments().values())
    assert [a.bytes_up - b.bytes_up - columns for a, b in pairs] == [8 * (6 + 2) * k for k in range(11)]
