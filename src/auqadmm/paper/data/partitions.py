"""Ways to split rows over workers; every split is a list of blocks (X, y), ready for `Problem`.

    by_class            one class per worker: the hardest split
    iid                 equal shares of shuffled rows: the easiest
    dirichlet           the rows of each class, split in proportions drawn from Dirichlet(α): between the two
    classes_per_worker  k classes per worker, the rows of a class split evenly among its workers
    sizes               shuffled rows, a given number per worker
    by_column           by origin: one block per value of a site column

All but `by_class` give every row to exactly one block; all depend only on their arguments, and rows keep their
order inside a block.

Shapes: n rows; X (n, m), y (n,).

`partition_table` counts rows per class and worker.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from auqadmm.checks import whole_number
from auqadmm.errors import InputError

Blocks = list[tuple[np.ndarray, np.ndarray]]


def by_class(X: ArrayLike, y: ArrayLike, per_class: int | None = None, classes: Iterable[Any] | None = None) -> Blocks:
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
        per_class = whole_number("per_class", per_class, 1)
    blocks = []
    for label in np.unique(y) if classes is None else classes:
        rows = np.flatnonzero(y == label)
        if len(rows) < (per_class or 1):
            raise InputError(f"Class {label} has {len(rows)} rows, {per_class or 'at least 1'} are asked for.")
        rows = rows[:per_class]
        blocks.append((X[rows], y[rows]))
    return blocks


def iid(X: ArrayLike, y: ArrayLike, blocks: int, seed: int) -> Blocks:
    """Shuffle, then split into shares whose sizes differ by at most one row."""
    X, y = _rows(X, y)
    shares = _count(blocks, len(y))
    return _take(X, y, np.array_split(np.random.default_rng(seed).permutation(len(y)), shares))


def dirichlet(X: ArrayLike, y: ArrayLike, blocks: int, alpha: float, seed: int) -> Blocks:
    """Split each class in proportions drawn from Dirichlet(alpha); a small alpha leaves few classes per block.

    A block may end up empty, which `Problem` accepts.
    """
    X, y = _rows(X, y)
    shares = _count(blocks, len(y))
    if not 0 < alpha < math.inf:
        raise InputError(f"alpha must be a positive finite number, got {alpha!r}.")
    rng = np.random.default_rng(seed)
    parts: list[list[np.ndarray]] = [[] for _ in range(shares)]
    for label in np.unique(y):
        rows = rng.permutation(np.flatnonzero(y == label))
        ends = np.rint(np.cumsum(rng.dirichlet(np.full(shares, float(alpha)))) * len(rows)).astype(int)
        for part, piece in zip(parts, np.split(rows, ends[:-1]), strict=True):
            part.append(piece)
    return _take(X, y, [np.concatenate(part) for part in parts])


def classes_per_worker(X: ArrayLike, y: ArrayLike, blocks: int, k: int, seed: int) -> Blocks:
    """Every worker has rows of exactly k classes, every class has a worker.

    Classes get numbers of workers as equal as possible, drawn at random, and their rows are split evenly among
    those; a class with fewer rows than that gets as many workers as it has rows.

    Parameters
    ----------
    k
        Classes per worker. blocks·k must reach the number of classes, or some would be left out.
    """
    X, y = _rows(X, y)
    shares, each = _count(blocks, len(y)), whole_number("k", k, 1)
    labels, counts = np.unique(y, return_counts=True)
    if each > len(labels):
        raise InputError(f"There are {len(labels)} classes, a worker cannot hold {each}.")
    if shares * each < len(labels):
        raise InputError(
            f"{shares} workers with {each} classes each hold {shares * each} at most, there are {len(labels)} classes; "
            f"k must be at least {-(-len(labels) // shares)}, or blocks at least {-(-len(labels) // each)}."
        )
    room = np.minimum(counts, shares)  # every holder needs at least one row
    if room.sum() < shares * each:
        raise InputError(
            f"{shares} workers with {each} classes each need {shares * each} rows of the right classes, there are "
            f"{room.sum()}; choose fewer blocks or a smaller k."
        )
    rng = np.random.default_rng(seed)
    holders = np.ones(len(labels), dtype=int)
    while (left := shares * each - holders.sum()) > 0:  # one more for those with the fewest, where rows allow
        free = np.flatnonzero(holders < room)
        fewest = free[holders[free] == holders[free].min()]
        holders[rng.permutation(fewest)[:left]] += 1
    parts: list[list[np.ndarray]] = [[] for _ in range(shares)]
    for label, members in zip(labels, _deal(holders, shares, each, rng), strict=True):
        rows = rng.permutation(np.flatnonzero(y == label))
        for j, piece in zip(rng.permutation(members), np.array_split(rows, len(members)), strict=True):
            parts[j].append(piece)
    return _take(X, y, [np.concatenate(part) for part in parts])


def _deal(holders: np.ndarray, workers: int, each: int, rng: np.random.Generator) -> list[list[int]]:
    """For each class its `holders` workers, `each` different classes per worker.

    Every worker takes the classes with the most places left. This succeeds (Gale and Ryser): a class never has more
    places left than there are remaining workers.
    """
    left = holders.copy()
    members: list[list[int]] = [[] for _ in holders]
    for j in rng.permutation(workers).tolist():
        order = rng.permutation(len(left))  # ties at random
        for c in order[np.argsort(-left[order], kind="stable")[:each]]:
            members[c].append(j)
            left[c] -= 1
    return members


def sizes(X: ArrayLike, y: ArrayLike, sizes: Sequence[int], seed: int) -> Blocks:
    """Shuffle, then split into blocks of the given sizes, which must add up to the number of rows."""
    X, y = _rows(X, y)
    if any(isinstance(n, bool) or n != int(n) or n < 0 for n in sizes) or sum(sizes) != len(y):
        raise InputError(f"sizes must be whole numbers ≥ 0 that add up to the {len(y)} rows, got {list(sizes)}.")
    ends = np.cumsum(np.asarray(sizes, dtype=int))
    return _take(X, y, np.split(np.random.default_rng(seed).permutation(len(y)), ends[:-1]))


def by_column(X: ArrayLike, y: ArrayLike, column_values: ArrayLike) -> Blocks:
    """One block per distinct value of a column such as the hospital or the sensor, in the order of `sites`.

    Parameters
    ----------
    column_values
        One value per row, all numbers or all texts. A row without one (None, NaN, an empty text) is refused.
    """
    X, y = _rows(X, y)
    names, place = _sites(column_values)
    if len(place) != len(y):
        raise InputError(f"column_values has {len(place)} values, there are {len(y)} rows.")
    return [(X[rows], y[rows]) for rows in (np.flatnonzero(place == j) for j in range(len(names)))]


def sites(column_values: ArrayLike) -> list[Any]:
    """The distinct values of a column, sorted: the names of the blocks of `by_column`."""
    return _sites(column_values)[0]


def _sites(values: ArrayLike) -> tuple[list[Any], np.ndarray]:
    """The sorted distinct values, and the index of each row's value."""
    # without dtype=object a list such as ["a", nan] would become the strings "a", "nan"
    values = np.asarray(values) if hasattr(values, "dtype") else np.asarray(values, dtype=object)
    if values.ndim != 1:
        raise InputError(f"column_values must be one value per row, got shape {values.shape}.")
    if values.dtype.kind == "O":
        missing = np.array([_is_missing(value) for value in values], dtype=bool)
    elif values.dtype.kind in "US":
        missing = np.char.str_len(np.char.strip(values)) == 0
    else:
        missing = values != values  # NaN and NaT, the only values that differ from themselves
    if missing.any():
        rows = np.flatnonzero(missing)
        more = f" (and {len(rows) - 1} more)" if len(rows) > 1 else ""
        raise InputError(f"column_values: row {rows[0]}{more} has no value; fill it in or leave the row out.")
    try:
        names, place = np.unique(values, return_inverse=True)
    except TypeError:
        kinds = sorted({type(value).__name__ for value in values})
        raise InputError(
            f"column_values holds {' and '.join(kinds)}, which have no order; make them all numbers or all texts."
        ) from None
    return names.tolist(), place


def _is_missing(value: object) -> bool:
    if value is None or (isinstance(value, str | bytes) and not value.strip()):
        return True
    try:
        return bool(value != value)
    except (TypeError, ValueError):  # pandas.NA is neither equal nor different
        return True


def _take(X: np.ndarray, y: np.ndarray, parts: Sequence[np.ndarray]) -> Blocks:
    return [(X[rows], y[rows]) for rows in map(np.sort, parts)]


def _rows(X: ArrayLike, y: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    X, y = np.asarray(X), np.asarray(y)
    if X.ndim != 2 or y.ndim != 1 or len(X) != len(y):
        raise InputError(f"X must be (rows, features) and y (rows,), got shapes {X.shape} and {y.shape}.")
    if len(y) == 0:
        raise InputError("There are no rows to split.")
    return X, y


def _count(blocks: int, rows: int) -> int:
    count = whole_number("blocks", blocks, 1)
    if count > rows:
        raise InputError(f"{rows} rows cannot be shared by {count} blocks.")
    return count


NONE = "–"


@dataclass(frozen=True)
class PartitionTable:
    """Rows per class of every worker: `counts[j][c]` rows of `classes[c]` with `workers[j]`."""

    workers: tuple[str, ...]
    classes: tuple[str, ...]
    counts: tuple[tuple[int, ...], ...]

    @property
    def totals(self) -> tuple[int, ...]:
        """Rows of each worker."""
        return tuple(sum(row) for row in self.counts)

    @property
    def class_totals(self) -> tuple[int, ...]:
        """Rows of each class."""
        return tuple(sum(row[c] for row in self.counts) for c in range(len(self.classes)))

    def header(self) -> tuple[str, ...]:
        """Names of the cells of a row."""
        return ("worker", *self.classes, "rows")

    def rows(self) -> tuple[tuple[str, ...], ...]:
        """The table as text, a worker per row and the sums in a last one; "–" where there are no rows."""
        lines = [*zip(self.workers, self.counts, strict=True), ("all", self.class_totals)]
        return tuple((name, *(_text(n) for n in (*counts, sum(counts)))) for name, counts in lines)


def partition_table(
    blocks: Sequence[tuple[Any, Any]], workers: Iterable[Any] | None = None, classes: Iterable[Any] | None = None
) -> PartitionTable:
    """Count the rows of every class in every block.

    Parameters
    ----------
    blocks
        Pairs (X, y) as the partitions return them; only y is used. Blocks may be empty.
    workers
        Names, one per block, e.g. those of `sites`; 0, 1, … if None.
    classes
        Labels, in the order of the columns, among them any that no block has; if None all that occur, sorted.
    """
    labels = [np.asarray(y) for _, y in blocks]
    names = tuple(str(name) for name in (range(len(labels)) if workers is None else workers))
    if len(names) != len(labels):
        raise InputError(f"There are {len(labels)} blocks and {len(names)} names of workers.")
    seen = [np.unique(y, return_counts=True) for y in labels]
    per_worker = [dict(zip(values.tolist(), counts.tolist(), strict=True)) for values, counts in seen]
    occurring = set().union(*per_worker)
    columns = sorted(occurring) if classes is None else np.asarray(list(classes)).tolist()
    if left_out := occurring.difference(columns):
        raise InputError(f"There are rows of the class {min(left_out)}, which is not one of {columns}.")
    counts = tuple(tuple(own.get(label, 0) for label in columns) for own in per_worker)
    return PartitionTable(names, tuple(_label(label) for label in columns), counts)


def _text(count: int) -> str:
    return str(count) if count else NONE


def _label(label: object) -> str:
    """1.0 without its trailing zero: 1."""
    return f"{label:g}" if isinstance(label, float) else str(label)
