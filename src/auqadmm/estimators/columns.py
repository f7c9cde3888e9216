"""Least squares in some columns: what workers send where a full Gram matrix is too large (`wide.py`).

A *group* is a set of cells (`moments.py`) that models are fitted to, e.g. all folds but one, centred at its own means μ
and ȳ. Of all its columns two numbers each are sent once,

    p = Σs x̃ỹ,   D = Σs x̃²        and S = Σs, q = Σs ỹ²

and afterwards, round by round, products G_NA and G_NN of new columns N with the known ones A, each once, and
for models w on A

    Σs x̃(x̃ᵀw − ỹ)  over the rows of the group,   Σs(x̃ᵀw − ỹ)²  over its test rows

Workers keep means and A from round to round.

Shapes: g groups, c cells, m features, M models of a group; p, D, means (g, m), S, q, middles (g,).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from auqadmm.blocks.shard import Shard

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from auqadmm.blocks.exact_rows import CHUNK_NUMBERS, DenseRows, SparseRows
from auqadmm.estimators.moments import Sums, cell_rows
from auqadmm.estimators.types import SparseMatrix
from auqadmm.metrics.triangles import pack

Masks = tuple[tuple[bool, ...], ...]


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
    cache = shard.design.held
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
