"""The rows of the tests: `python -m tests.cox.rows` writes them for R, which reads fixtures/rows.csv.

Tied times, entry times, strata within sites, weights, a site without events, one of a single row, one in which no two
rows can be compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

FIXTURES = Path(__file__).parent / "fixtures"
COLUMNS = ("age", "dose", "marker")


@dataclass(frozen=True)
class Study:
    """X (n, 3), time, event, entry, stratum, site, weight (n,)."""

    X: np.ndarray
    time: np.ndarray
    event: np.ndarray
    entry: np.ndarray
    stratum: np.ndarray
    site: np.ndarray
    weight: np.ndarray

    def y(self, entry=False, strata=False):
        columns = [self.time, self.event]
        if entry or strata:
            columns.append(self.entry if entry else np.full(len(self.time), -1.0))
        return np.column_stack([*columns, self.stratum] if strata else columns)

    def blocks(self, entry=False, strata=False, weights=False):
        y = self.y(entry, strata)
        rows = [np.flatnonzero(self.site == s) for s in np.unique(self.site)]
        return [(self.X[i], y[i], self.weight[i]) if weights else (self.X[i], y[i]) for i in rows]


@cache
def study() -> Study:
    table = np.genfromtxt(FIXTURES / "rows.csv", delimiter=",", names=True)
    X = np.column_stack([table[name] for name in COLUMNS])
    return Study(X, *(table[name] for name in ("time", "event", "entry", "stratum", "site", "weight")))


@cache
def truth() -> dict[str, np.ndarray]:
    """The numbers of R, by name."""
    found = {}
    for line in (FIXTURES / "survival.txt").read_text().splitlines():
        name, *numbers = line.split()
        found[name] = np.array(numbers, dtype=float)
    return found


def _write() -> None:
    rng = np.random.default_rng(7)
    sizes = [90, 60, 45, 12, 1, 2]
    site = np.repeat(np.arange(len(sizes)), sizes)
    n = len(site)
    age, dose, marker = np.round(rng.normal(60, 9, size=n), 1), rng.integers(2, size=n), np.round(rng.normal(size=n), 2)
    for x in (age, dose, marker):
        x[80:90] = x[:10]  # the same hazard
    rate = np.exp(0.04 * (age - 60) - 0.7 * dose + 0.4 * marker + 0.3 * site) / 9
    time, limit = np.ceil(rng.exponential(1 / rate)), np.ceil(rng.uniform(1, 25, size=n))
    event = (time <= limit).astype(int)
    time = np.minimum(time, limit)
    event[site == 3] = 0
    time[site == 5], event[site == 5] = [3, 3], [1, 1]  # the same time: no pair can be compared
    age[site == 5], dose[site == 5], marker[site == 5] = 60, 1, 0
    entry = np.where(rng.random(n) < 0.5, np.floor(time * rng.uniform(0, 0.95, size=n)), -1.0)
    entry = np.minimum(entry, time - 1)
    stratum, weight = rng.integers(2, size=n), np.round(rng.uniform(0.5, 3, size=n), 2)
    table = np.column_stack([age, dose, marker, time, event, entry, stratum, site, weight])
    head = ",".join([*COLUMNS, "time", "event", "entry", "stratum", "site", "weight"])
    np.savetxt(FIXTURES / "rows.csv", table, delimiter=",", header=head, comments="", fmt="%.10g")


if __name__ == "__main__":
    _write()
