"""Several runs one after the other in the same processes; what each rank saw goes to FOLDER/rankR.json.

Runs that fail in one process must fail in all of them with one sentence, and leave them fit for the next run.
"""

import json
import os
import pickle
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch.distributed as dist

import auqadmm as aq

folder, rank = Path(sys.argv[1]), int(os.environ["RANK"])
ENDLESS = {"abs_tol": 0, "rel_tol": 0, "certificate_tol": 0}
seen = {}


def blocks(rank, world):
    rng = np.random.default_rng(rank)
    return [(rng.normal(size=(8, 4)), rng.normal(size=8)) for _ in range(2)]


def run(name, made=blocks, regularizer=None, engine=None, method="c-admm", **options):
    began = time.monotonic()
    try:
        problem = aq.Problem(aq.LeastSquares(), regularizer or aq.L2(1.0), made)
        result = aq.solve(problem, method, engine or aq.engines.Torch(timeout=20), **{"max_iter": 20, **options})
        found = {"status": str(result.status), "message": result.message, "n_iter": result.n_iter}
        found["v"] = result.v.flatten().tolist()
    except Exception as error:
        found = {"status": type(error).__name__, "message": str(error)}
    seen[name] = {**found, "seconds": time.monotonic() - began}


def part(name, **options):
    """The blocks of this process as a plain list, one class in each process."""
    X = blocks(rank, 3)[0][0]
    problem = aq.Problem.part(aq.Multinomial(), aq.L2(1.0), [(X, np.full(8, f"class {rank}"))])
    seen[name] = {"classes": aq.solve(problem, "c-admm", "torch", max_iter=3).classes.tolist()}


def at(k, act):
    return lambda event: act() if event.row.iteration == k else None


def burn():
    raise RuntimeError("the callback has had enough")


def drifting(s, K):
    """The proximal map, a little off in rank 1: as if its processor rounded differently."""
    return s / (K + 2) + (1e-13 if rank == 1 else 0.0)


def nan_later(event):
    """From now on the data of this process hold NaN."""
    if event.row.iteration == 4:
        shards[0].design.pieces[0].X[1, 2, 3] = float("nan")


# ------------------------------------------------------------------ nothing wrong
run("plain")
assert not dist.is_initialized(), "what was made here is closed here"
part("part")

dumped = []
collectives = dist.distributed_c10d
real, packed = pickle.dumps, collectives._object_to_tensor
pickle.dumps = lambda *args, **kwargs: dumped.append(1) or real(*args, **kwargs)
collectives._object_to_tensor = lambda *args, **kwargs: dumped.append(1) or packed(*args, **kwargs)
run("unpickled", method="auq-lr")
pickle.dumps, collectives._object_to_tensor = real, packed
seen["unpickled"]["pickles"] = len(dumped)


class Counted(aq.engines.Torch):
    """Counts reductions, and sees that each is one collective."""

    def place(self, *args):
        opened = super().place(*args)
        plain = opened.map_sum

        def map_sum(*args):
            before = opened.world.collectives
            found = plain(*args)
            assert opened.world.collectives == before + 1
            sums.append(1)
            return found

        opened.map_sum = map_sum
        return opened


for method in ("c-admm", "rb-admm", "auq-lr"):
    spent = []
    for most in (4, 9):
        sums = []
        options = {**ENDLESS, "max_iter": most, "stop": "residuals", "evaluate_every": 0}
        run("counted", engine=Counted(timeout=20), method=method, **options)
        spent.append(len(sums))
    seen[f"sums {method}"] = {"sums": spent[1] - spent[0]}

# ------------------------------------------------------------------ one process only
run("callback of rank 0", callbacks=[lambda event: event.row.iteration == 5] if rank == 0 else [], **ENDLESS)
run(
    "sigterm to rank 1", callbacks=[at(4, lambda: os.kill(os.getpid(), signal.SIGTERM))] if rank == 1 else [], **ENDLESS
)
seen["handler"] = {"restored": signal.getsignal(signal.SIGTERM) == signal.SIG_DFL}
run("raising callback", callbacks=[at(3, burn)] if rank == 2 else [], **ENDLESS)
run("other regularizer", regularizer=aq.L2(1.0 + rank))
run("other model", regularizer=aq.CustomRegularizer(lambda v: v.norm() ** 2, drifting))
run("other method", method="c-admm" if rank else "rb-admm")
run("no file", made=lambda r, w: blocks(r, w) if r != 1 else np.loadtxt("/nowhere/rows.csv"))
X, y = blocks(rank, 3)[1]
bad = np.where(np.arange(32).reshape(8, 4) == 13, np.nan, X)
run("nan", made=lambda r, w: [blocks(r, w)[0], (bad if r == 2 else X, y)])
run("features", made=lambda r, w: blocks(r, w) if r != 1 else [(X[:, :3], y)])
run("nothing", made=lambda r, w: [])


class Poisoned(aq.engines.Torch):
    """One block of rank 1 turns to NaN while the run goes on."""

    def place(self, *args):
        global shards
        opened = super().place(*args)
        shards = [opened.shard]
        return opened


run(
    "nan later",
    engine=Poisoned(timeout=20),
    callbacks=[nan_later] if rank == 1 else [],
    local=aq.local.NewtonCG(),
    **ENDLESS,
)
run("after all that")

# ------------------------------------------------------------------ a process group that exists
dist.init_process_group("gloo", timeout=timedelta(seconds=30))
run("group of the user")
seen["group of the user"]["open"] = dist.is_initialized()
dist.barrier()
dist.destroy_process_group()
(folder / f"rank{rank}.json").write_text(json.dumps(seen))
