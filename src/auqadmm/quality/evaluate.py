"""The figures of models where their rows are: two reductions, a few of six numbers, and one number per site and figure.

1   Σc, Σcφ, right answers, errors, …; mean and spread of the scores         about fifteen numbers
2   bins of the scores; squares around the mean of the target                at most a few thousand
3   calibration, where the model is not its own best, and the null model     six numbers each, a few times
4   figures of sites, each from its own rows                                 where asked for
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from auqadmm.core.reduce import Reduce
from auqadmm.errors import InputError
from auqadmm.problem.cox import Cox
from auqadmm.quality.bins import Calibration, bins_of
from auqadmm.quality.calibration import calibrate
from auqadmm.quality.folds import Folds, Training
from auqadmm.quality.measures import Figures, Measure, measure_of, middle_of
from auqadmm.quality.quality import Quality
from auqadmm.quality.rows import Models
from auqadmm.quality.sums import COUNTS, FirstQuery, LineQuery, SecondQuery, SiteFigures, arrays, mean_or_none
from auqadmm.quality.survival import survival_quality
from auqadmm.words import counted, listed, short

if TYPE_CHECKING:
    from auqadmm.blocks.rows import Loss
    from auqadmm.blocks.shard import Census
    from auqadmm.core.result import Result
    from auqadmm.problem.problem import Problem
    from auqadmm.verdict.queries import ColumnMoments


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
    second = arrays(reduce(SecondQuery(measure, models), None, first)[1])

    def line(a: float, d: float) -> Tensor:
        return reduce(LineQuery(measure, models, first), None, (a, d))[1]["line"].cpu()

    if not float(first["weight"]) > 0:
        raise InputError("No row counts: every site has outcomes that are all alike, or weights of zero.")
    figures = measure.figures(first, second, measure.null(first, line, census.offset))
    bounds = measure.bounds(second)
    ends = [mean_or_none([None if b is None else b[k] for b in bounds]) for k in (0, 1)]
    order = None if ends[0] is None or ends[1] is None else (ends[0], ends[1])
    if bounds:
        figures["auc"] = None if order is None else 0.5 * (order[0] + order[1])
    curve = None
    if measure.calibrated:
        if order is not None or not measure.ranked:
            figures |= calibrate(line, second["line"], middle_of(first), order)
        curve = Calibration.of(*measure.curve(second["bins"][0]))
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
