"""Sparse blocks as one piece of a design (design.py): a block-diagonal CSR matrix, and its transpose.

Shapes: b blocks, m features, k any trailing columns.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from auqadmm.metrics.lowrank import Basis


@dataclass(frozen=True)
class SparsePiece:
    """b sparse blocks as one block-diagonal matrix. A (rows, b·m) and its transpose, both CSR; heights (b,).

    `shift` (m,) is subtracted from every row, in the products, so that the data stay sparse.
    """

    A: Tensor
    At: Tensor
    heights: Tensor
    blocks: Tensor
    features: int
    shift: Tensor | None = None

    @property
    def rows(self) -> int:
        return self.A.shape[0]

    def forward(self, u: Tensor, single_precision: bool = False) -> Tensor:
        z = self.A @ u.reshape(u.shape[0] * u.shape[1], u.shape[-1])
        return z if self.shift is None else z - self._spread(self.shift @ u)

    def adjoint(self, z: Tensor, single_precision: bool = False) -> Tensor:
        u = self._pulled(self.At, z)
        return u if self.shift is None else u - self.shift[:, None] * self.sum_rows(z)[:, None]

    def adjoint_squared(self, z: Tensor, single_precision: bool = False) -> Tensor:
        u = self._pulled(_squared(self.At), z)
        if self.shift is None:
            return u
        h = self.shift[:, None]
        return u - h * (2 * self._pulled(self.At, z) - h * self.sum_rows(z)[:, None])

    def forward_squared(self, u: Tensor) -> Tensor:
        z = _squared(self.A) @ u.reshape(u.shape[0] * u.shape[1], u.shape[-1])
        if self.shift is None:
            return z
        h = self.shift[:, None]
        return z - 2 * (self.A @ (h * u).reshape(u.shape[0] * u.shape[1], -1)) + self._spread(self.shift.square() @ u)

    def _pulled(self, At: Tensor, z: Tensor) -> Tensor:
        return (At @ z).reshape(len(self.blocks), self.features, z.shape[-1])

    def _spread(self, x: Tensor) -> Tensor:
        """One number per block and column, (b, k), for each of its rows."""
        return x.repeat_interleave(self.heights, dim=0, output_size=self.rows)

    def squares(self, like: Tensor) -> Tensor:
        ones = torch.ones(len(self.blocks), self.features, 1, dtype=like.dtype, device=like.device)
        return self.forward_squared(ones)[:, 0]

    def adjoint_squared_in(self, F: Basis, z: Tensor, single_precision: bool = False) -> Tensor:
        if F is None:
            return self.adjoint_squared(z)
        out = []
        m = self.features
        for j, (first, w) in enumerate(
            zip(self.heights.cumsum(0) - self.heights, z.split(self.heights.tolist()), strict=True)
        ):
            a, b = int(first), int(first) + len(w)
            crow = self.A.crow_indices()[a : b + 1]
            entries = slice(int(crow[0]), int(crow[-1]))
            row = torch.arange(len(w), device=w.device).repeat_interleave(crow.diff())
            rows = w.new_zeros(len(w), m)
            rows[row, self.A.col_indices()[entries] - j * m] = self.A.values()[entries]
            rows = rows if self.shift is None else rows - self.shift
            out.append((F @ rows.mT).square() @ w)
        return torch.stack(out)

    def sum_rows(self, x: Tensor) -> Tensor:
        return torch.segment_reduce(x.contiguous(), "sum", lengths=self.heights, axis=0)

    def inner(self, P: Tensor, Q: Tensor) -> Tensor:
        outer = (P[:, :, None] * Q[:, None, :]).flatten(1)
        return self.sum_rows(outer).reshape(len(self.blocks), P.shape[1], Q.shape[1])

    def block_of_row(self) -> Tensor:
        return self.blocks.repeat_interleave(self.heights, output_size=self.rows)


def sparse_piece(matrices: Sequence[Any], blocks: Tensor, dtype: torch.dtype, device: torch.device) -> SparsePiece:
    """Stack scipy CSR matrices block-diagonally; the transpose is stored too, since CSR products go one way."""
    import scipy.sparse

    A = scipy.sparse.block_diag(matrices, format="csr")
    At = A.T.tocsr()
    heights = torch.tensor([x.shape[0] for x in matrices], device=device)
    return SparsePiece(
        A=_csr(A, dtype, device),
        At=_csr(At, dtype, device),
        heights=heights,
        blocks=blocks,
        features=matrices[0].shape[1],
    )


def _csr(A: Any, dtype: torch.dtype, device: torch.device) -> Tensor:
    # 32 bits where they do: half the memory of an index, and faster products
    index = torch.int32 if max(*A.shape, A.nnz) < 2**31 else torch.int64
    with warnings.catch_warnings():  # torch announces that its CSR layout is in beta
        warnings.simplefilter("ignore", UserWarning)
        return torch.sparse_csr_tensor(
            torch.from_numpy(A.indptr).to(index),
            torch.from_numpy(A.indices).to(index),
            torch.from_numpy(np.asarray(A.data)).to(dtype),
            size=A.shape,
            device=device,
            check_invariants=True,
        )


def _squared(A: Tensor) -> Tensor:
    """The same pattern with every entry squared."""
    return with_values(A, A.values().square())


def with_values(A: Tensor, values: Tensor) -> Tensor:
    """The same pattern with other values."""
    return torch.sparse_csr_tensor(A.crow_indices(), A.col_indices(), values, A.shape, check_invariants=False)
