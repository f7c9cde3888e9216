"""X in single precision, without the columns that are zero in every block: for the products of `light.py`.

Pixels that no image uses, words that no text contains: in a dense matrix they are read like all others. In the digits
of MNIST they are a quarter.

Shapes: b blocks of n rows, m features of which q are kept, k columns; u (b, m, k), z (b, n, k).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from auqadmm.problem import products

# the share of the columns that must be zero before it pays to do without them
EMPTY = 0.125


@dataclass(frozen=True)
class Single:
    """X (b, n, q) in float32 and the columns (q,) of the m `features` that it holds; None: all."""

    X: Tensor
    columns: Tensor | None
    features: int

    @classmethod
    def of(cls, X: Tensor, low: Tensor, high: Tensor) -> Single:
        """From X (b, n, m) and the least and largest numbers of its columns, (b, m)."""
        used = ((low != 0) | (high != 0)).any(0)
        if not used.any() or (~used).sum() <= EMPTY * len(used):
            return cls(X.float(), None, len(used))
        columns = used.nonzero()[:, 0]
        kept = torch.empty(*X.shape[:2], len(columns))
        done = 0
        for first, end in _runs(used):  # an index for every column would take five times as long
            kept[:, :, done : done + end - first] = X[:, :, first:end]
            done += end - first
        return cls(kept, columns, len(used))

    def __getitem__(self, blocks: Any) -> Single:
        """Some blocks: a slice or positions."""
        return Single(self.X[blocks], self.columns, self.features)

    def forward(self, u: Tensor) -> Tensor:
        """X_j u_j, (b, n, k)."""
        return _scaled(products.forward, self.X, u if self.columns is None else u.index_select(1, self.columns))

    def adjoint(self, z: Tensor) -> Tensor:
        """X_jᵀ z_j, (b, m, k)."""
        return self._spread(_scaled(products.adjoint, self.X, z))

    def adjoint_squared(self, z: Tensor, parts: Sequence[slice]) -> Tensor:
        """Σ_i x_i² z_i over the rows of each block, (b, m, k), some of them at a time."""

        def product(X: Tensor, z: Tensor) -> Tensor:
            return sum(products.adjoint(X[:, part].square(), z[:, part]).double() for part in parts)  # type: ignore[return-value]

        return self._spread(_scaled(product, self.X, z))

    def _spread(self, u: Tensor) -> Tensor:
        """Zeros where there is no column."""
        if self.columns is None:
            return u
        return u.new_zeros(len(u), self.features, u.shape[2]).index_copy_(1, self.columns, u)


def _runs(used: Tensor) -> list[list[int]]:
    """[first, last + 1) of each run of columns in use (m,)."""
    edges = torch.nn.functional.pad(used.to(torch.int8), (1, 1)).diff().nonzero()[:, 0]
    return edges.reshape(-1, 2).tolist()


def _scaled(product: Callable[[Tensor, Tensor], Tensor], X: Tensor, u: Tensor) -> Tensor:
    """In the precision of u. The largest number of a block is one then: nothing overflows, nothing that counts
    vanishes."""
    if not u.numel():
        return product(X, u.to(X.dtype)).to(u.dtype)
    size = u.abs().amax((1, 2), keepdim=True).clamp(min=torch.finfo(u.dtype).tiny)
    return product(X, (u / size).to(X.dtype)) * size
