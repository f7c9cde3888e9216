"""The columns of Anderson acceleration that a block keeps (S12), in pieces of a few.

States are frozen, and the last one lives while the next is made: with all columns in one array a new column would copy
them all, and twice as many would be held. So it copies its own piece only; the others are shared by both states.

Shapes: B blocks, m features, C columns of the unknown, k ≤ PIECE columns of memory in a piece, q in all;
x and new columns (B, m, C), pieces (B, k, m, C).
"""

from __future__ import annotations

import torch
from torch import Tensor

from auqadmm.metrics.weights import sum_blocks

PIECE = 8

Columns = tuple[Tensor, ...]


def append(columns: Columns, new: Tensor) -> Columns:
    """One column more, the newest last."""
    new = new[:, None]
    if columns and columns[-1].shape[1] < PIECE:
        return (*columns[:-1], torch.cat([columns[-1], new], 1))
    return (*columns, new)


def latest(columns: Columns, most: int) -> Columns:
    """The newest, after one more than `most` at most."""
    if sum(piece.shape[1] for piece in columns) <= most:
        return columns
    first, *others = columns
    return (first[:, 1:], *others) if first.shape[1] > 1 else tuple(others)


def inner(columns: Columns, x: Tensor) -> Tensor:
    """⟨column_i, x⟩ over all blocks here, (q,) in float64."""
    rows = x.flatten(1)[:, None]  # vectors as rows: BLAS is slower with columns
    return sum_blocks(torch.cat([rows @ piece.flatten(2).mT for piece in columns], 2)[:, 0])


def combined(columns: Columns, gamma: Tensor) -> Tensor:
    """Σ_i γ_i column_i, (B, m, C)."""
    parts = gamma.to(columns[0]).split([piece.shape[1] for piece in columns])
    out = torch.zeros_like(columns[0][:, :1].flatten(2))
    for piece, part in zip(columns, parts, strict=True):
        out = torch.baddbmm(out, part.expand(len(piece), 1, -1), piece.flatten(2))
    return out.reshape(columns[0][:, 0].shape)
