"""Writes trajectories.json from the code as it stands: `python -m tests.golden.record`.

To be run when iterates are meant to change, and at no other time. A run is kept for as many iterations as rounding
leaves alone: where rows that are multiplied by 1 + 1e-15·N(0, 1) move v by more than `SAFE`, or change a count, another
machine's order of summation may do so too, and the run is kept for fewer iterations.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.golden.cases import COUNTS, LENGTH, PROBLEMS, distance, pairs, run

FILE = Path(__file__).with_name("trajectories.json")
SAFE = 2.5e-11  # the tests allow 1e-10
NOISE, SEEDS = 1e-15, range(4)


def settled(name: str, method: str, length: int) -> int:
    """How many of the iterations rounding leaves alone."""
    kept = run(name, method, length)
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        noisy = PROBLEMS[name](lambda X, rng=rng: X * (1 + NOISE * rng.standard_normal(X.shape)))
        other = run(name, method, length, noisy)
        for k in range(length):
            if k >= min(len(kept["v"]), len(other["v"])):
                length = length if len(kept["v"]) == len(other["v"]) else k
                break
            same = all(kept[count][k] == other[count][k] for count in COUNTS)
            if not same or distance(kept["v"][k], other["v"][k]) > SAFE:
                length = k
                break
    return length


def recorded(name: str, method: str) -> dict[str, Any]:
    found = run(name, method, LENGTH)
    if "refused" in found:
        return found
    length = settled(name, method, LENGTH)
    while length and settled(name, method, length) < length:  # the last row counts what the end of a run asks for
        length -= 1
    return {"length": length, **run(name, method, length)} if length else {"length": 0}


def main() -> int:
    torch.set_num_threads(1)
    lines = []
    for name, method in pairs():
        found = recorded(name, method)
        print(f"{name:20} {method:10} {found.get('refused') or found['length']}", flush=True)
        if found.get("length") != 0:
            lines.append(f"{json.dumps(f'{name} {method}')}: {json.dumps(found, separators=(',', ':'))}")
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    print(f"{FILE.name}: {FILE.stat().st_size / 1000:.0f} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
