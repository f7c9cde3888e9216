"""Intercept and slope of calibration: Newton's method on sums of six numbers.

    minimise over a, b   Σ c φ(a + b·(x·u) + offset, y)            with b = 1 + d, and a moved to the mean score

(0, 1) where the model is its own best: a maximum of the likelihood on its own rows. A slope below 1 says that
predictions are too extreme, as they are on new rows after a fit of many columns to few.
"""

from __future__ import annotations

import numpy as np

from auqadmm.quality.measures import Figures, Line

CALIBRATION_STEPS = 50
SMALL_DECREMENT = 1e-14  # of the loss: one more step is exact to rounding
STEEPEST = 1e4  # a slope beyond this has no end: the scores separate the outcomes
SHORTEST = 1e-6  # part of a step
CALIBRATION_ROUNDING = 1e-12  # of AUC
FLAT = 1e-13  # of the curvature: scores are constant


def calibrate(line: Line, start: np.ndarray, middle: float, order: tuple[float, float] | None = None) -> Figures:
    """Intercept and slope; None where scores are constant, or separate the outcomes. `start`: the line at (0, 0),
    `middle`: the score that d turns around, `order`: between which values AUC is, where there is one."""
    separated = order is not None and (order[0] >= 1 - CALIBRATION_ROUNDING or order[1] <= CALIBRATION_ROUNDING)
    found = None if separated else minimum(line, start)
    if found is None:
        return {"calibration_intercept": None, "calibration_slope": None}
    a, d = found
    return {"calibration_intercept": a - d * middle, "calibration_slope": 1 + d}


def minimum(line: Line, start: np.ndarray) -> tuple[float, float] | None:
    """(a, d) of the least loss; None where there is none."""
    at, found = np.zeros(2), start
    for _ in range(CALIBRATION_STEPS):
        value, g = found[0], found[1:3]
        H = np.array([[found[3], found[4]], [found[4], found[5]]])
        if not np.isfinite(found).all() or not np.linalg.det(H) > FLAT * H[0, 0] * H[1, 1]:
            return None
        step = -np.linalg.solve(H, g)
        if -g @ step <= SMALL_DECREMENT * (abs(value) + 1):
            return float(at[0] + step[0]), float(at[1] + step[1])
        t = 1.0
        while True:  # shorter until the loss falls
            there = at + t * step
            ahead = line(float(there[0]), float(there[1])).numpy()
            if ahead[0] <= value + 1e-4 * t * (g @ step) + 1e-14 * abs(value):
                break
            t = 0.5 * t
            if t < SHORTEST:
                return None
        at, found = there, ahead
        if abs(at[1]) > STEEPEST:
            return None
    return None
