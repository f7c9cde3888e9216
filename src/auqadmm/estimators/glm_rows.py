"""Targets, trials and offsets of generalised linear models, row by row."""

from __future__ import annotations

import numpy as np

from auqadmm.estimators.blocks import Rows
from auqadmm.estimators.types import PerRow
from auqadmm.problem import InputError

EXPOSURE = "exposure is for families with a logarithmic link; use offset, on the scale of x·c + b."


def check_binary(rows: Rows) -> None:
    for j, y in enumerate(rows.y):
        bad = np.flatnonzero((y != 0) & (y != 1))
        if bad.size:
            raise InputError(f"block {j}: y[{bad[0]}] is {y[bad[0]]:g}; family 'binomial' needs 0 and 1.")


def shares(rows: Rows) -> Rows:
    """Successes and trials, which are the weights, as shares."""
    for j, (y, n) in enumerate(zip(rows.y, rows.weight, strict=True)):
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
