"""What a model of files is worth: its quality, and on request standard errors in units of the raw columns.

Of `--family negative-binomial` without `--parameter` k is the most likely one, found by a fit for every k tried.

The command standardises numbers, x̃ = (x − μ)/s, and centres the target of a regression. Raw coefficients are a linear
map of the fitted ones, c = c̃/s and b = b̃ − Σ μc̃/s, plus the mean of the target; so are their errors.

Shapes: m features and the intercept's ones; raw (m + 1, m + 1).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from itertools import cycle
from typing import Any

import numpy as np
import torch
import typer
from torch import Tensor

from auqadmm.cli.options import COV
from auqadmm.core.reduce import Reduce
from auqadmm.core.result import Result
from auqadmm.errors import InputError
from auqadmm.files.encoding import Encoding
from auqadmm.files.preprocessing import Agreed, AnyEncoding
from auqadmm.files.training import Task, raw_coefficients
from auqadmm.inference.inference import Inference, infer
from auqadmm.inference.statistics import measured, names_of
from auqadmm.inference.survival import BaselineQuery
from auqadmm.quality.bins import Calibration
from auqadmm.quality.evaluate import quality_at
from auqadmm.quality.quality import Quality
from auqadmm.words import short, visible

SHOWN_COEFFICIENTS = 100  # lines of a table on a screen


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


@dataclass(frozen=True)
class Baseline:
    """Cumulative baseline hazards of every worker at these times."""

    times: tuple[float, ...]
    hazards: dict[str, list[float]]

    def lines(self) -> list[str]:
        names = [visible(name) for name in short(tuple(self.hazards))]
        wide = max(map(len, names))
        head = f"{'Cumulative baseline hazard at':<{wide}}  " + "  ".join(f"{t:>10g}" for t in self.times)
        rows = zip(names, self.hazards.values(), strict=True)
        gap = max(len("Cumulative baseline hazard at") - wide, 0)
        return [head, *(f"{name:<{wide}}{' ' * gap}  " + "  ".join(f"{x:>10.4g}" for x in row) for name, row in rows)]


@dataclass(frozen=True)
class Asked:
    """What the user wants to know. `cv`: folds, "sites", or None."""

    inference: bool = False
    cov: str = "model"
    level: float = 0.95
    exponentiate: bool = False
    cv: int | str | None = None
    seed: int = 0
    baseline: tuple[float, ...] = ()

    @classmethod
    def checked(
        cls,
        inference: bool,
        cov: str,
        level: float,
        exponentiate: bool,
        cv: str | None,
        seed: int,
        baseline: str | None = None,
        cox: bool = False,
    ) -> Asked:
        """From options; wrong usage ends the command."""
        if cov not in COV:
            raise typer.BadParameter(f"--cov: there is no {cov!r}; there are {', '.join(COV)}.")
        if not 0 < level < 1:
            raise typer.BadParameter(f"--level must be between 0 and 1, got {level:g}.")
        if not inference and (cov != "model" or level != 0.95 or exponentiate):
            raise typer.BadParameter("--cov, --level and --exponentiate belong to --inference: ask for it, too.")
        if cv is not None and cv != "sites" and not (cv.isdecimal() and int(cv) >= 2):
            raise typer.BadParameter(f"--cv must be sites or a number of folds, at least 2; got {cv!r}.")
        folds = int(cv) if cv is not None and cv.isdecimal() else cv
        if baseline is not None and not cox:
            raise typer.BadParameter("--baseline goes with --model cox.")
        return cls(inference, cov, level, exponentiate, folds, seed, _times(baseline))

    @property
    def settings(self) -> dict[str, Any]:
        chosen: dict[str, Any] = {"cv": self.cv} if self.cv is not None else {}
        chosen |= {"baseline": list(self.baseline)} if self.baseline else {}
        if self.inference:
            chosen |= {"inference": True, "cov": self.cov, "level": self.level, "exponentiate": self.exponentiate}
        return chosen


@dataclass(frozen=True)
class Evaluation:
    """What was found, and the sentences why something was not; `model`: v after the last steps of inference."""

    quality: Quality | None = None
    held_out: Quality | None = None
    inference: Inference | None = None
    refusals: tuple[str, ...] = ()
    size: Size | None = None
    baseline: Baseline | None = None
    model: Tensor | None = None

    def summary(self) -> dict[str, Any]:
        """Keys of summary.json."""
        made = {"quality": self.quality, "cross_validation": self.held_out, "inference": self.inference}
        out: dict[str, Any] = {name: found.to_dict() for name, found in made.items() if found is not None}
        out |= {} if self.size is None else {"k": asdict(self.size)}
        out |= {} if self.baseline is None else {"baseline": asdict(self.baseline)}
        return {**out, "refusals": list(self.refusals)} if self.refusals else out

    def settled(self, result: Result) -> Result:
        """The result with the coefficients of the table."""
        return result if self.model is None else replace(result, v=self.model.to(result.v))

    def lines(self) -> list[str]:
        """For the screen, after the outcome of the run."""
        out: list[str] = [] if self.size is None else [self.size.words()]
        if self.inference is not None:
            shown = replace(self.inference, names=tuple(map(visible, self.inference.names)))
            if len(shown.names) > SHOWN_COEFFICIENTS:
                out += ["", f"The table of {len(shown.names)} coefficients is in summary.json and on the report."]
            else:
                out += ["", *shown.summary().splitlines()]
        for found in (self.quality, self.held_out):
            if found is not None:
                shown_sites = replace(found, site_names=tuple(map(visible, short(found.site_names))))
                out += ["", *shown_sites.summary().splitlines()]
        if self.baseline is not None:
            out += ["", *self.baseline.lines()]
        if self.quality is not None:
            cost = self.quality
            out.append(f"  (from sums over sites: {cost.rounds} more rounds, {cost.numbers} numbers of each worker)")
        return [*out, *self.refusals]


def evaluated(result: Result, agreed: Agreed, task: Task, asked: Asked) -> Evaluation:
    """The model of a run, once more where its rows are; with several processes each must call."""
    if result.source is None:
        return Evaluation(refusals=("The run was interrupted: nothing is known of the quality of its model.",))
    refusals: list[str] = []

    def tried(what: str, work: Callable[[], Any]) -> Any:
        try:
            return work()
        except InputError as error:
            refusals.append(f"{what}: {error}")
            return None

    shift = agreed.target_mean if task.kind == "elastic-net" and task.intercept else 0.0
    with result.source.placed() as reduce:
        quality = tried("No quality", lambda: _quality(result, reduce))
        inference = model = None
        if asked.inference:
            found = tried("No standard errors", lambda: _inference(result, reduce, agreed, task, asked, shift))
            inference, model = found or (None, None)
        baseline = None
        if asked.baseline:
            baseline = tried("No baseline hazards", lambda: _baseline(result, reduce, agreed, asked.baseline))
    held_out = None
    if asked.cv is not None:
        held_out = tried("No cross-validation", lambda: result.quality(asked.cv, seed=asked.seed))
    if asked.inference and refusals and _all_levels(agreed.encoding, task):
        refusals.append("All levels of categories were kept: --drop-first leaves out the first of each column.")
    if inference is not None and inference.label:
        refusals.append("--l1 0 --l2 0 fits without a penalty, and then there are tests and intervals.")
    return Evaluation(
        None if quality is None else shifted(quality, shift),
        None if held_out is None else shifted(held_out, shift),
        inference,
        tuple(refusals),
        baseline=baseline,
        model=model,
    )


def _baseline(result: Result, reduce: Reduce, agreed: Agreed, times: tuple[float, ...]) -> Baseline:
    """Of raw columns that are zero: standardising moved them by their means."""
    v = result.v.to(getattr(reduce.engine, "device", result.v.device)).to(torch.float64)
    found = reduce.gather(BaselineQuery(v, np.array(times), np.zeros(1)), None).cpu().numpy()[:, 0]
    encoding = agreed.encoding
    raw = raw_coefficients(encoding, v[:, 0].cpu().numpy()[None])[0]
    found = found * np.exp(-float(raw[: len(encoding.mean)] @ encoding.mean))
    names = tuple(reduce.engine.names)
    return Baseline(times, {name: row.tolist() for name, row in zip(names, found, strict=True)})


def _times(text: str | None) -> tuple[float, ...]:
    try:
        times = () if text is None else tuple(sorted({float(word) for word in text.split(",")}))
    except ValueError:
        times = (math.nan,)
    if not all(0 < t < math.inf for t in times):
        raise typer.BadParameter(f"--baseline takes times above zero, as 30,90,365; got {text!r}.")
    return times


def _quality(result: Result, reduce: Reduce) -> Quality:
    census, problem = reduce.engine.census, result.source.problem
    v = result.v.to(getattr(reduce.engine, "device", result.v.device))
    return quality_at(reduce, problem.loss, census, v, result.moments, sites=reduce.collects)


def _inference(
    result: Result, reduce: Reduce, agreed: Agreed, task: Task, asked: Asked, shift: float
) -> tuple[Inference, Tensor | None]:
    """The inference, and v at which it was made."""
    census, problem = reduce.engine.census, result.source.problem
    v = result.v.to(getattr(reduce.engine, "device", result.v.device)).to(torch.float64)
    raw = raw_map(agreed.encoding, task.common_intercept)
    at = measured(reduce, problem, census, v, result.moments, sites=v.shape[1] == 1 and reduce.collects, raw=raw)
    shown = (*agreed.encoding.features, "intercept") if task.common_intercept else agreed.encoding.features
    ours = zip(at.names, cycle(zip(names_of(problem, census), shown, strict=True)))
    names = tuple(name.removesuffix(own) + new for name, (own, new) in ours)  # of several classes, each with its label
    searched = result.statistics is not None and result.statistics.searched
    found = infer(replace(at, names=names, searched=searched), asked.cov, asked.level, exponentiate=asked.exponentiate)
    if not shift:
        return found, at.model
    moved = np.zeros(len(names))
    moved[-1] = shift
    shown_here = replace(
        found,
        coef=found.coef + moved,
        one_step=None if found.one_step is None else found.one_step + moved,
        site_coef=None if found.site_coef is None else found.site_coef + moved,
    )
    return shown_here, at.model


def raw_map(encoding: AnyEncoding, intercept: bool) -> np.ndarray:
    """From the unknowns of the fit to those of raw columns, (m + 1, m + 1) with an intercept."""
    scale, mean = np.ones(len(encoding.features)), np.zeros(len(encoding.features))
    scale[: len(encoding.scale)], mean[: len(encoding.mean)] = encoding.scale, encoding.mean
    if not intercept:
        return np.diag(1 / scale)
    out = np.diag(np.append(1 / scale, 1.0))
    out[-1, :-1] = -mean / scale
    return out


def shifted(found: Quality, shift: float) -> Quality:
    """Of a target that was centred, in its own units: y = a + bŷ of both less the shift is a + (1 − b)·shift + bŷ."""
    if not shift:
        return found

    def moved(figures: dict[str, float | None]) -> dict[str, float | None]:
        a, b = figures["calibration_intercept"], figures["calibration_slope"]
        return figures if a is None or b is None else {**figures, "calibration_intercept": a + (1 - b) * shift}

    curve = found.calibration
    if curve is not None:
        curve = Calibration(curve.predicted + shift, curve.observed + shift, curve.weight)
    sites = tuple(moved(figures) for figures in found.site_figures)
    return replace(found, figures=moved(found.figures), calibration=curve, site_figures=sites)


def _all_levels(encoding: AnyEncoding, task: Task) -> bool:
    return isinstance(encoding, Encoding) and bool(encoding.categories) and not encoding.drop_first and task.intercept
