"""Processes that run the same program, as `torchrun` starts them: collectives with a deadline, and a diagnosis when one
cannot finish.

An existing process group is used: a second one with our deadline is made on top of it. Otherwise one is made from
the environment of `torchrun`; without that the world is this process. `World` closes what it made. Messages
are tensors, nothing is pickled: many arrays go in one message, summands in float64 after a header of a few numbers,
other arrays as their bytes.

Every rendezvous has a new name. The store that `torchrun` serves may outlive the processes: restarted after a loss they
would find addresses and alarms of dead processes. So the first process makes up a name and sends it to every caller:

    rank r    writes a unique call under hello/r, and waits for the answer to this call
    rank 0    answers any call under hello/r, old ones too, until rank r confirms

A `AlarmBoard` is shared storage that all can read when a collective cannot finish: who failed, who is alive. A process
that fails writes a sentence and raises the alarm. The others poll the board while they wait, write their
names, and see who did not: those are lost. The board uses the rendezvous store, over a TCP
connection of its own, so it works where the collective does not. A store that cannot be reached
is not waited for longer than `BOARD_PATIENCE`.
"""

from __future__ import annotations

import itertools
import math
import os
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, TypeVar
from uuid import uuid4

import torch
import torch.distributed as dist
from torch import Tensor

from auqadmm.core.reduce import WorkerLost, byte_array
from auqadmm.problem.agreement import ProcessError, error_text

# ---------------------------------------------------------------------- many arrays in one message
HEAD = 3  # numbers in front of the summands


def packed(device: torch.device, head: tuple[int, ...], arrays: Mapping[str, Tensor]) -> Tensor:
    """The header, and then the arrays one after the other."""
    parts = [torch.tensor(head, dtype=torch.float64), *arrays.values()]
    return torch.cat([x.to(device, torch.float64).reshape(-1) for x in parts])


def unpacked(flat: Tensor, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The arrays after the header, with the names and shapes of `like`."""
    parts = flat.split([x.numel() for x in like.values()])
    return {name: part.reshape(x.shape) for (name, x), part in zip(like.items(), parts, strict=True)}


def digest(summands: Mapping[str, Tensor], shared: object, below: int) -> int:
    """A number from the names and shapes of summands and the bits of the replicated models."""
    layout = ";".join(f"{name}{tuple(x.shape)}" for name, x in summands.items())
    model = sum(int(v.contiguous().view(torch.int64).sum()) for v in _models(shared))
    return (zlib.crc32(layout.encode()) + model) % below


def _models(shared: object) -> Iterator[Tensor]:
    """The replicated models that a round sends."""
    if isinstance(shared, Tensor):
        if shared.dtype == torch.float64:
            yield shared
    elif isinstance(shared, tuple):
        for x in shared:
            yield from _models(x)
    elif hasattr(shared, "v"):
        yield from _models(shared.v)


def raw(x: Tensor) -> Tensor:
    """The bytes of an array of any dtype."""
    return x.contiguous().reshape(-1).view(torch.uint8)


def entry_size(x: Tensor) -> int:
    """Bytes of one entry along the first axis."""
    return math.prod(x.shape[1:]) * x.element_size()


def to_bytes(x: Tensor) -> bytes:
    return x.numpy().tobytes()


def span(names: tuple[str, ...]) -> str:
    """Names of consecutive blocks, in words."""
    return "" if not names else names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"


# ---------------------------------------------------------------------- rendezvous, and a board for failures
PAUSE = 0.01  # seconds between two polls
_met: list[tuple[dist.Store, int, int]] = []


def rendezvous(limit: timedelta) -> tuple[dist.Store, int, int]:
    """A store, rank and size; kept as long as this process lives, since the first one may serve the others."""
    if not _met:
        store, rank, size = next(itertools.islice(dist.rendezvous("env://", timeout=limit), 1))
        store.set_timeout(limit)
        _met.append((dist.PrefixStore(agreed(store, rank, size, limit), store), rank, size))
    return _met[0]


def agreed(store: dist.Store, rank: int, size: int, limit: timedelta) -> str:
    """The name of this rendezvous."""
    end, mine = time.monotonic() + limit.total_seconds(), uuid4().hex
    if rank > 0:
        store.set(f"hello/{rank}", mine)
        name: str = store.get(f"answer/{mine}").decode()  # waits as long as the store does
        store.set(f"heard/{name}/{rank}", "")
        return name
    missing = list(range(1, size))
    while missing:
        if time.monotonic() > end:
            raise RuntimeError(f"no sign of rank {', '.join(map(str, missing))}")
        for r in missing:
            if store.check([f"hello/{r}"]):
                store.set(f"answer/{store.get(f'hello/{r}').decode()}", mine)
        missing = [r for r in missing if not store.check([f"heard/{mine}/{r}"])]
        time.sleep(PAUSE if missing else 0)
    return mine


def named(group: dist.ProcessGroup | None) -> str:
    """A name for processes that are connected already."""
    code = torch.frombuffer(bytearray(uuid4().bytes), dtype=torch.uint8)
    dist.broadcast(code, 0, group=group)
    return code.numpy().tobytes().hex()


T = TypeVar("T")

BOARD_PATIENCE = 4.0  # seconds for others to write their names
BOARD_LOOK = 0.5  # seconds between two polls of the board


class AlarmBoard:
    """`store`: a torch.distributed store with a prefix of its own, or None where there are no others."""

    def __init__(self, store: dist.Store | None, rank: int, size: int) -> None:
        self.store, self.rank, self.size = store, rank, size
        self._busy: threading.Thread | None = None

    def alarmed(self) -> bool:
        """Has any process raised the alarm?"""
        return bool(self._ask(lambda store: store.check(["alarm"]), BOARD_LOOK))

    def reachable(self) -> bool:
        return self._ask(lambda store: store.check(["alarm"]), BOARD_PATIENCE) is not None

    def raise_alarm(self, reason: str, sentence: str = "") -> str:
        """Alert the others: a sentence if this process failed, else what it noticed; returns the first alert."""

        def write(store: dist.Store) -> str:
            if sentence:
                store.set(f"error/{self.rank}", sentence)
            store.set(f"here/{self.rank}", "")
            first: bytes = store.compare_set("alarm", "", reason)
            return first.decode()

        return self._ask(write, BOARD_PATIENCE) or reason

    def others(self) -> tuple[dict[int, str], list[int]]:
        """The sentences of processes that failed, and the ranks that do not answer within `BOARD_PATIENCE`."""
        ranks = [r for r in range(self.size) if r != self.rank]
        missing = self._waited("here", ranks)
        sentences = self._sentences()
        self._ask(lambda store: store.set(f"read/{self.rank}", ""), BOARD_PATIENCE)
        if self.rank == 0:  # the store may be served by this process, and the others still read
            self._waited("read", [r for r in ranks if r not in missing])
        return sentences, missing

    def _waited(self, key: str, ranks: Sequence[int]) -> list[int]:
        """Those of `ranks` that did not write `key` within `BOARD_PATIENCE`."""
        end = time.monotonic() + BOARD_PATIENCE
        missing = self._unwritten(key, ranks)
        while missing and time.monotonic() < end:
            time.sleep(0.05)
            missing = self._unwritten(key, ranks)
        return missing

    def _unwritten(self, key: str, ranks: Sequence[int]) -> list[int]:
        return self._ask(lambda store: [r for r in ranks if not store.check([f"{key}/{r}"])], BOARD_PATIENCE) or []

    def _sentences(self) -> dict[int, str]:
        def read(store: dist.Store) -> dict[int, str]:
            failed = [r for r in range(self.size) if store.check([f"error/{r}"])]
            return {r: store.get(f"error/{r}").decode() for r in failed}

        return self._ask(read, BOARD_PATIENCE) or {}

    def _ask(self, question: Callable[[dist.Store], T], seconds: float) -> T | None:
        """The answer, or None if there is none in time: a lost connection may block for a quarter of an hour."""
        store = self.store
        if store is None or (self._busy is not None and self._busy.is_alive()):
            return None
        answer: list[T | None] = []

        def work() -> None:
            try:
                answer.append(question(store))
            except RuntimeError:  # the store is gone
                answer.append(None)

        self._busy = threading.Thread(target=work, daemon=True)
        self._busy.start()
        self._busy.join(seconds)
        return answer[0] if answer else None


# ---------------------------------------------------------------------- collectives
_numbers = itertools.count()  # every process makes its worlds in the same order


class World:
    """`rank` of `size` processes. `deadline`: seconds after which a collective counts as failed."""

    def __init__(self, deadline: float, device: torch.device) -> None:
        self.rank, self.size, self.deadline = 0, 1, deadline
        self.group: dist.ProcessGroup | None = None
        self.made = False  # did we make the process group of the whole process?
        self.collectives = 0
        self.holders: Sequence[str] = ()  # what is lost with each rank, in words
        self._failure: Exception | None = None
        name = f"auqadmm/{next(_numbers)}"
        try:
            store = self._join("gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl", name)
        except RuntimeError as error:  # torch's errors of this kind are subclasses
            raise ProcessError(
                f"The processes did not find each other within {deadline:g} s: {error_text(error)}"
            ) from None
        self.board = AlarmBoard(store and dist.PrefixStore(f"{name}/board", store), self.rank, self.size)

    def _join(self, backend: str, name: str) -> dist.Store | None:
        """Make the group; returns the store where its processes met, None for a process alone."""
        limit = timedelta(seconds=self.deadline)
        if dist.is_available() and dist.is_initialized():
            self.rank, self.size = dist.get_rank(), dist.get_world_size()
            self.group = dist.new_group(backend=backend, timeout=limit)
            return dist.PrefixStore(named(self.group), dist.distributed_c10d._get_default_store())
        if not dist.is_available() or "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
            return None
        store, self.rank, self.size = rendezvous(limit)
        own = dist.PrefixStore(name, store)
        dist.init_process_group(backend, store=own, rank=self.rank, world_size=self.size, timeout=limit)
        self.group, self.made = dist.group.WORLD, True
        return store

    # ------------------------------------------------------------------ collectives
    def sum(self, x: Tensor) -> Tensor:
        return self._reduced(x, dist.ReduceOp.SUM)

    def max(self, x: Tensor) -> Tensor:
        return self._reduced(x, dist.ReduceOp.MAX)

    def gather(self, x: Tensor) -> list[Tensor]:
        """x of every process, all of one shape."""
        parts = [torch.empty_like(x) for _ in range(self.size)]
        if self.group is None:
            return [x]
        x = x.contiguous()
        self._finish(dist.all_gather, x, parts, x)
        return parts

    def concat(self, x: Tensor, counts: Sequence[int]) -> Tensor:
        """x (counts[rank], …) of every process, one after the other."""
        most = max(counts)
        if most == 0:
            return x
        padded = torch.cat([x, x.new_zeros(most - len(x), *x.shape[1:])])
        return torch.cat([part[:count] for part, count in zip(self.gather(padded), counts, strict=True)])

    def broadcast(self, x: Tensor, count: int) -> Tensor:
        """x (count,) of the first process, in all of them."""
        if self.group is None or count == 0:
            return x
        sent = x if self.rank == 0 else x.new_empty(count)
        self._finish(dist.broadcast, sent, sent, 0)
        return sent

    def exchange(self, text: str) -> list[str]:
        """A text of every process, as bytes."""
        data = byte_array(text.encode())
        counts = [int(n) for n in self.gather(torch.tensor([len(data)]))]
        return [to_bytes(part).decode() for part in self.concat(data, counts).split(counts)]

    def _reduced(self, x: Tensor, op: dist.ReduceOp.RedOpType) -> Tensor:
        if self.group is not None:
            self._finish(dist.all_reduce, x, x, op)
        return x

    # ------------------------------------------------------------------ deadlines
    def _finish(self, collective: Callable[..., Any], x: Tensor, *args: object) -> None:
        """Start a collective on x, and wait for it."""
        if self._failure is not None:
            raise self._failure
        self.collectives += 1
        problem = self._waited(collective, args, x.is_cuda)
        if problem:
            raise self._diagnosed(problem)

    def _waited(self, collective: Callable[..., Any], args: Sequence[object], cuda: bool) -> str:
        """Wait, polling the board; returns the transport's error text, if any.

        Raises nothing: a traceback would keep the connection open, and others wait for its end.
        """
        end = time.monotonic() + self.deadline
        try:
            work = collective(*args, group=self.group, async_op=True)
            while not _done(work, cuda):
                if self.board.alarmed():
                    return "another process raised the alarm"
                if time.monotonic() > end:
                    return "timed out"
        except RuntimeError as error:
            return str(error) or type(error).__name__
        return ""

    def _diagnosed(self, problem: str) -> Exception:
        """A diagnosis in one sentence: who failed and why, or who is lost."""
        reason = self.board.raise_alarm(_brief(problem, self.deadline))
        sentences, missing = self.board.others()
        if sentences:
            rank = min(sentences)
            self._failure = ProcessError(f"rank {rank}: {sentences[rank]}")
        elif not self.board.reachable():
            self._failure = WorkerLost(f"The processes that rank {self.rank} works with cannot be reached ({reason}).")
        elif missing:
            who = " and ".join(self._named(r) for r in missing)
            verb = "was" if len(missing) == 1 else "were"
            self._failure = WorkerLost(f"{who} {verb} lost ({reason}).")
        else:
            self._failure = WorkerLost(f"The connection between the processes broke ({reason}).")
        return self._failure

    def _named(self, rank: int) -> str:
        blocks = self.holders[rank] if rank < len(self.holders) else ""
        return f"rank {rank} ({blocks})" if blocks else f"rank {rank}"

    # ------------------------------------------------------------------ the end
    @property
    def failed(self) -> bool:
        return self._failure is not None

    def fail(self, error: BaseException) -> None:
        """This process failed: alert the others, and give them time to read it."""
        if self._failure is None and self.size > 1:
            self._failure = error if isinstance(error, Exception) else ProcessError(error_text(error))
            self.board.raise_alarm("a process failed", error_text(error))
            self.board.others()

    def close(self) -> None:
        """Close what this object made."""
        group, self.group = self.group, None
        if group is not None and dist.is_initialized():
            dist.destroy_process_group(None if self.made else group)


def _done(work: dist.Work, cuda: bool) -> bool:
    """Has it finished within a short while? Raises if it failed."""
    if cuda:  # waiting for NCCL means queueing, and a wait that ends early would abort it
        end = time.monotonic() + BOARD_LOOK
        while not work.is_completed() and time.monotonic() < end:
            time.sleep(1e-5)
        return bool(work.is_completed()) and bool(work.wait())
    try:
        work.wait(timedelta(seconds=BOARD_LOOK))
        return True
    except RuntimeError:
        if work.is_completed():
            raise
        return False


def _brief(problem: str, deadline: float) -> str:
    """An error of the transport in plain words."""
    if "Timed out" in problem or "timed out" in problem:
        return f"no answer within {deadline:g} s"
    if "closed by peer" in problem or "reset by peer" in problem:
        return "its connection was closed"
    return " ".join(problem.split())[:200]
