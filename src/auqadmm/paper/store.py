"""A cache of results: one file per run, optimum or picture, named by its spec.

    <spec>-<code>.parquet   rows, with everything else as JSON in the file's own metadata
    <spec>-<code>.json      the same, where pyarrow is not installed
    <spec>-<code>.npz       arrays

<spec> is the digest of the spec, <code> that of the sources that the numbers depend on: a change of either is a miss. A
file appears complete or not at all, so an interrupted run leaves nothing behind; one that cannot be read is a miss.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from auqadmm.paper.spec import Spec, digest

COLUMNS = ("iteration", "rounds", "bytes", "seconds", "objective", "gap", "primal", "dual", "kkt")
# the sources that numbers depend on: everything below the API, and what builds problems and methods of experiments
SOURCES = (
    "core", "metrics", "verdict", "columns", "problem", "blocks", "methods", "curvature", "local", "engines", "runtime",
)  # fmt: skip
OWN = ("problems.py", "optimum.py", "pictures.py", "run.py")
ABOUT = b"auqadmm"


@dataclass(frozen=True, eq=False)
class Record:
    """The record of a run: `columns` name → values, equally long; `about` spec, optimum, status, system."""

    columns: Mapping[str, list[Any]]
    about: Mapping[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.columns["iteration"])

    def rows(self) -> list[dict[str, Any]]:
        return [dict(zip(self.columns, values, strict=True)) for values in zip(*self.columns.values(), strict=True)]


@lru_cache(maxsize=1)
def code() -> str:
    """Eight hexadecimal digits of a digest of the sources that the numbers depend on."""
    package = Path(__file__).parents[1]
    files = [path for room in SOURCES for path in (package / f"{room}.py", *sorted((package / room).rglob("*.py")))]
    files += [package / "paper" / name for name in OWN]
    whole = hashlib.sha256()
    for path in filter(Path.is_file, files):
        whole.update(str(path.relative_to(package)).encode() + b"\0" + path.read_bytes())
    return whole.hexdigest()[:8]


@dataclass(frozen=True)
class Store:
    """A folder of results. `any_code`: accept results of other versions of the code."""

    folder: Path
    any_code: bool = False

    # ------------------------------------------------------------------ rows
    def get(self, spec: Spec) -> Record | None:
        """The result of a spec, None where there is none that can be read."""
        return self._first(spec, {".parquet": _read_parquet, ".json": _read_json})

    def put(self, spec: Spec, record: Record) -> Path:
        if _pyarrow() is None:
            return self._write(spec, ".json", lambda path: _write_json(path, record))
        return self._write(spec, ".parquet", lambda path: _write_parquet(path, record))

    # ------------------------------------------------------------------ arrays
    def get_arrays(self, spec: Spec) -> dict[str, np.ndarray] | None:
        return self._first(spec, {".npz": _read_arrays})

    def put_arrays(self, spec: Spec, arrays: Mapping[str, np.ndarray]) -> Path:
        return self._write(spec, ".npz", lambda path: _write_arrays(path, arrays))

    # ------------------------------------------------------------------ files
    def _first(self, spec: Spec, readers: Mapping[str, Callable[[Path], Any]]) -> Any:
        stem = f"{digest(spec)}-{'*' if self.any_code else code()}"
        for suffix, read in readers.items():
            for path in sorted(self.folder.glob(stem + suffix), key=lambda p: p.stat().st_mtime, reverse=True):
                try:
                    return read(path)
                except Exception:  # unreadable: a miss; computing again replaces it
                    continue
        return None

    def _write(self, spec: Spec, suffix: str, write: Callable[[Path], None]) -> Path:
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{digest(spec)}-{code()}{suffix}"
        handle, name = tempfile.mkstemp(dir=self.folder, prefix=".writing-", suffix=suffix)
        os.close(handle)
        try:
            write(Path(name))
            os.replace(name, path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
        return path


# ---------------------------------------------------------------------- formats
def _pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        return None
    return pyarrow


def _write_parquet(path: Path, record: Record) -> None:
    pyarrow = _pyarrow()
    table = pyarrow.table({name: list(values) for name, values in record.columns.items()})
    table = table.replace_schema_metadata({ABOUT: json.dumps(record.about).encode()})
    pyarrow.parquet.write_table(table, path)


def _read_parquet(path: Path) -> Record:
    pyarrow = _pyarrow()
    table = pyarrow.parquet.read_table(path)
    return _checked(Record(table.to_pydict(), json.loads(table.schema.metadata[ABOUT])))


def _write_json(path: Path, record: Record) -> None:
    path.write_text(json.dumps({"columns": dict(record.columns), "about": record.about}), encoding="utf-8")


def _read_json(path: Path) -> Record:
    document = json.loads(path.read_text(encoding="utf-8"))
    return _checked(Record(document["columns"], document["about"]))


def _checked(record: Record) -> Record:
    if set(record.columns) != set(COLUMNS) or len({len(x) for x in record.columns.values()}) != 1:
        raise ValueError(f"columns {sorted(record.columns)}")
    return record


def _write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    with path.open("wb") as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]


def _read_arrays(path: Path) -> dict[str, np.ndarray]:
    with np.load(path, allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}
