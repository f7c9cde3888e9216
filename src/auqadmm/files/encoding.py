"""From the columns of a file to its matrix, the same on every worker: column by column, or by a formula.

With a formula, a row that lacks a value in any column that the fit uses (features, target, weight, offset, exposure) is
left out, by the same rule at every site; how many is told. At prediction a missing value is refused.

Shapes: n rows, p columns of numbers, m features; X (n, m), mean, scale and fill (p,).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse

from auqadmm.files.tabular import Coded, Sheet, refuse_row, widened
from auqadmm.files.tabular_arrow import not_a_number
from auqadmm.formula.design import FormulaDesign
from auqadmm.problem import InputError
from auqadmm.words import listed, quoted

if TYPE_CHECKING:
    import pandas as pd


# one-hot features are mostly zeros: below this share of entries the matrix stays sparse
FILLED_ENOUGH = 0.25


@dataclass(frozen=True)
class Column:
    """One column of the files: of numbers, or with `levels` of categories, `fill` where one is missing."""

    name: str
    levels: tuple[str, ...] | None = None
    fill: str | None = None


@dataclass(frozen=True, eq=False)
class Encoding:
    """The encoding of the columns: numbers first, then categories.

    `mean` and `scale` of the numbers (0 and 1 where they are unchanged), `fill` for missing ones (None: refuse).
    `sparse`: columns of sparse files, named by their numbers. `named`: the columns have user-given names.
    """

    columns: tuple[Column, ...]
    mean: np.ndarray
    scale: np.ndarray
    fill: np.ndarray | None = None
    drop_first: bool = False
    sparse: bool = False
    named: bool = True

    @property
    def numbers(self) -> list[str]:
        return [c.name for c in self.columns if c.levels is None]

    @property
    def categories(self) -> list[Column]:
        return [c for c in self.columns if c.levels is not None]

    @property
    def names(self) -> tuple[str, ...]:
        """Of the columns that a file must have."""
        return tuple(c.name for c in self.columns)

    @property
    def features(self) -> tuple[str, ...]:
        """Of the matrix: a number's own name, `column=category` for categories."""
        return (*self.numbers, *(f"{c.name}={level}" for c in self.categories for level in self._levels(c)))

    def matrix(self, sheet: Sheet, unseen: str = "error") -> np.ndarray | scipy.sparse.csr_matrix:
        """X of a file; a category that no worker had is refused, or with `unseen="ignore"` gives zeros."""
        if self.sparse != sheet.sparse:
            expected = "sparse" if self.sparse else "with named columns"
            raise InputError(
                f"{sheet.source} is of another kind than the files that were fitted, which were {expected}."
            )
        if self.sparse:
            X = widened(sheet, list(self.names))
            return (X @ scipy.sparse.diags(1 / self.scale)).tocsr()
        absent = [name for name in self.names if name not in sheet.kinds]
        if absent:
            raise InputError(f"{sheet.source} lacks column {quoted(absent[0])}; it has {listed(sheet.kinds)}.")
        numbers = self._numbers(sheet)
        if not self.categories:
            return numbers
        parts = [self._one_hot(sheet, c, unseen) for c in self.categories]
        width = numbers.shape[1] + sum(p.shape[1] for p in parts)
        X = scipy.sparse.hstack([scipy.sparse.csr_matrix(numbers), *parts], format="csr")
        filled = numbers.shape[1] + len(parts)  # non-zeros of a row
        return X.toarray() if filled >= FILLED_ENOUGH * width else X

    def shift(self, sheet: Sheet) -> np.ndarray | None:
        """What the features add to the logits by themselves: nothing, as only formulas have offsets."""
        return None

    def unscaled(self) -> Encoding:
        """The same columns, numbers as they are."""
        return replace(self, mean=np.zeros_like(self.mean), scale=np.ones_like(self.scale))

    # ------------------------------------------------------------------ inside
    def _levels(self, column: Column) -> tuple[str, ...]:
        assert column.levels is not None
        return column.levels[1:] if self.drop_first else column.levels

    def _numbers(self, sheet: Sheet) -> np.ndarray:
        place = {name: k for k, name in enumerate(sheet.number_names)}
        X = np.full((sheet.rows, len(self.numbers)), np.nan)
        for k, name in enumerate(self.numbers):
            if name in place:
                X[:, k] = sheet.numbers[:, place[name]]
            elif name in sheet.texts:
                row, text = not_a_number(sheet.texts[name]) or (0, "")
                raise refuse_row(sheet.source, row, name, f"is {quoted(text)}", "the model needs a number there")
        if self.fill is not None:
            np.copyto(X, self.fill, where=np.isnan(X))
        rows, places = np.nonzero(~np.isfinite(X))
        if rows.size:
            value = X[rows[0], places[0]]
            what = "is missing" if np.isnan(value) else f"is {value:g}"
            raise refuse_row(
                sheet.source, int(rows[0]), self.numbers[places[0]], what, "the model needs a number there"
            )
        X -= self.mean
        X /= self.scale
        return X

    def _one_hot(self, sheet: Sheet, column: Column, unseen: str) -> scipy.sparse.csr_matrix:
        assert column.levels is not None
        coded = sheet.texts.get(column.name)
        if coded is None:
            if sheet.kinds[column.name] == "number":
                raise InputError(
                    f"{sheet.source}: column {quoted(column.name)} holds numbers; the model has categories."
                )
            coded = Coded(np.full(sheet.rows, -1), ())
        place = {level: k for k, level in enumerate(column.levels)}
        if column.fill is not None:
            missing = place[column.fill]
        elif coded.missing().size:
            raise refuse_row(
                sheet.source, int(coded.missing()[0]), column.name, "is missing", "the model needs a category"
            )
        else:
            missing = -1
        new = coded.first(lambda level: level not in place)
        if new is not None and unseen != "ignore":
            row, value = new
            raise refuse_row(
                sheet.source,
                row,
                column.name,
                f"is {quoted(value)}, a category that no training file had",
                "mend it, or let such values count as none (--unseen ignore)",
            )
        codes = np.array([place.get(level, -1) for level in coded.levels] + [missing])[coded.codes]
        shift = 1 if self.drop_first else 0
        rows = np.flatnonzero(codes >= shift)
        shape = (sheet.rows, len(self._levels(column)))
        return scipy.sparse.csr_matrix((np.ones(len(rows)), (rows, codes[rows] - shift)), shape=shape)

    # ------------------------------------------------------------------ as JSON and arrays
    def message(self) -> dict[str, Any]:
        columns = [{"name": c.name, "levels": c.levels, "fill": c.fill} for c in self.columns]
        flags = {"drop_first": self.drop_first, "sparse": self.sparse, "named": self.named}
        return {"columns": columns, **flags}

    def arrays(self) -> dict[str, np.ndarray]:
        arrays = {"mean": self.mean, "scale": self.scale}
        return arrays if self.fill is None else arrays | {"fill": self.fill}

    @staticmethod
    def read(message: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Encoding:
        columns = tuple(
            Column(c["name"], None if c["levels"] is None else tuple(c["levels"]), c["fill"])
            for c in message["columns"]
        )
        flags = {name: bool(message[name]) for name in ("drop_first", "sparse", "named")}
        return Encoding(columns, arrays["mean"], arrays["scale"], arrays.get("fill"), **flags)

    @staticmethod
    def none(names: Sequence[str], named: bool = True) -> Encoding:
        """Numbers as they are."""
        return Encoding(tuple(map(Column, names)), np.zeros(len(names)), np.ones(len(names)), named=named)


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
