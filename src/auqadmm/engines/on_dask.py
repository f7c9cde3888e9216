"""Blocks on Dask workers; the loop in the process that calls `solve`.

Dask computes a task again when its worker is lost, and rebuilds an actor: a rebuilt state would differ. So
the state of blocks is no task and no actor. It is in a `WorkerSlot` of the worker's process, and messages go there by
`Client.run`, addressed to that worker alone and never repeated; a restarted process has no slot. Tasks only
bring chunks, which the slot takes over in place; otherwise Dask may copy a chunk to an idle worker (`at_home`).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import signal
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from auqadmm.engines.driver import BROUGHT, DriverEngine, Holder, check, cpu_only, dealt, missing, most_workers, opened
from auqadmm.errors import InputError
from auqadmm.problem import Problem
from auqadmm.problem.ingest import Chunks, blamed

if TYPE_CHECKING:
    from dask.delayed import Delayed
    from distributed import Client, Future, Security, Worker


# ---------------------------------------------------------------------- in the process of a Dask worker
@dataclass
class WorkerSlot:
    """Holders of one run in one worker, and the one thread in which they answer."""

    own_code: bool = False
    holders: dict[int, Holder] = field(default_factory=dict)
    thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))


_slots: dict[tuple[str, str], WorkerSlot] = {}  # by run and worker: several workers may share a process


async def open_slot(run: str, deaf: bool, own_code: bool, dask_worker: Worker | None = None) -> int:
    """`deaf`: ignore Ctrl-C, sent by terminals to all processes: the driver handles it, and still needs its workers."""
    if deaf and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    assert dask_worker is not None  # Dask fills it in
    _slots[run, dask_worker.address] = WorkerSlot(own_code)
    return os.getpid()


async def answer(run: str, rank: int, message: bytes, dask_worker: Worker | None = None) -> bytes | None:
    """None: this process does not know the run."""
    assert dask_worker is not None
    slot = _slots.get((run, dask_worker.address))
    if slot is None:
        return None
    holder = slot.holders.setdefault(rank, Holder(own_code=slot.own_code))
    return await asyncio.get_running_loop().run_in_executor(slot.thread, holder, message)


async def close_slot(run: str, dask_worker: Worker | None = None) -> None:
    assert dask_worker is not None
    _close_slot(run, dask_worker.address)


def _close_slot(run: str, address: str) -> None:
    slot = _slots.pop((run, address), None)
    if slot is not None:
        slot.thread.shutdown(wait=False, cancel_futures=True)


def bring(run: str, rank: int, blocks: list[object]) -> None:
    """A task: take over blocks stored on this worker."""
    from distributed import get_worker

    slot = _slots[run, get_worker().address]
    slot.holders[rank] = Holder(list(blocks), slot.own_code)


class Lease:
    """An actor that ends with its client, however that ends; then the slot is freed."""

    def __init__(self, run: str) -> None:
        from distributed import get_worker

        self.slot = (run, get_worker().address)

    def __del__(self) -> None:
        _close_slot(*self.slot)


# ---------------------------------------------------------------------- in the driver
GOODBYE_SECONDS = 2.0  # seconds to say goodbye to workers


@dataclass(frozen=True)
class Dask:
    """Dask: the blocks on its workers, the loop in this process.

    Parameters
    ----------
    address, security
        Of a scheduler, e.g. "tls://host:8786", and a `distributed.Security`.
    client
        A `distributed.Client`, instead of an address. Without both: the current client if there is one, else
        worker processes on this machine, which end with the run.
    workers
        How many workers; without it all of them, or as many as there are CPUs.
    timeout
        Seconds after which a worker that does not answer counts as lost: longer than any local solve takes.
    own_code
        May code of yours be sent to the workers: a loss, a regularizer, a method or a solver of your own, functions
        that read blocks? Without it only names of operations and numbers are.

    Raises
    ------
    ValueError
        `timeout` is no positive number of seconds.

    Examples
    --------
    >>> import auqadmm as aq
    >>> aq.engines.Dask(workers=2)
    Dask(address=None, client=None, security=None, workers=2, timeout=300.0, own_code=False)
    >>> aq.solve(problem, engine=aq.engines.Dask(client=client))  # doctest: +SKIP
    """

    address: str | None = None
    client: Client | None = None
    security: Security | None = None
    workers: int | None = None
    timeout: float = 300.0
    own_code: bool = False

    def __post_init__(self) -> None:
        check(self.timeout, self.workers)
        if self.address is not None and self.client is not None:
            raise InputError("Pass an address or a client, not both.")

    def __deepcopy__(self, memo: object) -> Dask:
        return self  # a client cannot be copied, and scikit-learn copies the parameters of estimators

    def place(self, problem: Problem, dtype: torch.dtype, device: torch.device) -> DriverEngine:
        """Find the workers and let them read their blocks."""
        cpu_only("dask", device)
        return opened(DaskPool(self, problem.blocks), problem, dtype)


class DaskPool:
    """One run on workers of a cluster, and the cluster if this process started it."""

    def __init__(self, settings: Dask, blocks: object) -> None:
        try:
            import distributed
        except ImportError:
            raise missing("dask") from None
        self.distributed, self.settings, self.timeout = distributed, settings, settings.timeout
        self.run, self.mine, self.own_code = uuid.uuid4().hex, False, settings.own_code
        self.closing = contextlib.ExitStack()
        self.homes: list[str] = []  # the worker of each holder
        self.names: Sequence[str] = []
        self.pids: dict[str, int] = {}
        try:
            self.client = self._connected(blocks)
            self.client.wait_for_workers(settings.workers or 1, timeout=self.timeout)
            self.addresses = sorted(self.client.scheduler_info(n_workers=-1)["workers"])[: settings.workers]
            met = self._ask({a: (open_slot, self.run, self.mine, self.own_code, a) for a in self.addresses})
            self.pids = {a: pid for a, pid in met.items() if isinstance(pid, int)}
            for a, why in met.items():
                if a not in self.pids:
                    raise TimeoutError(f"worker {a} cannot be used ({why}).")
            self.leases = [self._pinned(Lease, [a], self.run, actor=True) for a in self.addresses]
        except BaseException:
            self.close()
            raise

    def _connected(self, blocks: object) -> Client:
        asked, Client = self.settings, self.distributed.Client
        if asked.client is not None:
            return asked.client
        if asked.address is not None:
            try:
                client = Client(asked.address, security=asked.security, timeout=self.timeout, set_as_default=False)
            except OSError as error:  # a refused connection looks like a missing host
                why = " ".join(str(error).split())
                raise ConnectionError(f"No way to the Dask scheduler at {asked.address}: {why}") from None
            return self.closing.enter_context(client)
        with contextlib.suppress(ValueError):
            return Client.current()
        count = asked.workers or most_workers(blocks, os.cpu_count() or 1)
        options = {"threads_per_worker": 1, "dashboard_address": "127.0.0.1:0", "silence_logs": logging.CRITICAL}
        cluster = self.distributed.LocalCluster(n_workers=count, processes=True, security=asked.security, **options)
        self.mine = True
        self.closing.enter_context(cluster)
        return self.closing.enter_context(Client(cluster, set_as_default=False))

    # ------------------------------------------------------------------ blocks
    def deal(self, blocks: object) -> list[Any]:
        if not isinstance(blocks, Chunks):
            self._settled(self.addresses)
            return dealt(blocks, len(self.addresses))
        futures = self._computed(blocks)
        holders = self.client.who_has(futures)
        homes = [next(a for a in self.addresses if a in holders[f.key]) for f in futures]
        runs = [list(g) for _, g in itertools.groupby(range(len(homes)), homes.__getitem__)]
        self._settled([homes[numbers[0]] for numbers in runs])
        brought = [
            self._pinned(bring, [home], self.run, r, [futures[j] for j in numbers])
            for r, (home, numbers) in enumerate(zip(self.homes, runs, strict=True))
        ]
        self._finished(brought)
        return [BROUGHT] * len(runs)

    def _settled(self, addresses: list[str]) -> None:
        self.homes = addresses
        self.names = [f"worker {a}, process {self.pids[a]}" for a in addresses]

    def _computed(self, blocks: Chunks) -> list[Future]:
        """Every block as a future, on the worker that stores most of its inputs."""
        self._finished(self.distributed.futures_of(blocks.alive))
        futures = at_home(self.client, blocks.parts, self.addresses)
        self._finished(futures)
        for j, f in enumerate(futures):
            if f.status == "error":
                raise blamed(j, f.exception())
        return futures

    def _pinned(self, fn: Callable[..., object], workers: list[str], *args: object, **more: bool) -> Future:
        pins = {"workers": workers, "allow_other_workers": False, "pure": False, "retries": 0}
        return self.client.submit(fn, *args, **pins, **more)

    def _finished(self, futures: list[Future]) -> None:
        try:
            self.distributed.wait(futures, timeout=self.timeout)
        except TimeoutError:
            late = sum(f.status == "pending" for f in futures)
            raise TimeoutError(f"{late} blocks were not read within {self.timeout:g} s.") from None

    # ------------------------------------------------------------------ calls
    def call(self, messages: Mapping[int, bytes]) -> dict[int, Any]:
        answers = self._ask({r: (answer, self.run, r, m, self.homes[r]) for r, m in messages.items()})
        answers = {r: "its process was restarted" if x is None else x for r, x in answers.items()}
        lost = {self.homes[r]: why for r, why in answers.items() if isinstance(why, str)}
        # losing a process loses all its holders
        return {r: lost[a] for r, a in enumerate(self.homes) if a in lost} or answers

    def _ask(self, calls: Mapping[Any, tuple[Any, ...]], timeout: float | None = None) -> dict[Any, Any]:
        return self.client.sync(asked, self.client, calls, timeout or self.timeout, asynchronous=False)

    def close(self) -> None:
        with contextlib.suppress(Exception):  # they may be gone, or the cluster
            self.leases = []
            self._ask({a: (close_slot, self.run, a) for a in self.pids}, GOODBYE_SECONDS)
        self.closing.close()


def at_home(client: Client, parts: Sequence[Delayed], addresses: Sequence[str]) -> list[Future]:
    """A future of each dask.delayed, on the worker that stores most of its inputs, else on any."""
    needs = [_outside(p) for p in parts]
    holders = client.who_has() if any(needs) else {}
    sizes = client.nbytes(summary=False) if any(needs) else {}
    futures = []
    for part, keys in zip(parts, needs, strict=True):
        mass = {a: sum(sizes.get(key, 0) for key in keys if a in holders.get(key, ())) for a in addresses}
        home = max(mass, key=mass.__getitem__)
        workers = [home] if mass[home] else list(addresses)
        futures.append(client.compute(part, workers=workers, allow_other_workers=False, retries=0))
    return futures


def _outside(part: Delayed) -> set[object]:
    """The keys that a graph needs but does not compute."""
    graph = dict(part.__dask_graph__())
    needed = {key for node in graph.values() for key in getattr(node, "dependencies", ())}
    return needed - set(graph)


DASK_LOOK = 1.0  # seconds after which to check whether the scheduler still knows workers that do not answer


async def asked(client: Client, calls: Mapping[Any, tuple[Any, ...]], timeout: float) -> dict[Any, Any]:
    """The results of (function, arguments, worker) by key; for a lost worker, the reason as text."""
    end = time.monotonic() + timeout
    tasks = {
        asyncio.ensure_future(client.run(fn, *args, workers=[a], on_error="return")): (key, a)
        for key, (fn, *args, a) in calls.items()
    }
    waiting, results = set(tasks), {}
    try:
        while waiting:
            left = max(0.0, end - time.monotonic())
            done, waiting = await asyncio.wait(waiting, timeout=min(left, DASK_LOOK), return_when="FIRST_COMPLETED")
            for key, address, result in [(*tasks[t], t.result()) for t in done]:
                results[key] = result[address]
                if isinstance(results[key], Exception):
                    return {key: _brief(results[key])}
            if not done:
                known = (await client.scheduler.identity(n_workers=-1))["workers"]  # type: ignore[union-attr]
                gone = {tasks[t][0]: "its process ended" for t in waiting if tasks[t][1] not in known}
                if gone or left == 0:
                    return gone or {tasks[t][0]: f"no answer within {timeout:g} s" for t in waiting}
        return results
    except OSError:
        return dict.fromkeys(calls, "the scheduler cannot be reached")
    finally:
        for task in waiting:
            task.cancel()


def _brief(error: Exception) -> str:
    if isinstance(error, OSError):  # of the connection
        return "its process ended"
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]
