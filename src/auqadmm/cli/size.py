"""`--family negative-binomial` without `--parameter`: k is the most likely one, found by a fit for every k tried."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from auqadmm.core.result import Result
from auqadmm.estimators.size_search import SizeSearch
from auqadmm.files.training import Prepared, Task
from auqadmm.problem import InputError
from auqadmm.problem.named_family import NamedFamily


@dataclass(frozen=True)
class Size:
    """k of the negative binomial, with variance μ + μ²/k; its standard error, None where it has none; and the rounds
    that all fits took."""

    value: float
    se: float | None
    rounds: int

    def words(self) -> str:
        error = "" if self.se is None else f" (std err {self.se:.4g})"
        return f"k {self.value:.6g}{error}, the most likely one; {self.rounds} rounds to find it"


def with_size(prepared: Prepared, task: Task, solve: Callable[..., Result], together: bool) -> tuple[Task, Result, int]:
    """The task with the most likely k, its result, and the rounds of all fits."""

    def sized(k: float) -> Task:
        assert task.family is not None
        return replace(task, family=NamedFamily.of(task.family.name, task.family.link, k))

    def fitted(k: float, last: Result | None) -> Result:
        problem = prepared.problem(sized(k), together)
        return solve(problem, warm_start=None if last is None else last.v, inference=True)

    k, result, rounds = SizeSearch(fitted, quadratic=task.l1 == 0)()
    return sized(k), result, rounds


def size_found(result: Result, task: Task, rounds: int) -> Size:
    """k and its standard error, which a penalised fit does not have."""
    assert task.family is not None
    assert task.family.parameter is not None
    try:
        se = result.inference().k_se
    except InputError:
        se = None
    return Size(task.family.parameter, se, rounds)
