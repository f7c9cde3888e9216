"""Methods on one problem, each run until it is within the same relative objective gap of the same optimum.

    optimum   from scipy or scikit-learn where they can solve it (`reference.py`); else from AUQ-LR, run until its
              certificate proves it far closer than the requested gap
    run       ends when (F(v) − F*) / |F*| is at most the gap, at a budget, or when the method cannot solve the problem

Evaluating an iterate is free, and no verdict is run: only the method's own rounds count.

A method's own stopping test says little about another's (S3): therefore the gap, with F* from a solver other than
the methods compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from auqadmm import baselines, methods
from auqadmm.api import solve
from auqadmm.comparison.reference import reference
from auqadmm.core.history import History, Row
from auqadmm.core.result import Result
from auqadmm.core.solve import Callback, Iteration
from auqadmm.core.state import Status
from auqadmm.methods.auto import Facts, estimates
from auqadmm.problem import InputError, Problem

if TYPE_CHECKING:
    from auqadmm.core.solve import Method


DEFAULT = ("auto", "auq-admm", "c-admm", "rb-admm", "ac-admm", "lbfgs", "owl-qn", "fista")
COUNTED = ("rounds", "bytes", "hvps", "seconds")
OPTIMUM_CLOSER = 100.0  # how many times closer than the gap the optimum must be known


class ComparisonInterrupted(Exception):
    """Ctrl-C in one of the runs."""


@dataclass(frozen=True)
class BestObjective:
    """F* and its source."""

    objective: float
    how: str


@dataclass(frozen=True, eq=False)
class Entry:
    """One method: its run, or the reason why there is none. `at`: the first iteration within the gap."""

    method: str
    status: str
    run: MethodRun | None = None
    at: Row | None = None
    note: str = ""


@dataclass(frozen=True, eq=False)
class Comparison:
    """All methods at one gap."""

    gap: float
    best: BestObjective
    entries: tuple[Entry, ...]

    @property
    def reached(self) -> tuple[Entry, ...]:
        return tuple(entry for entry in self.entries if entry.at is not None)

    def least(self, name: str) -> float | None:
        """The smallest value of one counter among the methods that came within the gap."""
        return min((getattr(entry.at, name) for entry in self.reached), default=None)

    @property
    def winner(self) -> Entry | None:
        """The fewest rounds; of equals the fewest bytes."""
        return min(self.reached, key=lambda e: (e.at.rounds, e.at.bytes) if e.at else (), default=None)


Watching = Callable[[str], AbstractContextManager[Callback | None]]


def compare(
    problem: Problem,
    names: Sequence[str] | None = None,
    gap: float = 1e-4,
    *,
    max_iter: int = 2000,
    time_limit: float | None = None,
    seed: int = 0,
    watching: Watching = lambda name: nullcontext(),
) -> Comparison:
    """Run methods to an equal relative objective gap.

    Parameters
    ----------
    problem
        All of its blocks in this process.
    names
        Methods; by default the usual ones, as far as they can solve the problem.
    gap
        (F(v) − F*) / |F*| at which a run ends.
    max_iter, time_limit
        Budgets of each method.
    watching
        Called with a method's name; a context manager that yields a callback, to show its run.
    """
    if not 0 < gap < 1:
        raise InputError(f"gap must lie between 0 and 1, got {gap:g}.")
    chosen = {method.name: method for name in names or DEFAULT if (method := _method(name, problem))}
    best = optimum(problem, gap)
    entries: list[Entry] = []
    for name, method in chosen.items():
        if not names and name == "owl-qn" and entries[-1].method == "lbfgs":
            continue  # the same method where the penalty is smooth
        with watching(name) as watch:
            entry = _entry(problem, method, best, gap, max_iter, time_limit, seed, watch)
        # methods not requested by name are skipped where they do not apply
        if names or entry.status != "not applicable":
            entries.append(entry)
    return _corrected(Comparison(gap, best, tuple(entries)))


def optimum(problem: Problem, gap: float) -> BestObjective:
    """F*, at least a hundred times closer than `gap`."""
    try:
        return BestObjective(reference(problem).objective, "scipy and scikit-learn")
    except (InputError, RuntimeError):  # not supported, or not solved to the required accuracy
        pass
    tol = min(gap / OPTIMUM_CLOSER, 1e-6)
    result = solve(problem, "auto", max_iter=5000, stop="certificate", certificate_tol=tol)
    if result.status is Status.interrupted:
        raise ComparisonInterrupted
    if result.status not in (Status.converged, Status.rounding):
        raise InputError(f"The optimum of this problem was not found, so that no gap is known: {result.message}")
    return BestObjective(result.objective, f"{result.method}, {result.certificate.words()}")


def _method(name: str, problem: Problem) -> Method:
    """By name; for "auto" the one that it would start with."""
    if name.lower() == "auto":
        census = problem.census
        facts = Facts(census.blocks, census.features, census.columns, problem.loss, problem.g)
        name = estimates(facts, methods.ROUND_COST)[0].method
    return methods.resolve(name, {**methods.KNOWN, **baselines.KNOWN})


def _entry(
    problem: Problem,
    method: Method,
    best: BestObjective,
    gap: float,
    max_iter: int,
    time_limit: float | None,
    seed: int,
    watch: Callback | None,
) -> Entry:
    enough = best.objective + gap * (abs(best.objective) or 1.0)

    rows: list[Row] = []  # as made: a result's last row also includes the cost of ending the run

    def there(event: Iteration) -> bool:
        rows.append(event.row)
        return event.row.objective is not None and event.row.objective <= enough

    try:
        result = solve(
            problem,
            method,
            max_iter=max_iter,
            abs_tol=0.0,
            rel_tol=0.0,
            certificate_tol=0.0,
            stop="residuals",
            evaluate_every=1,
            time_limit=time_limit,
            seed=seed,
            callbacks=[there, *([watch] if watch else [])],
        )
    except ValueError as error:  # raised by methods that cannot solve the problem
        return Entry(method.name, "not applicable", note=str(error))
    run = MethodRun("", replace(result, history=History(tuple(rows))), best.objective)
    at = run.first_within(gap)
    if at is not None:
        return Entry(method.name, "reached", run, at)
    if result.status is Status.interrupted:
        raise ComparisonInterrupted
    return Entry(method.name, str(result.status), run, note=result.message)


def _corrected(comparison: Comparison) -> Comparison:
    """If a run went below F*, use its value for all."""
    known = [value for e in comparison.entries if e.run for value in e.run.result.history.column("objective")]
    lowest = min((x for x in known if x is not None and math.isfinite(x)), default=math.inf)
    if lowest >= comparison.best.objective:
        return comparison
    best = replace(comparison.best, objective=lowest)
    entries = []
    for entry in comparison.entries:
        run = None if entry.run is None else replace(entry.run, optimum=lowest)
        entries.append(replace(entry, run=run, at=None if run is None else run.first_within(comparison.gap)))
    return Comparison(comparison.gap, best, tuple(entries))


def curve(run: MethodRun) -> dict[str, list[Any]]:
    """Counters and gap of every iteration, for a picture or a file; None where the gap is not known."""
    rows = run.result.history.rows
    columns: dict[str, list[Any]] = {name: [getattr(row, name) for row in rows] for name in ("iteration", *COUNTED)}
    return columns | {"gap": [None if np.isnan(x) else float(x) for x in run.gaps]}


GAPS = (1e-2, 1e-4, 1e-6)


@dataclass(frozen=True, eq=False)
class MethodRun:
    """One method on one model: its result, and the optimum F* to measure it against."""

    model: str
    result: Result
    optimum: float

    @property
    def method(self) -> str:
        return self.result.method

    @property
    def gaps(self) -> np.ndarray:
        """Relative objective gap after each iteration; NaN where the objective was not evaluated."""
        values = [math.nan if x is None else x for x in self.result.history.column("objective")]
        # an optimum of exactly 0 (a perfect fit without regularizer) has no scale: the gap is then absolute
        return (np.array(values, dtype=float) - self.optimum) / (abs(self.optimum) or 1.0)

    def first_within(self, gap: float) -> Row | None:
        """The history's row of the first iteration within a relative objective gap; None if none was."""
        within = np.flatnonzero(self.gaps <= gap)
        return self.result.history[int(within[0])] if within.size else None
