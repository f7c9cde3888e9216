"""Where commands write, and what they say when they cannot; the folder of one fit.

The folder is claimed before any work, filled at the end, and read again by `predict` and `report`.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from auqadmm.checkpoint.codec import CheckpointError
from auqadmm.cli import checkpoints
from auqadmm.core.history import History
from auqadmm.errors import AuqadmmError, InputError
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
SUMMARY, HISTORY, PAGE = "summary.json", "history.parquet", "report.html"
OURS = (SUMMARY, HISTORY, PAGE, checkpoints.OLD, model.ARRAYS, model.ABOUT)
COUNTS = ("iteration", "rounds", "bytes", "bytes_up", "bytes_down", "hvps")
COLUMNS = {name: pa.int64() if name in COUNTS else pa.float64() for name in History.columns}
COLUMNS["failed_blocks"] = pa.list_(pa.string())


@dataclass(frozen=True)
class Claimed:
    """The folder of a fit, and that of its checkpoints, or where they would be."""

    folder: Path
    saved: Path


def claim(out: Path, saved: Path, resume: bool, overwrite: bool, saving: bool = True) -> Claimed:
    """The output folder and that of checkpoints: empty, or of an earlier fit that the user wants to resume or replace.
    `saving`: the run will write checkpoints."""
    folder = writable_folder(out)
    names = sorted(p.name for p in folder.iterdir() if not (p.name.startswith(".") and p.name.endswith(".part")))
    old = folder / checkpoints.OLD
    # the summary is written first: without it only checkpoints can be from us
    ours = OURS if (folder / SUMMARY).exists() else (checkpoints.OLD,)
    foreign = [name for name in names if name not in ours] or checkpoints.foreign(old)
    if foreign:
        raise CommandError(f"{folder} holds something else ({listed(foreign, 3)}); choose an empty folder for --out.")
    _check_saved(folder, saved)
    if SUMMARY in names:
        read_summary(folder)
    if names == [checkpoints.OLD] and not checkpoints.begun(old):  # a run that failed before its first checkpoint
        names = []
    if (names or checkpoints.begun(saved)) and not (resume or overwrite):
        place, what = (folder, "an earlier fit") if names else (saved, "the checkpoints of an unfinished fit")
        raise CommandError(
            f"{place} holds {what}; --resume goes on with it, --overwrite replaces it, another --out keeps it."
        )
    if resume and checkpoints.begun(old) and not checkpoints.begun(saved):
        try:
            return Claimed(folder, checkpoints.moved(old, saved))
        except CheckpointError as error:
            raise CommandError(str(error)) from None
    if saving:
        _make_saved(saved)
    return Claimed(folder, saved)


def _check_saved(folder: Path, saved: Path) -> None:
    """The folder of checkpoints holds nothing else, and is not in the folder that is handed on."""
    inside = saved.resolve()
    if folder.resolve() in (inside, *inside.parents):
        raise CommandError(
            f"Checkpoints are as private as rows, and {saved} lies in --out, which is handed on; choose another "
            "--checkpoint."
        )
    foreign = checkpoints.foreign(saved)
    if foreign:
        raise CommandError(f"{saved} holds something else ({listed(foreign, 3)}); choose another --checkpoint.")


def _make_saved(saved: Path) -> None:
    remedy = "choose another place with --checkpoint, or none with --checkpoint-every 0"
    check_name(saved)
    with writing(saved, remedy):
        checkpoints.make(saved)
        with tempfile.TemporaryFile(dir=saved):
            pass


@contextmanager
def nothing_left(*folders: Path) -> Iterator[None]:
    """If the work fails, folders that it made and left empty go, with those above that it made."""
    made = [p for folder in folders for p in (folder, *folder.parents) if not os.path.lexists(p)]
    try:
        yield
    except BaseException:
        for path in sorted(set(made), key=lambda p: -len(p.parts)):
            checkpoints.discard_empty(path)
        raise


def finished(claimed: Claimed, paths: Sequence[Path], settings: Mapping[str, Any], seed: int) -> bool:
    """Whether --resume finds a fit that has converged, of the same files and settings; one that has no checkpoint to go
    on from is refused, as nothing tells whether it is of this run."""
    if not (claimed.folder / SUMMARY).exists() or checkpoints.begun(claimed.saved):
        return False
    told = read_summary(claimed.folder)
    asked = {**settings, "files": [str(path) for path in paths], "seed": seed}
    held = {**told.get("settings", {}), "kind": told.get("model"), "files": told.get("files"), "seed": told.get("seed")}
    limits = ("max_iter", "time_limit")
    asked, held = ({name: value for name, value in each.items() if name not in limits} for each in (asked, held))
    converged = told.get("status") in ("converged", "rounding")
    if converged and json.loads(json.dumps(finite(asked))) == held:
        checkpoints.discard_empty(claimed.saved)
        return True
    what = "has converged, of other files or settings" if converged else f"has no checkpoint in {claimed.saved}"
    raise InputError(
        f"The fit in {claimed.folder} {what}: there is nothing to go on from; --overwrite fits again, another --out "
        "keeps it."
    )


def clear(claimed: Claimed, saving: bool) -> None:
    """Remove the earlier fit from a folder that was claimed; `saving`: the folder of checkpoints is needed again."""
    checkpoints.remove(claimed.saved)
    if saving:
        _make_saved(claimed.saved)
    for name in (*OURS[1:], SUMMARY):  # the summary last: it identifies the others
        path = claimed.folder / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def refuse_unfinished(folder: Path) -> None:
    """A killed run leaves only checkpoints."""
    begun = any(checkpoints.begun(place) for place in (checkpoints.place(folder), folder / checkpoints.OLD))
    if begun and not any((folder / name).exists() for name in OURS if name != checkpoints.OLD):
        raise CommandError(f"The fit in {folder} has not finished; go on with it: the same auqadmm fit with --resume.")


def write_all(claimed: Claimed, summary: Mapping[str, Any], history: History, parts: Parts) -> list[Path]:
    """All files of a fit, the page first in the list."""
    onward = "go on with --resume" if checkpoints.begun(claimed.saved) else "fit again with --overwrite"
    with writing(claimed.folder, f"make room, and {onward}"):
        return _written(claimed.folder, summary, history, parts)


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
