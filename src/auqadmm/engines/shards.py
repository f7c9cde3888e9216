"""The blocks of a problem as several shards of one process: what an engine that needs no processes begins with."""

from __future__ import annotations

import torch

from auqadmm.blocks.shard import Shard
from auqadmm.problem import Problem


def shards_of(problem: Problem, count: int, dtype: torch.dtype, device: torch.device) -> list[Shard]:
    """Consecutive blocks dealt out to `count` shards; a shard without blocks is left out.

    Parameters
    ----------
    problem
        Blocks that are made by a function `blocks(rank, world)` are asked for as by `count` processes.
    count
        How many shards, at most.
    dtype, device
        Of the shards.

    Returns
    -------
    list of shards, in the order of the blocks; every one knows the census of all.
    """
    if not callable(problem.blocks):
        blocks = problem.blocks
        cuts = [len(blocks) * r // count for r in range(count + 1)]
        problem = problem.elsewhere(lambda rank, world: blocks[cuts[rank] : cuts[rank + 1]])
    made = [problem.made(rank, count) for rank in range(count)]
    firsts = [sum(n for _, n in made[:rank]) for rank in range(count)]
    read = [problem.read(blocks, first) for (blocks, _), first in zip(made, firsts, strict=True)]
    tallies = [tally for _, tally in read]
    held = [(checked, first) for (checked, _), first in zip(read, firsts, strict=True) if checked[0]]
    return [problem.settled(checked, tallies, first).shard(dtype, device) for checked, first in held]
