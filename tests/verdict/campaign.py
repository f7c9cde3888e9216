"""Verdicts on problems nobody has seen: `python -m tests.verdict.campaign --seed 1 --seconds 600 --processes 2`.

Random problems of every loss and regularizer, points at known distances from their optimum, tolerances down to 1e-14.
Prints every `converged` beyond ten times its bound, every proved bound that the true gap exceeds by more than the
rounding of F, and a last line of counts.
"""

from __future__ import annotations

import argparse
import collections
import multiprocessing
import time

import numpy as np
import torch

from tests.verdict.asking import judge_of, verdict
from tests.verdict.cases import draw, points
from tests.verdict.optimum import L, Objective

EPS = np.finfo(float).eps
LOSSES = ("squares", "logistic", "multinomial", "poisson", "huber", "quantile", "hinge")
KINDS = ("zero", "l1", "l2", "elastic", "box", "nonnegative", "group")
TOLERANCES = (1e-5, 1e-10, 1e-13, 1e-14)


def size(o: Objective, point: torch.Tensor) -> float:
    """What F is made of: values, and slopes times the numbers that logits are sums of."""
    v = point.numpy().reshape(o.shape)
    z = o.logits(v.astype(L))
    value, slope, _ = o.rows(z)
    X = np.hstack([o.X, np.ones((len(o.X), 1))]) if o.intercept else o.X
    made_of = (np.abs(X) @ np.abs(v)).max(1) + np.abs(o.y)
    slopes = np.abs(slope).sum(1) + (np.abs(o.y) if o.loss == "poisson" else 0)
    return float((o.c * (np.abs(value) + slopes * made_of)).sum())


def judged(seed: int) -> collections.Counter[str]:
    rng, counts = np.random.default_rng(seed), collections.Counter[str]()
    loss, kind = LOSSES[rng.integers(len(LOSSES))], KINDS[rng.integers(len(KINDS))]
    case = draw(loss, kind, seed)
    try:
        optimum = case.oracle
    except AssertionError:  # the oracle itself did not arrive
        optimum = None
    if optimum is None:
        return collections.Counter(without_optimum=1)
    problem = case.problem()
    judge = judge_of(problem)
    counts["problems"] += 1
    for tol in TOLERANCES:
        for point in points(case, rng, tol):
            answer, gap = verdict(problem, point.v, tol, judge), float(optimum.gap(point.v))
            rounding = EPS * size(case.objective, point.v)
            where = f"{case.name}, tolerance {tol:.0e}: gap {gap:.4e}, {answer}"
            yes, proved = answer.passes(tol), answer.evidence == "proved"
            counts.update(points=1, converged=yes, proved=proved)
            if yes and float(point.relative) > 10 * answer.relative and gap > 16 * rounding:
                counts["flattering"] += 1
                print("flattering:", where, flush=True)
            if proved and gap > answer.gap_bound + 4 * rounding:
                counts["exceeded"] += 1
                print("exceeded:", where, flush=True)
            if tol == TOLERANCES[0] and point.target is not None and point.target <= 0.011 * tol and not case.singular:
                counts.update(good=1, good_converged=yes)
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    end, total, seed = time.monotonic() + options.seconds, collections.Counter[str](), options.seed
    with multiprocessing.get_context("spawn").Pool(options.processes, torch.set_num_threads, (1,)) as pool:
        for counts in pool.imap_unordered(judged, range(seed, seed + 1_000_000)):
            total.update(counts)
            if time.monotonic() > end:
                break
        pool.terminate()
    print(", ".join(f"{name.replace('_', ' ')} {count}" for name, count in sorted(total.items())))


if __name__ == "__main__":
    main()
