"""What speed.py measures of this library alone. Every function takes a device and gives rows of numbers, one by one: a
row is kept when it is there. A row whose data are missing says so (`skipped`), and the others are measured."""

from __future__ import annotations

import gc
import json
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from speed_plain import Plain
from workloads import dataset, select

import auqadmm as aq
from auqadmm.local import Direct, Mixed, Released
from auqadmm.paper.data import DataError

Rows = list[dict[str, Any]]
NAMES = (
    "mnist-multinomial-mean",
    "mnist-multinomial-sum",
    "mnist-elastic-mean",
    "mnist-svm",
    "cifar10-multinomial-mean",
)
OPTIMA = json.loads((Path(__file__).parent / "optima.json").read_text())
MIB = 2**20


def each(
    names: Sequence[str], measure: Callable[[str, aq.Problem], Iterable[dict[str, Any]]]
) -> Iterator[dict[str, Any]]:
    """`measure(name, problem)` of every workload whose data are there."""
    for name in names:
        try:
            problem = select([name])[0].make()
        except DataError as error:
            yield {"workload": name, "skipped": str(error)}
            continue
        yield from measure(name, problem)


def wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def timed(fn: Callable[[], Any], device: str, repeat: int = 20) -> float:
    """The median of wall-clock seconds, after two calls that do not count."""
    seconds = []
    for k in range(repeat + 2):
        wait(device)
        began = time.perf_counter()
        fn()
        wait(device)
        if k > 1:
            seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def steps(problem: aq.Problem, method: Any, device: str, iterations: int, **options: Any) -> tuple[float, aq.Result]:
    """Seconds per outer iteration after the first, set-up left out, and the result."""
    settings: dict[str, Any] = {"abs_tol": 0.0, "rel_tol": 0.0, "stop": "residuals"}
    settings |= {"certificate_tol": 0.0, "evaluate_every": 0} | options
    result = aq.solve(problem, method, device=device, max_iter=iterations, **settings)
    rows = result.history
    return (rows[-1].seconds - rows[0].seconds) / max(len(rows) - 1, 1), result


# ---------------------------------------------------------------------- the device
def ceilings(device: str) -> Rows:
    size = 2**27 if device == "cuda" else 2**24
    a = torch.randn(size, dtype=torch.float64, device=device)
    b = torch.empty_like(a)
    k = 8192 if device == "cuda" else 1536
    A = torch.randn(k, k, dtype=torch.float64, device=device)
    small = torch.ones(10, device=device)
    return [
        {"what": "copy, GB/s", "value": 16e-9 * size / timed(lambda: b.copy_(a), device)},
        {"what": "matrix product, TFLOP/s", "value": 2e-12 * k**3 / timed(lambda: A @ A, device, 5)},
        {
            "what": "one small operation, µs",
            "value": 1e6 * timed(lambda: [small + 1 for _ in range(100)], device) / 100,
        },
        {"what": "one look of the host, µs", "value": 1e6 * timed(lambda: bool((small > 0).any()), device)},
    ]


def roofline(device: str) -> Iterator[dict[str, Any]]:
    """XᵀDX·P reads X twice; everything else is small beside it. 4·rows·m·C operations."""
    ceiling = {row["what"]: row["value"] for row in ceilings(device)}
    copy, product = ceiling["copy, GB/s"], ceiling["matrix product, TFLOP/s"]

    def measure(name: str, problem: aq.Problem) -> Rows:
        census = problem.placed().census
        rows, m, C = sum(census.rows), census.features, census.columns
        seconds = _product(problem, device)
        fewest = 8 * (2 * rows * m + 4 * rows * C + 2 * census.blocks * m * C)
        return [
            {
                "workload": name,
                "microseconds": 1e6 * seconds,
                "bytes": fewest,
                "operations": 4 * rows * m * C,
                "share of copy rate": fewest / seconds / 1e9 / copy,
                "share of matrix-product rate": 4 * rows * m * C / seconds / 1e12 / product,
            }
        ]

    return each(NAMES, measure)


# ---------------------------------------------------------------------- one iteration
class Spy:
    """A local solver that notes which share of ‖∇F_j‖ its solves leave, in the mean over blocks."""

    def __init__(self, solver: Any) -> None:
        self.solver, self.left = solver, list[float]()

    def solve(self, problem: Any, u0: Any, reference: float | None, memory: Any) -> Any:
        found = self.solver.solve(problem, u0, reference, memory)
        before, after = (problem.at(u).grad_norm for u in (u0, found.u))
        self.left.append(float((after / before).nan_to_num(0.0).mean()))
        return found


def iteration(device: str) -> Iterator[dict[str, Any]]:
    """Ours and the released loop in turn: what else the machine does then hits both."""
    count = 56 if device == "cuda" else 24

    def measure(name: str, problem: aq.Problem) -> Rows:
        quadratic = "elastic" in name
        kinds: dict[str, tuple[Any, int]] = {
            "tight": (Direct() if quadratic else Mixed(tol=1e-6), count),
            "default": (Direct() if quadratic else Mixed(), count),
            "coarse": (Direct() if quadratic else Mixed(factor=0.1), count),
            "released": (Released(), 3),
            "plain": (Plain(), 2),
        }
        steps(problem, "c-admm", device, 3, local=kinds["tight"][0])  # libraries set themselves up
        seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
        results: dict[str, Any] = {}
        for _ in range(2):
            for kind, (local, many) in kinds.items():
                spent, results[kind] = steps(problem, "c-admm", device, many, local=local)
                seconds[kind].append(spent)
        ours, default, coarse, released, plain = (min(seconds[kind]) for kind in kinds)
        blocks = problem.placed().census.blocks
        row = {
            "workload": name,
            "exact" if quadratic else "to 1e-6": 1e3 * ours,
            "default accuracy": 1e3 * default,
            "coarse": 1e3 * coarse,
            "released": 1e3 * released,
            "plain": 1e3 * plain,
            "released / ours": released / ours,
            "released / default": released / default,
            "released / coarse": released / coarse,
            "plain / ours": plain / ours,
            "plain / default": plain / default,
            "products per block": results["tight"].history[-1].hvps / count / blocks,
            "products per block, default": results["default"].history[-1].hvps / count / blocks,
        }
        for kind in ("default", "coarse", "released"):
            spy = Spy(kinds[kind][0])
            steps(problem, "c-admm", device, 4, local=spy)
            row[f"gradient left, {kind}"] = spy.left[-1]
        return [row]

    return each(NAMES, measure)


# ---------------------------------------------------------------------- growth
def parity(blocks: int) -> aq.Problem:
    """Odd digit or even: 20 000 rows of MNIST over some blocks, one column."""
    images = dataset("mnist")
    order = np.random.default_rng(0).permutation(len(images.y))[:20_000]
    X, y = images.X[order] / 255.0, np.where(images.y[order] % 2, 1.0, -1.0)
    cuts = np.array_split(np.arange(len(y)), blocks)
    return aq.Problem(aq.Logistic(reduction="sum"), aq.L2(1.0), [(X[i], y[i]) for i in cuts])


def digits(blocks: int) -> aq.Problem:
    """Which digit: the same rows, ten columns."""
    images = dataset("mnist")
    order = np.random.default_rng(0).permutation(len(images.y))[:20_000]
    X, y = images.X[order] / 255.0, images.y[order]
    cuts = np.array_split(np.arange(len(y)), blocks)
    return aq.Problem(aq.Multinomial(reduction="sum"), aq.L2(1.0), [(X[i], y[i]) for i in cuts])


def normal(rows: int, features: int, blocks: int = 10) -> aq.Problem:
    rng = np.random.default_rng(0)
    truth = rng.normal(size=features) / np.sqrt(features)
    made = []
    for _ in range(blocks):
        X = rng.normal(size=(rows, features))
        made.append((X, np.where(X @ truth + 0.3 * rng.normal(size=rows) > 0, 1.0, -1.0)))
    return aq.Problem(aq.Logistic(reduction="sum"), aq.L2(1.0), made)


def growth(device: str) -> Iterator[dict[str, Any]]:
    gpu = device == "cuda"
    c_admm, many = "c-admm", (12 if gpu else 4)
    sizes = (100, 1000, 10_000, 100_000) if gpu else (100, 1000, 10_000)
    cases: list[tuple[str, int, Callable[[], aq.Problem], Any, int]] = []
    cases += [("blocks, 20 000 rows in all", n, partial(parity, n), c_admm, 12) for n in (10, 100, 1000, 10_000)]
    cases += [("blocks, the same with ten columns", n, partial(digits, n), c_admm, many) for n in (10, 100, 1000)]
    cases += [("features, 10 blocks of 200 rows", n, partial(normal, 200, n), c_admm, 12) for n in sizes]
    cases += [("rows of each of 10 blocks, 100 features", n, partial(normal, n, 100), c_admm, 12) for n in sizes]
    ranks = (5, 10, 20, 40, 80)
    multinomial = select(["mnist-multinomial-mean"])[0].make
    cases += [("rank of AUQ-ADMM, MNIST multinomial", r, multinomial, aq.methods.AUQ(rank=r), 8) for r in ranks]
    steps(normal(200, 100), c_admm, device, 12)  # libraries set themselves up
    for along, value, make, method, iterations in cases:
        try:
            problem = make()
        except DataError as error:
            yield {"along": along, "value": value, "skipped": str(error)}
            continue
        seconds = min(steps(problem, method, device, iterations)[0] for _ in range(2 if gpu else 1))
        yield {"along": along, "value": value, "milliseconds": 1e3 * seconds}


def uneven(device: str) -> Rows:
    """20 000 rows: half of them in one block and ten in each of a thousand others; and 1001 equal blocks."""
    even = parity(1001)
    X, y = (np.concatenate(part) for part in zip(*((b.X, b.y) for b in even.placed().blocks), strict=True))
    cuts = [np.arange(10_000), *np.array_split(np.arange(10_000, 20_000), 1000)]
    one = aq.Problem(aq.Logistic(reduction="sum"), aq.L2(1.0), [(X[i], y[i]) for i in cuts])
    count = 56 if device == "cuda" else 12
    both = [[steps(problem, "c-admm", device, count)[0] for problem in (even, one)] for _ in range(2)]
    a, b = (min(pair) for pair in zip(*both, strict=True))
    c, d = (_product(problem, device) for problem in (even, one))
    return [
        {"what": "one iteration", "even, ms": 1e3 * a, "one huge, ms": 1e3 * b, "ratio": b / a},
        {"what": "one product of all blocks", "even, ms": 1e3 * c, "one huge, ms": 1e3 * d, "ratio": d / c},
    ]


def _product(problem: aq.Problem, device: str) -> float:
    shard = problem.placed().shard(torch.float64, torch.device(device))
    hessian = shard.linearize(shard.zeros()).hessian
    P = torch.randn(shard.shape, dtype=torch.float64, device=device)
    return timed(lambda: hessian.hvp(P), device)


def single(device: str) -> Iterator[dict[str, Any]]:
    """The gap that float32 reaches."""

    def measure(name: str, problem: aq.Problem) -> Rows:
        best = OPTIMA[name]["objective"]
        row: dict[str, Any] = {"workload": name}
        for dtype in ("float64", "float32"):
            seconds, result = steps(problem, "auq-lr", device, 30, dtype=dtype)
            again = aq.solve(problem, "c-admm", max_iter=0, warm_start=result.v, device=device)
            row |= {f"{dtype}, ms": 1e3 * seconds, f"{dtype}, gap": (again.certificate.objective - best) / abs(best)}
        return [row]

    return each(("mnist-multinomial-mean", "mnist-svm", "mnist-elastic-mean"), measure)


def memory(device: str) -> Iterator[dict[str, Any]]:
    """Peak of the device beside the data: of every allocation that a run makes, the data included, but for the two
    workspaces of the matrix library, for the stream that computes and the one that records."""
    if device != "cuda":
        return  # the peak of a process that did other things before says nothing
    before = torch.cuda.memory_allocated()
    with torch.cuda.stream(torch.cuda.Stream()):
        small = torch.ones(64, 64, dtype=torch.float64, device=device)
        _ = small @ small
    spare = 2 * (torch.cuda.memory_allocated() - before)
    yield {"workload": "two workspaces", "peak, MiB": spare / MIB}

    def measure(name: str, problem: aq.Problem) -> Iterator[dict[str, Any]]:
        data = sum(block.X.nbytes for block in problem.placed().blocks)
        for method in ("c-admm", "auq-admm", "auq-lr"):
            steps(problem, method, device, 2)  # what libraries keep for themselves
            gc.collect()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            steps(problem, method, device, 12)
            peak = torch.cuda.max_memory_allocated() - before - spare
            numbers = {"data, MiB": data / MIB, "peak, MiB": peak / MIB, "peak / data": peak / data}
            yield {"workload": name, "method": method, **numbers}

    yield from each(NAMES, measure)
