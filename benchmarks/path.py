"""Rounds, bytes and seconds of a path of elastic nets: each strength cold, warm from its neighbour, all together.

    python benchmarks/path.py                     digits, breast cancer, diabetes and wine, a minute
    python benchmarks/path.py --alphas 100 --tol 1e-6

Every way solves the same strengths on the same split to the same tolerance; `error` is the largest distance of a
coefficient from scikit-learn's, relative to the largest coefficient of that strength. A warm start costs one round
more than the run itself counts, for the multipliers that go with it (`near`); it is added here. Features are scaled
beforehand in the same way for all.

    cold       every strength by itself, from zero
    warm       one after another, from the extrapolated solution of the neighbours
    together   all strengths as columns of one run
"""

from __future__ import annotations

import argparse
import time
import warnings
from dataclasses import dataclass

import numpy as np
from sklearn import datasets
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import enet_path as reference_path

import auqadmm as aq

DATA = {
    "diabetes": datasets.load_diabetes,
    "breast cancer": datasets.load_breast_cancer,
    "wine": datasets.load_wine,
    "digits": datasets.load_digits,
}


@dataclass(frozen=True)
class Line:
    data: str
    way: str
    rounds: int
    bytes: int
    seconds: float
    error: float
    converged: bool


def load(name: str) -> tuple[np.ndarray, np.ndarray]:
    X, y = DATA[name](return_X_y=True)
    spread = X.std(0)
    X = (X - X.mean(0))[:, spread > 0] / spread[spread > 0]
    return X, y - y.mean()


def error(coef: np.ndarray, reference: np.ndarray) -> float:
    """Both (K, m); strengths that leave nothing have no scale and count absolutely."""
    scale = np.abs(reference).max(1)
    return float((np.abs(coef - reference).max(1) / np.where(scale > 0, scale, 1.0)).max())


def measure(name: str, args: argparse.Namespace) -> list[Line]:
    X, y = load(name)
    sites = np.random.default_rng(0).integers(0, args.workers, len(y))
    options = {"l1_ratio": args.l1_ratio, "sites": sites, "tol": args.tol}
    alphas = aq.enet_path(X, y, alphas=args.alphas, **options).alphas
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        exact = reference_path(X, y, l1_ratio=args.l1_ratio, alphas=alphas, tol=1e-13, max_iter=100_000)[1].T
    lines = []
    for way in ("cold", "warm", "together"):
        began = time.perf_counter()
        if way == "cold":
            paths = [aq.enet_path(X, y, alphas=[a], **options) for a in alphas]
        else:
            paths = [aq.enet_path(X, y, alphas=alphas, together=1 if way == "warm" else len(alphas), **options)]
        seconds = time.perf_counter() - began
        more = len(alphas) - 1 if way == "warm" else 0
        coef = np.vstack([p.coef for p in paths])
        lines.append(
            Line(
                data=name,
                way=way,
                rounds=sum(p.rounds for p in paths) + more,
                bytes=sum(p.bytes for p in paths) + more * 8 * X.shape[1],
                seconds=seconds,
                error=error(coef, exact),
                converged=all(r.status == "converged" for p in paths for r in p.results),
            )
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description="Rounds of a path: cold, warm, together.")
    parser.add_argument("--alphas", type=int, default=50)
    parser.add_argument("--l1-ratio", type=float, default=0.5)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--tol", type=float, default=1e-8)
    args = parser.parse_args()
    print("| data | way | rounds | fewer rounds | kB per worker | seconds | error | converged |")
    print("|---|---|---|---|---|---|---|---|")
    for name in DATA:
        lines = measure(name, args)
        for line in lines:
            ratio = lines[0].rounds / max(line.rounds, 1)
            shown = f"{line.bytes / 1000:.0f} | {line.seconds:.1f} | {line.error:.0e} | {line.converged}"
            print(f"| {line.data} | {line.way} | {line.rounds} | {ratio:.1f}× | {shown} |", flush=True)


if __name__ == "__main__":
    main()
