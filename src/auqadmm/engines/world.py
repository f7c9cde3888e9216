"""Processes that run the same program, as `torchrun` starts them: collectives with a deadline, and a diagnosis when one
cannot finish.

An existing process group is used: a second one with our deadline is made on top of it. Otherwise one is made from
the environment of `torchrun`; without that the world is this process. `World` closes what it made. Messages
are tensors; nothing is pickled.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from auqadmm.core.reduce import WorkerLost
from auqadmm.engines.meeting import BOARD_LOOK, Board, named, rendezvous
from auqadmm.engines.packing import from_bytes, to_bytes
from auqadmm.problem.agreement import ProcessError, told

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
            raise ProcessError(f"The processes did not find each other within {deadline:g} s: {told(error)}") from None
        self.board = Board(store and dist.PrefixStore(f"{name}/board", store), self.rank, self.size)

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
        data = from_bytes(text.encode())
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
            self._failure = error if isinstance(error, Exception) else ProcessError(told(error))
            self.board.raise_alarm("a process failed", told(error))
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
