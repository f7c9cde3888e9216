"""A step length for a descent direction by the strong Wolfe conditions.

    φ(t) = F(v + tP), φ'(0) < 0        φ(t) ≤ φ(0) + c₁tφ'(0)   and   |φ'(t)| ≤ c₂|φ'(0)|

`lo` is the best end of the bracket so far: it has sufficient decrease and φ falls from it towards `hi`; as long as
there is no `hi`, steps grow. New trials are minimisers of cubics, kept away from the ends of the bracket.

Values of F near its minimum agree to all digits while slopes still differ. Where a difference of values
is within `noise`, sufficient decrease is therefore tested by the slope: φ'(t) ≤ (2c₁ − 1)φ'(0), which for a parabola
is the same condition.

Reference: J. Nocedal, S. J. Wright, Numerical Optimization, 2nd ed., algorithms 3.5 and 3.6; for the slopes
W. W. Hager, H. Zhang, SIAM J. Optim. 16 (2005), section 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

WOLFE_DECREASE = 1e-4  # c₁ of Wolfe's conditions, as in Nocedal and Wright, section 3.1
C2 = 0.9  # c₂ of the curvature condition, the usual one of quasi-Newton methods
WOLFE_TRIALS = 25  # step lengths of one search, each a round
GROW = (1.1, 4.0)  # how far past `lo` the next trial is while there is no upper end, in lengths of the last step
INSIDE = 0.1  # the share of a bracket that a trial keeps from either end
WOLFE_SHRINK = 0.66  # a bracket that two trials did not cut to this share is halved


@dataclass(frozen=True)
class Trial:
    """φ(t) and φ'(t); `at` is the caller's data for this t."""

    t: float
    value: float
    slope: float
    at: Any = None

    @property
    def finite(self) -> bool:
        return math.isfinite(self.value) and math.isfinite(self.slope)


def search(
    phi: Callable[[float], Trial], start: Trial, first: float, noise: float = 0.0, trials: int = WOLFE_TRIALS
) -> tuple[Trial | None, bool]:
    """Find a Wolfe step.

    Parameters
    ----------
    phi
        Evaluates a trial; called at most `trials` times.
    start
        φ at t = 0, with φ'(0) < 0.
    first
        The first trial.
    noise
        Differences of values up to this are rounding.

    Returns
    -------
    Trial or None, bool
        The last trial and True; or, where no trial was a Wolfe step, the lowest one below φ(0) (None if there is
        none) and False.
    """
    lo, before, hi, best = start, start, None, None
    t, widths = first, [math.inf, math.inf]
    for _ in range(trials):
        trial = phi(t)
        if trial.finite and trial.value < (start if best is None else best).value:
            best = trial
        if not _low(trial, start, noise) or trial.value > lo.value + noise:
            hi = trial
        elif abs(trial.slope) <= C2 * abs(start.slope):
            return trial, True
        else:
            end = math.inf if hi is None else hi.t
            if trial.slope * (end - lo.t) >= 0:  # the minimum lies between them, and the trial is the better end
                hi = lo
            before, lo = lo, trial
        if hi is None:
            t = _ahead(before, lo, noise)
        else:
            width = abs(hi.t - lo.t)
            # the ends are neighbours in floating point, or a step overflowed: stop
            if not math.ulp(lo.t) < width < math.inf:
                break
            t = _between(lo, hi, noise, halve=width > WOLFE_SHRINK * widths[-2])
            widths.append(width)
    return best, False


def _low(trial: Trial, start: Trial, noise: float) -> bool:
    """Sufficient decrease; False for a trial that overflowed, which went too far."""
    if not trial.finite:
        return False
    if trial.value <= start.value + WOLFE_DECREASE * trial.t * start.slope:
        return True
    return abs(trial.value - start.value) <= noise and trial.slope <= (2 * WOLFE_DECREASE - 1) * start.slope


def _ahead(before: Trial, lo: Trial, noise: float) -> float:
    """φ still falls at `lo`: further on, by the cubic where it has a minimum."""
    stride = lo.t - before.t
    least, most = (lo.t + share * stride for share in GROW)
    t = _minimiser(before, lo, noise)
    return min(max(t, least), most) if t > lo.t else most  # minimum behind `lo`, or NaN: φ is concave there


def _between(lo: Trial, hi: Trial, noise: float, halve: bool) -> float:
    width = hi.t - lo.t
    if not hi.finite:  # only says that it is too far
        return lo.t + INSIDE * width
    share = 0.5 if halve else (_minimiser(lo, hi, noise) - lo.t) / width
    # NaN: neither the cubic nor the secant has a minimum
    return lo.t + (min(max(share, INSIDE), 1 - INSIDE) if math.isfinite(share) else 0.5) * width


def _minimiser(a: Trial, b: Trial, noise: float) -> float:
    """Of the cubic through both values and slopes; of the parabola through both slopes where values are noise."""
    width = b.t - a.t
    bend = b.slope - a.slope
    if abs(b.value - a.value) <= noise:
        return a.t - a.slope * width / bend if bend != 0 else math.nan  # equal slopes: a line
    d1 = a.slope + b.slope - 3 * (b.value - a.value) / width
    square = d1 * d1 - a.slope * b.slope
    if not square >= 0:  # the cubic is monotone (also refuses NaN from an overflow)
        return math.nan
    d2 = math.copysign(math.sqrt(square), width)
    below = bend + 2 * d2
    return b.t - width * (b.slope + d2 - d1) / below if below != 0 else math.nan  # a line
