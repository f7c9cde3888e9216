"""The trend of a run: how far it is above its tolerances, and how many iterations it would take to meet them.

excess   the relative gap (an estimate, without a verdict) over its tolerance, or the larger residual over its own;
         1 is where a run stops
trend    a straight line through log(excess) against iterations: linear convergence, if the points lie on it
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from auqadmm.core.history import Row
from auqadmm.core.stopping import Stopping

FEWEST_POINTS = 8  # points that a line is fitted to
STEADY = 0.8  # share of the variance that the line must explain
SLOWING = 0.8  # slope of the later half, relative to all of it
FALL = math.log(1.3)  # the least total decrease of the fitted line


@dataclass(frozen=True)
class Trend:
    """A falling line: by the factor `rate` < 1 per iteration, to the tolerances after `left` more iterations; at
    least so many where the run is `slowing`."""

    rate: float
    left: float
    slowing: bool = False


def excess(row: Row, stopping: Stopping) -> float | None:
    """How many times above its tolerance the worst quantity of the stopping rule is; None where that is not known."""
    pairs: list[tuple[float | None, float | None]] = []
    has_residuals = row.primal_residual is not None
    if stopping.rule != "certificate" and has_residuals:
        pairs += [(row.primal_residual, row.eps_primal), (row.dual_residual, row.eps_dual)]
    if stopping.rule != "residuals" or not has_residuals:
        pairs.append((row.expected if row.relative is None else row.relative, stopping.certificate_tol))
    ratios = [value / limit for value, limit in pairs if value is not None and limit]  # no limit: never met
    if len(ratios) < len(pairs) or not all(map(math.isfinite, ratios)):
        return None
    return max(ratios)


def trend(points: Sequence[tuple[int, float]]) -> Trend | None:
    """The line through (iteration, excess); None where it does not fall, or the points do not lie on one.

    A run that slows down is judged by its later half: a forecast must not be too optimistic.
    """
    known = [(k, math.log(x)) for k, x in points if 0 < x < math.inf]
    if len(known) < FEWEST_POINTS:
        return None
    slope, last, explained = _fit(known)
    fall = -slope * (known[-1][0] - known[0][0])
    if fall < FALL or explained < STEADY:
        return None
    later, there, _ = _fit(known[len(known) // 2 :])
    if later >= 0:
        return None
    slowing = later > SLOWING * slope
    if later > slope:
        slope, last = later, there
    return Trend(math.exp(slope), max(last, 0.0) / -slope, slowing)


def _fit(points: Sequence[tuple[int, float]]) -> tuple[float, float, float]:
    """Slope, value at the end, and the share of the variance explained, of the line of least squares."""
    n = len(points)
    mean_k, mean_y = sum(k for k, _ in points) / n, sum(y for _, y in points) / n
    kk = sum((k - mean_k) ** 2 for k, _ in points)
    ky = sum((k - mean_k) * (y - mean_y) for k, y in points)
    yy = sum((y - mean_y) ** 2 for _, y in points)
    slope = ky / kk
    # yy = 0: all points are equal, and the line is flat
    return slope, mean_y + slope * (points[-1][0] - mean_k), ky * ky / (kk * yy) if yy > 0 else 0.0


def recent(rows: Sequence[Row], stopping: Stopping, gap: float | None = None) -> list[tuple[int, float]]:
    """(iteration, excess) of the later half of a run, at least as many as a line needs.

    `gap`: the relative gap of the last row. Before it the gap is taken to fall as the square of the KKT residual, which
    has one scale throughout; estimates and bounds of the gap change theirs with every verdict.
    """
    last = rows[-1].kkt if rows else None
    points: list[tuple[int, float]] = []
    if gap is not None and last and (stopping.rule == "certificate" or rows[-1].primal_residual is None):
        if stopping.certificate_tol > 0:
            scale = gap / stopping.certificate_tol / last**2
            points = [(row.iteration, scale * row.kkt**2) for row in rows if row.kkt is not None]
    else:
        points = [(row.iteration, x) for row in rows if (x := excess(row, stopping)) is not None]
    return points[-max(FEWEST_POINTS, len(points) // 2) :]
