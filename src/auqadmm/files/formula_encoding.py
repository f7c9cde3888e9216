"""A formula where an `Encoding` is expected: the columns of a file → its matrix; and which rows of a file it can use.

A row that lacks a value in any column that the fit uses (features, target, weight, offset, exposure) is left out, by
the same rule at every site; how many is told. At prediction a missing value is refused.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from auqadmm.files.encoding import Column
from auqadmm.files.tabular import Coded, Sheet, refuse_row
from auqadmm.files.tabular_arrow import not_a_number
from auqadmm.formula.design import FormulaDesign
from auqadmm.problem import InputError
from auqadmm.words import listed, quoted

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class FormulaEncoding:
    """As `Encoding`, by a formula; columns are never scaled."""

    design: FormulaDesign
    sparse: bool = False
    named: bool = True

    @property
    def columns(self) -> tuple[Column, ...]:
        """Of the files: numbers first, then those of text."""
        names = self.design.formula.columns
        texts = tuple(Column(name, tuple(map(str, self.design.levels[name]))) for name in self.design.texts)
        return (*(Column(name) for name in names if name not in self.design.texts), *texts)

    @property
    def numbers(self) -> list[str]:
        return [c.name for c in self.columns if c.levels is None]

    @property
    def categories(self) -> list[Column]:
        return [c for c in self.columns if c.levels is not None]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(c.name for c in self.columns)

    @property
    def features(self) -> tuple[str, ...]:
        return self.design.features

    @property
    def mean(self) -> np.ndarray:
        return np.zeros(0)

    @property
    def scale(self) -> np.ndarray:
        return np.ones(0)

    def unscaled(self) -> FormulaEncoding:
        return self

    def matrix(self, sheet: Sheet, unseen: str = "error") -> np.ndarray:
        return self.design.matrix(self.frame(sheet), unseen)

    def shift(self, sheet: Sheet) -> np.ndarray | None:
        """The offsets of the formula."""
        return self.design.offset(self.frame(sheet)) if self.design.formula.offsets else None

    def frame(self, sheet: Sheet) -> pd.DataFrame:
        """The columns of the formula, checked: numbers are numbers, and nothing is missing."""
        for name in self.names:
            if name not in sheet.kinds:
                raise InputError(f"{sheet.source} lacks column {quoted(name)}; it has {listed(sheet.kinds)}.")
        for name in self.numbers:
            if name in sheet.texts:
                row, text = not_a_number(sheet.texts[name]) or (0, "")
                raise refuse_row(sheet.source, row, name, f"is {quoted(text)}", "the model needs a number there")
        missing = _missing(sheet, self.names)
        if missing is not None:
            raise refuse_row(sheet.source, *missing, "is missing", "the model needs a value there")
        return frame_of(sheet)

    def message(self) -> dict[str, Any]:
        return {"formula": self.design.message()}

    def arrays(self) -> dict[str, np.ndarray]:
        return {}


def frame_of(sheet: Sheet) -> pd.DataFrame:
    """The features of a sheet as a data frame whose index counts the rows of the file."""
    import pandas as pd

    place = {name: k for k, name in enumerate(sheet.number_names)}
    columns: dict[str, np.ndarray] = {}
    for name, kind in sheet.kinds.items():
        if kind == "number":
            columns[name] = sheet.numbers[:, place[name]]
        elif kind == "text":
            column = sheet.texts[name]
            columns[name] = np.array([*column.levels, None], dtype=object)[column.codes]
    numbers = np.arange(1, sheet.rows + 1) if sheet.numbering is None else sheet.numbering
    made = pd.DataFrame(columns, index=numbers)
    made.attrs["source"] = sheet.source
    return made


def complete(sheet: Sheet) -> Sheet:
    """The rows of a sheet in which nothing is missing."""
    lacks = np.zeros(sheet.rows, dtype=bool)
    if any(kind == "empty" for kind in sheet.kinds.values()):
        lacks[:] = True
    lacks |= np.isnan(sheet.numbers).any(1)
    for part in (*sheet.texts.values(), sheet.target):
        if isinstance(part, Coded):
            lacks |= part.codes < 0
    for values in (sheet.target, sheet.weight, sheet.offset, sheet.exposure):
        if isinstance(values, np.ndarray):
            lacks |= np.isnan(values) if values.ndim == 1 else np.isnan(values).any(1)
    keep = np.flatnonzero(~lacks)
    if not keep.size:
        raise InputError(f"{sheet.source}: every row lacks a value that the formula needs; leave it out.")

    def some(values: Any) -> Any:
        return values.take(keep) if isinstance(values, Coded) else None if values is None else values[keep]

    return replace(
        sheet,
        rows=len(keep),
        numbers=sheet.numbers[keep],
        texts={name: column.take(keep) for name, column in sheet.texts.items()},
        target=some(sheet.target),
        site=some(sheet.site),
        ids=some(sheet.ids),
        weight=some(sheet.weight),
        offset=some(sheet.offset),
        exposure=some(sheet.exposure),
        numbering=keep + 1,
        dropped=sheet.rows - len(keep),
    )


def _missing(sheet: Sheet, names: tuple[str, ...]) -> tuple[int, str] | None:
    """The first row, from 0, that lacks a value, and the column."""
    place = {name: k for k, name in enumerate(sheet.number_names)}
    found = []
    for name in names:
        if sheet.kinds[name] == "empty":
            found.append((0, name))
        elif name in place:
            found += [(int(row), name) for row in np.flatnonzero(np.isnan(sheet.numbers[:, place[name]]))[:1]]
        else:
            found += [(int(row), name) for row in sheet.texts[name].missing()[:1]]
    return min(found, default=None)
