"""Symmetric matrices as their upper triangles: each pair of entries is sent once.

Shapes: g matrices of p rows; full (g, p, p), packed (g, p(p + 1)/2).
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

TRIANGLE_ROWS = 128  # rows of a square that fit into a cache


def pack(H: Tensor) -> Tensor:
    """(g, p, p) -> (g, p(p + 1)/2)."""
    p = H.shape[-1]
    if H.device.type == "cpu":
        full = H.detach().numpy()
        upper = np.empty((len(full), p * (p + 1) // 2), dtype=full.dtype)
        for first, i in zip(_starts(p), range(p), strict=True):
            upper[:, first : first + p - i] = full[:, i, i:]
        return torch.from_numpy(upper)
    i, j = torch.triu_indices(p, p, device=H.device)
    return H[:, i, j]


def unpack(upper: Tensor) -> Tensor:
    """The symmetric matrices whose upper triangles these are."""
    p = (math.isqrt(8 * upper.shape[-1] + 1) - 1) // 2
    H = upper.new_empty(upper.shape[0], p, p)
    if upper.device.type != "cpu":
        i, j = torch.triu_indices(p, p, device=upper.device)
        H[:, i, j] = upper
        H[:, j, i] = upper
        return H
    full, packed = H.numpy(), upper.detach().numpy()
    for first, i in zip(_starts(p), range(p), strict=True):
        full[:, i, i:] = packed[:, first : first + p - i]
    for first in range(0, p, TRIANGLE_ROWS):  # a transpose of the whole would miss the cache at every entry
        some = slice(first, first + TRIANGLE_ROWS)
        H[:, some, :first] = H[:, :first, some].mT
        square = H[:, some, some]
        square.copy_(square.triu() + square.triu(1).mT)
    return H


def _starts(p: int) -> list[int]:
    """Where the rows of a triangle begin."""
    return [i * p - i * (i - 1) // 2 for i in range(p)]
