"""The most likely size k of a negative binomial: Newton's method on log k, every step a fit from the last one.

The slope of max_u ℓ(u, k) is ∂ℓ/∂k at the best u. Its curvature is that of k less what u gives way. Both come with the
sums of inference, one round per step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from auqadmm.core.result import Result
from auqadmm.inference.statistics import Statistics
from auqadmm.problem import InputError

SIZE_STEPS = 60
FAR = math.log(20.0)  # the longest step in log k
SIZE_ENOUGH = 1e-9  # the step in log k, found by Newton's method, that ends the search: the next one is its square
LARGEST = 1e5  # times the mean count: a larger k adds less than 1e-5 to the variance of Poisson


@dataclass(frozen=True)
class SizeSearch:
    """`fit(k, last)`: the result for a given k, with its sums, from the result of the last step or None."""

    fit: Callable[[float, Result | None], Result]
    quadratic: bool

    def __call__(self) -> tuple[float, Result, int]:
        """k, its result, and how many rounds all fits took."""
        low, high, t = -math.inf, math.inf, 0.0
        result, rounds = None, 0
        for _ in range(SIZE_STEPS):
            result = self.fit(math.exp(t), result)
            rounds += result.history[-1].rounds
            at = result.statistics
            assert at is not None
            slope, bend = self._derivatives(at, math.exp(t))
            low, high = (t, high) if slope < 0 else (low, t)
            if slope < 0 and math.exp(t) > LARGEST * max(1.0, at.number("y") / at.number("weight")):
                raise InputError(
                    "The counts vary no more than Poisson's: the most likely k is infinite; use family='poisson'."
                )
            step = -slope / bend if bend > 0 else -math.copysign(FAR, slope)
            step = max(-FAR, min(FAR, step))
            if abs(step) <= SIZE_ENOUGH:
                return math.exp(t), replace(result, statistics=replace(at, searched=True)), rounds
            there = t + step
            t = there if low < there < high else 0.5 * (low + high)
        raise InputError("The most likely k was not found: give it, NegativeBinomial(k).")

    def _derivatives(self, at: Statistics, k: float) -> tuple[float, float]:
        """By log k, of −max_u ℓ."""
        slope, h = at.number("Gk"), at.sums["Hk"]
        bend = h[-1]
        if self.quadratic:
            H = at.sums["H"] + np.diag(at.strengths)
            bend = bend - h[:-1] @ np.linalg.lstsq(H, h[:-1], rcond=None)[0]
        return k * slope, k * k * float(bend) + k * slope
