"""A conformance suite for methods: the optimum, the same run anywhere, immutable states."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from copy import deepcopy
from itertools import pairwise
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from auqadmm.api import solve
from auqadmm.checkpoint.settings import Checkpoint
from auqadmm.core.result import Result
from auqadmm.core.solve import Iteration, Method
from auqadmm.local import NewtonCG
from auqadmm.problem import L2, ElasticNet, LeastSquares, Logistic, NonNegative, Problem
from auqadmm.testing.cases import Shards, Suite, close, need

ENDLESS: dict[str, Any] = {"abs_tol": 0.0, "rel_tol": 0.0, "certificate_tol": 0.0}


class MethodSuite(Suite):
    """Laws of a method: `class TestMine(MethodSuite): method = MyMethod()`.

    Attributes
    ----------
    method
        The method to check: anything that `solve(method=…)` takes.
    rounds
        Reductions per iteration, as the method declares; None: they vary.
    smooth
        Does the method refuse regularizers with kinks?
    max_iter
        In which it must converge.
    tolerance
        Of iterates on other engines.

    Examples
    --------
    >>> import auqadmm as aq
    >>> class TestC(aq.testing.MethodSuite):
    ...     method = aq.methods.C(rho=1.0)
    >>> TestC().checks()["reaches the optimum"]()
    """

    method: Method | None = None
    rounds: int | None = 1
    smooth: bool = False
    max_iter: int = 3000
    tolerance: float = 1e-9

    # ------------------------------------------------------------------ problems
    def blocks(self, labels: bool = False) -> list[tuple[np.ndarray, np.ndarray]]:
        """Four blocks of uneven height, whose own optima are far apart."""
        rng = np.random.default_rng(8)
        truth, blocks = rng.normal(size=5), []
        for rows in (14, 9, 20, 11):
            X = rng.normal(size=(rows, 5)) * rng.uniform(0.7, 1.5, size=5)
            y = X @ (truth + rng.normal(size=5)) + 0.3 * rng.normal(size=rows)
            blocks.append((X, np.where(y > 0, 1.0, -1.0) if labels else y))
        return blocks

    def problems(self) -> dict[str, Problem]:
        problems = {
            "ridge": Problem(LeastSquares(), L2(5.0), self.blocks()),
            "logistic": Problem(Logistic(), L2(2.0), self.blocks(labels=True), intercept=True),
        }
        if not self.smooth:
            problems["elastic net"] = Problem(LeastSquares(), ElasticNet(4.0, 5.0), self.blocks())
            problems["not negative"] = Problem(LeastSquares(), NonNegative(), self.blocks())
        return problems

    def run(self, problem: Problem, engine: Any = "local", **options: Any) -> Result:
        # a copy: state cached in the object would be missing in another process
        return solve(problem, deepcopy(self.under_test("method")), engine, **options)

    def watched(self, problem: Problem, engine: Any, **options: Any) -> tuple[Result, list[Tensor]]:
        path: list[Tensor] = []

        def note(event: Iteration) -> None:
            path.append(event.state.shared.v.clone())

        return self.run(problem, engine, callbacks=[note], local=exact(problem), **options), path

    # ------------------------------------------------------------------ the solution
    def test_reaches_the_optimum(self) -> None:
        """Against scipy, and the gap that the run certifies."""
        for name, problem in self.problems().items():
            v, best = optimum(problem)
            result = self.run(problem, certificate_tol=1e-6, max_iter=self.max_iter)
            need(str(result.status) in ("converged", "rounding"), f"{name}: {result.message}")
            off = (result.objective - best) / max(1.0, abs(best))
            need(off <= 1e-5, f"{name}: the objective is {result.objective:.9g}, scipy finds {best:.9g}")
            close(f"{name}: v", result.v, v, 1e-3, 1.0 + float(v.abs().max()))

    def test_one_block_and_a_block_without_rows(self) -> None:
        (X, y), empty = self.blocks()[0], (np.zeros((0, 5)), np.zeros(0))
        for blocks in ([(X, y)], [(X, y), empty]):
            problem = Problem(LeastSquares(), L2(1.0), blocks)
            result = self.run(problem, certificate_tol=1e-6, max_iter=self.max_iter)
            best = np.linalg.solve(X.T @ X + np.eye(5), X.T @ y)
            need(str(result.status) in ("converged", "rounding"), result.message)
            close("v", result.v[:, 0], torch.from_numpy(best), 1e-3)

    def test_a_warm_start_at_the_optimum_stays_there(self) -> None:
        problem = self.problems()["ridge"]
        v, best = optimum(problem)
        result = self.run(problem, warm_start=v, certificate_tol=1e-6, max_iter=self.max_iter)
        need(str(result.status) in ("converged", "rounding"), result.message)
        need(result.objective - best <= 1e-5 * max(1.0, abs(best)), "a run from the optimum ends elsewhere")

    # ------------------------------------------------------------------ the same run
    def test_the_same_iterates_however_blocks_are_placed(self) -> None:
        for name, problem in self.problems().items():
            ours, path = self.watched(problem, "local", max_iter=8, **ENDLESS)
            for count in (2, 4):
                theirs, other = self.watched(problem, Shards(count), max_iter=8, **ENDLESS)
                need(len(path) == len(other), f"{name}: {len(other)} iterations in {count} shards, not {len(path)}")
                for k, (a, b) in enumerate(zip(path, other, strict=True)):
                    scale = max(1.0, float(a.abs().max()))
                    close(f"{name}: v of iteration {k + 1} in {count} shards", b, a, self.tolerance, scale)
                for column in ("rounds", "bytes_up", "bytes_down"):
                    one, many = ours.history.column(column), theirs.history.column(column)
                    need(one == many, f"{name}: {column} {many} in {count} shards, {one} in one")

    def test_deterministic(self) -> None:
        for name, problem in self.problems().items():
            first, second = (self.watched(problem, "local", max_iter=6, seed=3, **ENDLESS)[1] for _ in range(2))
            same = all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
            need(same, f"{name}: two runs of the same problem differ")

    def test_a_run_goes_on_from_its_checkpoint(self) -> None:
        """To the same bits."""
        for name, problem in self.problems().items():
            whole = self.run(problem, max_iter=7, local=exact(problem), **ENDLESS)
            with TemporaryDirectory() as folder:
                for end in (3, 7):
                    saving = Checkpoint(folder, resume="auto")
                    resumed = self.run(problem, max_iter=end, local=exact(problem), checkpoint=saving, **ENDLESS)
            need(resumed.n_iter == whole.n_iter, f"{name}: {resumed.n_iter} iterations instead of {whole.n_iter}")
            need(torch.equal(resumed.v, whole.v), f"{name}: a run that was resumed gives other bits")
            if whole.lam is not None:
                need(resumed.lam is not None and torch.equal(resumed.lam, whole.lam), f"{name}: other multipliers")
            for column in ("rounds", "bytes_up", "bytes_down"):
                a, b = resumed.history.column(column), whole.history.column(column)
                need(a == b, f"{name}: {column} {a} after resuming, {b} without")

    def test_states_are_frozen(self) -> None:
        """Nothing writes into the state of an earlier iteration."""
        kept: list[tuple[Any, list[Tensor]]] = []

        def keep(event: Iteration) -> None:
            shared, blocks = event.state.shared, event.state.blocks
            need(dataclasses.is_dataclass(shared), "shared is no dataclass")
            kept.append(((shared, blocks), [x.clone() for x in tensors((shared, blocks))]))

        for name, problem in self.problems().items():
            self.run(problem, max_iter=6, callbacks=[keep], **ENDLESS)
            for k, (state, before) in enumerate(kept):
                after = list(tensors(state))
                same = len(after) == len(before) and all(map(_same, after, before))
                need(same, f"{name}: the state of iteration {k + 1} was written to")
            kept.clear()

    # ------------------------------------------------------------------ cost
    def test_rounds_per_iteration_are_as_declared(self) -> None:
        if self.rounds is None:
            return
        for name, problem in self.problems().items():
            result = self.run(problem, max_iter=8, stop="residuals", **ENDLESS)
            spent = result.history.column("rounds")[:-1]  # the last row includes the cost of ending the run
            steps = {b - a for a, b in pairwise(spent)}
            need(steps == {self.rounds}, f"{name}: {sorted(steps)} rounds per iteration, declared are {self.rounds}")


def exact(problem: Problem) -> Any:
    """A local solver that is exact to rounding."""
    return "direct" if problem.loss.unit_curvature else NewtonCG(tol=1e-13)


def _same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and bool(torch.equal(a, b) or torch.equal(a.nan_to_num(), b.nan_to_num()))


def tensors(value: object) -> Iterator[Tensor]:
    """All tensors of nested frozen state, in a fixed order: fields, not cached values."""
    if isinstance(value, Tensor):
        yield value
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for f in dataclasses.fields(value):
            if f.name not in ("setup", "solver_memory"):  # they belong to the run and to the local solver
                yield from tensors(getattr(value, f.name))
    elif isinstance(value, Mapping):
        for key in value:
            yield from tensors(value[key])
    elif isinstance(value, tuple | list):
        for part in value:
            yield from tensors(part)


def optimum(problem: Problem) -> tuple[Tensor, float]:
    """The minimiser v (m, 1) and F, by scipy's L-BFGS-B: v = p − q with p, q ≥ 0 makes l1 linear."""
    shard, g = problem.shard(torch.float64, torch.device("cpu")), problem.g
    m, inner = shard.shape[1], problem.regularizer
    l1 = float(getattr(inner, "l1", 0.0))
    l2, free = float(inner.strong_convexity), int(problem.intercept)

    def objective(x: np.ndarray) -> tuple[float, np.ndarray]:
        v = torch.from_numpy(x[:m] - x[m:])[:, None]
        point = shard.linearize(shard.expand(v))
        ridge, sparse = np.full(m, l2), np.full(m, l1)
        if free:
            ridge[-1] = sparse[-1] = 0.0
        w = v[:, 0].numpy()
        slope = point.grad.sum(0)[:, 0].numpy() + ridge * w
        value = float(point.value.sum()) + 0.5 * float(ridge @ w**2) + float(sparse @ (x[:m] + x[m:]))
        return value, np.concatenate([slope + sparse, sparse - slope])

    top = [(0.0, None)] * m + [(0.0, 0.0 if isinstance(inner, NonNegative) else None)] * m
    options = {"maxiter": 20000, "maxfun": 50000, "ftol": 1e-16, "gtol": 1e-10, "maxcor": 30}
    minimum = minimize(objective, np.zeros(2 * m), jac=True, method="L-BFGS-B", bounds=top, options=options)
    v = torch.from_numpy(minimum.x[:m] - minimum.x[m:])[:, None]
    return v, float(minimum.fun) if free else float(shard.linearize(shard.expand(v)).value.sum() + g.value(v))
