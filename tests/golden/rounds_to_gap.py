"""Rounds to a gap on the digits, as benchmarks/rounds.py counts them; `python -m tests.golden.rounds_to_gap` writes
rounds.json from the code as it stands.

Of every workload and method the tightest target is kept that is reached in `MOST` rounds, unless it depends on the
last bits of the data.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
import optima  # noqa: E402
import rounds  # noqa: E402
import workloads  # noqa: E402

sys.path.remove(str(BENCHMARKS))

FILE = Path(__file__).with_name("rounds.json")
MOST = 85
METHODS = ("auq-lr", "newton", *rounds.BASELINES, *rounds.PAPER, "auto")
COUNTS = ("rounds", "iteration", "bytes_up", "bytes_down", "hvps")


def hits(workload: str, method: str, prior: str, most: int) -> dict[float, list[int]]:
    """What it took to each target that is reached in `most` rounds."""
    problem = workloads.WORKLOADS[workload].make(prior)
    budget = rounds.Budget(most, 300.0, "cpu")
    found = rounds.run_named(problem, method, optima.known()[workload].objective, budget)
    assert found.status in ("reached", "max_rounds", "not applicable"), found.message
    return {target: [getattr(row, name) for name in COUNTS] for target, row in found.hits.items()}


def recorded(workload: str, method: str, prior: str) -> dict[str, Any] | None:
    found = hits(workload, method, prior, MOST)
    if not found:
        return None
    target = min(found)
    for bits in (-3, 2, 4):
        with patch.dict(workloads.SCALE, digits=16.0 * (1 + bits * 2.0**-52)):
            if hits(workload, method, prior, MOST).get(target) != found[target]:
                return None
    return {"target": target, "counts": found[target]}


def main() -> int:
    torch.set_num_threads(1)
    lines = []
    for workload in workloads.select(["digits-*"]):
        for method, prior in rounds.plan(METHODS):
            if prior and workload.name != "digits-elastic-mean":
                continue  # digits are no smooth images: the prior changes nothing but a few bytes
            found = recorded(workload.name, method, prior)
            print(workload.name, method, prior, found, flush=True)
            if found is not None:
                lines.append(f"{json.dumps(f'{workload.name} {method} {prior}'.strip())}: {json.dumps(found)}")
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
