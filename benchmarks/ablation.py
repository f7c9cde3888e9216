"""Every heuristic of AUQ-LR off in turn, on the workloads of the rounds benchmark: what does each of them buy?

    python benchmarks/ablation.py --device cuda --processes 15 --deadline 280 --commit 1a2b3c4 --out out
    python benchmarks/ablation.py --device cpu --workloads 'digits-*' --switches 'alpha-*' memory-0 --out runs/ablation
    python benchmarks/ablation.py table out/ablation.json         per switch: ratios against the run with everything on
    python benchmarks/ablation.py list                            the switches, and how much code is behind each

A switch replaces names of the library from outside (`ablation_switches.py`); the library knows nothing of it. Runs are
those of rounds.py: to a true gap of 1e-6, or to the limits. Baselines come first, then switch after switch on the main
workloads, then what only C-ADMM uses, then the other workloads. Rounds, numbers and products do not depend on who else
computes on the device; **seconds do**.

Writes ablation.json: `about`, and one row per case and switch, made again every few seconds from what processes have
finished. A run that the deadline of all cuts short is not kept.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import queue
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from ablation_cases import MAIN, TABLES, Case, case
from ablation_patch import NotReached, Switch, switched
from ablation_switches import SWITCHES
from ablation_table import catalogue, table
from results import TARGETS
from rounds import Budget, Origin, Outcome, environment, run
from side_by_side import available
from workloads import select

import auqadmm as aq

BASE = "baseline"
GRACE, EVERY = 30.0, 5.0
OTHERS = 6.0  # seconds of a run of C-ADMM, which as a rule does not reach 1e-6
KNOWN = {switch.name: switch for switch in SWITCHES}
Job = tuple[str, str, str, str]  # method, switch, name and prior of the case


# ---------------------------------------------------------------------- what to run
def jobs(names: Sequence[str], switches: Sequence[Switch], device: str) -> list[Job]:
    """In the order in which they start."""
    fitting = [s for s in switches if s.device in ("", torch.device(device).type)]
    main = [name for name in names if name in MAIN] or list(names)
    rest = [name for name in names if name not in main and name not in TABLES]
    ours = [s for s in fitting if s.method == "auq-lr"]
    others = [s for s in fitting if s.method != "auq-lr"]
    first, later = _runs(ours, [*main, *TABLES]), _runs(ours, rest)
    apart, last = _runs(others, [*main, *TABLES]), _runs(others, rest)
    return list(dict.fromkeys([*_bases([*first, *later]), *first, *_bases([*apart, *last]), *apart, *later, *last]))


def _runs(switches: Iterable[Switch], names: Sequence[str]) -> list[Job]:
    return [(s.method, s.name, c.name, c.prior) for s in switches for c in _cases(s, names)]


def _cases(switch: Switch, names: Sequence[str]) -> list[Case]:
    found = [Case(name, prior) for name in names for prior in switch.priors]
    return [c for c in found if c.model in switch.models and (c.name in switch.only or not switch.only)]


def _bases(planned: Iterable[Job]) -> list[Job]:
    """With everything on, on the plain problems first."""
    found = dict.fromkeys((method, BASE, name, prior) for method, _, name, prior in planned)
    return sorted(found, key=lambda job: job[3])


# ---------------------------------------------------------------------- one run
def measured(job: Job, budget: Budget) -> dict[str, Any]:
    """The row of a run; `NotReached` where a switch was not on the way is the row's status."""
    method, name, *_ = job
    c = case(*job[2:])
    switch = KNOWN.get(name, Switch(BASE, "", "", 0))
    made = aq.methods.C() if method == "c-admm" else replace(aq.methods.AUQLR(columns=c.columns), **switch.settings)
    optimum = c.optimum(budget.device)
    try:
        with switched(switch):
            outcome = run(c.problem, made, optimum, budget)
    except NotReached as error:
        outcome = Outcome("not reached", str(error))
    return {
        "workload": c.name,
        "prior": c.prior,
        "method": method,
        "switch": name,
        "status": outcome.status,
        "reached": TARGETS[-1] in outcome.hits,
        "gap": outcome.final_gap,
        "rounds_done": outcome.rounds,
        "at": {f"{target:g}": _counters(row) for target, row in outcome.hits.items()},
        "message": "" if outcome.status in ("reached", "max_rounds", "time_limit") else outcome.message,
    }


def _counters(row: Any) -> dict[str, float]:
    return {"rounds": row.rounds, "seconds": row.seconds, "numbers": row.bytes_up // 8, "hvps": row.hvps}


def work(waiting: Any, until: float, limits: Budget, parts: Path, name: str) -> None:
    """One process: jobs until there are none or the deadline is over."""
    torch.set_num_threads(1)
    budget = replace(limits, deadline=time.perf_counter() + until - time.time())
    environment(budget)
    done: list[dict[str, Any]] = []
    warm: set[tuple[str, str]] = set()
    while budget.left > 0:
        try:
            job = waiting.get(timeout=1.0)
        except queue.Empty:
            return
        c = case(*job[2:])
        own = budget if job[0] == "auq-lr" else replace(budget, seconds=min(budget.seconds, OTHERS))
        try:
            if (job[0], c.model) not in warm:  # libraries are loaded on first use, which is nobody's running time
                measured((job[0], BASE, *job[2:]), replace(own, rounds=3, seconds=3.0))
                warm.add((job[0], c.model))
            cut = own.left < own.seconds
            row = measured(job, own)
        except Exception as error:  # the other jobs may do better
            print(f"{c.label} {job[1]}: skipped. {type(error).__name__}: {error}", flush=True)
            continue
        if cut and row["status"] == "time_limit":
            continue
        done.append(row)
        _write(parts / f"{name}.json", done)
        at = row["at"].get(f"{TARGETS[-1]:g}", {})
        print(f"{job[0]:7} {job[1]:20} {c.label:36} {row['status']:12} {at} {row['message'][:200]}", flush=True)
        if budget.device.startswith("cuda"):
            torch.cuda.empty_cache()


def together(planned: Sequence[Job], budget: Budget, out: Path, about: dict[str, Any], processes: int) -> list[Any]:
    """All jobs, side by side; what is finished is kept."""
    context = multiprocessing.get_context("spawn")
    waiting: Any = context.Queue()
    for job in planned:
        waiting.put(job)
    until = time.time() + budget.deadline - time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        parts = Path(folder)
        started = [
            context.Process(target=work, args=(waiting, until, budget, parts, f"{k:02d}")) for k in range(processes)
        ]
        for process in started:
            process.start()
        while any(process.is_alive() for process in started) and time.perf_counter() < budget.deadline + GRACE:
            time.sleep(min(EVERY, 1.0 if processes == 1 else EVERY))
            gathered(parts, out, planned, about)
        for process in started:
            if process.is_alive():
                process.terminate()
        waiting.cancel_join_thread()
        return gathered(parts, out, planned, about)


def gathered(parts: Path, out: Path, planned: Sequence[Job], about: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of all processes, in the order of the plan."""
    rows = [row for path in sorted(parts.glob("*.json")) for row in json.loads(path.read_text(encoding="utf-8"))]
    place = {job: k for k, job in enumerate(planned)}
    rows.sort(key=lambda row: place[row["method"], row["switch"], row["workload"], row["prior"]])
    _write(out / "ablation.json", {"about": about, "rows": rows})
    return rows


def _write(path: Path, content: Any) -> None:
    """The whole file at once, under another name until it is complete."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    part.replace(path)


def chosen(globs: Sequence[str]) -> list[Switch]:
    found = [s for s in SWITCHES if any(fnmatchcase(s.name, glob) for glob in globs)]
    if not found:
        raise ValueError(f"No switch matches {' '.join(globs)}; there are {', '.join(KNOWN)}.")
    for switch in found:
        switch.check()
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", nargs="?", choices=["run", "table", "list"], default="run")
    parser.add_argument("files", nargs="*", type=Path, help="of earlier runs, for `table`; a later one replaces rows")
    parser.add_argument("--workloads", nargs="+", metavar="GLOB", default=["*"])
    parser.add_argument("--switches", nargs="+", metavar="GLOB", default=["*"])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--processes", type=int, default=15)
    parser.add_argument("--max-rounds", type=int, default=2000)
    parser.add_argument("--max-seconds", type=float, default=20.0, help="of each run")
    parser.add_argument("--deadline", type=float, default=280.0, help="seconds for everything")
    parser.add_argument("--commit", help="of the code, where there is no git")
    parser.add_argument("--out", type=Path, default=Path("runs/ablation"))
    given = parser.parse_args(arguments)
    if given.action != "run":
        print(table(given.files, SWITCHES) if given.action == "table" else catalogue(SWITCHES))
        return 0
    began = time.perf_counter()
    budget = Budget(given.max_rounds, given.max_seconds, given.device, began + given.deadline)
    switches, origin = chosen(given.switches), Origin.now(given.commit)
    given.out.mkdir(parents=True, exist_ok=True)
    workloads, skipped = available(select(given.workloads), given.device)
    planned = jobs([w.name for w in workloads], switches, given.device)
    about = environment(budget) | {"commit": origin.commit, "date": origin.date, "processes": given.processes}
    about |= {"skipped": skipped, "planned": len(planned)}
    rows = together(planned, budget, given.out, about, given.processes)
    wrong = wrongs(rows)
    print(*wrong, f"{len(rows)} of {len(planned)} runs in {time.perf_counter() - began:.0f} s", sep="\n", flush=True)
    return 1 if wrong else 0


def wrongs(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Runs that failed, and switches that none of their runs came by."""
    failed = [row for row in rows if row["status"] in ("error", "not applicable", "diverged")]
    met = {row["switch"] for row in rows if row["status"] != "not reached"}
    idle = dict.fromkeys(row["switch"] for row in rows if row["switch"] not in met)
    told = [f"{row['switch']} on {row['workload']}: {row['status']}. {row['message']}" for row in failed]
    return told + [f"{name}: no run came by what it switches off" for name in idle]


if __name__ == "__main__":
    sys.exit(main())
