"""Every method with every local solver, for LENGTH iterations; the models of all of them go to FOLDER/worldN.npz.

One block per process, or all blocks in one. What pays for large data only is tried with small data too.

    placement.py FOLDER [WORD …]    only the cases whose names hold all the words; EVERY=1: each on every problem

Single precision on the way needs 30 iterations to arrive, and gets them.
"""

import os
import sys
from pathlib import Path

import numpy as np

import auqadmm as aq
from auqadmm.blocks import single_precision
from auqadmm.local import cg, descent, mixed

folder, world, words = Path(sys.argv[1]), int(os.environ["WORLD_SIZE"]), sys.argv[2:]
ADMM = ("c-admm", "rb-admm", "ac-admm", "uq-admm", "auq-admm", "auq-lr")
KINDS = ("multinomial", "hinge", "elastic-net")
SOLVERS = {
    "auto": aq.local.Mixed(tol=1e-12),
    "newton-cg": aq.local.NewtonCG(tol=1e-12),
    "released": aq.local.Released(calls=1),
    "lbfgs": aq.local.LBFGS(tol=1e-12, max_iter=2000),
}
ROWS, FEATURES = (200, 240, 20, 210, 90), 4


def blocks(kind):
    """Uneven, two of them short; each its own mixture of classes, or its own noise."""
    rng = np.random.default_rng(0)
    made = []
    for j, n in enumerate(ROWS):
        X = rng.normal(size=(n, FEATURES)) * np.linspace(0.5, 2, FEATURES) + 0.3 * rng.normal(size=FEATURES)
        z = X @ np.cos(np.arange(3 * FEATURES).reshape(FEATURES, 3)) + rng.gumbel(size=(n, 3))
        y = {
            "multinomial": np.where(rng.random(n) < 0.3, j % 3, z.argmax(1)),
            "elastic-net": z[:, 0] + 0.1 * j,
            "hinge": np.where(z[:, 0] > 0, 1, -1),
        }[kind]
        made.append((X, y))
    return made


def problem(kind):
    made = blocks(kind)
    held = made if world == 1 else (lambda rank, world: made[rank : rank + 1])
    if kind == "elastic-net":
        return aq.Problem(aq.LeastSquares(reduction="mean"), aq.ElasticNet(0.01, 0.05), held, intercept=True)
    if kind == "hinge":
        return aq.Problem(aq.SmoothedHinge(reduction="mean", eps=0.05), aq.L2(0.1), held)
    return aq.Problem(aq.Multinomial(reduction="mean"), aq.L2(0.05), held)


def cases():
    """Every method with every local solver, each pair on one of the problems in turn."""
    for i, method in enumerate(ADMM):
        for k, (name, solver) in enumerate(SOLVERS.items()):
            for j, kind in enumerate(KINDS):
                if (i + k) % 3 == j or os.environ.get("EVERY"):
                    yield "tight", kind, method, name, solver
        yield "tight", "elastic-net", method, "direct", aq.local.Direct()
    for i, method in enumerate(("rb-admm", "auq-admm", "auq-lr")):
        yield "default", KINDS[i % 2], method, "auto", "auto"
    yield "chaos", "elastic-net", "auq-lr", "released", SOLVERS["released"]
    yield "light", "multinomial", "c-admm", "auto", SOLVERS["auto"]
    yield "light", "elastic-net", "auq-lr", "auto", SOLVERS["auto"]
    for kind in KINDS:
        for method in ("lbfgs", "lbfgs-w", "owl-qn", "fista"):
            if kind != "elastic-net" or method not in ("lbfgs", "lbfgs-w"):
                yield "tight", kind, method, "none", "auto"


found = {}
for size, kind, method, local, solver in cases():
    name = f"{size} {kind} {method} {local}"
    if not set(words) <= set(name.split()):
        continue
    for module in (cg, descent, mixed):
        module.SMALL = 0 if size == "light" else 2**21
    single_precision.SMALL_DATA = 0 if size == "light" else 2**21
    path, length = [], 30 if size == "light" else int(os.environ.get("LENGTH", "30"))
    result = aq.solve(
        problem(kind),
        method,
        "local" if world == 1 else aq.engines.Torch(timeout=60),
        local=solver,
        max_iter=length,
        abs_tol=0,
        rel_tol=0,
        certificate_tol=0,
        evaluate_every=0,
        stop="residuals",
        callbacks=[lambda event, path=path: path.append(event.state.shared.v.cpu().numpy().copy())],
    )
    found[name] = np.stack(path)
    if len(path) < length and os.environ["RANK"] == "0":
        print(name, result.status, result.message, flush=True)

if os.environ["RANK"] == "0":
    np.savez(folder / f"world{world}.npz", **found)
