"""What tests of driver engines send to workers, and how they look at processes."""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import auqadmm as aq
from auqadmm.local import NewtonCG
from auqadmm.testing import EngineSuite
from tests.engines.processes import ROOT

ENDLESS = {"abs_tol": 0.0, "rel_tol": 0.0, "certificate_tol": 0.0, "max_iter": 10_000}


class Part(EngineSuite):
    """The suite, with every third check of iterates: each method and each problem is among them, whatever the first."""

    def __init__(self, engine, first=0, step=3):
        super().__init__(engine)
        self.first, self.step = first, step

    def checks(self):
        found = super().checks()
        iterates = [name for name in found if name.startswith("iterates") and "nothing" not in name]
        kept = iterates[self.first :: self.step]
        return {name: check for name, check in found.items() if name in kept or name not in iterates}


def python_path():
    """For processes that clusters start: this source tree, and the tests."""
    return os.pathsep.join([str(ROOT / "src"), str(ROOT)])


def rows(j, n=30, m=5):
    rng = np.random.default_rng(j)
    X = rng.normal(size=(n, m))
    return X, X @ np.arange(1.0, m + 1) + 0.1 * rng.normal(size=n)


def problem(blocks):
    return aq.Problem(aq.LeastSquares(reduction="mean"), aq.L2(0.1), blocks)


def reference(count, **sizes):
    return aq.solve(problem([rows(j, **sizes) for j in range(count)]), "c-admm")


def restarted(engine, victim, folder):
    """A run whose worker `victim()` is killed in mid-iteration: it begins again, and arrives where it would have.

    Returns the message, once it has been compared.
    """
    blocks, options = [rows(j) for j in range(6)], {**ENDLESS, "max_iter": 8}
    pid = victim()
    timer = threading.Timer(0.1, os.kill, (pid, signal.SIGKILL))

    def strike(event):
        if event.row.iteration == 5 and not timer.is_alive() and timer.ident is None:
            timer.start()

    saving = {"checkpoint": aq.Checkpoint(folder, every=2), "on_loss": "restart"}
    found = aq.solve(problem(blocks), "auq-lr", engine, local=Slow(tol=1e-13), callbacks=[strike], **saving, **options)
    same = aq.solve(problem(blocks), "auq-lr", local=NewtonCG(tol=1e-13), **options)
    assert timer.ident is not None
    assert found.status == "max_iter"
    assert [row.rounds for row in found.history] == [row.rounds for row in same.history]
    np.testing.assert_allclose(found.v, same.v, atol=1e-10)
    assert str(pid) in found.message
    return found.message


class Refuses:
    """Rows that must not be seen in the driver: they cannot be made or unpacked there."""

    def __init__(self, driver, X):
        self.driver, self.X = driver, X
        assert os.getpid() != driver

    def __array__(self, dtype=None, copy=None):
        return self.X

    def __setstate__(self, state):
        self.__dict__.update(state)
        assert os.getpid() != self.driver, "rows reached the driver"


@dataclass(frozen=True)
class Reader:
    """A block that is read from a file, never by the driver."""

    path: str
    driver: int

    def __call__(self):
        with np.load(self.path) as held:
            return Refuses(self.driver, held["X"]), held["y"]


def files(folder, count, **sizes):
    for j in range(count):
        X, y = rows(j, **sizes)
        np.savez(folder / f"rows-{j}.npz", X=X, y=y)
    return [Reader(str(folder / f"rows-{j}.npz"), os.getpid()) for j in range(count)]


@dataclass(frozen=True)
class Slow(NewtonCG):
    """Time to kill."""

    def solve(self, problem, *args):
        time.sleep(0.2)
        return super().solve(problem, *args)


@dataclass(frozen=True)
class Spoils(NewtonCG):
    """NaN from the block of number 2."""

    def solve(self, problem, *args):
        found = super().solve(problem, *args)
        if 2 in problem.shard.index:
            found.u[list(problem.shard.index).index(2)] = float("nan")
            found.grad_norm[:] = float("nan")
        return found


def alive(pid):
    """Is there such a process, and not only its entry?"""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def marked(word):
    """Processes that have the word in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and word.encode() in (entry / "environ").read_bytes() and alive(entry.name):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def gone(test, seconds=20.0):
    """Wait until `test()` gives nothing more."""
    end = time.monotonic() + seconds
    while left := test():
        assert time.monotonic() < end, left
        time.sleep(0.1)
