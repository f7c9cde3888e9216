"""One worker's file as columns: csv, parquet, svmlight or npz, by its extension.

`read(path, roles)` needs one file only, so that it can run on any worker. Columns are found by
name; what they are is decided by the file's own types: numbers (booleans are 0 and 1) or text. A column without any
value fits both.

Rows are counted from 1, without the header. Missing is an empty field, NA, N/A, NaN or null in csv, null or NaN
elsewhere.

An svmlight file stays sparse; its features are named by the numbers in it, and which of them exist is agreed with the
other workers. An npz file has X, y[, site, sample_weight, feature_names]; without `feature_names` its columns are
x0, x1, …

Shapes: n rows, p columns of numbers; numbers (n, p) dense or CSR, codes (n,).
"""

from __future__ import annotations

import difflib
import io
import os
import stat
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
import scipy.sparse

from auqadmm.checkpoint.files import machine_memory
from auqadmm.problem import InputError
from auqadmm.words import listed, quoted

# what to do about a target of text
NUMBERS = "this model needs a number as target; for labels use --model logistic or svm"
PACKED = (".gz", ".bz2", ".xz", ".zst", ".zip")


@dataclass(frozen=True)
class Roles:
    """Which columns are what. Features are all other columns, less `drop`, unless they are named.

    `categorical` are read as text even where they look like numbers. `labels`: the target is a label, not a number.
    `asker`: who named the features, for the error when one is missing. `offset` is added to the logit of a row,
    `exposure` is what its rate is counted over. `time`, `event` and `entry` are the target of a survival model. `gaps`:
    rows without target, weight, offset or exposure are let in.
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
    offset: str | None = None
    exposure: str | None = None
    gaps: bool = False
    time: str | None = None
    event: str | None = None
    entry: str | None = None

    @property
    def special(self) -> dict[str, str]:
        """Columns that are no features, by role."""
        pairs = {"target": self.target, "site": self.site, "id": self.id, "weight": self.weight}
        pairs |= {"offset": self.offset, "exposure": self.exposure}
        pairs |= {"time": self.time, "event": self.event, "entry": self.entry}
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
    kind, NaN where missing, `texts` those of the second. `named`: features have names, not only positions.
    `numbering`: the numbers of the rows in the file, from 1, where `dropped` of them were left out."""

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
    offset: np.ndarray | None = None
    exposure: np.ndarray | None = None
    numbering: np.ndarray | None = None
    dropped: int = 0

    @property
    def sparse(self) -> bool:
        return scipy.sparse.issparse(self.numbers)

    @property
    def number_names(self) -> list[str]:
        return [name for name, kind in self.kinds.items() if kind == "number"]

    @property
    def weights(self) -> np.ndarray:
        return np.ones(self.rows) if self.weight is None else self.weight

    @property
    def shift(self) -> np.ndarray | None:
        """What is added to the logits: the offset and the logarithm of the exposure; None without them."""
        parts = ([] if self.offset is None else [self.offset]) + (
            [] if self.exposure is None else [np.log(self.exposure)]
        )
        return np.sum(parts, axis=0) if parts else None


def read(path: str | os.PathLike[str], roles: Roles) -> Sheet:
    """The columns of one file, checked for everything that can be seen in this file alone."""
    from auqadmm.files import suspects, tabular_arrow

    path = Path(path)
    readers: dict[str, Callable[[Path, Roles], Sheet]] = {
        ".csv": tabular_arrow.read_csv,
        ".tsv": tabular_arrow.read_csv,
        ".parquet": tabular_arrow.read_parquet,
        ".pq": tabular_arrow.read_parquet,
        ".svm": read_svmlight,
        ".svmlight": read_svmlight,
        ".libsvm": read_svmlight,
        ".npz": read_npz,
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
    if is_table(path):
        suspects.refuse_numbered(sheet, roles, path)
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


VALUELESS = ("is missing", "has no target")


def refuse_row(
    source: str, row: int, column: str, what: str, remedy: str, shared: str = "holds a value that cannot be used"
) -> InputError:
    """`row` from 0; `shared`: what other processes hear in place of `what`, which may quote the value."""
    where = f"{source}: row {row + 1}, column {quoted(column)}"
    error = InputError(f"{where} {what}; {remedy}.")
    error.shared = f"{where} {what if what in VALUELESS else shared}; {remedy}."
    return error


def check_weight(source: str, weight: np.ndarray, column: str, gaps: bool = False) -> np.ndarray:
    bad = np.flatnonzero((~np.isfinite(weight) | (weight < 0)) & ~(gaps & np.isnan(weight)))
    if bad.size:
        value = weight[bad[0]]
        what = "is missing" if np.isnan(value) else f"is {value:g}"
        raise refuse_row(source, int(bad[0]), column, what, "weights must be finite and not negative")
    return weight


def check_offset(source: str, offset: np.ndarray, column: str, above_zero: bool, gaps: bool = False) -> np.ndarray:
    """Finite, and for exposures above zero."""
    bad = np.flatnonzero((~np.isfinite(offset) | (above_zero & (offset <= 0))) & ~(gaps & np.isnan(offset)))
    if bad.size:
        value = offset[bad[0]]
        what = "is missing" if np.isnan(value) else f"is {value:g}"
        remedy = "exposures are numbers above zero" if above_zero else "offsets are finite numbers"
        raise refuse_row(source, int(bad[0]), column, what, remedy)
    return offset


def check_target(source: str, target: Any, column: str, gaps: bool = False) -> Any:
    """Labels or numbers, one per row."""
    if isinstance(target, Coded):
        bad = target.missing()
        if bad.size and not gaps:
            raise refuse_row(source, int(bad[0]), column, "has no target", "remove the row or label it")
        return target
    bad = np.flatnonzero(~np.isfinite(target) & ~(gaps & np.isnan(target)))
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
            what, shared = (f"repeats the id {told}of row {first[value] + 1}" for told in (f"{quoted(value)} ", ""))
            raise refuse_row(source, row, column, what, "every id may occur once", shared)
    return ids


# ---------------------------------------------------------------------- files of arrays
LARGEST_INDEX = 10_000_000  # of a feature: a typo would allocate all features before it
LONGEST_LINE = 1 << 24  # bytes
PARTS = ("X", "y", "site", "sample_weight", "feature_names")


# ---------------------------------------------------------------------- svmlight
def read_svmlight(path: Path, roles: Roles) -> Sheet:
    from sklearn.datasets import load_svmlight_file

    source = named(path)
    _no_columns(source, roles, "svmlight files have no named columns")
    with path.open("rb") as file:
        _refuse_long_lines(file, source)
        file.seek(0)
        try:
            X, y = load_svmlight_file(file, zero_based=True)
        except (ValueError, OverflowError) as error:
            row, reason = _bad_line(path) or (None, str(error))
            where = source if row is None else f"{source}: line {row}"
            raise InputError(f"{where} is not svmlight (label index:value …): {quoted(reason, 120)}.") from None
    if X.shape[1] > LARGEST_INDEX:
        raise InputError(f"{source} names feature {X.shape[1] - 1}; at most {LARGEST_INDEX} are read.")
    X = X.tocsr()
    X.sum_duplicates()
    names = {str(k): "number" for k in range(X.shape[1])}
    target = check_target(source, _labels(y) if roles.labels else y, "label")
    return Sheet(source, X.shape[0], names, X, target=target, named=False)


def _refuse_long_lines(file: IO[bytes], source: str) -> None:
    """The reader takes a line at a time: an endless one would fill the memory."""
    since = 0
    while chunk := file.read(1 << 20):
        if b"\0" in chunk:
            raise InputError(f"{source} is not a text file; svmlight files are text.")
        first = chunk.find(b"\n")
        since = since + len(chunk) if first < 0 else len(chunk) - chunk.rfind(b"\n") - 1
        if since > LONGEST_LINE:
            raise InputError(f"{source} has a line longer than {LONGEST_LINE >> 20} MiB; it is not read.")


def _bad_line(path: Path) -> tuple[int, str] | None:
    """Which line the reader refuses, and the reason; from 1."""
    from sklearn.datasets import load_svmlight_file

    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                load_svmlight_file(io.BytesIO(line), zero_based=True)
            except (ValueError, OverflowError) as error:
                return number, str(error)
    return None


# ---------------------------------------------------------------------- npz
def read_npz(path: Path, roles: Roles) -> Sheet:
    source = named(path)
    arrays = _arrays(path, source)
    X, names = arrays["X"], arrays.get("feature_names")
    if X.ndim != 2 or X.dtype.kind not in "fiub" or X.shape[1] == 0:
        raise InputError(f"{source}: X must be a matrix of numbers, one row per sample; got {_form(X)}.")
    rows = len(X)
    for name in ("y", "site", "sample_weight"):
        if name in arrays and arrays[name].shape != (rows,):
            raise InputError(f"{source}: {name} must have {rows} values, one per row of X; got {_form(arrays[name])}.")
    if names is not None and names.shape != (X.shape[1],):
        raise InputError(f"{source}: feature_names must have {X.shape[1]} names; got {_form(names)}.")
    header = [f"x{k}" for k in range(X.shape[1])] if names is None else [str(name) for name in names.tolist()]
    if roles.target not in (None, "y") or roles.site not in (None, "site"):
        raise InputError(f"{source}: in npz files the target is y and the site is site; leave the names out.")
    if {"id", "weight", "offset", "exposure"} & roles.special.keys() or roles.categorical:
        raise InputError(
            f"{source}: --id, --weight, --offset, --exposure and --categorical are for csv and parquet files."
        )
    plain = Roles(features=roles.features, drop=roles.drop)
    features = chosen(source, header, plain)
    place = {name: k for k, name in enumerate(header)}
    numbers = np.array(X[:, [place[name] for name in features]], dtype=np.float64)
    target = None
    if "y" in arrays:
        if not roles.labels and arrays["y"].dtype.kind not in "fiub":
            raise InputError(f"{source}: y holds {arrays['y'].dtype} values; {NUMBERS}.")
        target = _labels(arrays["y"]) if roles.labels else arrays["y"].astype(np.float64)
        target = check_target(source, target, "y")
    site = weight = None
    if "site" in arrays and roles.site is not None:
        site = check_site(source, _labels(arrays["site"]), "site")
    elif roles.site is not None:
        raise InputError(f"{source} has no site; it has {listed(arrays)}.")
    if "sample_weight" in arrays:
        weight = check_weight(source, arrays["sample_weight"].astype(np.float64), "sample_weight")
    kinds = dict.fromkeys(features, "number")
    return Sheet(source, rows, kinds, numbers, target=target, site=site, weight=weight, named=names is not None)


def _arrays(path: Path, source: str) -> dict[str, np.ndarray]:
    """The known parts; nothing in them is unpickled."""
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(part.file_size for part in archive.infolist())
        if size > machine_memory():
            raise InputError(f"{source} unpacks to {size / 2**30:.0f} GiB, more than this machine's memory.")
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in PARTS if name in archive.files}
            others = archive.files
    except (zipfile.BadZipFile, ValueError, EOFError, OSError, NotImplementedError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{source} cannot be read as npz: {quoted(str(error), 120)}.") from None
    if "X" not in arrays:
        raise InputError(f"{source} has no X; it has {listed(others)}.")
    return arrays


def _form(x: np.ndarray) -> str:
    return f"an array of {x.dtype} and shape {x.shape}"


def _labels(y: np.ndarray) -> Coded:
    """Labels of any plain type; whole numbers become integers, NaN is missing."""
    if y.dtype.kind == "f" and np.array_equal(y, np.trunc(y)) and np.abs(y).max(initial=0) < 2**53:
        y = y.astype(np.int64)
    if y.dtype.kind == "S":
        y = np.char.decode(y, "utf-8", "replace")
    levels, codes = np.unique(y, return_inverse=True)
    codes = codes.reshape(-1).astype(np.int64)
    if levels.dtype.kind == "f":
        codes[np.isnan(levels)[codes]] = -1
    return Coded(codes, tuple(levels.tolist()))


def _no_columns(source: str, roles: Roles, why: str) -> None:
    given = roles.special or roles.categorical or roles.features is not None or roles.drop
    if given:
        raise InputError(f"{source}: {why}; leave out --target, --site, --id, --features, --drop and the like.")


def widened(sheet: Sheet, names: list[str]) -> scipy.sparse.csr_matrix:
    """The matrix of a sheet whose columns are named by numbers, for these columns; missing ones are zero."""
    X: scipy.sparse.csr_matrix = sheet.numbers
    first, last = int(names[0]), int(names[-1])
    if X.shape[1] <= last:
        X = scipy.sparse.csr_matrix((X.data, X.indices, X.indptr), shape=(X.shape[0], last + 1))
    return X[:, first : last + 1]
