"""One worker's file as columns: csv, parquet, svmlight or npz, by its extension.

`read(path, roles)` needs one file only, so that it can run on any worker. Columns are found by
name; what they are is decided by the file's own types: numbers (booleans are 0 and 1) or text. A column without any
value fits both.

Rows are counted from 1, without the header. Missing is an empty field, NA, N/A, NaN or null in csv, null or NaN
elsewhere.

Shapes: n rows, p columns of numbers; numbers (n, p) dense or CSR, codes (n,).
"""

from __future__ import annotations

import difflib
import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from auqadmm.problem import InputError
from auqadmm.words import listed, quoted

# what to do about a target of text
NUMBERS = "this model needs a number as target; for labels use --model logistic or svm"
PACKED = (".gz", ".bz2", ".xz", ".zst", ".zip")


@dataclass(frozen=True)
class Roles:
    """Which columns are what. Features are all other columns, less `drop`, unless they are named.

    `categorical` are read as text even where they look like numbers. `labels`: the target is a label, not a number.
    `asker`: who named the features, for the error when one is missing.
    """

    target: str | None = None
    site: str | None = None
    id: str | None = None
    weight: str | None = None
    features: tuple[str, ...] | None = None
    drop: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    labels: bool = True
    unique_ids: bool = True
    asker: str = "--features"

    @property
    def special(self) -> dict[str, str]:
        """Columns that are no features, by role."""
        pairs = {"target": self.target, "site": self.site, "id": self.id, "weight": self.weight}
        return {what: name for what, name in pairs.items() if name is not None}

    @property
    def texts(self) -> tuple[str, ...]:
        """Columns to be read as text."""
        return tuple(dict.fromkeys([*self.categorical, *([self.id] if self.id else [])]))


@dataclass(frozen=True)
class Coded:
    """A column of few values: `levels` in order of appearance, and the place of each row's value, −1 where missing."""

    codes: np.ndarray
    levels: tuple[Any, ...]

    def take(self, rows: np.ndarray | slice) -> Coded:
        return Coded(self.codes[rows], self.levels)

    def missing(self) -> np.ndarray:
        """The rows without a value."""
        return np.flatnonzero(self.codes < 0)

    def first(self, wanted: Callable[[Any], bool]) -> tuple[int, Any] | None:
        """The first row, from 0, whose value meets the condition."""
        places = [k for k, level in enumerate(self.levels) if wanted(level)]
        rows = np.flatnonzero(np.isin(self.codes, places))
        return (int(rows[0]), self.levels[self.codes[rows[0]]]) if rows.size else None


@dataclass(frozen=True)
class Sheet:
    """A file, read. `kinds`: "number", "text" or "empty" of every feature, in order; `numbers` holds those of the first
    kind, NaN where missing, `texts` those of the second. `named`: features have names, not only positions."""

    source: str
    rows: int
    kinds: Mapping[str, str]
    numbers: Any
    texts: Mapping[str, Coded] = field(default_factory=dict)
    target: Any = None
    site: Coded | None = None
    ids: np.ndarray | None = None
    weight: np.ndarray | None = None
    named: bool = True

    @property
    def sparse(self) -> bool:
        return scipy.sparse.issparse(self.numbers)

    @property
    def number_names(self) -> list[str]:
        return [name for name, kind in self.kinds.items() if kind == "number"]

    @property
    def weights(self) -> np.ndarray:
        return np.ones(self.rows) if self.weight is None else self.weight


def read(path: str | os.PathLike[str], roles: Roles) -> Sheet:
    """The columns of one file, checked for everything that can be seen in this file alone."""
    from auqadmm.files import tabular_arrays, tabular_arrow

    path = Path(path)
    readers: dict[str, Callable[[Path, Roles], Sheet]] = {
        ".csv": tabular_arrow.read_csv,
        ".tsv": tabular_arrow.read_csv,
        ".parquet": tabular_arrow.read_parquet,
        ".pq": tabular_arrow.read_parquet,
        ".svm": tabular_arrays.read_svmlight,
        ".svmlight": tabular_arrays.read_svmlight,
        ".libsvm": tabular_arrays.read_svmlight,
        ".npz": tabular_arrays.read_npz,
    }
    check_file(path)
    reader = readers.get(path.suffix.lower())
    if path.suffix.lower() in PACKED:
        raise InputError(f"{named(path)} is compressed; unpack it first.")
    if reader is None:
        raise InputError(f"{named(path)} has no known ending; auqadmm reads {', '.join(readers)}.")
    try:
        sheet = reader(path, roles)
    except MemoryError:
        raise InputError(f"{named(path)} does not fit into the memory of this machine; split it into parts.") from None
    if sheet.rows == 0:
        raise InputError(f"{named(path)} has no rows; leave it out.")
    return sheet


def is_table(path: str | os.PathLike[str]) -> bool:
    """Whether columns of this file have names, the target among them."""
    return Path(path).suffix.lower() in (".csv", ".tsv", ".parquet", ".pq")


def named(path: str | os.PathLike[str]) -> str:
    """A file as errors name it."""
    return quoted(os.fspath(path), longest=200).strip("'")


def check_file(path: Path) -> None:
    """A regular, non-empty, readable file."""
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            raise InputError(f"{named(path)} is a folder; name the files in it.")
        if not stat.S_ISREG(status.st_mode):
            raise InputError(f"{named(path)} is not a regular file.")
        with path.open("rb"):
            pass
    except FileNotFoundError:
        raise InputError(f"{named(path)} does not exist.") from None
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{named(path)} cannot be read: {getattr(error, 'strerror', None) or error}.") from None
    if status.st_size == 0:
        raise InputError(f"{named(path)} is empty; leave it out.")


def chosen(source: str, header: list[str], roles: Roles) -> list[str]:
    """The features among the columns of a file; every name that the user typed must be there."""
    seen: set[str] = set()
    for place, name in enumerate(header, start=1):
        if not name:
            raise InputError(f"{source}: column {place} has no name; give it one in the header.")
        if name in seen:
            raise InputError(f"{source}: two columns are named {quoted(name)}; rename one of them.")
        seen.add(name)
    for what, name in roles.special.items():
        if name not in seen:
            raise InputError(f"{source}: there is no {what} column {quoted(name)}; {_have(header, name)}.")
    special = set(roles.special.values())
    for what, names in ((roles.asker, roles.features), ("--categorical", roles.categorical), ("--drop", roles.drop)):
        for name in names or ():
            if name not in seen:
                raise InputError(
                    f"{source}: there is no column {quoted(name)}, which {what} names; {_have(header, name)}."
                )
            if name in special and what != "--drop":
                raise InputError(f"{source}: column {quoted(name)}, which {what} names, is no feature.")
    wanted = header if roles.features is None else list(dict.fromkeys(roles.features))
    features = [name for name in wanted if name not in special and name not in roles.drop]
    if not features:
        raise InputError(f"{source}: no column is left as a feature; {_have(header)}.")
    return features


def _have(header: list[str], name: str = "") -> str:
    """The available names, and close matches."""
    near = difflib.get_close_matches(name, header, 1)
    return f"it has {listed(header)}" + (f"; perhaps {quoted(near[0])} is meant" if near else "")


def refuse_row(source: str, row: int, column: str, what: str, remedy: str) -> InputError:
    """`row` from 0."""
    return InputError(f"{source}: row {row + 1}, column {quoted(column)} {what}; {remedy}.")


def check_weight(source: str, weight: np.ndarray, column: str) -> np.ndarray:
    bad = np.flatnonzero(~np.isfinite(weight) | (weight < 0))
    if bad.size:
        value = weight[bad[0]]
        what = "is missing" if np.isnan(value) else f"is {value:g}"
        raise refuse_row(source, int(bad[0]), column, what, "weights must be finite and not negative")
    return weight


def check_target(source: str, target: Any, column: str) -> Any:
    """Labels or numbers, one per row."""
    if isinstance(target, Coded):
        bad = target.missing()
        if bad.size:
            raise refuse_row(source, int(bad[0]), column, "has no target", "remove the row or label it")
        return target
    bad = np.flatnonzero(~np.isfinite(target))
    if bad.size:
        value = target[bad[0]]
        what = "has no target" if np.isnan(value) else f"is {value:g}"
        raise refuse_row(source, int(bad[0]), column, what, "remove the row")
    return target


def check_site(source: str, site: Coded, column: str) -> Coded:
    bad = site.missing()
    if bad.size:
        raise refuse_row(source, int(bad[0]), column, "is missing", "say which worker owns the row")
    return site


def check_ids(source: str, ids: np.ndarray, column: str, unique: bool = True) -> np.ndarray:
    """Present, and unique."""
    first: dict[Any, int] = {}
    for row, value in enumerate(ids.tolist()):
        if value is None:
            raise refuse_row(source, row, column, "is missing", "every row needs an id")
        if first.setdefault(value, row) != row and unique:
            what = f"repeats the id {quoted(value)} of row {first[value] + 1}"
            raise refuse_row(source, row, column, what, "every id may occur once")
    return ids
