"""From arrow columns to a sheet: csv, parquet and data frames.

csv and tsv files are read in blocks: a line longer than a block is refused before it fills the memory. Of parquet files
the schema is read first, then the columns that are needed.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet
import pyarrow.types as kinds

from auqadmm.files import tabular
from auqadmm.files.tabular import NUMBERS, Coded, Roles, Sheet
from auqadmm.files.times import NEEDED, check_times
from auqadmm.problem import InputError
from auqadmm.words import quoted


def sheet_of(source: str, table: pa.Table, features: list[str], roles: Roles) -> Sheet:
    """A sheet of these features, and of the other columns that the roles name."""
    kinds: dict[str, str] = {}
    numbers: list[np.ndarray] = []
    texts: dict[str, Coded] = {}
    for name in features:
        column = _plain(source, name, table[name], name in roles.categorical)
        kind = kinds[name] = kind_of(column)
        if kind == "number":
            numbers.append(to_numbers(column))
        elif kind == "text":
            texts[name] = to_codes(column)
    rows = table.num_rows
    target = site = ids = weight = None
    if roles.target is not None:
        target = tabular.check_target(source, _target(source, table[roles.target], roles), roles.target, roles.gaps)
    elif roles.time is not None:
        target = _times(source, table, roles)
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
        weight = tabular.check_weight(source, to_numbers(column), roles.weight, roles.gaps)
    offset = _shift(source, table, roles.offset, False, roles.gaps)
    exposure = _shift(source, table, roles.exposure, True, roles.gaps)
    matrix = np.column_stack(numbers) if numbers else np.zeros((rows, 0))
    return Sheet(source, rows, kinds, matrix, texts, target, site, ids, weight, offset=offset, exposure=exposure)


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


def _times(source: str, table: pa.Table, roles: Roles) -> np.ndarray:
    """Time, event and entry of every row, (n, 3); entry is 0 where no column says it."""
    columns = []
    for what, name in (("time", roles.time), ("event", roles.event), ("entry", roles.entry)):
        if name is None:
            columns.append(np.zeros(table.num_rows))
            continue
        column = _plain(source, name, table[name], False)
        if kind_of(column) == "text":
            raise _not_numbers(source, name, column, NEEDED[what])
        columns.append(to_numbers(column))
    return check_times(source, np.column_stack(columns), roles)


def _shift(source: str, table: pa.Table, name: str | None, exposure: bool, gaps: bool) -> np.ndarray | None:
    """An offset or an exposure."""
    if name is None:
        return None
    column = _plain(source, name, table[name], False)
    if kind_of(column) == "text":
        raise _not_numbers(source, name, column, f"{'exposures' if exposure else 'offsets'} must be numbers")
    return tabular.check_offset(source, to_numbers(column), name, exposure, gaps)


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


CSV_BLOCK = 1 << 24  # bytes that pyarrow reads at a time: no line may be longer
MISSING = ["", "NA", "N/A", "#N/A", "NaN", "nan", "-nan", "-NaN", "null", "NULL", "<NA>"]
BINARY_CHECK = 1 << 16  # bytes in which a text file holds no NUL
SEPARATORS = (";", "\t", "|", ",")
DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+")
BEGINNINGS = {
    b"\x1f\x8b": "compressed; unpack it first",
    b"PK\x03\x04": "a zip archive or a spreadsheet; save it as csv",
    b"\xff\xfe": "UTF-16 text; save it as UTF-8",
    b"\xfe\xff": "UTF-16 text; save it as UTF-8",
}


def read_csv(path: Path, roles: Roles) -> Sheet:
    source = tabular.named(path)
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    _check_start(path, source, delimiter)
    reading = pa.csv.ReadOptions(use_threads=False, block_size=CSV_BLOCK)  # in order: errors then know their row
    parsing = pa.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    try:
        header = _header(path, source, reading, parsing)
        features = tabular.chosen(source, header, roles)
        converting = pa.csv.ConvertOptions(
            null_values=MISSING,
            strings_can_be_null=True,
            include_columns=list(dict.fromkeys([*features, *roles.special.values()])),
            column_types={name: pa.string() for name in roles.texts},
        )
        with pa.OSFile(os.fsencode(path)) as file:
            table = pa.csv.read_csv(file, reading, parsing, converting)
    except pa.ArrowInvalid as error:
        raise _refusal(source, str(error)) from None
    except UnicodeDecodeError:
        raise InputError(f"{source} is not UTF-8 text; convert it.") from None
    sheet = sheet_of(source, table, features, roles)
    _refuse_spoilt(sheet, roles)
    return sheet


def first_texts(path: Path, names: list[str]) -> dict[str, list[str]]:
    """What a csv file that was read before has in these columns, as it is written, in its first block."""
    parsing = pa.csv.ParseOptions(delimiter="\t" if path.suffix.lower() == ".tsv" else ",", newlines_in_values=True)
    converting = pa.csv.ConvertOptions(
        include_columns=names, column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=False
    )
    with (
        pa.OSFile(os.fsencode(path)) as file,
        pa.csv.open_csv(file, pa.csv.ReadOptions(use_threads=False), parsing, converting) as opened,
    ):
        batch = opened.read_next_batch()
    return {name: [str(text).strip() for text in batch.column(name).to_pylist()] for name in names}


def _header(path: Path, source: str, reading: pa.csv.ReadOptions, parsing: pa.csv.ParseOptions) -> list[str]:
    """The names of all columns."""
    with pa.OSFile(os.fsencode(path)) as file:
        try:
            with pa.csv.open_csv(file, reading, parsing) as opened:
                return opened.schema.names
        except pa.ArrowInvalid as error:
            if "cannot infer number of columns" in str(error) and path.stat().st_size >= CSV_BLOCK:
                raise _too_long(source) from None
            if "cannot infer number of columns" in str(error):  # one endless line, or blank lines only
                raise InputError(f"{source} has no rows below its header; leave it out.") from None
            raise


def _refuse_spoilt(sheet: Sheet, roles: Roles) -> None:
    """A numeric column with a typo reads as text, and would become one feature per number."""
    if roles.target is None and roles.time is None:  # at prediction the model knows the types
        return
    for name, column in sheet.texts.items():
        alike = sum(_numeric(level) for level in column.levels)
        if name in roles.categorical or 2 * alike <= len(column.levels):
            continue
        row, value = not_a_number(column) or column.first(bool) or (0, "")  # 1_000 is a number to Python only
        remedy = "write numbers with a point" if DECIMAL_COMMA.fullmatch(value) else "mend the value, or write NA"
        what = f"is {quoted(value)} in a column of numbers"
        raise tabular.refuse_row(sheet.source, row, name, what, f"{remedy}, or list the column in --categorical")


def _numeric(level: str) -> bool:
    """Whether a person would read it as a number."""
    return reads_as_number(level) or DECIMAL_COMMA.fullmatch(level) is not None


def _check_start(path: Path, source: str, delimiter: str) -> None:
    """Other kinds of files by how they begin."""
    with path.open("rb") as file:
        start = file.read(BINARY_CHECK)
    for begin, what in BEGINNINGS.items():
        if start.startswith(begin):
            raise InputError(f"{source} is {what}.")
    if b"\0" in start:
        raise InputError(f"{source} is not a text file; auqadmm reads csv as UTF-8.")
    header = start.splitlines()[0] if start else b""
    other = next((mark for mark in SEPARATORS if mark.encode() in header), None)
    if delimiter.encode() not in header and other is not None:
        ways = {",": "commas", "\t": "tabs"}
        raise InputError(
            f"{source}: the header has {quoted(other)} between the names; separate columns by {ways[delimiter]}."
        )


def _refusal(source: str, reason: str) -> InputError:
    """An error of pyarrow as a sentence with the file and the row."""
    if "straddl" in reason:
        return _too_long(source)
    wrong = re.search(r"Row #(\d+): Expected (\d+) columns, got (\d+)", reason)
    if wrong:
        row, expected, got = map(int, wrong.groups())
        return InputError(f"{source}: row {row - 1} has {got} fields but the header {expected}; mend the row.")
    if "invalid UTF8" in reason:
        return InputError(f"{source} is not UTF-8 text; convert it.")
    return InputError(f"{source} cannot be read as csv: {quoted(reason, 200)}.")


def _too_long(source: str) -> InputError:
    return InputError(
        f"{source} has a row longer than {CSV_BLOCK >> 20} MiB, or a quote that is never closed; it is not read."
    )


def read_parquet(path: Path, roles: Roles) -> Sheet:
    source = tabular.named(path)
    try:
        with pa.parquet.ParquetFile(path) as file:
            features = tabular.chosen(source, list(file.schema_arrow.names), roles)
            table = file.read(columns=list(dict.fromkeys([*features, *roles.special.values()])), use_threads=False)
            table.validate(full=True)  # text that is no UTF-8, offsets beyond the data
    except (pa.ArrowException, OSError, ValueError) as error:
        if isinstance(error, MemoryError | InputError):
            raise
        raise InputError(f"{source} cannot be read as parquet: {quoted(str(error), 200)}.") from None
    return sheet_of(source, table, features, roles)
