"""An engine: blocks in several shards, each computed by a thread of its own."""

from concurrent.futures import ThreadPoolExecutor

import torch

import auqadmm as aq


class Threads(aq.engines.Local):
    def place(self, problem, dtype, device):
        return Opened(aq.engines.shards_of(problem, 3, dtype, device))


class Opened(aq.engines.LocalEngine):
    def __init__(self, shards):
        self.shards, self.census, self.names = shards, shards[0].census, shards[0].census.names

    def mapped(self, fn, blocks, *shared):
        parts = [None] * len(self.shards) if blocks is None else blocks
        with ThreadPoolExecutor(len(parts)) as pool:
            return list(pool.map(lambda shard, part: fn(shard, part, *shared), self.shards, parts))

    def map_sum(self, fn, blocks, shared):
        new, sums = zip(*self.mapped(fn, blocks, shared), strict=True)
        return None if new[0] is None else new, {k: sum(s[k].double() for s in sums) for k in sums[0]}

    def map_minmax(self, fn, blocks, shared):
        new, found = zip(*self.mapped(fn, blocks, shared), strict=True)
        ends = {k: torch.stack([f[k] for f in found]) for k in found[0]}
        return new, {k: torch.stack([x[:, 0].amin(0), x[:, 1].amax(0)]) for k, x in ends.items()}

    def map_concat(self, fn, blocks):
        parts = self.mapped(fn, blocks)
        return {k: torch.cat([p[k] for p in parts]) for k in parts[0]}

    def gather(self, fn, blocks):
        return torch.cat(self.mapped(fn, blocks))

    def peek(self, fn, blocks):
        return self.mapped(fn, blocks)[0]

    def scatter(self, x):
        return x.to(self.shards[0].dtype).split([shard.blocks for shard in self.shards])

    def close(self, error=None):
        for shard in self.shards:
            shard.close()
