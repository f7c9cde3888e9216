"""Sufficient statistics of least squares: all that an elastic net on some rows needs.

A *cell* is a set of rows over all workers, e.g. one fold. With the weights s of its rows, two reductions give

    S = Σs,   μ = Σsx/S,   ȳ = Σsy/S        then    G = Σs x̃x̃ᵀ,   p = Σs x̃ỹ,   q = Σs ỹ²,    x̃ = x − μ,  ỹ = y − ȳ

(without an intercept μ = ȳ = 0, and one reduction is enough). Cells that share no row are merged exactly: with
d = μ_c − μ, G = Σ_c G_c + S_c ddᵀ. Only squares are added, so that nothing cancels; "all but one fold" is the merger of
the others, not a difference.

Of a sparse matrix, columns that are mostly zeros are centred after their products, if it costs a digit at most; the
others before.

Where a full Gram matrix is too large (`wide.py`), workers send products of some columns. A *group* is a set
of cells that models are fitted to, e.g. all folds but one, centred at its own means μ and ȳ. Of all its columns two
numbers each are sent once,

    p = Σs x̃ỹ,   D = Σs x̃²        and S = Σs, q = Σs ỹ²

and afterwards, round by round, products G_NA and G_NN of new columns N with the known ones A, each once, and
for models w on A

    Σs x̃(x̃ᵀw − ỹ)  over the rows of the group,   Σs(x̃ᵀw − ỹ)²  over its test rows

Workers keep means and A from round to round.

Shapes: c cells, m features, B blocks; μ, p (c, m), G (c, m, m), packed (c, m(m + 1)/2), S, ȳ, q (c,). Of g groups with
M models each: p, D, means (g, m), S, q, middles (g,).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from auqadmm.blocks.design import DensePiece, SparsePiece
from auqadmm.blocks.exact_rows import CHUNK_NUMBERS, DenseRows, SparseRows
from auqadmm.core.reduce import Reduce
from auqadmm.estimators.checks import Matrix, SparseMatrix, is_sparse
from auqadmm.metrics.sums import pack

if TYPE_CHECKING:
    from auqadmm.blocks.shard import Shard


Sums = dict[str, Tensor]

NUMBERS_AT_ONCE = 2**18  # numbers of a chunk of a matrix: to fit a cache
FILLED = 0.1  # share of nonzeros above which a dense product is faster
MOSTLY = 0.5  # share of nonzeros above which a column is centred before its products
Masks = tuple[tuple[bool, ...], ...]


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


@dataclass(frozen=True)
class Known:
    """What workers keep: means (g, m) and (g,), and the columns of every group whose products were sent."""

    means: Tensor
    middles: Tensor
    columns: tuple[Tensor, ...]


@dataclass(frozen=True)
class Sides:
    """S, q, p and D of every group, around the shared means; `holds` (g, c): cells of a group."""

    cells: tuple[int, ...]
    holds: Masks

    def __call__(self, shard: Shard, blocks: None, shared: tuple[Tensor, Tensor]) -> tuple[Known, Sums]:
        means, middles = shared
        g, m = means.shape
        sums = {name: torch.zeros(g, dtype=torch.float64) for name in ("S", "q")}
        sums |= {name: torch.zeros(g, m, dtype=torch.float64) for name in ("p", "D")}
        for c, block in _blocks(shard, self.cells):
            for k in range(g):
                if not self.holds[k][c]:
                    continue
                for rows in block.rows(means[k], middles[k]):
                    sums["S"][k] += rows.c.sum()
                    sums["q"][k] += rows.c @ rows.y.square()
                    sums["p"][k] += rows.adjoint((rows.c * rows.y)[:, None])[:, 0]
                    sums["D"][k] += rows.squares(rows.c[:, None])[:, 0]
        nothing = torch.zeros(0, dtype=torch.int64)
        return Known(means, middles, (nothing,) * g), sums


@dataclass(frozen=True)
class Wider:
    """Shared, of every group: new columns N, and models W (a, M) on the known ones."""

    cells: tuple[int, ...]
    holds: Masks
    tests: Masks

    def __call__(self, shard: Shard, known: Known, shared: tuple[tuple[Tensor, Tensor], ...]) -> tuple[Known, Sums]:
        m, sums = shard.design.features, {}
        for k, (new, W) in enumerate(shared):
            a, n, M = len(known.columns[k]), len(new), W.shape[1]
            if n:
                sums[f"border{k}"] = torch.zeros(n, a, dtype=torch.float64)
                sums[f"corner{k}"] = torch.zeros(n * (n + 1) // 2, dtype=torch.float64)
            if M:
                sums[f"slopes{k}"] = torch.zeros(M, m, dtype=torch.float64)
                sums[f"squares{k}"] = torch.zeros(M, dtype=torch.float64)
        for c, block in _blocks(shard, self.cells):
            for k, (new, W) in enumerate(shared):
                fits, tests = self.holds[k][c], bool(W.shape[1]) and self.tests[k][c]
                if not (fits and (len(new) or W.shape[1])) and not tests:
                    continue
                for rows in block.rows(known.means[k], known.middles[k]):
                    _add(sums, k, rows, known.columns[k], new if fits else new[:0], W, fits, tests)
        columns = tuple(torch.cat([old, new]) for old, (new, _) in zip(known.columns, shared, strict=True))
        return Known(known.means, known.middles, columns), sums


def _add(sums: Sums, k: int, rows: Any, old: Tensor, new: Tensor, W: Tensor, fits: bool, tests: bool) -> None:
    """The contribution of some rows to the sums of group k."""
    taken = rows.take(old) if len(old) else None
    if len(new):
        coming = rows.take(new)
        sums[f"corner{k}"] += pack(rows.between(coming, rows.c, coming)[None])[0]
        if taken is not None:
            sums[f"border{k}"] += rows.between(coming, rows.c, taken)
    if not W.shape[1]:
        return
    left = (_times(taken, W) if taken is not None else 0.0) - rows.y[:, None].expand(-1, W.shape[1])
    if tests:
        sums[f"squares{k}"] += rows.c @ left.square()
    if fits:
        sums[f"slopes{k}"] += rows.adjoint(rows.c[:, None] * left).mT


def _times(taken: Tensor | tuple[SparseMatrix, np.ndarray], W: Tensor) -> Tensor:
    """X̃_A W of selected columns."""
    if isinstance(taken, Tensor):
        return taken @ W
    X, mean = taken
    return torch.from_numpy(X @ W.numpy()) - torch.from_numpy(mean) @ W


# ---------------------------------------------------------------------- rows of a block
@dataclass(frozen=True, eq=False)
class _Dense:
    X: Tensor
    y: Tensor
    s: Tensor

    def rows(self, mean: Tensor, middle: Tensor) -> Iterator[DenseRows]:
        step = max(1, CHUNK_NUMBERS // max(self.X.shape[1], 1))
        for i in range(0, len(self.y), step):
            some = slice(i, i + step)
            yield DenseRows(self.X[some] - mean, self.y[some] - middle, self.s[some])


@dataclass(frozen=True, eq=False)
class _Sparse:
    A: Tensor
    At: Tensor
    by_columns: SparseMatrix
    y: Tensor
    s: Tensor

    def rows(self, mean: Tensor, middle: Tensor) -> Iterator[SparseRows]:
        yield SparseRows(self.A, self.At, 1, mean, self.y - middle, self.s, lambda: self.by_columns)


def _blocks(shard: Shard, cells: tuple[int, ...]) -> list[tuple[int, _Dense | _Sparse]]:
    """The cell and the rows of every block of this process, cached with the data."""
    cache = shard.design.cache
    if cache.get("cells", (None,))[0] != cells:
        rows: list[tuple[int, _Dense | _Sparse]] = []
        for c, X, target, s in cell_rows(shard, cells):
            y, w = torch.from_numpy(target), torch.from_numpy(s)
            if not len(y):
                continue
            if isinstance(X, np.ndarray):
                rows.append((c, _Dense(torch.from_numpy(X), y, w)))
                continue
            by_columns = X.tocsc()
            A = csr(X, X.shape)
            At = csr(by_columns, (X.shape[1], X.shape[0]))
            rows.append((c, _Sparse(A, At, by_columns, y, w)))
        cache["cells"] = (cells, rows)
    return cache["cells"][1]


def csr(S: SparseMatrix, shape: tuple[int, int]) -> Tensor:
    """A scipy matrix as torch CSR; a CSC matrix is the transpose of a CSR one."""
    ends, where, values = (torch.from_numpy(np.ascontiguousarray(x)) for x in (S.indptr, S.indices, S.data))
    return torch.sparse_csr_tensor(ends, where, values, shape, check_invariants=False)
