"""How sums are sent and made exact: symmetric matrices as triangles, products in twice the precision.

The upper triangle of a symmetric matrix is enough: each pair of entries is sent once.

Sums of products are as if computed in twice the precision: error-free products and additions.

Reference: T. Ogita, S. M. Rump, S. Oishi, Accurate sum and dot product, SIAM J. Sci. Comput. 26 (2005).

Shapes: g matrices of p rows; full (g, p, p), packed (g, p(p + 1)/2). Of sums: n terms, m factors, C columns.
"""

from __future__ import annotations

import math
from contextlib import suppress

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
