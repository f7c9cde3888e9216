"""Designs of formulas at sites: what a coordinator may learn of rows on the way to levels, means and knots.

A site gets the text of a formula and reads it with the code that is installed there; names, numbers and sums travel,
functions do not. Whoever writes a formula chooses functions of rows, so three things are checked here, before a sum
leaves, that columns of a file need not be checked for:

    terms       no row has more than `largest_share` of a sum for the state of a transform, counted from the median
    leverage    of H = X(XᵀX)⁻¹Xᵀ, whose columns are the combinations of columns that are nearest to single rows, no
                row has more than `largest_share`: the difference of I(age > 70) and I(age > 71) is one person of 71
    row sets    rows that lack a value are left out: two fits of one data set differ by no row, or by `min_rows`

Knots come from counts in cells of about 1/8 of the standard deviation, at multiples of a power of two. A site moves
rows of a cell with fewer than `min_cell` of them towards its median until every cell has none or enough. Bounds are
multiples of four cells, the same for all sites, beyond all values.

Shapes: n rows; x (n,), terms (n, k), X (n, m).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from auqadmm.errors import InputError
from auqadmm.formula.design import FormulaDesign
from auqadmm.formula.parsing import Call, Formula
from auqadmm.formula.pooled import MOST_DEGREE, TERMS, Histogram, step_exponent, summed, terms_of, values_of
from auqadmm.sites.policy import Policy, PolicyError
from auqadmm.words import quoted

if TYPE_CHECKING:
    import pandas as pd

CELLS = "cells"
CELL_BITS = 3  # a cell is 2⁻³ of the power of two below the standard deviation
CELLS_PER_BOUND = 4  # cells between possible bounds
BOUNDS_EACH_SIDE = 40  # bounds to either side of the mean, in fours of cells: 20 standard deviations
FINEST = 32  # cells per standard deviation of the site's own rows, at most
VALUES_PER_CELL = 32  # values that stand for the rows of a cell
WORTH_A_LOOK = 0.1  # the leverage of rows that are looked at
SHARE_ROUNDING = 1e-9


# ---------------------------------------------------------------------- at the site
def sums_at(
    policy: Policy, formula: Formula, frame: pd.DataFrame, what: str, key: str, numbers: Sequence[float]
) -> dict[str, np.ndarray]:
    """Sums over the rows of a site for the state of one transform."""
    call = next((call for call in formula.calls if call.key == key), None)
    if call is None or what not in (*TERMS, CELLS) or not _fits(what, numbers):
        raise PolicyError(f"{what[:20]!r} is not a sum of a formula that is served")
    x = values_of(call, frame)
    check_share(policy, quoted(call.inner.code), x)
    if what == CELLS:
        return cells_of(policy, key, x, int(numbers[0]), int(numbers[1]))
    terms = terms_of(call, what, numbers, frame)
    for column in terms.T:
        check_share(policy, quoted(key), column)
    return {"sums": summed(terms)}


def _fits(what: str, numbers: Sequence[float]) -> bool:
    finite = all(isinstance(x, int | float) and math.isfinite(x) for x in numbers)
    count, k = len(numbers), len(numbers) // 2
    sizes = {
        "mean": count == 0,
        "square": count == 1,
        "poly": count == 2 * k <= 2 * MOST_DEGREE + 2 and all(x > 0 for x in numbers[k:]),
        "columns": 2 <= count <= 10 * MOST_DEGREE and list(numbers) == sorted(numbers),
        CELLS: count == 2 and all(float(x).is_integer() and abs(x) < 2**52 for x in numbers),
    }
    return finite and sizes[what]


def check_share(policy: Policy, what: str, x: np.ndarray) -> None:
    """No row makes up a sum of x, but for what all rows have in common."""
    away = np.abs(x - np.median(x))
    total = float(away.sum())
    if total > 0 and float(away.max()) > policy.largest_share * (1 + SHARE_ROUNDING) * total:
        raise PolicyError(f"one row makes up more than {policy.largest_share:.0%} of a sum of {what}")


def cells_of(policy: Policy, key: str, x: np.ndarray, exponent: int, middle: int) -> dict[str, np.ndarray]:
    """Rows by cell, and how far bounds must lie from the middle; `middle`: a multiple of the width between bounds."""
    step = 2.0 ** (exponent - CELL_BITS)
    if not -1000 < exponent < 1000 or step < float(x.std()) / FINEST:
        raise PolicyError(f"the cells that {quoted(key)} would be counted in are too narrow")
    half = CELLS_PER_BOUND * BOUNDS_EACH_SIDE
    place = np.clip(np.rint(x / step) - CELLS_PER_BOUND * middle, -half, half).astype(int) + half
    ends = middle - np.floor(x.min() / (CELLS_PER_BOUND * step)), np.ceil(x.max() / (CELLS_PER_BOUND * step)) - middle
    steps = np.arange(BOUNDS_EACH_SIDE + 1)
    counts = _gathered(np.bincount(place, minlength=2 * half + 1), int(np.median(place)), policy.min_cell)
    return {"counts": counts.astype(float), "below": (steps < ends[0]) * 1.0, "above": (steps < ends[1]) * 1.0}


def _gathered(counts: np.ndarray, middle: int, least: int) -> np.ndarray:
    """Rows of cells with few of them, moved towards the middle."""
    out, inwards = np.zeros_like(counts), (range(middle), range(len(counts) - 1, middle, -1))
    left = 0
    for side in inwards:
        carried = 0
        for k in side:
            carried += int(counts[k])
            if carried >= least:
                out[k], carried = carried, 0
        left += carried
    out[middle] = counts[middle] + left
    if 0 < out[middle] < least:
        near = min(np.flatnonzero(out >= least).tolist(), key=lambda k: abs(k - middle), default=None)
        if near is None:
            raise PolicyError(f"there are fewer than {least} rows")
        out[near] += out[middle]
        out[middle] = 0
    return out


def check_leverage(policy: Policy, X: np.ndarray) -> None:
    """No combination of columns, a constant among them, is nearly one row alone."""
    ones = np.ones((len(X), 1))
    scale = np.abs(X).max(0, initial=0.0)
    A = np.concatenate([ones, X / np.where(scale > 0, scale, 1.0)], axis=1)
    U, s, _ = np.linalg.svd(A, full_matrices=False)
    U = U[:, s > s[0] * len(A) * np.finfo(float).eps]
    for row in U[np.square(U).sum(1) > WORTH_A_LOOK]:
        nearest = np.abs(U @ row)
        if float(nearest.max()) > policy.largest_share * (1 + SHARE_ROUNDING) * float(nearest.sum()):
            raise PolicyError("a combination of the columns of the formula is nearly one row alone")


def check_row_set(path: Path, key: str, kept: np.ndarray, least: int) -> None:
    """Two fits whose rows differ by few tell of those few; sets of rows are remembered in a file of the site's."""
    known: dict[str, list[str]] = json.loads(path.read_text()) if path.exists() else {}
    name = f"{key} {len(kept)}"
    sets = [np.ones(len(kept), dtype=bool)]
    for text in known.get(name, []):
        sets.append(np.unpackbits(np.frombuffer(bytes.fromhex(text), dtype=np.uint8), count=len(kept)).astype(bool))
    differ = [int((kept ^ other).sum()) for other in sets]
    if any(0 < number < least for number in differ):
        raise PolicyError(
            f"the rows that have all values differ from those of all, or of another fit, by fewer than {least}"
        )
    if 0 not in differ:
        known.setdefault(name, []).append(np.packbits(kept).tobytes().hex())
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(known))


def read_design(formula: str, message: Mapping[str, Any]) -> FormulaDesign:
    """A design that the coordinator sent, of the formula that was declared; made of plain numbers and texts."""
    if message.get("formula") != formula:
        raise PolicyError("the design is of another formula than was declared")
    if not _plain(message, 6):
        raise PolicyError("a design is made of numbers and texts")
    return FormulaDesign.read(message)


def _plain(value: object, deepest: int) -> bool:
    if isinstance(value, Mapping):
        return deepest > 0 and all(isinstance(k, str) and _plain(x, deepest - 1) for k, x in value.items())
    if isinstance(value, list | tuple):
        return deepest > 0 and all(_plain(x, deepest - 1) for x in value)
    return value is None or isinstance(value, bool | int | float | str)


# ---------------------------------------------------------------------- at the coordinator
@dataclass(frozen=True)
class SitePool:
    """Rows of sites, known by sums. `ask`: what, of which transform, with which numbers."""

    ask: Callable[[str, str, tuple[float, ...]], Mapping[str, np.ndarray]]

    def total(self, call: Call, what: str, numbers: Sequence[float] = ()) -> np.ndarray:
        return self.ask(what, call.key, tuple(map(float, numbers)))["sums"]

    def histogram(self, call: Call) -> Histogram:
        """Rows of a cell are spread evenly over it, as far as they are told apart."""
        exponent = step_exponent(call, self)
        rows, total = self.total(call, "mean")
        step = 2.0 ** (exponent - CELL_BITS)
        middle = round(float(total / rows) / (CELLS_PER_BOUND * step))
        found = self.ask(CELLS, call.key, (float(exponent), float(middle)))
        ends = [np.flatnonzero(np.rint(found[side]) == 0) for side in ("below", "above")]
        if not all(side.size for side in ends):
            raise InputError(
                f"{quoted(call.key)}: values lie far from the mean; write lower_bound and upper_bound into the formula."
            )
        bound = CELLS_PER_BOUND * step
        low, high = (middle - int(ends[0][0])) * bound, (middle + int(ends[1][0])) * bound
        counts: dict[float, int] = {}
        for k in np.flatnonzero(np.rint(found["counts"]) > 0).tolist():
            cell, number = (k + CELLS_PER_BOUND * (middle - BOUNDS_EACH_SIDE)) * step, round(float(found["counts"][k]))
            parts = min(number, VALUES_PER_CELL)
            for j in range(parts):
                value = cell + step * ((j + 0.5) / parts - 0.5)
                counts[value] = number * (j + 1) // parts - number * j // parts
        return Histogram(counts, low, high)
