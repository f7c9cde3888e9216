"""Blocks on actors of a real Ray instance. Starting processes is what costs: they are shared where they survive."""

from __future__ import annotations

import gc
import os
import signal
import threading

import pytest
import torch

import auqadmm as aq
from auqadmm import engines
from auqadmm.core.reduce import WorkerLost
from auqadmm.problem import InputError
from tests.engines.driven import (
    ENDLESS,
    Part,
    Slow,
    Spoils,
    alive,
    files,
    gone,
    problem,
    python_path,
    reference,
    restarted,
    rows,
)

ray = pytest.importorskip("ray")


@pytest.fixture(scope="module")
def instance():
    os.environ["PYTHONPATH"], before = python_path(), os.environ.get("PYTHONPATH", "")
    ray.init(address="local", num_cpus=8, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    yield ray
    ray.shutdown()
    os.environ["PYTHONPATH"] = before


@pytest.fixture(scope="module")
def workers(instance):
    with engines.Ray(workers=3, timeout=200, own_code=True).start() as started:
        yield started


@pytest.mark.parametrize("step", [9, pytest.param(1, marks=pytest.mark.campaign)])
def test_ray_conforms(workers, step):
    Part(lambda: workers, first=min(1, step - 1), step=step).verify()


def agrees(found, expected):
    assert found.status == "converged"
    assert found.v.numpy() == pytest.approx(expected.v.numpy(), abs=1e-9)


# ------------------------------------------------------------------ blocks
def test_arrays_are_sent_once(workers):
    blocks = [rows(j, n=4000) for j in range(4)]
    size = sum(X.nbytes + y.nbytes for X, y in blocks)
    engine = workers.place(problem(blocks), torch.float64, torch.device("cpu"))
    agrees(aq.solve(problem(blocks), "c-admm", engine), reference(4, n=4000))
    assert size < engine.sent < 1.4 * size  # with the weights of the rows
    assert engine.received < size / 10
    engine.close()


def test_files_are_read_by_workers_only(workers, tmp_path):
    lazy = problem(files(tmp_path, 4, n=4000))
    engine = workers.place(lazy, torch.float64, torch.device("cpu"))
    agrees(aq.solve(lazy, "c-admm", engine), reference(4, n=4000))
    assert engine.sent + engine.received < 4 * 4000 * 6 * 8 / 5
    engine.close()


def test_a_file_that_vanished_is_one_sentence(workers, tmp_path):
    readers = files(tmp_path, 4)
    (tmp_path / "rows-2.npz").unlink()
    with pytest.raises(InputError, match=r"block 2 cannot be read: FileNotFoundError: .*rows-2\.npz"):
        aq.solve(problem(readers), engine=workers)


@pytest.mark.filterwarnings("ignore:.*deprecated:DeprecationWarning")  # of Ray's own making
def test_a_dataset_stays_where_it_is(workers):
    import pandas as pd
    import ray.data

    X, y = rows(0, n=60)
    frame = pd.DataFrame(X, columns=list("abcde")).assign(target=y)
    dataset = ray.data.from_pandas([frame[:25], frame[25:40], frame[40:]])
    lazy = problem(engines.RayDataset(dataset, target="target"))
    engine = workers.place(lazy, torch.float64, torch.device("cpu"))
    expected = aq.solve(problem([(X[:25], y[:25]), (X[25:40], y[25:40]), (X[40:], y[40:])]), "c-admm")
    assert engine.census.rows == (25, 15, 20)
    agrees(aq.solve(lazy, "c-admm", engine), expected)
    engine.close()
    with pytest.raises(InputError, match="no column 'price'; it has a, b, c, d, e, target"):
        aq.solve(problem(engines.RayDataset(dataset, target="price")), engine=workers)


def test_versions_do_not_pile_up_on_workers(workers):
    engine = workers.place(problem([rows(j) for j in range(4)]), torch.float64, torch.device("cpu"))
    counts = []
    aq.solve(
        problem([rows(j) for j in range(4)]),
        "auq-admm",
        engine,
        callbacks=[lambda event: counts.append(max(engine._all("count")))],
        **{**ENDLESS, "max_iter": 30},
    )
    gc.collect()
    assert max(counts) <= 4
    assert max(engine._all("count")) == 0
    engine.close()


def test_an_estimator(workers):
    X, y = rows(0, n=90)
    local = aq.ConsensusLogisticRegression(n_blocks=3, tol=1e-6).fit(X, y > 0)
    found = aq.ConsensusLogisticRegression(n_blocks=3, tol=1e-6, engine=workers).fit(X, y > 0)
    assert found.coef_ == pytest.approx(local.coef_, abs=1e-7)


def test_squares_are_sums_of_workers(workers):
    X, y = rows(0, n=90)
    here = aq.ConsensusElasticNetCV(alphas=5, cv=3, n_blocks=4).fit(X, y)
    there = aq.ConsensusElasticNetCV(alphas=5, cv=3, n_blocks=4, engine=workers).fit(X, y)
    assert there.mse_path_ == pytest.approx(here.mse_path_, rel=1e-11)
    assert there.coef_ == pytest.approx(here.coef_, abs=1e-12)
    assert there.n_rounds_ == here.n_rounds_ == 2


# ------------------------------------------------------------------ faults
def test_nan_from_a_worker_is_named(workers):
    found = aq.solve(problem([rows(j) for j in range(4)]), "c-admm", workers, local=Spoils())
    assert found.status == "diverged"
    assert "block 2" in found.message


@pytest.mark.campaign
def test_workers_that_are_killed_or_hang(workers):
    """One after the other; each run begins with new processes for those that were lost."""
    blocks = [rows(j) for j in range(6)]
    lost = [workers.about[1][0]]
    assert "lost (its process ended)" in struck(workers, signal.SIGKILL).message
    agrees(aq.solve(problem(blocks), "c-admm", workers), reference(6))
    with pytest.raises(WorkerLost, match=r"worker 1, process .* was lost"):
        aq.solve(problem(dies), engine=workers)
    aq.solve(problem(blocks), "c-admm", workers, max_iter=1)
    lost.append(workers.about[1][0])
    workers.timeout = 6  # those that do not hang may be slow on busy cores
    try:
        assert "lost (no answer within 6 s)" in struck(workers, signal.SIGSTOP).message
    finally:
        workers.timeout = 60
    agrees(aq.solve(problem(blocks), "c-admm", workers), reference(6))
    gone(lambda: [pid for pid in lost if alive(pid)])


def test_a_lost_worker_is_replaced_and_the_run_arrives(workers, tmp_path):
    aq.solve(problem([rows(j) for j in range(6)]), "c-admm", workers, max_iter=1)
    message = restarted(workers, lambda: workers.about[1][0], tmp_path)
    assert "was lost" in message


def dies(rank, world):
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return [rows(rank)]


def struck(workers, how):
    """A run whose second worker is struck in the middle of an iteration."""
    pid = workers.about[1][0]
    timer = threading.Timer(0.1, os.kill, (pid, how))

    def strike(event):
        if event.row.iteration == 3:
            timer.start()

    blocks = [rows(j) for j in range(6)]
    found = aq.solve(problem(blocks), "c-admm", workers, local=Slow(), callbacks=[strike], **ENDLESS)
    assert found.status == "interrupted"
    assert found.n_iter >= 3
    assert f"Worker 1, process {pid}" in found.message
    assert "(block 2 to block 3) was lost" in found.message
    return found


def test_an_instance_that_was_there_stays(instance):
    with pytest.raises(ValueError, match="connected to Ray at"):
        aq.solve(problem([rows(0)]), engine=engines.Ray(address="10.0.0.1:6379"))
    assert ray.is_initialized()
