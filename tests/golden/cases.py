"""Runs whose every iteration is kept: which problems, which methods, and what is noted of a run.

Only public names are used here, so that the source can be reorganised without touching this file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import scipy.sparse
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits

import auqadmm as aq

METHODS = (
    "c-admm",
    "rb-admm",
    "ac-admm",
    "uq-admm",
    "auq-admm",
    "auq-lr",
    "newton",
    "auto",
    "lbfgs",
    "lbfgs-w",
    "owl-qn",
    "fista",
)
DIGITS = ("digits-multinomial", "digits-elastic-net", "digits-svm")
OTHERS = ("raw-table", "sparse-l1", "poisson", "quantile")
FEWER = ("c-admm", "auq-admm", "auq-lr", "newton", "auto", "lbfgs", "lbfgs-w", "owl-qn", "fista")
LENGTH = 10
TOL = 1e-9  # tighter than the default, so that most runs are ten iterations long
EPS = 0.05  # sharper hinges turn rounding into other steps of a line search
PROJECTIONS = 3
COUNTS = ("rounds", "bytes_up", "bytes_down", "reductions", "rounds_verdict", "hvps")

Blocks = list[tuple[Any, np.ndarray]]


def by_class(X: np.ndarray, y: np.ndarray, classes: Any) -> Blocks:
    return [(X[y == c], y[y == c]) for c in classes]


def in_thirds(X: Any, y: np.ndarray) -> Blocks:
    """Uneven pieces of rows as they come."""
    ends = [0, len(y) // 5, len(y) // 2, len(y)]
    return [(X[a:b], y[a:b]) for a, b in pairwise(ends)]


def digits() -> tuple[np.ndarray, np.ndarray]:
    X, y = load_digits(return_X_y=True)
    return X / 16, y


def digits_multinomial(perturb: Callable[[Any], Any]) -> aq.Problem:
    X, y = digits()
    return aq.Problem(aq.Multinomial(reduction="mean"), aq.L2(1.0), by_class(perturb(X), y, range(10)))


def digits_elastic_net(perturb: Callable[[Any], Any]) -> aq.Problem:
    X, y = digits()
    blocks = by_class(perturb(X), y, range(10))
    return aq.Problem(aq.LeastSquares(reduction="mean"), aq.ElasticNet(0.01, 0.01), blocks)


def digits_svm(perturb: Callable[[Any], Any]) -> aq.Problem:
    X, y = digits()
    blocks = by_class(perturb(X), y, (0, 1))
    return aq.Problem(aq.SmoothedHinge(eps=EPS, reduction="mean"), aq.L2(1.0), blocks)


def raw_table(perturb: Callable[[Any], Any]) -> aq.Problem:
    """Columns from 0.003 to 4000, none of them centred: they are put in order inside."""
    X, y = load_breast_cancer(return_X_y=True)
    return aq.Problem(aq.Logistic(), aq.L2(0.1), in_thirds(perturb(X), y), intercept=True)


def sparse_l1(perturb: Callable[[Any], Any]) -> aq.Problem:
    X, y = digits()
    X = perturb(X * (X > 0.6))
    return aq.Problem(aq.Logistic(), aq.L1(1.0), in_thirds(scipy.sparse.csr_matrix(X), (y % 2).astype(np.int64)))


def poisson(perturb: Callable[[Any], Any]) -> aq.Problem:
    X, y = load_diabetes(return_X_y=True)
    return aq.Problem(aq.Poisson(), aq.L2(0.5), in_thirds(perturb(20 * X), np.floor(y / 40)), intercept=True)


def quantile(perturb: Callable[[Any], Any]) -> aq.Problem:
    X, y = load_diabetes(return_X_y=True)
    return aq.Problem(aq.Quantile(0.5, eps=0.5), aq.L2(0.1), in_thirds(perturb(20 * X), y / 10), intercept=True)


PROBLEMS: dict[str, Callable[[Callable[[Any], Any]], aq.Problem]] = {
    "digits-multinomial": digits_multinomial,
    "digits-elastic-net": digits_elastic_net,
    "digits-svm": digits_svm,
    "raw-table": raw_table,
    "sparse-l1": sparse_l1,
    "poisson": poisson,
    "quantile": quantile,
}


@cache
def problem(name: str) -> aq.Problem:
    return PROBLEMS[name](lambda X: X)


def pairs() -> Iterator[tuple[str, str]]:
    """All that is kept: (problem, method)."""
    yield from ((name, method) for name in DIGITS for method in METHODS)
    yield from ((name, method) for name in OTHERS for method in FEWER)


def projections(v: np.ndarray) -> list[float]:
    """The norm of v, and its inner products with unit vectors of cosines."""
    flat, k = v.ravel(), np.arange(v.size)
    vectors = [np.cos((i + 1) * (k + 1.0) ** 1.1) for i in range(PROJECTIONS)]
    return [float(np.linalg.norm(flat)), *(float(flat @ p / np.linalg.norm(p)) for p in vectors)]


def distance(kept: list[float], found: list[float]) -> float:
    """How far norm and projections are apart, relative to the norm."""
    return max(abs(a - b) for a, b in zip(kept, found, strict=True)) / (kept[0] or 1.0)


def run(name: str, method: str, length: int, given: aq.Problem | None = None) -> dict[str, Any]:
    """What is kept of a run of at most so many iterations: how it ended, and what was known after each of them.
    `given`: in place of the problem of that name."""
    seen: list[list[float]] = []

    def note(event: aq.Iteration) -> None:
        seen.append(projections(event.state.shared.v.cpu().numpy()))

    try:
        result = aq.solve(given or problem(name), method, max_iter=length, certificate_tol=TOL, callbacks=[note])
    except ValueError as error:  # how a method says that a problem is not of its kind
        return {"refused": str(error)}
    return {
        "status": str(result.status),
        "v": seen,
        "objective": result.history.column("objective"),
        **{count: result.history.column(count) for count in COUNTS},
    }
