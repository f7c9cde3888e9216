"""csv and tsv files, read by pyarrow in blocks: a line longer than a block is refused before it fills the memory."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pyarrow.csv

from auqadmm.data import tabular
from auqadmm.data.tabular import Roles, Sheet
from auqadmm.data.tabular_arrow import sheet_of
from auqadmm.problem import InputError
from auqadmm.words import quoted

BLOCK = 1 << 24
MISSING = ["", "NA", "N/A", "#N/A", "NaN", "nan", "-nan", "-NaN", "null", "NULL", "<NA>"]
BINARY_CHECK = 1 << 16


def read_csv(path: Path, roles: Roles) -> Sheet:
    source = tabular.named(path)
    _refuse_binary(path, source)
    reading = pa.csv.ReadOptions(use_threads=False, block_size=BLOCK)  # in order: errors then know their row
    parsing = pa.csv.ParseOptions(delimiter="\t" if path.suffix.lower() == ".tsv" else ",", newlines_in_values=True)
    try:
        header = _header(path, source, reading, parsing)
        features = tabular.chosen(source, header, roles)
        converting = pa.csv.ConvertOptions(
            null_values=MISSING,
            strings_can_be_null=True,
            include_columns=list(dict.fromkeys([*features, *roles.special.values()])),
            column_types={name: pa.string() for name in roles.texts},
        )
        with path.open("rb") as file:
            table = pa.csv.read_csv(file, reading, parsing, converting)
    except pa.ArrowInvalid as error:
        raise _refusal(source, str(error)) from None
    except UnicodeDecodeError:
        raise InputError(f"{source} is not UTF-8 text; convert it.") from None
    return sheet_of(source, table, features, roles)


def _header(path: Path, source: str, reading: pa.csv.ReadOptions, parsing: pa.csv.ParseOptions) -> list[str]:
    """The names of all columns."""
    with path.open("rb") as file:
        try:
            return pa.csv.open_csv(file, reading, parsing).schema.names
        except pa.ArrowInvalid as error:
            if "cannot infer number of columns" in str(error) and path.stat().st_size >= BLOCK:
                raise _too_long(source) from None
            if "cannot infer number of columns" in str(error):  # one line without an end, or blank lines only
                raise InputError(f"{source} has no rows below its header; leave it out.") from None
            raise


def _refuse_binary(path: Path, source: str) -> None:
    with path.open("rb") as file:
        start = file.read(BINARY_CHECK)
    if b"\0" in start:
        raise InputError(f"{source} is not a text file; auqadmm reads csv as UTF-8.")


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
