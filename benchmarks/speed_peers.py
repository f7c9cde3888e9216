"""What speed.py measures against others: the same optimum, the same gap, the same machine, one run."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import scipy.optimize
import torch
from rounds import NO_TEST, LeftToCallback, Watch, resolve
from speed_cases import NAMES, OPTIMA, Rows, each
from workloads import dataset

import auqadmm as aq
from auqadmm.local import Mixed

GAP = 1e-6
SLOW = 20.0  # seconds that a run may take
TARGETS = (1e-2, 4e-3, 1e-4, 1e-6)


def to_gap(problem: aq.Problem, method: Any, best: float, device: str, gap: float = GAP) -> float | None:
    """Seconds, set-up included, until the gap; None if it takes too long. Scoring is off the clock."""
    row = arrival(problem, method, best, device, gap)
    return None if row is None else row.seconds


def arrival(
    problem: aq.Problem, method: Any, best: float, device: str, gap: float = GAP, local: Any = "auto"
) -> Any | None:
    """The row of the history at which the gap first holds."""
    watch = Watch(best, 10**6)
    found: list[Any] = []

    def callback(event: aq.Iteration) -> bool:
        watch(event)
        if watch.gap <= gap:
            found.append(event.row)
        return bool(found)

    settings = NO_TEST | {"time_limit": SLOW, "max_iter": 10**6}
    aq.solve(problem, LeftToCallback(resolve(method)), local=local, device=device, callbacks=[callback], **settings)
    return found[0] if found else None


def accuracy(device: str) -> Iterator[dict[str, Any]]:
    """Rounds to the gap: local solves as accurate as the outer residuals ask for, and far more accurate."""

    def measure(name: str, problem: aq.Problem) -> Iterator[dict[str, Any]]:
        best = OPTIMA[name]["objective"]
        for method in ("c-admm", "auq-admm", "auq-lr"):
            as_needed, exact = (
                arrival(problem, method, best, device, local=local) for local in ("auto", Mixed(tol=1e-9))
            )
            if as_needed is None or exact is None:
                continue
            yield {
                "workload": name,
                "method": method,
                "rounds": as_needed.rounds,
                "rounds, exact": exact.rounds,
                "rounds ratio": as_needed.rounds / exact.rounds,
                "products saved": 1 - as_needed.hvps / exact.hvps,
            }

    return each([name for name in NAMES if "elastic" not in name], measure)  # those are solved exactly


def gap(device: str) -> Iterator[dict[str, Any]]:
    def measure(name: str, problem: aq.Problem) -> Rows:
        best = OPTIMA[name]["objective"]
        row: dict[str, Any] = {"workload": name}
        methods = ("auq-lr", "c-admm", "fista") + (() if "elastic" in name else ("lbfgs",))
        to_gap(problem, "auq-lr", best, device, 0.5)  # libraries set themselves up
        for method in methods:
            row[method] = to_gap(problem, method, best, device)
        if "elastic" not in name and device == "cpu":
            row["scipy L-BFGS, pooled"] = _scipy(problem, best)
        return [row]

    return each(NAMES, measure)


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
def logistic(device: str) -> Iterator[dict[str, Any]]:
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

    for method in ("auq-lr", "lbfgs"):
        for target in TARGETS:
            seconds = _fewest(lambda method=method, target=target: to_gap(problem, method, best, device, target), 3)
            yield {"who": f"{method}, 4 blocks", "target": target, "seconds": seconds, "gap": target}
    yield from _scikit_learn(X, y, relative)
    yield from _dask_glm(X, y, relative)


def _fewest(run: Callable[[], float | None], repeat: int) -> float:
    """The best of several runs with one thread and with all: small problems are often faster with one."""
    from threadpoolctl import threadpool_limits

    threads = torch.get_num_threads()
    seconds = []
    for count in sorted({1, threads}):
        torch.set_num_threads(count)
        with threadpool_limits(count, "blas"):
            seconds += [run() or np.inf for _ in range(repeat)]
    torch.set_num_threads(threads)
    return min(seconds)


def _scikit_learn(X: np.ndarray, y: np.ndarray, relative: Any) -> Rows:
    try:
        from sklearn.linear_model import LogisticRegression
    except ImportError:
        return [{"who": "scikit-learn", "error": "not installed"}]
    out: Rows = []
    for solver in ("lbfgs", "newton-cholesky", "newton-cg"):
        for target in TARGETS:
            for tol in (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8):
                model = LogisticRegression(C=1.0, fit_intercept=False, solver=solver, tol=tol, max_iter=5000)
                reached = relative(model.fit(X, y).coef_)
                if reached <= target:
                    seconds = _fewest(lambda model=model: _seconds(lambda: model.fit(X, y)), 3)
                    out.append({"who": f"scikit-learn {solver}", "target": target, "seconds": seconds, "gap": reached})
                    break
    return out


def _seconds(run: Callable[[], Any]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def _dask_glm(X: np.ndarray, y: np.ndarray, relative: Any) -> Rows:
    try:
        import dask.array as da
        from dask_glm.algorithms import admm
    except ImportError:
        return [{"who": "dask-glm ADMM", "error": "not installed"}]
    out: Rows = []
    chunks = (len(y) // 4, X.shape[1])
    for steps in (10, 30):  # 1.5 s each, and more do not help much
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            began = time.perf_counter()
            data = da.from_array(X, chunks=chunks), da.from_array(y, chunks=chunks[0])
            w = admm(*data, regularizer="l2", lamduh=1.0, max_iter=steps, abstol=0.0, reltol=0.0, normalize=False)
        seconds = time.perf_counter() - began
        out.append({"who": f"dask-glm ADMM, {steps} iterations", "seconds": seconds, "gap": relative(np.asarray(w))})
    return out
