"""A point that is judged, what a verdict says of it, and the arithmetic of bounds (docs/theory.md).

And in words: why a verdict is not "converged", which columns have no influence, by names of columns, blocks and rows.

Shapes: m features, C columns; v, G (m, C).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from auqadmm.core.stopping import Certificate
from auqadmm.verdict.model import EPS, QuadraticModel

if TYPE_CHECKING:
    from auqadmm.blocks.shard import Shard
    from auqadmm.verdict.judge import Judge

# Chosen, not measured: tests/verdict holds verdicts against problems of known gap.
REACH_POWER = 16  # of the power sum that approximates a maximum over rows
GAP_ROUNDINGS = 8.0  # rounding errors of F in a duality gap
OBJECTIVE_ROUNDING = 4.0  # rounding errors of F that a difference of two may be off by
ESTIMATE_MARGIN = 4.0  # safety factor of an estimate: it rests on two points only


@dataclass(frozen=True)
class Verdict:
    """A certificate, and what the gate uses next: its model and its step."""

    certificate: Certificate
    model: QuadraticModel | None = None
    preconditioner: Any = None
    inflation: float = 1.0
    floor: float = 0.0


@dataclass(frozen=True)
class JudgedPoint:
    """A point that is judged: v and G where the model is computed, F, scale, rounding, and what is known already."""

    v: Tensor
    G: Tensor
    F: float
    scale: float
    floor: float
    noise: float
    known: Certificate
    f: Any

    def rounded(self, delta: float) -> float:
        """What δ may be if every logit is off by its rounding: (√δ + √floor)²."""
        return (math.sqrt(max(delta, 0.0)) + math.sqrt(self.floor)) ** 2

    def judged(self, delta: float, bound: float) -> Certificate:
        gap = self.known.duality_gap
        known = replace(self.known, delta=delta)
        if math.isfinite(bound) and (gap is None or bound <= gap):
            return replace(known, gap_bound=bound, relative=relative_to(bound, self.scale), evidence="proved")
        return known

    def untold(self, gap: float) -> bool:
        return at_rounding(gap, self.noise, self.F)

    def rounding(self, certificate: Certificate, floor: float | None = None) -> Certificate:
        reach = relative_to(self.floor if floor is None else floor, self.scale)
        far = (
            f"to about {reach:.0e} of the scale, no further" if math.isfinite(reach) else "no further: nothing is left"
        )
        return replace(
            certificate, evidence="rounding", reason=f"Float64 sums of these rows tell objectives apart {far}."
        )


def at_rounding(gap: float, noise: float, F: float) -> bool:
    """Is a duality gap, a difference of sums, no more than their rounding?"""
    return gap <= GAP_ROUNDINGS * (noise + EPS * abs(F))


def relative_to(gap: float, scale: float) -> float:
    """gap / scale; 0 for a gap of 0, whatever the scale."""
    if gap == 0:
        return 0.0
    return gap / scale if scale > 0 else math.inf


def inflation(x: float) -> float:
    """gap ≤ inflation(x)·δ where x = R√(2δ) < 1; at most 2, infinite beyond."""
    if not x < 1:
        return math.inf
    return 1.0 + x / 3 if x < 1e-4 else 2 * (x + (1 - x) * math.log1p(-x)) / x**2


def expected_inflation(x: float, delta: float, enough: float) -> float:
    """How far a bound will be above δ once δ is small enough: by the theorem, or where that fails, an estimate's."""
    if not delta > 0:
        return 1.0
    there = inflation(x * math.sqrt(enough / delta)) if math.isfinite(x) else math.inf
    return there if math.isfinite(there) else ESTIMATE_MARGIN


def agrees(
    at: JudgedPoint, delta: float, fell: float, after: float, small: float, certificate: Certificate
) -> Certificate:
    # differences within the error of F or of an inexact minimiser count as zero; the bound includes them
    shrunk = after <= max(0.25 * delta, small, at.noise)
    true = shrunk and abs(fell - delta) <= max(0.5 * delta, small) + OBJECTIVE_ROUNDING * at.noise
    if not true:
        return replace(certificate, reason="The quadratic model does not hold where it leads: run on.")
    bound = ESTIMATE_MARGIN * (max(delta, fell) + 2 * after)
    return replace(certificate, gap_bound=bound, relative=relative_to(bound, at.scale), evidence="estimated")


def root(total: Tensor) -> float:
    """The maximum, from the sum of powers."""
    return float(total) ** (1 / REACH_POWER)


# ---------------------------------------------------------------------- sentences
def collinear(judge: Judge, model: QuadraticModel) -> str:
    weights = model.weakest()
    names = [_named(judge, k) for k in (weights > 0.1 * weights.max()).nonzero()[:, 0].tolist()]
    if len(names) <= 1:
        return (
            f"{_listed(names) or 'A column'} hardly bends the objective any more: rows are saturated, or the "
            "column is nearly empty. Nothing can be proved; add an L2 term."
        )
    return (
        f"{_listed(names)} are collinear to rounding: nothing can be proved about that direction. Drop one of "
        "them, or add an L2 term."
    )


def undecidable(judge: Judge) -> str:
    n = judge.setup.unknowns
    if not judge.g.quadratic:
        return (
            f"{n} unknowns are too many for the Hessian itself, and there is no duality gap for this loss and "
            "regularizer: nothing can be proved."
        )
    return (
        f"{n} unknowns are too many for the Hessian itself, and without an L2 term there is no other bound: add "
        "one, however small."
    )


def notes(judge: Judge) -> str:
    """Columns without influence, as far as known; constant ones from the first triangle on."""
    if judge.columns is None:
        return ""
    empty, notes = judge.columns.unused, []
    for which, one, many in (
        (empty, "is zero in every row: its coefficient has", "are zero in every row: their coefficients have"),
        (judge.constant, "is constant beside an intercept: it has", "are constant beside an intercept: they have"),
    ):
        if which:
            notes.append(f"{_listed([_named(judge, k) for k in which])} {one if len(which) == 1 else many} no say.")
    return " ".join(notes)


def infinite(judge: Judge, v: Tensor) -> str:
    assert judge.columns is not None
    rows = judge.reduce.gather(_BadRow(judge.columns.centre, v), None)
    bad = (rows != -1).nonzero()[:, 0].tolist()
    if not bad:
        return "The objective is not finite: rescale the features or the targets."
    name, row = judge.reduce.engine.names[bad[0]], int(rows[bad[0]])
    where = name if row < 0 else f"{name}, row {row},"
    return f"The loss of {where} is not finite at this model: rescale its features or targets, or start elsewhere."


def _named(judge: Judge, k: int) -> str:
    if judge.setup.intercept and k == judge.setup.features - 1:
        return "the intercept"
    names = judge.setup.names
    return f"column {k}" if names is None else f"column {names[k]!r}"


def _listed(names: list[str]) -> str:
    shown = names if len(names) <= 6 else [*names[:5], f"{len(names) - 5} more"]
    text = shown[0] if len(shown) == 1 else ", ".join(shown[:-1]) + f" and {shown[-1]}" if shown else ""
    return text[:1].upper() + text[1:]


@dataclass(frozen=True)
class _BadRow:
    """Of every block, the first row whose loss is not finite at v in centred columns; −1: none. (B,)"""

    centre: Tensor | None
    v: Tensor

    def __call__(self, shard: Shard, blocks: object) -> Tensor:
        return shard.exact(self.centre).bad_rows(self.v.to(shard.device))
