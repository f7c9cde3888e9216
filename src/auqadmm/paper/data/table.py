"""Who holds what: rows per class and worker, as a small table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from auqadmm.errors import InputError

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
        Pairs (X, y) as the partitions give them; only y is looked at. Blocks may be empty.
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
    found = [dict(zip(values.tolist(), counts.tolist(), strict=True)) for values, counts in seen]
    occurring = set().union(*found)
    columns = sorted(occurring) if classes is None else np.asarray(list(classes)).tolist()
    if left_out := occurring.difference(columns):
        raise InputError(f"There are rows of the class {min(left_out)}, which is not one of {columns}.")
    counts = tuple(tuple(held.get(label, 0) for label in columns) for held in found)
    return PartitionTable(names, tuple(_label(label) for label in columns), counts)


def _text(count: int) -> str:
    return str(count) if count else NONE


def _label(label: object) -> str:
    """1.0 as people write it: 1."""
    return f"{label:g}" if isinstance(label, float) else str(label)
