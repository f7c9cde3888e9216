"""Where `auqadmm fit` keeps its checkpoints: beside the folder of the model, never in it.

A model is handed on; checkpoints hold u_j, λ_j and W_j of every worker, which are as private as its rows. So they have
a folder of their own, which nobody else may open; they go when the run has converged and its model is written, and are
named on the screen when they stay. An earlier version kept them in --out: --resume moves them.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

from auqadmm.checkpoint import files
from auqadmm.checkpoint.codec import CheckpointError

OLD = "checkpoints"  # inside --out, where an earlier version kept them
LOCK = ".lock"


def place(out: Path, given: Path | None = None) -> Path:
    """The folder of the checkpoints of a fit."""
    if given is not None:
        return given
    named = out if out.name not in ("", "..") else out.resolve()
    return named.with_name(f"{named.name}.checkpoint")


def make(folder: Path) -> None:
    """For this user alone, if it is new."""
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700)


def foreign(folder: Path) -> list[str]:
    """Names of files that are no checkpoints."""
    if not os.path.lexists(folder):
        return []
    if folder.is_symlink() or not folder.is_dir():
        return [folder.name]
    known = (files.FOLDER, files.PART, re.compile(re.escape(LOCK)))
    return sorted(f"{folder.name}/{p.name}" for p in folder.iterdir() if not any(k.fullmatch(p.name) for k in known))


def begun(folder: Path) -> bool:
    """Whether there is a checkpoint to resume from."""
    return folder.is_dir() and any(files.FOLDER.fullmatch(p.name) for p in folder.iterdir())


def moved(old: Path, new: Path) -> Path:
    """Checkpoints of an earlier version, out of the folder of the model; where they are then."""
    files.Lock(old).release()  # not from under a run that is writing
    try:
        new.parent.mkdir(parents=True, exist_ok=True)
        os.rename(old, new)
        new.chmod(0o700)
    except OSError:  # another file system: they stay
        return old if begun(old) else new
    return new


def remove(folder: Path) -> None:
    """All checkpoints, and the folder if nothing else is in it; not those of a run that is writing."""
    if folder.is_symlink() or not folder.is_dir():
        return
    try:
        files.Lock(folder).release()
    except CheckpointError:
        return
    with suppress(OSError):
        for number in files.numbers(folder):
            files.remove(folder / files.name_of(number))
        files.sweep(folder)
    discard_empty(folder)


def discard_empty(folder: Path) -> None:
    """Remove a folder without checkpoints, with its lock."""
    with suppress(OSError):
        if not folder.is_symlink() and [p.name for p in folder.iterdir()] in ([], [LOCK]):
            (folder / LOCK).unlink(missing_ok=True)
            folder.rmdir()
