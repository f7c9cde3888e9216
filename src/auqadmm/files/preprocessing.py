"""Columns of many files as one matrix per worker, agreed upon without sharing rows.

    summarize   what one worker sends about its file: kinds of columns, categories, sums, labels, rows
    merge       the summaries of all workers together: one encoding for all, the classes, the mean of the target
    encoding    the columns of a file → its matrix (encoding.py)

    numbers      (x − mean) / standard deviation, both over the rows of all workers; sparse files are only scaled
    categories   one feature per category, in sorted order over all workers; all of them are kept (the penalty, not a
                 dropped level, makes the model unique) unless `drop_first` leaves out the first of each column
    missing      refused, or filled: numbers with the mean, categories with the most frequent one

Moments of a column are (weight, mean, Σ w(x − mean)²) over the rows that have a value: two such triples add up to the
triple of both parts without cancellation (Chan, Golub and LeVeque 1979), so that one message is enough.

`merge` refuses what no worker can detect alone: different columns, a column that is text in one file and
numbers in another, a single class, ids spread over small files, one label in two spellings (suspects.py).

Shapes: n rows, p columns of numbers; moments (3, p).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from auqadmm.files import suspects
from auqadmm.files.encoding import Column, Encoding, FormulaEncoding
from auqadmm.files.tabular import Coded, Sheet, refuse_row
from auqadmm.files.tabular_arrow import not_a_number
from auqadmm.problem import InputError
from auqadmm.words import listed, quoted

if TYPE_CHECKING:
    import scipy.sparse

AnyEncoding: TypeAlias = Encoding | FormulaEncoding

# ---------------------------------------------------------------------- of one file
MOST_CLASSES = 1000  # classes of a target beyond which it counts as numeric
FEW_CLASSES = 20  # up to so many fractional values may be labels, whatever the number of rows
AT_ONCE = 1 << 22  # numbers copied at a time


@dataclass(frozen=True)
class Settings:
    """How columns become features. `impute`: "mean" fills what is missing. `categorical`: columns that the user named,
    which may have any number of levels. `labels_as_written`: texts that differ by case or blanks alone are different.
    `advice`: what sentences may offer, options of a command or changes of a formula (suspects.py)."""

    standardize: bool = True
    one_hot: bool = True
    drop_first: bool = False
    impute: str | None = None
    categorical: tuple[str, ...] = ()
    labels_as_written: bool = False
    advice: str = suspects.OPTIONS


@dataclass(frozen=True)
class Summary:
    """One file, as sent to the others. `texts_at`: of every text column the first row that is no number, from 1; its
    value stays here. `levels`: of every text column its values, with how often they occur where that is needed.
    `factors`: of columns of numbers that a formula takes as categories, where sites are asked for them."""

    source: str
    rows: int
    weight: float
    kinds: Mapping[str, str]
    moments: np.ndarray
    levels: Mapping[str, Mapping[str, float]]
    texts_at: Mapping[str, int]
    labels: tuple[Any, ...] | None
    target: tuple[float, float, float] | None
    blocks: tuple[tuple[str, int, int], ...] = field(default=())
    sparse: bool = False
    named: bool = True
    lowest: int = 0
    dropped: int = 0
    factors: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)

    def message(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self) | {"moments": self.moments.tolist()}

    @staticmethod
    def read(message: Mapping[str, Any]) -> Summary:
        values = dict(message)
        values["moments"] = np.array(values["moments"], dtype=np.float64).reshape(3, -1)
        values["labels"] = None if values["labels"] is None else tuple(values["labels"])
        values["target"] = None if values["target"] is None else tuple(values["target"])
        values["blocks"] = tuple((name, rows, classes) for name, rows, classes in values["blocks"])
        return Summary(**values)


def summarize(sheet: Sheet, settings: Settings) -> Summary:
    """Everything that the other workers need to know about this file; refuses unusable values by row and column."""
    _check_texts(sheet, settings)
    _check_numbers(sheet, settings)
    weights = sheet.weights
    target = sheet.target
    labels = None
    if isinstance(target, Coded):
        present = np.unique(target.codes)
        if len(present) > MOST_CLASSES:
            raise InputError(
                f"{sheet.source}: the target has {len(present)} different values, too many for classes; for a number "
                "as target use --model elastic-net."
            )
        labels = tuple(target.levels[k] for k in present)
    return Summary(
        source=sheet.source,
        rows=sheet.rows,
        weight=float(weights.sum()),
        kinds=dict(sheet.kinds),
        moments=_sparse_moments(sheet.numbers, weights) if sheet.sparse else _moments(sheet.numbers, weights),
        levels={name: _counts(column, weights, settings) for name, column in sheet.texts.items()},
        texts_at={name: _example(column)[0] for name, column in sheet.texts.items()},
        labels=labels,
        target=_triple(target, weights) if isinstance(target, np.ndarray) and target.ndim == 1 else None,
        blocks=tuple((name, len(rows), _distinct(target, rows)) for name, rows in blocks_of(sheet)),
        sparse=sheet.sparse,
        named=sheet.named,
        lowest=_lowest(sheet),
        dropped=sheet.dropped,
    )


def blocks_of(sheet: Sheet) -> list[tuple[str, np.ndarray]]:
    """The workers of a file and their rows: the file itself, or one per site, in sorted order."""
    site = sheet.site
    if site is None:
        return [(sheet.source, np.arange(sheet.rows))]
    order = sorted(np.unique(site.codes).tolist(), key=lambda k: site.levels[k])
    return [(f"{sheet.source}, site {quoted(site.levels[k])}", np.flatnonzero(site.codes == k)) for k in order]


# ---------------------------------------------------------------------- checks
def _check_texts(sheet: Sheet, settings: Settings) -> None:
    for name, column in sheet.texts.items():
        if not settings.one_hot and name not in settings.categorical:
            row, text = _example(column)
            raise refuse_row(
                sheet.source,
                row - 1,
                name,
                f"is {quoted(text)}, a text",
                "leave the column out (--drop), or allow one-hot encoding (without --no-one-hot)",
            )
        if settings.impute is None and column.missing().size:
            raise _is_missing(sheet, int(column.missing()[0]), name)
        if name not in settings.categorical:
            suspects.refuse_own_texts(sheet, name, column, settings.advice)


def _check_numbers(sheet: Sheet, settings: Settings) -> None:
    empty = [name for name, kind in sheet.kinds.items() if kind == "empty"]
    if empty and settings.impute is None:
        raise _is_missing(sheet, 0, empty[0])
    values = sheet.numbers.data if sheet.sparse else sheet.numbers
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(values.sum()):  # finite for all but extreme data, without an array of flags
            return
    if sheet.sparse:
        bad = np.flatnonzero(~np.isfinite(values))
        if bad.size:
            row = int(np.searchsorted(sheet.numbers.indptr, bad[0], side="right")) - 1
            name = str(int(sheet.numbers.indices[bad[0]]))
            raise refuse_row(sheet.source, row, name, f"is {values[bad[0]]:g}", "remove the row or the value")
        return
    wrong = np.isinf(values) if settings.impute else ~np.isfinite(values)
    rows, places = np.nonzero(wrong)
    if rows.size:
        row, name = int(rows[0]), sheet.number_names[int(places[0])]
        if np.isnan(values[row, places[0]]):
            raise _is_missing(sheet, row, name)
        raise refuse_row(sheet.source, row, name, f"is {values[row, places[0]]:g}", "remove the row or mend the value")


def _is_missing(sheet: Sheet, row: int, name: str) -> InputError:
    return refuse_row(sheet.source, row, name, "is missing", "remove the row, or fill such values (--impute mean)")


# ---------------------------------------------------------------------- sums
def _moments(X: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """(weight, mean, Σ w(x − mean)²) of every column, NaN left out; a few columns at a time, to save memory."""
    step = max(1, AT_ONCE // max(len(X), 1))
    parts = [_some_moments(X[:, k : k + step], weights) for k in range(0, X.shape[1], step)]
    return np.concatenate(parts, axis=1) if parts else np.zeros((3, 0))


def _some_moments(X: np.ndarray, weights: np.ndarray) -> np.ndarray:
    present = ~np.isnan(X)
    w = weights[:, None] * present
    filled = np.where(present, X, 0.0)
    total = w.sum(0)
    with np.errstate(over="ignore", invalid="ignore"):  # `merge` refuses what overflows
        mean = (w * filled).sum(0) / np.where(total > 0, total, 1.0)  # a column without values has weight 0
        square = (w * np.square(filled - mean)).sum(0)
    return np.stack([total, mean, square])


def _sparse_moments(X: scipy.sparse.csr_matrix, weights: np.ndarray) -> np.ndarray:
    total = weights.sum()
    rows = np.repeat(weights, np.diff(X.indptr))
    with np.errstate(over="ignore", invalid="ignore"):
        mean = np.asarray(X.T @ weights).ravel() / max(total, np.finfo(float).tiny)
        square = np.bincount(X.indices, rows * np.square(X.data - mean[X.indices]), minlength=X.shape[1])
        zeros = total - np.bincount(X.indices, rows, minlength=X.shape[1])
        square = square + zeros * np.square(mean)
    return np.stack([np.full(X.shape[1], total), mean, square])


def _triple(y: np.ndarray, weights: np.ndarray) -> tuple[float, float, float]:
    total, mean, square = _moments(y[:, None], weights)[:, 0].tolist()
    return total, mean, square


def _counts(column: Coded, weights: np.ndarray, settings: Settings) -> dict[str, float]:
    """Values with their weights, which only the most frequent value depends on."""
    known = column.codes >= 0
    mass = np.bincount(column.codes[known], weights[known], minlength=len(column.levels))
    present = np.unique(column.codes[known])
    return {column.levels[k]: float(mass[k]) if settings.impute else 0.0 for k in present}


def _example(column: Coded) -> tuple[int, str]:
    row, text = not_a_number(column) or column.first(lambda _: True) or (0, "")
    return row + 1, text[:200]


def _distinct(target: object, rows: np.ndarray) -> int:
    return len(np.unique(target.codes[rows])) if isinstance(target, Coded) else 0


def _lowest(sheet: Sheet) -> int:
    """The lowest number of a feature in a sparse file: 0, or 1 if it counts from 1."""
    return int(sheet.numbers.indices.min(initial=1) > 0) if sheet.sparse else 0


# ---------------------------------------------------------------------- of all files
@dataclass(frozen=True)
class Agreed:
    """The common knowledge of all workers after one exchange. `blocks`: name, rows, classes of every worker; `dropped`:
    rows of every file that a formula left out, as they lack a value."""

    encoding: AnyEncoding
    classes: tuple[Any, ...] | None
    target_mean: float
    rows: int
    blocks: tuple[tuple[str, int, int], ...]
    dropped: tuple[tuple[str, int], ...] = ()


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
        classes=_classes(summaries, settings) if summaries[0].labels is not None else None,
        target_mean=float(_added([np.array(t)[:, None] for t in target])[1, 0]) if target else 0.0,
        rows=sum(s.rows for s in summaries),
        blocks=tuple(block for s in summaries for block in s.blocks),
        dropped=tuple((s.source, s.dropped) for s in summaries if s.dropped),
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
        columns=tuple([Column(name) for name in numbers] + [_category(name, summaries, settings) for name in texts]),
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
        raise InputError(
            f"Column {quoted(name)} holds text in {text.source} (row {text.texts_at[name]}) but numbers in "
            f"{number.source}; mend the value, or list the column in --categorical."
        )
    if text is None and number is None:
        raise InputError(
            f"{summaries[0].source}: column {quoted(name)} has no value in any row; leave it out (--drop)."
        )
    return "number" if text is None else "text"


def _category(name: str, summaries: Sequence[Summary], settings: Settings) -> Column:
    mass: dict[str, float] = {}
    for s in summaries:
        for level, weight in s.levels.get(name, {}).items():
            mass[level] = mass.get(level, 0.0) + weight
    having = [s for s in summaries if name in s.levels]
    if name not in settings.categorical:
        rows = sum(s.rows for s in having)
        suspects.refuse_all_texts(name, listed_sources(having), len(mass), rows, settings.advice)
    found = [(s.source, s.levels[name]) for s in having]
    _refuse_spellings(f"Column {quoted(name)}: category", found, settings)
    levels = tuple(sorted(mass))
    # of equally frequent values the first in order, as in scikit-learn
    return Column(name, levels, min(levels, key=lambda level: (-mass[level], level)) if settings.impute else None)


def _refuse_spellings(what: str, found: Sequence[tuple[str, Iterable[object]]], settings: Settings) -> None:
    if not settings.labels_as_written:
        remedy = "" if settings.advice == suspects.FRAME else ", or --labels-as-written"
        suspects.refuse_spellings(what, found, remedy)


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
def _classes(summaries: Sequence[Summary], settings: Settings) -> tuple[Any, ...]:
    """The sorted union of all labels."""

    def kind(label: object) -> str:
        return "text" if isinstance(label, str) else "truth values" if isinstance(label, bool) else "numbers"

    kinds = [(s, kind(label)) for s in summaries for label in (s.labels or ())[:1]]
    for s, what in kinds:
        if what != kinds[0][1]:
            raise InputError(
                f"The target holds {what} in {s.source} but {kinds[0][1]} in {kinds[0][0].source}; use one kind of "
                "label."
            )
    _refuse_spellings("Label", [(s.source, s.labels or ()) for s in summaries], settings)
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
