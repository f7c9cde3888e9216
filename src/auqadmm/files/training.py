"""From files to a fitted model, one worker per file or per site.

    read        every process its own files, each file a sheet of columns                (files/tabular)
    summarize   what the others need to know about a sheet: no rows, only sums and names     (files/preprocessing)
    exchange    one text per process; `merge` builds the same encoding everywhere
    blocks      every sheet as rows of numbers, one block per worker
    solve       minimise the mean loss over all rows + l1‖c‖₁ + l2/2‖c‖²

Shapes: m features, C columns; v (m, C) or (m + 1, C), coef (C, m), intercept (C,).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from auqadmm.blocks.rows import Loss
from auqadmm.core.result import Result
from auqadmm.files.encoding import Encoding
from auqadmm.files.model import Parts
from auqadmm.files.preprocessing import Agreed, Settings, Summary, blocks_of, merge, summarize
from auqadmm.files.tabular import Coded, Roles, Sheet, read
from auqadmm.problem import ElasticNet, InputError, LeastSquares, Logistic, Multinomial, Problem, SmoothedHinge
from auqadmm.problem.agreement import Exchange, alone, together
from auqadmm.problem.ingest import RawBlock
from auqadmm.problem.one_against_rest import OneAgainstRest
from auqadmm.words import quoted


@dataclass(frozen=True)
class Task:
    """What to fit. `l1` and `l2` are strengths beside the mean loss over all rows; `smoothing` is for the svm."""

    kind: str
    l1: float = 0.0
    l2: float = 1e-3
    intercept: bool = True
    smoothing: float = 0.1

    @property
    def labels(self) -> bool:
        return self.kind != "elastic-net"

    def loss(self, classes: int) -> Loss:
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

    def problem(self, task: Task, together: bool = False) -> Problem:
        """`together`: other processes have blocks too."""
        loss, g = task.loss(len(self.agreed.classes or ())), ElasticNet(task.l1, task.l2)
        make = Problem.part if together else Problem
        return make(loss, g, list(self.blocks), intercept=task.intercept)


def prepare(
    paths: Sequence[str | os.PathLike[str]],
    roles: Roles,
    settings: Settings,
    center: bool = True,
    exchange: Exchange = alone,
) -> Prepared:
    """Read the files of this process and agree with the others; `center`: an intercept takes up the target's mean.

    An InputError from here is raised in all processes.
    """

    def own() -> tuple[list[Sheet], list[dict[str, Any]]]:
        sheets = [read(path, roles) for path in paths]
        refuse_repeated_ids(sheets)
        return sheets, [summarize(sheet, settings).message() for sheet in sheets]

    sheets, messages = together(exchange, own)
    summaries = [Summary.read(message) for part in messages for message in part]
    if not summaries:
        raise InputError("There are no files to fit.")
    agreed = merge(summaries, settings)
    blocks, _ = together(exchange, lambda: ([b for sheet in sheets for b in rows_of(sheet, agreed, center)], None))
    return Prepared(agreed, tuple(blocks))


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
    weights, given = sheet.weights, sheet.weight is not None
    names = agreed.encoding.features
    if sheet.site is None:
        return [RawBlock(sheet.source, X, y, weights, given, names)]
    return [RawBlock(name, X[rows], y[rows], weights[rows], given, names) for name, rows in blocks_of(sheet)]


def refuse_repeated_ids(sheets: Sequence[Sheet]) -> None:
    """No id twice in the files of this process; files of other processes are never compared row by row."""
    first: dict[Any, tuple[Sheet, int]] = {}
    for sheet in sheets if len(sheets) > 1 else ():  # within a file they were compared on reading
        for row, value in enumerate(() if sheet.ids is None else sheet.ids.tolist()):
            other, at = first.setdefault(value, (sheet, row))
            if other is not sheet:
                raise InputError(
                    f"{sheet.source}: row {row + 1} repeats the id {quoted(value)} of row {at + 1} of {other.source}; "
                    "every id may occur once."
                )


def model_parts(
    result: Result, agreed: Agreed, task: Task, roles: Mapping[str, str], training: Mapping[str, Any], versions: Any
) -> Parts:
    """The model of a finished run."""
    v = result.v.detach().cpu().numpy().astype(np.float64)
    coef = np.ascontiguousarray((v[:-1] if task.intercept else v).T)
    intercept = v[-1].copy() if task.intercept else np.zeros(v.shape[1])
    if task.kind == "elastic-net" and task.intercept:
        intercept = intercept + agreed.target_mean
    if task.kind == "logistic" and len(coef) > 1:
        # one number added to all intercepts changes nothing; so does a vector added to all unpenalised rows
        intercept = intercept - intercept.mean()
        if task.l1 == task.l2 == 0:
            coef = coef - coef.mean(0)
    return Parts(task.kind, agreed.encoding, coef, intercept, agreed.classes, dict(roles), dict(training), versions)


def raw_coefficients(encoding: Encoding, coef: np.ndarray) -> np.ndarray:
    """Coefficients per unit of the raw columns: those of numbers divided by their scale."""
    scale = np.ones(coef.shape[1])
    scale[: len(encoding.scale)] = encoding.scale
    return coef / scale
