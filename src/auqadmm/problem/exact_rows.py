"""Rows in double precision and in centred columns, as matrices or sparse: what `exact.py` makes sums of.

Shapes: r rows, m features (the intercept's ones last), k right-hand sides, b sparse blocks; centre (m,).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class DenseRows:
    """Some rows as a matrix: A (r, m), centred; y (r,), c (r,)."""

    A: Tensor
    y: Tensor
    c: Tensor

    def forward(self, V: Tensor) -> Tensor:  # (m, k) -> (r, k)
        return self.A @ V

    def adjoint(self, Z: Tensor) -> Tensor:  # (r, k) -> (m, k)
        return self.A.mT @ Z

    def squares(self, h: Tensor) -> Tensor:
        """Σ_i x̃_i² h_i: (r, k) -> (m, k)."""
        return self.A.square().mT @ h

    def present(self, h: Tensor) -> Tensor:
        """Σ of h over the rows in which a column is not zero: (r, k) -> (m, k)."""
        return (self.A != 0).to(h).mT @ h

    def sizes(self, V: Tensor) -> Tensor:
        """|X̃||V|: (m, k) -> (r, k)."""
        return self.A.abs() @ V.abs()

    def form(self, alpha: Tensor, beta: Tensor) -> Tensor:
        """Σ_k α_k x̃_k² − 2β_k x̃_k of every row, (r,)."""
        return self.A.square() @ alpha - 2 * (self.A @ beta)

    def gram(self, h: Tensor) -> Tensor:
        """Σ_i h_i x̃_i x̃_iᵀ: (r,) -> (m, m)."""
        return self.A.mT @ (h[:, None] * self.A)


@dataclass(frozen=True, eq=False)
class SparseRows:
    """All rows of sparse blocks: A (rows, b·m) and its transpose as they are, centred in the products."""

    A: Tensor
    At: Tensor
    blocks: int
    centre: Tensor | None
    y: Tensor
    c: Tensor

    def forward(self, V: Tensor) -> Tensor:
        z = self.A @ V.repeat(self.blocks, 1)
        return z if self.centre is None else z - self.centre @ V

    def adjoint(self, Z: Tensor) -> Tensor:
        G = self._summed(self.At, Z)
        return G if self.centre is None else G - self.centre[:, None] * Z.sum(0)

    def squares(self, h: Tensor) -> Tensor:
        D = self._summed(with_values(self.At, self.At.values().square()), h)
        if self.centre is None:
            return D
        mu = self.centre[:, None]
        return (D - mu * (2 * self._summed(self.At, h) - mu * h.sum(0))).clamp(min=0)

    def present(self, h: Tensor) -> Tensor:
        """As above, of columns as they are."""
        return self._summed(with_values(self.At, (self.At.values() != 0).to(h)), h)

    def sizes(self, V: Tensor) -> Tensor:
        t = with_values(self.A, self.A.values().abs()) @ V.abs().repeat(self.blocks, 1)
        return t if self.centre is None else t + self.centre.abs() @ V.abs()

    def form(self, alpha: Tensor, beta: Tensor) -> Tensor:
        """As above; the square of a centred number is not sparse, and is taken apart."""
        A, b = self.A, self.blocks
        squares = with_values(A, A.values().square()) @ alpha.repeat(b)[:, None]
        linear = beta if self.centre is None else beta + alpha * self.centre
        far = squares[:, 0] - 2 * (A @ linear.repeat(b)[:, None])[:, 0]
        if self.centre is not None:
            far = far + (alpha * self.centre.square() + 2 * beta * self.centre).sum()
        return far

    def dense(self, step: int) -> Iterator[DenseRows]:
        """The rows as matrices, `step` at a time: where there are few columns."""
        m = self.At.shape[0] // self.blocks
        crow, col, values = self.A.crow_indices().long(), self.A.col_indices().long(), self.A.values()
        for first in range(0, max(self.A.shape[0], 1), step):
            last = min(first + step, self.A.shape[0])
            held = slice(int(crow[first]), int(crow[last]))
            row = torch.arange(last - first, device=col.device).repeat_interleave(crow[first : last + 1].diff())
            A = values.new_zeros(last - first, m)
            A[row, col[held] % m] = values[held]
            yield DenseRows(centred(A, self.centre), self.y[first:last], self.c[first:last])

    def _summed(self, At: Tensor, Z: Tensor) -> Tensor:
        return (At @ Z).reshape(self.blocks, -1, Z.shape[1]).sum(0)


def with_values(A: Tensor, values: Tensor) -> Tensor:
    """The same pattern with other numbers."""
    return torch.sparse_csr_tensor(A.crow_indices(), A.col_indices(), values, A.shape, check_invariants=False)


def centred(A: Tensor, centre: Tensor | None) -> Tensor:
    """Rows less the centre; None: as they are."""
    return A if centre is None else A - centre
