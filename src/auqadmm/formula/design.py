"""From the columns of a frame to the matrix of a formula, with what all sites agreed upon.

Levels of factors are the union of those that occur at any site, in sorted order, or in the order that the formula lists
(`C(stage, levels=[…])`); the first is the reference unless the formula names another. Names are formulaic's.

Frames have columns of numbers (float64) and of text (objects); their index numbers the rows for sentences, and
`attrs["source"]` says where they come from. Rows are complete.

Shapes: n rows, m features; X (n, m) without the intercept.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from auqadmm.errors import InputError
from auqadmm.formula.parsing import FUNCTIONS, Formula, formulaic, parse
from auqadmm.formula.pooled import PooledColumns, PooledRows, state_of
from auqadmm.problem.agreement import Exchange, alone, together
from auqadmm.words import listed, quoted

if TYPE_CHECKING:
    import pandas as pd

FORMULA_LEVELS = 1000  # of a factor
INTERCEPT = "Intercept"


@dataclass(frozen=True, eq=False)
class FormulaDesign:
    """A formula with its agreed state. `levels`: of every column that is text or inside C(…); `texts`: those that are
    text. `features`: names of the columns of the matrix, without the intercept."""

    formula: Formula
    texts: tuple[str, ...]
    levels: Mapping[str, tuple[Any, ...]]
    states: Mapping[str, Mapping[str, Any]]
    features: tuple[str, ...] = ()

    # ------------------------------------------------------------------ rows
    def matrix(self, frame: pd.DataFrame, unseen: str = "error") -> np.ndarray:
        """X; a level that no row of the fit had is refused, or with `unseen="ignore"` counts as none."""
        names, X = self.named_matrix(frame, unseen)
        if names != self.features:
            raise InputError(f"The design of {_source(frame)} is not that of the fit; fit the model again.")
        return X

    def named_matrix(self, frame: pd.DataFrame, unseen: str = "error") -> tuple[tuple[str, ...], np.ndarray]:
        """The names of the features, and X."""
        from formulaic.materializers import PandasMaterializer
        from formulaic.model_spec import ModelSpec

        self._check(frame, unseen)
        spec = ModelSpec(
            formula=self.formula.right(), transform_state=self._states(), na_action="ignore", output="numpy"
        )
        errors = (formulaic().errors.FormulaicError, ValueError, KeyError, TypeError)
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")  # of levels that are ignored, and of logarithms of zero: told by row
                made = PandasMaterializer(self._coded(frame), context=self._context()).get_model_matrix(spec)
        except errors as error:
            text = f"The formula {quoted(self.formula.text, 200)} cannot be used: {quoted(str(error), 200)}."
            raise InputError(text) from None
        names = tuple(made.model_spec.column_names)
        X = np.asarray(made, dtype=np.float64)
        keep = [k for k, name in enumerate(names) if name != INTERCEPT]
        self._refuse_not_finite(frame, names, X)
        return tuple(names[k] for k in keep), np.ascontiguousarray(X[:, keep])

    def having(self, features: tuple[str, ...]) -> FormulaDesign:
        """With the names of the features."""
        if not features:
            text = quoted(self.formula.text, 200)
            raise InputError(f"The formula {text} has no feature beside the intercept; add a column.")
        return replace(self, features=features)

    def offset(self, frame: pd.DataFrame) -> np.ndarray | None:
        """The sum of the offsets; None where the formula has none."""
        if not self.formula.offsets:
            return None
        total = np.zeros(len(frame))
        for expression in self.formula.offsets:
            values = expression.of(frame)
            bad = np.flatnonzero(~np.isfinite(values))
            if bad.size:
                row, value = frame.index[bad[0]], values[bad[0]]
                raise InputError(
                    f"{_source(frame)}: row {row}: offset({expression.code}) is {value:g}; offsets are finite."
                )
            total = total + values
        return total

    # ------------------------------------------------------------------ inside
    def _check(self, frame: pd.DataFrame, unseen: str) -> None:
        for column, levels in self.levels.items():
            known = set(levels)
            new = [k for k, value in enumerate(frame[column].tolist()) if value not in known]
            if new and unseen != "ignore":
                value = plain(frame[column].tolist()[new[0]])
                raise InputError(
                    f"{_source(frame)}: row {frame.index[new[0]]}, column {quoted(column)} is {quoted(value)}, a level "
                    f"that no row of the fit had ({listed(levels)}); mend it, or leave the row out."
                )
        for call in self.formula.calls:
            if call.name != "bs" or call.arguments.get("extrapolation", "raise") != "raise":
                continue
            state, x = self.states[call.key], call.inner.of(frame)
            out = np.flatnonzero((x < state["lower_bound"]) | (x > state["upper_bound"]))
            if out.size:
                raise InputError(
                    f"{_source(frame)}: row {frame.index[out[0]]}: {call.inner.code} is {x[out[0]]:g}, beyond the ends "
                    f"of {quoted(call.key)}, {state['lower_bound']:g} and {state['upper_bound']:g}; leave the row out, "
                    "or fit with extrapolation='extend' in the formula."
                )

    def _refuse_not_finite(self, frame: pd.DataFrame, names: Sequence[str], X: np.ndarray) -> None:
        rows, places = np.nonzero(~np.isfinite(X))
        if rows.size:
            row, value = frame.index[rows[0]], X[rows[0], places[0]]
            raise InputError(f"{_source(frame)}: row {row}: {names[places[0]]} is {value:g}; mend it, or leave it out.")

    def _coded(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Text as categories with the agreed levels."""
        made = frame.loc[:, list(self.formula.columns)].copy()
        for column in self.texts:
            made[column] = self._category(frame[column])
        return made

    def _category(self, values: pd.Series) -> pd.Series:
        import pandas as pd

        levels = self.levels[values.name]
        place = {level: k for k, level in enumerate(levels)}
        codes = [place.get(value, -1) for value in values.tolist()]
        return pd.Series(pd.Categorical.from_codes(codes, list(levels)), values.index, name=values.name)

    def _context(self) -> dict[str, Any]:
        """Functions that formulaic does not have, or that must know the agreed levels."""
        from formulaic.transforms import C as mark

        def C(values: pd.Series, contrasts: Any = None, levels: Any = None, spans_intercept: bool = True) -> Any:
            coded = values if values.dtype == "category" else self._category(values)
            return mark(coded, contrasts, spans_intercept=spans_intercept)

        return {**{name: getattr(np, name) for name in FUNCTIONS}, "C": C}

    def _states(self) -> dict[str, dict[str, Any]]:
        """As formulaic holds them; it changes the dictionaries."""
        made = {}
        for key, state in self.states.items():
            own = dict(state)
            for name in ("alpha", "norms2"):
                if name in own:
                    own[name] = dict(enumerate(own[name]))
            if own.get("constraints") is not None:
                own["constraints"] = np.array(own["constraints"])
            made[key] = own
        return made

    # ------------------------------------------------------------------ as JSON
    def message(self) -> dict[str, Any]:
        return {
            "formula": self.formula.text,
            "texts": list(self.texts),
            "levels": {name: list(levels) for name, levels in self.levels.items()},
            "states": {key: dict(state) for key, state in self.states.items()},
            "features": list(self.features),
        }

    @staticmethod
    def read(message: Mapping[str, Any]) -> FormulaDesign:
        formula = parse(message["formula"])
        states = {call.key: message["states"][call.key] for call in formula.calls}
        levels = {str(name): tuple(values) for name, values in message["levels"].items()}
        return FormulaDesign(formula, tuple(message["texts"]), levels, states, tuple(message["features"]))


def agree(
    formula: Formula, frames: Sequence[pd.DataFrame], texts: Mapping[str, Sequence[str]], exchange: Exchange = alone
) -> FormulaDesign:
    """The design that all processes have in common; `texts` are the columns of text with the levels of all sites."""
    numbers = {name: _numeric_levels(name, frames, exchange) for name in formula.categories if name not in texts}
    bare = designed(formula, texts, numbers, PooledColumns(frames, exchange))

    def own() -> tuple[None, list[str] | None]:
        return None, list(bare.named_matrix(frames[0])[0]) if frames else None

    _, everyone = together(exchange, own)
    return bare.having(next(tuple(names) for names in everyone if names is not None))


def designed(
    formula: Formula, texts: Mapping[str, Sequence[str]], numbers: Mapping[str, Sequence[Any]], pool: PooledRows
) -> FormulaDesign:
    """Levels and states; features have no names yet. `numbers`: levels of factors that hold numbers."""
    unfit = [name for name in texts if name in {c for call in formula.calls for c in _columns(call.inner.code)}]
    if unfit:
        raise InputError(f"Column {quoted(unfit[0])} holds text; transforms take numbers.")
    levels = {name: _ordered(formula, name, found) for name, found in {**texts, **numbers}.items()}
    states = {call.key: state_of(call, pool) for call in formula.calls}
    return FormulaDesign(formula, tuple(texts), levels, states)


def reference_of(design: FormulaDesign, column: str) -> Any | None:
    """The level of a factor that no feature has to itself, where its coding has one."""
    levels = design.levels[column]

    def has_feature(level: object) -> bool:
        ends = [name.removesuffix(f"[T.{level}]") for name in design.features if name.endswith(f"[T.{level}]")]
        return any(name == column or name.startswith((f"C({column})", f"C({column},")) for name in ends)

    missing = [level for level in levels if not has_feature(level)]
    return missing[0] if len(missing) == 1 else None


def plain(value: Any) -> Any:
    """A level as JSON has it: whole numbers without a point."""
    if isinstance(value, np.generic):
        value = value.item()
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _numeric_levels(name: str, frames: Sequence[pd.DataFrame], exchange: Exchange) -> list[Any]:
    def own() -> tuple[None, list[Any]]:
        found = {level for frame in frames for level in own_levels(name, frame)}
        return None, sorted(found)

    _, parts = together(exchange, own)
    return merged_levels(name, parts)


def own_levels(name: str, frame: pd.DataFrame) -> list[Any]:
    """Of a column of numbers that is a factor."""
    found = [plain(value) for value in np.unique(frame[name].to_numpy()).tolist()]
    if len(found) > FORMULA_LEVELS:
        raise _too_many(f"{_source(frame)}: column", name, len(found))
    return found


def merged_levels(name: str, parts: Sequence[Sequence[Any]]) -> list[Any]:
    merged = sorted({level for part in parts for level in part})
    if len(merged) > FORMULA_LEVELS:
        raise _too_many("Over all sites, column", name, len(merged))
    return merged


def _too_many(where: str, name: str, count: int) -> InputError:
    """Levels travel as values: those of an id would tell who is who."""
    return InputError(
        f"{where} {quoted(name)} has {count} different values, too many for C(…), which takes {FORMULA_LEVELS} levels: "
        "is it an id? Leave it out, or use it as a number."
    )


def _ordered(formula: Formula, name: str, found: Sequence[Any]) -> tuple[Any, ...]:
    """Sorted, or as the formula lists them; at least two."""
    asked = formula.categories.get(name)
    if asked is not None:
        extra = [level for level in found if level not in asked]
        if extra:
            raise InputError(
                f"Column {quoted(name)} has the level {quoted(extra[0])}, which C({name}, levels=…) does not list."
            )
        found = [level for level in asked if level in set(found)]
    levels = tuple(found) if asked is not None else tuple(sorted(found))
    if len(levels) < 2:
        raise InputError(f"Column {quoted(name)} has one level in all rows ({listed(levels)}); leave it out.")
    return levels


def _columns(code: str) -> set[str]:
    import ast

    return {node.id for node in ast.walk(ast.parse(code, mode="eval")) if isinstance(node, ast.Name)}


def _source(frame: pd.DataFrame) -> str:
    return str(frame.attrs.get("source", "data"))
