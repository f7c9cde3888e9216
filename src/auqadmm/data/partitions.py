"""Ways to split rows over workers; every split is a list of blocks (X, y), ready for `Problem`.

    by_class    one class per worker: the hardest split
    iid         equal shares of shuffled rows: the easiest
    dirichlet   the rows of each class, shared out in proportions drawn from Dirichlet(α): between the two
    sizes       shuffled rows, a given number per worker

`iid`, `dirichlet` and `sizes` give every row to exactly one block and depend on nothing but their arguments; rows
keep their order inside a block.

Shapes: n rows; X (n, m), y (n,).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

Blocks = list[tuple[np.ndarray, np.ndarray]]


def by_class(X: Any, y: Any, per_class: int | None = None, classes: Iterable[Any] | None = None) -> Blocks:
    """One block per class, each its first `per_class` rows in the order given.

    Parameters
    ----------
    per_class
        Rows per block; None for all.
    classes
        Which classes, in which order; None for all, sorted.
    """
    X, y = _rows(X, y)
    if per_class is not None:
        per_class = _whole("per_class", per_class)
    blocks = []
    for label in np.unique(y) if classes is None else classes:
        rows = np.flatnonzero(y == label)
        if len(rows) < (per_class or 1):
            raise ValueError(f"Class {label} has {len(rows)} rows, {per_class or 'at least 1'} are asked for.")
        rows = rows[:per_class]
        blocks.append((X[rows], y[rows]))
    return blocks


def iid(X: Any, y: Any, blocks: int, seed: int) -> Blocks:
    """Shuffle, then cut into shares whose sizes differ by at most one row."""
    X, y = _rows(X, y)
    shares = _count(blocks, len(y))
    return _take(X, y, np.array_split(np.random.default_rng(seed).permutation(len(y)), shares))


def dirichlet(X: Any, y: Any, blocks: int, alpha: float, seed: int) -> Blocks:
    """Share out each class in proportions drawn from Dirichlet(alpha); a small alpha leaves few classes per block.

    A block may end up empty, which `Problem` accepts.
    """
    X, y = _rows(X, y)
    shares = _count(blocks, len(y))
    if not 0 < alpha < math.inf:
        raise ValueError(f"alpha must be a positive finite number, got {alpha!r}.")
    rng = np.random.default_rng(seed)
    parts: list[list[np.ndarray]] = [[] for _ in range(shares)]
    for label in np.unique(y):
        rows = rng.permutation(np.flatnonzero(y == label))
        ends = np.rint(np.cumsum(rng.dirichlet(np.full(shares, float(alpha)))) * len(rows)).astype(int)
        for part, piece in zip(parts, np.split(rows, ends[:-1]), strict=True):
            part.append(piece)
    return _take(X, y, [np.concatenate(part) for part in parts])


def sizes(X: Any, y: Any, sizes: Sequence[int], seed: int) -> Blocks:
    """Shuffle, then cut into blocks of the given sizes, which must add up to the number of rows."""
    X, y = _rows(X, y)
    if any(isinstance(n, bool) or n != int(n) or n < 0 for n in sizes) or sum(sizes) != len(y):
        raise ValueError(f"sizes must be whole numbers ≥ 0 that add up to the {len(y)} rows, got {list(sizes)}.")
    ends = np.cumsum(np.asarray(sizes, dtype=int))
    return _take(X, y, np.split(np.random.default_rng(seed).permutation(len(y)), ends[:-1]))


def _take(X: np.ndarray, y: np.ndarray, parts: Sequence[np.ndarray]) -> Blocks:
    return [(X[rows], y[rows]) for rows in map(np.sort, parts)]


def _rows(X: Any, y: Any) -> tuple[np.ndarray, np.ndarray]:
    X, y = np.asarray(X), np.asarray(y)
    if X.ndim != 2 or y.ndim != 1 or len(X) != len(y):
        raise ValueError(f"X must be (rows, features) and y (rows,), got shapes {X.shape} and {y.shape}.")
    if len(y) == 0:
        raise ValueError("There are no rows to split.")
    return X, y


def _whole(name: str, value: Any) -> int:
    if isinstance(value, bool) or value != int(value) or value < 1:
        raise ValueError(f"{name} must be a whole number ≥ 1, got {value!r}.")
    return int(value)


def _count(blocks: Any, rows: int) -> int:
    count = _whole("blocks", blocks)
    if count > rows:
        raise ValueError(f"{rows} rows cannot be shared by {count} blocks.")
    return count
