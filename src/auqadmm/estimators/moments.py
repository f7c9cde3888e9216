"""Sufficient statistics of least squares: all that an elastic net on some rows needs.

A *cell* is a set of rows over all workers, e.g. one fold. With the weights s of its rows, two reductions give

    S = Σs,   μ = Σsx/S,   ȳ = Σsy/S        then    G = Σs x̃x̃ᵀ,   p = Σs x̃ỹ,   q = Σs ỹ²,    x̃ = x − μ,  ỹ = y − ȳ

(without an intercept μ = ȳ = 0, and one reduction is enough). Cells that share no row are merged exactly: with
d = μ_c − μ, G = Σ_c G_c + S_c ddᵀ. Only squares are added, so that nothing cancels; "all but one fold" is the merger of
the others, not a difference.

Of a sparse matrix, columns that are mostly zeros are centred after their products, if it costs a digit at most; the
others before.

Shapes: c cells, m features, B blocks; μ, p (c, m), G (c, m, m), packed (c, m(m + 1)/2), S, ȳ, q (c,).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from auqadmm.blocks.shard import Shard

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from auqadmm.blocks.design import DensePiece
from auqadmm.blocks.sparse import SparsePiece
from auqadmm.core.reduce import Reduce
from auqadmm.estimators.types import Matrix, SparseMatrix, is_sparse

Sums = dict[str, Tensor]

NUMBERS_AT_ONCE = 2**18  # numbers of a chunk of a matrix: to fit a cache
FILLED = 0.1  # share of nonzeros above which a dense product is faster
MOSTLY = 0.5  # share of nonzeros above which a column is centred before its products


# ---------------------------------------------------------------------- on the workers
@dataclass(frozen=True)
class Means:
    """Round 1: S, Σsx and Σsy of every cell; block j belongs to cell `cells[j]`."""

    cells: tuple[int, ...]
    count: int

    def __call__(self, shard: Shard, blocks: None, shared: None) -> tuple[None, Sums]:
        S, y = np.zeros(self.count), np.zeros(self.count)
        x = np.zeros((self.count, shard.design.features))
        with np.errstate(over="ignore", invalid="ignore"):  # the server checks for infinity
            for c, X, target, s in cell_rows(shard, self.cells):
                S[c] += s.sum()
                y[c] += s @ target
                x[c] += X.T @ s
        return blocks, _tensors(S=S, x=x, y=y)


@dataclass(frozen=True)
class Products:
    """Round 2: the triangle of G, p and q of every cell around the means (c, m) and (c,) that are shared."""

    cells: tuple[int, ...]
    count: int

    def __call__(self, shard: Shard, blocks: None, shared: tuple[Tensor, Tensor]) -> tuple[None, Sums]:
        means, middles = (t.cpu().numpy() for t in shared)
        m = shard.design.features
        S, q = np.zeros(self.count), np.zeros(self.count)
        G, p = np.zeros((self.count, m, m)), np.zeros((self.count, m))
        with np.errstate(over="ignore", invalid="ignore"):  # the server checks for infinity
            for c, X, target, s in cell_rows(shard, self.cells):
                y = target - middles[c]
                S[c] += s.sum()
                q[c] += s @ y**2
                add = _add_sparse if is_sparse(X) else _add_dense
                add(G[c], p[c], X, y, s, means[c])
        return blocks, _tensors(S=S, p=p, q=q) | {"G": torch.from_numpy(_packed(G))}


@dataclass(frozen=True)
class Squares:
    """Σ s(x̃ᵀw + b − y)² of models on every cell, where the sums above are not accurate enough.

    Shared: of every cell its models W (k, m), their offsets b (k,), and the centre μ (m,) that x̃ = x − μ refers to.
    """

    cells: tuple[int, ...]
    count: int

    def __call__(self, shard: Shard, blocks: None, shared: tuple[Tensor, Tensor, Tensor]) -> tuple[None, Sums]:
        W, b, centres = (t.cpu().numpy() for t in shared)
        squares = np.zeros(W.shape[:2])
        for c, X, target, s in cell_rows(shard, self.cells):
            if is_sparse(X):
                squares[c] += s @ (X @ W[c].T + (b[c] - W[c] @ centres[c]) - target[:, None]) ** 2
                continue
            for some in _slices(X):
                z = (X[some] - centres[c]) @ W[c].T + b[c]
                squares[c] += s[some] @ (z - target[some, None]) ** 2
        return blocks, _tensors(squares=squares)


def _packed(G: np.ndarray) -> np.ndarray:
    """Upper triangles (c, m(m + 1)/2), row after row: (c, m, m) has every entry twice."""
    m = G.shape[1]
    return np.concatenate([G[:, i, i:] for i in range(m)], axis=1) if m else G.reshape(len(G), 0)


def _unpacked(upper: np.ndarray, m: int) -> np.ndarray:
    G = np.zeros((len(upper), m, m))
    first = 0
    for i in range(m):
        G[:, i, i:] = G[:, i:, i] = upper[:, first : first + m - i]
        first += m - i
    return G


def _tensors(**sums: np.ndarray) -> Sums:
    return {name: torch.from_numpy(x) for name, x in sums.items()}


def cell_rows(shard: Shard, cells: tuple[int, ...]) -> Iterator[tuple[int, Matrix, np.ndarray, np.ndarray]]:
    """Of every block of this process: its cell, X (an array, or scipy's CSR matrix), y and s."""
    design, m = shard.design, shard.design.features
    # in a process with only its own blocks, indices count from the first of them
    number = list(range(shard.blocks)) if len(cells) == shard.blocks else list(shard.index)
    parts = zip(design.pieces, design.split(shard.target), design.split(shard.row_weight), strict=True)
    for piece, target, weight in parts:
        y, s = (t.double().cpu().numpy() for t in (target, weight))
        if isinstance(piece, DensePiece):
            height = piece.X.shape[1]
            for slot, j in enumerate(piece.blocks.tolist()):
                own = slice(slot * height, (slot + 1) * height)
                yield cells[number[j]], piece.X[slot].cpu().numpy(), y[own], s[own]
            continue
        assert isinstance(piece, SparsePiece)
        crow, col, values = (t.cpu().numpy() for t in (piece.A.crow_indices(), piece.A.col_indices(), piece.A.values()))
        first = 0
        for slot, (j, height) in enumerate(zip(piece.blocks.tolist(), piece.heights.tolist(), strict=True)):
            start = crow[first : first + height + 1]
            own = slice(int(start[0]), int(start[-1]))
            parts_of = (values[own].astype(np.float64), col[own] - slot * m, start - start[0])
            X = scipy.sparse.csr_matrix(parts_of, shape=(height, m))
            yield cells[number[j]], X, y[first : first + height], s[first : first + height]
            first += height


def _step(X: Matrix) -> int:
    return max(1, NUMBERS_AT_ONCE // max(X.shape[1], 1))


def _slices(X: Matrix) -> Iterator[slice]:
    for i in range(0, X.shape[0], _step(X)):
        yield slice(i, i + _step(X))


def _add_dense(G: np.ndarray, p: np.ndarray, X: np.ndarray, y: np.ndarray, s: np.ndarray, mean: np.ndarray) -> None:
    plain, zero = bool((s == 1).all()), not mean.any()
    root = np.sqrt(s)[:, None]
    buffer = np.empty((min(len(X), _step(X)), X.shape[1]))
    for some in _slices(X):
        A = X[some]
        if not (plain and zero and A.dtype == np.float64):
            A = np.subtract(A, mean, out=buffer[: len(A)])
        if not plain:
            A *= root[some]
        G += A.T @ A  # numpy detects symmetry, and computes half of it
        p += (y[some] if plain else root[some, 0] * y[some]) @ A


def _add_sparse(G: np.ndarray, p: np.ndarray, X: SparseMatrix, y: np.ndarray, s: np.ndarray, mean: np.ndarray) -> None:
    rows, m = X.shape
    if X.nnz > FILLED * rows * m:
        for some in _slices(X):
            _add_dense(G, p, X[some].toarray(), y[some], s[some], mean)
        return
    filled = np.bincount(X.indices, minlength=m) > MOSTLY * rows
    full, rest = np.flatnonzero(filled), np.flatnonzero(~filled)
    P = X[:, rest] if len(full) else X
    WP = P.multiply(s[:, None]).tocsr()
    centre, total = mean[rest], np.asarray(WP.sum(0)).ravel()
    outer = np.outer(total, centre)
    square = (P.T @ WP).toarray() - outer - outer.T + s.sum() * np.outer(centre, centre)
    product = WP.T @ y - centre * (s @ y)
    if not len(full):
        G += square
        p += product
        return
    D = X[:, full].toarray() - mean[full]
    WD = s[:, None] * D
    cross = np.asarray(WP.T @ D) - np.outer(centre, WD.sum(0))
    G[np.ix_(rest, rest)] += square
    G[np.ix_(full, full)] += WD.T @ D
    G[np.ix_(rest, full)] += cross
    G[np.ix_(full, rest)] += cross.T
    p[rest] += product
    p[full] += WD.T @ y


# ---------------------------------------------------------------------- at the server
@dataclass(frozen=True, eq=False)
class Moments:
    """S, μ, ȳ, G, p and q of c cells."""

    S: np.ndarray
    mean: np.ndarray
    middle: np.ndarray
    G: np.ndarray
    p: np.ndarray
    q: np.ndarray

    @staticmethod
    def of(reduce: Reduce, cells: tuple[int, ...], count: int, features: int, intercept: bool) -> Moments:
        """From the blocks of an engine; block j belongs to cell `cells[j]`."""
        mean, middle = torch.zeros(count, features, dtype=torch.float64), torch.zeros(count, dtype=torch.float64)
        if intercept:
            _, sums = reduce(Means(cells, count), None, None)
            S = torch.where(sums["S"] > 0, sums["S"], 1.0)
            mean, middle = sums["x"] / S[:, None], sums["y"] / S
        down = (mean, middle) if intercept else ()
        _, sums = reduce(Products(cells, count), None, (mean, middle), down)
        mass, p, q = (sums[name].numpy() for name in ("S", "p", "q"))
        return Moments(mass, mean.numpy(), middle.numpy(), _unpacked(sums["G"].numpy(), features), p, q)

    def merged(self, groups: np.ndarray) -> Moments:
        """Unions of cells without common rows: groups (k, c), true where a cell belongs to one."""
        use = groups.astype(np.float64)
        S = use @ self.S
        share = use * self.S / np.where(S > 0, S, 1.0)[:, None]
        mean, middle = share @ self.mean, share @ self.middle
        size = self.mean.shape[1]
        G = (use @ self.G.reshape(len(self.S), -1)).reshape(-1, size, size)
        p, q = use @ self.p, use @ self.q
        for k in range(len(use)):
            own = groups[k]
            d, e = self.mean[own] - mean[k], self.middle[own] - middle[k]
            if d.any() or e.any():
                sd = self.S[own, None] * d
                G[k] += sd.T @ d
                p[k] += sd.T @ e
                q[k] += self.S[own] @ e**2
        return Moments(S, mean, middle, G, p, q)

    @property
    def finite(self) -> bool:
        return all(bool(np.isfinite(x).all()) for x in (self.mean, self.G, self.p, self.q))
