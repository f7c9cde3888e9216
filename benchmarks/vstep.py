"""The consensus step of AUQ-LR at scale: milliseconds per round, conjugate gradient iterations, peak memory.

    python benchmarks/vstep.py --device cuda                        CIFAR-10, multinomial: n = 30 720 unknowns
    python benchmarks/vstep.py --workload cifar10-elastic-sum       with an l1 part: block pivoting

Every v-step of a run to a gap of 1e-6 is timed by itself, the device synchronised before and after. The first after
weights were renewed also factors the preconditioner: that is set-up, counted apart. Memory is what torch allocates at
most inside the v-steps beyond what is held before (weights of all blocks and data).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import optima
import torch
from rounds import Budget, described, run
from workloads import select

from auqadmm.methods import AUQLR
from auqadmm.metrics.vstep import LowRankMetric


class Timed:
    """Wraps `LowRankMetric.solve` while active."""

    def __init__(self, cuda: bool) -> None:
        self.cuda, self.plain = cuda, LowRankMetric.solve
        self.seen: list[dict[str, float]] = []
        self.last: LowRankMetric | None = None

    def __enter__(self) -> Timed:
        timed = self

        def solve(metric, *arguments):
            if timed.cuda:
                torch.cuda.synchronize()
                torch.cuda.reset_peak_memory_stats()
            held = torch.cuda.memory_allocated() if timed.cuda else 0
            began = time.perf_counter()
            found = timed.plain(metric, *arguments)
            if timed.cuda:
                torch.cuda.synchronize()
            seconds = time.perf_counter() - began
            peak = torch.cuda.max_memory_allocated() - held if timed.cuda else 0
            row = {"ms": 1e3 * seconds, "iterations": found.iterations, "new": metric is not timed.last}
            timed.seen.append(row | {"mib": peak / 2**20})
            timed.last = metric
            return found

        LowRankMetric.solve = solve  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        LowRankMetric.solve = self.plain  # type: ignore[method-assign]


def measure(name: str, device: str, commit: str) -> dict[str, float | int | str]:
    (workload,) = select([name])
    problem = workload.make()
    best = optima.optimum(workload, problem, device)
    budget = Budget(2000, 300.0, device)
    run(problem, AUQLR(), best.objective, Budget(3, 60.0, device))  # libraries are loaded on first use
    cuda = device.startswith("cuda")
    with Timed(cuda) as timed:
        began = time.perf_counter()
        outcome = run(problem, AUQLR(), best.objective, budget)
        seconds = time.perf_counter() - began
    old = [row for row in timed.seen if not row["new"]]
    new = [row for row in timed.seen if row["new"]]
    return {
        "workload": name,
        "unknowns": problem.census.features * problem.census.columns,
        "rounds": outcome.iterations,
        "gap": outcome.final_gap,
        "round_ms": 1e3 * seconds / outcome.iterations,
        "vstep_ms_median": statistics.median(row["ms"] for row in old),
        "vstep_ms_max": max(row["ms"] for row in old),
        "vstep_iterations_median": statistics.median(row["iterations"] for row in old),
        "setup_ms_max": max(row["ms"] for row in new),
        "peak_mib": max(row["mib"] for row in timed.seen),
        "device": torch.cuda.get_device_name(device) if cuda else "cpu",
        "commit": commit,
        "date": time.strftime("%Y-%m-%d"),
        "prior": "",
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", nargs="+", default=["cifar10-multinomial-sum", "cifar10-multinomial-mean"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--commit", help="of the code, where there is no git")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    found = []
    for name in given.workload:
        found.append(measure(name, given.device, given.commit or described()))
        print(json.dumps(found[-1]), flush=True)
    if given.out is not None:
        given.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
