"""Runs on digits: hit, miss, force, resume; the optimum; the clock; interrupts."""

import math

import pytest

import auqadmm as aq
from auqadmm.paper import run as runner_module
from auqadmm.paper.optimum import Optimum
from auqadmm.paper.run import ROUNDING, Runner, RunnerInterrupted
from auqadmm.paper.spec import ProblemSpec
from auqadmm.paper.store import Store
from tests.experiments.specs import ELASTIC, run_spec


@pytest.fixture
def runner(tmp_path):
    return Runner(Store(tmp_path))


@pytest.fixture
def counted(monkeypatch):
    """How many runs were computed."""
    calls = []

    def solve(*arguments, **options):
        calls.append(options)
        return aq.solve(*arguments, **options)

    monkeypatch.setattr(runner_module, "solve", solve)
    return calls


def test_a_run_is_computed_once_and_again_by_force(runner, counted):
    first = runner.run(run_spec())
    assert runner.has(run_spec())
    assert dict(runner.run(run_spec()).columns) == dict(first.columns)
    assert len(counted) == 1
    again = Runner(runner.store, force=True).run(run_spec())
    assert len(counted) == 2
    assert again.columns["objective"] == first.columns["objective"]
    runner.run(run_spec(iterations=4))
    assert len(counted) == 3


def test_a_record_says_what_made_it(runner):
    record = runner.run(run_spec(seed=2))
    assert record.columns["iteration"] == [1, 2, 3]
    assert record.about["spec"]["seed"] == 2
    assert record.about["status"] == "max_iter"
    assert record.about["optimum"]["kkt"] <= 1e-9
    assert {"torch", "python", "threads", "device"} <= set(record.about["system"])
    assert record.about["wall_seconds"] >= record.columns["seconds"][-1]


def test_gaps_are_relative_to_an_optimum_that_is_no_admm(runner):
    best = runner.optimum(ELASTIC)
    record = runner.run(run_spec())
    wanted = [(x - best.objective) / best.objective for x in record.columns["objective"]]
    assert record.columns["gap"] == pytest.approx(wanted)
    assert record.columns["gap"][-1] > 0
    assert best.objective == pytest.approx(18.036061811657216, rel=1e-10)


def test_optima_are_kept_and_shared(runner, monkeypatch):
    runner.optimum(ELASTIC)
    monkeypatch.setattr(runner_module, "compute", lambda *_: pytest.fail("computed again"))
    assert Runner(runner.store).optimum(ELASTIC).kkt <= 1e-9
    known = {"digits-svm-mean": Optimum(1.0, 0.0, None, "by hand")}
    spec = ProblemSpec("digits", "svm", classes=(0, 1))
    assert Runner(runner.store, known=known).optimum(spec).how == "by hand"


def test_a_run_ends_when_its_gap_is_rounding(runner):
    record = runner.run(run_spec("auq-lr", iterations=100))
    assert record.about["status"] == "reached"
    assert len(record) < 100
    assert record.columns["gap"][-1] <= ROUNDING < record.columns["gap"][-2]


def test_an_interruption_keeps_what_was_complete_and_the_next_call_continues(runner, counted):
    runner.run(run_spec())

    def stop(event):
        if event.iteration == 2:
            raise KeyboardInterrupt

    with pytest.raises(RunnerInterrupted, match="what was complete is kept"):
        Runner(runner.store, progress=stop).run(run_spec("rb-admm"))
    assert runner.has(run_spec())
    assert not runner.has(run_spec("rb-admm"))
    runner.run(run_spec())
    runner.run(run_spec("rb-admm"))
    assert len(counted) == 3  # the complete run was not computed again


def test_a_run_that_was_cut_off_is_done_again_with_more_time(runner, counted):
    short = Runner(runner.store, time_limit=1e-9)
    assert short.run(run_spec()).about["status"] == "time_limit"
    assert short.has(run_spec())
    assert not runner.has(run_spec())
    assert runner.run(run_spec()).about["status"] == "max_iter"
    assert short.has(run_spec())
    assert len(counted) == 2


def test_a_damaged_entry_is_computed_again(runner, counted):
    runner.run(run_spec())
    for path in runner.store.folder.glob("*.parquet"):
        path.write_bytes(b"PAR1")
    assert len(runner.run(run_spec())) == 3
    assert len(counted) == 2


def test_progress_and_silence(tmp_path, capfd):
    seen = []
    Runner(Store(tmp_path), progress=seen.append).run(run_spec())
    assert [event.iteration for event in seen] == [1, 2, 3]
    assert all(math.isfinite(event.gap) for event in seen)
    assert capfd.readouterr() == ("", "")


def test_protocols_reach_the_solver(runner, counted):
    spec = run_spec("auq-admm", iterations=1, protocol="released", start="random", local="released", rank=10)
    runner.run(spec)
    assert (counted[0]["local"], counted[0]["start"]) == ("released", "random")
