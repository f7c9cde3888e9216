"""Callbacks that stop a run, by wish or by failure."""

import traceback

import pytest
import torch

import auqadmm as aq
from auqadmm.callbacks import EarlyStop
from tests.problems import least_squares, multinomial

NEVER = {"certificate_tol": 0, "evaluate_every": 1}


def run(callback, problem=None, **options):
    return aq.solve(problem or multinomial(), "c-admm", callbacks=[callback], **NEVER | {"max_iter": 60} | options)


def test_a_target_objective():
    whole = aq.solve(multinomial(), "c-admm", max_iter=60, **NEVER)
    target = whole.history[20].objective
    stop = EarlyStop(objective=target)
    result = run(stop)
    first = next(row.iteration for row in whole.history if row.objective <= target)
    assert result.status == "interrupted"
    assert result.n_iter == first
    assert stop.reason == f"objective {target:.6g} ≤ {target:.6g} after {first} iterations"


def test_patience_counts_iterations_without_improvement():
    stop = EarlyStop(patience=5, improvement=1e-3)
    result = run(stop)
    best, since = float("inf"), 0
    for row in result.history:
        if row.objective < best - (1e-3 * abs(row.objective) if since else 0):
            best, since = row.objective, row.iteration
    assert result.n_iter == since + 5 < 60
    assert stop.reason == f"no objective below {best:.6g} in the last 5 iterations"


def test_patience_where_the_objective_is_rarely_known():
    assert run(EarlyStop(patience=4), evaluate_every=0).n_iter == 5
    assert run(EarlyStop(patience=4), evaluate_every=3, max_iter=20).n_iter == 20


def test_a_predicate():
    seen = []

    def rounds_spent(event):
        seen.append(event.row.rounds)
        return event.row.rounds >= 9

    stop = EarlyStop(when=rounds_spent)
    result = run(stop)
    assert result.status == "interrupted"
    assert seen == list(range(1, 10))
    assert stop.reason.startswith("rounds_spent was true")


def test_another_run_starts_anew():
    stop = EarlyStop(patience=3, improvement=0.01)
    assert run(stop).n_iter == run(stop).n_iter
    assert stop.reason


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "needs a condition"),
        ({"objective": "low"}, "objective must be a number, got 'low'"),
        ({"objective": float("nan")}, "objective must be a number, got nan"),
        ({"patience": 0}, "patience must be a whole number ≥ 1, got 0"),
        ({"patience": 2, "improvement": -1}, "improvement must be a finite number ≥ 0, got -1"),
        ({"when": 3}, "when must be a function of an Iteration, got 3"),
    ],
)
def test_input(settings, message):
    with pytest.raises(ValueError, match=message):
        EarlyStop(**settings)


# ---------------------------------------------------------------------- failures
def fails_at(k):
    def disk_is_full(event):
        if event.row.iteration == k:
            raise LookupError("no such thing")

    return disk_is_full


def test_a_failure_reaches_the_caller_with_its_traceback():
    with pytest.raises(LookupError, match="no such thing") as caught:
        run(fails_at(3), least_squares())
    assert "disk_is_full" in "".join(traceback.format_tb(caught.value.__traceback__))


@pytest.mark.parametrize("k", [1, 7, 10])
def test_a_run_goes_on_from_where_a_callback_failed(tmp_path, k):
    """The iterate of the failing iteration is saved, though none was due; the same call ends as without the failure."""
    whole = aq.solve(multinomial(), "c-admm", max_iter=20, **NEVER)
    with pytest.raises(LookupError):
        run(fails_at(k), max_iter=20, checkpoint=tmp_path)
    seen = []
    result = run(lambda event: seen.append(event.row.iteration), max_iter=20, checkpoint=tmp_path)
    assert seen == list(range(k + 1, 21))
    assert torch.equal(result.v, whole.v)
    assert result.history.column("objective") == whole.history.column("objective")


def test_a_callback_that_fails_when_the_folder_is_gone_too_still_says_why(tmp_path):
    def vandal(event):
        if event.row.iteration == 3:
            for path in sorted(tmp_path.rglob("*"), reverse=True):
                path.rmdir() if path.is_dir() else path.unlink()
            tmp_path.rmdir()
            tmp_path.write_text("a file where the folder was")
            raise LookupError("no such thing")

    with pytest.raises(LookupError, match="no such thing"):
        run(vandal, checkpoint=tmp_path)
