"""Maps over blocks over the blocks in other columns (`Shard.enter`), through the same engine and the same counters.

A shard stores the blocks in such columns too; messages only say to use them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic

from torch import Tensor

from auqadmm.columns.frame import Frame
from auqadmm.core.reduce import A, B, Engine, MapFn, Reduce, S, Sums, Traffic

if TYPE_CHECKING:
    from auqadmm.blocks.shard import Shard


@dataclass(frozen=True)
class EnterFrame:
    """A map over blocks: store them in the columns of a frame, too, for this run; None: drop them."""

    frame: Frame | None
    run: str

    def __call__(self, shard: Shard, blocks: B, shared: object) -> tuple[B, Sums]:
        if self.frame is None:
            shard.leave()
        else:
            shard.enter(self.frame, self.run)
        return blocks, {}


@dataclass(frozen=True)
class InFrame(Generic[A]):
    """`fn` of the blocks in the columns that this run entered; else of the original blocks."""

    fn: Callable[..., A]
    run: str

    def __call__(self, shard: Shard, *rest: object) -> A:
        return self.fn(shard.inner(self.run), *rest)


class InnerEngine:
    """An engine whose functions work in inner columns."""

    def __init__(self, engine: Engine, run: str) -> None:
        self.engine, self.run = engine, run

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def map_sum(self, fn: MapFn[B, S, A], blocks: B, shared: S) -> tuple[A, Sums]:
        return self.engine.map_sum(InFrame(fn, self.run), blocks, shared)

    def map_minmax(self, fn: MapFn[B, S, A], blocks: B, shared: S) -> tuple[A, Sums]:
        return self.engine.map_minmax(InFrame(fn, self.run), blocks, shared)

    def map_concat(self, fn: Callable[[Shard, B], Sums], blocks: B) -> Sums:
        return self.engine.map_concat(InFrame(fn, self.run), blocks)

    def gather(self, fn: Callable[[Shard, B], Tensor], blocks: B) -> Tensor:
        return self.engine.gather(InFrame(fn, self.run), blocks)

    def peek(self, fn: Callable[[Shard, B], A], blocks: B) -> A:
        return self.engine.peek(InFrame(fn, self.run), blocks)


class InnerReduce(Reduce):
    """`reduce` with functions that work in inner columns; it counts the traffic."""

    def __init__(self, reduce: Reduce, run: str) -> None:
        self.outer, self.known = reduce, {}
        self.engine: Any = InnerEngine(reduce.engine, run)

    @property
    def traffic(self) -> Traffic:
        return self.outer.traffic

    @traffic.setter
    def traffic(self, traffic: Traffic) -> None:
        self.outer.traffic = traffic
