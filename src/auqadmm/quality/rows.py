"""The rows of every block at the model, or each at the model that was fitted without it: folds.

Held out are folds of the rows of every site, or one site after the other. A row's fold depends on the seed,
the number of its block and the rows there, on nothing else: folds are the same on every engine, and no list of rows
travels.

Shapes: F models (one, or one per fold), m features (the intercept's ones last), C columns, r rows of a block, R flat
rows of a shard; v (F, m, C), centre (m,), z (r, C), y, c and o (r,).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from auqadmm.blocks.exact_rows import BlockRows, with_offset
from auqadmm.blocks.shard import RawBlock
from auqadmm.errors import InputError
from auqadmm.problem.made_of_losses import SiteIntercepts, best_intercepts, loss_of_rows, one_sided

if TYPE_CHECKING:
    from auqadmm.blocks.shard import Shard


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


@dataclass(frozen=True, eq=False)
class Scored:
    """The rows of one block: targets, sample weights, logits (offsets and intercepts included), and offsets."""

    y: Tensor
    c: Tensor
    z: Tensor
    o: Tensor | None = None

    @cached_property
    def linear(self) -> Tensor:
        """x·u + b of one column, (r,)."""
        return self.z[:, 0] if self.o is None else self.z[:, 0] - self.o


@dataclass(frozen=True)
class Models:
    """Models v in columns centred at `centre` (None: the problem's own); with folds, v[k] was fitted without fold k."""

    v: Tensor
    centre: Tensor | None = None
    folds: Folds | None = None

    def scored(self, shard: Shard) -> Iterator[tuple[int, Scored]]:
        """One block after the other, by their number in the shard. Rows of sites whose own intercept is infinite have
        weight 0."""
        weights = sample_weights(shard)
        z = torch.zeros(shard.design.rows, shard.shape[2], dtype=torch.float64, device=shard.device)
        counted = torch.ones(shard.design.rows, dtype=torch.float64, device=shard.device)
        rows, fold = self._rows(shard), self._fold_of_rows(shard)
        for k, v in enumerate(self.v.to(shard.device)):
            at = self._logits(shard, rows, v)
            some = fold == k
            if isinstance(shard.loss, SiteIntercepts):
                training = shard if self.folds is None else _without(shard, some)
                inner, of_row = loss_of_rows(shard.loss), shard.design.block_of_row
                at = at + best_intercepts(inner, training, at)[of_row, None]
                counted = torch.where(some & one_sided(inner, training)[of_row], 0.0, counted)
            z = torch.where(some[:, None], at, z)
        for j in range(shard.blocks):
            of_block = rows.where(j)
            y, o = shard.target[of_block], shard.offset
            y = y if y.dtype == torch.int64 else y.double()
            c = weights[of_block] * counted[of_block]
            yield j, Scored(y, c, z[of_block], None if o is None else o[of_block].double())

    def _rows(self, shard: Shard) -> BlockRows:
        return BlockRows(shard, None if self.centre is None else self.centre.to(shard.device))

    def _fold_of_rows(self, shard: Shard) -> Tensor:
        """(R,); 0 without folds."""
        out = torch.zeros(shard.design.rows, dtype=torch.int64, device=shard.device)
        if self.folds is not None:
            rows = BlockRows(shard)
            for j, number in enumerate(shard.index):
                out[rows.where(j)] = torch.from_numpy(self.folds.of_block(number, shard.rows[j])).to(out)
        return out

    @staticmethod
    def _logits(shard: Shard, rows: BlockRows, v: Tensor) -> Tensor:
        z = torch.zeros(shard.design.rows, v.shape[1], dtype=torch.float64, device=shard.device)
        for j in range(shard.blocks):
            for some, part in rows.chunks(j):
                z[some] = with_offset(part, part.forward(v))
        return z


def _without(shard: Shard, held: Tensor) -> Shard:
    """The shard whose held-out rows (R,) have no weight, and no sums kept from before."""
    return replace(shard, row_weight=torch.where(held, 0.0, shard.row_weight), design=replace(shard.design))


def sample_weights(shard: Shard) -> Tensor:
    """Of flat rows, (R,): the weights of rows in the objective, less the scale of its reduction."""
    c, reduction = shard.row_weight.double(), shard.loss.reduction
    if not shard.weighted:
        return (c > 0).double()
    if reduction == "mean":
        raise InputError(
            "quality needs the weights of rows, which reduction='mean' divides by those of their block: use 'sum' or "
            "'pooled'."
        )
    return c if reduction == "sum" else c * shard.census.weight_total
