"""A shard in the columns of a frame (columns.py): x̃ = (x − μ)/s.

Dense blocks are copied once, computed in double precision. Sparse ones stay sparse: their entries are divided by s, and
μ/s is subtracted in the products (`SparsePiece.shift`).

Shapes: b blocks of n rows, m features; X (b, n, m), centre and scale (m,).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from auqadmm.blocks.design import DensePiece, Design, Piece
from auqadmm.blocks.sparse import SparsePiece, with_values

if TYPE_CHECKING:
    from auqadmm.blocks.shard import Shard
    from auqadmm.columns import Frame


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
