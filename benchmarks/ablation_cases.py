"""What heuristics are tried on: the workloads of the rounds benchmark, and three tables for what images never meet.

    table-squares-far, table-logistic-far     six features of mean 1000 and spread 1, four blocks, an intercept
    table-logistic-hard                       60 features that are nearly one, ten tall blocks

Their optima are Newton's, proved to 1e-10.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import optima
from side_by_side import varied
from workloads import WORKLOADS

import auqadmm as aq

# base problems that AUQ-LR solves within seconds; squares of svhn and cifar10 as sums take it a minute
MAIN = tuple(
    name
    for name, w in WORKLOADS.items()
    if w.data != "digits" and not varied(w) and not (w.data != "mnist" and "elastic-sum" in name)
)


@dataclass(frozen=True)
class Case:
    """A workload, or a table. `prior` as in `Workload.make`."""

    name: str
    prior: str = ""

    @property
    def model(self) -> str:
        return "table" if self.name in TABLES else WORKLOADS[self.name].model

    @property
    def label(self) -> str:
        return f"{self.name}, {self.prior}" if self.prior else self.name

    @property
    def columns(self) -> str:
        """As in the rounds benchmark, where columns are in order; tables are about what happens where they are not."""
        return "auto" if self.model == "table" else "raw"

    @cached_property
    def problem(self) -> aq.Problem:
        return TABLES[self.name]() if self.model == "table" else WORKLOADS[self.name].make(self.prior)

    def optimum(self, device: str) -> float:
        if self.model == "table":
            return _newton(self.name)
        return optima.optimum(WORKLOADS[self.name], self.problem, device).objective


@lru_cache(maxsize=12)
def case(name: str, prior: str) -> Case:
    """Kept, with its data, for the next run of this process."""
    return Case(name, prior)


@lru_cache
def _newton(name: str) -> float:
    found = aq.solve(TABLES[name](), "newton", certificate_tol=1e-10)
    if found.status != "converged":
        raise RuntimeError(f"{name}: {found.message}")
    assert found.certificate is not None
    return float(found.certificate.objective)


def _split(X: np.ndarray, y: np.ndarray, blocks: int) -> list[tuple[np.ndarray, np.ndarray]]:
    return list(zip(np.array_split(X, blocks), np.array_split(y, blocks), strict=True))


def _far(squares: bool) -> aq.Problem:
    rng = np.random.default_rng(0)
    Z = rng.normal(size=(400, 6))
    z = Z @ rng.normal(size=6)
    if squares:
        y = z + 0.1 * rng.normal(size=400)
        return aq.Problem(aq.LeastSquares(reduction="mean"), aq.L2(1e-3), _split(1000 + Z, y, 4), intercept=True)
    y = (z + rng.logistic(size=400) > 0).astype(float)
    return aq.Problem(aq.Logistic(reduction="mean"), aq.L2(1e-4), _split(1000 + Z, y, 4), intercept=True)


def _hard() -> aq.Problem:
    rng = np.random.default_rng(0)
    Z = rng.normal(size=(5000, 60)) * np.logspace(0, -2, 60) @ rng.normal(size=(60, 60)) + rng.normal(size=(5000, 1))
    y = (Z @ rng.normal(size=60) + rng.logistic(size=5000) > 0).astype(float)
    return aq.Problem(aq.Logistic(reduction="sum"), aq.L2(1e-2), _split(Z, y, 10))


TABLES: dict[str, Any] = {
    "table-squares-far": lambda: _far(True),
    "table-logistic-far": lambda: _far(False),
    "table-logistic-hard": _hard,
}
