"""From user input to checked blocks: one clear sentence for each thing that cannot be used.

A block is `(X, y)`, `(X, y, sample_weight)` or `(X, y, sample_weight, offset)`; X is numpy, torch, scipy.sparse, a
data frame or nested lists.

Workers may read their blocks themselves. What `Problem(blocks=…)` takes besides a list of arrays:

    a function `blocks(rank, world)`                     the blocks of one process
    a list of functions, one per block                   `Readers`: a process calls those of its share
    (X, y), (X, y, sample_weight) or                     `Chunks`: every chunk of rows, every partition is a block
    (X, y, sample_weight, offset) of dask
    a list of dask.delayed, one per block                the same; each gives such a tuple

All of them become functions `blocks(rank, world)`, which any engine can call. An engine that can do better (Dask, which
knows where its chunks are) checks their type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse
import torch

from auqadmm.blocks.shard import RawBlock
from auqadmm.errors import InputError


def read_blocks(blocks: Any, first: int = 0) -> tuple[RawBlock, ...]:
    """Check the blocks of one process and convert them to one form; `first` is the number of its first block."""
    if isinstance(blocks, np.ndarray | torch.Tensor) or not isinstance(blocks, Sequence):
        raise InputError(
            f"blocks must be a list of (X, y) or (X, y, sample_weight) tuples, one per worker; got {_kind(blocks)}."
        )
    read = tuple(_read_block(f"block {first + j}", b) for j, b in enumerate(blocks))
    same_columns([(b.name, b.columns) for b in read if b.columns is not None])
    for b in read:
        if b.X.shape[1] != read[0].X.shape[1]:
            raise InputError(
                f"{b.name} has {b.X.shape[1]} features but {read[0].name} has {read[0].X.shape[1]}; "
                "every block needs the same columns in the same order."
            )
    return read


def same_columns(named: Sequence[tuple[str, tuple[str, ...]]]) -> None:
    """Data frames, (block, columns) each, must agree on the names and the order of their columns."""
    for block, theirs in named:
        first, ours = named[0]
        if ours != theirs and len(ours) == len(theirs):
            j = next(j for j in range(len(ours)) if ours[j] != theirs[j])
            raise InputError(
                f"{block} has {theirs[j]!r} where {first} has {ours[j]!r} (column {j}); give every block the "
                "same columns in the same order."
            )


def _read_block(name: str, block: object) -> RawBlock:
    if isinstance(block, RawBlock):  # blocks of another problem, e.g. for another regularizer
        return block
    if not isinstance(block, tuple | list) or len(block) not in (2, 3, 4):
        got = f"{len(block)} parts" if isinstance(block, tuple | list) else _kind(block)
        raise InputError(
            f"{name} must be a tuple (X, y), (X, y, sample_weight) or (X, y, sample_weight, offset); got {got}."
        )
    X = _read_matrix(name, block[0])
    y = _read_vector(name, "y", block[1], X.shape[0], columns=True)
    given = len(block) > 2 and block[2] is not None
    weight = _read_weight(name, block[2], X.shape[0]) if given else np.ones(X.shape[0])
    offset = _read_offset(name, block[3], X.shape[0]) if len(block) == 4 and block[3] is not None else None
    columns = getattr(block[0], "columns", None)
    names = None if columns is None else tuple(str(c) for c in columns)
    return RawBlock(name, X, y, weight, weighted=given, columns=names, offset=offset)


def _read_matrix(name: str, X: Any) -> Any:
    columns = getattr(X, "columns", None)
    if scipy.sparse.issparse(X):
        if X.ndim != 2:
            raise InputError(f"{name}: X must be a matrix (rows, features); got a sparse array of shape {X.shape}.")
        X = X.tocsr()
        if X.shape[1] == 0:
            raise InputError(f"{name}: X has no columns; a model needs at least one feature.")
        _check_number_type(name, "X", X.dtype)
        X = X.astype(np.promote_types(X.dtype, np.float32), copy=False)
        bad = np.flatnonzero(~np.isfinite(X.data))
        if bad.size:
            row = int(np.searchsorted(X.indptr, bad[0], side="right")) - 1
            raise _not_finite(name, row, int(X.indices[bad[0]]), X.data[bad[0]], columns)
        return X
    X = _to_numpy(name, "X", X)
    if X.ndim != 2:
        raise InputError(f"{name}: X must be a matrix (rows, features); got an array of shape {X.shape}.")
    if X.shape[1] == 0:
        raise InputError(f"{name}: X has no columns; a model needs at least one feature.")
    _check_number_type(name, "X", X.dtype)
    X = X.astype(np.promote_types(X.dtype, np.float32), copy=False)
    # the sum is finite for all but extreme data, and costs no array of flags
    with np.errstate(over="ignore", invalid="ignore"):
        suspicious = not np.isfinite(X.sum())
    if suspicious:
        rows, cols = np.nonzero(~np.isfinite(X))
        if rows.size:
            row, col = int(rows[0]), int(cols[0])
            raise _not_finite(name, row, col, X[row, col], columns)
    return X


def _read_vector(name: str, what: str, y: object, rows: int, columns: bool = False) -> np.ndarray:
    """One value per row; `columns`: or several, which losses of one column refuse later."""
    if y is None:
        raise InputError(f"{name}: {what} is missing (None); pass one value per row of X.")
    y = _to_numpy(name, what, y)
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim != 1 and not (columns and y.ndim == 2 and len(y) == rows):
        raise _not_one_column(name, what, y)
    if len(y) != rows:
        raise InputError(f"{name}: X has {rows} rows but {what} has {len(y)} values.")
    return y


def _not_one_column(name: str, what: str, y: np.ndarray) -> InputError:
    return InputError(f"{name}: {what} must have one value per row of X; got an array of shape {y.shape}.")


def _read_weight(name: str, weight: object, rows: int) -> np.ndarray:
    w = _read_vector(name, "sample_weight", weight, rows)
    _check_number_type(name, "sample_weight", w.dtype)
    w = w.astype(np.float64)
    bad = np.flatnonzero(~np.isfinite(w) | (w < 0))
    if bad.size:
        raise InputError(f"{name}: sample_weight[{bad[0]}] is {w[bad[0]]}; weights must be finite and not negative.")
    return w


def _read_offset(name: str, offset: object, rows: int) -> np.ndarray:
    o = _read_vector(name, "offset", offset, rows)
    _check_number_type(name, "offset", o.dtype)
    o = o.astype(np.float64)
    bad = np.flatnonzero(~np.isfinite(o))
    if bad.size:
        raise InputError(
            f"{name}: offset[{bad[0]}] is {o[bad[0]]}; offsets must be finite (that of an exposure is its logarithm, "
            "and exposures are above zero)."
        )
    return o


def read_reals(name: str, y: np.ndarray, columns: int = 1) -> np.ndarray:
    """Targets of a regression: finite numbers, one per row, or an array where a loss takes several `columns`."""
    if columns == 1 and y.ndim > 1:
        raise _not_one_column(name, "y", y)
    if y.dtype == object or y.dtype.kind in "US":
        try:
            y = y.astype(np.float64)
        except (TypeError, ValueError):
            raise InputError(
                f"{name}: y holds {y.dtype} values but this loss needs numbers; encode them or use a "
                "classification loss."
            ) from None
    _check_number_type(name, "y", y.dtype)
    y = y.astype(np.float64)
    bad = np.argwhere(~np.isfinite(y))
    if bad.size:
        where = ", ".join(map(str, bad[0]))
        raise InputError(f"{name}: y[{where}] is {y[tuple(bad[0])]}; remove or impute rows without a target.")
    return y


def labels_of(block: RawBlock) -> np.ndarray:
    """The distinct labels of one block, sorted; a missing label is an error."""
    y = block.y
    if y.ndim > 1:
        raise _not_one_column(block.name, "y", y)
    if y.dtype.kind == "f":
        missing = np.isnan(y)
    elif y.dtype.kind in "mM":
        missing = np.isnat(y)
    elif y.dtype == object:
        missing = np.array([is_missing(v) for v in y], dtype=bool)
    else:
        missing = np.zeros(len(y), dtype=bool)
    if missing.any():
        i = int(np.flatnonzero(missing)[0])
        raise InputError(f"{block.name}: the label y[{i}] is missing ({y[i]}); remove the row or label it.")
    if y.dtype == object:
        kinds = sorted({type(v).__name__ for v in y})
        if len(kinds) > 1 and not {*kinds} <= {"int", "float", "bool"}:
            raise InputError(f"{block.name}: labels mix types ({', '.join(kinds)}); use one type for all labels.")
        y = np.array(y.tolist())
    if y.ndim != 1 or y.dtype == object:
        raise InputError(f"{block.name}: labels must be plain numbers, text or dates, one per row.")
    return np.unique(y)


def agree_on_classes(per_block: Sequence[np.ndarray]) -> np.ndarray:
    """The sorted union of all labels; numbers and strings do not mix."""
    present = [c for c in per_block if len(c)]
    if not present:
        raise InputError("No block holds a label: at least one block must hold rows.")
    kinds = {_label_kind(c.dtype) for c in present}
    if len(kinds) > 1:
        raise InputError(
            f"Some blocks have {' and others '.join(sorted(kinds))} as labels; use one type for all labels."
        )
    dtype = np.result_type(*[c.dtype for c in present])
    for c in present:
        if len(np.unique(c.astype(dtype))) < len(c):
            raise InputError(
                f"Some labels of type {c.dtype} become equal as {dtype}, the common type of all blocks; use smaller "
                "integers or text."
            )
    return np.unique(np.concatenate([c.astype(dtype) for c in present]))


def is_missing(v: object) -> bool:
    """None, NaN, NaT or pandas.NA."""
    try:
        return v is None or bool(v != v)
    except (TypeError, ValueError):  # pandas.NA is neither equal nor different
        return True


def _label_kind(dtype: np.dtype) -> str:
    return {"U": "text", "S": "bytes", "M": "dates", "m": "durations", "O": "objects"}.get(dtype.kind, "numbers")


def encode(block: RawBlock, classes: np.ndarray) -> np.ndarray:
    """Labels -> positions in `classes`."""
    return np.searchsorted(classes, block.y.astype(classes.dtype)).astype(np.int64)


def _to_numpy(name: str, what: str, x: object) -> np.ndarray:
    if isinstance(x, torch.Tensor):
        if x.dtype in (torch.float16, torch.bfloat16):
            raise _half_precision(name, what, str(x.dtype).removeprefix("torch."))
        if x.layout != torch.strided:
            raise InputError(
                f"{name}: {what} is a sparse torch tensor; convert it to scipy.sparse (csr_matrix) or call .to_dense()."
            )
        return x.detach().cpu().numpy()
    if isinstance(x, np.ma.MaskedArray) and np.ma.is_masked(x):
        i = int(np.flatnonzero(np.ma.getmaskarray(x).reshape(x.shape[0], -1).any(1))[0])
        raise InputError(f"{name}: {what} has a masked (missing) value in row {i}; remove or impute it.")
    try:
        return np.asarray(x)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name}: {what} cannot be read as an array ({error}).") from None


def _check_number_type(name: str, what: str, dtype: np.dtype) -> None:
    if dtype == np.float16:
        raise _half_precision(name, what, "float16")
    if dtype.kind not in "fiub":
        raise InputError(
            f"{name}: {what} holds {dtype} values; it must hold real numbers (encode text and dates first)."
        )


def _half_precision(name: str, what: str, dtype: str) -> InputError:
    return InputError(f"{name}: {what} is {dtype}, too coarse to optimise on; convert it to float32 or float64 first.")


def _not_finite(name: str, row: int, col: int, value: object, columns: Sequence[str] | None) -> InputError:
    label = f" (column {str(columns[col])!r})" if columns is not None else ""
    return InputError(f"{name}: X[row {row}, column {col}]{label} is {value}; remove or impute it before solving.")


def _kind(x: object) -> str:
    return f"{type(x).__name__}"


def source_of(blocks: Any) -> Any:
    """`blocks` as a function of rank and world, or unchanged if they are in memory already."""
    parts = [b for k, b in enumerate(blocks) if k < 2 or b is not None] if isinstance(blocks, tuple) else []
    if parts and all(map(is_dask, parts)) and not any(map(_is_delayed, parts)):
        return Chunks.of(*blocks)
    if is_dask(blocks) and not _is_delayed(blocks):
        raise InputError(f"blocks is a {type(blocks).__name__} of dask; pass (X, y) or (X, y, sample_weight, offset).")
    if isinstance(blocks, list | tuple):
        if any(is_dask(b) or (isinstance(b, tuple | list) and any(map(is_dask, b))) for b in blocks):
            return Chunks.listed(blocks)
        if any(callable(b) for b in blocks):
            return Readers(tuple(blocks))
    return blocks


def share(count: int, rank: int, world: int) -> range:
    """The numbers of process `rank`: consecutive, and evenly split."""
    return range(count * rank // world, count * (rank + 1) // world)


def blamed(number: int, error: BaseException) -> InputError:
    """What is wrong with reading a block."""
    text = " ".join(str(error).split())
    return InputError(f"block {number} cannot be read: {type(error).__name__}: {text}".rstrip(": ") + ".")


@dataclass(frozen=True)
class Readers:
    """One function per block, called on the block's worker. Blocks already in memory may be among them."""

    functions: tuple[Any, ...]
    first: int = 0

    def __call__(self, rank: int, world: int) -> list[Any]:
        return [self._block(j) for j in share(len(self.functions), rank, world)]

    def part(self, numbers: range) -> Readers:
        """A subset; blocks keep their numbers."""
        return Readers(self.functions[numbers.start : numbers.stop], self.first + numbers.start)

    def _block(self, j: int) -> Any:
        given = self.functions[j]
        if not callable(given):
            return given
        try:
            return given()
        except Exception as error:
            raise blamed(self.first + j, error) from error


@dataclass(frozen=True)
class Whole:
    """All blocks of some readers, for any rank."""

    source: Readers

    def __call__(self, rank: int, world: int) -> list[Any]:
        return self.source(0, 1)


@dataclass(frozen=True)
class Chunks:
    """One dask.delayed per block. `alive`: references to their inputs, which Dask would release otherwise."""

    parts: tuple[Any, ...]
    alive: tuple[Any, ...] = ()

    @staticmethod
    def of(*collections: Any) -> Chunks:
        """X, y, sample_weight and offset, split into the same chunks of rows; the last two may be None."""
        if len(collections) not in (2, 3, 4):
            raise InputError(f"blocks must be (X, y[, sample_weight[, offset]]) of dask; got {len(collections)} parts.")
        X = collections[0]
        first = pieces(X, X)
        columns = [first, *([None] * len(first) if c is None else pieces(c, X) for c in collections[1:])]
        for name, column in zip(("y", "sample_weight", "offset"), columns[1:], strict=False):
            if len(column) != len(columns[0]):
                raise InputError(
                    f"X has {len(columns[0])} chunks of rows but {name} has {len(column)}; cut both alike (rechunk, "
                    "repartition)."
                )
        return Chunks.listed(list(zip(*columns, strict=True)), [c for c in collections if c is not None])

    @staticmethod
    def listed(blocks: Sequence[Any], alive: Sequence[Any] = ()) -> Chunks:
        from dask import delayed

        parts = tuple(b if _is_delayed(b) else delayed(_block, pure=False)(b) for b in blocks)
        return Chunks(parts, tuple(alive or blocks))

    def __call__(self, rank: int, world: int) -> list[Any]:
        return [self._computed(j) for j in share(len(self.parts), rank, world)]

    def _computed(self, j: int) -> Any:
        try:
            return self.parts[j].compute()
        except Exception as error:
            raise blamed(j, error) from error


def _block(parts: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(parts)


def is_dask(x: object) -> bool:
    """Is it a dask collection? Checked without importing dask."""
    return type(x).__module__.split(".")[0].startswith("dask") and hasattr(x, "compute")


def _is_delayed(x: object) -> bool:
    return is_dask(x) and not hasattr(x, "to_delayed")


def pieces(x: Any, like: Any) -> list[Any]:
    """The chunks of rows of an array, the partitions of a data frame."""
    if not hasattr(x, "chunks"):
        return list(x.to_delayed())
    if x.ndim == 2 and x.numblocks[1] > 1:
        x = x.rechunk({1: -1})
    if hasattr(like, "chunks") and x.shape[0] == like.shape[0] and x.chunks[0] != like.chunks[0]:
        x = x.rechunk({0: like.chunks[0]})
    return list(x.to_delayed().ravel())


Source = Callable[[int, int], Sequence[Any]]
