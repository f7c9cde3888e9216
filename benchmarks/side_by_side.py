"""Every workload with every method in one call: several processes share one GPU, and finished runs are always kept.

    python benchmarks/side_by_side.py --device cuda --commit 1a2b3c4 --deadline 540 --out out
    python benchmarks/side_by_side.py --device cuda --commit 1a2b3c4 --deadline 120 --out out --alone

Jobs are a workload and a group of methods, in the order of `GROUPS`, the longest ones of a group first as far as an
earlier file tells; a process that is done takes the next. Nothing starts after the deadline, a run that it meets is
not kept, and what hangs half a minute later is ended. Rounds and numbers do not depend on who
else computes on the GPU; **seconds do**, so some runs are made again with --alone, one after the other.

Writes rounds.csv (with --alone alone.csv), run.json and optima.json. rounds.csv is made again every few seconds from
what the processes have finished: that is what is left if this program is ended from outside.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import queue
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optima
import torch
from results import TARGETS, TUNED, Line, read, write_csv
from rounds import METHODS, PAPER, Budget, Origin, environment, plan, run_workload
from workloads import WORKLOADS, Workload, select

from auqadmm.paper.data import DataError

EARLIER = Path(__file__).resolve().parents[1] / "results" / "rounds" / "h200.csv"
VARIATIONS = ("-iid", "-dirichlet", "-n", "-l2_")
GRACE = 30.0
EVERY = 5.0


@dataclass(frozen=True)
class Group:
    """Methods that one job runs after each other, and the seconds of each run: on base problems, on variations."""

    methods: tuple[str, ...]
    seconds: tuple[float, float]


GROUPS = (
    Group(("auq-lr",), (120.0, 120.0)),
    Group(("newton",), (40.0, 40.0)),
    Group(("gram", "lbfgs", "lbfgs-50", "lbfgs-w"), (20.0, 20.0)),
    Group(("owl-qn", "fista"), (12.0, 12.0)),
    Group(PAPER[:3], (45.0, 6.0)),
    Group(PAPER[3:], (45.0, 6.0)),
    Group((TUNED,), (3.0, 1.0)),
)
ALONE = ("auq-lr", "newton", "gram", "lbfgs")
ALONE_SECONDS = 4.0
Job = tuple[str, tuple[tuple[str, str], ...], float]


def jobs(workloads: Sequence[Workload], earlier: Path = EARLIER) -> list[Job]:
    """(workload, methods with priors, seconds of each run), in the order in which they start."""
    took: dict[tuple[str, str], float] = {}
    for line in read([earlier]) if earlier.is_file() else ():
        if line.target == TARGETS[-1]:
            took[line.workload, line.method] = max(line.seconds or 1e3, took.get((line.workload, line.method), 0.0))
    found: list[Job] = []
    for group in GROUPS:

        def longest(workload: Workload, group: Group = group) -> float:
            return -sum(min(took.get((workload.name, m), 1.0), max(group.seconds)) for m in group.methods)

        for workload in sorted(workloads, key=longest):
            found.append((workload.name, tuple(plan(group.methods)), group.seconds[varied(workload)]))
    return found


def varied(workload: Workload) -> bool:
    return any(mark in workload.name for mark in VARIATIONS)


def work(waiting: Any, budget: Budget, origin: Origin, out: Path, name: str) -> None:
    """One process: jobs until there are none or the deadline is over."""
    torch.set_num_threads(1)
    environment(budget)
    done: list[Line] = []

    def keep(new: list[Line]) -> None:
        done.extend(new)
        write_csv(out / f"{name}.csv", done)

    while budget.left > 0:
        try:
            workload, planned, seconds = waiting.get(timeout=1.0)
        except queue.Empty:
            return
        try:
            limits = Budget(budget.rounds, seconds, budget.device, budget.deadline)
            run_workload(select([workload])[0], planned, limits, origin, keep)
        except Exception as error:  # the other jobs may do better
            print(f"{workload}: skipped. {error}", flush=True)
        if budget.device.startswith("cuda"):
            torch.cuda.empty_cache()


def together(planned: Sequence[Job], budget: Budget, origin: Origin, parts: Path, out: Path, processes: int) -> None:
    context = multiprocessing.get_context("spawn")
    waiting: Any = context.Queue()
    for job in planned:
        waiting.put(job)
    # the clock of another process may start elsewhere
    left = budget.deadline - time.perf_counter()
    started = [
        context.Process(target=_begin, args=(waiting, budget, time.time() + left, origin, parts, f"{k:02d}"))
        for k in range(processes)
    ]
    for process in started:
        process.start()
    while any(process.is_alive() for process in started) and time.perf_counter() < budget.deadline + GRACE:
        time.sleep(EVERY)
        gathered(parts, out)
    for process in started:
        if process.is_alive():
            process.terminate()
    waiting.cancel_join_thread()


def gathered(parts: Path, out: Path) -> list[Line]:
    """What all processes have finished, in one file, in the order of workloads and methods."""
    order = list(WORKLOADS)
    done = read(sorted(parts.glob("*.csv")))
    done.sort(key=lambda x: (order.index(x.workload), METHODS.index(x.method), x.prior, -x.target))
    write_csv(out / "rounds.csv", done)
    return done


def _begin(waiting: Any, budget: Budget, until: float, origin: Origin, out: Path, name: str) -> None:
    deadline = time.perf_counter() + until - time.time()
    work(waiting, Budget(budget.rounds, budget.seconds, budget.device, deadline), origin, out, name)


def one_by_one(workloads: Sequence[Workload], budget: Budget, origin: Origin, out: Path) -> None:
    """With the device to itself; libraries are loaded by a first run that does not count."""
    done: list[Line] = []

    def keep(new: list[Line]) -> None:
        done.extend(new)
        write_csv(out / "alone.csv", done)

    limits = Budget(budget.rounds, ALONE_SECONDS, budget.device, budget.deadline)
    warm = plan(ALONE, [""])
    for workload in (w for w in workloads if not varied(w)):
        try:
            run_workload(workload, warm, Budget(3, 2.0, budget.device, budget.deadline), origin, lambda new: None)
            run_workload(workload, plan(ALONE), limits, origin, keep)
        except Exception as error:  # the others may do better
            print(f"{workload.name}: skipped. {error}", flush=True)


def available(workloads: Sequence[Workload], device: str) -> tuple[list[Workload], dict[str, str]]:
    """Those whose data are there and whose optima are known, or found now; why not, for the others."""
    found, skipped, missing = [], {}, dict[str, str]()
    for workload in workloads:
        try:
            if workload.data in missing:
                raise DataError(missing[workload.data])
            if workload.pooled.name not in optima.known():
                optima.optimum(workload, device=device)
            else:
                workload.images()
            found.append(workload)
        except DataError as error:
            missing[workload.data] = skipped[workload.name] = str(error)
        except RuntimeError as error:
            skipped[workload.name] = str(error)
    return found, skipped


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", nargs="+", metavar="GLOB", default=["*"])
    parser.add_argument("--groups", nargs="+", type=int, default=list(range(len(GROUPS))), help="numbers of GROUPS")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--processes", type=int, default=15)
    parser.add_argument("--max-rounds", type=int, default=2000)
    parser.add_argument("--deadline", type=float, default=540.0, help="seconds for everything")
    parser.add_argument("--commit", help="of the code, where there is no git")
    parser.add_argument("--alone", action="store_true", help=f"{', '.join(ALONE)} one after the other")
    parser.add_argument("--out", type=Path, default=Path("runs/side-by-side"))
    given = parser.parse_args(arguments)
    began = time.perf_counter()
    budget = Budget(given.max_rounds, 120.0, given.device, began + given.deadline)
    origin = Origin.now(given.commit)
    given.out.mkdir(parents=True, exist_ok=True)
    chosen, skipped = available(select(given.workloads), given.device)
    about = environment(budget) | {"commit": origin.commit, "processes": given.processes, "skipped": skipped}
    if given.alone:
        one_by_one(chosen, budget, origin, given.out)
    else:
        methods = {m for k in given.groups for m in GROUPS[k].methods}
        planned = [job for job in jobs(chosen) if job[1][0][0] in methods]
        with tempfile.TemporaryDirectory() as parts:
            together(planned, budget, origin, Path(parts), given.out, given.processes)
            done = gathered(Path(parts), given.out)
        about |= {"runs": len(done) // len(TARGETS), "planned": sum(len(job[1]) for job in planned)}
        print(f"{about['runs']} of {about['planned']} runs", flush=True)
    about["seconds"] = time.perf_counter() - began
    (given.out / ("alone.json" if given.alone else "run.json")).write_text(json.dumps(about, indent=1) + "\n")
    shutil.copy(optima.FILE, given.out / optima.FILE.name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
