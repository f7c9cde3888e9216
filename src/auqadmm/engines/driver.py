"""Blocks on workers, the loop in one driver process: what engines of this kind have in common.

The driver sends the name of an operation and replicated data; workers return summands, which the driver adds up in
float64, worker after worker. The loop's handle to the state of blocks is a `Version`: a number, under which every
worker stores its part. A worker drops a version when the driver no longer refers to it.

An engine of this kind, Ray or Dask, has a `Pool`, which carries bytes to workers and back with a deadline. A worker
that is lost stays lost: its state is never made anew.

On a worker a `Holder` stores a shard and versions of its blocks' state, and answers one message at a time. A message
says which versions the driver still uses; all others are dropped. Versions are frozen like any state, so an old one
stays usable as long as it is referred to. Messages are numbered: one that the driver gave up waiting for, and that
arrives after a later one, is refused. Nothing is recomputed: a holder without the requested version reports that.
"""

from __future__ import annotations

import math
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, Protocol, TypeVar

import torch
from torch import Tensor

from auqadmm.blocks.shard import Shard
from auqadmm.checks import is_number, whole_number
from auqadmm.core.reduce import MapFn, WorkerLost
from auqadmm.engines import protocol
from auqadmm.engines.protocol import Known
from auqadmm.engines.world import span
from auqadmm.errors import InputError
from auqadmm.problem import Problem
from auqadmm.problem.agreement import attempt, verdict
from auqadmm.problem.ingest import Readers, Whole, share

# ---------------------------------------------------------------------- on a worker
BROUGHT = "brought"  # stands for blocks that the engine delivers itself
REQUESTS = ("make", "read", "settle", "sum", "minmax", "concat", "gather", "peek", "put", "count")


class Holder:
    """The blocks of one worker. `brought`: blocks that the engine delivered itself; `own_code`: may messages contain
    code of the user's?"""

    def __init__(self, brought: Sequence[object] | None = None, own_code: bool = False) -> None:
        self.brought, self.own_code = brought or [], own_code
        self.versions: dict[int, object] = {}
        self.setup: Known = (0, None)
        self.seen = 0
        self.problem: Problem
        self.own_blocks: Any  # blocks as given, then as read
        self.shard: Shard

    def __call__(self, message: bytes) -> bytes:
        """Answer with a message, or with an error."""
        answer = attempt(lambda: (None, self._answered(message)))[1]
        return protocol.dumps(answer, self.own_code)

    def _answered(self, message: bytes) -> object:
        envelope, self.setup = protocol.opened(message, self.setup, self.own_code)
        if envelope.number <= self.seen:
            raise RuntimeError("this message was overtaken by a later one")
        self.seen = envelope.number
        self.versions = {k: x for k, x in self.versions.items() if k in envelope.alive}
        if envelope.do not in REQUESTS:
            raise protocol.ProtocolError(f"{envelope.do[:40]!r} is not a request")
        return getattr(self, f"do_{envelope.do}")(*envelope.args)

    # ------------------------------------------------------------------ placing blocks
    def do_make(self, posed: Mapping[str, Any], source: Any, rank: int, world: int) -> int:
        if source == BROUGHT:
            brought, self.brought = self.brought, []
            source = Whole(Readers(tuple(brought)))
        self.problem = problem = Problem.posed_elsewhere(posed, source)
        self.own_blocks, count = problem.made(rank, world)
        return count

    def do_read(self, first: int) -> Mapping[str, object]:
        self.own_blocks, tally = self.problem.read(self.own_blocks, first)
        return tally

    def do_settle(self, messages: Sequence[Mapping[str, Any]], first: int, dtype: torch.dtype) -> None:
        placed = self.problem.settled(self.own_blocks, messages, first)
        self.shard = placed.shard(dtype, torch.device("cpu"))
        del self.own_blocks, self.problem

    # ------------------------------------------------------------------ maps
    def do_sum(self, fn: MapFn, at: int | None, shared: object, new: int) -> tuple[bool, dict[str, Tensor], float]:
        began = time.perf_counter()
        blocks, out = fn(self.shard, self._version(at), shared)
        self.versions[new] = blocks
        return blocks is None, out, time.perf_counter() - began

    def do_minmax(self, fn: MapFn, at: int | None, shared: object, new: int) -> tuple[bool, dict[str, Tensor], float]:
        return self.do_sum(fn, at, shared, new)

    def do_concat(self, fn: Callable[[Any, Any], dict[str, Tensor]], at: int | None) -> dict[str, Tensor]:
        return fn(self.shard, self._version(at))

    def do_gather(self, fn: Callable[[Any, Any], Tensor], at: int | None) -> Tensor:
        return fn(self.shard, self._version(at))

    def do_peek(self, fn: Callable[[Any, Any], object], at: int | None) -> object:
        return fn(self.shard, self._version(at))

    def do_put(self, x: Tensor, new: int) -> None:
        self.versions[new] = x.to(self.shard.dtype)

    def do_count(self) -> int:
        """The number of stored versions."""
        return len(self.versions)

    def _version(self, number: int | None) -> object:
        if number is None:
            return None
        if number not in self.versions:
            raise RuntimeError(f"version {number} of the blocks' state is not here")
        return self.versions[number]


# ---------------------------------------------------------------------- in the driver
T = TypeVar("T")


class Version:
    """The state of all blocks at one time. It is stored on the workers under this number."""

    def __init__(self, engine: DriverEngine, number: int) -> None:
        self.number, self._engine = number, weakref.ref(engine)

    def lives_on(self, engine: DriverEngine) -> bool:
        return self._engine() is engine

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(
            f"The state of blocks lives on the workers: {name!r} is not here; use the engine's `gather`."
        )


class DriverEngine:
    """The driver's side of a pool: maps are messages to its workers.

    Parameters
    ----------
    pool
        Carries messages; `close` closes it too.
    problem
        Its blocks are dealt out to the workers of the pool.
    dtype
        Of the arithmetic on blocks.

    Examples
    --------
    What the engines of Ray and Dask return from `place`; a cluster of your own needs a `Pool`:

    >>> import auqadmm as aq
    >>> engine = aq.engines.DriverEngine(my_pool, problem, torch.float64)  # doctest: +SKIP
    """

    def __init__(self, pool: Pool, problem: Problem, dtype: torch.dtype) -> None:
        self.pool, self.own_code = pool, pool.own_code
        sources = pool.deal(problem.blocks)
        self.workers = list(range(len(sources)))
        self.holders: list[str] = []
        self.failure: WorkerLost | None = None
        self.calls = 0
        self.seconds: dict[int, float] = {}  # of computation, per worker
        self.versions = 0
        self.alive: weakref.WeakSet[Version] = weakref.WeakSet()
        self.setup: Known = (0, None)  # the setup that workers have
        self.sent = self.received = 0  # bytes
        world = len(self.workers)
        posed = problem.posed()
        counts = self._each([("make", posed, s, r, world) for r, s in enumerate(sources)])
        firsts = [sum(counts[:r]) for r in range(world)]
        tallies = self._each([("read", first) for first in firsts])
        census = problem.settled(((), ()), tallies, 0).census
        self.workers = [r for r in self.workers if counts[r]]  # workers without blocks are no longer called
        self.census, self.names = census, census.names
        self.counts = [counts[r] for r in self.workers]
        self.holders = [span(census.names[f : f + n]) for f, n in zip(firsts, counts, strict=True)]
        self._each([("settle", tallies, firsts[r], dtype) for r in self.workers])

    # ------------------------------------------------------------------ maps
    def map_sum(self, fn: MapFn, blocks: object, shared: object) -> tuple[Any, dict[str, Tensor]]:
        new, parts = self._mapped("sum", fn, blocks, shared)
        return new, {name: sum((p[name].double() for p in parts[1:]), x.double()) for name, x in parts[0].items()}

    def map_minmax(self, fn: MapFn, blocks: object, shared: object) -> tuple[Any, dict[str, Tensor]]:
        new, parts = self._mapped("minmax", fn, blocks, shared)
        stacked = {name: torch.stack([p[name].double() for p in parts]) for name in parts[0]}
        return new, {name: torch.stack([x[:, 0].amin(0), x[:, 1].amax(0)]) for name, x in stacked.items()}

    def map_concat(self, fn: Callable[[Any, Any], dict[str, Tensor]], blocks: object) -> dict[str, Tensor]:
        parts = self._all("concat", fn, self._number(blocks))
        return {name: torch.cat([p[name] for p in parts]) for name in parts[0]}

    def gather(self, fn: Callable[[Any, Any], Tensor], blocks: object) -> Tensor:
        return torch.cat(self._all("gather", fn, self._number(blocks)))

    def scatter(self, x: Tensor) -> Version:
        new = self._new()
        self._each([("put", part, new.number) for part in x.split(self.counts)])
        return new

    def peek(self, fn: Callable[[Any, Any], T], blocks: object) -> T:
        return self._asked({self.workers[0]: ("peek", fn, self._number(blocks))})[0]

    # ------------------------------------------------------------------ one process runs the loop
    def agreed(self, number: float) -> float:
        return number

    def same(self, settings: Mapping[str, object]) -> None:
        return None

    def first(self, work: Callable[[], bytes]) -> bytes:
        return work()

    def close(self, error: BaseException | None = None) -> None:
        self.pool.close()

    def slowest(self) -> tuple[str, float] | None:
        """The worker that has computed longest since the last call.

        Returns
        -------
        name, seconds
            None if none has computed.
        """
        spent, self.seconds = self.seconds, {}
        if not spent:
            return None
        r = max(spent, key=lambda r: spent[r])
        return self._named([r]), spent[r]

    # ------------------------------------------------------------------ versions
    def _mapped(
        self, how: str, fn: MapFn, blocks: object, shared: object
    ) -> tuple[Version | None, list[dict[str, Tensor]]]:
        new = self._new()
        answers = self._all(how, fn, self._number(blocks), shared, new.number)
        for r, (_, _, seconds) in zip(self.workers, answers, strict=True):
            self.seconds[r] = self.seconds.get(r, 0.0) + seconds
        return None if all(nothing for nothing, *_ in answers) else new, [out for _, out, _ in answers]

    def _new(self) -> Version:
        self.versions += 1
        version = Version(self, self.versions)
        self.alive.add(version)
        return version

    def _number(self, blocks: object) -> int | None:
        if blocks is None:
            return None
        if not isinstance(blocks, Version) or not blocks.lives_on(self):
            raise InputError("This state of blocks does not live on the workers of this engine.")
        return blocks.number

    # ------------------------------------------------------------------ messages
    def _all(self, *request: object) -> list[Any]:
        """The same request for all workers, written once."""
        return self._asked(dict.fromkeys(self.workers, request))

    def _each(self, requests: Sequence[tuple[object, ...]]) -> list[Any]:
        return self._asked(dict(zip(self.workers, requests, strict=True)))

    def _asked(self, requests: Mapping[int, tuple[object, ...]]) -> list[Any]:
        if self.failure is not None:
            raise self.failure
        self.calls += 1
        alive = {v.number for v in self.alive}
        made: dict[int, bytes] = {}
        setup = self.setup
        for request in requests.values():
            if id(request) not in made:
                do, *args = request
                made[id(request)], setup = protocol.request(
                    self.calls, alive, str(do), tuple(args), self.setup, self.own_code
                )
        messages = {r: made[id(request)] for r, request in requests.items()}
        replies = self.pool.call(messages)
        answers = {r: x for r, x in replies.items() if isinstance(x, bytes)}
        if lost := {r: why for r, why in replies.items() if isinstance(why, str)}:
            self.failure = self._lost(lost)
            raise self.failure
        self.sent += sum(map(len, messages.values()))
        self.received += sum(map(len, answers.values()))
        if len(requests) == len(self.workers):  # an interrupted call may not have reached all
            self.setup = setup
        do = str(next(iter(requests.values()))[0])
        return verdict(self._read({r: answers[r] for r in requests}, do), who=[self._named([r]) for r in requests])

    def _read(self, answers: Mapping[int, bytes], do: str) -> list[Any]:
        """Answers to a request, in order of workers."""
        return [protocol.loads(data, self.own_code) for data in answers.values()]

    def _lost(self, why: Mapping[int, str]) -> WorkerLost:
        ranks: dict[str, list[int]] = {}  # several holders may share one process
        for r in why:
            ranks.setdefault(self.pool.names[r], []).append(r)
        names = [self._named(own) for own in ranks.values()]
        verb = "was" if len(names) == 1 else "were"
        reasons = ", ".join(dict.fromkeys(why.values()))
        return WorkerLost(f"{' and '.join(names)} {verb} lost ({reasons}).")

    def _named(self, ranks: Sequence[int]) -> str:
        blocks = " and ".join(self.holders[r] for r in ranks if self.holders and self.holders[r])
        name = self.pool.names[ranks[0]]
        return f"{name} ({blocks})" if blocks else name


def opened(pool: Pool, problem: Problem, dtype: torch.dtype) -> DriverEngine:
    """Place the blocks; a pool that cannot be used is closed."""
    try:
        return DriverEngine(pool, problem, dtype)
    except BaseException:
        pool.close()
        raise


class Pool(Protocol):
    """Workers that each run a `Holder`; `names` describe them. `own_code`: do they take code of the user's?"""

    names: Sequence[str]
    own_code: bool

    def deal(self, blocks: object) -> Sequence[Any]:
        """Fix the number of workers, and say where each gets its blocks from.

        Parameters
        ----------
        blocks
            Of the problem.

        Returns
        -------
        sources
            Of each worker: its own `Problem.blocks`, or `BROUGHT` if it has them already.
        """
        ...

    def call(self, messages: Mapping[int, bytes]) -> Mapping[int, bytes | str]:
        """Send messages, and wait for the answers until a deadline.

        Parameters
        ----------
        messages
            By the number of the worker.

        Returns
        -------
        answers
            By the number of the worker. For a lost one, the reason as text; others may be missing then.
        """
        ...

    def close(self) -> None:
        """End what was started. Does not wait for lost workers."""
        ...


def check(timeout: float, workers: int | None) -> None:
    """The settings that engines of this kind share."""
    if not (is_number(timeout) and 0 < timeout < math.inf):
        raise InputError(f"timeout must be a positive number of seconds, got {timeout!r}.")
    if workers is not None:
        whole_number("workers", workers, least=1)


def missing(package: str) -> ImportError:
    """An engine whose package is not installed."""
    return ImportError(f'engine="{package}" needs {package}, which is not installed: pip install "auqadmm[{package}]".')


def dealt(blocks: object, workers: int) -> list[Any]:
    """The block source of each worker: consecutive parts of a list; a function is the same for all."""
    if isinstance(blocks, tuple):
        blocks = Readers(blocks)
    if not isinstance(blocks, Readers):
        return [blocks] * workers
    return [Whole(blocks.part(share(len(blocks.functions), r, workers))) for r in range(workers)]


def most_workers(blocks: object, workers: int) -> int:
    """No more workers than blocks."""
    known = blocks if isinstance(blocks, tuple) else getattr(blocks, "functions", None)
    return workers if known is None else max(1, min(len(known), workers))


def cpu_only(engine: str, device: torch.device) -> None:
    if device.type != "cpu":
        raise InputError(
            f"engine={engine!r} computes on CPUs, got device={str(device)!r}; use engine='torch' for GPUs."
        )
