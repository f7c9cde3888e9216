"""One reduction over blocks: map in the processes that store the blocks, sum, count the traffic.

A *round* is one reduction plus the broadcast of its result. Bytes are the logical payload of one worker, 8 per
number since sums are float64: what it sends up (its summand) and what it receives (`down`). They do not depend on
the engine or on how many blocks share a process.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

import torch
from torch import Tensor

from auqadmm.core.state import Blocks, Cost, State
from auqadmm.errors import AuqadmmError
from auqadmm.metrics.weights import sum_blocks

if TYPE_CHECKING:
    from auqadmm.blocks.loss import Point
    from auqadmm.blocks.shard import Census, Shard
    from auqadmm.core.result import Result

Sums = dict[str, Tensor]

B = TypeVar("B")  # the state of a process's blocks, or an engine's handle to it
A = TypeVar("A")  # the same after a map
S = TypeVar("S")  # replicated data

MapFn = Callable[["Shard", B, S], tuple[A, Sums]]


class WorkerLost(AuqadmmError, RuntimeError):
    """A process that holds blocks is gone or cannot be reached; the message names it.

    Attributes
    ----------
    left
        The `Result` of the iteration before, where there is one.
    saved
        The iteration of the last checkpoint, where there is one.

    Examples
    --------
    >>> import auqadmm as aq
    >>> lost = aq.WorkerLost("process 1 of 3 is gone")
    >>> lost.left is None, lost.saved is None
    (True, True)
    """

    left: Result | None = None
    saved: int | None = None


class Engine(Protocol):
    """The processes with the blocks. Functions get the shard of each process, the blocks' state and replicated data.

    An engine may have `processes`, how many run the loop (1 if it has not). Where there are several, it handles Ctrl-C
    and SIGTERM itself, and all of them get a KeyboardInterrupt in the same reduction. Any call may raise `WorkerLost`.
    """

    names: tuple[str, ...]
    census: Census

    def map_sum(self, fn: MapFn[B, S, A], blocks: B, shared: S) -> tuple[A, Sums]:
        """Call a function in every process with blocks, and sum what it returns.

        Parameters
        ----------
        fn
            `fn(shard, blocks, shared) -> (blocks, summands)`; the summands have the same names and shapes
            everywhere.
        blocks
            The state of the blocks: what an earlier call returned, or None.
        shared
            Replicated data, sent to every process.

        Returns
        -------
        blocks, sums
            The new state of the blocks, where they live, and the sums over all processes, in float64.
        """
        ...

    def map_minmax(self, fn: MapFn[B, S, A], blocks: B, shared: S) -> tuple[A, Sums]:
        """As `map_sum`, with extremes instead of sums.

        Parameters
        ----------
        fn
            As for `map_sum`; each array has two entries along its first axis.
        blocks
            The state of the blocks.
        shared
            Replicated data.

        Returns
        -------
        blocks, extremes
            The first entry of each array is the minimum over processes, the second the maximum.
        """
        ...

    def map_concat(self, fn: Callable[[Shard, B], Sums], blocks: B) -> Sums:
        """Arrays of all blocks, one after the other; no state changes. A process holds consecutive blocks.

        Parameters
        ----------
        fn
            `fn(shard, blocks)` gives arrays whose first axis runs over the local blocks, any number of entries
            each.
        blocks
            The state of the blocks.

        Returns
        -------
        arrays
            Each of them for all blocks, in the order of the blocks.
        """
        ...

    def gather(self, fn: Callable[[Shard, B], Tensor], blocks: B) -> Tensor:
        """One array with one entry per block, of all blocks.

        Parameters
        ----------
        fn
            `fn(shard, blocks) -> (B, …)`.
        blocks
            The state of the blocks.

        Returns
        -------
        Tensor
            (N, …), in the order of the blocks.
        """
        ...

    def peek(self, fn: Callable[[Shard, B], A], blocks: B) -> A:
        """A value that all processes share, from one of them.

        Parameters
        ----------
        fn
            `fn(shard, blocks)`, called in any one process with a shard.
        blocks
            The state of the blocks.

        Returns
        -------
        value
            What it returned, unchanged.
        """
        ...

    def scatter(self, x: Tensor) -> Tensor:
        """The inverse of `gather`.

        Parameters
        ----------
        x
            (N, …), one entry per block.

        Returns
        -------
        Tensor
            The (B, …) part that belongs to this process's blocks, or a handle to the parts on workers.
        """
        ...

    def agreed(self, number: float) -> float:
        """The maximum of a number over the processes that run the loop; collective: each of them must call.

        Parameters
        ----------
        number
            This process's own.

        Returns
        -------
        float
            The same in all of them.
        """
        ...

    def same(self, settings: Mapping[str, object]) -> None:
        """Refuse to go on where the processes that run the loop were given different settings.

        Parameters
        ----------
        settings
            This process's own, by name.
        """
        ...

    def first(self, work: Callable[[], bytes]) -> bytes:
        """Work that one process does for all that run the loop: files.

        Parameters
        ----------
        work
            Called in the first of them.

        Returns
        -------
        bytes
            What it returned, in all of them.
        """
        ...

    def close(self, error: BaseException | None = None) -> None:
        """Shut down.

        Parameters
        ----------
        error
            The cause of a premature end, passed on to the other processes that run the loop.
        """
        ...


@dataclass
class Traffic:
    """Rounds and bytes so far; how many rounds verdicts took; and how often blocks were called at
    all: rounds, evaluation alone, gathers."""

    rounds: int = 0
    up: int = 0
    down: int = 0
    verdict: int = 0
    reductions: int = 0


class Reduce:
    """What a method calls: maps over blocks. Reductions are counted; `free` ones (scoring an iterate) are not.

    Parameters
    ----------
    engine
        The processes with the blocks.

    Attributes
    ----------
    call `reduce(fn, blocks, shared, down)` is one round
        `fn(shard, blocks, shared) -> (blocks, summands)` in every process, and the sums over all. `shared` is
        replicated; `down` are the arrays that workers must be sent for it, which are counted. The other methods
        take the same arguments, and say what they return and what of it counts.

    Examples
    --------
    >>> import torch
    >>> import auqadmm as aq
    >>> problem = aq.Problem(aq.LeastSquares(), aq.L2(1.0), [([[1.0]], [2.0]), ([[3.0]], [6.0])])
    >>> reduce = aq.methods.Reduce(aq.engines.Local().place(problem, torch.float64, torch.device("cpu")))
    >>> def count(shard, blocks, shared):
    ...     return blocks, {"blocks": torch.tensor(float(shard.blocks))}
    >>> reduce(count, None, None)[1]["blocks"].item(), reduce.traffic.rounds
    (2.0, 1)
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.collects = getattr(engine, "collects", True)  # may anything of one block be asked for?
        self.traffic = Traffic()
        self.known: dict[MapFn[None, None, None], Sums] = {}

    def __call__(self, fn: MapFn[B, S, A], blocks: B, shared: S, down: tuple[Tensor, ...] = ()) -> tuple[A, Sums]:
        after, sums = self.engine.map_sum(fn, blocks, shared)
        self._count(sums, down)
        return after, sums

    def judging(self, fn: MapFn[None, S, None], shared: S, down: tuple[Tensor, ...] = ()) -> Sums:
        """A round of a verdict, which needs no state of blocks: counted like any other, and apart.

        Parameters
        ----------
        fn
            A map over blocks, as in `Engine.map_sum`.
        shared
            Replicated data, for it.
        down
            What the round tells the workers.

        Returns
        -------
        dict
            The sums.
        """
        self.traffic.verdict += 1
        return self(fn, None, shared, down)[1]

    def once(self, fn: MapFn[None, None, None]) -> Sums:
        """A round of a verdict whose result is the same throughout a run: made once.

        Parameters
        ----------
        fn
            A map over blocks, as in `Engine.map_sum`.

        Returns
        -------
        dict
            The sums.
        """
        if fn not in self.known:
            self.known[fn] = self.judging(fn, None)
        return self.known[fn]

    def minmax(self, fn: MapFn[B, S, A], blocks: B, shared: S) -> tuple[A, Sums]:
        """A round of extremes instead of sums.

        Parameters
        ----------
        fn
            A map over blocks, as in `Engine.map_minmax`.
        blocks
            The state of the blocks.
        shared
            Replicated data, for it.

        Returns
        -------
        state, dict
            The blocks' new state, and minimum and maximum of each array.
        """
        after, extremes = self.engine.map_minmax(fn, blocks, shared)
        self._count(extremes, tuple(extremes.values()))
        return after, extremes

    def concat(self, fn: Callable[[Shard, B], Sums], blocks: B) -> Sums:
        """Parts of all blocks, concatenated. They are sent with the message of the previous round: bytes, no round.

        Blocks may send different amounts; what counts is the mean.

        Parameters
        ----------
        fn
            As in `Engine.map_concat`.
        blocks
            The state of the blocks.

        Returns
        -------
        dict
            Arrays of all blocks, one after the other.
        """
        parts = self.engine.map_concat(fn, blocks)
        self.traffic.reductions += 1
        self.traffic.up += math.ceil(8 * sum(x.numel() for x in parts.values()) / len(self.engine.names))
        return parts

    def free(self, fn: MapFn[B, S, A], blocks: B, shared: S) -> Sums:
        """The sums of a map that is not counted: to score an iterate.

        Parameters
        ----------
        fn
            A map over blocks, as in `Engine.map_sum`.
        blocks
            The state of the blocks.
        shared
            Replicated data, for it.

        Returns
        -------
        dict
            The sums.
        """
        self.traffic.reductions += 1
        return self.engine.map_sum(fn, blocks, shared)[1]

    def place(self, fn: MapFn[B, S, A], blocks: B, shared: S) -> A:
        """Map without a sum: set up or change the blocks' state in place, without communication."""
        return self.engine.map_sum(fn, blocks, shared)[0]

    def gather(self, fn: Callable[[Shard, B], Tensor], blocks: B) -> Tensor:
        """Arrays of all blocks: bytes, no round.

        Parameters
        ----------
        fn
            As in `Engine.gather`.
        blocks
            The state of the blocks.

        Returns
        -------
        Tensor
            (N, …), one entry per block.
        """
        gathered = self.engine.gather(fn, blocks)
        self.traffic.reductions += 1
        self.traffic.up += math.ceil(8 * gathered.numel() / max(len(self.engine.names), 1))
        return gathered

    def scatter(self, x: Tensor) -> Tensor:
        """The inverse of `gather`, not counted.

        Parameters
        ----------
        x
            (N, …), one entry per block.

        Returns
        -------
        Tensor
            The entries of this process's blocks, or an engine's handle to them.
        """
        return self.engine.scatter(x)

    def every(self, fn: Callable[[Shard], bool]) -> bool:
        """Does something hold in every process with blocks? Not counted: for settings of a run.

        Parameters
        ----------
        fn
            `fn(shard)`, called in each.

        Returns
        -------
        bool
            Whether all returned True.
        """
        flags = self.engine.map_minmax(partial(_flag, fn), None, None)[1]["flag"]
        return bool(flags[0] > 0)

    def agreed(self, flag: bool) -> bool:
        """Is this true in any process that runs the loop? Not counted; collective: every one of them must call.

        Parameters
        ----------
        flag
            What this process says.

        Returns
        -------
        bool
            The same in all of them.
        """
        return self.engine.agreed(float(flag)) > 0

    @property
    def several(self) -> bool:
        """Do several processes run the loop?"""
        return getattr(self.engine, "processes", 1) > 1

    def slowest(self) -> tuple[str, float] | None:
        """The worker that computed longest since the last call.

        Returns
        -------
        tuple or None
            Its name and its seconds; None where the engine does not know.
        """
        asked = getattr(self.engine, "slowest", None)
        return None if asked is None else asked()

    def cost(self, hvps: int) -> Cost:
        """The traffic so far.

        Parameters
        ----------
        hvps
            Hessian-vector products so far, which the method counts.

        Returns
        -------
        Cost
            Rounds, bytes and products.
        """
        return Cost(self.traffic.rounds, self.traffic.up, self.traffic.down, hvps)

    def _count(self, up: Mapping[str, Tensor], down: tuple[Tensor, ...]) -> None:
        self.traffic.rounds += 1
        self.traffic.reductions += 1
        self.traffic.up += 8 * sum(x.numel() for x in up.values())
        self.traffic.down += 8 * sum(x.numel() for x in down)


def _flag(fn: Callable[[Shard], bool], shard: Shard, blocks: None, shared: None) -> tuple[None, Sums]:
    return blocks, {"flag": torch.full((2,), float(fn(shard)), dtype=torch.float64)}


def byte_array(data: bytes) -> Tensor:
    """Bytes as an array, which engines carry."""
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)


# ---------------------------------------------------------------------- maps that methods share
def score(shard: Shard, blocks: B, v: Tensor) -> tuple[B, Sums]:
    """Σ f_j(v), Σ ∇f_j(v) and Σ ‖∇f_j(v)‖, a map over blocks."""
    return blocks, shard.programs(_score_point, shard, v)


def _score_point(shard: Shard, v: Tensor) -> dict[str, Tensor]:
    point = shard.linearize(shard.expand(v))
    return _summed(point.value, point.grad, shard.slopes(point.grad))


def scores(shard: Shard, point: Point) -> dict[str, Tensor]:
    """The summands of `score` from a linearization that has them."""
    return shard.programs(_summed, point.value, point.grad, shard.slopes(point.grad))


def _summed(value: Tensor, grad: Tensor, seen: Tensor) -> dict[str, Tensor]:
    norms = seen.flatten(1).double().norm(dim=1)
    return {"f": sum_blocks(value), "G": sum_blocks(grad), "norms": sum_blocks(norms)}


def failed_blocks(state: State, reduce: Reduce) -> tuple[int, ...]:
    """Which blocks missed their inner tolerance; only called when some did."""
    if state.shared.inner_failures == 0:
        return ()
    flags = reduce.gather(_failed_flags, state.blocks)
    return tuple(int(j) for j in flags.nonzero().flatten())


def _failed_flags(shard: Shard, blocks: Blocks) -> Tensor:
    return blocks.failed
