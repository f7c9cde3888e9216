"""Which rows are held out: folds of the rows of every site, or one site after the other.

A row's fold depends on the seed, the number of its block and the rows there, on nothing else: folds are the same on
every engine, and no list of rows travels.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from auqadmm.blocks.shard import RawBlock
from auqadmm.errors import InputError


@dataclass(frozen=True)
class Folds:
    """`count` folds of the rows of each site, or with `sites` every one of `count` sites a fold."""

    count: int
    sites: bool = False
    seed: int = 0

    @classmethod
    def of(cls, cv: int | str, seed: int, blocks: int) -> Folds:
        """From what the user asked for."""
        if cv == "sites":
            if blocks < 2:
                raise InputError("cv='sites' leaves one site out after the other, and there is only one.")
            return cls(blocks, sites=True)
        if isinstance(cv, bool) or not isinstance(cv, int | np.integer) or cv < 2:
            raise InputError(f"cv must be 'sites' or a number of folds, at least 2; got {cv!r}.")
        if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
            raise InputError(f"seed must be a whole number, at least 0; got {seed!r}.")
        return cls(int(cv), seed=int(seed))

    def of_block(self, number: int, rows: int) -> np.ndarray:
        """The fold of every row of a block, (rows,): of sizes that differ by one at most."""
        if self.sites:
            return np.full(rows, number)
        rng = np.random.default_rng([self.seed, number])
        first = int(rng.integers(self.count))  # so that small sites do not all lack the last folds
        return rng.permutation((np.arange(rows) + first) % self.count)

    @property
    def words(self) -> str:
        return "leaving one site out" if self.sites else f"{self.count} folds of the rows of each site"


@dataclass(frozen=True)
class Training:
    """The rows of a block that are not in a fold: what `Problem.keeping` takes."""

    folds: Folds
    fold: int

    def __call__(self, number: int, block: RawBlock) -> RawBlock:
        rows = np.flatnonzero(self.folds.of_block(number, block.rows) != self.fold)
        offset = None if block.offset is None else block.offset[rows]
        return replace(block, X=block.X[rows], y=block.y[rows], weight=block.weight[rows], offset=offset)
