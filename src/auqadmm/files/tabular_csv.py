"""csv and tsv files, read by pyarrow in blocks: a line longer than a block is refused before it fills the memory."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.csv

from auqadmm.files import tabular
from auqadmm.files.tabular import Roles, Sheet
from auqadmm.files.tabular_arrow import not_a_number, reads_as_number, sheet_of
from auqadmm.problem import InputError
from auqadmm.words import quoted

BLOCK = 1 << 24
MISSING = ["", "NA", "N/A", "#N/A", "NaN", "nan", "-nan", "-NaN", "null", "NULL", "<NA>"]
BINARY_CHECK = 1 << 16
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
    reading = pa.csv.ReadOptions(use_threads=False, block_size=BLOCK)  # in order: errors then know their row
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


def _header(path: Path, source: str, reading: pa.csv.ReadOptions, parsing: pa.csv.ParseOptions) -> list[str]:
    """The names of all columns."""
    with pa.OSFile(os.fsencode(path)) as file:
        try:
            with pa.csv.open_csv(file, reading, parsing) as opened:
                return opened.schema.names
        except pa.ArrowInvalid as error:
            if "cannot infer number of columns" in str(error) and path.stat().st_size >= BLOCK:
                raise _too_long(source) from None
            if "cannot infer number of columns" in str(error):  # one line without an end, or blank lines only
                raise InputError(f"{source} has no rows below its header; leave it out.") from None
            raise


def _refuse_spoilt(sheet: Sheet, roles: Roles) -> None:
    """A column of numbers with a slip in it reads as text, and would become one feature per number."""
    if roles.target is None:  # a model that predicts knows what its columns are
        return
    for name, column in sheet.texts.items():
        alike = sum(_numeric(level) for level in column.levels)
        if name in roles.categorical or 2 * alike <= len(column.levels):
            continue
        row, value = not_a_number(column) or column.first(bool) or (0, "")  # 1_000 is one to Python only
        remedy = "write numbers with a point" if DECIMAL_COMMA.fullmatch(value) else "mend the value, or write NA"
        told = f"is {quoted(value)} in a column of numbers"
        raise tabular.refuse_row(sheet.source, row, name, told, f"{remedy}, or list the column in --categorical")


def _numeric(level: str) -> bool:
    """Whether it is a number to people."""
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


def _refusal(source: str, told: str) -> InputError:
    """What pyarrow says, in a sentence with the file and the row."""
    if "straddl" in told:
        return _too_long(source)
    wrong = re.search(r"Row #(\d+): Expected (\d+) columns, got (\d+)", told)
    if wrong:
        row, expected, got = map(int, wrong.groups())
        return InputError(f"{source}: row {row - 1} has {got} fields but the header {expected}; mend the row.")
    if "invalid UTF8" in told:
        return InputError(f"{source} is not UTF-8 text; convert it.")
    return InputError(f"{source} cannot be read as csv: {quoted(told, 200)}.")


def _too_long(source: str) -> InputError:
    return InputError(
        f"{source} has a row longer than {BLOCK >> 20} MiB, or a quote that is never closed; it is not read."
    )
