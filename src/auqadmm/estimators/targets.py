"""Targets of likelihoods as users pass them, checked: counts, shares and offsets; times, events and strata.

Shapes: n rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from auqadmm.estimators.blocks import Rows, rows_of_sites
from auqadmm.estimators.checks import PerRow
from auqadmm.problem import Cox, InputError
from auqadmm.problem.ingest import read_reals

EXPOSURE = "exposure is for families with a logarithmic link; use offset, on the scale of x·c + b."


def check_binary(rows: Rows) -> None:
    for j, y in enumerate(rows.y):
        bad = np.flatnonzero((y != 0) & (y != 1))
        if bad.size:
            raise InputError(f"block {j}: y[{bad[0]}] is {y[bad[0]]:g}; family 'binomial' needs 0 and 1.")


def refuse_negative(name: str, given: PerRow) -> None:
    """Numbers of rows that would be called weights later on; a list of arrays is left to that."""
    try:
        x = np.asarray(given, dtype=np.float64).ravel()
    except (TypeError, ValueError):
        return
    bad = np.flatnonzero(~(x >= 0))
    if bad.size:
        raise InputError(f"{name}[{bad[0]}] is {x[bad[0]]:g}; {name} are whole numbers and not negative.")


def shares(rows: Rows) -> Rows:
    """Successes and trials, which are the weights, as shares."""
    for j, (y, n) in enumerate(zip(rows.y, rows.weight, strict=True)):
        broken = np.flatnonzero((y != np.floor(y)) | (n != np.floor(n)))
        if broken.size:
            i = broken[0]
            what = f"trials[{i}] is {n[i]:g}" if n[i] != np.floor(n[i]) else f"y[{i}] is {y[i]:g}"
            raise InputError(f"block {j}: {what}; successes and trials are whole numbers.")
        bad = np.flatnonzero((y < 0) | (y > n))
        if bad.size:
            raise InputError(
                f"block {j}: y[{bad[0]}] is {y[bad[0]]:g}, of {n[bad[0]]:g} trials; successes are between none and all."
            )
    y, n = np.concatenate(rows.y), np.concatenate(rows.weight)
    return rows.with_target(y / np.where(n > 0, n, 1.0))


def offsets_of(rows: Rows, listed: bool, offset: PerRow, exposure: PerRow, log: bool) -> list[np.ndarray]:
    """The offsets of every block: those given, and the logarithms of exposures."""
    n = sum(rows.sizes)
    total = np.zeros(n)
    if exposure is not None and not log:
        raise InputError(EXPOSURE)
    for name, given in (("offset", offset), ("exposure", exposure)):
        if given is not None:
            whole = np.concatenate([np.asarray(part) for part in given]) if listed else given  # type: ignore[union-attr]
            total = total + offset_of(name, whole, n, name == "exposure")
    return list(np.split(total[rows.order], np.cumsum(rows.sizes)[:-1]))


def offset_of(name: str, given: PerRow, rows: int, log: bool) -> np.ndarray:
    if given is None:
        return np.zeros(rows)
    try:
        x = np.asarray(given, dtype=np.float64).ravel()
    except (TypeError, ValueError):
        raise InputError(f"{name} must hold numbers, got {type(given).__name__}.") from None
    if len(x) != rows:
        raise InputError(f"{name} has {len(x)} values but X has {rows} rows; give one per row.")
    bad = np.flatnonzero(~np.isfinite(x) | (log & (x <= 0)))
    if bad.size:
        what = "exposures are finite and above zero" if log else "offsets are finite"
        raise InputError(f"{name}[{bad[0]}] is {x[bad[0]]:g}; {what}.")
    return np.log(x) if log else x


def times_of(y: object) -> np.ndarray:
    """(n, 3) of time, event and entry, from what users pass."""
    if y is None:
        raise InputError("y is missing: pass time and event of every row.")
    if isinstance(y, tuple):
        parts = [np.asarray(part) for part in y]
        if len(parts) not in (2, 3) or any(part.shape != parts[0].shape or part.ndim != 1 for part in parts):
            shapes = ", ".join(str(part.shape) for part in parts)
            raise InputError(f"y must be a tuple (time, event) or (time, event, entry) of equal length; got {shapes}.")
        y = np.column_stack([part.astype(object) for part in parts])
    array = np.asarray(y)
    if array.dtype.names is not None:
        array = _fields(array)
    if array.ndim != 2 or array.shape[1] not in (2, 3):
        raise InputError(
            "y must hold time and event, and entry where rows enter late: an array (n, 2) or (n, 3), a tuple of "
            f"arrays, or a structured array; got an array of shape {array.shape}."
        )
    checked = Cox().arranged("y", read_reals("y", array, columns=3))
    return checked[:, :3]


def _fields(y: np.ndarray) -> np.ndarray:
    """Columns of a structured array: the field of truth values is the event, one named entry the entry."""
    names = list(y.dtype.names or ())
    events = [name for name in names if y.dtype[name].kind == "b"]
    entries = [name for name in names if "entry" in name.lower() or "enter" in name.lower()]
    times = [name for name in names if name not in (*events, *entries)]
    if len(events) != 1 or len(times) != 1 or len(entries) > 1:
        raise InputError(
            "A structured y needs one field of truth values (the event) and one of numbers (the time), and may have "
            f"one named entry; got {', '.join(f'{name} ({y.dtype[name]})' for name in names)}."
        )
    return np.column_stack([y[name].astype(np.float64) for name in (*times, *events, *entries)])


def listed_times(y: object, blocks: int) -> list[np.ndarray]:
    """The same of every block."""
    if not isinstance(y, list) or len(y) != blocks:
        got = f"{len(y)} entries" if isinstance(y, list) else type(y).__name__
        raise InputError(f"X is a list of {blocks} blocks, so y must be a list of {blocks} too; got {got}.")
    return [times_of(part) for part in y]


def joined(given: Any, listed: bool) -> Any:
    """What is given per row, blocks one after another."""
    return np.concatenate([np.asarray(part) for part in given]) if listed and given is not None else given


def codes_of(strata: PerRow, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """The labels of strata, and the number of each row's."""
    if strata is None:
        return np.zeros(1, dtype=np.int64), np.zeros(rows)
    codes = numbered(strata, rows, "strata")
    return np.unique(np.asarray(strata)), codes.astype(np.float64)


def numbered(labels: ArrayLike, rows: int, name: str) -> np.ndarray:
    """The number of each row's label, labels in sorted order."""
    codes = np.zeros(rows, dtype=np.int64)
    for number, where in enumerate(rows_of_sites(labels, rows, name)):
        codes[where] = number
    return codes


def finite_numbers(name: str, given: PerRow, rows: int | None) -> np.ndarray | None:
    if given is None:
        return None
    try:
        x = np.asarray(given, dtype=np.float64).ravel()
    except (TypeError, ValueError):
        raise InputError(f"{name} must hold numbers, got {type(given).__name__}.") from None
    if rows is not None and len(x) != rows:
        raise InputError(f"{name} has {len(x)} values but X has {rows} rows; give one per row.")
    bad = np.flatnonzero(~np.isfinite(x))
    if bad.size:
        raise InputError(f"{name}[{bad[0]}] is {x[bad[0]]:g}; it must be finite.")
    return x
