"""Rounds, bytes and seconds until a relative objective gap of 1e-2, 1e-4 and 1e-6: methods × workloads.

    python benchmarks/rounds.py --quick                                     digits only, a few minutes
    python benchmarks/rounds.py --workloads 'mnist-*' --methods auq-lr lbfgs --device cuda --out runs/mnist
    python benchmarks/rounds.py --plot runs/*/results.csv --out runs        tables and profile of earlier runs

The gap is (F(v) − F*)/|F*| with F* from optima.py, read at v after each iteration, off the clock and free of charge;
counters are those of the history's row when the gap first holds (see `Row`). A run ends at 1e-6, at --max-rounds or
at --max-seconds of wall-clock time (scoring included). A run that fails is a row with its status, never the end.
c-admm-tuned is C-ADMM with the best ρ of 10^-3 … 10^3, found by trying them all: an oracle, no method.

Writes results.csv (one row per workload, method and target), results.md, run.json and, with --plot, profile.png.
"""

from __future__ import annotations

import argparse
import math
import os
import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import optima
import scipy
import torch
from results import TARGETS, TUNED, Line, profile, read, write
from workloads import Workload, select

import auqadmm as aq
from auqadmm.core.history import Row
from auqadmm.core.state import Residuals

# from the middle outwards: a ρ that needs more rounds than the best so far is given up
GRID = (1.0, 0.1, 10.0, 0.01, 100.0, 0.001, 1000.0)
BASELINES = ("lbfgs", "lbfgs-w", "owl-qn", "fista")
METHODS = ("c-admm", "rb-admm", "ac-admm", "uq-admm", "auq-admm", "auq-lr", "auto", *BASELINES, TUNED)


@dataclass(frozen=True)
class Budget:
    rounds: int
    seconds: float
    device: str


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


def resolve(name: str) -> Any:
    if name in BASELINES:
        from auqadmm.baselines import KNOWN

        return KNOWN[name]()
    return aq.methods.resolve(name)


def run(problem: aq.Problem, method: Any, optimum: float, budget: Budget) -> Outcome:
    """One method on one problem; whatever goes wrong is an outcome."""
    watch = Watch(optimum, budget.rounds)
    try:
        result = aq.solve(
            problem,
            LeftToCallback(method),
            max_iter=budget.rounds,
            abs_tol=0.0,
            rel_tol=0.0,
            stop="residuals",
            time_limit=budget.seconds,
            device=budget.device,
            callbacks=[watch],
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
def lines(workload: str, method: str, outcome: Outcome) -> list[Line]:
    def counters(row: Row | None) -> tuple[Any, ...]:
        if row is None:
            return (None,) * 7
        return row.rounds, row.iteration, row.bytes_up, row.bytes_down, row.bytes_up // 8, row.hvps, row.seconds

    # how a run ended in the ordinary way, the status says
    message = "" if outcome.status in ("reached", "max_rounds", "time_limit") else " ".join(outcome.message.split())
    return [
        Line(
            workload,
            method,
            outcome.variant,
            target,
            *counters(outcome.hits.get(target)),
            outcome.final_gap,
            outcome.rounds,
            outcome.status,
            message,
        )
        for target in TARGETS
    ]


def benchmark(chosen: Sequence[Workload], methods: Sequence[str], budget: Budget, out: Path) -> list[Line]:
    """Run everything; files are written after each workload, so that an interrupt loses little."""
    done: list[Line] = []
    about: dict[str, Any] = environment(budget) | {"optima": {}, "skipped": {}}
    began = time.perf_counter()
    try:
        for workload in chosen:
            try:
                problem = workload.make()
                best = optima.optimum(workload, problem, budget.device)
            except Exception as error:  # no data, no optimum, no memory: the others may do better
                about["skipped"][workload.name] = str(error)
                print(f"{workload.name}: skipped. {error}", flush=True)
                continue
            about["optima"][workload.name] = asdict(best)
            print(f"{workload.name}: F* = {best.objective:.12g}, {workload.notes}", flush=True)
            for name in methods:
                outcome = run_named(problem, name, best.objective, budget)
                done += lines(workload.name, name, outcome)
                print(f"  {name:13}{describe(outcome)}", flush=True)
            about["seconds"] = time.perf_counter() - began
            write(out, done, about)
    except KeyboardInterrupt:
        print("Interrupted; what was complete is kept.", flush=True)
    about["seconds"] = time.perf_counter() - began
    write(out, done, about)
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
        "budget": asdict(budget),
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
    parser.add_argument("--quick", action="store_true", help="digits only, short runs")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--max-rounds", type=int, default=2000)
    parser.add_argument("--max-seconds", type=float, help="of each run; default 120, with --quick 10")
    parser.add_argument("--out", type=Path, default=Path("runs/rounds"))
    parser.add_argument("--plot", nargs="*", type=Path, metavar="CSV", help="draw profile.png; with files: run nothing")
    given = parser.parse_args(arguments)
    if given.plot:
        done = read(given.plot)
        write(given.out, done)
    else:
        chosen = select(given.workloads or (["digits-*"] if given.quick else ["*"]))
        seconds = given.max_seconds or (10.0 if given.quick else 120.0)
        done = benchmark(chosen, given.methods, Budget(given.max_rounds, seconds, given.device), given.out)
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
