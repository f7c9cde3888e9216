"""Blocks on Ray actors: one actor, one process per worker; the loop in the process that calls `solve`.

An actor that dies is not restarted and no call is tried twice. Rows of a Ray Dataset go directly to the
actors as references; the driver never sees them.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import socket
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from auqadmm.engines.driver import BROUGHT, DriverEngine, Holder, check, cpu_only, dealt, missing, most_workers, opened
from auqadmm.errors import InputError
from auqadmm.problem import Problem
from auqadmm.problem.ingest import share

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    import ray
    from ray.data import Dataset


# ---------------------------------------------------------------------- in the process of an actor
@dataclass(frozen=True)
class RayDataset:
    """A Ray Dataset as blocks, each block of the dataset one: named columns are y, weight, offset, others features.

    Parameters
    ----------
    dataset
        A `ray.data.Dataset`. How many blocks it has: `dataset.repartition(n)`.
    target, weight, offset
        Names of the columns with y and, if any, the sample weights and the offsets; of a y of several columns a tuple.

    Examples
    --------
    >>> import auqadmm as aq
    >>> blocks = aq.engines.RayDataset(dataset, target="sick")  # doctest: +SKIP
    >>> problem = aq.Problem(aq.Logistic(), aq.L2(1.0), blocks)  # doctest: +SKIP
    >>> aq.solve(problem, engine="ray")  # doctest: +SKIP
    """

    dataset: Dataset | None
    target: str | tuple[str, ...]
    weight: str | None = None
    offset: str | None = None

    def __call__(self, rank: int, world: int) -> list[Any]:
        """The share of a process that is not one of our actors."""
        import ray

        refs = self.refs()
        return [self.block(ray.get(refs[j])) for j in share(len(refs), rank, world)]

    def refs(self) -> list[ray.ObjectRef]:
        """The blocks of the dataset, where they are.

        Returns
        -------
        refs
            One reference to an arrow table per block.
        """
        assert self.dataset is not None  # only copies sent to actors have none
        return list(self.dataset.to_arrow_refs())

    def block(self, table: pa.Table) -> tuple[pd.DataFrame | np.ndarray | None, ...]:
        """One block of the dataset as a block of a problem.

        Parameters
        ----------
        table
            An arrow table with the columns of the dataset.

        Returns
        -------
        X, y, weight, offset
            Features as a data frame, the target, and the weights and offsets, None where there are none.

        Raises
        ------
        InputError
            The table has no column of the target's or the weights' name.
        """
        target = self.target if isinstance(self.target, str) else list(self.target)
        named = (target, self.weight, self.offset)
        others = [x for name in named if name is not None for x in ([name] if isinstance(name, str) else name)]
        for name in others:
            if name not in table.column_names:
                raise InputError(f"The dataset has no column {name!r}; it has {', '.join(table.column_names)}.")
        frame = table.to_pandas()
        return frame.drop(columns=others), *(None if name is None else frame[name].to_numpy() for name in named)


class Actor:
    """Holders in a process of their own, one per run."""

    def __init__(self, own_code: bool = False) -> None:
        self.holders: dict[str, Holder] = {}
        self.own_code = own_code

    def about(self) -> tuple[int, str]:
        return os.getpid(), socket.gethostname()

    def answer(self, run: str, message: bytes) -> bytes:
        return self.holders.setdefault(run, Holder(own_code=self.own_code))(message)

    def bring(self, run: str, source: RayDataset, refs: list[ray.ObjectRef]) -> str:
        """Fetch the blocks; returns an error text, if any."""
        import ray

        try:
            brought = [source.block(table) for table in ray.get(refs)]
        except Exception as error:
            return str(error)
        self.holders[run] = Holder(brought, self.own_code)
        return ""

    def forget(self, run: str) -> None:
        self.holders.pop(run, None)


# ---------------------------------------------------------------------- in the driver
RAY_LOOK = 1.0  # seconds between two checks of the deadline


@dataclass(frozen=True)
class Ray:
    """Ray: the blocks on actors, the loop in this process.

    Parameters
    ----------
    address
        Of a cluster, as for `ray.init`. Without it: the Ray that this process is connected to, the one that RAY_ADDRESS
        names, else one on this machine, which ends with the run.
    workers
        How many actors; without it as many as there are blocks or CPUs, whichever is less.
    cpus
        CPUs that Ray reserves for each of them.
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
    >>> aq.engines.Ray(workers=2)
    Ray(address=None, workers=2, cpus=1.0, timeout=300.0, own_code=False)
    >>> aq.solve(problem, engine=aq.engines.Ray(workers=2))  # doctest: +SKIP
    """

    address: str | None = None
    workers: int | None = None
    cpus: float = 1.0
    timeout: float = 300.0
    own_code: bool = False

    def __post_init__(self) -> None:
        check(self.timeout, self.workers)

    def place(self, problem: Problem, dtype: torch.dtype, device: torch.device) -> DriverEngine:
        """Start the workers and let them read their blocks."""
        cpu_only("ray", device)
        return RayWorkers(self, problem.blocks).place(problem, dtype, device, last=True)

    def start(self) -> RayWorkers:
        """Start the workers now, for many runs: `with Ray().start() as engine: solve(problem, engine=engine)`.

        Returns
        -------
        engine
            To be given to `solve`, and closed by `with`.

        Examples
        --------
        >>> import auqadmm as aq
        >>> with aq.engines.Ray().start() as engine:  # doctest: +SKIP
        ...     aq.solve(problem, engine=engine)
        """
        return RayWorkers(self)


class RayWorkers:
    """Actors, and the Ray instance if this process started it. For `solve(engine=…)`, any number of times.

    Parameters
    ----------
    settings
        How many workers, with how many CPUs, of which cluster.
    blocks
        Of a problem: no more workers are started than these can be dealt out to.

    Raises
    ------
    ImportError
        Ray is not installed.
    InputError
        This process is connected to another Ray instance than the settings name.
    TimeoutError
        The workers did not start in time.

    Examples
    --------
    >>> import auqadmm as aq
    >>> with aq.engines.Ray(workers=2).start() as workers:  # doctest: +SKIP
    ...     aq.solve(problem, engine=workers)
    """

    def __init__(self, settings: Ray, blocks: object = None) -> None:
        try:
            import ray
        except ImportError:
            raise missing("ray") from None
        self.ray, self.settings, self.timeout = ray, settings, settings.timeout
        self.actors: dict[int, Any] = {}
        self.about: dict[int, tuple[int, str]] = {}  # process and host
        self.lost: set[int] = set()
        self.hung: set[int] = set()  # lost workers whose process still exists
        self.mine = self._connect()
        try:
            cpus = ray.cluster_resources().get("CPU", 1)
            count = settings.workers or max(1, int(cpus // (settings.cpus or 1)))
            self._start(range(most_workers(blocks, count)))
        except BaseException:
            self.close()
            raise

    def _connect(self) -> bool:
        """Did this process start the instance?"""
        ray, asked = self.ray, self.settings
        if ray.is_initialized():
            current = ray.get_runtime_context().gcs_address
            if asked.address not in (None, "auto", current):
                raise InputError(f"This process is connected to Ray at {current}, not {asked.address}.")
            return False
        address = asked.address or os.environ.get("RAY_ADDRESS") or "local"
        more: dict[str, Any] = {}
        if address == "local":
            cpus = math.ceil((asked.workers or os.cpu_count() or 1) * asked.cpus)
            more = {"num_cpus": max(1, cpus), "include_dashboard": False}
        ray.init(address=address, logging_level="ERROR", log_to_driver=False, **more)
        return True

    def _start(self, ranks: Iterable[int]) -> None:
        options = {"num_cpus": self.settings.cpus, "max_restarts": 0, "max_task_retries": 0}
        make = self.ray.remote(Actor).options(scheduling_strategy="SPREAD", **options)
        started: dict[int, Any] = {r: make.remote(self.settings.own_code) for r in ranks}
        self.actors |= started
        met = self.answers({r: a.about.remote() for r, a in started.items()})
        for why in met.values():
            if isinstance(why, str):
                raise TimeoutError(f"Ray did not start {len(started)} workers ({why}); are there enough free CPUs?")
        self.about |= met

    def place(self, problem: Problem, dtype: torch.dtype, device: torch.device, last: bool = False) -> DriverEngine:
        """Let the workers read the blocks of a problem. `last`: the workers end with this run."""
        cpu_only("ray", device)
        if self.lost:
            self._end(self.lost)
            self._start(sorted(self.lost))
            self.lost, self.hung = set(), set()
        return opened(RayPool(self, last), problem, dtype)

    def answers(self, calls: Mapping[int, Any]) -> dict[int, Any]:
        """Wait for calls of actors until the deadline.

        Parameters
        ----------
        calls
            References by the number of the worker.

        Returns
        -------
        results
            By the number of the worker; for a lost one, the reason as text.
        """
        ray, end = self.ray, time.monotonic() + self.timeout
        waiting = {ref: r for r, ref in calls.items()}
        results: dict[int, Any] = {}
        while waiting:
            left = end - time.monotonic()
            ready, _ = ray.wait(list(waiting), num_returns=1, timeout=max(0.0, min(left, RAY_LOOK)))
            for ref in ready:
                r = waiting.pop(ref)
                try:
                    results[r] = ray.get(ref)
                except ray.exceptions.RayError as error:
                    self.lost.add(r)
                    return {r: _brief(error)}
            if not ready and left <= 0:
                self.hung |= set(waiting.values())
                self.lost |= self.hung
                return dict.fromkeys(waiting.values(), f"no answer within {self.timeout:g} s")
        return results

    def _end(self, ranks: Iterable[int]) -> None:
        for r in ranks:
            with contextlib.suppress(Exception):  # it may be gone, or Ray
                self.ray.kill(self.actors[r])
            pid, host = self.about.get(r, (0, ""))
            if r in self.hung and host == socket.gethostname():  # it does not react to a request to end
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        self._end(self.actors)
        self.actors, self.about = {}, {}
        if self.mine:
            self.mine = False
            self.ray.shutdown()

    def __deepcopy__(self, memo: object) -> RayWorkers:
        return self  # scikit-learn copies the parameters of estimators

    def __enter__(self) -> RayWorkers:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _brief(error: Exception) -> str:
    """An error of Ray in plain words."""
    if type(error).__name__ in ("ActorDiedError", "RayActorError", "WorkerCrashedError"):
        return "its process ended"
    return " ".join(str(error).split())[:200]


STORED_FROM = 100_000  # bytes from which a message for all is stored once, and fetched from there


class RayPool:
    """One run on the workers."""

    def __init__(self, workers: RayWorkers, last: bool) -> None:
        self.workers, self.last, self.run = workers, last, uuid.uuid4().hex
        self.own_code = workers.settings.own_code
        about = sorted(workers.about.items())
        self.names: Sequence[str] = [f"worker {r}, process {pid} on {host}" for r, (pid, host) in about]

    def deal(self, blocks: object) -> list[Any]:
        if not isinstance(blocks, RayDataset):
            return dealt(blocks, len(self.names))
        refs, count = blocks.refs(), len(self.names)
        source = RayDataset(None, blocks.target, blocks.weight, blocks.offset)
        parts = [[refs[j] for j in share(len(refs), r, count)] for r in range(count)]
        actors = self.workers.actors
        refusals = self.workers.answers({r: actors[r].bring.remote(self.run, source, parts[r]) for r in range(count)})
        for r, problem in sorted(refusals.items()):
            if problem:
                raise InputError(f"{self.names[r]}: {problem}")
        return [BROUGHT] * count

    def call(self, messages: Mapping[int, bytes]) -> dict[int, Any]:
        actors, put = self.workers.actors, self.workers.ray.put
        large = {id(m): m for m in messages.values() if len(m) > STORED_FROM}
        stored = {key: put(m) for key, m in large.items()}  # stored once, fetched by each worker
        return self.workers.answers(
            {r: actors[r].answer.remote(self.run, stored.get(id(m), m)) for r, m in messages.items()}
        )

    def close(self) -> None:
        if self.last:
            self.workers.close()
        for actor in self.workers.actors.values():
            actor.forget.remote(self.run)
