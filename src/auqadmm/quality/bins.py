"""Scores in bins: all that AUC and a calibration curve need of many sites are sums over the bins of one grid.

    t = (s − μ)/σ,    bin = ⌊n/2·(1 + asinh(3t)/asinh(300))⌋          μ, σ: mean and spread of the scores s of all sites

Bins are narrow near the mean (σ/1000 of 4096 bins) and grow with their distance from it, so that neither units nor a
few extreme scores matter. AUC counts pairs of different outcomes whose scores are in order; pairs within a bin are not
known to be, and count one half:

    low = pairs in order of different bins,   high = low + pairs within a bin,   AUC between them, (low + high)/2 told

It is exact where scores in a bin are equal, as of models of few categories.

Shapes: n bins; weights of the outcomes (n,), columns of sums (n,).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

BINS = 4096
MOST_NUMBERS = 2**15  # of bins of all classes together
LEAST_BINS = 64
FINE, FAR = 3.0, math.asinh(300.0)
GROUPS = 10  # points of a calibration curve


@dataclass(frozen=True)
class Grid:
    """`middle` and `spread` of the scores, and how many bins."""

    middle: float
    spread: float
    bins: int = BINS

    @classmethod
    def of(cls, weight: float, total: float, squares: float, bins: int = BINS) -> Grid:
        """From Σc, Σcs and Σcs²."""
        mean = total / weight if weight > 0 else 0.0
        variance = squares / weight - mean * mean if weight > 0 else 0.0
        return cls(mean, math.sqrt(variance) if variance > 0 else 1.0, bins)

    def sums(self, score: Tensor, columns: list[Tensor]) -> Tensor:
        """Of every bin the sums of columns (r,), by the scores of rows (r,): (columns, n)."""
        place = torch.asinh(FINE * (score - self.middle) / self.spread) / FAR
        index = (0.5 * self.bins * (1 + place)).floor().clamp(0, self.bins - 1).long()
        zeros = torch.zeros(self.bins, dtype=torch.float64, device=score.device)
        return torch.stack([zeros.index_add(0, index, x) for x in columns])


def bins_of(classes: int) -> int:
    """So many for each of several classes."""
    return BINS if classes < 2 else max(LEAST_BINS, min(BINS, MOST_NUMBERS // classes))


def auc_bounds(positive: np.ndarray, negative: np.ndarray) -> tuple[float, float] | None:
    """Between which values AUC is; None where there is but one kind of outcome."""
    pairs = positive.sum() * negative.sum()
    if not pairs > 0:
        return None
    below = np.concatenate([[0.0], np.cumsum(negative)[:-1]])
    low = float((positive * below).sum() / pairs)
    return low, min(low + float((positive * negative).sum() / pairs), 1.0)


def exact_auc(score: Tensor, positive: Tensor, negative: Tensor) -> float | None:
    """Of rows in one place, from their scores and weights by outcome (r,)."""
    values, index = torch.unique(score, return_inverse=True)
    zeros = torch.zeros(len(values), dtype=torch.float64, device=score.device)
    found = auc_bounds(*(zeros.index_add(0, index, x).cpu().numpy() for x in (positive, negative)))
    return None if found is None else 0.5 * (found[0] + found[1])


@dataclass(frozen=True, eq=False)
class Calibration:
    """What was predicted and what was seen in groups of about equal weight, from the lowest prediction: (g,) each."""

    predicted: np.ndarray
    observed: np.ndarray
    weight: np.ndarray

    @classmethod
    def of(cls, weight: np.ndarray, observed: np.ndarray, predicted: np.ndarray) -> Calibration:
        """From sums of bins, (n,) each; a group has whole bins."""
        total = weight.sum()
        middle = np.cumsum(weight) - 0.5 * weight
        group = np.minimum((GROUPS * middle / total).astype(int), GROUPS - 1) if total > 0 else np.zeros(0, dtype=int)
        sums = [np.bincount(group, x, minlength=GROUPS) for x in (weight, observed, predicted)] if total > 0 else []
        if not sums:
            return cls(*(np.zeros(0) for _ in range(3)))
        some = sums[0] > 0
        w, y, p = (x[some] for x in sums)
        return cls(p / w, y / w, w)
