"""Rounds on tables as they come, with columns as they are and centred and scaled inside.

    python benchmarks/columns.py                  half a minute

Rounds are those until a relative gap of 1e-6 is proved, without those that the verdict took; ">": not reached.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from sklearn.datasets import load_breast_cancer

import auqadmm as aq

METHODS = (aq.methods.AUQLR, aq.baselines.LBFGS, aq.baselines.PreconditionedLBFGS)


def split(X: np.ndarray, y: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    order = np.random.default_rng(0).permutation(len(y))
    return [(X[rows], y[rows]) for rows in np.array_split(order, 4)]


def breast_cancer(l2: float) -> aq.Problem:
    X, y = load_breast_cancer(return_X_y=True)
    return aq.Problem(aq.Logistic(reduction="sum"), aq.L2(l2), split(X, y.astype(float)), intercept=True)


def far_from_zero(squares: bool) -> aq.Problem:
    """Six features of mean 1000 and spread 1."""
    rng = np.random.default_rng(0)
    Z = rng.normal(size=(400, 6))
    z = Z @ rng.normal(size=6)
    if squares:
        y = z + 0.1 * rng.normal(size=400)
        return aq.Problem(aq.LeastSquares(reduction="mean"), aq.L2(1e-3), split(1000 + Z, y), intercept=True)
    y = (z + rng.logistic(size=400) > 0).astype(float)
    return aq.Problem(aq.Logistic(reduction="mean"), aq.L2(1e-4), split(1000 + Z, y), intercept=True)


def problems() -> Iterator[tuple[str, Callable[[], aq.Problem]]]:
    for l2 in (1.0, 0.01, 1e-4):
        yield f"breast cancer, l2 = {l2:g}", lambda l2=l2: breast_cancer(l2)
    for name, squares in {"squares": True, "logistic": False}.items():
        yield f"{name}, features of mean 1000", lambda squares=squares: far_from_zero(squares)


def rounds(problem: aq.Problem, method: aq.methods.AUQLR | aq.baselines.LBFGS) -> str:
    result = aq.solve(problem, method, certificate_tol=1e-6, max_iter=500)
    last = result.history[-1]
    return f"{'' if result.status == 'converged' else '> '}{last.rounds - last.rounds_verdict}"


def main() -> None:
    print("| problem |", *(f"`{method.name}` |" for method in METHODS))
    print("|---|" + "---:|" * len(METHODS))
    for name, make in problems():
        cells = [" / ".join(rounds(make(), method(columns=c)) for c in ("raw", "auto")) for method in METHODS]
        print(f"| {name} |", *(f"{cell} |" for cell in cells), flush=True)


if __name__ == "__main__":
    main()
