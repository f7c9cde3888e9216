"""Runs specs and caches the results: re-running is free, an interruption loses only the current run.

    runner = Runner(Store(folder), data=folder_with_images, progress=print)
    record = runner.run(spec)

A run ends after its iterations, or when its gap is at rounding level. Evaluation is not timed (`core/history.py`).
The library prints nothing: `progress` is called with a `RunnerProgress` after each iteration.
"""

from __future__ import annotations

import math
import os
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
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
from auqadmm.paper import controls, pictures, problems
from auqadmm.paper.optimum import KKT, Optimum, compute
from auqadmm.paper.spec import PictureSpec, ProblemSpec, RunSpec
from auqadmm.paper.store import COLUMNS, Record, Store
from auqadmm.problem import Problem

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
        if (stored := self._held(spec)) is not None:
            return stored
        record = self._solve(spec, self.problem(spec.problem), self.optimum(spec.problem))
        self.store.put(spec, record)
        return record

    def has(self, spec: RunSpec) -> bool:
        return self._held(spec) is not None

    def _held(self, spec: RunSpec) -> Record | None:
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
            controls.make(spec.method, spec.rank),
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
    return problems.make(spec, data, sparse)


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
