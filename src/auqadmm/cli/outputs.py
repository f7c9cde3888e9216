"""Where commands write, and what they say when they cannot; the folder of one fit.

The folder is claimed before any work, filled at the end, and read again by `predict` and `report`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from auqadmm.checkpoint import files
from auqadmm.core.history import History
from auqadmm.errors import AuqadmmError
from auqadmm.files import atomic, model
from auqadmm.files.model import Parts
from auqadmm.report.page import page_html
from auqadmm.report.single import fit_report
from auqadmm.report.tables import finite
from auqadmm.words import listed


# ---------------------------------------------------------------------- errors, in one line
class CommandError(AuqadmmError):
    """The message is all the user needs: one sentence, no traceback."""


def reason(error: OSError) -> str:
    """The system's error text, which libraries wrap in their own."""
    return os.strerror(error.errno) if error.errno else error.strerror or str(error)


def writable_folder(path: Path) -> Path:
    """The folder, created if needed and tested by a write; before any work, not after."""
    check_name(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except (FileExistsError, NotADirectoryError):
        raise CommandError(f"Cannot write to {path}: it is a file, or lies inside one; choose another --out.") from None
    except OSError as error:
        raise CommandError(f"Cannot write to {path}: {reason(error)}; choose another --out.") from None
    return path


@contextmanager
def writing(folder: Path, remedy: str = "make room, or choose another --out") -> Iterator[None]:
    """A full or missing disk as one sentence."""
    try:
        yield
    except OSError as error:
        raise CommandError(f"Cannot write to {folder}: {reason(error)}; {remedy}.") from error


def check_name(path: Path) -> None:
    """Bytes that are no UTF-8 reach Python as lone surrogates, which neither JSON nor parquet can encode."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise CommandError(f"Cannot write to {path}: its name is not UTF-8; choose another --out.") from None


# ---------------------------------------------------------------------- the folder of one fit
FORMAT, FIT_VERSION = "auqadmm fit", 1
SUMMARY, HISTORY, PAGE, CHECKPOINTS = "summary.json", "history.parquet", "report.html", "checkpoints"
OURS = (SUMMARY, HISTORY, PAGE, CHECKPOINTS, model.ARRAYS, model.ABOUT)
COUNTS = ("iteration", "rounds", "bytes", "bytes_up", "bytes_down", "hvps")
COLUMNS = {name: pa.int64() if name in COUNTS else pa.float64() for name in History.columns}
COLUMNS["failed_blocks"] = pa.list_(pa.string())


def claim(out: Path, resume: bool, overwrite: bool) -> Path:
    """The output folder: empty, or of an earlier fit that the user wants to resume or replace."""
    folder = writable_folder(out)
    names = sorted(p.name for p in folder.iterdir() if not (p.name.startswith(".") and p.name.endswith(".part")))
    # the summary is written first: without it only checkpoints can be from us
    ours = OURS if (folder / SUMMARY).exists() else (CHECKPOINTS,)
    foreign = [name for name in names if name not in ours] or _foreign_checkpoints(folder / CHECKPOINTS)
    if foreign:
        raise CommandError(f"{folder} holds something else ({listed(foreign, 3)}); choose an empty folder for --out.")
    if SUMMARY in names:
        read_summary(folder)
    if names == [CHECKPOINTS] and not _begun(folder):  # a run that failed before its first checkpoint leaves a lock
        names = []
    if names and not (resume or overwrite):
        raise CommandError(
            f"{folder} holds an earlier fit; --resume goes on with it, --overwrite replaces it, another --out keeps it."
        )
    return folder


def clear(folder: Path) -> None:
    """Remove the earlier fit from a folder that was claimed."""
    for name in (*OURS[1:], SUMMARY):  # the summary last: it identifies the others
        path = folder / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _foreign_checkpoints(folder: Path) -> list[str]:
    """Foreign files among the checkpoints."""
    if not os.path.lexists(folder):
        return []
    if folder.is_symlink() or not folder.is_dir():
        return [CHECKPOINTS]
    known = (files.FOLDER, files.PART, re.compile(r"\.lock"))
    return sorted(f"{CHECKPOINTS}/{p.name}" for p in folder.iterdir() if not any(k.fullmatch(p.name) for k in known))


def _begun(folder: Path) -> bool:
    """Whether there is a checkpoint to resume from."""
    checkpoints = folder / CHECKPOINTS
    return checkpoints.is_dir() and any(files.FOLDER.fullmatch(p.name) for p in checkpoints.iterdir())


def refuse_unfinished(folder: Path) -> None:
    """A killed run leaves only checkpoints."""
    if _begun(folder) and not any((folder / name).exists() for name in OURS if name != CHECKPOINTS):
        raise CommandError(f"The fit in {folder} has not finished; go on with it: the same auqadmm fit with --resume.")


def write_all(folder: Path, summary: Mapping[str, Any], history: History, parts: Parts) -> list[Path]:
    """All files of a fit, the page first in the list."""
    with writing(folder, f"make room, and {'go on with --resume' if _begun(folder) else 'fit again with --overwrite'}"):
        return _written(folder, summary, history, parts)


def _written(folder: Path, summary: Mapping[str, Any], history: History, parts: Parts) -> list[Path]:
    rows = history.to_dicts()
    text = json.dumps(finite(summary), indent=2, allow_nan=False) + "\n"
    _write(folder, SUMMARY, text.encode())
    model.write(parts, folder)
    with atomic.part(folder, HISTORY) as path:
        columns = {name: pa.array([row[name] for row in rows], kind) for name, kind in COLUMNS.items()}
        pa.parquet.write_table(pa.table(columns), path)
        atomic.keep(path, folder / HISTORY)
    page = write_page(folder, summary, rows, parts)
    return [page, folder / SUMMARY, folder / HISTORY, folder / model.ARRAYS, folder / model.ABOUT]


def write_page(folder: Path, summary: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], parts: Parts) -> Path:
    _write(folder, PAGE, page_html(fit_report(summary, rows, parts)).encode("utf-8"))
    return folder / PAGE


def read_summary(folder: Path) -> dict[str, Any]:
    """summary.json of a fit, or a clear error."""
    path = folder / SUMMARY
    if not path.is_file():
        raise CommandError(f"{folder} is not the folder of a fit: {SUMMARY} is missing.")
    try:
        summary = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        summary = None
    if not isinstance(summary, dict) or summary.get("format") != FORMAT:
        raise CommandError(f"{path} was not written by auqadmm fit; choose another folder.")
    if summary.get("version") != FIT_VERSION:
        raise CommandError(
            f"{path} has another format than this library reads ({FIT_VERSION}); use the version that wrote it."
        )
    return summary


def read_history(folder: Path) -> list[dict[str, Any]]:
    path = folder / HISTORY
    try:
        table = pa.parquet.ParquetFile(path).read(columns=list(COLUMNS))
    except (OSError, pa.ArrowException):
        raise CommandError(f"{path} is missing or damaged; fit again.") from None
    if set(table.column_names) != set(COLUMNS):
        raise CommandError(f"{path} lacks columns of a history; fit again.")
    return table.to_pylist()


def _write(folder: Path, name: str, data: bytes) -> None:
    with atomic.part(folder, name) as path:
        atomic.write(path, [data])
        atomic.keep(path, folder / name)
