"""Does `auto` keep its promise? Its cost beside that of every single method, on tables of many kinds.

    python benchmarks/auto.py --out results/auto/cpu.json --commit C
    python benchmarks/auto.py --workloads "mnist-*" --device cuda --jobs 8 --out results/auto/h200.json --commit C
    python benchmarks/auto.py --random 20 --seed 7 --out runs/random.json

Cost is rounds × round_cost + numbers that one worker sends, to a true gap of 1e-6, for round costs of 4k, 32k and 256k;
every reduction counts, those of verdicts too. F* comes from Newton's method at a tolerance of 1e-12, checked against
every other run: where one is lower the row is doubtful, and its ratios do not count. A method that does not arrive in
its budget has no cost. With --workloads problems and optima are those of the rounds benchmark, plain, and rivals the
four that may win there; --methods and --costs measure only some. With --random problems are drawn (auto_random.py), and
the spread of ratios is told at the end.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
import torch
from auto_random import drawn
from auto_random import names as random_names
from optima import known as optima
from workloads import WORKLOADS, select

import auqadmm as aq

COSTS = (4_000, 32_000, 256_000)
MIDDLE = 32_000
PATIENT = {"mnist-multinomial-sum-l2_0.001": 5}  # times the seconds of the others: gradients need thousands of rounds
METHODS = ("newton", "auq-lr", "lbfgs", "lbfgs-w", "owl-qn", "fista")
GAP = 1e-6
PROMISE = 1.2

Row = tuple[str, Callable[[], aq.Problem]]


def split(X: Any, y: np.ndarray, parts: int, by: np.ndarray | None = None) -> list[tuple[Any, np.ndarray]]:
    order = np.arange(len(y)) if by is None else np.argsort(by, kind="stable")
    pieces = [order[j::parts] for j in range(parts)] if by is None else np.array_split(order, parts)
    return [(X[i], y[i]) for i in pieces]


def rows() -> Iterator[Row]:
    from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_wine

    rng = np.random.default_rng(0)
    X, t = load_breast_cancer(return_X_y=True)
    y = 2.0 * t - 1
    for l2 in (1.0, 1e-2, 1e-4):
        yield f"breast cancer raw, l2 {l2:g}", _made(aq.Logistic(), aq.L2(l2), split(X, y, 4), True)
    yield "breast cancer raw, elastic net", _made(aq.Logistic(), aq.ElasticNet(1.0, 0.1), split(X, y, 4), True)
    A = rng.normal(size=(400, 6)) + 1000
    yield "means of 1000", _made(aq.Logistic(), aq.L2(1e-4), split(A, np.sign(A @ rng.normal(size=6) % 2 - 1), 4), True)
    Z = rng.normal(size=(300, 6))
    yield "separable, l2 1e-6", _made(aq.Logistic(), aq.L2(1e-6), split(Z, np.sign(Z[:, 0] + 1e-9), 4), True)
    hot = one_hot(5000, (2, 3, 5, 8, 13, 20, 30, 42))
    signs = np.sign(hot @ rng.normal(size=hot.shape[1]) + rng.normal(size=5000))
    yield "one-hot 5000×123, l2 1e-3", _made(aq.Logistic(), aq.L2(1e-3), split(hot, signs, 10, signs), True)
    D = rng.normal(size=(2000, 300)) * (1.0 / (1 + np.arange(300)))
    decay = np.sign(D @ rng.normal(size=300) * 3 + rng.normal(size=2000))
    for l2 in (1.0, 1e-2):
        yield f"decaying spectrum, l2 {l2:g}", _made(aq.Logistic(), aq.L2(l2), split(D, decay, 10), True)
    P, k = load_digits(return_X_y=True)
    for l2 in (1.0, 1e-2):
        yield f"digits, one class each, l2 {l2:g}", _made(aq.Multinomial(), aq.L2(l2), split(P / 16, k, 10, k), False)
    yield "digits at random, l2 1", _made(aq.Multinomial(), aq.L2(1.0), split(P / 16, k, 10), False)
    pair = k < 2
    for parts in (2, 20):
        hinge = split(P[pair] / 16, 2.0 * k[pair] - 1, parts)
        yield f"digits hinge, {parts} blocks", _made(aq.SmoothedHinge(reduction="pooled"), aq.L2(1e-2), hinge, False)
    W, c = load_wine(return_X_y=True)
    yield "wine raw, multinomial", _made(aq.Multinomial(), aq.L2(1e-2), split(W, c, 3, c), True)
    B, b = load_diabetes(return_X_y=True)
    yield "diabetes, lasso", _made(aq.LeastSquares(), aq.L1(50.0), split(B, b, 4), True)
    yield "diabetes, ridge", _made(aq.LeastSquares(), aq.L2(1e-2), split(B, b, 4), True)
    for kind, loss in (("squares", aq.LeastSquares()), ("logistic", aq.Logistic())):
        S, s = sparse(kind, 500, 5000)
        top = float(np.abs(S.T @ (s if kind == "squares" else 0.5 * s)).max())
        for share in (0.1, 0.03):
            yield f"sparse {kind} 500×5000, l1 {share} max", _made(loss, aq.L1(share * top), split(S, s, 4), False)
    S, s = sparse("logistic", 4000, 1500)
    yield "sparse logistic 4000×1500, l2 1", _made(aq.Logistic(), aq.L2(1.0), split(S, s, 4), True)
    counts = rng.poisson(np.exp(np.clip(Z @ rng.normal(size=6) * 0.5 + 1, None, 5))).astype(float)
    yield "counts", _made(aq.Poisson(), aq.L2(1e-2), split(Z * 10.0 ** np.arange(-3, 3), counts, 5), True)


def _made(loss: Any, g: Any, blocks: Any, intercept: bool) -> Callable[[], aq.Problem]:
    return lambda: aq.Problem(loss, g, blocks, intercept=intercept)


def one_hot(rows: int, levels: tuple[int, ...]) -> np.ndarray:
    rng = np.random.default_rng(1)
    parts = []
    for n in levels:
        share = rng.dirichlet(np.ones(n))
        parts.append(np.eye(n)[rng.choice(n, rows, p=share)])
    return np.hstack(parts)


def sparse(kind: str, rows: int, columns: int) -> tuple[Any, np.ndarray]:
    """Columns from common to rare, as words are; a few of the common ones decide."""
    rng = np.random.default_rng(2)
    share = np.minimum(0.5, 0.01 * columns * (r := 1 / (1 + np.arange(columns)) ** 0.8) / r.sum())
    X = scipy.sparse.csr_matrix(
        np.where(rng.random((rows, columns)) < share, np.abs(rng.normal(1, 0.5, (rows, columns))), 0)
    )
    w = np.zeros(columns)
    w[rng.choice(columns // 4, 40, replace=False)] = rng.normal(0, 2, 40)
    z = X @ w
    noisy = z + 0.3 * z.std() * rng.normal(size=rows)
    return X, noisy if kind == "squares" else np.where(noisy > np.median(noisy), 1.0, -1.0)


def reached(problem: aq.Problem, method: Any, best: float, *, seconds: float, **options: Any) -> dict[str, Any]:
    """Rounds and numbers to the gap."""
    found: dict[str, Any] = {}
    least = [math.inf]

    def look(event: Any) -> bool:
        F = event.row.objective
        if F is not None and math.isfinite(F):
            least[0] = min(least[0], F)
            if F - best <= GAP * abs(best):
                found.update(rounds=event.row.rounds, numbers=event.row.bytes_up // 8)
        return bool(found)

    begun = time.perf_counter()
    try:
        run = aq.solve(
            problem, method, max_iter=5000, time_limit=seconds, certificate_tol=1e-14, callbacks=[look], **options
        )
    except ValueError as error:  # not for this regularizer
        return {"failed": str(error)}
    found["seconds"] = time.perf_counter() - begun
    found["method"] = run.method
    if "rounds" not in found:
        found["failed"] = (
            f"gap {(least[0] - best) / abs(best):.0e} after {run.history[-1].rounds} rounds"
            if len(run.history)
            else str(run.status)
        )
    found["below"] = max(0.0, (best - least[0]) / abs(best))
    return found


def task(name: str, method: str, cost: int, seconds: float, device: str) -> dict[str, Any]:
    """One run."""
    problem, best = posed(name, seconds)
    return reached(problem, method, best, seconds=seconds * PATIENT.get(name, 1), device=device, round_cost=cost)


def rivals(name: str) -> tuple[str, ...]:
    return METHODS[:4] if name in WORKLOADS else METHODS


def row_of(name: str, runs: dict[tuple[str, int], dict[str, Any]], options: argparse.Namespace) -> dict[str, Any]:
    """From all runs of a problem: the single methods at the middle cost, and auto beside the best at every cost."""
    problem, best = posed(name, options.seconds)
    row: dict[str, Any] = {"workload": name, "unknowns": problem.census.unknowns, "best": best}
    if name.startswith("random"):
        row["words"] = drawn(name)[0]
    first = MIDDLE if MIDDLE in options.costs else options.costs[0]
    single = [method for method in rivals(name) if method in options.methods]
    row["single"] = {method: runs[method, first] for method in single}
    if max(found.get("below", 0.0) for found in runs.values()) > GAP:
        row["doubtful"] = "F* is not the optimum"
    row["auto"] = {}
    for cost in options.costs:
        price = {method: _price(runs.get((method, cost), {}), cost) for method in (*single, "auto")}
        ours = price.pop("auto")
        arrived = {method: paid for method, paid in price.items() if paid is not None}
        winner = min(arrived, key=arrived.__getitem__) if arrived else None
        ratio = None if ours is None or winner is None else ours / arrived[winner]
        found = {"cost": ours, "best": winner, "least": arrived.get(winner or ""), "ratio": ratio}
        row["auto"][str(cost)] = runs["auto", cost] | found
    return row


def _price(found: dict[str, Any], cost: int) -> int | None:
    return found["rounds"] * cost + found["numbers"] if "rounds" in found else None


@lru_cache(maxsize=2)
def posed(name: str, seconds: float) -> tuple[aq.Problem, float]:
    """The problem, and F*."""
    for known, make in [(name, drawn(name)[1])] if name.startswith("random") else rows():
        if known == name:
            problem = make()
            run = aq.solve(problem, "newton", max_iter=300, certificate_tol=1e-12, time_limit=4 * seconds)
            return problem, run.objective
    workload = WORKLOADS[name]
    return workload.make(), optima()[workload.pooled.name].objective


def measured(names: list[str], options: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    """Rows as they are done, until the deadline: every run is a task of its own. Methods run at the middle cost first;
    those that arrive also at the others."""
    ends = time.monotonic() + options.deadline
    first = MIDDLE if MIDDLE in options.costs else options.costs[0]
    coming = iter(sorted(names, key=lambda name: -PATIENT.get(name, 1)))
    runs: dict[str, dict[tuple[str, int], dict[str, Any]]] = {name: {} for name in names}
    open_ = dict.fromkeys(names, 0)
    with ProcessPoolExecutor(options.jobs, multiprocessing.get_context("spawn")) as pool:
        waiting: dict[Any, tuple[str, str, int]] = {}

        def begin(name: str, method: str, cost: int) -> None:
            waiting[pool.submit(task, name, method, cost, options.seconds, options.device)] = name, method, cost
            open_[name] += 1

        def more() -> bool:
            """Enough runs for all processes; the runs of a problem stay together."""
            while len(waiting) < 2 * options.jobs and (name := next(coming, None)) is not None:
                for method in rivals(name):
                    if method in options.methods:
                        begin(name, method, first)
                for cost in options.costs:
                    begin(name, "auto", cost)
            return bool(waiting)

        while more():
            left = ends - time.monotonic()
            finished, _ = wait(waiting, timeout=min(max(left, 0.0), 1e6), return_when=FIRST_COMPLETED)
            if not finished:
                for process in pool._processes.values():
                    process.terminate()
                return
            for future in finished:
                name, method, cost = waiting.pop(future)
                open_[name] -= 1
                try:
                    found = runs[name][method, cost] = future.result()
                except Exception as error:  # the others go on
                    found = runs[name][method, cost] = {"failed": f"{type(error).__name__}: {error}"}
                if method != "auto" and cost == first and "rounds" in found:
                    for other in options.costs:
                        if other != first:
                            begin(name, method, other)
                if not open_[name]:
                    yield name, row_of(name, runs[name], options)


def told(row: dict[str, Any]) -> str:
    found = [(m, f) for m, f in row["single"].items()]
    single = [f"{m} {f['rounds']} ({f['numbers'] / 1e3:.3g}k)" if "rounds" in f else f"{m} –" for m, f in found]
    ours = [f"{f.get('method')} {f['ratio'] and round(f['ratio'], 2)} ({f['best']})" for f in row["auto"].values()]
    name = ": ".join(row[key] for key in ("workload", "words", "doubtful") if key in row)
    return f"{name}: {', '.join(single)} | auto: {', '.join(ours)}\n"


def spread(kept: list[dict[str, Any]]) -> str:
    """How many ratios are above the promise, and where a single method arrived alone."""
    runs = [(row, cost, found) for row in kept if "doubtful" not in row for cost, found in row["auto"].items()]
    ratios = sorted(found["ratio"] for _, _, found in runs if found["ratio"] is not None)
    lost = [f"{row['workload']} at {cost}" for row, cost, found in runs if found["cost"] is None and found["best"]]
    if not ratios:
        return "No ratios.\n"
    above = sum(ratio > PROMISE for ratio in ratios)
    parts = ", ".join(f"{q:.0%} {ratios[min(int(q * len(ratios)), len(ratios) - 1)]:.2f}" for q in (0.5, 0.8, 0.9, 1.0))
    failed = f"; a single method arrived alone: {', '.join(lost)}" if lost else ""
    failed += f"; doubtful: {doubtful}" if (doubtful := sum("doubtful" in row for row in kept)) else ""
    return f"{len(ratios)} ratios, {above} above {PROMISE}; {parts}{failed}\n"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="tables whose name holds this")
    parser.add_argument("--workloads", nargs="*", default=[])
    parser.add_argument("--random", type=int, default=0, metavar="N", help="draw so many problems instead")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--methods", nargs="+", default=METHODS, choices=METHODS, help="the single methods to run")
    parser.add_argument("--costs", nargs="+", type=int, default=COSTS)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument(
        "--deadline", type=float, default=math.inf, help="seconds after which nothing more is waited for"
    )
    parser.add_argument("--commit", default="")
    parser.add_argument("--out", type=Path, default=Path("runs/auto.json"))
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    names = [name for name, _ in rows() if options.only in name]
    if options.random:
        names = [name for name in random_names(options.random, options.seed) if name.endswith(options.only)]
    elif options.workloads:
        names = [workload.name for workload in select(options.workloads)]
    about = {"commit": options.commit, "torch": torch.__version__, "date": time.strftime("%Y-%m-%d"), "gap": GAP}
    about |= {"device": torch.cuda.get_device_name() if options.device == "cuda" else "CPU", "jobs": options.jobs}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    done: dict[str, dict[str, Any]] = {}
    for name, row in measured(names, options):
        done[name] = row
        sys.stderr.write(told(row))
        kept = [done[known] for known in names if known in done]
        options.out.write_text(json.dumps({"about": about, "rows": kept}, indent=1) + "\n")
    sys.stderr.write(spread(list(done.values())))
    if len(done) < len(names):
        sys.stderr.write(f"{len(names) - len(done)} workloads are not done.\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
