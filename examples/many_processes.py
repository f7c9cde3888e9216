"""One model on digits that live in many processes.

    python -m torch.distributed.run --nproc-per-node 3 examples/many_processes.py

Every process reads its own blocks, calls `solve`, and gets the same result. On several machines start one such command
on each, with `--nnodes`, `--node-rank`, `--master-addr` and `--master-port`.
"""

import os

import numpy as np
from sklearn.datasets import load_digits

import auqadmm as aq


def blocks(rank: int, world: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """One block per digit; process `rank` holds the digits rank, rank + world, …

    A real program reads the files of this process here, and no others.
    """
    X, y = load_digits(return_X_y=True)
    return [(X[y == digit] / 16, y[y == digit]) for digit in range(rank, 10, world)]


problem = aq.Problem(aq.Multinomial(reduction="mean"), aq.L2(1.0), blocks)
result = aq.solve(problem, engine="torch")
if os.environ.get("RANK", "0") == "0":
    last = result.history[-1]
    print(result.message)
    print(f"objective {result.objective:.8f}, {last.rounds} rounds, {last.bytes / 1024:.0f} KiB per worker")
