"""The summaries of all workers together: one encoding for all, the classes, the mean of the target.

Refuses what no worker can detect alone: different columns, a column that is text in one file and
numbers in another, a single class.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from auqadmm.files.preprocessing.encoding import Column, Encoding
from auqadmm.files.preprocessing.summary import FEW_CLASSES, MOST_CLASSES, Settings, Summary
from auqadmm.problem import InputError
from auqadmm.words import listed, quoted


@dataclass(frozen=True)
class Agreed:
    """The common knowledge of all workers after one exchange. `blocks`: name, rows, classes of every worker."""

    encoding: Encoding
    classes: tuple[Any, ...] | None
    target_mean: float
    rows: int
    blocks: tuple[tuple[str, int, int], ...]


def merge(summaries: Sequence[Summary], settings: Settings) -> Agreed:
    """The order of the summaries matters only to rounding."""
    if not sum(s.weight for s in summaries) > 0:
        raise InputError(f"{summaries[0].source}: every weight is zero; at least one row must count.")
    sparse = {s.sparse for s in summaries}
    if len(sparse) > 1:
        odd = next(s for s in summaries if s.sparse != summaries[0].sparse)
        raise InputError(f"{odd.source} is sparse or {summaries[0].source} is, but not both; use one format for all.")
    encoding = _sparse_encoding(summaries, settings) if sparse == {True} else _encoding(summaries, settings)
    target = [s.target for s in summaries if s.target is not None]
    return Agreed(
        encoding=encoding,
        classes=_classes(summaries) if summaries[0].labels is not None else None,
        target_mean=float(_added([np.array(t)[:, None] for t in target])[1, 0]) if target else 0.0,
        rows=sum(s.rows for s in summaries),
        blocks=tuple(block for s in summaries for block in s.blocks),
    )


# ---------------------------------------------------------------------- columns
def _encoding(summaries: Sequence[Summary], settings: Settings) -> Encoding:
    first = summaries[0]
    for s in summaries[1:]:
        _same_header(first, s)
    kinds = {name: _kind(name, summaries) for name in first.kinds}
    numbers = [name for name, kind in kinds.items() if kind == "number"]
    texts = [name for name, kind in kinds.items() if kind == "text"]
    parts = []
    for s in summaries:
        place = {name: k for k, name in enumerate(n for n, kind in s.kinds.items() if kind == "number")}
        sums = [s.moments[:, place[name]] if name in place else np.zeros(3) for name in numbers]
        parts.append(np.stack(sums, axis=1) if sums else np.zeros((3, 0)))
    moments = _added(parts)
    total = sum(s.weight for s in summaries)
    mean, scale = _standard(moments, numbers, total)
    return Encoding(
        columns=tuple(
            [Column(name) for name in numbers] + [_category(name, summaries, settings.impute) for name in texts]
        ),
        mean=mean if settings.standardize else np.zeros(len(numbers)),
        scale=scale if settings.standardize else np.ones(len(numbers)),
        fill=mean if settings.impute else None,
        drop_first=settings.drop_first,
        named=first.named,
    )


def _sparse_encoding(summaries: Sequence[Summary], settings: Settings) -> Encoding:
    """Features go by number; a file without the last ones has zeros there."""
    width = max(s.moments.shape[1] for s in summaries)
    lowest = min(s.lowest for s in summaries)
    if width <= lowest:
        raise InputError(f"{summaries[0].source}: there is not a single feature; a model needs at least one.")
    parts = []
    for s in summaries:
        moments = np.zeros((3, width))
        moments[0] = s.weight
        moments[:, : s.moments.shape[1]] = s.moments
        parts.append(moments[:, lowest:])
    names = [str(k) for k in range(lowest, width)]
    total = sum(s.weight for s in summaries)
    _, scale = _standard(_added(parts), names, total)
    count = len(names)
    return Encoding(
        columns=tuple(Column(name) for name in names),
        mean=np.zeros(count),  # centring would fill the matrix
        scale=scale if settings.standardize else np.ones(count),
        fill=None,
        sparse=True,
        named=False,
    )


def _same_header(one: Summary, other: Summary) -> None:
    for have, lack in ((one, other), (other, one)):
        absent = [name for name in have.kinds if name not in lack.kinds]
        if absent:
            raise InputError(
                f"{lack.source} lacks column {quoted(absent[0])}, which {have.source} has; give all files the same "
                "columns, or choose them with --features."
            )


def _kind(name: str, summaries: Sequence[Summary]) -> str:
    text = next((s for s in summaries if s.kinds[name] == "text"), None)
    number = next((s for s in summaries if s.kinds[name] == "number"), None)
    if text is not None and number is not None:
        row, value = text.examples[name]
        raise InputError(
            f"Column {quoted(name)} holds text in {text.source} (row {row}: {quoted(value)}) but numbers in "
            f"{number.source}; mend the value, or list the column in --categorical."
        )
    if text is None and number is None:
        raise InputError(
            f"{summaries[0].source}: column {quoted(name)} has no value in any row; leave it out (--drop)."
        )
    return "number" if text is None else "text"


def _category(name: str, summaries: Sequence[Summary], impute: str | None) -> Column:
    mass: dict[str, float] = {}
    for s in summaries:
        for level, weight in s.levels.get(name, {}).items():
            mass[level] = mass.get(level, 0.0) + weight
    levels = tuple(sorted(mass))
    # of equally frequent values the first in order, as in scikit-learn
    return Column(name, levels, min(levels, key=lambda level: (-mass[level], level)) if impute else None)


# ---------------------------------------------------------------------- sums
def _added(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Moments of all parts together, each (3, p)."""
    total = parts[0]
    for part in parts[1:]:
        n = total[0] + part[0]
        share = part[0] / np.where(n > 0, n, 1.0)  # no value in any file: nothing to add
        with np.errstate(over="ignore", invalid="ignore"):
            step = part[1] - total[1]
            mean = total[1] + step * share
            square = total[2] + part[2] + np.square(step) * total[0] * share
        total = np.stack([n, mean, square])
    return total


def _standard(moments: np.ndarray, names: Sequence[str], total: float) -> tuple[np.ndarray, np.ndarray]:
    """Means and standard deviations; missing rows, filled with the mean, count in the deviation."""
    _, mean, square = moments
    variance = square / total
    bad = np.flatnonzero(~np.isfinite(mean) | ~np.isfinite(variance))
    if bad.size:
        raise InputError(
            f"Column {quoted(names[bad[0]])} holds numbers too large to be squared; rescale it in all files, or leave "
            "it out (--drop)."
        )
    # the deviation of a constant column is rounding error, which must not be scaled up
    eps = np.finfo(np.float64).eps
    constant = variance <= total * eps * variance + np.square(total * mean * eps)
    return mean, np.where(constant, 1.0, np.sqrt(variance))


# ---------------------------------------------------------------------- labels
def _classes(summaries: Sequence[Summary]) -> tuple[Any, ...]:
    """The sorted union of all labels."""

    def kind(label: Any) -> str:
        return "text" if isinstance(label, str) else "truth values" if isinstance(label, bool) else "numbers"

    kinds = [(s, kind(label)) for s in summaries for label in (s.labels or ())[:1]]
    for s, what in kinds:
        if what != kinds[0][1]:
            raise InputError(
                f"The target holds {what} in {s.source} but {kinds[0][1]} in {kinds[0][0].source}; use one kind of "
                "label."
            )
    labels = {label for s in summaries for label in s.labels or ()}
    if kinds[0][1] == "numbers" and all(float(label).is_integer() for label in labels):
        labels = {int(label) for label in labels}
    classes = tuple(sorted(labels))
    if len(classes) == 1:
        files = listed_sources(summaries)
        raise InputError(f"All rows of {files} have the label {quoted(classes[0])}; at least two classes are needed.")
    fractions = kinds[0][1] == "numbers" and not all(isinstance(label, int) for label in classes)
    measured = fractions and len(classes) > FEW_CLASSES and 2 * len(classes) > sum(s.rows for s in summaries)
    if len(classes) > MOST_CLASSES or measured:
        raise InputError(
            f"The target has {len(classes)} different values ({listed(classes)}), too many for classes; for a number "
            "as target use --model elastic-net."
        )
    return classes


def listed_sources(summaries: Sequence[Summary]) -> str:
    names = list(dict.fromkeys(s.source for s in summaries))
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
