"""Problems drawn at random for `auto.py --random N --seed S`: any loss, any of l1, l2 and both, 3 to 1500 features,
2 to 30 blocks, rows at random or sorted by target, columns of many units, sparse or dense, with or without intercept.

`random 7/3` is the problem 3 of seed 7, whatever else is drawn.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse

import auqadmm as aq

LOSSES = ("logistic", "squares", "poisson", "hinge", "quantile", "multinomial")
SPACE = 2_000_000  # entries of X at most


def names(count: int, seed: int) -> list[str]:
    return [f"random {seed}/{k}" for k in range(count)]


def drawn(name: str) -> tuple[str, Callable[[], aq.Problem]]:
    """In words, and how it is made."""
    seed, k = (int(part) for part in name.removeprefix("random ").split("/"))
    rng = np.random.default_rng([seed, k])
    kind = LOSSES[k % len(LOSSES)]
    m = round(math.exp(rng.uniform(math.log(3), math.log(1500))))
    rows = int(np.clip(m * math.exp(rng.uniform(math.log(0.4), math.log(30))), 60, min(20_000, SPACE // m)))
    parts = int(rng.integers(2, 31))
    thin = m >= 50 and rng.random() < 0.4
    X = rng.normal(size=(rows, m)) + rng.choice([0.0, 0.0, 2.0])
    X = X @ np.linalg.qr(rng.normal(size=(m, m)))[0] if rng.random() < 0.3 and not thin else X
    X = X / (1 + np.arange(m)) ** rng.choice([0.0, 0.5, 1.0])
    if thin:
        X = np.where(rng.random((rows, m)) < np.clip(20 / (1 + np.arange(m)), 0.01, 0.5), np.abs(X), 0.0)
    w = rng.normal(size=m) * (rng.random(m) < rng.choice([0.1, 1.0]))
    z = X @ w
    z = rng.choice([0.5, 2.0, 6.0]) * (z - z.mean()) / max(float(z.std()), 1e-12) + rng.normal(size=rows)
    loss, y = _target(kind, z, rng)
    by = y if rng.random() < 0.3 else rng.random(rows)
    order = np.argsort(by, kind="stable")
    X = X * 10.0 ** rng.uniform(-1, 1, m) if rng.random() < 0.3 else X
    intercept = bool(rng.random() < 0.5)
    # strengths in the problem's own units: a share of what keeps all at zero, and of the mean curvature
    slope = _slopes(kind, X - X.mean(0) if intercept else X, y)
    l1 = 10 ** rng.uniform(-2, -0.3) * slope
    l2 = 10 ** rng.uniform(-6, -0.5) * float((X**2).sum()) / m
    penalty = rng.choice(["l1", "l2", "l2", "both"])
    g = {"l1": aq.L1(l1), "l2": aq.L2(l2), "both": aq.ElasticNet(l1, l2)}[str(penalty)]
    data = scipy.sparse.csr_matrix(X) if thin else X
    words = f"{kind}, {rows}×{m}{' sparse' if thin else ''}, {penalty}, {parts} blocks{' sorted' if by is y else ''}"
    blocks = [(data[i], y[i]) for i in np.array_split(order, parts)]
    return words + (", intercept" if intercept else ""), lambda: aq.Problem(loss, g, blocks, intercept=intercept)


def _target(kind: str, z: np.ndarray, rng: np.random.Generator) -> tuple[Any, np.ndarray]:
    match kind:
        case "logistic":
            return aq.Logistic(), np.where(z > 0, 1.0, -1.0)
        case "hinge":
            return aq.SmoothedHinge(float(rng.choice([1e-1, 1e-2, 1e-3]))), np.where(z > 0, 1.0, -1.0)
        case "squares":
            return aq.LeastSquares(), z
        case "poisson":
            return aq.Poisson(), rng.poisson(np.exp(np.clip(z / 2, -3, 3))).astype(float)
        case "quantile":
            return aq.Quantile(float(rng.uniform(0.1, 0.9)), eps=0.01 * float(z.std())), z
        case _:
            classes = int(rng.integers(3, 9))
            return aq.Multinomial(), np.digitize(z, np.quantile(z, np.arange(1, classes) / classes))


def _slopes(kind: str, X: np.ndarray, y: np.ndarray) -> float:
    """About how strong an l1 leaves all at zero."""
    if kind in ("logistic", "hinge", "quantile"):
        return 0.5 * float(np.abs(X.T @ np.sign(y - np.median(y) if kind == "quantile" else y)).max())
    if kind == "multinomial":
        return max(float(np.abs(X.T @ ((y == c) - (y == c).mean())).max()) for c in range(int(y.max()) + 1))
    return float(np.abs(X.T @ (y - y.mean())).max())
