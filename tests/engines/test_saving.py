"""Checkpoints of runs in several processes: one writes, all agree, and the run goes on with any number of them."""

from __future__ import annotations

import numpy as np
import pytest

import auqadmm as aq
from tests.engines.processes import PROGRAMS, ended, ranks, reports, torchrun
from tests.engines.programs.saving import LENGTH, STOP, TIGHT, problem, run


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Runs of three processes."""
    folder = tmp_path_factory.mktemp("saving")
    processes(3, "all", folder)
    return folder


def processes(count, mode, folder):
    (folder / mode).mkdir()
    with ranks(count, "saving.py", mode, folder) as started:
        for process in started:
            out = ended(process, 90)
            assert process.returncode == 0, out[-3000:]


@pytest.fixture(scope="module")
def seen(folder):
    """What each rank saw, by the name of the run."""
    found = reports(folder / "all", range(3))
    return {name: [rank[name] for rank in found] for name in found[0]}


@pytest.fixture(scope="module")
def whole():
    """The run that the other numbers of processes must arrive at."""
    return run(None, "auq-lr", "local")


def everywhere(found, status, *words):
    """The same status and the same sentence in all processes."""
    for saw in found:
        assert saw["status"] == status, saw
        assert all(word in saw["message"] for word in words), saw["message"]
    assert len({saw["message"] for saw in found}) == 1


def same(found, others):
    """To the last bit, in every process."""
    for saw, other in zip(found, others, strict=True):
        assert saw["status"] == other["status"], saw["message"]
        for what in ("n_iter", "v", "rows", "lam"):
            assert saw[what] == other[what]


def close(saw, other):
    """To rounding, at the same cost."""
    assert saw["status"] == other["status"], saw["message"]
    assert "refused" not in saw["message"]
    np.testing.assert_allclose(saw["v"], other["v"], rtol=1e-9, atol=1e-11)
    for column in ("iteration", "rounds", "bytes_up", "bytes_down"):
        assert [row[column] for row in saw["rows"]] == [row[column] for row in other["rows"]]


@pytest.mark.parametrize("method", ["auq-lr", "rb", "fista"])
@pytest.mark.thin(3)
def test_three_processes_go_on_to_the_last_bit(seen, method):
    everywhere(seen[f"stopped {method}"], "max_iter", f"limit of {STOP} iterations", "The run is saved in")
    same(seen[f"resumed {method}"], seen[f"whole {method}"])


def test_a_finished_run_returns_at_once(seen):
    same(seen["again"], seen["resumed rb"])
    everywhere(seen["again"], "max_iter", "The run is saved in")


def test_a_first_process_without_blocks_writes_as_well(seen):
    for saw, other in zip(seen["resumed idle"], seen["whole rb"], strict=True):
        close(saw, other)


def test_three_two_and_one_process_go_on_with_each_others_runs(folder, seen, whole):
    close(seen["whole auq-lr"][0], whole)
    assert (folder / "three-1 auq-lr" / "checkpoint-000002" / "blocks-00002.json").is_file()
    close(run(folder / "three-1 auq-lr", "auq-lr", "local"), whole)
    run(folder / "local", "auq-lr", "local", max_iter=STOP)
    processes(2, "go on", folder)
    for found in reports(folder / "go on", range(2)):
        close(found["three-2 auq-lr"], whole)
        close(found["local"], whole)
    close(run(folder / "two", "auq-lr", "local"), whole)


@pytest.mark.parametrize("name", ["sigterm", "ctrl-c"])
def test_a_signal_to_one_or_all_saves_and_stops_all_of_them(seen, name):
    everywhere(seen[name], "interrupted", f"Interrupted after {STOP} iterations", "The run is saved in")
    assert all(saw["v"] == seen[name][0]["v"] for saw in seen[name])
    same(seen[f"resumed {name}"], seen["whole rb"])
    assert all(saw["restored"] for saw in seen["handler"])


@pytest.mark.parametrize(
    ("name", "words"), [("damaged", "shared.safetensors is damaged"), ("forged", "'blocks.nothing' is missing")]
)
def test_a_checkpoint_that_one_process_cannot_use_is_used_by_none(seen, name, words):
    """Damage is noticed by the process that reads, a part that cannot be restored by the one that holds its blocks."""
    everywhere(seen[name], "max_iter", "checkpoint-000001: checkpoint-000002 refused", words)
    same(seen[name], seen["whole rb"])


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("ruined", "checkpoint-000002, checkpoint-000001 refused: history.json is damaged"),
        ("other method", "it belongs to another run: its method is RB("),
        ("nothing there", "There is no checkpoint to resume from"),
        ("not empty", "holds checkpoints already and resume is False"),
        ("full at once", "No checkpoint can be written to"),
    ],
)
def test_a_refusal_is_one_sentence_in_all_processes(seen, name, words):
    everywhere(seen[name], "CheckpointError", words)


def test_a_checkpoint_asked_for_by_one_process_only(seen):
    everywhere(seen["one only"], "InputError", "rank 1 was given checkpoint Checkpoint(")


def test_the_folder_of_the_first_process_counts(seen):
    everywhere(seen["own folders"], "max_iter", "own-0")
    assert [saw["folders"] for saw in seen["written"]] == [["own-0"]] * 3


def test_a_full_disk_does_not_stop_the_run(folder, seen):
    everywhere(seen["full"], "max_iter", "iteration 12 could not be written", "File too large", "checkpoint-000002")
    same(seen["full"], seen["whole rb"])
    assert sorted(path.name for path in (folder / "full").glob("c*")) == ["checkpoint-000001", "checkpoint-000002"]


# ------------------------------------------------------------------ kill -9
@pytest.mark.campaign
def test_killed_processes_are_started_again_by_torchrun_and_arrive_at_the_same_answer(tmp_path):
    """One that works, then the one that writes, while it writes; every process reads its own blocks only."""
    code, out = torchrun(2, PROGRAMS / "mortal.py", tmp_path, timeout=90, restarts=2)
    assert code == 0, out[-3000:]
    assert "Rank 1 (block 5) was lost" in out
    assert "as torchrun --max-restarts does; the same call goes on from iteration 6, saved in" in out
    found = reports(tmp_path, range(2))
    whole = aq.solve(problem(), "rb-admm", max_iter=LENGTH, local=TIGHT, evaluate_every=4, abs_tol=0, rel_tol=0)
    for saw in found:
        assert saw["n_iter"] == LENGTH
        np.testing.assert_allclose(saw["v"], whole.v.flatten(), rtol=0, atol=1e-10)
    for attempt, iterations in enumerate(["1 2 3 4 5 6 7", "7 8 9", "7 8 9 10 11 12"]):
        for rank in range(2):
            assert (tmp_path / f"attempt-{attempt}-rank{rank}.log").read_text().strip() == iterations
    left = [path.name for path in (tmp_path / "run").iterdir() if path.name != ".lock"]
    assert sorted(left) == ["checkpoint-000005", "checkpoint-000006"], "the unfinished one is swept away"
