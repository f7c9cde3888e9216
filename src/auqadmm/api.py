"""`solve`: names are resolved here, so that the core knows no method, solver or engine by name.

What `solve(on_loss=…)` does when a worker is lost:

    "stop"      return the last complete iterate; the message names the worker, and the folder to resume from
    "restart"   place the problem anew and resume from the last checkpoint, a few times at most without progress

Only an engine whose loop runs in one process can be restarted here. Where every process calls `solve`, those
that survive cannot restart the lost one: they raise `WorkerLost`, and whoever started them starts all again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from auqadmm import baselines, engines, local, methods
from auqadmm.blocks.shard import Census
from auqadmm.checkpoint.settings import Checkpoint, RunCheckpoints
from auqadmm.checks import whole_number
from auqadmm.columns import in_columns
from auqadmm.core.history import Clock
from auqadmm.core.processes import CallbackError, SharedCallbacks, all_weights
from auqadmm.core.record import count, sentence
from auqadmm.core.reduce import Engine, Reduce, WorkerLost
from auqadmm.core.result import Result
from auqadmm.core.solve import Callback, Method, block_view, run
from auqadmm.core.state import Setup, WarmStart
from auqadmm.core.stopping import Stopping
from auqadmm.errors import InputError, InputTypeError
from auqadmm.inference.statistics import WITHOUT_NULL, Statistics, measured
from auqadmm.local.base import LocalSolver, LocalStep
from auqadmm.methods.auq_lr.method import directions_sentence
from auqadmm.problem import Problem
from auqadmm.quality.evaluate import cross_models, quality_at
from auqadmm.quality.quality import Quality
from auqadmm.quality.rows import Folds
from auqadmm.states import REGISTRY, identify
from auqadmm.verdict.queries import ColumnMoments

DTYPES = {"float64": torch.float64, "float32": torch.float32}
T = TypeVar("T")


def solve(
    problem: Problem,
    method: str | Method | type[Method] = "auto",
    engine: Any = "local",
    *,
    max_iter: int = 250,
    abs_tol: float = 1e-4,
    rel_tol: float = 1e-5,
    certificate_tol: float = 1e-5,
    time_limit: float | None = None,
    stop: str = "certificate",
    local: str | LocalSolver = "auto",
    dtype: str | torch.dtype = "float64",
    device: str | torch.device = "cpu",
    seed: int = 0,
    start: str = "zeros",
    warm_start: Result | WarmStart | Tensor | np.ndarray | None = None,
    callbacks: Sequence[Callback] = (),
    evaluate_every: int = 0,
    checkpoint: Checkpoint | str | PathLike[str] | None = None,
    on_loss: str = "stop",
    round_cost: float = methods.ROUND_COST,
    inference: bool | str = False,
    quality: bool = False,
    collect: str = "all",
) -> Result:
    """Minimise Σ_j f_j(u) + g(u) over all blocks of a problem.

    Parameters
    ----------
    problem
        What to solve.
    method
        "auto" (recommended: the one of "newton", "auq-lr", "lbfgs" and "fista" that should cost least, changed in the
        run if it costs more), "c-admm", "rb-admm", "ac-admm", "uq-admm", "auq-admm", "auq-lr", "newton", or an object
        such as `methods.AUQ(interval=(0.1, 1.0), rank=5)`. Baselines: "lbfgs", "lbfgs-w", "owl-qn",
        "fista".
    engine
        Where blocks are: "local", all in this process; "torch", in the processes that `torchrun` started, each of
        which calls `solve` with its own blocks; "ray" and "dask", on the workers of such a cluster, the loop here; or
        an object such as `engines.Torch(timeout=600)` or `engines.Dask(client=client)`.
    max_iter, time_limit
        Budgets: iterations, and seconds of wall-clock time.
    abs_tol, rel_tol
        Tolerances of the residual test, for `stop="residuals"`.
    certificate_tol
        The required relative gap: (F(v) − F*)/scale, proved or estimated, with scale the smaller of the remaining
        and the explained objective (`Certificate`). 0: no verdict is run.
    stop
        "certificate": `converged` means a gap within `certificate_tol`, and nothing else does; where the arithmetic
        cannot distinguish objectives any further, the status is `rounding`; where F falls no further and nothing can
        be proved (collinear columns, separable classes), `undecided`. "residuals": the paper's test, and then the
        status is `residuals`. ("both", an older default, means "certificate".)
    local
        Solver of the local problems: "auto", "direct", "newton-cg", "lbfgs", "released", or an object.
    dtype, device
        Where and in which precision blocks compute; sums over blocks are always float64.
    seed
        Of every random choice: the start vectors of curvature estimates, and `start="random"`.
    start
        Local models at first: "zeros", or "random" for N(0, 1) entries.
    warm_start
        An earlier result, a `WarmStart`, or a model v. Model and multipliers are reused, and the penalties that
        RB- and AC-ADMM had reached; schedules (the interval of AUQ-ADMM, renewals of AUQ-LR) start anew.
    callbacks
        Functions called with an `Iteration` after each iteration; one that returns True stops the run.
    evaluate_every
        With `stop="residuals"` or without a tolerance: score objective and KKT residual every so many iterations, not
        timed and not among the rounds (`reductions` shows it). A run that stops by its certificate has them
        anyway: their sums are part of its iterations.
    checkpoint
        A folder, or a `Checkpoint`: the whole state is saved there every ten iterations, at the end, on Ctrl-C and on
        SIGTERM, and the same call resumes from there, to the same iterates. A checkpoint of other data,
        another method or other settings is refused; `max_iter`, `time_limit` (which counts from the call), the
        tolerances and the number of processes may change. With several processes the first one writes.
    on_loss
        When a worker is lost: "stop" returns the last complete iterate, status `interrupted`; the message names the
        worker, and the checkpoint from which the same call resumes. "restart" (needs `checkpoint`) places the
        problem anew and resumes from there at once; callbacks get the iterations since then again. With
        `engine="torch"` the others raise `WorkerLost` instead, and `torchrun --max-restarts` starts all anew.
    round_cost
        What a round costs beside the numbers it carries, in numbers: how many a link carries during one
        round trip (4000 within a machine, 256 000 between continents). "auto", "newton" and "auq-lr" use it.
    inference
        Ask for the sums of `Result.inference` at the end, while the problem is placed: one more round, counted. With
        offsets the null model takes a few more, which "without null" saves.
    quality
        Ask for `Result.quality` likewise: two rounds and a few of six numbers, counted.
    collect
        "all": the result has multipliers and weights of every block. "nothing": only sums over blocks are asked for,
        so the result has none of them; always so where sites allow no more.

    Returns
    -------
    Result
        The model, how the run ended (`status`, `message`), its certificate and its history.

    Raises
    ------
    InputError
        The problem, its blocks or a setting of the method cannot be used; the message says where and what to do.
    ValueError
        An option has a value that it cannot have.
    CheckpointError
        The folder of `checkpoint` belongs to another run, or its files are damaged.
    WorkerLost
        With `engine="torch"`: another process is gone.
    ProcessError
        With several processes: one of them failed, or was called with other settings.

    Examples
    --------
    >>> import numpy as np
    >>> import auqadmm as aq
    >>> X, y = np.array([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0], [2.0, 1.0]]), np.array([1.0, 2.0, 3.0, 6.0])
    >>> problem = aq.Problem(aq.LeastSquares(), aq.L2(1.0), [(X[:2], y[:2]), (X[2:], y[2:])])
    >>> result = aq.solve(problem)
    >>> result.status == "converged"
    True
    >>> result.coef.round(1)
    array([2., 1.])
    >>> aq.solve(problem, "lbfgs", max_iter=50, certificate_tol=1e-8).coef.round(1)
    array([2., 1.])
    >>> aq.solve(problem, aq.methods.C(rho=2.0), warm_start=result).n_iter <= 2
    True
    """
    if not isinstance(problem, Problem):
        raise InputTypeError(f"problem must be an auqadmm.Problem, got {type(problem).__name__}.")
    stopping = Stopping(max_iter, abs_tol, rel_tol, certificate_tol, time_limit, stop)
    if start not in ("zeros", "random"):
        raise InputError(f"start must be 'zeros' or 'random', got {start!r}.")
    whole_number("evaluate_every", evaluate_every)
    if whole_number("seed", seed) >= 2**31:
        raise InputError(f"seed must be below 2**31, got {seed!r}.")
    if collect not in ("all", "nothing"):
        raise InputError(f"collect must be 'all' or 'nothing', got {collect!r}.")
    callbacks = _functions(callbacks)
    checkpoint, on_loss = _checkpoint_and_rule(checkpoint, on_loss, engine)
    kind, place = _dtype(dtype), _device(device)
    clocks: list[Clock] = []  # of every attempt; the time limit counts from the first
    where = engine if hasattr(engine, "map_sum") else engines.resolve(engine)
    callbacks = (*callbacks, *getattr(where, "callbacks", ()))

    def attempt(checkpoint: Checkpoint | None) -> Result:
        allowed = where.running(problem, method) if hasattr(where, "running") else method
        with _opened(where, problem, kind, place) as opened:
            reduce, census = Reduce(opened), opened.census
            reduce.collects = reduce.collects and collect == "all"
            chosen = _method(allowed, round_cost)
            warm = _warm(warm_start, census)
            same = {"method": chosen, "local": local, "stopping": stopping, "dtype": kind, "seed": seed, "start": start}
            same |= {"evaluate_every": evaluate_every, "warm_start": warm and warm.v.shape, "on_loss": on_loss}
            same |= {"round_cost": round_cost}
            opened.same({**same, "checkpoint": checkpoint and replace(checkpoint, folder="…")})  # the first's counts
            setup = Setup(
                blocks=census.blocks,
                features=census.features,
                columns=census.columns,
                intercept=census.intercept,
                regularizer=problem.g,
                solve=LocalStep(_local_solver(local, reduce)),
                device=getattr(opened, "device", place),
                seed=seed,
                start=start,
                precision=float(torch.finfo(kind).eps),
                warm=warm,
                image=problem.image,
                loss=problem.loss,
                names=problem.names,
                rows=sum(census.rows),
                round_cost=getattr(chosen, "round_cost", round_cost),
            )
            keeper = None
            if checkpoint is not None:
                deciding = {
                    "method": getattr(chosen, "method", chosen),
                    "local": setup.solve,
                    "dtype": kind,
                    "stop": stopping.rule,
                }
                deciding |= {"evaluate_every": evaluate_every}
                identity = identify(reduce, census, problem.loss, deciding, setup)
                resume = getattr(chosen, "resume", None)
                ready = None if resume is None else partial(resume, reduce=reduce)
                keeper = RunCheckpoints(checkpoint, REGISTRY, identity, block_view(chosen, reduce), ready)
            shared_callbacks = SharedCallbacks(callbacks, opened)
            clocks.append(clocks[0].since() if clocks else Clock())
            try:
                result = run(chosen, setup, reduce, stopping, (shared_callbacks,), evaluate_every, keeper, clocks[-1])
            except CallbackError:
                opened.agreed(0.0)  # never returns: the failed process is leaving, and this raises its error
                raise
            except WorkerLost as lost:
                lost.left = lost.left and _labelled(lost.left, census)
                raise
            try:
                result = replace(result, weights=all_weights(result.weights, reduce) if reduce.collects else None)
                if hasattr(chosen, "leave"):
                    chosen.leave(reduce)
            except WorkerLost:  # everything else is known
                result = replace(result, weights=None)
            if inference:
                null = inference != WITHOUT_NULL
                at = measured(reduce, problem, census, result.v, result.moments, null_model=null)
                model = result.v if at.model is None else at.model.to(result.v)  # the last steps to the optimum
                result = replace(result, statistics=at, v=model)
            if quality:
                result = replace(
                    result,
                    figures=quality_at(reduce, problem.loss, census, result.v, result.moments, sites=reduce.collects),
                )
            traffic, choice = reduce.traffic, result.choice
            if choice is not None:
                choice = replace(choice, rounds=traffic.rounds, numbers=traffic.up // 8)
            result = replace(result, history=result.history.counted(traffic), choice=choice)
        again = {"method": method, "max_iter": max_iter, "certificate_tol": certificate_tol, "local": local}
        again |= {"abs_tol": abs_tol, "rel_tol": rel_tol, "stop": stop, "seed": seed, "round_cost": round_cost}
        source = RunSource(where, problem, kind, place, census.blocks, again)
        result = _labelled(result, census)
        return replace(result, source=source, message=result.message + getattr(opened, "note", ""))

    result = _recovered(attempt, checkpoint, on_loss, spmd=getattr(where, "spmd", False))
    if hasattr(where, "solved"):
        where.solved(result)
    return result


@dataclass(frozen=True, eq=False)
class RunSource:
    """Where a problem of so many blocks was solved, to place it there once more; and how, to solve parts of it."""

    engine: Any
    problem: Problem
    dtype: torch.dtype
    device: torch.device
    blocks: int
    options: dict[str, Any]

    @contextmanager
    def placed(self) -> Iterator[Reduce]:
        """The problem, placed once more; with several processes each must call."""
        with _opened(self.engine, self.problem, self.dtype, self.device) as opened:
            yield Reduce(opened)

    def ask(self, v: Tensor, question: Callable[[Reduce, Tensor], T]) -> T:
        """The answer to a question about all blocks at v."""
        with self.placed() as reduce:
            return question(reduce, v.to(getattr(reduce.engine, "device", self.device)))

    def measured(
        self,
        v: Tensor,
        columns: ColumnMoments | None,
        frequency: bool,
        sites: bool,
        chosen: object = None,
        expected: bool = False,
        reference: object = None,
    ) -> Statistics:
        """The sums of inference at v."""
        asked = frequency, sites, chosen, expected, reference
        return self.ask(v, lambda reduce, v: measured(reduce, self.problem, reduce.engine.census, v, columns, *asked))

    def quality(
        self, v: Tensor, columns: ColumnMoments | None, cv: int | str | None, seed: int, sites: bool
    ) -> Quality:
        """The figures of v, or of models that are fitted from there on without some of the rows."""
        folds: Folds | None = None
        notes: tuple[str, ...] = ()
        if cv is not None:
            folds = Folds.of(cv, seed, self.blocks)
            v, notes = cross_models(self.problem, folds, v, self._fitted)

        def question(reduce: Reduce, v: Tensor) -> Quality:
            census = reduce.engine.census
            own = sites and reduce.collects
            return quality_at(reduce, self.problem.loss, census, v, columns, sites=own, folds=folds, notes=notes)

        return self.ask(v, question)

    def _fitted(self, problem: Problem, v: Tensor) -> Result:
        if hasattr(self.engine, "map_sum"):
            raise InputError("cv needs an engine that can be placed anew, by its name or its settings.")
        more: dict[str, Any] = {"dtype": self.dtype, "device": self.device, "warm_start": WarmStart(v)}
        return solve(problem, engine=self.engine, **self.options, **more)


def _labelled(result: Result, census: Census) -> Result:
    """With the problem's classes and intercept, and the reasons of "auto" for its method."""
    message, choice = result.message, result.choice
    if choice is not None:
        message += f" (auto chose {choice.first}: {choice.reason}{directions_sentence(result.weights)}.)"
    return replace(result, message=message, classes=census.classes, has_intercept=census.intercept)


@contextmanager
def _opened(engine: Any, problem: Problem, dtype: torch.dtype, device: torch.device) -> Iterator[Engine]:
    """The engine with the problem placed on it; one that was placed before is closed by its owner."""
    if hasattr(engine, "map_sum"):
        yield engine
        return
    opened = engine.place(problem, dtype, device)
    try:
        yield opened
    except BaseException as error:
        with suppress(Exception):  # the first error matters
            opened.close(error)
        raise
    opened.close()


def _local_solver(name: str | LocalSolver, reduce: Reduce) -> Any:
    if isinstance(name, str) and name == "auto":
        name = "direct" if reduce.every(local.direct_suits) else "mixed"
    return local.resolve(name)


def _method(method: object, round_cost: float) -> Any:
    if isinstance(method, str) and method.lower() in ("auto", "newton"):
        return (methods.Auto if method.lower() == "auto" else methods.Newton)(round_cost)
    if isinstance(method, str) and method.lower() == "auq-lr":
        method = methods.AUQLR(round_cost=round_cost)
    return in_columns(methods.resolve(method, {**methods.KNOWN, **baselines.KNOWN}))


def _functions(callbacks: Any) -> tuple[Callback, ...]:
    try:
        several = tuple(callbacks)
    except TypeError:
        several = (None,)
    if not all(callable(f) for f in several):
        raise InputTypeError(f"callbacks must be a list of functions, got {callbacks!r}.")
    return several


def _dtype(dtype: object) -> torch.dtype:
    name = getattr(dtype, "__name__", str(dtype))  # np.float32 is a class
    known = DTYPES.get(name.removeprefix("torch."))
    if known is None:
        raise InputError(f"dtype must be 'float64' or 'float32', got {dtype!r}.")
    return known


def _device(device: str | torch.device) -> torch.device:
    try:
        parsed = torch.device(device)
    except (RuntimeError, TypeError):
        raise InputError(f"Unknown device {device!r}; use 'cpu' or 'cuda'.") from None
    if parsed.type not in ("cpu", "cuda"):
        raise InputError(f"device {str(device)!r} is not supported; use 'cpu' or 'cuda'.")
    if parsed.type == "cuda" and not torch.cuda.is_available():
        raise InputError(f"device {str(device)!r} asked for, but torch sees no CUDA device here; use 'cpu'.")
    return parsed


def _warm(start: Any, census: Census) -> WarmStart | None:
    if start is None:
        return None
    if isinstance(start, Result):
        start = start.warm_start
    if not isinstance(start, WarmStart):
        start = WarmStart(start)
    v = _tensor("v", start.v)
    v = v.reshape(-1, 1) if v.ndim == 1 else v
    lam = None if start.lam is None else _tensor("the multipliers", start.lam)
    if tuple(v.shape) != (census.features, census.columns):
        raise InputError(
            f"warm_start: v has shape {tuple(v.shape)} but this problem's model is "
            f"{(census.features, census.columns)} (rows: features, plus one for an intercept)."
        )
    expected = (census.blocks, census.features, census.columns)
    if lam is not None and tuple(lam.shape) != expected:
        raise InputError(
            f"warm_start: the multipliers have shape {tuple(lam.shape)} but this problem needs {expected}; "
            "it was made with other blocks (pass only v to keep the model)."
        )
    weights = start.weights if lam is not None else None  # weights belong to blocks; so do multipliers
    return replace(start, v=v, lam=lam, weights=weights)


def _tensor(name: str, x: object) -> Tensor:
    """A copy in float64, or one clear sentence."""
    if isinstance(x, Tensor):
        x = x.detach().cpu().numpy()
    try:
        array = np.array(x, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"warm_start: {name} must be an array of numbers, got {type(x).__name__}.") from None
    if not np.isfinite(array).all():
        raise InputError(f"warm_start: {name} holds NaN or infinity.")
    return torch.from_numpy(array)


# ---------------------------------------------------------------------- a worker is lost
Attempt = Callable[[Checkpoint | None], Result]
SHOWN_LOSSES = 3  # losses named in a message


def _checkpoint_and_rule(
    checkpoint: Checkpoint | str | PathLike[str] | None, on_loss: object, engine: object
) -> tuple[Checkpoint | None, str]:
    """Both settings, checked."""
    if checkpoint is not None and not isinstance(checkpoint, Checkpoint):
        checkpoint = Checkpoint(checkpoint)
    if on_loss not in ("stop", "restart"):
        raise InputError(f"on_loss must be 'stop' or 'restart', got {on_loss!r}.")
    if on_loss == "restart" and checkpoint is None:
        raise InputError("on_loss='restart' needs checkpoint, a folder: a run begins again from what is saved there.")
    if on_loss == "restart" and hasattr(engine, "map_sum"):
        raise InputError(
            "on_loss='restart' needs an engine that can be placed anew, by its name or its settings; "
            f"this {type(engine).__name__} holds a problem already."
        )
    return checkpoint, on_loss


def _recovered(attempt: Attempt, checkpoint: Checkpoint | None, on_loss: str, spmd: bool) -> Result:
    """The result of `attempt`, repeated after a loss if `on_loss` says so. `spmd`: every process calls `solve`."""
    losses: list[str] = []
    left: Result | None = None
    furthest, vain = -1, 0
    while True:
        try:
            result = attempt(checkpoint)
            return replace(result, message=result.message + _losses_note(losses))
        except WorkerLost as lost:
            left = lost.left or left
            if checkpoint is None or on_loss == "stop":
                return _stopped(lost, left, "")
            if spmd:
                raise WorkerLost(_start_again(lost, checkpoint)) from lost
            at = -1 if lost.saved is None else lost.saved
            furthest, vain = max(at, furthest), 1 if at > furthest else vain + 1
            if vain > checkpoint.restarts:
                return _stopped(lost, left, f" It began again {checkpoint.restarts} times and got no further.")
            if at >= 0 and checkpoint.resume is False:  # the checkpoint is now ours
                checkpoint = replace(checkpoint, resume=True)
            where = f" from iteration {furthest}" if furthest >= 0 else ""
            losses.append(f"{sentence(lost)} The run began again{where}.")


def _stopped(lost: WorkerLost, left: Result | None, more: str) -> Result:
    if left is None:
        raise lost
    return replace(left, message=left.message + more)


def _losses_note(losses: list[str]) -> str:
    if not losses:
        return ""
    earlier = len(losses) - SHOWN_LOSSES
    before = "" if earlier <= 0 else f"Workers were lost {count(len(losses), 'time')}; of late: "
    return f" ({before}{' '.join(losses[-SHOWN_LOSSES:])})"


def _start_again(lost: WorkerLost, checkpoint: Checkpoint) -> str:
    again = f"{sentence(lost)} All processes have to be started again, as torchrun --max-restarts does"
    if lost.saved is None:
        return f"{again}."
    return f"{again}; the same call goes on from iteration {lost.saved}, saved in {Path(checkpoint.folder).absolute()}."
