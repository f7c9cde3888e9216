"""The figures of models where their rows are: two reductions, a few of six numbers, and one number per site and figure.

1   Σc, Σcφ, right answers, errors, …; mean and spread of the scores         about fifteen numbers
2   bins of the scores; squares around the mean of the target                at most a few thousand
3   calibration, where the model is not its own best, and the null model     six numbers each, a few times
4   figures of sites, each from its own rows                                 where asked for

Calibration has an intercept and a slope, by Newton's method on those six numbers:

    minimise over a, b   Σ c φ(a + b·(x·u) + offset, y)            with b = 1 + d, and a moved to the mean score

(0, 1) where the model is its own best: a maximum of the likelihood on its own rows. A slope below 1 says that
predictions are too extreme, as they are on new rows after a fit of many columns to few.

Of Cox's models pairs and events are counted. Pairs are of rows of the same site and stratum; of rows that were held
out, only those of one fold, which the same model judges.

Shapes: N blocks, r rows of a block; figures of blocks (N, names).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from auqadmm.core.reduce import B, Reduce, Sums
from auqadmm.errors import InputError
from auqadmm.inference.survival import PairCounts, hazards_of, pairs
from auqadmm.problem.cox import Cox
from auqadmm.problem.risk_sets import ENTRY, EVENT, TIME
from auqadmm.quality.bins import Calibration, bins_of
from auqadmm.quality.measures import Figures, Known, Line, Measure, measure_of, middle_of
from auqadmm.quality.quality import Quality
from auqadmm.quality.rows import Folds, Models, Scored, Training
from auqadmm.words import counted, listed, short

if TYPE_CHECKING:
    from auqadmm.blocks.rows import Loss
    from auqadmm.blocks.shard import Census, Shard
    from auqadmm.core.result import Result
    from auqadmm.problem.problem import Problem
    from auqadmm.verdict.queries import ColumnMoments


CALIBRATION_STEPS = 50
SMALL_DECREMENT = 1e-14  # of the loss: one more step is exact to rounding
STEEPEST = 1e4  # a slope beyond this has no end: the scores separate the outcomes
SHORTEST = 1e-6  # part of a step
CALIBRATION_ROUNDING = 1e-12  # of AUC
FLAT = 1e-13  # of the curvature: scores are constant
NO_BINS = (
    "Counts by bins of a score leave sites as masked sums only, and where every policy allows bins: no AUC, no "
    "calibration curve."
)
NO_CONCORDANCE = (
    "Concordance counts pairs of rows of one site, and a site here gives masked sums or sums only: there is no quality "
    "of a survival model unless every policy allows figures of its site (masks, sums_only, site_figures)."
)
COUNTS = ("rows", "weight")
NUMBERS = ("rows", "weight", "concordant", "discordant", "tied", "events")


def calibrate(line: Line, start: np.ndarray, middle: float, order: tuple[float, float] | None = None) -> Figures:
    """Intercept and slope; None where scores are constant, or separate the outcomes. `start`: the line at (0, 0),
    `middle`: the score that d turns around, `order`: between which values AUC is, where there is one."""
    separated = order is not None and (order[0] >= 1 - CALIBRATION_ROUNDING or order[1] <= CALIBRATION_ROUNDING)
    found = None if separated else minimum(line, start)
    if found is None:
        return {"calibration_intercept": None, "calibration_slope": None}
    a, d = found
    return {"calibration_intercept": a - d * middle, "calibration_slope": 1 + d}


def minimum(line: Line, start: np.ndarray) -> tuple[float, float] | None:
    """(a, d) of the least loss; None where there is none."""
    at, found = np.zeros(2), start
    for _ in range(CALIBRATION_STEPS):
        value, g = found[0], found[1:3]
        H = np.array([[found[3], found[4]], [found[4], found[5]]])
        if not np.isfinite(found).all() or not np.linalg.det(H) > FLAT * H[0, 0] * H[1, 1]:
            return None
        step = -np.linalg.solve(H, g)
        if -g @ step <= SMALL_DECREMENT * (abs(value) + 1):
            return float(at[0] + step[0]), float(at[1] + step[1])
        t = 1.0
        while True:  # shorter until the loss falls
            there = at + t * step
            ahead = line(float(there[0]), float(there[1])).numpy()
            if ahead[0] <= value + 1e-4 * t * (g @ step) + 1e-14 * abs(value):
                break
            t = 0.5 * t
            if t < SHORTEST:
                return None
        at, found = there, ahead
        if abs(at[1]) > STEEPEST:
            return None
    return None


@dataclass(frozen=True)
class FirstQuery:
    """Sums that need nothing else."""

    measure: Measure
    models: Models

    def __call__(self, shard: Shard, blocks: B, shared: object) -> tuple[B, Sums]:
        return blocks, added(shard, self.models, self.measure.first)


@dataclass(frozen=True)
class SecondQuery:
    """Sums around the means that the first gave, and bins where they are told."""

    measure: Measure
    models: Models
    bins: bool = True

    def __call__(self, shard: Shard, blocks: B, first: Known) -> tuple[B, Sums]:
        found = added(shard, self.models, lambda at: self.measure.second(at, first))
        return blocks, {name: x for name, x in found.items() if self.bins or name != "bins"}


@dataclass(frozen=True)
class LineQuery:
    """The loss on a line of models (`Measure.line`), and its derivatives. `first`: the sums of the first query."""

    measure: Measure
    models: Models
    first: Known

    def __call__(self, shard: Shard, blocks: B, at: tuple[float, float]) -> tuple[B, Sums]:
        return blocks, added(shard, self.models, lambda rows: {"line": self.measure.line(rows, self.first, *at)})


@dataclass(frozen=True)
class SiteFigures:
    """The figures of every block by itself, (B, names); NaN where there is none. Ranks are exact here."""

    measure: Measure
    models: Models

    def __call__(self, shard: Shard, blocks: object) -> Tensor:
        out = [self._of(at) for _, at in self.models.scored(shard)]
        return torch.tensor(out, dtype=torch.float64, device=shard.device)

    def _of(self, at: Scored) -> list[float]:
        measure = self.measure
        first = arrays(measure.first(at))
        if not float(first["weight"]) > 0:
            return [float(first["rows"]), 0.0, *[math.nan] * len(measure.names)]
        second = arrays(measure.second(at, first))

        def line(a: float, d: float) -> Tensor:
            return measure.line(at, first, a, d).cpu()

        figures = measure.figures(first, second, measure.null(first, line, at.o is not None))
        aucs = measure.exact(at)
        auc = mean_or_none(aucs)
        figures |= {"auc": auc} if aucs else {}
        if measure.calibrated and not (measure.ranked and auc is None):
            figures |= calibrate(line, second["line"], middle_of(first), None if auc is None else (auc, auc))
        return [float(first[name]) for name in COUNTS] + [_number(figures, name) for name in measure.names]


def added(shard: Shard, models: Models, of: Callable[[Scored], Sums]) -> Sums:
    """Sums of all blocks of a shard."""
    total: Sums = {}
    for _, at in models.scored(shard):
        for name, x in of(at).items():
            total[name] = total[name] + x if name in total else x
    return total


def arrays(sums: Sums) -> dict[str, np.ndarray]:
    return {name: x.detach().cpu().numpy() for name, x in sums.items()}


def mean_or_none(values: list[float | None]) -> float | None:
    """Of all classes; None where one has none."""
    known = [x for x in values if x is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None


def _number(figures: Figures, name: str) -> float:
    value = figures.get(name)
    return math.nan if value is None else value


@dataclass(frozen=True, eq=False)
class SurvivalQuery:
    """`NUMBERS` of every block, (B, 6), at the model v (m, 1), or with folds at v (F, m, 1)."""

    v: Tensor
    folds: Folds | None = None

    def __call__(self, shard: Shard, blocks: object) -> Tensor:
        several = self.v if self.folds is not None else self.v[None]
        out = torch.zeros(shard.blocks, len(NUMBERS), dtype=torch.float64)
        for k, v in enumerate(several):
            for j, at in enumerate(hazards_of(shard, v)):
                chosen = torch.ones(len(at.y), dtype=torch.bool, device=at.y.device)
                if self.folds is not None:
                    fold = torch.from_numpy(self.folds.of_block(shard.index[j], shard.rows[j]))
                    chosen = (fold == k).to(chosen.device)[at.sets.rows]
                y, w = at.y[chosen].cpu().numpy(), at.sets.weight[chosen].cpu().numpy()
                score, group = at.score[chosen].cpu().numpy(), at.sets.group[chosen].cpu().numpy()
                found = pairs(score, y[:, TIME], y[:, EVENT], y[:, ENTRY], group, w)
                own = [len(y), w.sum(), found.concordant, found.discordant, found.tied, (y[:, EVENT] > 0).sum()]
                out[j] += torch.tensor(own, dtype=torch.float64)
        return out


def survival_quality(reduce: Reduce, v: Tensor, sites: bool, folds: Folds | None, notes: tuple[str, ...]) -> Quality:
    """Of the model v (m, 1), or with folds of the models v (F, m, 1)."""
    if not bool(v.isfinite().all()):
        raise InputError("The model holds numbers that are not finite: it has no quality.")
    if not getattr(reduce.engine, "collects", True):
        raise InputError(NO_CONCORDANCE)
    before = reduce.traffic.rounds, reduce.traffic.up
    each = reduce.gather(SurvivalQuery(v.to(torch.float64), folds), None).cpu().numpy()
    told = [dict(zip(NUMBERS, row.tolist(), strict=True)) for row in each]
    names = tuple(reduce.engine.names)
    whole = dict(zip(NUMBERS, each.sum(0).tolist(), strict=True))
    alone = [name for name, site in zip(short(names), told, strict=True) if _figures(site)["concordance"] is None]
    if sites and alone and len(alone) < len(names):
        notes = (*notes, f"No concordance of its own, for want of pairs that can be compared: {listed(alone, 4)}.")
    return Quality(
        figures=_figures(whole),
        rows=round(whole["rows"]),
        weight=whole["weight"],
        site_names=names if sites else (),
        site_figures=tuple({name: site[name] for name in ("rows", "weight")} | _figures(site) for site in told)
        if sites
        else (),
        by="" if folds is None else folds.words,
        notes=notes,
        rounds=reduce.traffic.rounds - before[0],
        numbers=(reduce.traffic.up - before[1]) // 8,
    )


def _figures(sums: dict[str, float]) -> dict[str, float | None]:
    index = PairCounts(sums["concordant"], sums["discordant"], sums["tied"]).index
    return {"concordance": None if math.isnan(index) else index, "events": sums["events"]}


def quality_at(
    reduce: Reduce,
    loss: Loss,
    census: Census,
    v: Tensor,
    columns: ColumnMoments | None = None,
    *,
    sites: bool = True,
    folds: Folds | None = None,
    notes: tuple[str, ...] = (),
) -> Quality:
    """Of the model v (m, C), or with folds of the models v (F, m, C). `columns`: means, where they are known."""
    if isinstance(loss, Cox):
        return survival_quality(reduce, v, sites, folds, notes)
    measure = measure_of(loss, 0 if census.classes is None else len(census.classes))
    if not bool(v.isfinite().all()):
        raise InputError("The model holds numbers that are not finite: it has no quality.")
    before = reduce.traffic.rounds, reduce.traffic.up
    models = _models(v, columns, folds)
    first = arrays(reduce(FirstQuery(measure, models), None, None, (models.v,))[1])
    binned = bool(getattr(reduce.engine, "bins", True))
    second = arrays(reduce(SecondQuery(measure, models, binned), None, first)[1])

    def line(a: float, d: float) -> Tensor:
        return reduce(LineQuery(measure, models, first), None, (a, d))[1]["line"].cpu()

    if not float(first["weight"]) > 0:
        raise InputError("No row counts: every site has outcomes that are all alike, or weights of zero.")
    figures = measure.figures(first, second, measure.null(first, line, census.offset))
    bounds = measure.bounds(second) if binned else []
    ends = [mean_or_none([None if b is None else b[k] for b in bounds]) for k in (0, 1)]
    order = None if ends[0] is None or ends[1] is None else (ends[0], ends[1])
    if bounds:
        figures["auc"] = None if order is None else 0.5 * (order[0] + order[1])
    curve = None
    if measure.calibrated:
        if order is not None or not measure.ranked or not binned:
            figures |= calibrate(line, second["line"], middle_of(first), order)
        if binned:
            curve = Calibration.of(*measure.curve(second["bins"][0]))
    if not binned and (measure.ranked or measure.calibrated):
        notes = (*notes, NO_BINS)
    each = reduce.gather(SiteFigures(measure, models), None).cpu().numpy() if sites else None
    names = tuple(reduce.engine.names)
    told, more = ((), ()) if each is None else _of_sites(each, measure, names, census)
    return Quality(
        figures={name: figures.get(name) for name in measure.names},
        rows=round(float(first["rows"])),
        weight=float(first["weight"]),
        auc_bounds=order,
        bins=bins_of(len(first["s"])) if "bins" in second else 0,
        calibration=curve,
        site_names=() if each is None else names,
        site_figures=told,
        by="" if folds is None else folds.words,
        notes=(*notes, *more),
        rounds=reduce.traffic.rounds - before[0],
        numbers=(reduce.traffic.up - before[1]) // 8,
    )


def cross_models(
    problem: Problem, folds: Folds, v: Tensor, fit: Callable[[Problem, Tensor], Result]
) -> tuple[Tensor, tuple[str, ...]]:
    """The models of all folds, (F, m, C), each fitted from v on to the rows outside its fold; and what must be said."""
    if folds.sites and problem.site_intercepts:
        raise InputError(
            "cv='sites' needs predictions at a site that was left out, and its own intercept is not known there: use "
            "folds of rows, or a common intercept."
        )
    found, unfinished = [], []
    for k in range(folds.count):
        result = fit(problem.keeping(Training(folds, k)), v)
        found.append(result.v.detach().cpu().to(torch.float64))
        if result.status not in ("converged", "rounding"):
            unfinished.append(str(k))
    notes: tuple[str, ...] = ()
    if unfinished:
        notes = (f"Fits that did not converge: {counted(len(unfinished), 'fold')} ({listed(unfinished, 6)}).",)
    return torch.stack(found), notes


def _models(v: Tensor, columns: ColumnMoments | None, folds: Folds | None) -> Models:
    several = (v if folds is not None else v[None]).to(torch.float64)
    if columns is None or columns.centre is None:
        return Models(several, None, folds)
    return Models(torch.stack([columns.inside(x) for x in several]), columns.centre, folds)


def _of_sites(
    each: np.ndarray, measure: Measure, names: tuple[str, ...], census: Census
) -> tuple[tuple[Figures, ...], tuple[str, ...]]:
    """Figures by name, and what must be said of sites that have none."""
    keys = (*COUNTS, *measure.names)
    told = [{key: None if math.isnan(x) else x for key, x in zip(keys, row.tolist(), strict=True)} for row in each]
    notes, called = [], short(names)
    silent = [name for name, site, rows in zip(called, told, census.rows, strict=True) if rows and not site["weight"]]
    if silent:
        notes.append(
            f"Not counted: {listed(silent, 4)}, where no row has a weight, or outcomes that are all alike leave no "
            "finite intercept."
        )
    if measure.ranked:
        alone = [name for name, site in zip(called, told, strict=True) if site["weight"] and site["auc"] is None]
        what = "both classes" if measure.classes == 2 else "all classes"
        if alone:
            notes.append(f"No AUC of its own, for want of rows of {what}: {listed(alone, 4)}.")
    return tuple(told), tuple(notes)
