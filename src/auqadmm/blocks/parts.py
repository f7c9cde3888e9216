"""Shards made of a shard: some of its blocks, or all of them in the columns of a frame.

Some blocks are not copied where that can be avoided. Blocks of very different height are solved in *groups*, so that
many small ones do not wait for one huge one. And solved blocks *leave*: the others continue without them.

In a frame (columns.py), x̃ = (x − μ)/s, dense blocks are copied once, computed in double precision. Sparse ones stay
sparse: their entries are divided by s, and μ/s is subtracted in the products (`SparsePiece.shift`).

Shapes: B blocks, R flat rows; `blocks` (k,) positions among the B, `rows` (r,) positions among the R; b blocks of a
piece, n rows, m features; X (b, n, m), centre and scale (m,).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from auqadmm.blocks.design import DensePiece, Design, Piece, SparsePiece, with_values

if TYPE_CHECKING:
    from auqadmm.blocks.shard import Shard
    from auqadmm.columns import Frame

# neighbours in a piece are not copied: up to so many runs of them are multiplied one by one; more are copied together
RUNS = 4
# blocks whose heights differ by more than this factor do not wait for each other
APART = 8.0


@dataclass(frozen=True)
class Part:
    """Some blocks as a shard, and their positions in the whole, which has `of` blocks."""

    shard: Shard
    blocks: Tensor
    rows: Tensor
    of: int


def part(shard: Shard, keep: Sequence[int], copies: bool = True) -> Part | None:
    """The blocks `keep`, in ascending order; None where their data would have to be copied and must not be, or are
    sparse and not stored apart from others."""
    place = {j: i for i, j in enumerate(keep)}
    pieces: list[Piece] = []
    rows: list[Tensor] = []
    device, first = shard.device, 0
    for piece in shard.design.pieces:
        slots = [s for s, j in enumerate(piece.blocks.tolist()) if j in place]
        positions = [place[j] for j in piece.blocks.tolist() if j in place]
        if isinstance(piece, SparsePiece):
            if slots and len(slots) < len(piece.blocks):
                return None
            if slots:
                pieces.append(replace(piece, blocks=torch.tensor(positions, device=device)))
                rows.append(torch.arange(first, first + piece.rows, device=device))
        elif slots:
            neighbours = runs(slots)
            if len(neighbours) > RUNS and not copies:
                return None
            groups = (
                [slice(a, b) for a, b in neighbours]
                if len(neighbours) <= RUNS
                else [torch.tensor(slots, device=device)]
            )
            numbers = torch.tensor(positions, device=device)
            height = piece.X.shape[1]
            flat = torch.arange(first, first + piece.rows, device=device).reshape(len(piece.blocks), height)
            done = 0
            for group in groups:
                X = piece.X[group]
                pieces.append(DensePiece(X, numbers[done : done + len(X)]))
                if "single_precision" in vars(piece):
                    vars(pieces[-1])["single_precision"] = piece.single_precision[group]
                rows.append(flat[group].flatten())
                done += len(X)
        first += piece.rows
    where = torch.cat(rows)
    some = replace(
        shard,
        design=Design(tuple(pieces), len(keep), shard.design.features),
        target=shard.target[where],
        row_weight=shard.row_weight[where],
        offset=None if shard.offset is None else shard.offset[where],
        index=tuple(shard.index[j] for j in keep),
        names=tuple(shard.names[j] for j in keep),
    )
    if "squares" in shard.design.cache:
        some.design.cache["squares"] = shard.design.cache["squares"][where]
    where_to = torch.tensor(list(keep), device=device)
    if "single_precision" in vars(shard):
        vars(some)["single_precision"] = shard.single_precision
    if "coarse" in vars(shard.design):
        coarse = shard.design.coarse
        vars(some.design)["coarse"] = None if coarse is None else coarse[where_to]
    return Part(some, where_to, where, shard.blocks)


def groups(shard: Shard) -> tuple[Part, ...]:
    """Dense blocks by height, each group within a factor `APART`; none where one group would have them all."""
    if not shard.design.dense or len(shard.design.pieces) < 2:
        return ()
    by_height: list[list[int]] = []
    tallest = 0.0
    for piece in sorted(shard.design.pieces, key=lambda p: -p.rows / len(p.blocks)):
        height = piece.rows / len(piece.blocks)
        if not by_height or tallest > APART * max(height, 1.0):
            by_height.append([])
            tallest = height
        by_height[-1] += piece.blocks.tolist()
    if len(by_height) == 1:
        return ()
    parts = [part(shard, sorted(blocks)) for blocks in by_height]
    return tuple(p for p in parts if p is not None)


def runs(slots: list[int]) -> list[tuple[int, int]]:
    """Neighbours: [first, last + 1) of each run."""
    out: list[tuple[int, int]] = []
    for s in slots:
        if out and out[-1][1] == s:
            out[-1] = (out[-1][0], s + 1)
        else:
            out.append((s, s + 1))
    return out


def framed(shard: Shard, frame: Frame) -> Shard:
    """The same blocks in the columns of the frame."""
    design = shard.design
    pieces = tuple(_piece(piece, frame) for piece in design.pieces)
    return replace(shard, design=Design(pieces, design.blocks, design.features), frame=frame)


def _piece(piece: Piece, frame: Frame) -> Piece:
    if isinstance(piece, SparsePiece):
        return _sparse(piece, frame)
    scale, X = frame.scale.to(piece.X.device), torch.empty_like(piece.X)
    centre = None if frame.centre is None else frame.centre.to(scale)
    for slot, block in enumerate(piece.X):  # one block at a time: float64 copies are larger
        whole = block.double()
        X[slot] = (whole if centre is None else whole - centre) / scale
    return DensePiece(X, piece.blocks)


def _sparse(piece: SparsePiece, frame: Frame) -> SparsePiece:
    dtype, b = piece.A.dtype, len(piece.blocks)
    scale = frame.scale.to(piece.A.device).repeat(b)
    shift = None if frame.centre is None else (frame.centre / frame.scale).to(piece.A.device, dtype)
    A, At = piece.A, piece.At
    by_column = A.values().double() / scale[A.col_indices().long()]
    rows = torch.arange(At.shape[0], device=scale.device).repeat_interleave(At.crow_indices().diff())
    by_row = At.values().double() / scale[rows]
    return replace(piece, A=with_values(A, by_column.to(dtype)), At=with_values(At, by_row.to(dtype)), shift=shift)
