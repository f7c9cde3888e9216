"""Sums of products as if computed in twice the precision: error-free products and additions.

Reference: T. Ogita, S. M. Rump, S. Oishi, Accurate sum and dot product, SIAM J. Sci. Comput. 26 (2005).

Shapes: n terms, m factors, C columns.
"""

from __future__ import annotations

import math
from contextlib import suppress

import torch
from torch import Tensor

SPLIT = 134217729.0  # 2²⁷ + 1: splits a double into halves whose products are exact
ADD_ONE_BY_ONE = 2**13  # numbers that the host adds exactly, one by one
CUT_LIMIT = 1e290  # splitting overflows beyond


def dot(a: Tensor, B: Tensor, more: Tensor) -> Tensor:
    """Σ_k a_k B_k + more: (m,), (m, C), (C,) -> (C,)."""
    a, B = a.double()[:, None], B.double()
    filled = (B != 0).any(1)
    if 2 * int(filled.sum()) < len(a):  # sparse: skip zero terms
        a, B = a[filled], B[filled]
    p = a * B
    return total(torch.cat([p, _lost(a, B, p), more.double()[None]]))


def total(x: Tensor) -> Tensor:
    """Σ_i x_i, (n, C) -> (C,), n ≥ 1; not finite where a partial sum is not."""
    if x.device.type == "cpu" and x.numel() <= ADD_ONE_BY_ONE and bool(x.isfinite().all()):
        with suppress(OverflowError):
            return torch.tensor([math.fsum(column) for column in x.mT.tolist()], dtype=x.dtype)
    lost = torch.zeros_like(x[0])
    while len(x) > 1:
        half = len(x) // 2
        a, b = x[:half], x[half : 2 * half]
        s = a + b
        t = s - a
        lost = lost + ((a - (s - t)) + (b - t)).sum(0)
        x = torch.cat([s, x[2 * half :]])
    return x[0] + lost


def _lost(a: Tensor, b: Tensor, p: Tensor) -> Tensor:
    """a·b − p, exactly, where nothing overflows."""
    a1, b1 = _upper(a), _upper(b)
    a2, b2 = a - a1, b - b1
    lost = ((a1 * b1 - p) + a1 * b2 + a2 * b1) + a2 * b2
    return torch.where(p.isfinite() & (a.abs() <= CUT_LIMIT) & (b.abs() <= CUT_LIMIT), lost, 0.0)


def _upper(x: Tensor) -> Tensor:
    cut = SPLIT * x
    return cut - (cut - x)
