"""Rows block by block, dense, in double precision: for sums that are needed of every block.

Shapes: r rows of a chunk, m features (the intercept's ones last); centre (m,).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from auqadmm.blocks.design import DensePiece
from auqadmm.blocks.exact_rows import DenseRows, centred
from auqadmm.blocks.sparse import SparsePiece

if TYPE_CHECKING:
    from auqadmm.blocks.shard import Shard

SITE_CHUNK = 2**22  # numbers of a chunk of rows


@dataclass(frozen=True, eq=False)
class BlockRows:
    """The rows of every block of a shard, without padding, centred at μ (m,), or not at all (None)."""

    shard: Shard
    centre: Tensor | None = None

    @cached_property
    def _places(self) -> dict[int, tuple[int, int, int]]:
        """Of every block: its piece, its place there, and its first flat row."""
        out, first = {}, 0
        for number, piece in enumerate(self.shard.design.pieces):
            heights = piece.heights.tolist() if isinstance(piece, SparsePiece) else [piece.X.shape[1]] * len(piece.X)
            for slot, (j, height) in enumerate(zip(piece.blocks.tolist(), heights, strict=True)):
                out[j] = (number, slot, first)
                first += height
        return out

    def where(self, j: int) -> slice:
        """The flat rows of block j."""
        first = self._places[j][2]
        return slice(first, first + self.shard.rows[j])

    def chunks(self, j: int, shift: Tensor | None = None) -> Iterator[tuple[slice, DenseRows]]:
        """The rows of block j, less `shift` (m,) where given, with their flat positions."""
        shard, whole = self.shard, self.where(j)
        m = shard.design.features
        step = max(1, SITE_CHUNK // m)
        for first in range(whole.start, whole.stop, step):
            some = slice(first, min(first + step, whole.stop))
            A = centred(centred(self._dense(j, some, m), self.centre), shift)
            y, o = shard.target[some], shard.offset
            yield (
                some,
                DenseRows(A, y.double(), shard.row_weight[some].double(), None if o is None else o[some].double()),
            )

    def _dense(self, j: int, some: slice, m: int) -> Tensor:
        number, slot, begin = self._places[j]
        piece = self.shard.design.pieces[number]
        if isinstance(piece, DensePiece):
            return piece.X[slot, some.start - begin : some.stop - begin].double()
        start = sum(p.rows for p in self.shard.design.pieces[:number])
        crow = piece.A.crow_indices()[some.start - start : some.stop - start + 1].long()
        entries = slice(int(crow[0]), int(crow[-1]))
        row = torch.arange(some.stop - some.start, device=crow.device).repeat_interleave(crow.diff())
        A = torch.zeros(some.stop - some.start, m, dtype=torch.float64, device=crow.device)
        A[row, piece.A.col_indices()[entries].long() % m] = piece.A.values()[entries].double()
        return A
