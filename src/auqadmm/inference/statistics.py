"""What was summed at the solution, and how it was asked for: one reduction, and a few numbers of a null model.

Shapes: m features (the intercept's ones last); v, G (m,) and H, J, R, C (m, m) in centred columns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from auqadmm.blocks.rows import RowLoss
from auqadmm.core.reduce import Reduce
from auqadmm.errors import InputError
from auqadmm.inference.families import family_of
from auqadmm.inference.sums import NullSlopesQuery, SitesQuery, StatisticsQuery
from auqadmm.metrics.triangles import unpack
from auqadmm.problem.losses import LeastSquares
from auqadmm.problem.site_intercepts import loss_of_rows
from auqadmm.verdict.queries import ColumnMoments
from auqadmm.verdict.queries import moments as moments_query

if TYPE_CHECKING:
    from auqadmm.blocks.rows import Loss
    from auqadmm.blocks.shard import Census
    from auqadmm.problem.problem import Problem

MOST = 4096  # unknowns whose information is summed as a whole
NULL_STEPS = 60


@dataclass(frozen=True, eq=False)
class Statistics:
    """Sums at v in centred columns, with what they were made of. `turn` (m, m): from centred columns to the problem's;
    `raw` (m, m): from there to those that are shown, None: the same; `strengths` (m,): l2 of every unknown; `sites`:
    estimates of blocks, where they were asked for, (N, 2, m)."""

    v: np.ndarray
    turn: np.ndarray
    sums: dict[str, np.ndarray]
    loss: Loss
    regularizer: Any
    strengths: np.ndarray
    names: tuple[str, ...]
    blocks: tuple[str, ...]
    frequency: bool
    null: float
    rounds: int
    numbers: int
    sites: np.ndarray | None = field(default=None, repr=False)
    raw: np.ndarray | None = field(default=None, repr=False)

    @property
    def shown(self) -> np.ndarray:
        """(m, m): from centred columns to those that are shown."""
        return self.turn if self.raw is None else self.raw @ self.turn

    def number(self, name: str) -> float:
        return float(self.sums[name])

    @property
    def penalised(self) -> str:
        """ "" without a penalty, "ridge" for a quadratic one, else "kinks"."""
        if not self.regularizer.quadratic:
            return "kinks"
        return "ridge" if bool((self.strengths > 0).any()) else ""


def measured(
    reduce: Reduce,
    problem: Problem,
    census: Census,
    v: Tensor,
    columns: ColumnMoments | None,
    frequency: bool = True,
    sites: bool = False,
    raw: np.ndarray | None = None,
) -> Statistics:
    """The sums at v. `columns`: the moments of round 0, which are asked for where they are not known; `raw` (m, m):
    from the problem's unknowns to those that are to be shown."""
    loss = problem.loss
    check(loss, census)
    before = reduce.traffic.rounds, reduce.traffic.up
    if columns is None:
        columns = ColumnMoments.of(reduce.once(moments_query), census.intercept, loss, census.columns)
    inside = columns.inside(v.to(torch.float64))
    centre = columns.centre
    sums = reduce.judging(StatisticsQuery(centre, frequency), inside, (inside,))
    found = {name: x.cpu() for name, x in sums.items()}
    m = census.features
    turn = torch.eye(m, dtype=torch.float64)
    if centre is not None:
        turn[-1, :-1] = -centre[:-1].cpu()
    scale = 1.0 if loss.reduction == "sum" else census.weight_total
    strengths = scale * problem.g.convexity(inside)[:, 0].cpu()
    null = math.nan
    if family_of(loss) is not None:
        totals = {name: float(found[name]) for name in ("weight", "y", "yy", "offset")}
        null = null_loss(loss_of_rows(loss), totals, census.offset, partial(_constant, reduce))
    shown = turn if raw is None else torch.from_numpy(raw) @ turn
    estimates = reduce.gather(SitesQuery(centre, shown, inside), None).cpu().numpy() if sites else None
    whole = {k: unpack(x[None])[0].numpy() if k in ("H", "J", "R", "C") else x.numpy() for k, x in found.items()}
    return Statistics(
        v=inside[:, 0].cpu().numpy(),
        turn=turn.numpy(),
        sums=whole,
        loss=loss,
        regularizer=problem.g,
        strengths=strengths.numpy(),
        names=names_of(problem, census),
        blocks=tuple(reduce.engine.names),
        frequency=frequency,
        null=null,
        rounds=reduce.traffic.rounds - before[0],
        numbers=(reduce.traffic.up - before[1]) // 8,
        sites=estimates,
        raw=raw,
    )


def check(loss: Loss, census: Census) -> None:
    """Refuse what has no standard errors here."""
    inner = loss_of_rows(loss)
    kind = type(inner).__name__
    if not isinstance(inner, RowLoss):
        raise InputError(f"inference needs a loss of rows, and {kind} is none; write it as an auqadmm.losses.RowLoss.")
    if census.columns > 1:
        raise InputError(
            f"inference is for models of one column, and {kind} has {census.columns}: compare two classes."
        )
    if loss.reduction == "mean" and census.blocks > 1:
        raise InputError(
            "inference needs every row to count alike: reduction='mean' gives rows of small blocks more weight; use "
            "'sum' or 'pooled'."
        )
    if census.features > MOST:
        raise InputError(
            f"inference sums the information of at most {MOST} unknowns; this model has {census.features}."
        )


def names_of(problem: Problem, census: Census) -> tuple[str, ...]:
    count = census.features - int(census.intercept)
    names = problem.names or tuple(f"x{k}" for k in range(count))
    return (*names, "intercept") if census.intercept else names


def _constant(reduce: Reduce, z: float) -> list[float]:
    at = torch.tensor([z], dtype=torch.float64)
    return reduce.judging(NullSlopesQuery(), at, (at,))["null"].tolist()


def null_loss(loss: RowLoss, sums: Mapping[str, float], offset: bool, ask: Callable[[float], list[float]]) -> float:
    """Σcφ of the best constant of a likelihood: from Σc, Σcy, Σcy² where φ is linear in y, or squares; with offsets by
    a search that begins at the mean less that of offsets. `ask` tells Σcφ, Σcφ' and Σcφ'' of a constant. NaN without
    rows."""
    W, S = sums["weight"], sums["y"]
    if not W > 0:
        return math.nan
    if isinstance(loss, LeastSquares) and not offset:
        return 0.5 * max(sums["yy"] - S * S / W, 0.0)
    z = loss.null_logits(torch.tensor([S / W], dtype=torch.float64), 1)
    if not offset:
        one = torch.ones(1, dtype=torch.float64)
        up, down = (float(loss.row_value(z[:, None], y)) for y in (one, -one))
        return 0.5 * (W + S) * up + 0.5 * (W - S) * down
    constant = float(z) - sums["offset"] / W
    best = math.inf
    for _ in range(NULL_STEPS):
        value, slope, bend = ask(constant)
        step = -slope / bend if bend > 0 else math.nan
        if not math.isfinite(value) or not math.isfinite(step):
            return best if math.isfinite(best) else math.nan
        best = min(best, value)
        if 0.5 * slope * slope / bend <= 1e-15 * (abs(value) + 1):
            break
        constant += max(-2.0, min(2.0, step)) if not loss.quadratic else step
    return best
