"""Blocks in many processes, SPMD: every process runs the same loop, holds its own blocks, and sums are all-reduced.

One reduction is one all-reduce of one float64 array: a head of three numbers, then all summands of the round one after
the other. The consensus part is computed from the sums by every process alike. The head tells

    - whether a process was asked to stop (Ctrl-C, SIGTERM): all of them stop in this reduction, none waits for another
    - a digest h of what is summed and of the replicated model, and h²: they are the same everywhere if and only if
      P·Σh² = (Σh)² over P processes, in exact arithmetic, since h is small

A process without blocks goes through the motions on one without rows, and sends zeros.
"""

from __future__ import annotations

import itertools
import math
import os
import signal
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from auqadmm.core.reduce import MapFn
from auqadmm.core.stopping import is_number
from auqadmm.engines.world import World
from auqadmm.problem import Problem
from auqadmm.problem.agreement import ProcessError, same, together

HEAD = 3


@dataclass(frozen=True)
class Torch:
    """torch.distributed: every process calls `solve` with its own blocks and gets the same result.

    Parameters
    ----------
    timeout
        Seconds after which a process that does not answer counts as lost: longer than any local solve takes.
    """

    timeout: float = 300.0

    def __post_init__(self) -> None:
        if not (is_number(self.timeout) and 0 < self.timeout < math.inf):
            raise ValueError(f"timeout must be a positive number of seconds, got {self.timeout!r}.")

    def place(self, problem: Problem, dtype: torch.dtype, device: torch.device) -> TorchEngine:
        """Read the blocks of this process, agree with the others, and be ready to sum."""
        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)) % torch.cuda.device_count())
            torch.cuda.set_device(device)
        world = World(self.timeout, device)
        try:
            return TorchEngine(problem, world, dtype, device)
        except BaseException as error:
            world.fail(error)
            world.close()
            raise


class TorchEngine:
    """The shard of this process, and the processes that hold the others."""

    def __init__(self, problem: Problem, world: World, dtype: torch.dtype, device: torch.device) -> None:
        placed = problem.placed(world.rank, world.size, world.exchange)
        held = len(placed.blocks)
        self.shard, self.counts = together(world.exchange, lambda: (placed.shard(dtype, device), held))
        self.world, self.device, self.census = world, device, placed.census
        self.names = placed.census.names
        self.first, self.idle = sum(self.counts[: world.rank]), held == 0
        ends = [sum(self.counts[:r]) for r in range(world.size + 1)]
        world.holders = [_range(self.names[a:b]) for a, b in itertools.pairwise(ends)]
        self.largest = math.isqrt(2**53 // world.size)  # of a digest
        self.asked = self.stopped = False
        self._handlers = self._listen()

    # ------------------------------------------------------------------ maps
    def map_sum(self, fn: MapFn, blocks: Any, shared: Any) -> tuple[Any, dict[str, Tensor]]:
        with self._told():
            blocks, summands = fn(self.shard, blocks, shared)
        zero = {name: torch.zeros_like(x) for name, x in summands.items()} if self.idle else summands
        h = self._digest(summands, shared)
        total = self.world.sum(self._packed((self.asked, h, h * h), zero))
        asked, one, two = (int(x) for x in total[:HEAD].tolist())
        self._read_head(asked, one * one == self.world.size * two)
        return blocks, _unpacked(total[HEAD:], summands)

    def map_minmax(self, fn: MapFn, blocks: Any, shared: Any) -> tuple[Any, dict[str, Tensor]]:
        with self._told():
            blocks, ends = fn(self.shard, blocks, shared)
        if self.idle:
            sent = {name: torch.full_like(x, -math.inf, dtype=torch.float64) for name, x in ends.items()}
        else:
            sent = {name: torch.stack([-x[0], x[1]]) for name, x in ends.items()}
        h = self._digest(ends, shared)
        most = self.world.max(self._packed((self.asked, h, -h), sent))
        asked, high, low = most[:HEAD].tolist()
        self._read_head(asked, high == -low)
        return blocks, {name: torch.stack([-x[0], x[1]]) for name, x in _unpacked(most[HEAD:], ends).items()}

    def map_concat(self, fn: Callable[[Any, Any], dict[str, Tensor]], blocks: Any) -> dict[str, Tensor]:
        with self._told():
            parts = fn(self.shard, blocks)
        parts = {name: self._own(x) for name, x in parts.items()}
        lengths = torch.tensor([len(x) for x in parts.values()], device=self.device)
        counts = torch.stack(self.world.gather(lengths)).T.tolist()  # ranks send different numbers of entries
        flat = torch.cat([x.reshape(-1) for x in parts.values()])
        sizes = [
            [n * math.prod(x.shape[1:]) for n in of_name] for of_name, x in zip(counts, parts.values(), strict=True)
        ]
        whole = self.world.concat(flat, [sum(of_rank) for of_rank in zip(*sizes, strict=True)])
        # rank after rank, and name after name within each
        pieces = iter(whole.split([n for of_rank in zip(*sizes, strict=True) for n in of_rank]))
        found: dict[str, list[Tensor]] = {name: [] for name in parts}
        for _ in range(self.world.size):
            for name, x in parts.items():
                found[name].append(next(pieces).reshape(-1, *x.shape[1:]))
        return {name: torch.cat(x) for name, x in found.items()}

    def gather(self, fn: Callable[[Any, Any], Tensor], blocks: Any) -> Tensor:
        with self._told():
            x = fn(self.shard, blocks)
        return self.world.concat(self._own(x), self.counts).to(x.dtype)

    def scatter(self, x: Tensor) -> Tensor:
        part = x[:1] if self.idle else x[self.first : self.first + self.counts[self.world.rank]]
        return part.to(self.shard.device, self.shard.dtype)

    # ------------------------------------------------------------------ agreement and the end
    def agreed(self, number: float) -> float:
        return float(self.world.max(torch.tensor([number], dtype=torch.float64)))

    def same(self, settings: Mapping[str, Any]) -> None:
        same(self.world.exchange, settings)

    def close(self, error: BaseException | None = None) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._handlers = {}
        if error is not None:
            self.world.fail(error)
        self.world.close()

    # ------------------------------------------------------------------ inside
    @contextmanager
    def _told(self) -> Iterator[None]:
        """What fails on this process's blocks, all others hear of."""
        try:
            yield
        except BaseException as error:
            self.world.fail(error)
            raise

    def _own(self, x: Tensor) -> Tensor:
        """The part to send: in float64, nothing of a block that is not there."""
        x = x.to(self.device, torch.float64)
        return x[:0] if self.idle else x

    def _digest(self, summands: Mapping[str, Tensor], shared: Any) -> int:
        layout = ";".join(f"{name}{tuple(x.shape)}" for name, x in summands.items())
        model = sum(int(v.contiguous().view(torch.int64).sum()) for v in _models(shared))
        return (zlib.crc32(layout.encode()) + model) % self.largest

    def _packed(self, head: tuple[int, ...], arrays: Mapping[str, Tensor]) -> Tensor:
        parts = [torch.tensor(head, dtype=torch.float64), *arrays.values()]
        return torch.cat([x.to(self.device, torch.float64).reshape(-1) for x in parts])

    def _read_head(self, asked: float, same: bool) -> None:
        if not same:
            raise ProcessError(
                "The processes no longer compute the same model; they must run the same program and versions on "
                "processors of the same kind."
            )
        if asked and not self.stopped:
            self.stopped = True  # what winds up the run is not interrupted: signals reach processes one after the other
            raise KeyboardInterrupt

    def _listen(self) -> dict[int, Any]:
        """Ctrl-C and SIGTERM are answered in the next reduction, where all processes stop together."""
        if threading.current_thread() is not threading.main_thread():
            return {}

        def ask(number: int, frame: Any) -> None:
            self.asked = True

        return {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}


def _models(shared: Any) -> Iterator[Tensor]:
    """The replicated models that a round is told."""
    if isinstance(shared, Tensor):
        if shared.dtype == torch.float64:
            yield shared
    elif isinstance(shared, tuple):
        for x in shared:
            yield from _models(x)
    elif hasattr(shared, "v"):
        yield from _models(shared.v)


def _unpacked(flat: Tensor, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    parts = flat.split([x.numel() for x in like.values()])
    return {name: part.reshape(x.shape) for (name, x), part in zip(like.items(), parts, strict=True)}


def _range(names: tuple[str, ...]) -> str:
    return "" if not names else names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
