"""Raw columns in several processes; the models of every run go to FOLDER/MODE.npz.

columns.py MODE FOLDER    "whole": runs from beginning to end; "begin": the first iterations, saved in FOLDER/runs;
                          "go on": the rest of them, whoever began
"""

import os
import sys
from pathlib import Path

import numpy as np

import auqadmm as aq

mode, folder, world = sys.argv[1], Path(sys.argv[2]), int(os.environ["WORLD_SIZE"])
METHODS = ("auq-lr", "lbfgs", "lbfgs-w", "owl-qn")


def blocks():
    rng = np.random.default_rng(0)
    made = []
    for n in (60, 80, 50, 70):
        Z = rng.normal(size=(n, 4))
        X = Z * np.array([8, 1e-3, 1e6, 1]) + np.array([2000, 0.5, 3e6, 0])
        made.append((X, (Z @ np.array([1, -2, 0.5, 1]) + rng.logistic(size=n) > 0).astype(float)))
    return made


def problem():
    made = blocks()
    held = made if world == 1 else (lambda rank, world: made[2 * rank : 2 * rank + 2])
    return aq.Problem(aq.Logistic(reduction="sum"), aq.L2(1e-4), held, intercept=True)


found = {}
for method in METHODS:
    kept = None if mode.startswith("whole") else aq.Checkpoint(folder / "runs" / method, every=1)
    result = aq.solve(
        problem(),
        method,
        "local" if world == 1 else aq.engines.Torch(timeout=60),
        local=aq.local.NewtonCG(tol=1e-12),
        certificate_tol=0,
        max_iter=3 if mode == "begin" else 8,
        checkpoint=kept,
    )
    found[method] = result.v.numpy()
    if result.lam is not None:
        found[f"{method} lam"] = result.lam.numpy()

if os.environ["RANK"] == "0":
    np.savez(folder / f"{mode} {world}.npz", **found)
