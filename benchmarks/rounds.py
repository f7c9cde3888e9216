"""Rounds, numbers and seconds until a relative objective gap of 1e-2, 1e-4 and 1e-6: methods × workloads.

    python benchmarks/rounds.py --quick                                     digits only, a few minutes
    python benchmarks/rounds.py --workloads 'mnist-*' --methods auq-lr lbfgs --device cuda --out runs/mnist
    python benchmarks/rounds.py --plot runs/*/results.csv --out runs        tables and profile of earlier runs

The gap is (F(v) − F*)/|F*| with F* from optima.py, read at v after each iteration, off the clock and free of charge;
counters are those of the history's row when the gap first holds (see `Row`), and no stopping test is among them. A
run ends at 1e-6, at --max-rounds, at --max-seconds of wall-clock time (scoring included) or at the --deadline of all.
A run that fails is a row with its status, never the end. Methods whose weights may be diagonal in cosines run twice:
on the plain problem, and with the prior "image". c-admm-tuned is C-ADMM with the best ρ of 10^-3 … 10^3, found by
trying them all: an oracle, no method.

Writes results.csv (one row per workload, method, prior and target; after every run), results.md, run.json and, with
--plot, profile.png.
"""

from __future__ import annotations

import argparse
import math
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import optima
import rivals
import scipy
import torch
from results import TARGETS, TUNED, Line, profile, read, write
from workloads import IMAGE, Workload, select

import auqadmm as aq
from auqadmm.core.history import Row
from auqadmm.core.state import Residuals

# from the middle outwards: a ρ that needs more rounds than the best so far is given up
GRID = (1.0, 0.1, 10.0, 0.01, 100.0, 0.001, 1000.0)
BASELINES = ("lbfgs", "lbfgs-50", "lbfgs-w", "owl-qn", "fista")
PAPER = ("c-admm", "rb-admm", "ac-admm", "uq-admm", "auq-admm")
METHODS = ("auq-lr", "newton", "gram", *BASELINES, *PAPER, "auto", TUNED)
PRIORS = ("", IMAGE)
INFORMED = ("auq-lr", "auto", "lbfgs-w")  # the methods that look at the prior


@dataclass(frozen=True)
class Budget:
    """Of each run; `deadline` is of all of them, in the time of `time.perf_counter`."""

    rounds: int
    seconds: float
    device: str
    deadline: float = math.inf

    @property
    def left(self) -> float:
        """Seconds that a run which starts now may take."""
        return min(self.seconds, self.deadline - time.perf_counter())


@dataclass(frozen=True)
class Outcome:
    """How one run ended: `hits` are the history's rows at which each target first held."""

    status: str
    message: str = ""
    variant: str = ""
    final_gap: float = math.nan
    iterations: int = 0
    rounds: int = 0
    hits: dict[float, Row] = field(default_factory=dict)

    @property
    def rank(self) -> tuple[float, float]:
        """Fewer rounds first; without them, the smaller gap."""
        last = self.hits.get(TARGETS[-1])
        return (math.inf if last is None else last.rounds, math.inf if math.isnan(self.final_gap) else self.final_gap)


# ---------------------------------------------------------------------- one run
class Watch:
    """The callback: notes when each target first holds, and ends the run at the last one or at the round budget."""

    def __init__(self, optimum: float, max_rounds: int) -> None:
        self.optimum, self.max_rounds = optimum, max_rounds
        self.hits: dict[float, Row] = {}
        self.gap, self.rounds, self.reason = math.nan, 0, ""

    def __call__(self, event: aq.Iteration) -> bool:
        row = event.row
        assert row.objective is not None
        self.rounds = row.rounds
        self.gap = (row.objective - self.optimum) / abs(self.optimum)
        for target in TARGETS:
            if self.gap <= target and row.rounds <= self.max_rounds:
                self.hits.setdefault(target, row)
        if TARGETS[-1] in self.hits:
            self.reason = "reached"
        elif row.rounds >= self.max_rounds:
            self.reason = "max_rounds"
        return bool(self.reason)


class LeftToCallback:
    """A method whose run only the callback or a budget may end.

    Gradient methods have no residuals, and the loop then asks for a certificate each iteration, a counted round;
    residuals that never pass leave the counting alone.
    """

    NEVER = Residuals(**{f.name: math.nan for f in fields(Residuals)})

    def __init__(self, method: Any) -> None:
        self.method = method

    def __getattr__(self, name: str) -> Any:
        return getattr(self.method, name)

    def init(self, setup: Any, reduce: Any) -> Any:
        return self.method.init(setup, reduce)

    def step(self, state: Any, reduce: Any) -> Any:
        new = self.method.step(state, reduce)
        missing = new.shared.residuals is None
        return replace(new, shared=replace(new.shared, residuals=self.NEVER)) if missing else new


# the loop's own tests never pass, and never cost a round; every iterate is scored, off the clock
NO_TEST: dict[str, Any] = {
    "stop": "residuals",
    "abs_tol": 0.0,
    "rel_tol": 0.0,
    "certificate_tol": 0.0,
    "evaluate_every": 1,
}


def resolve(name: str) -> Any:
    if name in rivals.KNOWN:
        return rivals.KNOWN[name]()
    if name in BASELINES:
        from auqadmm.baselines import KNOWN, LBFGS

        return as_it_is(LBFGS(history=50) if name == "lbfgs-50" else KNOWN[name]())
    return as_it_is(aq.methods.resolve(name))


def as_it_is(method: Any) -> Any:
    """Without a look at the columns, which are in order here: a round that a verdict would take anyhow."""
    return replace(method, columns="raw") if hasattr(method, "columns") else method


def run(problem: aq.Problem, method: Any, optimum: float, budget: Budget) -> Outcome:
    """One method on one problem; whatever goes wrong is an outcome."""
    watch = Watch(optimum, budget.rounds)
    try:
        result = aq.solve(
            problem,
            LeftToCallback(method),
            max_iter=budget.rounds,
            time_limit=max(budget.left, 0.1),
            device=budget.device,
            callbacks=[watch],
            **NO_TEST,
        )
    except ValueError as error:  # how a method says that a problem is not of its kind
        return Outcome("not applicable", str(error))
    except Exception as error:
        return Outcome("error", f"{type(error).__name__}: {error}", "", watch.gap, rounds=watch.rounds, hits=watch.hits)
    status = watch.reason or str(result.status)
    if status == "interrupted":
        raise KeyboardInterrupt
    status = "max_rounds" if status == "max_iter" else status
    return Outcome(status, result.message, "", watch.gap, result.n_iter, watch.rounds, watch.hits)


def run_named(problem: aq.Problem, name: str, optimum: float, budget: Budget) -> Outcome:
    if name == TUNED:
        return _tuned(problem, optimum, budget)
    try:
        method = resolve(name)
    except (ValueError, KeyError, ImportError) as error:
        return Outcome("unavailable", str(error))
    return run(problem, method, optimum, budget)


def _tuned(problem: aq.Problem, optimum: float, budget: Budget) -> Outcome:
    best = Outcome("error", "no ρ was tried")
    for rho in GRID:
        if TARGETS[-1] in best.hits:
            budget = replace(budget, rounds=best.hits[TARGETS[-1]].rounds - 1)
        if budget.rounds < 1:
            break
        found = replace(run(problem, aq.methods.C(rho=rho), optimum, budget), variant=f"oracle, rho={rho:g}")
        if found.rank < best.rank or best.variant == "":
            best = found
    return best


# ---------------------------------------------------------------------- all runs
@dataclass(frozen=True)
class Origin:
    """Which code was run, and when."""

    commit: str
    date: str

    @classmethod
    def now(cls, commit: str | None = None) -> Origin:
        return cls(commit or described(), time.strftime("%Y-%m-%d"))


def described() -> str:
    """The commit of this file, as git describes it; "unknown" where there is no git."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def lines(workload: str, method: str, outcome: Outcome, prior: str = "", origin: Origin | None = None) -> list[Line]:
    def counters(row: Row | None) -> tuple[Any, ...]:
        if row is None:
            return (None,) * 7
        return row.rounds, row.iteration, row.bytes_up, row.bytes_down, row.bytes_up // 8, row.hvps, row.seconds

    # how a run ended in the ordinary way, the status says
    message = "" if outcome.status in ("reached", "max_rounds", "time_limit") else " ".join(outcome.message.split())
    origin = origin or Origin("", "")
    return [
        Line(
            workload,
            method,
            prior,
            outcome.variant,
            target,
            *counters(outcome.hits.get(target)),
            outcome.final_gap,
            outcome.rounds,
            outcome.status,
            message,
            origin.commit,
            origin.date,
        )
        for target in TARGETS
    ]


def plan(methods: Sequence[str], priors: Sequence[str] = PRIORS) -> list[tuple[str, str]]:
    """Methods with the priors they are run with, the plain problem first."""
    pairs = [(name, prior) for name in methods for prior in PRIORS if prior in priors]
    return [(name, prior) for name, prior in pairs if prior == "" or name in INFORMED]


def run_workload(
    workload: Workload,
    planned: Sequence[tuple[str, str]],
    budget: Budget,
    origin: Origin,
    tell: Callable[[list[Line]], None],
) -> None:
    """Some methods on one workload; `tell` gets the lines of every run when it is over. No run starts too late."""
    problems = {prior: workload.make(prior) for prior in dict.fromkeys(prior for _, prior in planned)}
    best = optima.optimum(workload, next(iter(problems.values())), budget.device)
    print(f"{workload.name}: F* = {best.objective:.12g}, {workload.notes}", flush=True)
    for name, prior in planned:
        if budget.left <= 0:
            print(f"{workload.name}: the deadline is over; not run from {name} on", flush=True)
            return
        cut = budget.left < budget.seconds
        outcome = run_named(problems[prior], name, best.objective, budget)
        if cut and outcome.status == "time_limit":
            print(f"{workload.name}: the deadline ended {name}; not kept", flush=True)
            return
        tell(lines(workload.name, name, outcome, prior, origin))
        print(f"  {workload.name} {name:13}{prior:6}{describe(outcome)}", flush=True)


def benchmark(
    chosen: Sequence[Workload], planned: Sequence[tuple[str, str]], budget: Budget, out: Path, origin: Origin
) -> list[Line]:
    """Run everything; files are written after each run, so that an interrupt loses little."""
    done: list[Line] = []
    about: dict[str, Any] = environment(budget) | {"commit": origin.commit, "skipped": {}}
    began = time.perf_counter()

    def keep(new: list[Line]) -> None:
        done.extend(new)
        about["seconds"] = time.perf_counter() - began
        write(out, done, about)

    try:
        for workload in chosen:
            try:
                run_workload(workload, planned, budget, origin, keep)
            except Exception as error:  # no data, no optimum, no memory: the others may do better
                about["skipped"][workload.name] = str(error)
                print(f"{workload.name}: skipped. {error}", flush=True)
    except KeyboardInterrupt:
        print("Interrupted; what was complete is kept.", flush=True)
    keep([])
    return done


def describe(outcome: Outcome) -> str:
    counts = "  ".join(
        f"{target:.0e}: {outcome.hits[target].rounds}" if target in outcome.hits else f"{target:.0e}: –"
        for target in TARGETS
    )
    row = outcome.hits.get(TARGETS[-1])
    cost = f"{row.bytes_up / 8e3:.1f} thousand up, {row.seconds:.2f} s" if row else f"gap {outcome.final_gap:.1e}"
    why = f"  {outcome.message}" if outcome.status in ("error", "unavailable", "not applicable", "diverged") else ""
    return f"{outcome.status:14} {counts}  {cost}  {outcome.variant}{why}"


def environment(budget: Budget) -> dict[str, Any]:
    cuda = budget.device.startswith("cuda")
    if cuda:  # libraries are loaded on first use, which is nobody's running time
        torch.linalg.cholesky(torch.eye(64, dtype=torch.float64, device=budget.device) * 2.0)
    return {
        "command": " ".join(sys.argv),
        "started": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "budget": {"rounds": budget.rounds, "seconds": budget.seconds, "device": budget.device},
        "targets": TARGETS,
        "device": torch.cuda.get_device_name(budget.device) if cuda else platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "versions": {
            "python": platform.python_version(),
            "auqadmm": aq.__version__,
            "torch": torch.__version__,
            "numpy": np.__version__,
            "scipy": scipy.__version__,
        },
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", nargs="+", metavar="GLOB", help="default: all")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), metavar="NAME", help=", ".join(METHODS))
    parser.add_argument("--priors", nargs="+", choices=["plain", IMAGE], default=["plain", IMAGE])
    parser.add_argument("--quick", action="store_true", help="digits only, short runs")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--max-rounds", type=int, default=2000)
    parser.add_argument("--max-seconds", type=float, help="of each run; default 120, with --quick 10")
    parser.add_argument("--deadline", type=float, default=math.inf, help="seconds for everything")
    parser.add_argument("--commit", help="of the code, where there is no git")
    parser.add_argument("--out", type=Path, default=Path("runs/rounds"))
    parser.add_argument("--plot", nargs="*", type=Path, metavar="CSV", help="draw profile.png; with files: run nothing")
    given = parser.parse_args(arguments)
    if given.plot:
        done = read(given.plot)
        write(given.out, done)
    else:
        chosen = select(given.workloads or (["digits-*"] if given.quick else ["*"]))
        seconds = given.max_seconds or (10.0 if given.quick else 120.0)
        budget = Budget(given.max_rounds, seconds, given.device, time.perf_counter() + given.deadline)
        planned = plan(given.methods, ["" if prior == "plain" else prior for prior in given.priors])
        done = benchmark(chosen, planned, budget, given.out, Origin.now(given.commit))
        print(f"\n{(given.out / 'results.md').read_text(encoding='utf-8')}")
    if given.plot is not None:
        try:
            profile(done, given.out / "profile.png")
        except (ValueError, ImportError) as error:
            print(f"No picture: {error}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
