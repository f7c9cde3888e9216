"""What the blocks of AUQ-LR send of their weights, and how the server puts it together (S12).

Blocks may keep different numbers of directions r_j, so parts are sent row after row, in the order of the blocks:

    first and only once   r_j and the r_j directions of m numbers
    whenever renewed      the upper triangles of M_j and S_j, d_j, φ_j

Shapes: B blocks here, N in all, r the most directions of any block; rows (Σ_j r_j, m), triangles (Σ_j r_j(r_j+1)/2,).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from auqadmm.core.basis import Basis
from auqadmm.core.lowrank import LowRank
from auqadmm.core.state import Blocks


def first_parts(shard: Any, blocks: Blocks) -> dict[str, Tensor]:
    W: LowRank = blocks.W
    used = _used(W.U)
    rows = W.U.mT[used].double()
    return {"rank": used.sum(1).double(), "rows": rows, **next_parts(shard, blocks)}


def next_parts(shard: Any, blocks: Blocks) -> dict[str, Tensor]:
    W: LowRank = blocks.W
    i, j = _triangle(W.M)
    used = _used(W.U)
    M = W.M[:, i, j][used[:, i] & used[:, j]]
    i, j = _triangle(W.S)
    parts = {"M": M, "d": W.d, "S": W.S[:, i, j], "phi": W.phi}
    return {name: x.double() for name, x in parts.items()}


def directions(parts: Mapping[str, Tensor]) -> Tensor:
    """U (N, m, r); the columns that a block does without are zero."""
    rank, rows = parts["rank"], parts["rows"]
    N, r = len(rank), int(rank.max()) if len(rank) else 0
    used = torch.arange(r, device=rank.device)[None] < rank[:, None]
    U = rows.new_zeros(N, r, rows.shape[1])
    U[used] = rows
    return U.mT.contiguous()


def unpacked(U: Tensor, parts: Mapping[str, Tensor], columns: int, F: Basis) -> LowRank:
    """The weights of all blocks."""
    M = U.new_zeros(len(U), U.shape[2], U.shape[2])
    i, j = _triangle(M)
    used = _used(U)
    M[:, i, j] = _filled(M[:, i, j], used[:, i] & used[:, j], parts["M"])
    S = parts["S"]
    C = (math.isqrt(1 + 8 * S.shape[1]) - 1) // 2
    k, l = _triangle(S.new_zeros(1, C, C))
    full = S.new_zeros(len(S), C, C)
    full[:, k, l] = S
    joint = columns != C  # the flattened unknown has one column whatever C is
    inside = columns if joint else 1
    return LowRank(U, _symmetric(M), parts["d"], _symmetric(full), parts["phi"], None if joint else F, joint, inside)


def _used(U: Tensor) -> Tensor:
    """Which columns of U (B, m, r) are directions, (B, r)."""
    return (U != 0).any(1)


def _triangle(M: Tensor) -> Tensor:
    """Positions (2, k) of the upper triangle of M (B, n, n)."""
    return torch.triu_indices(M.shape[-1], M.shape[-1], device=M.device)


def _filled(x: Tensor, where: Tensor, values: Tensor) -> Tensor:
    out = x.clone()
    out[where] = values
    return out


def _symmetric(upper: Tensor) -> Tensor:
    return upper + upper.triu(1).mT
