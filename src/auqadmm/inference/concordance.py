"""Concordance: of two rows, has the one with the earlier event the larger risk score?

A pair counts if both belong to the same group, one has an event at t, and the other is at risk then without one: it
entered before t and has its time after t, or is censored at t. Tied scores count half. O(n log n): scores are compared
bit by bit of their ranks, all pairs of a bit at once.

Shapes: n rows; all arrays (n,).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class PairCounts:
    """Weights of pairs that agree, that disagree, and whose scores are equal: weight times weight, summed."""

    concordant: float
    discordant: float
    tied: float

    @property
    def index(self) -> float:
        """The share of pairs that agree, ties by half; NaN without any pair."""
        total = self.concordant + self.discordant + self.tied
        return float((self.concordant + 0.5 * self.tied) / total) if total > 0 else float("nan")


def pairs(
    score: np.ndarray, time: np.ndarray, event: np.ndarray, entry: np.ndarray, group: np.ndarray, weight: np.ndarray
) -> PairCounts:
    """The pairs within groups; `entry` is not above 0 for rows that are at risk from the beginning."""
    values, rank = np.unique(time, return_inverse=True)
    score_rank = np.unique(score, return_inverse=True)[1]
    dead = np.flatnonzero(event > 0)
    asked = 2 * rank[dead], group[dead], score_rank[dead]
    # at risk at t: the key of time is above that of t, the key of entry is not
    lower, equal, above = _beyond(2 * rank + (event <= 0), group, score_rank, weight, *asked)
    if (entry > 0).any():
        entered = 2 * np.searchsorted(values, entry, "right")
        late = _beyond(entered, group, score_rank, weight, *asked)
        lower, equal, above = lower - late[0], equal - late[1], above - late[2]
    sums = (float(weight[dead] @ x) for x in (lower, above - lower - equal, equal))
    return PairCounts(*sums)


def _beyond(
    key: np.ndarray,
    group: np.ndarray,
    rank: np.ndarray,
    weight: np.ndarray,
    asked: np.ndarray,
    asked_group: np.ndarray,
    asked_rank: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of every question: the weight of rows of its group with a larger key, of lower rank, of equal rank, of any."""
    q = len(asked)
    is_row = np.r_[np.zeros(q, dtype=bool), np.ones(len(key), dtype=bool)]
    k, g, r = np.r_[asked, key], np.r_[asked_group, group], np.r_[asked_rank, rank]
    w = np.r_[np.zeros(q), weight]
    order = np.lexsort((is_row, -k, g))  # of equal keys questions come first: rows with the same key do not count
    lower, equal, above = np.zeros(len(k)), np.zeros(len(k)), np.zeros(len(k))
    above[order] = _before(w[order], g[order])
    same = order[np.lexsort((r[order], g[order]))]
    equal[same] = _before(w[same], g[same], r[same])
    for bit in reversed(range(int(r.max(initial=0)).bit_length())):
        node = r[order] >> (bit + 1)
        order = order[np.argsort(node, kind="stable")]
        node, right = r[order] >> (bit + 1), (r[order] >> bit) & 1 == 1
        lower[order] += np.where(right, _before(np.where(right, 0.0, w[order]), node, g[order]), 0.0)
    return lower[:q], equal[:q], above[:q]


def _before(w: np.ndarray, *keys: np.ndarray) -> np.ndarray:
    """The sum of w before each place in its run of equal keys."""
    if not len(w):
        return np.zeros(0)
    new = np.ones(len(w), dtype=bool)
    new[1:] = False
    for key in keys:
        new[1:] |= key[1:] != key[:-1]
    total = np.r_[0.0, np.cumsum(w)[:-1]]
    starts = np.flatnonzero(new)
    return total - np.repeat(total[starts], np.diff(np.r_[starts, len(w)]))
