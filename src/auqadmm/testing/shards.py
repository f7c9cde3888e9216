"""Blocks in several shards of one process: like other engines, but without processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from auqadmm.blocks.shard import Shard
from auqadmm.core.reduce import A, B, MapFn, S, Sums
from auqadmm.engines.local import shards_of
from auqadmm.problem import Problem


@dataclass(frozen=True)
class Shards:
    """An engine that splits consecutive blocks among `count` shards, one after the other in this process."""

    count: int = 2

    def place(self, problem: Problem, dtype: torch.dtype, device: torch.device) -> ShardsEngine:
        return ShardsEngine(shards_of(problem, self.count, dtype, device))


class ShardsEngine:
    """The state of blocks is one per shard; None where no shard has any."""

    def __init__(self, shards: list[Shard]) -> None:
        self.shards = shards
        self.census = shards[0].census
        self.names = self.census.names

    def map_sum(self, fn: MapFn[B, S, A], blocks: B, shared: S) -> tuple[A, Sums]:
        new, parts = self._mapped(fn, blocks, shared)
        return new, {name: sum((p[name].double() for p in parts[1:]), x.double()) for name, x in parts[0].items()}

    def map_minmax(self, fn: MapFn[B, S, A], blocks: B, shared: S) -> tuple[A, Sums]:
        new, parts = self._mapped(fn, blocks, shared)
        stacked = {name: torch.stack([p[name].double() for p in parts]) for name in parts[0]}
        return new, {name: torch.stack([x[:, 0].amin(0), x[:, 1].amax(0)]) for name, x in stacked.items()}

    def map_concat(self, fn: Callable[[Shard, B], Sums], blocks: B) -> Sums:
        parts = [fn(shard, part) for shard, part in self._both(blocks)]
        return {name: torch.cat([p[name] for p in parts]) for name in parts[0]}

    def gather(self, fn: Callable[[Shard, B], Tensor], blocks: B) -> Tensor:
        return torch.cat([fn(shard, part) for shard, part in self._both(blocks)])

    def peek(self, fn: Callable[[Shard, B], A], blocks: B) -> A:
        return fn(*self._both(blocks)[0])

    def scatter(self, x: Tensor) -> list[Tensor]:
        return [part.to(self.shards[0].dtype) for part in x.split([shard.blocks for shard in self.shards])]

    def agreed(self, number: float) -> float:
        return number

    def same(self, settings: Mapping[str, object]) -> None:
        return None

    def first(self, work: Callable[[], bytes]) -> bytes:
        return work()

    def close(self, error: BaseException | None = None) -> None:
        for shard in self.shards:
            shard.close()

    def _both(self, blocks: Any) -> list[tuple[Shard, Any]]:
        return list(zip(self.shards, [None] * len(self.shards) if blocks is None else blocks, strict=True))

    def _mapped(self, fn: MapFn, blocks: Any, shared: Any) -> tuple[Any, list[dict[str, Tensor]]]:
        answers = [fn(shard, part, shared) for shard, part in self._both(blocks)]
        new = [part for part, _ in answers]
        return None if all(part is None for part in new) else new, [sums for _, sums in answers]
