"""On what AUQ-LR's server spends its processor seconds as workers are added: consensus steps, and among them the first
ones with new weights, which also set up the preconditioner.

    python benchmarks/scaling_server.py --out results/scaling/server.csv
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from unittest.mock import patch

import torch
from scaling import write
from scaling_measure import measure, weak
from vstep import Timed

ROUNDS = 8  # what the problem of means takes


def split(workers: int) -> dict[str, float]:
    """Milliseconds of a whole run on means; `steps_ms` without those of `setup_ms`."""
    with patch.object(time, "perf_counter", time.process_time), Timed(cuda=False) as timed:
        found = measure("multinomial-mean", workers, "auq-lr", weak("multinomial-mean", workers), 1.0, ROUNDS, 300.0)
    new, old = ([row for row in timed.seen if bool(row["new"]) is kind] for kind in (True, False))
    return {
        "workers": workers,
        "server_ms": 1e3 * found.server * found.rounds_done,
        "setup_ms": sum(row["ms"] for row in new),
        "setups": len(new),
        "steps_ms": sum(row["ms"] for row in old),
        "steps": len(old),
        "cg_iterations": sum(row["iterations"] for row in old),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", nargs="+", type=int, default=[10, 20, 50])
    parser.add_argument("--out", type=Path, default=Path("runs/server.csv"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    found = [split(workers) for workers in given.workers]
    write(given.out, found)
    for row in found:
        print(row)
    return 0


if __name__ == "__main__":
    sys.exit(main())
