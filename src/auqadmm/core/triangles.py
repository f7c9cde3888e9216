"""Symmetric matrices as their upper triangles: each pair of entries is sent once.

Shapes: g matrices of p rows; full (g, p, p), packed (g, p(p + 1)/2).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def packed(H: Tensor) -> Tensor:
    """(g, p, p) -> (g, p(p + 1)/2)."""
    i, j = torch.triu_indices(H.shape[-1], H.shape[-1], device=H.device)
    return H[:, i, j]


def unpacked(upper: Tensor) -> Tensor:
    """The symmetric matrices whose upper triangles these are."""
    p = (math.isqrt(8 * upper.shape[-1] + 1) - 1) // 2
    i, j = torch.triu_indices(p, p, device=upper.device)
    H = upper.new_zeros(upper.shape[0], p, p)
    H[:, i, j] = upper
    H[:, j, i] = upper
    return H
