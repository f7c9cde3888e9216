"""Files of arrays: svmlight, which stays sparse, and npz with X, y[, site, sample_weight, feature_names].

The features of an svmlight file are named by the numbers in it; which of them exist is agreed with the
other workers. The columns of an npz file without `feature_names` are x0, x1, …
"""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import IO, Any

import numpy as np
import scipy.sparse

from auqadmm.checkpoint.files import machine_memory
from auqadmm.files import tabular
from auqadmm.files.tabular import NUMBERS, Coded, Roles, Sheet
from auqadmm.problem import InputError
from auqadmm.words import listed, quoted

LARGEST_INDEX = 10_000_000  # of a feature: a typo would allocate all features before it
LONGEST_LINE = 1 << 24  # bytes
PARTS = ("X", "y", "site", "sample_weight", "feature_names")


# ---------------------------------------------------------------------- svmlight
def read_svmlight(path: Path, roles: Roles) -> Sheet:
    from sklearn.datasets import load_svmlight_file

    source = tabular.named(path)
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
    target = tabular.check_target(source, _labels(y) if roles.labels else y, "label")
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
    source = tabular.named(path)
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
    if roles.id is not None or roles.weight is not None or roles.categorical:
        raise InputError(f"{source}: --id, --weight and --categorical are for csv and parquet files.")
    plain = Roles(features=roles.features, drop=roles.drop)
    features = tabular.chosen(source, header, plain)
    place = {name: k for k, name in enumerate(header)}
    numbers = np.array(X[:, [place[name] for name in features]], dtype=np.float64)
    target = None
    if "y" in arrays:
        if not roles.labels and arrays["y"].dtype.kind not in "fiub":
            raise InputError(f"{source}: y holds {arrays['y'].dtype} values; {NUMBERS}.")
        target = _labels(arrays["y"]) if roles.labels else arrays["y"].astype(np.float64)
        target = tabular.check_target(source, target, "y")
    site = weight = None
    if "site" in arrays and roles.site is not None:
        site = tabular.check_site(source, _labels(arrays["site"]), "site")
    elif roles.site is not None:
        raise InputError(f"{source} has no site; it has {listed(arrays)}.")
    if "sample_weight" in arrays:
        weight = tabular.check_weight(source, arrays["sample_weight"].astype(np.float64), "sample_weight")
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


def widened(sheet: Sheet, names: list[str]) -> Any:
    """The matrix of a sheet whose columns are named by numbers, for these columns; missing ones are zero."""
    X: scipy.sparse.csr_matrix = sheet.numbers
    first, last = int(names[0]), int(names[-1])
    if X.shape[1] <= last:
        X = scipy.sparse.csr_matrix((X.data, X.indices, X.indptr), shape=(X.shape[0], last + 1))
    return X[:, first : last + 1]
