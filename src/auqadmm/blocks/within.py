"""Rows of every block less the mean of that block, for losses that no shift of a block's rows changes.

    x̃_i = x_i − x̄_j,    x̄_j the weighted mean of block j

A loss with an intercept of its own in every block, or of ratios within a block, is the same in x̃, but digits do not
cancel: a column of mean 10⁴ and spread 1 keeps four more of them in logits, slopes and curvature.

Shapes: B blocks, R flat rows, m features; x̄ (B, m).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from auqadmm.blocks.design import DensePiece, Design, Piece, with_values

if TYPE_CHECKING:
    from auqadmm.blocks.shard import Shard


def within(shard: Shard) -> Shard:
    """The same blocks in double precision, dense ones centred; sparse ones stay as they are, to stay sparse."""
    design, weight = shard.design, shard.row_weight.double()
    pieces = tuple(_centred(p, c) for p, c in zip(design.pieces, design.split(weight), strict=True))
    target = shard.target if shard.target.dtype == torch.int64 else shard.target.double()
    offset = None if shard.offset is None else shard.offset.double()
    rows = Design(pieces, design.blocks, design.features)
    return replace(shard, design=rows, target=target, row_weight=weight, offset=offset)


def _centred(piece: Piece, c: Tensor) -> Piece:
    if not isinstance(piece, DensePiece):
        A, At = (with_values(x, x.values().double()) for x in (piece.A, piece.At))
        return replace(piece, A=A, At=At, shift=None if piece.shift is None else piece.shift.double())
    X, c = piece.X.double(), c.reshape(piece.X.shape[:2])
    total = c.sum(1).clamp(min=torch.finfo(c.dtype).tiny)  # no row counts: nothing to centre
    mean = torch.einsum("bn,bnm->bm", c, X) / total[:, None]
    return DensePiece(X - mean[:, None], piece.blocks)


def sizes(design: Design, u: Tensor) -> Tensor:
    """Σ_k |x_ik||u_k| of every row, (B, m, C) -> (R, C): rounding errors of logits are a few ε of them."""
    pieces: list[Piece] = []
    for piece in design.pieces:
        if isinstance(piece, DensePiece):
            pieces.append(DensePiece(piece.X.abs(), piece.blocks))
            continue
        A, At = (with_values(x, x.values().abs()) for x in (piece.A, piece.At))
        pieces.append(replace(piece, A=A, At=At, shift=None if piece.shift is None else -piece.shift.abs()))
    return Design(tuple(pieces), design.blocks, design.features).forward(u.abs())
