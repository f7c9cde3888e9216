"""Evidence of a run that did not converge, for `Result.diagnose`.

Computed once, after the run, not timed: the distance of every block from the consensus, and the objective
further out along v. The data are not moved.

Also the findings that need only that and round 0: no minimum, badly scaled columns.

Shapes: B blocks of this process, N in all, m features, C columns; v (m, C), spreads (m,).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from auqadmm.core.reduce import Reduce
from auqadmm.core.state import Blocks, Residuals, Setup, State
from auqadmm.core.stopping import Stopping
from auqadmm.metrics.weights import sum_blocks
from auqadmm.verdict.moments import ColumnMoments

if TYPE_CHECKING:
    from auqadmm.blocks.shard import Shard
    from auqadmm.core.solve import Method


FURTHER, FAR_OUT = 3.0, 1e6  # multiples of v: still near, and where a loss that never rises shows it


@dataclass(frozen=True)
class ObjectiveRay:
    """The objective F and its smooth part f along v: F(v), F(3v), f(v), f(10⁶v)."""

    here: float
    near: float
    smooth: float
    far: float

    @property
    def falling(self) -> bool:
        """v is a direction in which the loss never rises again, and F falls far beyond v."""
        return self.far <= self.smooth and self.near < self.here


@dataclass(frozen=True)
class Evidence:
    """`distance` (N,) is ‖u_j − v‖; `residuals` are those of the last iteration. None for a gradient method. `framed`:
    the method centred and scaled its columns."""

    names: tuple[str, ...]
    stopping: Stopping
    method: Method
    solver: object
    precision: float
    norm: float
    ray: ObjectiveRay
    residuals: Residuals | None = None
    distance: Tensor | None = None
    columns: ColumnMoments | None = None
    features: tuple[str, ...] | None = None
    v: Tensor | None = None
    framed: bool = False


def collect(
    reduce: Reduce,
    setup: Setup,
    stopping: Stopping,
    method: Method,
    state: State,
    columns: ColumnMoments | None,
    near: Reduce,
) -> Evidence:
    """One round of three numbers and, where blocks have models of their own, one number per block, by `near`."""
    v, g = state.shared.v, setup.regularizer
    f = reduce.judging(_values_along, v, (v,))["f"].tolist()
    ray = ObjectiveRay(f[0] + float(g.value(v)), f[1] + float(g.value(FURTHER * v)), f[0], f[2])
    residuals = state.shared.residuals
    own = residuals is not None and math.isfinite(residuals.primal)
    return Evidence(
        names=tuple(reduce.engine.names),
        stopping=stopping,
        method=method,
        solver=getattr(setup.solve, "solver", None),
        precision=setup.precision,
        norm=float(v.norm()),
        ray=ray,
        residuals=residuals if own else None,
        distance=near.gather(_Distance(v), state.blocks) if own else None,
        columns=columns,
        features=setup.names,
        v=v,
        framed=hasattr(state.shared.memory, "frame"),
    )


def _values_along(shard: Shard, blocks: None, v: Tensor) -> tuple[None, dict[str, Tensor]]:
    """Σf_j at v, 3v and 10⁶v."""
    values = [sum_blocks(shard.linearize(shard.expand(t * v)).value) for t in (1.0, FURTHER, FAR_OUT)]
    return blocks, {"f": torch.stack(values)}


@dataclass(frozen=True)
class _Distance:
    v: Tensor

    def __call__(self, shard: Shard, blocks: Blocks) -> Tensor:
        return (shard.models(blocks.u) - shard.expand(self.v)).flatten(1).double().norm(dim=1)


UNEVEN = 1e3  # largest over smallest scale of a feature
DISTANT = 100.0  # mean of a feature over its spread
SCALED = 'method="auto", or features less their means and divided by their standard deviations'


@dataclass(frozen=True)
class Finding:
    """One thing that stands out in a run.

    Attributes
    ----------
    code
        For programs.
    sentence
        For people.
    setting
        The one thing to try next.

    Examples
    --------
    >>> import auqadmm as aq
    >>> print(aq.Finding("budget", "iterations ran out", "max_iter=500"))
    budget: iterations ran out
      try: max_iter=500
    """

    code: str
    sentence: str
    setting: str

    def __str__(self) -> str:
        return f"{self.code}: {self.sentence}\n  try: {self.setting}"


def unbounded(evidence: Evidence) -> Finding | None:
    ray = evidence.ray
    if not ray.falling:
        return None
    return Finding(
        "unbounded",
        f"the objective still falls along v: {ray.here:.3g} here (‖v‖ = {evidence.norm:.3g}), {ray.near:.3g} three "
        "times further out, and the loss never rises again: the classes are separable, or the problem has no minimum. "
        f"Coefficients grow without end, those of {_direction(evidence)} most.",
        "a stronger regularizer, ten times the present one, or L2(1e-3) where there is none",
    )


def _direction(evidence: Evidence) -> str:
    """The features of the separating direction."""
    seen, v = evidence.columns, evidence.v
    if seen is None or v is None:
        return "v itself"
    size = v.abs().amax(1) * seen.spread.to(v).sqrt()
    if seen.intercept:
        size[-1] = 0
    where = (size > 0.3 * size.max()).nonzero()[:, 0].tolist()[:4]
    names = [_feature(evidence, k) for k in where]
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _feature(evidence: Evidence, k: int) -> str:
    return f"column {k}" if evidence.features is None else f"column {evidence.features[k]!r}"


def columns(evidence: Evidence) -> Finding | None:
    """Columns of very different size, or far from zero: no single tolerance or penalty fits, unless the method scales
    columns itself."""
    seen = evidence.columns
    if seen is None or not seen.weight > 0 or evidence.framed:
        return None
    filled = ~seen.empty
    if seen.intercept:
        filled[-1] = False
    spread = (seen.spread / seen.weight).sqrt()
    if int(filled.sum()) >= 2:
        a = int(torch.where(filled, spread, math.inf).argmin())
        b = int(torch.where(filled, spread, -math.inf).argmax())
        if float(spread[b]) > UNEVEN * float(spread[a]):
            names = [_feature(evidence, k) for k in (b, a)]
            return Finding(
                "uneven-features",
                f"{names[0]} is {float(spread[b] / spread[a]):.1e} times as large as {names[1]} (spreads "
                f"{float(spread[b]):.2g} and {float(spread[a]):.2g}).",
                SCALED,
            )
    if seen.centre is not None:
        far = torch.where(filled, seen.centre.abs() / spread, 0.0)
        k = int(far.argmax())
        if float(far[k]) > DISTANT:
            return Finding(
                "far-from-zero",
                f"{_feature(evidence, k)} lies far from zero (mean {float(seen.centre[k]):.3g}, spread "
                f"{float(spread[k]):.2g}): its coefficient and the intercept can hardly be told apart.",
                SCALED,
            )
    return None
