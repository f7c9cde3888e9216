"""What speed.py measures against others: the same optimum, the same gap, the same machine, one run."""

from __future__ import annotations

import time
import warnings
from typing import Any

import numpy as np
import scipy.optimize
import torch
from rounds import LeftToCallback, Watch, resolve
from speed_cases import NAMES, OPTIMA, Rows
from workloads import dataset, select

import auqadmm as aq

GAP = 1e-6
SLOW = 20.0  # seconds that a run may take


def to_gap(problem: aq.Problem, method: Any, best: float, device: str, gap: float = GAP) -> float | None:
    """Seconds, set-up included, until the gap; None if it takes too long. Scoring is off the clock."""
    watch = Watch(best, 10**6)
    seconds: list[float] = []

    def callback(event: aq.Iteration) -> bool:
        watch(event)
        if watch.gap <= gap:
            seconds.append(event.row.seconds)
        return bool(seconds)

    settings = {"abs_tol": 0.0, "rel_tol": 0.0, "stop": "residuals", "time_limit": SLOW, "max_iter": 10**6}
    aq.solve(problem, LeftToCallback(resolve(method)), device=device, callbacks=[callback], **settings)
    return seconds[0] if seconds else None


def gap(device: str) -> Rows:
    out = []
    for name in NAMES:
        workload = select([name])[0]
        problem, best = workload.make(), OPTIMA[name]["objective"]
        row: dict[str, Any] = {"workload": name}
        methods = ("auq-lr", "c-admm", "fista") + (() if "elastic" in name else ("lbfgs",))
        to_gap(problem, "auq-lr", best, device, 0.5)  # libraries set themselves up
        for method in methods:
            row[method] = to_gap(problem, method, best, device)
        if "elastic" not in name and device == "cpu":
            row["scipy L-BFGS, pooled"] = _scipy(problem, best)
        out.append(row)
    return out


def _scipy(problem: aq.Problem, best: float) -> float | None:
    """scipy's L-BFGS-B on the sum of all losses, as one function of one vector."""
    shard = problem.placed().shard(torch.float64, torch.device("cpu"))
    shape = shard.shape[1:]
    found: list[float] = []

    def objective(x: np.ndarray) -> tuple[float, np.ndarray]:
        v = torch.from_numpy(x).reshape(shape)
        point = shard.linearize(shard.expand(v))
        F = float(point.value.sum() + problem.g.value(v))
        if (F - best) / abs(best) <= GAP and not found:
            found.append(time.perf_counter() - began)
            raise StopIteration
        slope = point.grad.sum(0) + problem.g.strong_convexity * v
        return F, slope.flatten().numpy()

    began = time.perf_counter()
    try:
        start = np.zeros(shape[0] * shape[1])
        scipy.optimize.minimize(objective, start, jac=True, method="L-BFGS-B", options={"maxiter": 5000, "maxcor": 10})
    except StopIteration:
        pass
    return found[0] if found else None


# ---------------------------------------------------------------------- logistic regression, 0 against 1
def logistic(device: str) -> Rows:
    """4000 rows of MNIST's 0 and 1 over 4 blocks, l2 = 1 on the sum of losses."""
    images = dataset("mnist")
    rows = np.concatenate([np.flatnonzero(images.y == digit)[:2000] for digit in (0, 1)])
    order = np.random.default_rng(0).permutation(rows)
    X, y = images.X[order] / 255.0, images.y[order].astype(float)
    cuts = np.array_split(np.arange(len(y)), 4)
    problem = aq.Problem(
        aq.Logistic(reduction="sum"), aq.L2(1.0), [(X[i], np.where(y[i] > 0, 1.0, -1.0)) for i in cuts]
    )
    exact = aq.solve(problem, "auq-lr", certificate_tol=1e-12, stop="certificate", max_iter=500)
    best = exact.certificate.objective

    def relative(w: np.ndarray) -> float:
        margin = np.where(y > 0, 1.0, -1.0) * (X @ w.ravel())
        return (np.logaddexp(0, -margin).sum() + 0.5 * float(w.ravel() @ w.ravel()) - best) / best

    out: Rows = []
    for target in (1e-2, 1e-4, 1e-6):
        ours = min(to_gap(problem, "auq-lr", best, device, target) or np.nan for _ in range(3))
        out.append({"who": "auq-lr", "target": target, "seconds": ours, "gap": target})
    out += _scikit_learn(X, y, relative)
    out += _dask_glm(X, y, relative)
    return out


def _scikit_learn(X: np.ndarray, y: np.ndarray, relative: Any) -> Rows:
    try:
        from sklearn.linear_model import LogisticRegression
    except ImportError:
        return [{"who": "scikit-learn", "error": "not installed"}]
    out: Rows = []
    for solver in ("lbfgs", "newton-cholesky", "newton-cg"):
        for target in (1e-2, 1e-4, 1e-6):
            for tol in (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8):
                model = LogisticRegression(C=1.0, fit_intercept=False, solver=solver, tol=tol, max_iter=5000)
                began = time.perf_counter()
                model.fit(X, y)
                seconds = time.perf_counter() - began
                reached = relative(model.coef_)
                if reached <= target:
                    out.append({"who": f"scikit-learn {solver}", "target": target, "seconds": seconds, "gap": reached})
                    break
    return out


def _dask_glm(X: np.ndarray, y: np.ndarray, relative: Any) -> Rows:
    try:
        import dask.array as da
        from dask_glm.algorithms import admm
    except ImportError:
        return [{"who": "dask-glm ADMM", "error": "not installed"}]
    out: Rows = []
    chunks = (len(y) // 4, X.shape[1])
    for steps in (10, 50, 250):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            began = time.perf_counter()
            data = da.from_array(X, chunks=chunks), da.from_array(y, chunks=chunks[0])
            w = admm(*data, regularizer="l2", lamduh=1.0, max_iter=steps, abstol=0.0, reltol=0.0, normalize=False)
        seconds = time.perf_counter() - began
        out.append({"who": f"dask-glm ADMM, {steps} iterations", "seconds": seconds, "gap": relative(np.asarray(w))})
    return out
