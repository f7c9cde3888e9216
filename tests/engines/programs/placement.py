"""Every method with every local solver, for 30 iterations; the models of all of them go to FOLDER/worldN.npz.

One block per process, or all blocks in one. What pays for large data only is tried with small data too.
"""

import os
import sys
import time
from pathlib import Path

import numpy as np

import auqadmm as aq
from auqadmm.local import conjugate, descent, mixed
from auqadmm.problem import light

folder, world = Path(sys.argv[1]), int(os.environ["WORLD_SIZE"])
only = sys.argv[2:] or ["plain", "large", "light", "default"]  # noqa
ADMM = ("c-admm", "rb-admm", "ac-admm", "uq-admm", "auq-admm", "auq-lr")
SOLVERS = {
    "auto": aq.local.Mixed(tol=1e-12),
    "newton-cg": aq.local.NewtonCG(tol=1e-12),
    "lbfgs": aq.local.LBFGS(tol=1e-12, max_iter=2000),
    "released": aq.local.Released(calls=2),
}
ROWS, FEATURES = (200, 240, 20, 210, 90), 8


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
    for kind in ("multinomial", "elastic-net", "hinge"):
        for method in ADMM:
            for name, solver in SOLVERS.items():
                yield "plain", kind, method, name, solver
            if kind == "elastic-net":
                yield "plain", kind, method, "direct", aq.local.Direct()
            for name in ("auto", "newton-cg", "lbfgs"):
                if name == "auto" or method in ("c-admm", "auq-admm"):
                    yield "large", kind, method, name, SOLVERS[name]
                    yield "light", kind, method, name, SOLVERS[name]
            yield "default", kind, method, "auto", "auto"
        for method in ("lbfgs", "lbfgs-w", "owl-qn", "fista"):
            if kind != "elastic-net" or method not in ("lbfgs", "lbfgs-w"):
                yield "plain", kind, method, "none", "auto"


found, seconds = {}, {}
for size, kind, method, name, solver in cases():
    if size not in only:
        continue
    for module in (conjugate, descent, mixed):
        module.SMALL = 0 if size in ("large", "light") else 2**21
    light.SMALL = 0 if size == "light" else 2**21
    path = []
    began = time.perf_counter()
    aq.solve(
        problem(kind),
        method,
        "local" if world == 1 else aq.engines.Torch(timeout=60),
        local=solver,
        max_iter=30,
        abs_tol=0,
        rel_tol=0,
        certificate_tol=0,
        evaluate_every=0,
        stop="residuals",
        callbacks=[lambda event, path=path: path.append(event.state.shared.v.cpu().numpy().copy())],
    )
    print(f"{time.perf_counter() - began:6.2f} {size} {kind} {method} {name}", flush=True) if os.environ.get("PLACEMENT_SECONDS") and os.environ["RANK"] == "0" else None
    found[f"{size} {kind} {method} {name}"] = np.stack(path)
    seconds[f"{size} {kind} {method} {name}"] = time.perf_counter() - began

if os.environ["RANK"] == "0":
    np.savez(folder / f"world{world}.npz", **found)
    if os.environ.get("PLACEMENT_SECONDS"):
        for name, took in sorted(seconds.items(), key=lambda x: -x[1])[:25]:
            print(f"{took:6.2f} {name}")
        print(f"{sum(seconds.values()):6.2f} in all")
