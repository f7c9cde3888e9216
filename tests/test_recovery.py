"""`on_loss`, with an engine whose loop runs here and whose blocks live in a child process that can be killed."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
import warnings
from contextlib import suppress
from dataclasses import dataclass, field

import pytest
import torch

import auqadmm as aq
from auqadmm.engines import LocalEngine
from tests.core.checkpoints import assert_same, names, no_waiting, rows
from tests.problems import multinomial

__all__ = ["no_waiting"]  # a fixture

LENGTH = 14
RUN = {"method": "ac-admm", "max_iter": LENGTH, "certificate_tol": 0, "evaluate_every": 1}


@dataclass(frozen=True)
class There:
    """The state of blocks, as the process that runs the loop knows it."""

    number: int
    W = None


def serve(shard, pipe):
    """The child: it holds the shard and every state of its blocks."""
    engine, states = LocalEngine(shard), [None]
    with suppress(EOFError):
        while True:
            name, fn, number, more = pipe.recv()
            found = getattr(engine, name)(fn, states[number], *more)
            if name in ("map_sum", "map_minmax"):
                states.append(found[0])
                found = (len(states) - 1, found[1])
            pipe.send(found)


class Child:
    """An engine with one worker. `dies` are the calls, counted over all engines of a place, in which it is killed."""

    def __init__(self, place, shard):
        self.place, self.names, self.census = place, shard.names, shard.census
        self.pipe, theirs = multiprocessing.Pipe()
        with warnings.catch_warnings():  # of threads that fork does not copy: the child needs none of them
            warnings.simplefilter("ignore", DeprecationWarning)
            self.process = multiprocessing.get_context("fork").Process(target=serve, args=(shard, theirs), daemon=True)
            self.process.start()
        theirs.close()

    def _ask(self, name, fn, blocks, *more):
        self.place.calls.append(name)
        if len(self.place.calls) in self.place.dies or name in self.place.fatal:
            os.kill(self.process.pid, signal.SIGKILL)
        try:
            self.pipe.send((name, fn, 0 if blocks is None else blocks.number, more))
            return self.pipe.recv()
        except (EOFError, OSError):
            raise aq.WorkerLost(f"worker {self.place.placed} was lost (its process is gone)") from None

    def map_sum(self, fn, blocks, shared):
        number, sums = self._ask("map_sum", fn, blocks, shared)
        return There(number), sums

    def map_minmax(self, fn, blocks, shared):
        number, sums = self._ask("map_minmax", fn, blocks, shared)
        return There(number), sums

    def map_concat(self, fn, blocks):
        return self._ask("map_concat", fn, blocks)

    def gather(self, fn, blocks):
        return self._ask("gather", fn, blocks)

    def peek(self, fn, blocks):
        return self._ask("peek", fn, blocks)

    def scatter(self, x):
        return x

    def agreed(self, number):
        return number

    def first(self, work):
        return work()

    def same(self, settings):
        return None

    def close(self, error=None):
        self.place.closed.append(error)
        self.process.kill()
        self.process.join()
        self.process.close()
        self.pipe.close()


@dataclass
class Mortal:
    """Where the child is killed: in which calls, and in every call of a kind."""

    dies: tuple[int, ...] = ()
    fatal: tuple[str, ...] = ()
    unplaced: int = 0  # placements that fail
    slow: float = 0.0  # seconds that a second placement takes
    placed: int = 0
    calls: list[str] = field(default_factory=list)
    closed: list[BaseException | None] = field(default_factory=list)

    def place(self, problem, dtype, device):
        self.placed += 1
        if self.placed <= self.unplaced:
            raise aq.WorkerLost(f"worker {self.placed} did not come.")
        time.sleep(self.slow * (self.placed == 2))
        return Child(self, problem.placed().shard(dtype, device))


def solve(place, folder, every=4, on_loss="restart", **options):
    checkpoint = None if folder is None else aq.Checkpoint(folder, every=every)
    return aq.solve(multinomial(), engine=place, checkpoint=checkpoint, on_loss=on_loss, **{**RUN, **options})


def dying(place, iteration, calls=1):
    """A callback: the first worker is killed so many calls after this iteration."""

    def doom(event):
        if event.row.iteration == iteration and place.placed == 1:
            place.dies = (len(place.calls) + calls,)

    return doom


@pytest.fixture(scope="module")
def undisturbed():
    return aq.solve(multinomial(), **RUN)


@pytest.mark.thin(3)
# ------------------------------------------------------------------ restart
@pytest.mark.parametrize("call", [1, 4, 7, 23, 40])
def test_a_run_that_lost_its_worker_begins_again_and_arrives_at_the_same_answer(tmp_path, undisturbed, call):
    """Killed in any call: while the data are read, while it saves, in mid-iteration."""
    place = Mortal(dies=(call,))
    result = solve(place, tmp_path)
    assert_same(result, undisturbed)
    assert "Worker 1 was lost (its process is gone). The run began again" in result.message
    assert place.placed == 2
    assert isinstance(place.closed[0], aq.WorkerLost)
    assert place.closed[1] is None


@pytest.mark.campaign
def test_lost_in_a_verdict_or_after_it(tmp_path):
    """Rounds of verdicts are counted once, whether or not the run that asked for them is lost."""
    options = {"certificate_tol": 1e-8, "evaluate_every": 0, "max_iter": 200}
    plain = aq.solve(multinomial(), **{**RUN, **options})
    assert plain.status == "converged"
    whole = Mortal()
    assert_same(solve(whole, tmp_path / "whole", **options), plain)
    for back in (3, 4, 5, 7, 10, 13):  # the last three calls gather weights, which are no part of the run
        place = Mortal(dies=(len(whole.calls) - back,))
        assert_same(solve(place, tmp_path / str(back), **options), plain)
        assert place.placed <= 2


def test_it_begins_where_the_last_checkpoint_is(tmp_path):
    seen = []
    place = Mortal()
    watch = [lambda event: bool(seen.append(event.row.iteration)), dying(place, 10)]
    result = solve(place, tmp_path, callbacks=watch)
    assert "The run began again from iteration 8." in result.message
    assert seen == [*range(1, 11), *range(9, LENGTH + 1)]


def test_a_worker_lost_after_the_end_costs_no_iteration(tmp_path, undisturbed):
    """The end is saved, and summed once more for the result; then the worker is lost that has the multipliers."""
    place = Mortal()
    result = solve(place, tmp_path, callbacks=[dying(place, LENGTH, calls=3)])
    assert_same(result, undisturbed)
    assert f"The run began again from iteration {LENGTH}." in result.message


def test_many_losses_as_long_as_each_run_gets_further(tmp_path, undisturbed):
    """Five losses, a few calls for setting up and two iterations apart: more than are allowed in vain."""
    place = Mortal(dies=tuple(range(20, 90, 14)))
    result = solve(place, tmp_path, every=1)
    assert_same(result, undisturbed)
    assert place.placed == 6
    assert "Workers were lost 5 times; of late: Worker 3 was lost" in result.message
    assert result.message.count("The run began again") == 3


def test_it_gives_up_when_it_gets_no_further(tmp_path):
    """Saving kills every worker, from the second checkpoint on."""
    place = Mortal()

    def doom(event):
        place.fatal = ("map_concat",)

    result = solve(place, tmp_path, callbacks=[doom])
    assert result.status == "interrupted"
    assert result.n_iter == 4
    assert len(result.history) == 4
    assert "Worker 4 was lost" in result.message
    assert "It began again 3 times and got no further." in result.message
    assert f"The same call goes on from the checkpoint of iteration 0 in {tmp_path}." in result.message
    assert place.placed == 4
    once = Mortal(fatal=("map_concat",))
    keep = aq.Checkpoint(tmp_path / "b", restarts=1)
    result = aq.solve(multinomial(), engine=once, checkpoint=keep, on_loss="restart", **RUN)
    assert (result.n_iter, once.placed) == (0, 2)
    assert "goes on" not in result.message, "nothing could be saved"


def test_workers_that_do_not_come_at_first(tmp_path, undisturbed):
    result = solve(Mortal(unplaced=2), tmp_path)
    assert_same(result, undisturbed)
    assert "Worker 2 did not come. The run began again." in result.message
    with pytest.raises(aq.WorkerLost, match="worker 4 did not come"):
        solve(Mortal(unplaced=9), tmp_path / "never")


def test_a_folder_that_had_to_be_empty_may_hold_what_the_run_saved(tmp_path, undisturbed):
    place = Mortal(dies=(30,))
    keep = aq.Checkpoint(tmp_path, every=4, resume=False)
    assert_same(aq.solve(multinomial(), engine=place, checkpoint=keep, on_loss="restart", **RUN), undisturbed)


def test_a_time_limit_counts_from_the_first_attempt(tmp_path):
    place = Mortal(dies=(20,), slow=1.5)
    result = solve(place, tmp_path, every=1, time_limit=1.5)
    assert place.placed == 2
    assert result.status == "time_limit"
    assert f"The run began again from iteration {result.n_iter}." in result.message


# ------------------------------------------------------------------ stop
def test_stop_returns_the_last_complete_iterate_and_says_where_to_go_on(tmp_path, undisturbed):
    place = Mortal()
    result = solve(place, tmp_path, on_loss="stop", callbacks=[dying(place, 10)])
    assert (result.status, result.n_iter) == ("interrupted", 10)
    assert result.message.startswith("Worker 1 was lost (its process is gone). Stopped in iteration 11; v is the ")
    assert result.message.endswith(f"The same call goes on from the checkpoint of iteration 8 in {tmp_path}.")
    assert rows(result) == rows(undisturbed)[: result.n_iter]
    assert result.classes is not None
    assert_same(solve(Mortal(), tmp_path, on_loss="stop"), undisturbed)


def test_stop_after_a_resume_counts_all_iterations(tmp_path, undisturbed):
    solve(Mortal(), tmp_path, max_iter=6)
    place = Mortal()

    def doom(event):
        place.fatal = ("map_sum",)

    before = solve(Mortal(dies=(7,)), tmp_path, on_loss="stop")
    assert (before.status, before.n_iter) == ("interrupted", 6), "lost before anything new was computed"
    result = solve(place, tmp_path, on_loss="stop", callbacks=[doom])
    assert result.n_iter == 7
    assert rows(result) == rows(undisturbed)[:7]
    assert torch.isfinite(result.v).all()


def test_without_a_checkpoint_nothing_is_promised():
    result = solve(Mortal(dies=(30,)), None, on_loss="stop")
    assert result.status == "interrupted"
    assert result.message.endswith("v is the iterate before it.")
    with pytest.raises(aq.WorkerLost, match="worker 1 was lost"):
        solve(Mortal(dies=(1,)), None, on_loss="stop")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"on_loss": "restart"}, "on_loss='restart' needs checkpoint, a folder"),
        ({"on_loss": "again"}, "on_loss must be 'stop' or 'restart', got 'again'"),
        ({"on_loss": None}, "on_loss must be 'stop' or 'restart', got None"),
    ],
)
def test_wrong_settings_get_one_sentence(options, words):
    with pytest.raises(ValueError, match=words):
        aq.solve(multinomial(), **options)


def test_an_engine_that_holds_a_problem_cannot_be_placed_anew(tmp_path):
    opened = LocalEngine(multinomial().shard(torch.float64, torch.device("cpu")))
    with pytest.raises(ValueError, match="LocalEngine holds a problem already"):
        aq.solve(multinomial(), engine=opened, checkpoint=tmp_path, on_loss="restart")
    assert names(tmp_path) == []
