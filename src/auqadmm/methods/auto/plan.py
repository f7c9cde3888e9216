"""The decisions of `auto`, and their outcome."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from auqadmm.methods.auto.cost import CostEstimate


@dataclass(frozen=True)
class Change:
    """After an iteration: from one method to another, why, and the traffic until then."""

    iteration: int
    old: str
    new: str
    why: str
    rounds: int
    numbers: int


@dataclass(frozen=True)
class Plan:
    """Replicated. The method that runs, since which iteration and at which cost, with its own memory; the best point so
    far; Hessian products now and of methods before; how much F was expected to fall, iteration by iteration; and every
    change."""

    method: str
    inner: Any
    first: int = 0
    rounds: int = 0
    numbers: int = 0
    best: float = float("inf")
    best_v: Tensor | None = None
    waited: int = 0
    hard: int = 0
    hvps: int = 0
    before: int = 0
    expected: tuple[float, ...] = ()
    changes: tuple[Change, ...] = ()

    @property
    def exactly(self) -> Any:
        """The method's own sums at v (`Consensus.exactly`)."""
        return getattr(self.inner, "exactly", None)

    @property
    def still(self) -> bool:
        """Whether it cannot progress (`Consensus.still`)."""
        return getattr(self.inner, "still", False)


@dataclass(frozen=True)
class Choice:
    """What `auto` chose and why; `explain()` puts estimates beside what happened.

    Attributes
    ----------
    method, first
        The method that the run ended with, and the one it began with.
    reason
        In one line.
    estimates
        Rounds and numbers that were expected, the cheapest first.
    changes
        Of method, during the run.
    round_cost
        What a round costs beside the numbers it carries, in numbers.
    rounds, numbers
        What it took.
    screened
        Unknowns that a duality gap of Newton's method proved to be zero on the way.
    """

    method: str
    first: str
    reason: str
    estimates: tuple[CostEstimate, ...]
    changes: tuple[Change, ...]
    round_cost: float
    rounds: int = 0
    numbers: int = 0
    screened: int = 0

    def explain(self) -> str:
        """A table: estimates, and what happened."""
        lines = [f"{'method':<12}{'rounds':>9}{'numbers':>14}{'cost':>14}   why"]
        for e in self.estimates:
            cost = e.cost(self.round_cost)
            lines.append(f"{e.method:<12}{e.rounds:>9.0f}{e.numbers:>14.3g}{cost:>14.3g}   {e.why}")
        cost = self.rounds * self.round_cost + self.numbers
        lines.append(f"{'happened':<12}{self.rounds:>9}{self.numbers:>14.3g}{cost:>14.3g}   {self.reason}")
        lines += [f"after iteration {c.iteration}: {c.old} → {c.new}, {c.why}" for c in self.changes]
        if self.screened:
            lines.append(f"{self.screened} unknowns were proved to be zero on the way")
        return "\n".join(lines)
