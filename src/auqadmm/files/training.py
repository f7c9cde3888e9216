"""From files to a fitted model, one worker per file or per site.

    read        every process its own files, each file a sheet of columns                (files/tabular)
    summarize   what the others need to know about a sheet: no rows, only sums and names     (files/preprocessing)
    exchange    one text per process; `merge` builds the same encoding everywhere
    blocks      every sheet as rows of numbers, one block per worker
    solve       minimise the mean loss over all rows + l1‖c‖₁ + l2/2‖c‖²; of a family, the sum of the losses

Shapes: m features, C columns; v (m, C) or (m + 1, C), coef (C, m), intercept (C,).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from auqadmm.blocks.rows import Loss
from auqadmm.core.result import Result
from auqadmm.files import suspects
from auqadmm.files.encoding import FormulaEncoding, complete, frame_of
from auqadmm.files.model import Parts
from auqadmm.files.preprocessing import Agreed, AnyEncoding, Settings, Summary, blocks_of, merge, summarize
from auqadmm.files.tabular import Coded, Roles, Sheet, read, refuse_row
from auqadmm.formula.design import agree
from auqadmm.formula.parsing import Formula
from auqadmm.problem import (
    Cox,
    ElasticNet,
    InputError,
    LeastSquares,
    Logistic,
    Multinomial,
    Problem,
    SmoothedHinge,
    Zero,
)
from auqadmm.problem.agreement import Exchange, alone, together
from auqadmm.problem.families import NamedFamily
from auqadmm.problem.ingest import RawBlock
from auqadmm.problem.made_of_losses import OneAgainstRest, Trials
from auqadmm.words import listed, quoted


@dataclass(frozen=True)
class Task:
    """What to fit. `l1` and `l2` are strengths beside the mean loss over all rows, for a likelihood beside their sum;
    `smoothing` is for the svm, `ties` for "cox". `site_intercepts`: one for every worker, in place of a common one.
    `trials`: the target counts successes, the weight of a row is its number of trials."""

    kind: str
    l1: float = 0.0
    l2: float = 1e-3
    intercept: bool = True
    smoothing: float = 0.1
    family: NamedFamily | None = None
    site_intercepts: bool = False
    ties: str | None = None
    trials: bool = False

    @property
    def labels(self) -> bool:
        return not self.trials and self._labelled

    @property
    def _labelled(self) -> bool:
        return self.kind in ("logistic", "svm") if self.family is None else self.family.labels

    @property
    def likelihood(self) -> bool:
        """Whether a likelihood is maximised: sums over rows, coefficients of raw columns."""
        return self.family is not None or self.kind == "cox"

    @property
    def common_intercept(self) -> bool:
        return self.intercept and not self.site_intercepts

    @property
    def centred(self) -> bool:
        """Whether the target's mean is taken off before the fit, for the intercept to take it up."""
        return not self.likelihood and self.intercept

    @property
    def settings(self) -> dict[str, Any]:
        """Plain values, those of the family among them."""
        plain = {name: value for name, value in vars(self).items() if name != "family" and value is not None}
        plain = {name: value for name, value in plain.items() if name != "trials" or value}
        if self.family is None:
            return {name: value for name, value in plain.items() if name != "site_intercepts"}
        return plain | {"family": self.family.name, "link": self.family.link, "parameter": self.family.parameter}

    def loss(self, classes: int) -> Loss:
        if self.family is not None:
            return Trials(self.family.loss()) if self.trials else self.family.loss()
        if self.kind == "cox":
            return Cox(self.ties or "efron")
        if self.kind == "elastic-net":
            return LeastSquares(reduction="pooled")
        if self.kind == "logistic":
            return Logistic(reduction="pooled") if classes == 2 else Multinomial(reduction="pooled")
        hinge = SmoothedHinge(self.smoothing, reduction="pooled")
        return hinge if classes == 2 else OneAgainstRest(hinge, reduction="pooled")


@dataclass(frozen=True)
class Prepared:
    """The agreed encoding, and the blocks of this one."""

    agreed: Agreed
    blocks: tuple[RawBlock, ...]
    elsewhere: Any = None  # a source, in place of blocks that are here

    def problem(self, task: Task, together: bool = False) -> Problem:
        """`together`: other processes have blocks too."""
        loss = task.loss(len(self.agreed.classes or ()))
        plain = task.likelihood and task.l1 == task.l2 == 0
        g = Zero() if plain else ElasticNet(task.l1, task.l2)
        make = Problem.part if together else Problem
        own = task.site_intercepts
        blocks = list(self.blocks) if self.elsewhere is None else self.elsewhere
        return make(loss, g, blocks, intercept=task.common_intercept, site_intercepts=own)


def prepare(
    paths: Sequence[str | os.PathLike[str]],
    roles: Roles,
    settings: Settings,
    task: Task,
    exchange: Exchange = alone,
    formula: Formula | None = None,
) -> Prepared:
    """Read the files of this process and agree with the others. An InputError from here is raised in all processes."""
    return agreed_blocks(lambda: [read(path, roles) for path in paths], roles, settings, task, exchange, formula)


def agreed_blocks(
    sheets_of: Callable[[], list[Sheet]],
    roles: Roles,
    settings: Settings,
    task: Task,
    exchange: Exchange = alone,
    formula: Formula | None = None,
) -> Prepared:
    """The blocks of the sheets of this process; `formula`: how columns become features, in place of `settings`."""
    if formula is not None:
        settings = formula_settings(formula, settings)

    def own() -> tuple[list[Sheet], list[dict[str, Any]]]:
        sheets = sheets_of()
        refuse_repeated_ids(sheets)
        for sheet in sheets:
            check_family(sheet, roles.target or "y", task.family)
        if task.trials:
            sheets = [shares(sheet, roles.target or "y", roles.weight or "trials") for sheet in sheets]
        if formula is not None:
            sheets = [complete_factors(sheet, formula, settings) for sheet in sheets]
        return sheets, [summarize(sheet, settings).message() for sheet in sheets]

    sheets, messages = together(exchange, own)
    summaries = [Summary.read(message) for part in messages for message in part]
    if not summaries:
        raise InputError("There are no files to fit.")
    agreed = merge(summaries, settings)
    check_labels(agreed, task)
    if formula is not None:
        texts = {column.name: column.levels or () for column in agreed.encoding.categories}
        design = agree(formula, [frame_of(sheet) for sheet in sheets], texts, exchange)
        agreed = replace(agreed, encoding=FormulaEncoding(design))
    center = task.centred
    blocks, _ = together(exchange, lambda: ([b for sheet in sheets for b in rows_of(sheet, agreed, center)], None))
    return Prepared(agreed, tuple(blocks))


def formula_settings(formula: Formula, settings: Settings) -> Settings:
    """A factor whose levels the formula lists is meant."""
    meant = [name for name, levels in formula.categories.items() if levels is not None]
    advice = suspects.FORMULA if settings.advice == suspects.OPTIONS else settings.advice
    return replace(settings, categorical=(*settings.categorical, *meant), advice=advice)


def complete_factors(sheet: Sheet, formula: Formula, settings: Settings) -> Sheet:
    """The rows in which nothing is missing; factors that are probably ids are refused."""
    sheet = complete(sheet)
    free = [name for name in formula.categories if name not in settings.categorical]
    suspects.refuse_factors(sheet, free, settings.advice)
    return sheet


def check_labels(agreed: Agreed, task: Task) -> None:
    """Families with labels have two."""
    if task.family is not None and len(agreed.classes or (0, 1)) > 2:
        raise InputError(
            f"The target has {len(agreed.classes or ())} labels ({listed(agreed.classes or ())}); family 'binomial' "
            "needs two."
        )


def share(paths: Sequence[Any], rank: int, world: int) -> list[Any]:
    """The files of one process among many: neighbours, so that blocks keep their order."""
    return list(paths[rank * len(paths) // world : (rank + 1) * len(paths) // world])


def rows_of(sheet: Sheet, agreed: Agreed, center: bool) -> list[RawBlock]:
    """The blocks of one file: encoded rows, and labels as class indices, or centred numbers."""
    X = agreed.encoding.matrix(sheet)
    if isinstance(sheet.target, Coded):
        place = {label: k for k, label in enumerate(agreed.classes or ())}
        y = np.array([place.get(label, -1) for label in sheet.target.levels])[sheet.target.codes]
    elif sheet.target is None:
        raise InputError(f"{sheet.source} has no target.")
    else:
        y = sheet.target - (agreed.target_mean if center else 0.0)
    weights = sheet.weights
    shifts = [part for part in (sheet.shift, agreed.encoding.shift(sheet)) if part is not None]
    shift = np.sum(shifts, axis=0) if shifts else None
    names = agreed.encoding.features

    def block(name: str, rows: np.ndarray | slice) -> RawBlock:
        offset = None if shift is None else shift[rows]
        return RawBlock(name, X[rows], y[rows], weights[rows], sheet.weight is not None, names, offset)

    if sheet.site is None:
        return [block(sheet.source, slice(None))]
    return [block(name, rows) for name, rows in blocks_of(sheet)]


NEEDS = {
    "poisson": "counts or rates, which are not negative",
    "negative-binomial": "counts, which are not negative",
    "tweedie": "amounts, which are not negative",
    "gamma": "numbers above zero",
}


def check_family(sheet: Sheet, target: str, family: NamedFamily | None) -> None:
    """Targets that the family can have."""
    if family is None or family.name not in NEEDS or not isinstance(sheet.target, np.ndarray):
        return
    y = sheet.target
    bad = np.flatnonzero(y <= 0 if family.name == "gamma" else y < 0)
    if bad.size:
        what, remedy = f"is {y[bad[0]]:g}", f"family {family.name!r} needs {NEEDS[family.name]}"
        raise refuse_row(sheet.source, int(bad[0]), target, what, remedy)


def shares(sheet: Sheet, target: str, trials: str) -> Sheet:
    """Successes and trials as shares, and trials as weights."""
    y, n = sheet.target, sheet.weights
    wrong = {
        trials: ((n < 1) | (n != np.floor(n)), n, "trials are whole numbers, at least 1"),
        target: (y < 0, y, "successes are counted from 0 on"),
    }
    for column, (bad, values, remedy) in wrong.items():
        rows = np.flatnonzero(bad & ~np.isnan(values))
        if rows.size:
            raise refuse_row(sheet.source, int(rows[0]), column, f"is {values[rows[0]]:g}", remedy)
    rows = np.flatnonzero(y > n)
    if rows.size:
        k = int(rows[0])
        what = f"is {y[k]:g}, of {n[k]:g} trials in column {quoted(trials)}"
        raise refuse_row(sheet.source, k, target, what, "there are no more successes than trials")
    return replace(sheet, target=y / n)


def refuse_repeated_ids(sheets: Sequence[Sheet]) -> None:
    """No id twice in the files of this process; files of other processes are never compared row by row."""
    first: dict[Any, tuple[Sheet, int]] = {}
    for sheet in sheets if len(sheets) > 1 else ():  # within a file they were compared on reading
        for row, value in enumerate(() if sheet.ids is None else sheet.ids.tolist()):
            other, at = first.setdefault(value, (sheet, row))
            if other is not sheet:
                sentence = "{}: row {} repeats the id {}of row {} of {}; every id may occur once."
                error = InputError(sentence.format(sheet.source, row + 1, f"{quoted(value)} ", at + 1, other.source))
                error.shared = sentence.format(sheet.source, row + 1, "", at + 1, other.source)
                raise error


def model_parts(
    result: Result, agreed: Agreed, task: Task, roles: Mapping[str, str], training: Mapping[str, Any], versions: Any
) -> Parts:
    """The model of a finished run."""
    v = result.v.detach().cpu().numpy().astype(np.float64)
    coef = np.ascontiguousarray((v[:-1] if task.common_intercept else v).T)
    intercept = v[-1].copy() if task.common_intercept else np.zeros(v.shape[1])
    if task.likelihood:
        return _raw_parts(agreed, task, coef, intercept, roles, training, versions)
    if task.kind == "elastic-net" and task.intercept:
        intercept = intercept + agreed.target_mean
    if task.kind == "logistic" and len(coef) > 1:
        # one number added to all intercepts changes nothing; so does a vector added to all unpenalised rows
        intercept = intercept - intercept.mean()
        if task.l1 == task.l2 == 0:
            coef = coef - coef.mean(0)
    return Parts(task.kind, agreed.encoding, coef, intercept, agreed.classes, dict(roles), dict(training), versions)


def _raw_parts(
    agreed: Agreed,
    task: Task,
    coef: np.ndarray,
    intercept: np.ndarray,
    roles: Mapping[str, str],
    training: Mapping[str, Any],
    versions: Any,
) -> Parts:
    """A model of raw columns: what standardising took off goes into the intercept."""
    encoding = agreed.encoding
    raw = raw_coefficients(encoding, coef)
    if task.common_intercept:
        intercept = intercept - raw[:, : len(encoding.mean)] @ encoding.mean
    return Parts(
        kind=task.kind,
        encoding=encoding.unscaled(),
        coef=raw,
        intercept=intercept,
        classes=(0, 1) if task.trials else agreed.classes,
        roles=dict(roles),
        training=dict(training),
        versions=versions,
        family=task.family,
        site_intercepts=task.site_intercepts,
    )


def raw_coefficients(encoding: AnyEncoding, coef: np.ndarray) -> np.ndarray:
    """Coefficients per unit of the raw columns: those of numbers divided by their scale."""
    scale = np.ones(coef.shape[1])
    scale[: len(encoding.scale)] = encoding.scale
    return coef / scale
