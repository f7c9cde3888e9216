"""Methods at equal distance from the optimum.

A method's own stopping test says little about another's (S3), so runs are compared by the relative objective gap
(F(v) − F*) / |F*|, with F* from a solver that is none of the methods compared.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from auqadmm.core.history import Row
from auqadmm.core.result import Result

GAPS = (1e-2, 1e-4, 1e-6)


@dataclass(frozen=True, eq=False)
class MethodRun:
    """One method on one model: its result, and the optimum F* to measure it against."""

    model: str
    result: Result
    optimum: float

    @property
    def method(self) -> str:
        return self.result.method

    @property
    def gaps(self) -> np.ndarray:
        """Relative objective gap after each iteration; NaN where the objective was not evaluated."""
        values = [math.nan if x is None else x for x in self.result.history.column("objective")]
        # an optimum of exactly 0 (a perfect fit without regularizer) has no scale: the gap is then absolute
        return (np.array(values, dtype=float) - self.optimum) / (abs(self.optimum) or 1.0)

    def first_within(self, gap: float) -> Row | None:
        """The history's row of the first iteration within a relative objective gap; None if none was."""
        within = np.flatnonzero(self.gaps <= gap)
        return self.result.history[int(within[0])] if within.size else None
