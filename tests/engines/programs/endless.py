"""A run that never converges, one line per iteration in FOLDER/rankR.log; its result goes to FOLDER/rankR.json.

Arguments: FOLDER TIMEOUT. A pause in each iteration makes room for what the test does to the processes.
"""

import json
import os
import sys
import time
from pathlib import Path

import numpy as np

import auqadmm as aq

folder, timeout = Path(sys.argv[1]), float(sys.argv[2])
rank = int(os.environ["RANK"])


def blocks(rank, world):
    rng = np.random.default_rng(rank)
    return [(rng.normal(size=(8, 4)), rng.normal(size=8)) for _ in range(2)]


def log(event):
    with (folder / f"rank{rank}.log").open("a") as file:
        file.write(f"{event.row.iteration}\n")
    time.sleep(0.02)


began = time.monotonic()
try:
    result = aq.solve(
        aq.Problem(aq.LeastSquares(), aq.L2(1.0), blocks),
        "c-admm",
        aq.engines.Torch(timeout=timeout),
        max_iter=10**6,
        abs_tol=0,
        rel_tol=0,
        certificate_tol=0,
        callbacks=[log],
    )
    found = {"status": str(result.status), "message": result.message, "n_iter": result.n_iter}
    found["v"] = result.v.flatten().tolist()
except Exception as error:
    found = {"status": type(error).__name__, "message": str(error)}
draft = folder / f"rank{rank}.draft"
draft.write_text(json.dumps({**found, "seconds": time.monotonic() - began}))
draft.rename(draft.with_suffix(".json"))
