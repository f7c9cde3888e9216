"""Make the numbers of the figures on a machine that has nothing but torch, numpy and scipy:

    python -m auqadmm.paper.run --figure fig-multinomial --device cuda --data DIR --out DIR --jobs 4
    python -m auqadmm.paper.run --figure all --list
    python -m auqadmm.paper.run --figure all --only 'mnist-*/defined/*' --data DIR --out DIR
    python -m auqadmm.paper.run --figure all --collect --out DIR        files from what earlier calls have left

Writes DIR/cache (one entry per run: a later call continues where this one stopped) and the files of `bundle.py`.
--deadline ends a call in time: runs that are under way are finished or cut off, no more are begun.

In Python: runs of specs are cached, so that re-running is free and an interruption loses only the current run.

    runner = Runner(Store(folder), data=folder_with_images, progress=print)
    record = runner.run(spec)

A run ends after its iterations, or when its gap is at rounding level. Evaluation is not timed (`core/history.py`).
The library prints nothing: `progress` is called with a `RunnerProgress` after each iteration.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import scipy
import torch

from auqadmm import __version__
from auqadmm.api import solve
from auqadmm.core.history import Row
from auqadmm.core.solve import Iteration
from auqadmm.core.state import Status
from auqadmm.paper import bundle, pictures, problems
from auqadmm.paper.bundle import read_optima
from auqadmm.paper.optimum import KKT, Optimum, compute
from auqadmm.paper.spec import FIGURES, PROTOCOLS, Figure, PictureSpec, ProblemSpec, RunSpec, Spec, select
from auqadmm.paper.store import COLUMNS, Record, Store
from auqadmm.problem import Problem

# ---------------------------------------------------------------------- one run after the other
# optima are known to about this, relatively: a smaller gap is meaningless
ROUNDING = 1e-10


@dataclass(frozen=True)
class RunnerProgress:
    """The argument of a progress callback: the run, its progress, and the new row."""

    name: str
    iteration: int
    iterations: int
    row: Row
    gap: float


class RunnerInterrupted(Exception):
    """Ctrl-C; completed results are kept."""


@dataclass(frozen=True)
class Runner:
    """Runs what the store does not have.

    Parameters
    ----------
    store
        Where results are kept.
    data
        Folder of the images; see `problems.images`.
    device
        "cpu" or "cuda"; the number of threads is torch's setting.
    force
        Recompute stored results.
    known
        Optima by the name of the problem, from an earlier run.
    time_limit
        Seconds per run, evaluation included; None for no limit.
    progress
        Called after each iteration.
    """

    store: Store
    data: Path | None = None
    device: str = "cpu"
    force: bool = False
    known: Mapping[str, Optimum] | None = None
    time_limit: float | None = None
    progress: Callable[[RunnerProgress], Any] | None = None

    def run(self, spec: RunSpec) -> Record:
        """The record of a run, from the store if it is there."""
        if (stored := self._reusable(spec)) is not None:
            return stored
        record = self._solve(spec, self.problem(spec.problem), self.optimum(spec.problem))
        self.store.put(spec, record)
        return record

    def has(self, spec: RunSpec) -> bool:
        return self._reusable(spec) is not None

    def _reusable(self, spec: RunSpec) -> Record | None:
        """A reusable record; not one that a shorter time limit cut off."""
        stored = None if self.force else self.store.get(spec)
        if stored is None or stored.about["status"] != "time_limit":
            return stored
        limit = stored.about["time_limit"]
        return stored if self.time_limit is not None and self.time_limit <= limit else None

    def picture(self, spec: PictureSpec) -> dict[str, np.ndarray]:
        """The arrays of a picture, from the store if they are there."""
        stored = None if self.force else self.store.get_arrays(spec)
        if stored is not None:
            return stored
        arrays = pictures.compute(spec, self.data, self.device)
        self.store.put_arrays(spec, arrays)
        return arrays

    def problem(self, spec: ProblemSpec) -> Problem:
        return _problem(spec, self.data, self.device == "cpu")

    def optimum(self, spec: ProblemSpec) -> Optimum:
        """F* of a problem, certified; from an earlier run, from the store, or computed now."""
        spec = spec.pooled
        if self.known is not None and spec.name in self.known:
            return self.known[spec.name]
        stored = self.store.get_arrays(spec)
        if stored is not None:
            gap = float(stored["gap"])
            return Optimum(
                float(stored["objective"]), float(stored["kkt"]), None if math.isnan(gap) else gap, str(stored["how"])
            )
        optimum = compute(self.problem(spec), self.device)
        if not optimum.kkt <= KKT:
            raise RuntimeError(f"{spec.name}: the optimum has a KKT residual of {optimum.kkt:.1e}, above {KKT:.0e}.")
        gap = math.nan if optimum.gap is None else optimum.gap
        arrays = {"objective": optimum.objective, "kkt": optimum.kkt, "gap": gap, "how": optimum.how}
        self.store.put_arrays(spec, {name: np.array(value) for name, value in arrays.items()})
        return optimum

    # ------------------------------------------------------------------ one run
    def _solve(self, spec: RunSpec, problem: Problem, best: Optimum) -> Record:
        scale = abs(best.objective) or 1.0  # a perfect fit without regularizer has no scale: use the absolute gap

        seen: list[Row] = []  # as made: a result's last row also includes the cost of ending the run

        def watch(event: Iteration) -> bool:
            row = event.row
            seen.append(row)
            gap = math.nan if row.objective is None else (row.objective - best.objective) / scale
            if self.progress is not None:
                self.progress(RunnerProgress(spec.name, row.iteration, spec.iterations, row, gap))
            return gap <= ROUNDING

        began, started = time.perf_counter(), time.strftime("%Y-%m-%d %H:%M:%S %z")
        result = solve(
            problem,
            problems.make_method(spec.method, spec.rank),
            max_iter=spec.iterations,
            abs_tol=0.0,
            rel_tol=0.0,
            certificate_tol=0.0,
            stop="residuals",
            evaluate_every=1,
            time_limit=self.time_limit,
            local=spec.local,
            device=self.device,
            seed=spec.seed,
            start=spec.start,
            callbacks=[watch],
        )
        rows = tuple(seen)
        gaps = [None if r.objective is None else (r.objective - best.objective) / scale for r in rows]
        reached = bool(gaps) and gaps[-1] is not None and gaps[-1] <= ROUNDING
        if result.status is Status.interrupted and not reached:
            raise RunnerInterrupted(f"Interrupted in {spec.name}; what was complete is kept.")
        about = {
            "name": spec.name,
            "spec": asdict(spec),
            "optimum": asdict(best),
            "status": "reached" if reached else str(result.status),
            "message": result.message,
            "started": started,
            "time_limit": self.time_limit,
            "wall_seconds": time.perf_counter() - began,
            "system": system(self.device),
        }
        return Record(_columns(rows, gaps), about)


@lru_cache(maxsize=2)
def _problem(spec: ProblemSpec, data: Path | None, sparse: bool) -> Problem:
    return problems.make_problem(spec, data, sparse)


def _columns(rows: tuple[Row, ...], gaps: list[float | None]) -> dict[str, list[Any]]:
    values = [
        (r.iteration, r.rounds, r.bytes, r.seconds, r.objective, gap, r.primal_residual, r.dual_residual, r.kkt)
        for r, gap in zip(rows, gaps, strict=True)
    ]
    return {name: [line[place] for line in values] for place, name in enumerate(COLUMNS)}


def system(device: str = "cpu") -> dict[str, Any]:
    """The versions and device that made a number."""
    cuda = device.startswith("cuda")
    return {
        "auqadmm": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "device": torch.cuda.get_device_name(device) if cuda else platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }


# ---------------------------------------------------------------------- the command
Job = Spec  # of a ProblemSpec: its optimum


@dataclass(frozen=True)
class Done:
    """How one job ended: `error` empty where it went well."""

    name: str
    seconds: float
    text: str
    error: str = ""


def jobs_of(figures: Sequence[Figure], only: Sequence[str]) -> tuple[list[ProblemSpec], list[Job]]:
    """The problems whose optima are needed, and the runs and pictures, each once."""
    wanted = [run for figure in figures for run in figure.runs if _matches(run.name, only)]
    pictures = [p for figure in figures for p in figure.pictures if _matches(p.name, only)]
    runs = list(dict.fromkeys(wanted))
    return list(dict.fromkeys(run.problem.pooled for run in runs)), [*runs, *pictures]


def _matches(name: str, only: Sequence[str]) -> bool:
    return not only or any(fnmatchcase(name, glob) for glob in only)


def perform(runner: Runner, job: Job, threads: int | None = None) -> Done:
    """One job; errors are reported, and the others continue."""
    if threads is not None:
        torch.set_num_threads(threads)
    began = time.perf_counter()
    name = f"optimum of {job.name}" if isinstance(job, ProblemSpec) else job.name
    try:
        text = _do(runner, job)
    except RunnerInterrupted:
        raise KeyboardInterrupt from None
    except Exception as error:
        return Done(name, time.perf_counter() - began, "", f"{type(error).__name__}: {error}")
    return Done(name, time.perf_counter() - began, text)


def _do(runner: Runner, job: Job) -> str:
    if isinstance(job, ProblemSpec):
        best = runner.optimum(job)
        return f"F* = {best.objective:.12g}, KKT {best.kkt:.0e}"
    if isinstance(job, RunSpec):
        record = runner.run(job)
        gap = record.columns["gap"][-1] if len(record) else None
        end = "no iteration" if gap is None else f"gap {gap:.1e} after {len(record)} iterations"
        return f"{record.about['status']}, {end}"
    return ", ".join(runner.picture(job))


def perform_all(
    runner: Runner, stages: Sequence[Sequence[Job]], workers: int, deadline: float | None = None
) -> Iterator[Done]:
    """All jobs, stage after stage, in this process or in several; none is started after the deadline (`monotonic`)."""
    if workers == 1:
        for job in (job for stage in stages for job in stage):
            yield _late(job) if _passed(deadline) else perform(runner, job)
        return
    context = multiprocessing.get_context("spawn")  # CUDA does not work after a fork
    threads = max(1, torch.get_num_threads() // workers)
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        for stage in stages:
            left = list(stage)
            under_way: set[Future[Done]] = set()
            while left or under_way:
                if _passed(deadline):
                    yield from map(_late, left)
                    left = []
                while left and len(under_way) < workers:
                    under_way.add(pool.submit(perform, runner, left.pop(0), threads))
                ended, under_way = wait(under_way, return_when=FIRST_COMPLETED)
                yield from (future.result() for future in ended)


def _passed(deadline: float | None) -> bool:
    return deadline is not None and time.monotonic() >= deadline


def _late(job: Job) -> Done:
    return Done(job.name, 0.0, "", "not begun before the deadline")


def needed_optima(runner: Runner, problems: Sequence[ProblemSpec], todo: Sequence[Job]) -> list[ProblemSpec]:
    """The problems with runs to do: their optima come first, once, and not in every process."""
    left = {job.problem.pooled for job in todo if isinstance(job, RunSpec) and not runner.has(job)}
    return [problem for problem in problems if problem in left]


# ---------------------------------------------------------------------- the command
def main(arguments: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    figures = [figure for name in given.figure for figure in select(name, given.quick, given.protocol, given.seed)]
    problems, todo = jobs_of(figures, given.only)
    if given.list:
        for job in todo:
            _say(job.name)
        return 0
    store = Store(given.out / "cache")
    began, failures = time.perf_counter(), 0
    if not given.collect:
        limit = None if given.deadline is None else time.monotonic() + given.deadline
        known = read_optima(given.optima)
        runner = Runner(store, given.data, given.device, given.force, known, given.max_seconds)
        stages: list[Sequence[Job]] = [needed_optima(runner, problems, todo), todo]
        for place, done in enumerate(perform_all(runner, stages, given.jobs, limit), start=1):
            failures += bool(done.error)
            _say(f"[{place}/{sum(map(len, stages))}] {done.seconds:7.1f} s  {done.name}: {done.error or done.text}")
    results, missing = bundle.gather(figures, replace(store, any_code=given.collect))
    command = " ".join(["python -m auqadmm.paper.run", *(sys.argv[1:] if arguments is None else arguments)])
    about = {"command": command, "date": time.strftime("%Y-%m-%d"), "seconds": round(time.perf_counter() - began, 1)}
    for path in bundle.write(given.out, results, about):
        _say(f"wrote {path}")
    if missing:
        _say(f"not there yet: {len(missing)} runs of these figures, e.g. {missing[0]}")
    return 1 if failures else 0


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--figure", nargs="+", default=["all"], metavar="ID", help=f"all, {', '.join(FIGURES)}")
    parser.add_argument("--only", nargs="+", default=[], metavar="GLOB", help="runs whose name matches; see --list")
    parser.add_argument("--list", action="store_true", help="name the runs and stop")
    parser.add_argument("--protocol", choices=list(PROTOCOLS), help="default: both")
    parser.add_argument("--quick", action="store_true", help="scikit-learn's digits, few iterations")
    parser.add_argument("--data", type=Path, help="packs <name>.npz, or the official files in <name>/")
    parser.add_argument("--out", type=Path, default=Path("runs/paper"))
    parser.add_argument("--optima", type=Path, default=Path("results/paper/optima.json"), help="optima known already")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=1, help="processes side by side")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--force", action="store_true", help="compute again what is there")
    parser.add_argument("--max-seconds", type=float, help="of one run, scoring included")
    parser.add_argument("--deadline", type=float, metavar="SECONDS", help="begin no run after so many seconds")
    parser.add_argument("--collect", action="store_true", help="run nothing; entries of other versions count too")
    return parser


if __name__ == "__main__":
    sys.exit(main())
