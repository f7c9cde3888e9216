"""Conformance suites: the laws that user-defined parts must obey.

    class TestMyLoss(LossSuite):                loss = MyLoss()                  f_j, its derivatives, its claims
    class TestMyRegularizer(RegularizerSuite):  regularizer = MyRegularizer()    g, its proximal map, its claims
    class TestMyMethod(MethodSuite):            method = MyMethod()              optimum, engines, checkpoints, rounds
    class TestMyEngine(EngineTests):            engine = MyEngine                everything below

Pytest collects such classes; without it `TestMyLoss().verify()` raises an AssertionError that names what failed.

Engines: the same problem, its blocks placed anywhere: the same solution at the same cost.

    EngineSuite("torch").verify()               in every process that `torchrun` started
    EngineSuite(lambda: MyEngine(…)).verify()   raises an AssertionError that names every check that failed

It needs no test framework; with one, `suite.checks()` gives the checks by name. Each of them solves small problems on
the engine and with `engine="local"`, and compares iterates, status, rounds and bytes. Blocks are made by a function
`blocks(rank, world)`, called by every process or worker with blocks; some get more than others, some none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor

from auqadmm import engines
from auqadmm.api import solve
from auqadmm.baselines import FISTA
from auqadmm.checkpoint.settings import Checkpoint
from auqadmm.core.result import Result
from auqadmm.engines import LocalEngine
from auqadmm.local import NewtonCG
from auqadmm.methods import AUQ, AUQLR
from auqadmm.problem import L2, LeastSquares, Poisson, Problem, Zero
from auqadmm.testing.cases import (
    OnFire,
    Shards,
    Share,
    Suite,
    after_three,
    ends,
    flags,
    keep,
    kept,
    missing_file,
    need,
    note,
    numbers,
    press,
    problems,
    ragged,
    rates,
    regression,
    total,
)
from auqadmm.testing.losses import LossSuite
from auqadmm.testing.methods import MethodSuite
from auqadmm.testing.regularizers import RegularizerSuite

__all__ = ["EngineSuite", "EngineTests", "LossSuite", "MethodSuite", "RegularizerSuite", "Shards"]

METHODS = ("c-admm", "rb-admm", "ac-admm", "uq-admm", "auq-admm", "auq-lr", "lbfgs", "lbfgs-w", "owl-qn", "fista")
# a first L measured as a difference of gradients has half the digits only
OBJECTS = {"fista": FISTA(lipschitz=10.0)}
DIFFERENCE_TOLERANCE = 1e-6  # of quantities from differences of iterates: the weights of ac-admm
SMOOTH = ("lbfgs", "lbfgs-w")  # refuse an l1 term
TIGHT = NewtonCG(tol=1e-13)
ENDLESS: dict[str, Any] = {"abs_tol": 0.0, "rel_tol": 0.0, "certificate_tol": 0.0}
CPU = torch.device("cpu")

# numbers sent per iteration without a certificate, n unknowns: (rounds, up, down); docs/architecture.md
BUDGET: Mapping[str, Callable[[int], tuple[int, int, int]]] = {
    "c-admm": lambda n: (1, n + 8, n),
    "uq-admm": lambda n: (1, n + 8, n),
    "auq-admm": lambda n: (1, 2 * n + 8, n),
    "rb-admm": lambda n: (2, n + 8, n),
    "auq-lr": lambda n: (1, n + 8, n),
    "global": lambda n: (3, 2 * n + 10, n + 2),
}


# ---------------------------------------------------------------------- the suite
class EngineSuite(Suite):
    """Laws of an engine: the same problem, its blocks placed anywhere, has the same solution at the same cost.

    Parameters
    ----------
    engine
        A name, or a function that makes an `engine` for `solve`.
    tolerance
        Of iterates, relative, against those of one process.

    Examples
    --------
    >>> import auqadmm as aq
    >>> suite = aq.testing.EngineSuite("local")
    >>> suite.checks()["primitives"]()
    """

    def __init__(self, engine: str | Callable[[], Any], tolerance: float = 1e-10) -> None:
        self.make = (lambda: engine) if isinstance(engine, str) else engine
        self.tolerance = tolerance

    def checks(self) -> dict[str, Callable[[], None]]:
        """Every check by name, in a fixed order: processes that run the same program must run the same checks.

        Returns
        -------
        checks
            Functions without arguments, which raise where the engine differs from one process.
        """
        checks: dict[str, Callable[[], None]] = {}
        for name in problems():
            for method in METHODS:
                if name != "rates" and (name != "elastic-net" or method not in SMOOTH):
                    checks[f"iterates {method} {name}"] = partial(self.same_iterates, method, name, 0)
        for method in ("rb-admm", "auq-lr", "owl-qn"):
            checks[f"iterates {method}, nothing in the first process"] = partial(
                self.same_iterates, method, "elastic-net", 1
            )
        for name in problems():
            checks[f"answer {name}"] = partial(self.same_answer, name)
        for method in BUDGET:
            checks[f"budget {method}"] = partial(self.budget, method)
        checks["global range"] = partial(self.same_iterates, AUQ(normalize="global"), "multinomial", 0)
        checks["random start"] = partial(self.same_iterates, "c-admm", "elastic-net", 0, start="random")
        checks["float32"] = self.single_precision
        checks["warm start"] = self.warm_start
        for method in ("rb-admm", "auq-lr"):
            checks[f"checkpoint {method}"] = partial(self.checkpoint, method)
        checks["primitives"] = self.primitives
        checks["primitives, nothing in the first process"] = partial(self.primitives, 1)
        checks["inference"] = self.inference
        checks["callback"] = self.callback
        checks["interrupt"] = self.interrupt
        checks["errors"] = self.errors
        return checks

    # ------------------------------------------------------------------ the same solution
    def same_iterates(self, method: Any, name: str, skip: int, **options: Any) -> None:
        """Every iterate, the multipliers and weights at the end, rounds and bytes."""
        options = {"max_iter": 8, "local": TIGHT, **ENDLESS, **options}
        method = OBJECTS.get(method, method) if isinstance(method, str) else method
        ours, path = self._watched(problems(skip)[name], method, self.make(), options)
        theirs, expected = self._watched(problems()[name], method, "local", options)
        need(len(path) == len(expected), f"{len(path)} iterations instead of {len(expected)}")
        for k, (a, b) in enumerate(zip(path, expected, strict=True)):
            self._close(f"v of iteration {k + 1}", a, b)
        self._same_ending(ours, theirs)

    def inference(self) -> None:
        """Standard errors, with and without intercepts of sites, and the estimates of sites."""
        for own in (False, True):
            problem = Problem(Poisson(), Zero(), Share(rates()), intercept=not own, site_intercepts=own)
            ours, theirs = (
                solve(problem, "newton", engine, certificate_tol=1e-14).inference(sites=True)
                for engine in (self.make(), "local")
            )
            for name in ("coef", "se", "site_coef", "site_se"):
                self._close(name, torch.from_numpy(getattr(ours, name)), torch.from_numpy(getattr(theirs, name)), 1e-7)
            need(ours.rounds == theirs.rounds, f"{ours.rounds} rounds instead of {theirs.rounds}")

    def same_answer(self, name: str) -> None:
        """With the default settings: status, iterations, message, model."""
        ours, theirs = solve(problems()[name], engine=self.make()), solve(problems()[name])
        need(ours.message == theirs.message, f"{ours.message!r} instead of {theirs.message!r}")
        need(repr(ours.classes) == repr(theirs.classes), f"classes {ours.classes} instead of {theirs.classes}")
        self._close("v", ours.v, theirs.v, 1e-7)
        self._same_ending(ours, theirs, 1e-6)

    def budget(self, method: str) -> None:
        """Rounds and bytes per iteration are what the documentation says."""
        # acceleration and renewed weights add a handful of scalars to auq-lr, and no round
        special: dict[str, Any] = {"global": AUQ(normalize="global"), "auq-lr": AUQLR(memory=0, refresh=())}
        chosen = special.get(method, method)
        problem = problems()["multinomial"]
        run = solve(problem, chosen, self.make(), max_iter=8, stop="residuals", **ENDLESS)
        n = run.v.numel()
        rows = run.history.rows[2:-1]  # the last one includes the cost of ending the run
        for before, after in pairwise(rows):
            spent = (
                after.rounds - before.rounds,
                (after.bytes_up - before.bytes_up) // 8,
                (after.bytes_down - before.bytes_down) // 8,
            )
            need(spent == BUDGET[method](n), f"{spent} instead of {BUDGET[method](n)}")

    def single_precision(self) -> None:
        options: dict[str, Any] = {"max_iter": 5, "dtype": "float32", **ENDLESS}
        ours, _ = self._watched(problems()["elastic-net"], "uq-admm", self.make(), options)
        theirs, _ = self._watched(problems()["elastic-net"], "uq-admm", "local", options)
        self._close("v", ours.v, theirs.v, 1e-4)

    def warm_start(self) -> None:
        """A result of one engine continues on the other."""
        problem = problems()["elastic-net"]
        options: dict[str, Any] = {"max_iter": 4, "local": TIGHT, **ENDLESS}
        start = solve(problem, "ac-admm", **options)
        ours = solve(problem, "ac-admm", self.make(), warm_start=start, **options)
        theirs = solve(problem, "ac-admm", warm_start=start, **options)
        self._close("v", ours.v, theirs.v)
        back = solve(problem, "ac-admm", warm_start=ours, **options)
        self._close("v after another run", back.v, solve(problem, "ac-admm", warm_start=theirs, **options).v)

    def checkpoint(self, method: str) -> None:
        """A stopped run resumes: to the same bits on this engine, to rounding if it began in one process."""
        problem = problems()["elastic-net"]
        options: dict[str, Any] = {"local": TIGHT, **ENDLESS}
        whole = solve(problem, method, self.make(), max_iter=8, **options)
        with TemporaryDirectory() as folder:  # every process has one; only the first's is used
            solve(problem, method, self.make(), max_iter=3, checkpoint=Checkpoint(folder), **options)
            ours = solve(problem, method, self.make(), max_iter=8, checkpoint=Checkpoint(folder), **options)
        need(bool(torch.equal(ours.v, whole.v)), "a run that was resumed gives other bits")
        self._same_ending(ours, whole)
        with TemporaryDirectory() as folder:
            solve(problem, method, max_iter=3, checkpoint=Checkpoint(folder), **options)
            ours = solve(problem, method, self.make(), max_iter=8, checkpoint=Checkpoint(folder), **options)
        need("refused" not in ours.message, ours.message)
        self._close("v after a run in one process", ours.v, whole.v)
        self._same_ending(ours, whole)

    # ------------------------------------------------------------------ the primitives
    def primitives(self, skip: int = 0) -> None:
        problem = Problem(LeastSquares(), L2(1.0), Share(regression(), skip))
        place = engines.resolve(self.make())
        opened, base = place.place(problem, torch.float64, CPU), LocalEngine(problem.placed().shard(torch.float64, CPU))
        try:
            need(opened.names == base.names, f"{opened.names}")
            need(opened.census.rows == base.census.rows, f"{opened.census.rows}")
            for name, x in base.map_sum(total, None, torch.ones(3))[1].items():
                self._close(f"map_sum {name}", opened.map_sum(total, None, torch.ones(3))[1][name], x)
            extremes = opened.map_minmax(ends, None, None)[1]["ends"]
            self._close("map_minmax", extremes, torch.tensor([0.0, 4.0]))
            for name, x in base.map_concat(ragged, None).items():
                self._close(f"map_concat {name}", opened.map_concat(ragged, None)[name], x)
                kind = opened.map_concat(ragged, None)[name].dtype
                need(kind == x.dtype, f"map_concat {name} has {kind} instead of {x.dtype}")
            self._close("gather", opened.gather(numbers, None), torch.arange(5.0))
            need(opened.gather(flags, None).tolist() == [False, True, True, True, True], "gather of truth values")
            need(opened.first(lambda: b"one for all") == b"one for all", "first")
            need(opened.agreed(2.0) == 2.0, "agreed")
            x = torch.arange(10.0, dtype=torch.float64).reshape(5, 2)
            blocks, _ = opened.map_sum(keep, opened.scatter(x), None)
            self._close("gather of scatter", opened.gather(kept, blocks), x)
        finally:
            opened.close()

    # ------------------------------------------------------------------ stops and errors
    def callback(self) -> None:
        problem = problems()["multinomial"]
        run = solve(problem, "c-admm", self.make(), callbacks=[after_three], **ENDLESS)
        need((run.status, run.n_iter) == ("interrupted", 3), run.message)

    def interrupt(self) -> None:
        problem = problems()["multinomial"]
        run = solve(problem, "c-admm", self.make(), callbacks=[press], local=TIGHT, **ENDLESS)
        need((run.status, run.n_iter) == ("interrupted", 3), run.message)
        self._close("v", run.v, solve(problem, "c-admm", max_iter=3, local=TIGHT, **ENDLESS).v)

    def errors(self) -> None:
        """One sentence, in every process, that names the block."""
        good = regression()
        X, y = good[3]
        broken = X.copy()
        broken[2, 1] = np.nan
        cases: list[tuple[Sequence[Any], str]] = [
            ([*good[:3], (broken, y), good[4]], "block 3: X[row 2, column 1] is nan"),
            ([*good[:3], (X[:, :4], y), good[4]], "block 3 has 4 features but block 0 has 5"),
            ([*good[:4], (good[4][0], np.full(7, np.inf))], "block 4: y[0] is inf"),
            ([*good[:4], "a block"], "block 4 must be a tuple"),
        ]
        for blocks, words in cases:
            self._refused(words, Problem(LeastSquares(), L2(1.0), Share(tuple(blocks))))
        self._refused("no such file", Problem(LeastSquares(), L2(1.0), missing_file))
        self._refused("on fire", problems()["elastic-net"], local=OnFire())

    # ------------------------------------------------------------------ comparisons
    def _watched(self, problem: Problem, method: Any, engine: Any, options: Any) -> tuple[Result, list[Tensor]]:
        path: list[Tensor] = []
        return solve(problem, method, engine, callbacks=[partial(note, path)], **options), path

    def _same_ending(self, ours: Result, theirs: Result, tolerance: float | None = None) -> None:
        need((ours.status, ours.n_iter) == (theirs.status, theirs.n_iter), f"{ours.status} after {ours.n_iter}")
        for column in ("rounds", "rounds_verdict", "reductions", "bytes_up", "bytes_down", "failed_blocks"):
            a, b = ours.history.column(column), theirs.history.column(column)
            need(a == b, f"{column} {a} instead of {b}")
        known = ours.certificate.evidence
        need(known == theirs.certificate.evidence, f"{known!r} instead of {theirs.certificate.evidence!r}")
        if theirs.lam is not None:
            assert ours.lam is not None
            self._close("lam", ours.lam, theirs.lam, tolerance)
        if theirs.weights is not None:
            assert ours.weights is not None
            self._close("weights", ours.weights.diagonal(), theirs.weights.diagonal(), DIFFERENCE_TOLERANCE)

    def _close(self, what: str, a: Tensor, b: Tensor, tolerance: float | None = None) -> None:
        need(a.shape == b.shape, f"{what} has shape {tuple(a.shape)} instead of {tuple(b.shape)}")
        limit = self.tolerance if tolerance is None else tolerance
        off = float((a - b).abs().max()) if a.numel() else 0.0
        need(off <= limit * max(1.0, float(b.abs().max())), f"{what} is off by {off:.1e}")

    def _refused(self, words: str, problem: Problem, **options: Any) -> None:
        try:
            solve(problem, "c-admm", self.make(), **options)
        except Exception as error:
            need(words in str(error), f"{str(error)!r} does not say {words!r}")
        else:
            raise AssertionError(f"nothing said {words!r}")


class EngineTests(Suite):
    """The checks of `EngineSuite` as methods, for pytest: `class TestMine(EngineTests): engine = MyEngine`.

    Attributes
    ----------
    engine
        A name, or a class (or `staticmethod`) that makes an `engine` for `solve`.
    tolerance
        Of iterates, relative, against those of one process.

    Examples
    --------
    >>> import auqadmm as aq
    >>> class TestShards(aq.testing.EngineTests):
    ...     engine = aq.testing.Shards
    >>> TestShards().test_primitives()
    """

    engine: Any = None
    tolerance: float = 1e-10

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name in EngineSuite("local").checks():
            setattr(cls, "test_" + re.sub(r"\W+", "_", name), _one_check(name))


def _one_check(name: str) -> Callable[[EngineTests], None]:
    """One method per check: pytest collects functions only."""

    def check(self: EngineTests) -> None:
        EngineSuite(self.under_test("engine"), self.tolerance).checks()[name]()

    return check


def __dir__() -> list[str]:
    return sorted(__all__)
