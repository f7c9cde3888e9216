"""States of transforms from sums over all sites: means, norms, and quantiles of counts.

    center, scale, poly   sums of x, of its squares, of squares of polynomials: one number or two per reduction
    bs, cr, cs, cc        x is rounded to multiples of a step, a power of two between 1/128 and 1/64 of its standard
                          deviation; rows are counted per multiple, counts are added over sites, and knots are quantiles
                          of the rounded x, so at most half a step away from those of x itself. Outer knots lie half a
                          step beyond the outermost multiples that occur.

Multiples do not depend on the data but through the step, and the step does so only in powers of two: knots are the
same however rows are split over sites. No value leaves a worker but as a count; a count of one tells that row's value
to half a step. Sites that have a policy count in wider cells, of several rows each (sites/designs.py).

Every process calls the same functions in the same order. States have the form that formulaic gives them.

Shapes: n rows of a site; x (n,).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from auqadmm.errors import InputError
from auqadmm.formula.parsing import Call
from auqadmm.problem.agreement import Exchange, together
from auqadmm.words import quoted

if TYPE_CHECKING:
    import pandas as pd

HISTOGRAM_STEPS = 7  # a step is about 2⁻⁷ of the standard deviation
ODD = 0.3183  # added to log₂ of the deviation, so that round numbers are far from where the step doubles
ZERO_NORM = 1e-18  # of the square of a polynomial, relative to the one before: what rounding leaves of zero
MOST_DEGREE = 20  # of polynomials and splines


class PooledRows(Protocol):
    """The rows of all sites, known by sums alone."""

    def total(self, call: Call, what: str, numbers: Sequence[float] = ()) -> np.ndarray:
        """The sum over all rows of what `sums_of` gives."""

    def histogram(self, call: Call) -> Histogram:
        """How often which values occur."""


@dataclass(frozen=True)
class Histogram:
    """Rows by rounded value, in order, and bounds between which all values lie."""

    counts: Mapping[float, int]
    low: float
    high: float


@dataclass(frozen=True)
class PooledColumns:
    """The rows of this process, one frame per file or site, and the way to the other processes."""

    frames: Sequence[pd.DataFrame]
    exchange: Exchange

    def total(self, call: Call, what: str, numbers: Sequence[float] = ()) -> np.ndarray:
        """Over all frames of all processes."""

        def own() -> tuple[None, list[float]]:
            parts = [summed(terms_of(call, what, numbers, frame)) for frame in self.frames]
            return None, np.sum(parts, axis=0).tolist()

        _, sums = together(self.exchange, own)
        return np.sum([np.asarray(s, dtype=np.float64) for s in sums if s], axis=0)

    def histogram(self, call: Call) -> Histogram:
        """Multiples of the step that occur; the bounds lie half a step beyond them."""
        step = 2.0 ** (step_exponent(call, self) - HISTOGRAM_STEPS)

        def own() -> tuple[None, list[list[int]]]:
            values = [np.rint(values_of(call, frame) / step) for frame in self.frames]
            found, often = np.unique(np.concatenate(values) if values else np.zeros(0), return_counts=True)
            return None, [found.astype(np.int64).tolist(), often.tolist()]

        _, parts = together(self.exchange, own)
        merged: dict[int, int] = {}
        for found, often in parts:
            for value, number in zip(found, often, strict=True):
                merged[value] = merged.get(value, 0) + number
        counts = {k * step: number for k, number in sorted(merged.items())}
        return Histogram(counts, min(counts) - step / 2, max(counts) + step / 2)


def state_of(call: Call, pool: PooledRows) -> dict[str, Any]:
    """What formulaic would have kept, had it seen all rows; plain values for JSON."""
    try:
        if call.name in ("center", "scale", "standardize"):
            return _scaled(call, pool)
        return _poly(call, pool) if call.name == "poly" else _spline(call, pool)
    except (TypeError, OverflowError) as error:
        raise InputError(f"{quoted(call.key)} cannot be used: {error}.") from None


# ---------------------------------------------------------------------- sums
TERMS = ("mean", "square", "poly", "columns")


def terms_of(call: Call, what: str, numbers: Sequence[float], frame: pd.DataFrame) -> np.ndarray:
    """What every row adds to a sum, (n, k). `numbers`: of "square" the centre, of "poly" α and norms so far, of
    "columns" the knots."""
    x = values_of(call, frame)
    if what == "mean":
        return np.stack([np.ones_like(x), x], axis=1)
    if what == "square":
        return np.square(x - numbers[0])[:, None]
    if what == "poly":
        squares = np.square(_polynomial(x, numbers))
        return np.stack([squares, x * squares], axis=1)
    return np.stack([np.ones_like(x), *_basis(call, x, natural_state(call, numbers)).values()], axis=1)


def summed(terms: np.ndarray) -> np.ndarray:
    return np.array([math.fsum(column) for column in terms.T])


def _mean(call: Call, pool: PooledRows) -> tuple[float, float]:
    """Rows, and the mean."""
    rows, total = pool.total(call, "mean")
    return float(rows), float(total / rows)


def step_exponent(call: Call, pool: PooledRows) -> int:
    """log₂ of the standard deviation, rounded down."""
    rows, mean = _mean(call, pool)
    (square,) = pool.total(call, "square", (mean,))
    if not square > 0:
        raise _constant(call)
    return math.floor(0.5 * math.log2(square / rows) + ODD)


def _scaled(call: Call, pool: PooledRows) -> dict[str, Any]:
    asked = call.arguments
    ddof = asked.get("ddof", 0 if call.name == "standardize" else 1)
    center = asked.get("center", True)
    scale = asked.get("rescale" if call.name == "standardize" else "scale", call.name != "center")
    rows, mean = _mean(call, pool)
    middle = mean if center is True else None if center is False else float(center)
    width = None if scale is False else float(scale) if scale is not True else math.nan
    if scale is True:
        away = middle or 0.0
        (square,) = pool.total(call, "square", (away,))
        width = math.sqrt(square / (rows - ddof)) if rows > ddof else 0.0
        if not width > 0:
            raise _constant(call)
    return {"ddof": ddof, "center": middle, "scale": width}


def _poly(call: Call, pool: PooledRows) -> dict[str, Any]:
    """The three-term recurrence of monic orthogonal polynomials, one reduction per degree."""
    degree = _whole(call, "degree", 1, 1)
    if call.arguments.get("raw", False):
        return {}
    alpha: list[float] = []
    norms: list[float] = []

    for _ in range(degree + 1):
        norm, first = pool.total(call, "poly", (*alpha, *norms))
        spread = norms[1] / norms[0] if len(norms) > 1 else 0.0
        if not norm > ZERO_NORM * spread * (norms[-1] if norms else 0.0):
            raise InputError(f"{quoted(call.key)} needs more different values than its degree, {degree}.")
        norms.append(float(norm))
        alpha.append(float(first / norm))
    return {"alpha": alpha[:degree], "norms2": norms}


def _polynomial(x: np.ndarray, numbers: Sequence[float]) -> np.ndarray:
    """The next one, after those of α and norms."""
    alpha, norms = numbers[: len(numbers) // 2], numbers[len(numbers) // 2 :]
    before, P = np.zeros_like(x), np.ones_like(x)
    for k, a in enumerate(alpha):
        beta = norms[k] / norms[k - 1] if k else 0.0
        before, P = P, (x - a) * P - beta * before
    return P


# ---------------------------------------------------------------------- counts
def _spline(call: Call, pool: PooledRows) -> dict[str, Any]:
    natural = call.name != "bs"
    given, df = call.arguments.get("knots"), call.arguments.get("df")
    if given is not None and df is not None:
        raise InputError(f"{quoted(call.key)}: give df or knots, not both.")
    if natural and given is None and df is None:
        raise InputError(f"{quoted(call.key)}: give df or knots.")
    low, high = call.arguments.get("lower_bound"), call.arguments.get("upper_bound")
    center = call.arguments.get("constraints") == "center"
    if natural and call.arguments.get("constraints") not in (None, "center"):
        raise InputError(f"{quoted(call.key)}: constraints are 'center' or none.")
    cyclic = call.name == "cc"
    degree = 3 if natural else _whole(call, "degree", 3, 0)
    counts: dict[float, int] = {}
    if df is not None or low is None or high is None:
        found = pool.histogram(call)
        counts = dict(found.counts)
        low = found.low if low is None else low
        high = found.high if high is None else high
    low, high = float(low), float(high)
    inner = sorted(float(knot) for knot in given or ())
    if df is not None:
        least = (1 if center or cyclic else 2) if natural else degree + bool(call.arguments.get("include_intercept"))
        knots = _whole(call, "df", 0, least) - (2 - center - cyclic if natural else least)
        inside = {value: 1 if natural else number for value, number in counts.items() if low <= value <= high}
        inner = quantiles(inside, np.linspace(0, 1, knots + 2)[1:-1]) if knots else []
    if any(not low < knot < high for knot in inner) or not low < high:
        raise InputError(f"{quoted(call.key)}: knots {_numbers(inner)} must lie between {low:g} and {high:g}.")
    if natural and len(set(inner)) < len(inner):
        raise InputError(
            f"{quoted(call.key)}: of the knots {_numbers(inner)} some are equal; take a lower df, or other knots."
        )
    state: dict[str, Any] = {"lower_bound": low, "upper_bound": high}
    if not natural:
        return state | {"knots": [low] * (degree + 1) + inner + [high] * (degree + 1)}
    state = natural_state(call, [low, *inner, high])
    if center:
        total = pool.total(call, "columns", state["knots"])
        state["constraints"] = [(total[1:] / total[0]).tolist()]
    return state


def natural_state(call: Call, knots: Sequence[float]) -> dict[str, Any]:
    """Of a cubic spline that is not centred."""
    bounds = {"lower_bound": knots[0], "upper_bound": knots[-1]}
    return {**bounds, "constraints": None, "cyclic": call.name == "cc", "knots": list(knots)}


def quantiles(counts: Mapping[float, int], shares: np.ndarray) -> list[float]:
    """As numpy's, of values that occur so often."""
    values, ends = np.array(list(counts)), np.cumsum(list(counts.values()))
    place = shares * (ends[-1] - 1)
    below, above = (values[np.searchsorted(ends, k, side="right")] for k in (np.floor(place), np.ceil(place)))
    return (below + (above - below) * (place - np.floor(place))).tolist()


def _basis(call: Call, x: np.ndarray, state: Mapping[str, Any]) -> Mapping[Any, np.ndarray]:
    """The spline's own columns, whose means `constraints="center"` sets to zero."""
    from formulaic.transforms import cyclic_cubic_spline, natural_cubic_spline

    basis = cyclic_cubic_spline if call.name == "cc" else natural_cubic_spline
    return basis(x, df=call.arguments.get("df"), _state=dict(state))


# ---------------------------------------------------------------------- helpers
def values_of(call: Call, frame: pd.DataFrame) -> np.ndarray:
    """x of every row, finite."""
    x = call.inner.of(frame)
    bad = np.flatnonzero(~np.isfinite(x))
    if bad.size:
        source, row = frame.attrs.get("source", "data"), frame.index[bad[0]]
        raise InputError(f"{source}: row {row}: {call.inner.code} is {x[bad[0]]:g} in {quoted(call.key)}; mend it.")
    return x


def _whole(call: Call, name: str, default: int, least: int) -> int:
    value = call.arguments.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= 10 * MOST_DEGREE:
        raise InputError(f"{quoted(call.key)}: {name} must be a whole number from {least}, got {value!r}.")
    return value


def _constant(call: Call) -> InputError:
    return InputError(f"{quoted(call.key)}: all rows of all sites have the same value; leave it out.")


def _numbers(values: Sequence[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)
