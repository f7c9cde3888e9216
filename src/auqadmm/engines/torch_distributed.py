"""Blocks in many processes, SPMD: every process runs the same loop, has its own blocks, and sums are all-reduced.

One reduction is one all-reduce of one float64 array: a header of three numbers, then all summands of the round one by
one. The consensus part is computed from the sums by every process alike. The header says

    - whether a process was asked to stop (Ctrl-C, SIGTERM): all of them stop in this reduction, none waits for another
    - a digest h of what is summed and of the replicated model, and h²: they are the same everywhere if and only if
      P·Σh² = (Σh)² over P processes, in exact arithmetic, since h is small

A process without blocks runs the same code on one without rows, and sends zeros.
"""

from __future__ import annotations

import itertools
import math
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from auqadmm.checks import is_number
from auqadmm.core.processes import StopRequests
from auqadmm.core.reduce import MapFn, byte_array
from auqadmm.engines.world import HEAD, World, digest, entry_size, packed, raw, span, to_bytes, unpacked
from auqadmm.errors import InputError
from auqadmm.problem import Problem
from auqadmm.problem.agreement import ProcessError, same, together

T = TypeVar("T")


@dataclass(frozen=True)
class Torch:
    """torch.distributed: every process calls `solve` with its own blocks and gets the same result.

    Parameters
    ----------
    timeout
        Seconds after which a process that does not answer counts as lost: longer than any local solve takes, and than
        writing a checkpoint.

    Raises
    ------
    ValueError
        `timeout` is no positive number of seconds.

    Examples
    --------
    >>> import auqadmm as aq
    >>> aq.engines.Torch(timeout=600)
    Torch(timeout=600)
    >>> aq.solve(problem, engine=aq.engines.Torch(timeout=600))  # doctest: +SKIP
    """

    timeout: float = 300.0
    spmd: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not (is_number(self.timeout) and 0 < self.timeout < math.inf):
            raise InputError(f"timeout must be a positive number of seconds, got {self.timeout!r}.")

    def place(self, problem: Problem, dtype: torch.dtype, device: torch.device) -> TorchEngine:
        """Read the blocks of this process, agree with the others, and set up the engine."""
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
    """The shard of this process, and the processes with the others.

    Parameters
    ----------
    problem
        Every process passes its own blocks, or the same function of rank and world.
    world
        The processes.
    dtype, device
        Of the arithmetic on blocks.

    Examples
    --------
    What `Torch` places, in each process of `torchrun`:

    >>> import torch
    >>> import auqadmm as aq
    >>> engine = aq.engines.Torch().place(problem, torch.float64, torch.device("cpu"))  # doctest: +SKIP
    >>> isinstance(engine, aq.engines.TorchEngine)  # doctest: +SKIP
    True
    """

    def __init__(self, problem: Problem, world: World, dtype: torch.dtype, device: torch.device) -> None:
        placed = problem.placed(world.rank, world.size, world.exchange)
        count = len(placed.blocks)
        self.shard, self.counts = together(world.exchange, lambda: (placed.shard(dtype, device), count))
        self.world, self.device, self.census = world, device, placed.census
        self.processes = world.size
        self.names = placed.census.names
        self.begin, self.idle = sum(self.counts[: world.rank]), count == 0
        ends = [sum(self.counts[:r]) for r in range(world.size + 1)]
        world.holders = [span(self.names[a:b]) for a, b in itertools.pairwise(ends)]
        self.largest = math.isqrt(2**53 // world.size)  # of a digest
        # Ctrl-C and SIGTERM take effect in the next reduction, where all processes stop together
        self.asked, self.stopped = StopRequests(signal.SIGINT, signal.SIGTERM), False

    # ------------------------------------------------------------------ maps
    def map_sum(self, fn: MapFn, blocks: object, shared: object) -> tuple[Any, dict[str, Tensor]]:
        with self._reporting():
            blocks, summands = fn(self.shard, blocks, shared)
        zero = {name: torch.zeros_like(x) for name, x in summands.items()} if self.idle else summands
        h = digest(summands, shared, self.largest)
        total = self.world.sum(packed(self.device, (self.asked.number, h, h * h), zero))
        asked, one, two = (int(x) for x in total[:HEAD].tolist())
        self._read_head(asked, one * one == self.world.size * two)
        return blocks, unpacked(total[HEAD:], summands)

    def map_minmax(self, fn: MapFn, blocks: object, shared: object) -> tuple[Any, dict[str, Tensor]]:
        with self._reporting():
            blocks, ends = fn(self.shard, blocks, shared)
        if self.idle:
            sent = {name: torch.full_like(x, -math.inf, dtype=torch.float64) for name, x in ends.items()}
        else:
            sent = {name: torch.stack([-x[0], x[1]]) for name, x in ends.items()}
        h = digest(ends, shared, self.largest)
        most = self.world.max(packed(self.device, (self.asked.number, h, -h), sent))
        asked, high, low = most[:HEAD].tolist()
        self._read_head(asked, high == -low)
        return blocks, {name: torch.stack([-x[0], x[1]]) for name, x in unpacked(most[HEAD:], ends).items()}

    def map_concat(self, fn: Callable[[Any, Any], dict[str, Tensor]], blocks: object) -> dict[str, Tensor]:
        with self._reporting():
            parts = {name: self._own(x) for name, x in fn(self.shard, blocks).items()}
        lengths = torch.tensor([len(x) for x in parts.values()], device=self.device)
        counts = torch.stack(self.world.gather(lengths)).tolist()  # processes send different numbers of entries
        sizes = [[n * entry_size(x) for n, x in zip(sent, parts.values(), strict=True)] for sent in counts]
        whole = self.world.concat(torch.cat([raw(x) for x in parts.values()]), [sum(sent) for sent in sizes])
        pieces = whole.split([size for sent in sizes for size in sent])  # process after process, name after name
        return {
            name: torch.cat(pieces[k :: len(parts)]).view(x.dtype).reshape(-1, *x.shape[1:])
            for k, (name, x) in enumerate(parts.items())
        }

    def gather(self, fn: Callable[[Any, Any], Tensor], blocks: object) -> Tensor:
        with self._reporting():
            x = self._own(fn(self.shard, blocks))
        whole = self.world.concat(raw(x), [n * entry_size(x) for n in self.counts])
        return whole.view(x.dtype).reshape(-1, *x.shape[1:])

    def peek(self, fn: Callable[[Any, Any], T], blocks: object) -> T:
        return fn(self.shard, blocks)

    def scatter(self, x: Tensor) -> Tensor:
        part = x[:1] if self.idle else x[self.begin : self.begin + self.counts[self.world.rank]]
        return part.to(self.shard.device, self.shard.dtype)

    # ------------------------------------------------------------------ agreement and the end
    def agreed(self, number: float) -> float:
        return float(self.world.max(torch.tensor([number], dtype=torch.float64)))

    def same(self, settings: Mapping[str, object]) -> None:
        same(self.world.exchange, settings)

    def first(self, work: Callable[[], bytes]) -> bytes:
        def made_once() -> tuple[bytes, int]:
            made = work() if self.world.rank == 0 else b""
            return made, len(made)

        made, sizes = together(self.world.exchange, made_once)
        return to_bytes(self.world.broadcast(byte_array(made), sizes[0]))

    def close(self, error: BaseException | None = None) -> None:
        handled = self.stopped or self.world.failed or not self.asked.listening
        self.asked.restore()
        if error is not None:
            self.world.fail(error)
        self.world.close()
        number = self.asked.number
        if number and error is None and not handled:  # it came after the last reduction: raise it again
            signal.raise_signal(number)

    # ------------------------------------------------------------------ inside
    @contextmanager
    def _reporting(self) -> Iterator[None]:
        """Reports a failure on this process's blocks to all others."""
        try:
            yield
        except BaseException as error:
            self.world.fail(error)
            raise

    def _own(self, x: Tensor) -> Tensor:
        """The part to send: empty for the placeholder block."""
        x = x.to(self.device)
        return x[:0] if self.idle else x

    def _read_head(self, asked: float, same: bool) -> None:
        if not same:
            raise ProcessError(
                "The processes no longer compute the same model; they must run the same program and versions on "
                "processors of the same kind."
            )
        if asked and not self.stopped:
            self.stopped = True  # the shutdown is not interrupted: signals reach processes one after the other
            raise KeyboardInterrupt
