"""Symmetric matrices as their upper triangles: each pair of entries is sent once.

Shapes: g matrices of p rows; full (g, p, p), packed (g, p(p + 1)/2).
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

BLOCK = 128  # rows of a square that a cache holds


def packed(H: Tensor) -> Tensor:
    """(g, p, p) -> (g, p(p + 1)/2)."""
    p = H.shape[-1]
    if H.device.type == "cpu":
        return torch.from_numpy(H.detach().numpy()[:, _upper(p)])
    i, j = torch.triu_indices(p, p, device=H.device)
    return H[:, i, j]


def unpacked(upper: Tensor) -> Tensor:
    """The symmetric matrices whose upper triangles these are."""
    p = (math.isqrt(8 * upper.shape[-1] + 1) - 1) // 2
    H = upper.new_zeros(upper.shape[0], p, p)
    if upper.device.type != "cpu":
        i, j = torch.triu_indices(p, p, device=upper.device)
        H[:, i, j] = upper
        H[:, j, i] = upper
        return H
    H.numpy()[:, _upper(p)] = upper.detach().numpy()
    for first in range(0, p, BLOCK):  # a transpose as a whole would miss the cache with every number
        some = slice(first, first + BLOCK)
        H[:, some, :first] = H[:, :first, some].mT
        H[:, some, some] += H[:, some, some].triu(1).mT
    return H


def _upper(p: int) -> np.ndarray:
    return ~np.tri(p, p, -1, dtype=bool)
