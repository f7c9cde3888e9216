"""`--family negative-binomial` without `--parameter`: k is the most likely one, found by a fit for every k tried."""

from __future__ import annotations

from dataclasses import dataclass

from auqadmm.core.result import Result
from auqadmm.files.training import Task
from auqadmm.problem import InputError


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


def size_found(result: Result, task: Task, rounds: int) -> Size:
    """k and its standard error, which a penalised fit does not have."""
    assert task.family is not None
    assert task.family.parameter is not None
    try:
        se = result.inference().k_se
    except InputError:
        se = None
    return Size(task.family.parameter, se, rounds)
