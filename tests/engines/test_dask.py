"""Blocks on workers of a real Dask cluster, processes on this machine, shared by all tests here."""

from __future__ import annotations

import gc
import logging
import os
import signal
import threading
import time

import numpy as np
import pytest
import torch

import auqadmm as aq
from auqadmm import engines
from auqadmm.core.reduce import WorkerLost
from auqadmm.problem import InputError
from auqadmm.testing import EngineSuite
from tests.engines.driven import ENDLESS, Slow, Spoils, files, problem, python_path, reference, restarted, rows
from tests.engines.processes import ROOT

dask = pytest.importorskip("dask")
distributed = pytest.importorskip("distributed")
CPU = torch.device("cpu")
QUIET = {"threads_per_worker": 1, "dashboard_address": "127.0.0.1:0", "silence_logs": logging.CRITICAL}


@pytest.fixture(scope="module")
def client():
    # processes that are spawned take over the path of this one, whatever their environment says
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", python_path())
        patch.syspath_prepend(ROOT)
        with distributed.LocalCluster(n_workers=3, **QUIET) as cluster, distributed.Client(cluster) as found:
            yield found


@pytest.mark.campaign
def test_dask_conforms(client):
    """On the current client. Every method, each on one problem: Ray, with the same driver, runs on all of them."""
    checks = EngineSuite(lambda: engines.Dask(timeout=60)).checks()
    for name, check in checks.items():
        chosen = ("elastic-net", "auq-lr image", "lbfgs logistic", "lbfgs-w logistic")
        if not name.startswith(("iterates", "answer")) or name.endswith(chosen):
            check()
    assert max(client.run(slots).values()) == 0


def slots():
    from auqadmm.engines import on_dask

    return len(on_dask._slots)


def agrees(found, expected):
    assert found.status == "converged"
    assert found.v.numpy() == pytest.approx(expected.v.numpy(), abs=1e-9)


def placed(client, blocks, **settings):
    lazy = problem(blocks)
    engine = engines.Dask(client=client, timeout=60, own_code=True, **settings).place(lazy, torch.float64, CPU)
    return lazy, engine


# ------------------------------------------------------------------ blocks
def test_chunks_stay_where_they_are(client):
    """Chunks lie as they like; the driver sees sums and the workers' chunks do not move."""
    import dask.array as da

    X, y = (np.concatenate(a) for a in zip(*(rows(j, n=4000) for j in range(5)), strict=True))
    workers = sorted(client.scheduler_info(n_workers=-1)["workers"])
    homes = [workers[k] for k in (0, 1, 0, 2, 2)]
    chunks = [client.scatter(X[4000 * j : 4000 * (j + 1)], workers=[a], direct=True) for j, a in enumerate(homes)]
    arrays = [da.from_delayed(dask.delayed(c), (4000, 5), float) for c in chunks]
    before = client.who_has(chunks)
    lazy, engine = placed(client, (da.concatenate(arrays), da.from_array(y, chunks=2000)))
    assert engine.pool.homes == [workers[k] for k in (0, 1, 0, 2)]
    assert engine.holders == ["block 0", "block 1", "block 2", "block 3 to block 4"]
    agrees(aq.solve(lazy, "c-admm", engine), reference(5, n=4000))
    assert client.who_has(chunks) == before
    assert engine.sent + engine.received < X.nbytes / 2
    engine.close()


def test_delayed_readers_and_files_are_read_by_workers_only(client, tmp_path):
    readers = files(tmp_path, 4, n=2000)
    for blocks in (readers, [dask.delayed(r)() for r in readers]):
        lazy, engine = placed(client, blocks)
        agrees(aq.solve(lazy, "c-admm", engine), reference(4, n=2000))
        assert engine.sent + engine.received < 4 * 2000 * 6 * 8 / 2
        engine.close()
    (tmp_path / "rows-2.npz").unlink()
    for blocks in (readers, [dask.delayed(r)() for r in readers]):
        with pytest.raises(InputError, match=r"block 2 cannot be read: FileNotFoundError: .*rows-2\.npz"):
            aq.solve(problem(blocks), engine=engines.Dask(client=client, own_code=True))


@pytest.mark.parametrize("engine", ["local", "dask"])
def test_data_frames_are_blocks_by_partition(client, engine):
    import dask.dataframe as dd
    import pandas as pd

    X, y = rows(0, n=60)
    frame = dd.from_pandas(pd.DataFrame(X, columns=list("abcde")).assign(y=y), npartitions=3)
    found = aq.solve(problem((frame[list("abcde")], frame["y"])), "c-admm", engine)
    agrees(found, aq.solve(problem([(X[i : i + 20], y[i : i + 20]) for i in (0, 20, 40)]), "c-admm"))


def test_chunks_that_do_not_fit_are_one_sentence(client):
    import dask.array as da

    X, y = da.zeros((60, 5), chunks=20), da.zeros(50, chunks=20)
    with pytest.raises(InputError, match="block 2: X has 20 rows but y has 10 values"):
        aq.solve(problem((X, y)), engine="dask")
    with pytest.raises(InputError, match="X has 3 chunks of rows but y has 5"):
        problem((X, da.zeros(50, chunks=10)))
    with pytest.raises(InputError, match=r"a Array of dask; pass \(X, y\)"):
        problem(X)


def test_versions_do_not_pile_up_on_workers(client):
    lazy, engine = placed(client, [rows(j) for j in range(4)])
    counts = []
    look = [lambda event: counts.append(max(engine._all("count")))]
    aq.solve(lazy, "auq-admm", engine, callbacks=look, **{**ENDLESS, "max_iter": 30})
    gc.collect()
    assert max(counts) <= 4
    assert max(engine._all("count")) == 0
    engine.close()


def test_a_client_that_ends_frees_its_slots(client):
    """Even if nobody says good-bye: a driver may be killed."""
    other = distributed.Client(client.scheduler.address, set_as_default=False)
    _, engine = placed(other, [rows(0), rows(1)])
    assert max(client.run(slots).values()) == 1
    other.close()
    end = time.monotonic() + 10
    while max(client.run(slots).values()) > 0:
        assert time.monotonic() < end
        time.sleep(0.1)
    assert engine.names == ("block 0", "block 1")


def test_an_estimator_leaves_chunks_where_they_are(client, monkeypatch):
    import dask.array as da

    X, y = rows(0, n=400)
    labels = np.where(y > 0, "more", "less")
    local = aq.ConsensusLogisticRegression(n_blocks=4, tol=1e-7).fit(X, labels)
    chunks = da.from_array(X, chunks=(100, 5)).persist()
    distributed.wait(chunks)
    keys = [f.key for f in distributed.futures_of(chunks)]
    before, fetched, gather = client.who_has(), [], distributed.Client.gather

    def watched(self, futures, *args, **more):
        found = gather(self, futures, *args, **more)
        fetched.extend(np.asarray(x).shape for x in (found if isinstance(found, list | tuple) else [found]))
        return found

    monkeypatch.setattr(distributed.Client, "gather", watched)
    found = aq.ConsensusLogisticRegression(tol=1e-7, engine="dask").fit(chunks, da.from_array(labels, chunks=150))
    assert found.coef_ == pytest.approx(local.coef_, abs=1e-8)
    assert fetched
    assert all(len(shape) < 2 for shape in fetched), fetched  # sums and labels, no matrix
    assert all(client.who_has()[key] == before[key] for key in keys)


def test_squares_are_sums_of_workers(client):
    import dask.array as da

    X, y = rows(0, n=400)
    local = aq.ConsensusElasticNet(0.01, n_blocks=4).fit(X, y)
    chunks = da.from_array(X, chunks=(100, 5))
    found = aq.ConsensusElasticNet(0.01, engine="dask").fit(chunks, da.from_array(y, chunks=150))
    assert found.coef_ == pytest.approx(local.coef_, abs=1e-12)
    assert found.history_[-1].rounds == local.history_[-1].rounds == 2
    assert found.history_[-1].bytes == local.history_[-1].bytes
    here = aq.ConsensusElasticNetCV(alphas=5, cv=3, n_blocks=4).fit(X, y)
    there = aq.ConsensusElasticNetCV(alphas=5, cv=3, n_blocks=4, engine="dask").fit(X, y)
    assert there.mse_path_ == pytest.approx(here.mse_path_, rel=1e-11)
    assert there.n_rounds_ == here.n_rounds_ == 2
    left_out = aq.ConsensusRidgeCV(n_blocks=4, engine="dask").fit(X, y)
    assert left_out.best_score_ == pytest.approx(aq.ConsensusRidgeCV().fit(X, y).best_score_, rel=1e-11)


# ------------------------------------------------------------------ faults
def test_nan_from_a_worker_is_named(client):
    found = aq.solve(problem([rows(j) for j in range(4)]), "c-admm", engines.Dask(own_code=True), local=Spoils())
    assert found.status == "diverged"
    assert "block 2" in found.message


def struck(client, how, timeout):
    """A run whose second worker is struck in the middle of an iteration: its blocks, and what was said."""
    client.wait_for_workers(3, timeout=60)
    lazy, engine = placed(client, [rows(j) for j in range(6)])
    engine.pool.timeout = timeout
    pid = engine.pool.pids[engine.pool.homes[1]]
    timer = threading.Timer(0.1, os.kill, (pid, how))

    def strike(event):
        if event.row.iteration == 3:
            timer.start()

    began = time.monotonic()
    found = aq.solve(lazy, "c-admm", engine, local=Slow(), callbacks=[strike], **ENDLESS)
    assert time.monotonic() - began < 15
    assert found.status == "interrupted"
    assert found.n_iter >= 3
    assert f"process {pid} (block 2 to block 3) was lost" in found.message
    if how == signal.SIGKILL:
        client.wait_for_workers(3, timeout=60)
    with pytest.raises(WorkerLost):  # it stays lost, though Dask starts a new process
        engine.map_sum(None, None, None)
    engine.close()
    return pid, found.message


@pytest.mark.campaign
def test_kill_9_and_then_again(client):
    """In the middle of a call, and between two: a connection to nobody is tried for half a minute."""
    assert "lost (its process ended)" in struck(client, signal.SIGKILL, 60)[1]
    client.wait_for_workers(3, timeout=60)
    agrees(aq.solve(problem([rows(j) for j in range(4)]), "c-admm", "dask"), reference(4))
    _, engine = placed(client, [rows(j) for j in range(4)])
    os.kill(engine.pool.pids[engine.pool.homes[0]], signal.SIGKILL)
    began = time.monotonic()
    with pytest.raises(WorkerLost, match=r"\(block 0\) was lost \(its process ended\)"):
        engine.map_concat(None, None)
    assert time.monotonic() - began < 10
    engine.close()


@pytest.mark.campaign
def test_a_lost_worker_is_replaced_and_the_run_arrives(client, tmp_path):
    client.wait_for_workers(3, timeout=60)
    message = restarted(
        engines.Dask(timeout=60, own_code=True), lambda: sorted(client.run(os.getpid).items())[1][1], tmp_path
    )
    assert "was lost" in message


def test_a_worker_that_hangs_is_lost_after_the_timeout(client):
    pid, message = struck(client, signal.SIGSTOP, 2)
    assert "lost (no answer within 2 s)" in message
    os.kill(pid, signal.SIGCONT)


def test_a_process_that_lost_its_state_is_never_taken_for_the_old_one(client):
    _, engine = placed(client, [rows(j) for j in range(4)])
    client.run(forget, workers=engine.pool.addresses[:1])
    with pytest.raises(WorkerLost, match="its process was restarted"):
        engine.map_concat(None, None)
    engine.close()


def forget():
    from auqadmm.engines import on_dask

    on_dask._slots.clear()
