"""Methods on one problem, each run until it is within the same relative objective gap of the same optimum.

    optimum   from scipy or scikit-learn where they can solve it (`reference`); else from AUQ-LR, run until its
              certificate proves it far closer than the requested gap
    run       ends when (F(v) − F*) / |F*| is at most the gap, at a budget, or when the method cannot solve the problem

Evaluating an iterate is free, and no verdict is run: only the method's own rounds count.

A method's own stopping test says little about another's (S3): therefore the gap, with F* from a solver other than
the methods compared:

    g smooth (Zero, L2)                         scipy's L-BFGS-B, then Newton steps on the pooled problem
    g = l1‖v‖₁ + l2/2‖v‖², least squares        scikit-learn's coordinate descent on the pooled rows

Both solve the pooled problem, without consensus. The solution is certified (S10) before it is returned.

A problem to compare on: the digits that come with scikit-learn, one class per worker, the hardest split, and nothing to
download. 1797 images of 8×8 pixels; worker j has the images of digit j only, so no worker can fit anything useful
alone. Two models of S11, with means over each worker's rows:

    multinomial    Σ_j mean log-loss + ½‖v‖²                            640 unknowns
    elastic net    Σ_j mean ½(xᵀv − digit)² + 0.01‖v‖₁ + 0.005‖v‖²       64 unknowns

Shapes: N blocks, m features (the intercept's row is the last), C columns; v (m, C), x = v flat.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.optimize
import scipy.sparse
import torch
from scipy.sparse.linalg import LinearOperator, cg
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import ElasticNet as PooledElasticNet
from torch import Tensor

from auqadmm import baselines, methods
from auqadmm.api import solve
from auqadmm.blocks.shard import Shard
from auqadmm.core.history import History, Row
from auqadmm.core.reduce import Reduce
from auqadmm.core.result import Result
from auqadmm.core.solve import Callback, Iteration
from auqadmm.core.state import Status
from auqadmm.engines import LocalEngine
from auqadmm.methods.auto import Facts, estimates
from auqadmm.problem import L1, L2, ElasticNet, InputError, LeastSquares, Multinomial, Problem, Zero
from auqadmm.problem.ingest import read_reals
from auqadmm.verdict.duality import Certifier

if TYPE_CHECKING:
    from auqadmm.core.solve import Method

# ---------------------------------------------------------------------- digits
IMAGE = (8, 8)
TEN_DIGITS = 10  # workers, one per digit


def digits_blocks() -> list[tuple[np.ndarray, np.ndarray]]:
    """Ten blocks (X, y), block j all images of digit j: X (n_j, 64) with pixels in [0, 1], y the digit."""
    X, y = load_digits(return_X_y=True)
    return [(X[y == digit] / 16.0, y[y == digit]) for digit in range(TEN_DIGITS)]


def digits_multinomial() -> Problem:
    """Softmax regression of the digit, g = ½‖v‖²."""
    return Problem(Multinomial(reduction="mean"), L2(1.0), digits_blocks())


def digits_elastic_net() -> Problem:
    """Linear regression of the digit as a number, g = 0.01‖v‖₁ + 0.005‖v‖²."""
    blocks = [(X, y.astype(float)) for X, y in digits_blocks()]
    return Problem(LeastSquares(reduction="mean"), ElasticNet(1e-2, 1e-2), blocks)


# ---------------------------------------------------------------------- the optimum, by other software
KKT_TOL = 1e-8  # relative residual at which a solution counts as the optimum


@dataclass(frozen=True, eq=False)
class Reference:
    """A certified optimum: v (m, C), its objective, its relative KKT residual."""

    v: Tensor
    objective: float
    kkt: float


def reference(problem: Problem) -> Reference:
    """The optimum of a problem, from scipy or scikit-learn.

    Parameters
    ----------
    problem
        Any loss with `Zero` or `L2`, or `LeastSquares` with `L1` or `ElasticNet`.

    Returns
    -------
    Reference
        With a relative KKT residual of at most 1e-8.
    """
    strengths = _strengths(problem)
    shard = problem.shard(torch.float64, torch.device("cpu"))
    if strengths[0] == 0:
        v = _smooth(problem, shard, strengths[1])
    elif isinstance(problem.loss, LeastSquares):
        v = _coordinate_descent(problem, *strengths)
    else:
        raise InputError(
            f"No reference solver for {type(problem.loss).__name__} with {type(problem.regularizer).__name__}: "
            "with an l1 term the loss must be LeastSquares."
        )
    certificate = Certifier(Reduce(LocalEngine(shard)), problem.g, torch.zeros_like(v)).certify(v)
    if not certificate.kkt <= KKT_TOL:  # also refuses NaN
        raise RuntimeError(
            f"The reference solver stopped at a KKT residual of {certificate.kkt:.1e}, above {KKT_TOL:.0e}: "
            "the problem is too badly conditioned or has no minimum; rescale the features or regularise more."
        )
    return Reference(v, certificate.objective, certificate.kkt)


def _strengths(problem: Problem) -> tuple[float, float]:
    """(l1, l2) of g = l1‖v‖₁ + l2/2‖v‖²."""
    match problem.regularizer:
        case Zero():
            return 0.0, 0.0
        case L1(strength):
            return strength, 0.0
        case L2(strength):
            return 0.0, strength
        case ElasticNet(l1, l2):
            return l1, l2
        case other:
            raise InputError(f"No reference solver for {type(other).__name__}; known are Zero, L1, L2 and ElasticNet.")


# ---------------------------------------------------------------------- smooth g
class _Pooled:
    """F(x) = Σ_j f_j(x) + l2/2‖x‖² and its derivatives in scipy's form; an intercept is not penalised."""

    def __init__(self, problem: Problem, shard: Shard, l2: float) -> None:
        census = problem.census
        self.shard, self.shape, self.size = shard, (census.features, census.columns), census.unknowns
        penalty = np.full(self.shape, l2)
        if census.intercept:
            penalty[-1] = 0.0
        self.penalty = penalty.ravel()

    def everywhere(self, x: np.ndarray) -> Tensor:
        return self.shard.expand(torch.from_numpy(x.reshape(self.shape)))

    def value_and_grad(self, x: np.ndarray) -> tuple[float, np.ndarray]:
        point = self.shard.linearize(self.everywhere(x))
        value = float(point.value.sum()) + 0.5 * float(self.penalty @ x**2)
        return value, point.grad.sum(0).numpy().ravel() + self.penalty * x

    def newton_step(self, x: np.ndarray, grad: np.ndarray) -> np.ndarray:
        point = self.shard.linearize(self.everywhere(x))

        def product(p: np.ndarray) -> np.ndarray:
            return point.hvp(self.everywhere(p)).sum(0).numpy().ravel() + self.penalty * p.ravel()

        H = LinearOperator((self.size, self.size), matvec=product, dtype=np.float64)
        return cg(H, -grad, rtol=1e-10, maxiter=10 * self.size)[0]


def _smooth(problem: Problem, shard: Shard, l2: float) -> Tensor:
    F = _Pooled(problem, shard, l2)
    options = {"maxiter": 5000, "maxfun": 10000, "maxcor": 30, "ftol": 1e-12, "gtol": 1e-6}
    start = np.zeros(F.size)
    x = scipy.optimize.minimize(F.value_and_grad, start, jac=True, method="L-BFGS-B", options=options).x
    # L-BFGS-B compares function values, which are accurate to half the digits only; Newton steps, taken
    # as long as they shorten the gradient, find the other half
    grad = F.value_and_grad(x)[1]
    for _ in range(10):
        tried = x + F.newton_step(x, grad)
        new = F.value_and_grad(tried)[1]
        if not np.linalg.norm(new) < 0.5 * np.linalg.norm(grad):
            break
        x, grad = tried, new
    return torch.from_numpy(x.reshape(F.shape))


# ---------------------------------------------------------------------- least squares with an l1 term
def _coordinate_descent(problem: Problem, l1: float, l2: float) -> Tensor:
    X, y, c = _pooled_rows(problem)
    # scikit-learn minimises Σ c_i r_i² / (2 Σ c_i) + alpha·(l1_ratio‖v‖₁ + (1 − l1_ratio)/2‖v‖²)
    model = PooledElasticNet(
        alpha=(l1 + l2) / c.sum(),
        l1_ratio=l1 / (l1 + l2),
        fit_intercept=problem.intercept,
        tol=1e-14,
        max_iter=200_000,
    )
    with warnings.catch_warnings():
        # its own gap test can fall short by rounding alone; the certificate is what decides
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(X, y, sample_weight=c)
    coef = np.append(model.coef_, model.intercept_) if problem.intercept else model.coef_
    return torch.from_numpy(np.asarray(coef, dtype=float)).reshape(-1, 1)


def _pooled_rows(problem: Problem) -> tuple[np.ndarray | scipy.sparse.csr_matrix, np.ndarray, np.ndarray]:
    """All rows with their targets and their weights c_i in Σ_i c_i ½(x_iᵀv − y_i)²."""
    blocks, reduction = problem.blocks, problem.loss.reduction
    scale = {
        "sum": lambda b: 1.0,
        "mean": lambda b: b.weight.sum(),
        "pooled": lambda b: problem.census.weight_total,
    }
    # a block of weight 0 adds nothing
    c = [b.weight / (scale[reduction](b) or 1.0) for b in blocks]
    mixed = any(scipy.sparse.issparse(b.X) for b in blocks)
    X = scipy.sparse.vstack([b.X for b in blocks], format="csc") if mixed else np.vstack([b.X for b in blocks])
    y = np.concatenate([read_reals(b.name, b.y) for b in blocks])
    return X, y, np.concatenate(c)


# ---------------------------------------------------------------------- methods at equal gap
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
