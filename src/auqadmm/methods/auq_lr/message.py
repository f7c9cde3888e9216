"""How the blocks of AUQ-LR send their weights, and how the server assembles them (S12).

Blocks may keep different numbers of directions r_j, so parts are sent row after row, in the order of the blocks:

    first and only once   r_j and the r_j directions of m numbers
    whenever renewed      the upper triangles of M_j (where classes are coupled, of U_jᵀA_abU_j for every pair of them)
                          and S_j, d_j, φ_j

Shapes: B local blocks, N in all, r the most directions of any block; rows (Σ_j r_j, m), triangles (Σ_j r_j(r_j+1)/2,).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from auqadmm.core.state import Blocks
from auqadmm.metrics.coupled import Coupled, from_pairs, sum_over_pairs, to_pairs
from auqadmm.metrics.lowrank import Basis, LowRank, pieces

if TYPE_CHECKING:
    from auqadmm.blocks.shard import Shard


def first_parts(shard: Shard, blocks: Blocks) -> dict[str, Tensor]:
    W: LowRank = blocks.W
    used = _used(W.U)
    return {"rank": used.sum(1).double(), "rows": W.U.mT[used].double(), **next_parts(shard, blocks)}


def next_parts(shard: Shard, blocks: Blocks) -> dict[str, Tensor]:
    W: LowRank = blocks.W
    name, squares = ("pairs", to_pairs(W)) if isinstance(W, Coupled) else ("M", W.M[:, None])
    i, j = _triangle(W.S)
    parts = {name: _sent(W.U, squares), "d": W.d, "S": W.S[:, i, j], "phi": W.phi}
    return {name: x.double() for name, x in parts.items()}


def directions(parts: Mapping[str, Tensor]) -> Tensor:
    """U (N, m, r); unused columns of a block are zero."""
    rank, rows = parts["rank"], parts["rows"]
    N, r = len(rank), int(rank.max()) if len(rank) else 0
    used = torch.arange(r, device=rank.device)[None] < rank[:, None]
    U = rows.new_zeros(N, r, rows.shape[1])
    U[used] = rows
    return U.mT.contiguous()


def unpacked(U: Tensor, parts: Mapping[str, Tensor], columns: int, F: Basis) -> LowRank:
    """The weights of all blocks."""
    S = parts["S"]
    C = (math.isqrt(1 + 8 * S.shape[1]) - 1) // 2
    k, l = _triangle(S.new_zeros(1, C, C))
    full = S.new_zeros(len(S), C, C)
    full[:, k, l] = S
    joint = columns != C  # the flattened unknown has one column whatever C is
    rest = parts["d"], _symmetric(full), parts["phi"], None if joint else F
    if "pairs" in parts:
        return _coupled(U, parts["pairs"], C, *rest)
    return LowRank(U, _squares(U, parts["M"], 1)[:, 0], *rest, joint, columns if joint else 1)


def _coupled(U: Tensor, sent: Tensor, C: int, *rest: Any) -> Coupled:
    """In chunks of blocks: pairs are as large as H itself."""
    pairs, r = C * (C - 1) // 2, U.shape[2]
    M, H = U.new_empty(len(U), r, r), U.new_empty(len(U), r * C, r * C)
    used = _used(U).sum(1)
    ends = [0, *(pairs * (used * (used + 1) // 2).cumsum(0)).tolist()]
    for some in pieces(len(U), H[0].numel()):
        squares = _squares(U[some], sent[ends[some.start] : ends[some.stop]], pairs)
        M[some], H[some] = sum_over_pairs(squares), from_pairs(squares, C)
    return Coupled(U, M, *rest, H=H)


def _sent(U: Tensor, squares: Tensor) -> Tensor:
    """Of the upper triangles of (B, count, r, r), the entries of two directions in use, flat."""
    i, j = _triangle(squares)
    triangles = squares[..., i, j]
    return triangles[_both(U, squares).expand_as(triangles)]


def _squares(U: Tensor, sent: Tensor, count: int) -> Tensor:
    """(N, count, r, r) from the upper triangles of the directions in use."""
    square = U.new_zeros(len(U), count, U.shape[2], U.shape[2])
    i, j = _triangle(square)
    triangles = square.new_zeros(len(U), count, len(i))
    square[..., i, j] = triangles.masked_scatter_(_both(U, square).expand_as(triangles), sent)
    return _symmetric(square)


def _both(U: Tensor, like: Tensor) -> Tensor:
    """Which entries of an upper triangle belong to two directions in use, (B, 1, k)."""
    used = _used(U)
    i, j = _triangle(like)
    return (used[:, i] & used[:, j])[:, None]


def _used(U: Tensor) -> Tensor:
    """Which columns of U (B, m, r) are directions, (B, r)."""
    return (U != 0).any(1)


def _triangle(M: Tensor) -> Tensor:
    """Positions (2, k) of the upper triangle of M (…, n, n)."""
    return torch.triu_indices(M.shape[-1], M.shape[-1], device=M.device)


def _symmetric(upper: Tensor) -> Tensor:
    return upper + upper.triu(1).mT
