"""Rows in double precision and in centred columns: dense or sparse, for the sums in `exact.py`; dense and block by
block (`BlockRows`), for sums that are needed of every block.

Shapes: r rows of a chunk, m features (the intercept's ones last), C columns, k right-hand sides; centre (m,).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor

from auqadmm.blocks.design import DensePiece, SparsePiece, with_values

if TYPE_CHECKING:
    from scipy.sparse import csc_matrix

    from auqadmm.blocks.shard import Shard

ADDS_UP = torch.backends.mkl.is_available()  # sparse products into a dense matrix
FULL = 0.13 if ADDS_UP else 0.08  # share of non-zeros beyond which dense products are faster
CANCELS = 1e-4  # of a square: the least that may remain after centring
SLICES = 6  # column slices of a sparse triangle of products
CHUNK_NUMBERS = 2**21  # numbers of a chunk of rows


class ExactRows(Protocol):
    """Some rows, dense or sparse, with their targets y (r,), weights c (r,) and offsets o (r,), None: zero."""

    @property
    def y(self) -> Tensor: ...
    @property
    def c(self) -> Tensor: ...
    @property
    def o(self) -> Tensor | None: ...
    def forward(self, V: Tensor) -> Tensor: ...
    def adjoint(self, Z: Tensor) -> Tensor: ...
    def squares(self, h: Tensor) -> Tensor: ...
    def present(self, h: Tensor) -> Tensor: ...
    def sizes(self, V: Tensor) -> Tensor: ...
    def form(self, alpha: Tensor, beta: Tensor) -> Tensor: ...
    def take(self, features: Tensor | None) -> Any: ...
    def between(self, left: Any, h: Tensor, right: Any) -> Tensor: ...


@dataclass(frozen=True, eq=False)
class DenseRows:
    """Some rows, dense: A (r, m), centred; y (r,), c (r,), o (r,)."""

    A: Tensor
    y: Tensor
    c: Tensor
    o: Tensor | None = None

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

    def take(self, features: Tensor | None) -> Tensor:
        """Selected columns, for `between`."""
        if features is None or torch.equal(features, torch.arange(self.A.shape[1], device=features.device)):
            return self.A  # all of them, in order
        return self.A[:, features]

    def between(self, left: Tensor, h: Tensor, right: Tensor) -> Tensor:
        """Σ_i h_i x̃_ia x̃_ib of selected columns a and others b; for the same columns possibly a ≤ b only."""
        if left is right and left.device.type == "cpu" and len(h) and bool((h >= 0).all()):
            return _symmetric(h.sqrt()[:, None] * left)
        return left.mT @ (h[:, None] * right)


@dataclass(frozen=True, eq=False)
class SparseRows:
    """All rows of sparse blocks: A (rows, b·m) and its transpose, not centred: centring happens in the products."""

    A: Tensor
    At: Tensor
    blocks: int
    centre: Tensor | None
    y: Tensor
    c: Tensor
    by_columns: Callable[[], Any] | None = None  # the same rows as a scipy matrix of m columns
    o: Tensor | None = None

    def forward(self, V: Tensor) -> Tensor:
        z = self.A @ self._for_each(V)
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
        """As above, of uncentred columns."""
        return self._summed(with_values(self.At, (self.At.values() != 0).to(h)), h)

    def sizes(self, V: Tensor) -> Tensor:
        t = with_values(self.A, self.A.values().abs()) @ self._for_each(V.abs())
        return t if self.centre is None else t + self.centre.abs() @ V.abs()

    def form(self, alpha: Tensor, beta: Tensor) -> Tensor:
        """As above; the square of a centred entry is not sparse, and is expanded."""
        A, b = self.A, self.blocks
        squares = with_values(A, A.values().square()) @ alpha.repeat(b)[:, None]
        linear = beta if self.centre is None else beta + alpha * self.centre
        far = squares[:, 0] - 2 * (A @ linear.repeat(b)[:, None])[:, 0]
        if self.centre is not None:
            far = far + (alpha * self.centre.square() + 2 * beta * self.centre).sum()
        return far

    def dense(self, step: int) -> Iterator[DenseRows]:
        """The rows as dense chunks of `step`: where there are few columns."""
        m = self.At.shape[0] // self.blocks
        crow, col, values = self.A.crow_indices().long(), self.A.col_indices().long(), self.A.values()
        for first in range(0, max(self.A.shape[0], 1), step):
            last = min(first + step, self.A.shape[0])
            entries = slice(int(crow[first]), int(crow[last]))
            row = torch.arange(last - first, device=col.device).repeat_interleave(crow[first : last + 1].diff())
            A = values.new_zeros(last - first, m)
            A[row, col[entries] % m] = values[entries]
            o = None if self.o is None else self.o[first:last]
            yield DenseRows(centred(A, self.centre), self.y[first:last], self.c[first:last], o)

    def take(self, features: Tensor | None) -> tuple[Any, np.ndarray]:
        """Selected columns, uncentred, and their centre."""
        assert self.by_columns is not None
        S = self.by_columns()
        mu = np.zeros(S.shape[1]) if self.centre is None else self.centre.cpu().numpy()
        if features is None:
            return S, mu
        some = features.cpu().numpy()
        return S[:, some], mu[some]

    def between(self, left: tuple[Any, np.ndarray], h: Tensor, right: tuple[Any, np.ndarray]) -> Tensor:
        """Σ_i h_i x̃_ia x̃_ib, as above: sparse, and centred afterwards; dense where that would cancel."""
        (L, mu), (R, nu), w = left, right, h.cpu().numpy()
        if L.nnz > FULL * L.shape[0] * L.shape[1]:
            return self._dense_between(left, w, right).to(h)
        H = _upper_product(L, _weighted(R, w)) if left is right else _product(L, _weighted(R, w))
        if mu.any() or nu.any():
            a, b, total = L.T @ w, R.T @ w, w.sum()
            size = type(L)((L.data**2, L.indices, L.indptr), shape=L.shape).T @ w
            left_over = size - mu * (2 * a - mu * total)
            if bool((left_over < CANCELS * size).any()):
                return self._dense_between(left, w, right).to(h)
            shifts = torch.from_numpy(np.stack([mu, a - mu * total], 1)), torch.from_numpy(np.stack([b, nu]))
            return torch.from_numpy(H).addmm_(*shifts, alpha=-1).to(h)
        return torch.from_numpy(H).to(h)

    def _dense_between(self, left: tuple[Any, np.ndarray], w: np.ndarray, right: tuple[Any, np.ndarray]) -> Tensor:
        (L, mu), (R, nu) = left, right
        same = left is right and bool((w >= 0).all())
        H = np.zeros((L.shape[1], R.shape[1]))
        step = max(1, CHUNK_NUMBERS // max(L.shape[1], R.shape[1], 1))
        if step < L.shape[0]:
            L = L.tocsr()
            R = L if left is right else R.tocsr()
        for first in range(0, L.shape[0], step):
            some = slice(first, first + step)
            A = _filled(L, some)
            A -= mu
            if same:
                A *= np.sqrt(w[some, None])
                H += _symmetric(torch.from_numpy(A)).numpy()
            else:
                H += A.T @ (w[some, None] * (_filled(R, some) - nu))
        return torch.from_numpy(H)

    def _for_each(self, V: Tensor) -> Tensor:
        return V if self.blocks == 1 else V.repeat(self.blocks, 1)

    def _summed(self, At: Tensor, Z: Tensor) -> Tensor:
        U = At @ Z
        return U if self.blocks == 1 else U.reshape(self.blocks, -1, Z.shape[1]).sum(0)


def _symmetric(B: Tensor) -> Tensor:
    """The upper triangle of BᵀB, at half the products."""
    if not B.numel():  # MKL prints an error for empty input
        return B.new_zeros(B.shape[1], B.shape[1])
    from scipy.linalg.blas import dsyrk

    return torch.from_numpy(dsyrk(1.0, B.numpy().T)).contiguous()


def _upper_product(L: csc_matrix, R: csc_matrix) -> np.ndarray:
    """LᵀR, upper triangle only: in column slices, skipping what lies left of them, where that is
    faster."""
    p = L.shape[1]
    if ADDS_UP:
        return _product(L, R)
    H = np.zeros((p, p))
    step = max(64, -(-p // SLICES))
    for first in range(0, p, step):
        some = slice(first, first + step)
        H[some, first:] = _product(L[:, some], R[:, first:])
    return H


def _product(L: csc_matrix, R: csc_matrix) -> np.ndarray:
    """LᵀR, dense, of CSC matrices: accumulated in place where the library can."""
    if not ADDS_UP or not L.nnz or not R.nnz or np.int64 in (L.indices.dtype, R.indices.dtype):
        return (L.T @ R).toarray()
    A, B = _csr(L, (L.shape[1], L.shape[0])), _csr(R.tocsr(), R.shape)
    return torch.addmm(A.values().new_zeros(A.shape[0], B.shape[1]), A, B, beta=0.0).numpy()


def _csr(S: csc_matrix, shape: tuple[int, int]) -> Tensor:
    """A scipy matrix as torch CSR; a CSC matrix is the transpose of a CSR one."""
    ends, where, values = (torch.from_numpy(x) for x in (S.indptr, S.indices, S.data))
    return torch.sparse_csr_tensor(ends, where, values, shape, check_invariants=False)


def _filled(S: csc_matrix, some: slice) -> np.ndarray:
    """Some rows, dense."""
    return (S if some.stop - some.start >= S.shape[0] else S[some]).toarray()


def _weighted(S: csc_matrix, w: np.ndarray) -> csc_matrix:
    """Rows of a CSC matrix times w (r,)."""
    return type(S)((S.data * w[S.indices], S.indices, S.indptr), shape=S.shape)


def with_offset(rows: ExactRows, z: Tensor) -> Tensor:
    """Logits (r, C) and the offsets of their rows."""
    return z if rows.o is None else z + rows.o[:, None]


def centred(A: Tensor, centre: Tensor | None) -> Tensor:
    """Rows less the centre; None: unchanged."""
    return A if centre is None else A - centre


def joint(cache: dict[str, Any], piece: SparsePiece) -> tuple[Tensor, Tensor]:
    """The rows of sparse blocks of a host as one matrix (rows, m), and its transpose, cached with the data."""
    if "joint" not in cache:
        S, A, m = by_columns(cache, piece), piece.A, piece.features
        column = A.col_indices() if len(piece.blocks) == 1 else A.col_indices() % m
        values, shape = A.values().double(), (A.shape[0], m)
        rows = torch.sparse_csr_tensor(A.crow_indices(), column, values, shape, check_invariants=False)
        cache["joint"] = rows, _csr(S, (m, A.shape[0]))
    return cache["joint"]


def by_columns(cache: dict[str, Any], piece: SparsePiece) -> csc_matrix:
    """The rows of sparse blocks as a scipy matrix of m columns, cached with the data."""
    if "by_columns" not in cache:
        import scipy.sparse

        A = piece.A
        parts = (A.values().double(), A.col_indices() % piece.features, A.crow_indices())
        values, column, ends = (x.cpu().numpy() for x in parts)
        shape = (A.shape[0], piece.features)
        cache["by_columns"] = scipy.sparse.csr_matrix((values, column, ends), shape=shape).tocsc()
    return cache["by_columns"]


SITE_CHUNK = 2**22  # numbers of a chunk of rows


@dataclass(frozen=True, eq=False)
class BlockRows:
    """The rows of every block of a shard, without padding, centred at μ (m,), or not at all (None)."""

    shard: Shard
    centre: Tensor | None = None

    @cached_property
    def _places(self) -> dict[int, tuple[int, int, int]]:
        """Of every block: its piece, its place there, and its first flat row."""
        out, first = {}, 0
        for number, piece in enumerate(self.shard.design.pieces):
            heights = piece.heights.tolist() if isinstance(piece, SparsePiece) else [piece.X.shape[1]] * len(piece.X)
            for slot, (j, height) in enumerate(zip(piece.blocks.tolist(), heights, strict=True)):
                out[j] = (number, slot, first)
                first += height
        return out

    def where(self, j: int) -> slice:
        """The flat rows of block j."""
        first = self._places[j][2]
        return slice(first, first + self.shard.rows[j])

    def chunks(self, j: int, shift: Tensor | None = None) -> Iterator[tuple[slice, DenseRows]]:
        """The rows of block j, less `shift` (m,) where given, with their flat positions."""
        shard, whole = self.shard, self.where(j)
        m = shard.design.features
        step = max(1, SITE_CHUNK // m)
        for first in range(whole.start, whole.stop, step):
            some = slice(first, min(first + step, whole.stop))
            A = centred(centred(self._dense(j, some, m), self.centre), shift)
            y, o = shard.target[some], shard.offset
            yield (
                some,
                DenseRows(A, y.double(), shard.row_weight[some].double(), None if o is None else o[some].double()),
            )

    def _dense(self, j: int, some: slice, m: int) -> Tensor:
        number, slot, begin = self._places[j]
        piece = self.shard.design.pieces[number]
        if isinstance(piece, DensePiece):
            return piece.X[slot, some.start - begin : some.stop - begin].double()
        start = sum(p.rows for p in self.shard.design.pieces[:number])
        crow = piece.A.crow_indices()[some.start - start : some.stop - start + 1].long()
        entries = slice(int(crow[0]), int(crow[-1]))
        row = torch.arange(some.stop - some.start, device=crow.device).repeat_interleave(crow.diff())
        A = torch.zeros(some.stop - some.start, m, dtype=torch.float64, device=crow.device)
        A[row, piece.A.col_indices()[entries].long() % m] = piece.A.values()[entries].double()
        return A
