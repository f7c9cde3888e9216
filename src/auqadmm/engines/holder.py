"""What runs on a worker: it stores a shard and versions of its blocks' state, and answers one message at a time.

A message says which versions the driver still uses; all others are dropped. Versions are frozen like any state, so an
old one stays usable as long as it is referred to. Messages are numbered: one that the driver gave up waiting for, and
that arrives after a later one, is refused. Nothing is recomputed: a holder without the requested version reports
that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from auqadmm.blocks.shard import Shard
from auqadmm.core.reduce import MapFn
from auqadmm.engines.messages import Known, dumps, loads
from auqadmm.problem import Problem
from auqadmm.problem.agreement import attempt

BROUGHT = "brought"  # stands for blocks that the engine delivers itself


class Holder:
    """The blocks of one worker. `brought`: blocks that the engine delivered itself."""

    def __init__(self, brought: Sequence[object] | None = None) -> None:
        self.brought = brought or []
        self.versions: dict[int, object] = {}
        self.setup: Known = (0, None)
        self.seen = 0
        self.problem: Problem
        self.held: Any  # blocks as given, then as read
        self.shard: Shard

    def __call__(self, message: bytes) -> bytes:
        """Answer with a message, or with an error."""
        answer = attempt(lambda: (None, self._answered(message)))[1]
        return dumps(answer)

    def _answered(self, message: bytes) -> object:
        envelope = loads(message)
        if envelope["number"] <= self.seen:
            raise RuntimeError("this message was overtaken by a later one")
        self.seen = envelope["number"]
        self.versions = {k: x for k, x in self.versions.items() if k in envelope["alive"]}
        if envelope["setup"] is not None:
            number, data = envelope["setup"]
            self.setup = (number, loads(data))
        name, *args = loads(envelope["request"], self.setup)
        return getattr(self, f"do_{name}")(*args)

    # ------------------------------------------------------------------ placing blocks
    def do_make(self, problem: Problem, rank: int, world: int) -> int:
        if problem.blocks == BROUGHT:
            brought, self.brought = self.brought, []
            problem = problem.elsewhere(lambda rank, world: brought)
        self.problem = problem
        self.held, count = problem.made(rank, world)
        return count

    def do_read(self, first: int) -> Mapping[str, object]:
        self.held, tally = self.problem.read(self.held, first)
        return tally

    def do_settle(self, messages: Sequence[Mapping[str, Any]], first: int, dtype: torch.dtype) -> None:
        placed = self.problem.settled(self.held, messages, first)
        self.shard = placed.shard(dtype, torch.device("cpu"))
        del self.held, self.problem

    # ------------------------------------------------------------------ maps
    def do_map(self, fn: MapFn, at: int | None, shared: object, new: int) -> tuple[bool, dict[str, Tensor], float]:
        began = time.perf_counter()
        blocks, out = fn(self.shard, self._version(at), shared)
        self.versions[new] = blocks
        return blocks is None, out, time.perf_counter() - began

    def do_parts(self, fn: Callable[[Any, Any], object], at: int | None) -> object:
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
