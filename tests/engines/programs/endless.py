"""A run that never converges, one line per iteration in FOLDER/rankR.log; its result goes to FOLDER/rankR.json.

Arguments: FOLDER TIMEOUT. The run is saved in FOLDER/run. A pause in each iteration makes room for what the test does
to the processes.
"""

import json
import os
import sys
import time
from pathlib import Path

import numpy as np

import auqadmm as aq


def blocks(rank, world):
    rng = np.random.default_rng(rank)
    return [(rng.normal(size=(8, 4)), rng.normal(size=8)) for _ in range(2)]


def everything(rank, world):
    """The blocks of three processes in one."""
    return [block for k in range(3) for block in blocks(k, 3)]


def endless(folder, engine="local", blocks=blocks, max_iter=10**6, callbacks=()):
    return aq.solve(
        aq.Problem(aq.LeastSquares(), aq.L2(1.0), blocks),
        "c-admm",
        engine,
        max_iter=max_iter,
        abs_tol=0,
        rel_tol=0,
        certificate_tol=0,
        callbacks=callbacks,
        checkpoint=aq.Checkpoint(folder, every=2),
    )


def main(folder, timeout):
    rank = int(os.environ["RANK"])

    def log(event):
        with (folder / f"rank{rank}.log").open("a") as file:
            file.write(f"{event.row.iteration}\n")
        time.sleep(0.02)

    began = time.monotonic()
    try:
        result = endless(folder / "run", aq.engines.Torch(timeout=timeout), callbacks=[log])
        found = {"status": str(result.status), "message": result.message, "n_iter": result.n_iter}
        found["v"] = result.v.flatten().tolist()
    except Exception as error:
        found = {"status": type(error).__name__, "message": str(error)}
    draft = folder / f"rank{rank}.draft"
    draft.write_text(json.dumps({**found, "seconds": time.monotonic() - began}))
    draft.rename(draft.with_suffix(".json"))


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]))
