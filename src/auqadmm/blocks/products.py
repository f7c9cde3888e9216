"""X_j u_j and X_jᵀz_j of stacked blocks, in the order that the matrix library takes fastest.

A tall matrix times a few columns is slow in CPU libraries. Written the other way round,
(u_jᵀX_jᵀ)ᵀ, with the columns padded to whole vector registers, it takes a third to two thirds of the time
(results/speed/log.md). On a GPU both ways are the same.

Shapes: b blocks of n rows, m features, k columns; X (b, n, m), u (b, m, k), z (b, n, k).
"""

from __future__ import annotations

import torch
from torch import Tensor

REGISTER = 4  # float64 numbers


def forward(X: Tensor, u: Tensor) -> Tensor:
    """X_j u_j, (b, n, k)."""
    if X.is_cuda:
        return X @ u
    return (_filled(u).mT @ X.mT)[:, : u.shape[2]].mT


def adjoint(X: Tensor, z: Tensor) -> Tensor:
    """X_jᵀ z_j, (b, m, k)."""
    if X.is_cuda:
        return X.mT @ z
    return (_filled(z).mT @ X)[:, : z.shape[2]].mT.contiguous()


def _filled(x: Tensor) -> Tensor:
    """Columns of zeros up to a multiple of `REGISTER`; one or two columns are faster without."""
    missing = -x.shape[2] % REGISTER
    return x if x.shape[2] <= 2 or missing == 0 else torch.nn.functional.pad(x, (0, missing))
