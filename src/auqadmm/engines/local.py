"""All blocks in this process: every primitive is a single call.

`shards_of` cuts a problem into several shards of one process: for engines without processes of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from auqadmm.blocks.shard import Shard
from auqadmm.core.reduce import MapFn
from auqadmm.problem import Problem

T = TypeVar("T")


@dataclass(frozen=True)
class Local:
    """All blocks in this process.

    Examples
    --------
    >>> import numpy as np
    >>> import auqadmm as aq
    >>> X, y = np.array([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0], [2.0, 1.0]]), np.array([1.0, 2.0, 3.0, 6.0])
    >>> problem = aq.Problem(aq.LeastSquares(), aq.L2(1.0), [(X[:2], y[:2]), (X[2:], y[2:])])
    >>> aq.solve(problem, engine=aq.engines.Local()).coef.round(1)
    array([2., 1.])
    """

    def place(self, problem: Problem, dtype: torch.dtype, device: torch.device) -> LocalEngine:
        return LocalEngine(problem.placed().shard(dtype, device))


class LocalEngine:
    """One shard with all blocks.

    Parameters
    ----------
    shard
        Of this process.

    Examples
    --------
    >>> import torch
    >>> import auqadmm as aq
    >>> problem = aq.Problem(aq.LeastSquares(), aq.L2(1.0), [([[1.0]], [2.0]), ([[3.0]], [6.0])])
    >>> aq.engines.Local().place(problem, torch.float64, torch.device("cpu")).names
    ('block 0', 'block 1')
    """

    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self.names = shard.names
        self.census = shard.census

    def map_sum(self, fn: MapFn, blocks: object, shared: object) -> tuple[Any, dict[str, Tensor]]:
        return fn(self.shard, blocks, shared)

    map_minmax = map_sum

    def map_concat(self, fn: Callable[[Any, Any], dict[str, Tensor]], blocks: object) -> dict[str, Tensor]:
        return fn(self.shard, blocks)

    def gather(self, fn: Callable[[Any, Any], Tensor], blocks: object) -> Tensor:
        return fn(self.shard, blocks)

    def peek(self, fn: Callable[[Any, Any], T], blocks: object) -> T:
        return fn(self.shard, blocks)

    def scatter(self, x: Tensor) -> Tensor:
        return x.to(self.shard.device, self.shard.dtype)

    def agreed(self, number: float) -> float:
        return number

    def first(self, work: Callable[[], bytes]) -> bytes:
        return work()

    def same(self, settings: Mapping[str, object]) -> None:
        return None

    def close(self, error: BaseException | None = None) -> None:
        self.shard.close()


def shards_of(problem: Problem, count: int, dtype: torch.dtype, device: torch.device) -> list[Shard]:
    """Consecutive blocks dealt out to `count` shards; a shard without blocks is left out.

    Parameters
    ----------
    problem
        Blocks that are made by a function `blocks(rank, world)` are made as for `count` processes.
    count
        How many shards, at most.
    dtype, device
        Of the shards.

    Returns
    -------
    list of shards
        In the order of the blocks; every one knows the census of all.

    Examples
    --------
    >>> import torch
    >>> import auqadmm as aq
    >>> problem = aq.Problem(aq.LeastSquares(), aq.L2(1.0), [([[1.0]], [1.0]), ([[2.0]], [1.0]), ([[3.0]], [1.0])])
    >>> [shard.names for shard in aq.engines.shards_of(problem, 2, torch.float64, torch.device("cpu"))]
    [('block 0',), ('block 1', 'block 2')]
    """
    if not callable(problem.blocks):
        blocks = problem.blocks
        cuts = [len(blocks) * r // count for r in range(count + 1)]
        problem = problem.elsewhere(lambda rank, world: blocks[cuts[rank] : cuts[rank + 1]])
    made = [problem.made(rank, count) for rank in range(count)]
    firsts = [sum(n for _, n in made[:rank]) for rank in range(count)]
    read = [problem.read(blocks, first) for (blocks, _), first in zip(made, firsts, strict=True)]
    tallies = [tally for _, tally in read]
    filled = [(checked, first) for (checked, _), first in zip(read, firsts, strict=True) if checked[0]]
    return [problem.settled(checked, tallies, first).shard(dtype, device) for checked, first in filled]
