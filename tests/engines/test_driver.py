"""The driver's end and the workers' end, in one process: real messages, no transport."""

from __future__ import annotations

import gc
import sys
import time
from dataclasses import dataclass

import numpy as np
import pytest
import torch

import auqadmm as aq
from auqadmm import engines
from auqadmm.core.reduce import Reduce, WorkerLost
from auqadmm.engines.driver import DriverEngine, Holder, dealt
from auqadmm.local import NewtonCG
from auqadmm.problem import InputError, ProcessError
from auqadmm.testing import EngineSuite
from auqadmm.testing.cases import keep, kept, problems, total
from tests.engines.driven import problem, reference, rows

CPU = torch.device("cpu")


class Here:
    """A pool without processes; what it is told to lose is lost."""

    def __init__(self, count, own_code=False):
        self.names, self.own_code = [f"worker {r}" for r in range(count)], own_code
        self.holders = [Holder(own_code=own_code) for _ in range(count)]
        self.interrupt_before = self.lose = None
        self.closed = False

    def deal(self, blocks):
        return dealt(blocks, len(self.names))

    def call(self, messages):
        found = {}
        for r, message in messages.items():
            if r == self.interrupt_before:
                self.interrupt_before = None
                raise KeyboardInterrupt
            found[r] = "its process ended" if r == self.lose else self.holders[r](message)
        return found

    def close(self):
        self.closed = True


class InHere:
    def __init__(self, count, own_code=False):
        self.count, self.own_code = count, own_code

    def place(self, problem, dtype, device):
        return DriverEngine(Here(self.count, self.own_code), problem, dtype)


def placed(count=2, blocks=4):
    return DriverEngine(Here(count, own_code=True), problem([rows(j) for j in range(blocks)]), torch.float64)


@pytest.mark.parametrize("count", [1, 4])
def test_it_conforms(count):
    """In part: real clusters are tested on the whole suite."""
    checks = EngineSuite(lambda: InHere(count)).checks()
    for name in ("iterates ac-admm elastic-net", "iterates auq-lr image", "primitives", "warm start", "errors"):
        checks[name]()


def test_the_slowest_worker_is_told():
    """Worker 1 holds the block that takes its time."""
    told = []
    options = {"local": Sleepy(), "max_iter": 3, "callbacks": [lambda event: told.append(event.slowest)]}
    aq.solve(problem([rows(j) for j in range(4)]), "c-admm", InHere(2, own_code=True), **options)
    assert len(told) == 3
    for name, seconds in told:
        assert "block 2 to block 3" in name
        assert 0.05 <= seconds < 5


@dataclass(frozen=True)
class Sleepy(NewtonCG):
    def solve(self, problem, *args):
        time.sleep(0.05 if 3 in problem.shard.index else 0)
        return super().solve(problem, *args)


# ------------------------------------------------------------------ versions
def versions(engine):
    return engine._all("count")


def test_versions_that_nobody_holds_are_dropped():
    engine, x = placed(), torch.arange(4.0)
    blocks = engine.scatter(x)
    for _ in range(20):
        blocks, _ = engine.map_sum(keep, blocks, None)
    gc.collect()
    assert max(versions(engine)) == 1
    assert engine.gather(kept, blocks).tolist() == x.tolist()
    del blocks
    gc.collect()
    assert max(versions(engine)) == 0


def test_an_old_version_stays_usable():
    engine = placed()
    old = engine.scatter(torch.arange(4.0))
    new = old
    for _ in range(5):
        new, _ = engine.map_sum(double, new, None)
    assert engine.gather(kept, old).tolist() == [0, 1, 2, 3]
    assert engine.gather(kept, new).tolist() == [0, 32, 64, 96]


def double(shard, blocks, shared):
    return 2 * blocks, {}


def test_a_version_belongs_to_its_engine():
    one, other = placed(), placed()
    with pytest.raises(ValueError, match="does not live on the workers of this engine"):
        other.gather(kept, one.scatter(torch.arange(4.0)))
    with pytest.raises(AttributeError, match="lives on the workers"):
        _ = one.scatter(torch.arange(4.0)).W


def test_an_interrupt_between_workers_does_no_harm():
    """Some workers heard the message, others did not; the state before is whole on all of them."""
    engine = placed(3)
    blocks = engine.scatter(torch.arange(4.0))
    for r in (0, 1, 2):
        engine.pool.interrupt_before = r
        with pytest.raises(KeyboardInterrupt):
            engine.map_sum(double, blocks, None)
        blocks, _ = engine.map_sum(double, blocks, None)
    assert engine.gather(kept, blocks).tolist() == [0, 8, 16, 24]
    gc.collect()
    assert max(versions(engine)) == 1


def test_a_message_that_was_overtaken_changes_nothing():
    engine, late = placed(), []
    holders, call = engine.pool.holders, engine.pool.call
    blocks = engine.scatter(torch.arange(4.0))

    def delayed(messages):
        late.append(messages)
        raise KeyboardInterrupt

    engine.pool.call = delayed
    with pytest.raises(KeyboardInterrupt):
        engine.map_sum(double, blocks, None)
    engine.pool.call = call
    blocks, _ = engine.map_sum(double, blocks, None)
    for r, message in late[0].items():
        holders[r](message)
    assert engine.gather(kept, blocks).tolist() == [0, 2, 4, 6]


# ------------------------------------------------------------------ what is sent
def test_a_warm_start_is_sent_once():
    """Its multipliers are as large as all blocks together; they are part of the settings of a run."""
    many = problem([rows(j, n=3, m=100) for j in range(20)])
    start = aq.solve(many, "c-admm", max_iter=2)
    engine, sizes = DriverEngine(Here(2), many, torch.float64), []
    call = engine.pool.call
    engine.pool.call = lambda messages: sizes.append(max(map(len, messages.values()))) or call(messages)
    aq.solve(many, "c-admm", engine, warm_start=start, max_iter=6)
    assert sum(size > 8 * start.lam.numel() for size in sizes) == 1, sizes


def test_sums_are_float64_whatever_blocks_compute_in():
    engine = DriverEngine(Here(2), problem([rows(j) for j in range(4)]), torch.float32)
    assert {x.dtype for x in engine.map_sum(total, None, torch.ones(3))[1].values()} == {torch.float64}


def test_checkpoints_go_from_workers_to_other_workers(tmp_path):
    many, tight = problem([rows(j) for j in range(5)]), NewtonCG(tol=1e-13)
    options = {"local": tight, "abs_tol": 0.0, "rel_tol": 0.0, "certificate_tol": 0.0, "checkpoint": tmp_path}
    for engine, iterations in ((InHere(2), 3), (InHere(3), 6), ("local", 9)):
        found = aq.solve(many, "auq-admm", engine, max_iter=iterations, **options)
    del options["checkpoint"]
    assert found.n_iter == 9
    assert found.v.numpy() == pytest.approx(aq.solve(many, "auq-admm", max_iter=9, **options).v.numpy(), abs=1e-10)


# ------------------------------------------------------------------ losses and errors
def test_a_lost_worker_is_named_and_stays_lost():
    engine = placed(2)
    engine.pool.lose = 1
    for _ in range(2):
        with pytest.raises(WorkerLost, match=r"^worker 1 \(block 2 to block 3\) was lost \(its process ended\)\.$"):
            Reduce(engine).every(bool)
        engine.pool.lose = None


def test_an_error_names_worker_and_blocks():
    def fails(shard, blocks, shared):
        raise OSError("the disk is on fire")

    with pytest.raises(ProcessError, match=r"worker 0 \(block 0 to block 1\): OSError: the disk is on fire"):
        placed().map_sum(fails, None, None)


def test_bad_settings_are_one_sentence():
    for make in (engines.Ray, engines.Dask):
        with pytest.raises(ValueError, match="timeout must be a positive number of seconds, got -1"):
            make(timeout=-1)
        with pytest.raises(ValueError, match="workers must be"):
            make(workers=0)
    with pytest.raises(ValueError, match="an address or a client, not both"):
        engines.Dask(address="tcp://here:1", client=object())
    for make in (engines.Ray, engines.Dask):
        with pytest.raises(ValueError, match="computes on CPUs, got device='cuda'"):
            make().place(problem([rows(0)]), torch.float64, torch.device("cuda"))


@pytest.mark.parametrize(("name", "module"), [("ray", "ray"), ("dask", "distributed")])
def test_without_the_package_there_is_a_hint(name, module, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=rf'pip install "auqadmm\[{name}\]"'):
        aq.solve(problem([rows(0)]), engine=name)


# ------------------------------------------------------------------ blocks that are read where they live
@pytest.mark.parametrize("engine", ["local", InHere(3, own_code=True)])
def test_a_list_of_functions(engine):
    called = []

    def reader(j):
        return lambda: called.append(j) or rows(j)

    lazy = problem([reader(j) for j in range(4)])
    assert called == []
    assert aq.solve(lazy, "c-admm", engine).v.numpy() == pytest.approx(reference(4).v.numpy(), abs=1e-9)


def test_a_reader_that_fails_names_its_block(tmp_path):
    gone = tmp_path / "rows-2.npy"
    readers = [lambda: rows(0), lambda: rows(1), lambda: (np.load(gone), 0), lambda: rows(3)]
    for engine in ("local", InHere(2, own_code=True)):
        with pytest.raises(InputError, match=r"block 2 cannot be read: FileNotFoundError.*rows-2\.npy"):
            aq.solve(problem(readers), engine=engine)


def test_placement_does_not_decide_a_penalty_that_is_rounding():
    """A block without rows has λ̂ = 0: AC-ADMM must not take its penalty from the rounding of that."""
    found = aq.solve(problems()["elastic-net"], "ac-admm", max_iter=8, abs_tol=0.0, rel_tol=0.0, certificate_tol=0.0)
    assert float(found.weights.rho.min()) > 1e-3
