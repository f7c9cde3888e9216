"""Parquet files: the schema first, then the columns that are needed."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet

from auqadmm.files import tabular
from auqadmm.files.tabular import Roles, Sheet
from auqadmm.files.tabular_arrow import sheet_of
from auqadmm.problem import InputError
from auqadmm.words import quoted


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
