"""Seconds and rounds on tables, against scikit-learn, skglm and celer, in one run.

    python benchmarks/tables.py                                  every case, three repeats
    python benchmarks/tables.py --cases enet-cv enet --repeats 5
    python benchmarks/tables.py --method newton --limit 120 --out results/tables

    enet-cv              ElasticNetCV on diabetes, 5 folds, 100 strengths
    enet                 50 000 × 100, dense, elastic net
    logistic             50 000 × 100, dense, l2
    sparse-logistic      20 000 × 5000, 1 % filled, l2
    sparse-lasso         2000 × 20 000, 1 % filled, l1
    sparse-l1-logistic   the same with labels, at a tenth of the largest l1, as the lasso; -weak: with C = 1

Ours has four sites. What counts is the objective that a solver reached, whatever it calls its tolerance: each tries its
own tolerances 1e-4, 1e-5, …, the optimum is the least that any of them finds, and then each is timed with the loosest
tolerance that leads within `--gap` of it. The gap stands beside the seconds. Repeats are interleaved, so that a busy
machine is busy for all, and medians compared. A peer that is not installed or cannot solve a case has a reason in place
of numbers; a case that is done is written at once.

`admm` is apart: milliseconds of one iteration of C-ADMM on 4 blocks of 100 × 10, and where they go.
"""

from __future__ import annotations

import argparse
import cProfile
import importlib
import json
import platform
import pstats
import signal
import statistics
import subprocess
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
import torch
from sklearn.datasets import load_diabetes
from sklearn.linear_model import ElasticNet, ElasticNetCV, Lasso, LogisticRegression
from sklearn.model_selection import KFold

import auqadmm as aq

ROOT = Path(__file__).resolve().parents[1]
SITES = 4
TOLERANCES = tuple(10.0**-k for k in range(4, 15))


# ---------------------------------------------------------------------- data
def dense(rows: int, columns: int, labels: bool) -> tuple[np.ndarray, np.ndarray]:
    """Gaussian columns that share a factor, a fifth of them with a say."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((rows, columns)) + 0.5 * rng.standard_normal((rows, 1))
    z = X[:, : columns // 5] @ rng.standard_normal(columns // 5)
    return X, answered(z, rng, labels)


def sparse(rows: int, columns: int, labels: bool, filled: float = 0.01) -> tuple[Any, np.ndarray]:
    """Columns as rare as words: column k is filled in a share ∝ 1/(k + 1)^0.8 of rows, at most half; 60 have a say."""
    rng = np.random.default_rng(0)
    share = (1.0 + np.arange(columns)) ** -0.8
    share = np.minimum(share * (filled * columns / share.sum()), 0.5)
    held = [np.flatnonzero(rng.random(columns) < share) for _ in range(rows)]
    starts = np.concatenate([[0], np.cumsum([len(h) for h in held])])
    values = np.abs(rng.normal(1.0, 0.5, starts[-1]))
    X = scipy.sparse.csr_matrix((values, np.concatenate(held), starts), shape=(rows, columns))
    w = np.zeros(columns)
    w[rng.choice(columns // 4, 60, replace=False)] = rng.normal(0.0, 2.0, 60)
    return X, answered(X @ w, rng, labels)


def answered(z: np.ndarray, rng: np.random.Generator, labels: bool) -> np.ndarray:
    if labels:
        return (rng.random(len(z)) < 1 / (1 + np.exp(-(z - z.mean())))).astype(int)
    return z + rng.normal(0.0, 0.3 * z.std(), len(z))


# ---------------------------------------------------------------------- what is minimised
@dataclass(frozen=True)
class Outcome:
    """coef (m,) and intercept; rounds of ours."""

    coef: np.ndarray
    intercept: float
    rounds: int | None = None


@dataclass(frozen=True)
class Case:
    """A table, its penalty per row and who solves it: name → function of a tolerance. `value` tells the objective."""

    name: str
    data: Callable[[], tuple[Any, np.ndarray]]
    solvers: Callable[[Any, np.ndarray, str], dict[str, Callable[[float], Outcome]]]
    value: Callable[[Any, np.ndarray, Outcome], float]


def squares(alpha: Callable[[Any, np.ndarray], float], ratio: float) -> Callable[..., float]:
    def value(X: Any, y: np.ndarray, at: Outcome) -> float:
        a = alpha(X, y)
        left = X @ at.coef + at.intercept - y
        return float(
            0.5 * np.mean(left**2) + a * ratio * np.abs(at.coef).sum() + 0.5 * a * (1 - ratio) * at.coef @ at.coef
        )

    return value


Share = float | Callable[[Any, np.ndarray], float]


def ten(X: Any, y: np.ndarray) -> float:
    """C for a tenth of the l1 penalty that leaves an intercept alone."""
    return 10 / float(np.abs(X.T @ (y - y.mean())).max())


def told(C: Share, X: Any, y: np.ndarray) -> float:
    return C(X, y) if callable(C) else C


def logistic(share: Share, ratio: float) -> Callable[..., float]:
    def value(X: Any, y: np.ndarray, at: Outcome) -> float:
        C = told(share, X, y)
        z = (2 * y - 1) * (X @ at.coef + at.intercept)
        penalty = ratio * np.abs(at.coef).sum() + 0.5 * (1 - ratio) * at.coef @ at.coef
        return float((C * np.logaddexp(0, -z).sum() + penalty) / (C * len(y)))

    return value


def outcome(model: Any) -> Outcome:
    history = getattr(model, "history_", None)
    rounds = getattr(model, "n_rounds_", None) or (history[-1].rounds if history is not None else None)
    return Outcome(np.ravel(model.coef_), float(np.ravel(model.intercept_)[0]), rounds)


def fitted(make: Callable[[float], Any], X: Any, y: np.ndarray) -> Callable[[float], Outcome]:
    def run(tol: float) -> Outcome:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return outcome(make(tol).fit(X, y))

    return run


def peer(module: str, name: str) -> Any:
    """A class of another package, or why there is none."""
    try:
        return getattr(importlib.import_module(module), name)
    except Exception as error:  # a broken installation is as good as none
        return f"{type(error).__name__}: {error}"


def small(X: Any, y: np.ndarray) -> float:
    return 0.1


def tenth(X: Any, y: np.ndarray) -> float:
    """A tenth of the strength that leaves nothing."""
    return 0.1 * float(np.max(np.abs(X.T @ (y - y.mean())))) / len(y)


def elastic(strength: Callable[..., float], ratio: float) -> Callable[..., Any]:
    def solvers(X: Any, y: np.ndarray, method: str) -> dict[str, Any]:
        alpha, share = strength(X, y), {"l1_ratio": ratio}
        theirs = Lasso if ratio == 1 else ElasticNet
        options = {} if ratio == 1 else share
        by: dict[str, Any] = {
            "auqadmm": lambda tol: aq.ConsensusElasticNet(alpha, **share, n_blocks=SITES, tol=tol, method=method),
            "scikit-learn": lambda tol: theirs(alpha, **options, tol=tol, max_iter=100_000),
        }
        for package in ("celer", "skglm"):
            cls = peer(package, theirs.__name__)
            by[package] = cls if isinstance(cls, str) else (lambda tol, c=cls: c(alpha, **options, tol=tol))
        return {name: make if isinstance(make, str) else fitted(make, X, y) for name, make in by.items()}

    return solvers


def classes(share: Share, ratio: float) -> Callable[..., Any]:
    def solvers(X: Any, y: np.ndarray, method: str) -> dict[str, Any]:
        C = told(share, X, y)
        # liblinear for l1: its penalty reaches a scaled intercept, which the factor makes next to nothing
        plain = {"solver": "lbfgs"} if ratio == 0 else {"solver": "liblinear", "intercept_scaling": 100.0}
        by: dict[str, Any] = {
            "auqadmm": lambda tol: aq.ConsensusLogisticRegression(
                C, l1_ratio=ratio, n_blocks=SITES, tol=tol, method=method
            ),
            "scikit-learn": lambda tol: LogisticRegression(C=C, l1_ratio=ratio, tol=tol, max_iter=100_000, **plain),
        }
        if ratio == 1:
            for package, name in (("celer", "LogisticRegression"), ("skglm", "SparseLogisticRegression")):
                cls = peer(package, name)
                if package == "celer":
                    made: Any = "it has no intercept for this model"
                else:
                    made = cls if isinstance(cls, str) else (lambda tol, c=cls: c(1 / (C * len(y)), tol=tol))
                by[package] = made
        else:
            by |= {"celer": "it has no l2 logistic regression", "skglm": "it has no l2 logistic regression"}
        return {name: make if isinstance(make, str) else fitted(make, X, y) for name, make in by.items()}

    return solvers


def choice(X: np.ndarray, y: np.ndarray, method: str) -> dict[str, Any]:
    folds = list(KFold(5).split(X))
    by: dict[str, Any] = {
        "auqadmm": lambda tol: aq.ConsensusElasticNetCV(cv=folds, n_blocks=SITES, tol=tol, method=method),
        "scikit-learn": lambda tol: ElasticNetCV(cv=folds, tol=tol, max_iter=100_000),
    }
    cls = peer("celer", "ElasticNetCV")
    by["celer"] = cls if isinstance(cls, str) else (lambda tol: cls(cv=folds, tol=tol))
    by["skglm"] = "it has no choice by cross-validation"
    return {name: make if isinstance(make, str) else fitted(make, X, y) for name, make in by.items()}


def chosen(X: np.ndarray, y: np.ndarray, at: Outcome) -> float:
    """The objective at the strength that all choose, which scikit-learn tells."""
    global _CHOSEN
    if _CHOSEN is None:
        _CHOSEN = float(ElasticNetCV(cv=list(KFold(5).split(X)), tol=1e-10, max_iter=100_000).fit(X, y).alpha_)
    return squares(lambda X, y: _CHOSEN, 0.5)(X, y, at)


_CHOSEN: float | None = None

CASES = (
    Case("enet-cv", lambda: load_diabetes(return_X_y=True), choice, chosen),
    Case("enet", lambda: dense(50_000, 100, False), elastic(small, 0.5), squares(small, 0.5)),
    Case("logistic", lambda: dense(50_000, 100, True), classes(1.0, 0.0), logistic(1.0, 0.0)),
    Case("sparse-logistic", lambda: sparse(20_000, 5000, True), classes(1.0, 0.0), logistic(1.0, 0.0)),
    Case("sparse-lasso", lambda: sparse(2000, 20_000, False), elastic(tenth, 1.0), squares(tenth, 1.0)),
    Case("sparse-l1-logistic", lambda: sparse(2000, 20_000, True), classes(ten, 1.0), logistic(ten, 1.0)),
    Case("sparse-l1-logistic-weak", lambda: sparse(2000, 20_000, True), classes(1.0, 1.0), logistic(1.0, 1.0)),
)


# ---------------------------------------------------------------------- measuring
@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Give up what takes longer."""

    def late(*_: Any) -> None:
        raise TimeoutError(f"a single fit took more than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def measure(case: Case, args: argparse.Namespace) -> dict[str, Any]:
    X, y = case.data()
    solvers = case.solvers(X, y, args.method)
    skipped = {name: why for name, why in solvers.items() if isinstance(why, str)}
    runs = {name: run for name, run in solvers.items() if not isinstance(run, str)}
    values: dict[str, dict[float, float]] = {name: {} for name in runs}
    rounds: dict[str, int | None] = {}
    # what each tolerance leads to, tightest where time allows: the optimum is the least of all
    for name, run in runs.items():
        spent = 0.0
        with suppress(Exception), deadline(3 * args.limit + 60):
            run(TOLERANCES[0])  # compilers are not timed
        for tol in TOLERANCES:
            began = time.perf_counter()
            try:
                with deadline(3 * args.limit):
                    found = run(tol)
            except Exception as error:
                if not values[name]:
                    skipped[name] = f"{type(error).__name__}: {error}"
                break
            spent += time.perf_counter() - began
            values[name][tol] = case.value(X, y, found)
            if spent > args.limit:
                break
            if len(values[name]) > 1 and tol <= args.gap * 1e-2 and values[name][tol] == min(values[name].values()):
                last = list(values[name].values())[-2:]
                if abs(last[0] - last[1]) <= 1e-3 * args.gap * abs(last[1]):
                    break
    least = min(min(v.values()) for v in values.values() if v)
    row: dict[str, Any] = {"case": case.name, "shape": list(X.shape), "objective": least, "skipped": skipped}
    chosen_tol: dict[str, float] = {}
    for name, by_tol in values.items():
        good = [t for t, f in by_tol.items() if (f - least) / abs(least) <= args.gap]
        if good:
            chosen_tol[name] = max(good)
        elif by_tol:
            best = min(by_tol, key=lambda t: by_tol[t])
            skipped[name] = f"its gap was {(by_tol[best] - least) / abs(least):.1e} after {args.limit:g} s of trials"
    seconds: dict[str, list[float]] = {name: [] for name in chosen_tol}
    gaps: dict[str, float] = {}
    for _ in range(args.repeats):
        for name, tol in chosen_tol.items():
            began = time.perf_counter()
            found = runs[name](tol)
            seconds[name].append(time.perf_counter() - began)
            gaps[name] = (case.value(X, y, found) - least) / abs(least)
            rounds[name] = found.rounds
    row["solvers"] = {
        name: {
            "seconds": statistics.median(seconds[name]),
            "all": seconds[name],
            "gap": gaps[name],
            "tol": chosen_tol[name],
            "rounds": rounds[name],
        }
        for name in chosen_tol
    }
    base = row["solvers"].get("scikit-learn")
    ours = row["solvers"].get("auqadmm")
    row["ratio"] = ours["seconds"] / base["seconds"] if ours and base else None
    return row


def admm(args: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds of an iteration of C-ADMM on 4 blocks of 100 × 10, and the functions that take most of them."""
    rng = np.random.default_rng(0)
    blocks = [(rng.standard_normal((100, 10)), rng.standard_normal(100)) for _ in range(4)]
    problem = aq.Problem(aq.LeastSquares(), aq.ElasticNet(1.0, 1.0), blocks)

    def run(count: int) -> float:
        began = time.perf_counter()
        aq.solve(problem, "c-admm", max_iter=count, certificate_tol=0, stop="residuals", abs_tol=0, rel_tol=0)
        return time.perf_counter() - began

    run(20)
    each = [1e3 * (run(1020) - run(20)) / 1000 for _ in range(args.repeats)]
    profile = cProfile.Profile()
    profile.runcall(run, 1000)
    stats: Any = pstats.Stats(profile)
    top = sorted(stats.stats.items(), key=lambda item: -item[1][2])[:12]
    named = [
        {"function": f"{Path(file).name}:{line} {name}", "calls": calls, "seconds": own}
        for (file, line, name), (_, calls, own, _, _) in top
    ]
    return {"milliseconds": statistics.median(each), "all": each, "profile_of_1000": named}


def shown(row: dict[str, Any]) -> str:
    parts = [f"{row['case']:20s}"]
    for name, found in row["solvers"].items():
        rounds = f", {found['rounds']} rounds" if found["rounds"] else ""
        parts.append(f"{name} {found['seconds']:.3f} s (gap {found['gap']:.0e}{rounds})")
    ratio = "" if row["ratio"] is None else f"   ours / scikit-learn {row['ratio']:.2f}×"
    return "   ".join(parts) + ratio


def versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__}
    for name in ("sklearn", "scipy", "celer", "skglm", "numba"):
        try:
            found[name] = importlib.import_module(name).__version__
        except Exception:
            found[name] = "none"
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Seconds and rounds on tables.")
    parser.add_argument("--cases", nargs="+", default=[c.name for c in CASES] + ["admm"])
    parser.add_argument("--method", default="auto", help="of ours")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--gap", type=float, default=1e-6, help="relative gap that all must reach")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds of trials per solver and case")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "tables")
    args = parser.parse_args()
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout
    args.out.mkdir(parents=True, exist_ok=True)
    file = args.out / "tables.json"
    about = {"commit": commit.strip(), "date": time.strftime("%Y-%m-%d"), "versions": versions()}
    about |= {"machine": platform.processor() or platform.machine(), "threads": torch.get_num_threads()}
    about |= {"method": args.method, "sites": SITES, "gap": args.gap, "repeats": args.repeats}
    kept = json.loads(file.read_text())["cases"] if file.exists() else {}
    for case in CASES:
        if case.name in args.cases:
            row = measure(case, args)
            kept[case.name] = {**row, "about": about}
            print(shown(row), flush=True)
            for name, why in row["skipped"].items():
                print(f"{'':20s}{name}: {why}", flush=True)
            file.write_text(json.dumps({"cases": kept}, indent=1) + "\n")
    if "admm" in args.cases:
        kept["admm"] = {**admm(args), "about": about}
        print(f"C-ADMM, 4 blocks of 100 × 10: {kept['admm']['milliseconds']:.2f} ms an iteration", flush=True)
        for entry in kept["admm"]["profile_of_1000"][:6]:
            print(f"{'':20s}{entry['seconds']:.3f} s in {entry['calls']} calls of {entry['function']}")
        file.write_text(json.dumps({"cases": kept}, indent=1) + "\n")


if __name__ == "__main__":
    main()
