"""A data set of a site: a file, the columns that may be used, and what of it may be described.

The coordinator learns names and kinds of columns, labels and levels, and how many rows there are; the mean and the
spread of columns are sums over all sites. A sentence about a value of a row stays at the site.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from auqadmm.errors import InputError
from auqadmm.files import suspects
from auqadmm.files.encoding import FormulaEncoding, frame_of
from auqadmm.files.preprocessing import Agreed, Settings, Summary, summarize
from auqadmm.files.tabular import Coded, Roles, Sheet, read
from auqadmm.files.training import Task, check_family, complete_factors, rows_of, shares
from auqadmm.formula.design import FormulaDesign, own_levels
from auqadmm.formula.parsing import Formula, parse
from auqadmm.problem.ingest import RawBlock
from auqadmm.sites.designs import check_leverage, check_share, read_design, sums_at
from auqadmm.sites.policy import Policy, PolicyError, check_binary, check_cells
from auqadmm.words import quoted

FEW_VALUES = 10  # of a column whose values are dealt out evenly to folds


@dataclass(frozen=True)
class Wanted:
    """What the coordinator asks a table for."""

    roles: Roles
    settings: Settings
    task: Task
    formula: str | None = None
    cv: str = ""
    picked: bool = True  # were the features named by the user?

    @property
    def used(self) -> tuple[str, ...]:
        """All columns that are read."""
        roles, own = self.roles, () if self.formula is None else (parse(self.formula).target,)
        special = (roles.target, roles.weight, roles.offset, roles.exposure, roles.time, roles.event, roles.entry)
        return tuple(dict.fromkeys([*(roles.features or ()), *(n for n in special if n is not None), *own]))


class SiteTable:
    """`columns`: those that may be used, None for all but `never`."""

    def __init__(
        self,
        name: str,
        path: Path,
        own: str,
        policy: Policy,
        columns: Sequence[str] | None = None,
        never: Sequence[str] = (),
    ) -> None:
        self.name, self.path, self.own, self.policy = name, path, own, policy
        self.columns, self.never = columns, tuple(never)
        self.sheet: Sheet | None = None
        self.center = False
        self.formula: Formula | None = None

    def header(self) -> tuple[str, ...]:
        """The names of the columns that may be used."""
        names = header(self.path)
        return tuple(n for n in names if n not in self.never and (self.columns is None or n in self.columns))

    def check_columns(self, columns: Sequence[str], target: str | None) -> None:
        free = set(self.header())
        for name in (*columns, *([] if target is None else [target])):
            if name not in free:
                raise PolicyError(f"the data set {quoted(self.name)} has no column {quoted(name)} for others to use")

    def described(self, wanted: Wanted) -> dict[str, Any]:
        """What the others must know: `Summary` without sums of rows."""
        formula = None if wanted.formula is None else parse(wanted.formula)
        roles = replace(wanted.roles, id=None, site=None, drop=(), gaps=formula is not None)
        if formula is not None:
            roles = replace(roles, features=formula.columns)
        if roles.features is None:
            raise PolicyError("the columns are named one by one")
        self.check_columns(replace(wanted, roles=roles).used, None)
        try:
            sheet, summary = self._summarized(roles, wanted, formula)
        except suspects.SuspectError as error:
            raise PolicyError(error.bare) from None
        self.sheet, self.center, self.formula = sheet, wanted.task.centred, formula
        bare = replace(
            summary,
            moments=np.zeros_like(summary.moments),
            target=None if summary.target is None else (0.0, 0.0, 0.0),
            dropped=0,
        )
        return bare.message()

    def _summarized(self, roles: Roles, wanted: Wanted, formula: Formula | None) -> tuple[Sheet, Summary]:
        sheet = replace(read(self.path, roles), source=self.own, ids=None, site=None)
        if not wanted.picked:
            suspects.refuse_numbered(sheet, replace(roles, features=None), self.path)
        if sheet.sparse:
            raise InputError("sparse files are not served by sites")
        target = roles.target or "y"
        check_family(sheet, target, wanted.task.family)
        if wanted.task.trials:
            sheet = shares(sheet, target, roles.weight or "trials")
        factors: dict[str, tuple[Any, ...]] = {}
        if formula is not None:
            sheet = complete_factors(sheet, formula, wanted.settings)
            frame = frame_of(sheet)
            for name in (n for n in formula.categories if n in sheet.number_names):
                check_cells(
                    self.policy, f"column {quoted(name)}", np.unique(frame[name], return_counts=True)[1].tolist()
                )
                factors[name] = tuple(own_levels(name, frame))
        self._check(sheet)
        return sheet, replace(summarize(sheet, wanted.settings), factors=factors)

    @property
    def kept(self) -> np.ndarray:
        """Which rows of the file are used."""
        sheet = self._read()
        out = np.zeros(sheet.rows + sheet.dropped, dtype=bool)
        out[np.arange(sheet.rows) if sheet.numbering is None else sheet.numbering - 1] = True
        return out

    def alike(self) -> list[np.ndarray]:
        """Codes of all columns of few values that others may use, fewest values first: whatever a fit uses."""
        import pyarrow.csv
        import pyarrow.parquet

        names = list(self.header())
        if self.path.suffix == ".parquet":
            table = pyarrow.parquet.read_table(self.path, columns=names)
        else:
            table = pyarrow.csv.read_csv(self.path).select(names)
        codes = [np.unique(table[name].to_pandas().astype(str), return_inverse=True)[1] for name in names]
        few = sorted((int(c.max(initial=0)), k) for k, c in enumerate(codes))
        return [codes[k] for levels, k in few if 0 < levels < FEW_VALUES]

    def _check(self, sheet: Sheet) -> None:
        policy = self.policy
        if sheet.rows < policy.min_rows:
            raise PolicyError(f"the data set {quoted(self.name)} has fewer than {policy.min_rows} rows")
        for name, column in sheet.texts.items():
            check_cells(policy, f"column {quoted(name)}", _counts(column))
        check_binary(policy, sheet.number_names, sheet.numbers)
        if isinstance(sheet.target, Coded):
            check_cells(policy, "the target", _counts(sheet.target))
        elif np.ndim(sheet.target) == 2 and int((sheet.target[:, 1] > 0).sum()) < policy.min_events:
            raise PolicyError(f"the data set {quoted(self.name)} has fewer than {policy.min_events} events")

    def added(self, what: str, names: Sequence[str], centre: np.ndarray | None) -> dict[str, np.ndarray]:
        """Sums over rows, of the named columns and of the target, last: Σw and Σwx, then the "squares" Σw(x − c)²."""
        sheet = self._read()
        place = {name: k for k, name in enumerate(sheet.number_names)}
        absent = np.full(sheet.rows, np.nan)
        columns = [np.asarray(sheet.numbers[:, place[n]]) if n in place else absent for n in names]
        plain = isinstance(sheet.target, np.ndarray) and sheet.target.ndim == 1
        columns.append(np.asarray(sheet.target, dtype=np.float64) if plain else absent)
        X = np.stack(columns, axis=1)
        present = np.isfinite(X)
        w = sheet.weights[:, None] * present
        filled = np.where(present, X, 0.0)
        if what == "sums":
            return {"weight": w.sum(0), "x": (w * filled).sum(0)}
        if what == "squares" and centre is not None and centre.shape == (X.shape[1],):
            return {"squares": (w * np.square(filled - centre)).sum(0)}
        raise PolicyError(f"{what[:20]!r} is not a sum over rows that is served")

    # ------------------------------------------------------------------ formulas
    def transformed(self, what: str, key: str, numbers: Sequence[float]) -> dict[str, np.ndarray]:
        """Sums over rows for the state of a transform."""
        return sums_at(self.policy, self._formula(), frame_of(self._read()), what, key, numbers)

    def features(self, message: Mapping[str, Any]) -> list[str]:
        """The names of the columns of a design."""
        return list(self._design(message).named_matrix(frame_of(self._read()))[0])

    def block(self, agreed: Agreed, message: Mapping[str, Any] | None = None) -> RawBlock:
        """The rows as numbers; `message`: the design of a formula."""
        if message is not None:
            agreed = replace(agreed, encoding=FormulaEncoding(self._design(message)))
        elif self.formula is not None:
            raise PolicyError("the formula has no design yet")
        (block,) = rows_of(self._read(), agreed, self.center)
        if message is not None:
            check_binary(self.policy, block.columns or (), block.X)
            check_leverage(self.policy, block.X)
            if block.offset is not None:
                check_binary(self.policy, ("offset",), block.offset[:, None])
                check_share(self.policy, "the offset", block.offset)
        return replace(block, name=self.own)

    def _design(self, message: Mapping[str, Any]) -> FormulaDesign:
        return read_design(self._formula().text, message)

    def _formula(self) -> Formula:
        if self.formula is None:
            raise PolicyError("no formula was declared")
        return self.formula

    def _read(self) -> Sheet:
        if self.sheet is None:
            raise PolicyError("the data set was not described before")
        return self.sheet


def _counts(column: Coded) -> Mapping[int, int]:
    codes, counts = np.unique(column.codes[column.codes >= 0], return_counts=True)
    return dict(zip(codes.tolist(), counts.tolist(), strict=True))


def header(path: Path) -> tuple[str, ...]:
    """The names of the columns of a csv or parquet file."""
    import pyarrow.csv
    import pyarrow.parquet

    try:
        if path.suffix == ".parquet":
            return tuple(pyarrow.parquet.read_schema(path).names)
        if path.suffix == ".csv":
            with pyarrow.csv.open_csv(path) as opened:
                return tuple(opened.schema.names)
    except (OSError, pyarrow.ArrowException) as error:
        raise InputError(f"{path} cannot be read ({type(error).__name__}).") from None
    raise InputError(f"{path}: a data set of a site is a csv or a parquet file.")
