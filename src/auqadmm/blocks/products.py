"""X_j u_j and X_jᵀz_j of stacked dense blocks: in the order that libraries take fastest, and in single precision.

A tall matrix times a few columns is slow in CPU libraries. Written the other way round,
(u_jᵀX_jᵀ)ᵀ, with the columns padded to whole vector registers, it takes a third to two thirds of the time
(results/speed/log.md). On a GPU both ways are the same.

In single precision (for `single_precision.py`) columns that are zero in every block are left out. Pixels that no image
uses, words that no text contains: a dense matrix reads them like all others. In the digits of MNIST they are a quarter.

Shapes: b blocks of n rows, m features of which q are kept, k columns; X (b, n, m), u (b, m, k), z (b, n, k).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

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


# the share of the columns that must be zero before dropping them pays
EMPTY = 0.125
# columns vary by at least this share of their maximum, or not at all: less would be lost in single precision
SPREAD = 1e-3
# range of a column's maximum: squares of larger ones overflow
LEAST_SINGLE, MOST_SINGLE = 1e-15, 1e15


@dataclass(frozen=True)
class SingleDesign:
    """X (b, n, q) in float32 and the columns (q,) of the m `features` that it holds; None: all.

    `coarse` (b,): blocks for which single precision is too coarse, which use the `whole` X (b, n, m); None: none.
    """

    X: Tensor
    columns: Tensor | None
    features: int
    coarse: Tensor | None = None
    whole: Tensor | None = None

    @classmethod
    def of(cls, X: Tensor, low: Tensor, high: Tensor) -> SingleDesign:
        """From X (b, n, m) and the minima and maxima of its columns, (b, m)."""
        used = ((low != 0) | (high != 0)).any(0)
        coarse = ~survives_rounding(low, high)
        exact = (coarse, X) if bool(coarse.any()) else (None, None)
        if not used.any() or (~used).sum() <= EMPTY * len(used):
            return cls(X.float(), None, len(used), *exact)
        columns = used.nonzero()[:, 0]
        kept = torch.empty(*X.shape[:2], len(columns))
        done = 0
        for first, end in _runs(used):  # indexing every column is five times as slow
            kept[:, :, done : done + end - first] = X[:, :, first:end]
            done += end - first
        return cls(kept, columns, len(used), *exact)

    def __getitem__(self, blocks: slice | Tensor) -> SingleDesign:
        """Some blocks: a slice or positions."""
        if self.coarse is None or self.whole is None:
            return SingleDesign(self.X[blocks], self.columns, self.features)
        return SingleDesign(self.X[blocks], self.columns, self.features, self.coarse[blocks], self.whole[blocks])

    def forward(self, u: Tensor) -> Tensor:
        """X_j u_j, (b, n, k)."""
        z = _scaled(forward, self.X, u if self.columns is None else u.index_select(1, self.columns))
        return self._exact(z, lambda X, run: forward(X, u[run]))

    def adjoint(self, z: Tensor) -> Tensor:
        """X_jᵀ z_j, (b, m, k)."""
        u = self._spread(_scaled(adjoint, self.X, z))
        return self._exact(u, lambda X, run: adjoint(X, z[run]))

    def adjoint_squared(self, z: Tensor, parts: Sequence[slice]) -> Tensor:
        """Σ_i x_i² z_i over the rows of each block, (b, m, k), in chunks."""

        def product(X: Tensor, z: Tensor) -> Tensor:
            return sum(adjoint(X[:, part].square(), z[:, part]).double() for part in parts)  # type: ignore[return-value]

        u = self._spread(_scaled(product, self.X, z))
        return self._exact(u, lambda X, run: product(X, z[run]))

    def _exact(self, x: Tensor, product: Callable[[Tensor, slice], Tensor]) -> Tensor:
        """With the product of coarse blocks in double precision."""
        if self.coarse is None or self.whole is None:
            return x
        for first, end in _runs(self.coarse):
            run = slice(first, end)
            x[run] = product(self.whole[run], run)
        return x

    def _spread(self, u: Tensor) -> Tensor:
        """Zeros for dropped columns."""
        if self.columns is None:
            return u
        return u.new_zeros(len(u), self.features, u.shape[2]).index_copy_(1, self.columns, u)


def survives_rounding(low: Tensor, high: Tensor) -> Tensor:
    """(b,): does rounding preserve columns with these minima and maxima (b, m)? A block without rows has none."""
    size = torch.maximum(low.abs(), high.abs())
    constant, tiny = low == high, (size < LEAST_SINGLE) & (size > 0)
    fine = (constant | (high - low >= SPREAD * size)) & (size < MOST_SINGLE) & ~tiny
    return (fine | (low > high)).all(1)


def _runs(used: Tensor) -> list[list[int]]:
    """[first, last + 1) of each run in a mask."""
    edges = torch.nn.functional.pad(used.to(torch.int8), (1, 1)).diff().nonzero()[:, 0]
    return edges.reshape(-1, 2).tolist()


def _scaled(product: Callable[[Tensor, Tensor], Tensor], X: Tensor, u: Tensor) -> Tensor:
    """In the precision of u. Scaled by the maximum of each block: no overflow, no relevant
    underflow."""
    if not u.numel():
        return product(X, u.to(X.dtype)).to(u.dtype)
    size = u.abs().amax((1, 2), keepdim=True).clamp(min=torch.finfo(u.dtype).tiny)
    return product(X, (u / size).to(X.dtype)) * size
