"""Evidence of a run that did not converge, for `Result.diagnose`; and the trend of a run, for that and for displays.

    excess     the relative gap (an estimate, without a verdict) over its tolerance, or the larger residual over its
               own; 1 is where a run stops
    trend      a straight line through log(excess) against iterations: linear convergence, if the points lie on it
    evidence   the distance of every block from the consensus, and the objective further out along v: computed once,
               after the run, not timed; the data are not moved

Also the findings that need only that and round 0: no minimum, badly scaled columns.

Shapes: B blocks of this process, N in all, m features, C columns; v (m, C), spreads (m,).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from auqadmm.core.history import Row
from auqadmm.core.reduce import Reduce
from auqadmm.core.state import Blocks, Residuals, Setup, State
from auqadmm.core.stopping import Stopping
from auqadmm.metrics.weights import sum_blocks
from auqadmm.verdict.queries import ColumnMoments

if TYPE_CHECKING:
    from auqadmm.blocks.shard import Shard
    from auqadmm.core.solve import Method

FEWEST_POINTS = 8  # points that a line is fitted to
STEADY = 0.8  # share of the variance that the line must explain
SLOWING = 0.8  # slope of the later half, relative to all of it
FALL = math.log(1.3)  # the least total decrease of the fitted line


@dataclass(frozen=True)
class Trend:
    """A falling line: by the factor `rate` < 1 per iteration, to the tolerances after `left` more iterations; at
    least so many where the run is `slowing`."""

    rate: float
    left: float
    slowing: bool = False


def excess(row: Row, stopping: Stopping) -> float | None:
    """How many times above its tolerance the worst quantity of the stopping rule is; None where that is not known."""
    pairs: list[tuple[float | None, float | None]] = []
    has_residuals = row.primal_residual is not None
    if stopping.rule != "certificate" and has_residuals:
        pairs += [(row.primal_residual, row.eps_primal), (row.dual_residual, row.eps_dual)]
    if stopping.rule != "residuals" or not has_residuals:
        pairs.append((row.expected if row.relative is None else row.relative, stopping.certificate_tol))
    ratios = [value / limit for value, limit in pairs if value is not None and limit]  # no limit: never met
    if len(ratios) < len(pairs) or not all(map(math.isfinite, ratios)):
        return None
    return max(ratios)


def trend(points: Sequence[tuple[int, float]]) -> Trend | None:
    """The line through (iteration, excess); None where it does not fall, or the points do not lie on one.

    A run that slows down is judged by its later half: a forecast must not be too optimistic.
    """
    known = [(k, math.log(x)) for k, x in points if 0 < x < math.inf]
    if len(known) < FEWEST_POINTS:
        return None
    slope, last, explained = _fit(known)
    fall = -slope * (known[-1][0] - known[0][0])
    if fall < FALL or explained < STEADY:
        return None
    later, there, _ = _fit(known[len(known) // 2 :])
    if later >= 0:
        return None
    slowing = later > SLOWING * slope
    if later > slope:
        slope, last = later, there
    return Trend(math.exp(slope), max(last, 0.0) / -slope, slowing)


def _fit(points: Sequence[tuple[int, float]]) -> tuple[float, float, float]:
    """Slope, value at the end, and the share of the variance explained, of the line of least squares."""
    n = len(points)
    mean_k, mean_y = sum(k for k, _ in points) / n, sum(y for _, y in points) / n
    kk = sum((k - mean_k) ** 2 for k, _ in points)
    ky = sum((k - mean_k) * (y - mean_y) for k, y in points)
    yy = sum((y - mean_y) ** 2 for _, y in points)
    slope = ky / kk
    # yy = 0: all points are equal, and the line is flat
    return slope, mean_y + slope * (points[-1][0] - mean_k), ky * ky / (kk * yy) if yy > 0 else 0.0


def recent(rows: Sequence[Row], stopping: Stopping, gap: float | None = None) -> list[tuple[int, float]]:
    """(iteration, excess) of the later half of a run, at least as many as a line needs.

    `gap`: the relative gap of the last row. Before it the gap is taken to fall as the square of the KKT residual, which
    has one scale throughout; estimates and bounds of the gap change theirs with every verdict.
    """
    last = rows[-1].kkt if rows else None
    points: list[tuple[int, float]] = []
    if gap is not None and last and (stopping.rule == "certificate" or rows[-1].primal_residual is None):
        if stopping.certificate_tol > 0:
            scale = gap / stopping.certificate_tol / last**2
            points = [(row.iteration, scale * row.kkt**2) for row in rows if row.kkt is not None]
    else:
        points = [(row.iteration, x) for row in rows if (x := excess(row, stopping)) is not None]
    return points[-max(FEWEST_POINTS, len(points) // 2) :]


# ---------------------------------------------------------------------- evidence
FURTHER, FAR_OUT = 3.0, 1e6  # multiples of v: still near, and where a loss that never rises shows it


@dataclass(frozen=True)
class ObjectiveRay:
    """The objective F and its smooth part f along v: F(v), F(3v), f(v), f(10⁶v)."""

    value: float
    near: float
    smooth: float
    far: float

    @property
    def falling(self) -> bool:
        """v is a direction in which the loss never rises again, and F falls far beyond v."""
        return self.far <= self.smooth and self.near < self.value


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
    ray: ObjectiveRay | None
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
    ray = None
    if not getattr(reduce.engine, "guarded", False):  # far out few rows make up the loss, so sites do not tell it
        f = reduce.judging(_values_along, v, (v,))["f"].tolist()
        ray = ObjectiveRay(f[0] + float(g.value(v)), f[1] + float(g.value(FURTHER * v)), f[0], f[2])
    residuals = state.shared.residuals
    own = residuals is not None and math.isfinite(residuals.primal) and reduce.collects
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
    if ray is None or not ray.falling:
        return None
    return Finding(
        "unbounded",
        f"the objective still falls along v: {ray.value:.3g} here (‖v‖ = {evidence.norm:.3g}), {ray.near:.3g} three "
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
