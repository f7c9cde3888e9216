"""From arrow columns to a sheet: what csv, parquet and data frames have in common."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from auqadmm.files import tabular
from auqadmm.files.tabular import NUMBERS, Coded, Roles, Sheet
from auqadmm.problem import InputError
from auqadmm.words import quoted


def sheet_of(source: str, table: pa.Table, features: list[str], roles: Roles) -> Sheet:
    """A sheet of these features, and of the other columns that the roles name."""
    found: dict[str, str] = {}
    numbers: list[np.ndarray] = []
    texts: dict[str, Coded] = {}
    for name in features:
        column = _plain(source, name, table[name], name in roles.categorical)
        kind = found[name] = kind_of(column)
        if kind == "number":
            numbers.append(to_numbers(column))
        elif kind == "text":
            texts[name] = to_codes(column)
    rows = table.num_rows
    target = site = ids = weight = None
    if roles.target is not None:
        target = tabular.check_target(source, _target(source, table[roles.target], roles), roles.target)
    if roles.site is not None:
        site = tabular.check_site(source, to_codes(_simple(source, roles.site, table[roles.site])), roles.site)
    if roles.id is not None:
        values = np.empty(rows, dtype=object)
        values[:] = pc.cast(_simple(source, roles.id, table[roles.id]), pa.string()).to_pylist()
        ids = tabular.check_ids(source, values, roles.id, roles.unique_ids)
    if roles.weight is not None:
        column = _plain(source, roles.weight, table[roles.weight], False)
        if kind_of(column) == "text":
            raise _not_numbers(source, roles.weight, column, "weights must be numbers")
        weight = tabular.check_weight(source, to_numbers(column), roles.weight)
    matrix = np.column_stack(numbers) if numbers else np.zeros((rows, 0))
    return Sheet(source, rows, found, matrix, texts, target, site, ids, weight)


def kind_of(column: pa.ChunkedArray) -> str:
    if column.null_count == len(column):
        return "empty"
    return "text" if kinds.is_string(column.type) else "number"


def to_numbers(column: pa.ChunkedArray) -> np.ndarray:
    """float64, NaN where missing."""
    if kinds.is_boolean(column.type):
        column = pc.cast(column, pa.int8())
    values = pc.cast(column, pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    return np.array(values, dtype=np.float64)


def to_codes(column: pa.ChunkedArray) -> Coded:
    coded = pc.dictionary_encode(column.combine_chunks())
    if isinstance(coded, pa.ChunkedArray):
        coded = coded.combine_chunks()
    codes = coded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    return Coded(codes, tuple(coded.dictionary.to_pylist()))


def _plain(source: str, name: str, column: pa.ChunkedArray, as_text: bool) -> pa.ChunkedArray:
    """A column of numbers or of text; NaN counts as missing."""
    column = _words(column)
    type_ = column.type
    if kinds.is_string(type_) or kinds.is_null(type_):
        return column
    if kinds.is_float16(type_):
        column, type_ = pc.cast(column, pa.float32()), pa.float32()
    if kinds.is_boolean(type_) or kinds.is_integer(type_) or kinds.is_floating(type_) or kinds.is_decimal(type_):
        if kinds.is_floating(type_):
            column = pc.if_else(pc.is_nan(column), pa.scalar(None, type_), column)
        return pc.cast(column, pa.string()) if as_text else column
    if kinds.is_binary(type_) or kinds.is_large_binary(type_):
        raise InputError(f"{source}: column {quoted(name)} holds bytes that are not UTF-8 text; convert the file.")
    if as_text and kinds.is_temporal(type_):
        return pc.cast(column, pa.string())
    what = "dates or times" if kinds.is_temporal(type_) else f"values of type {type_}"
    raise InputError(
        f"{source}: column {quoted(name)} holds {what}, which no linear model takes; turn them into numbers, or leave "
        f"the column out (--drop)."
    )


def _simple(source: str, name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column of single values, of any kind."""
    column = _words(column)
    if kinds.is_nested(column.type) or kinds.is_binary(column.type) or kinds.is_large_binary(column.type):
        raise InputError(f"{source}: column {quoted(name)} holds values of type {column.type}; use text or numbers.")
    return column


def _words(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """All kinds of text as one."""
    if kinds.is_dictionary(column.type):
        column = pc.cast(column, column.type.value_type)
    if kinds.is_large_string(column.type) or pa.types.is_string_view(column.type):
        column = pc.cast(column, pa.string())
    return column


def _target(source: str, column: pa.ChunkedArray, roles: Roles) -> Any:
    assert roles.target is not None
    column = _plain(source, roles.target, column, as_text=False)
    if roles.labels:
        return to_codes(column)
    if kind_of(column) == "text":
        raise _not_numbers(source, roles.target, column, NUMBERS)
    return to_numbers(column)


def _not_numbers(source: str, name: str, column: pa.ChunkedArray, remedy: str) -> InputError:
    row, value = not_a_number(to_codes(column)) or (0, "")
    return tabular.refuse_row(source, row, name, f"is {quoted(value)}", remedy)


def not_a_number(column: Coded) -> tuple[int, str] | None:
    """The first row, from 0, whose text is no number, and the text."""
    return column.first(lambda text: not reads_as_number(text))


def reads_as_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
