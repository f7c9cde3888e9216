"""Files that are whole or not there.

A file in the making has a name of its own, `.<name>.<random>.part`, in the folder where it is to stay, and is renamed
when it is complete. A process that is killed leaves a `.part` that no reader looks at and that `sweep` removes later;
two processes that make the same file do not meet before the rename, and either result is a whole file.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

# seconds after which a part belongs to no process any more
ABANDONED = 24 * 3600.0


@contextmanager
def part(folder: Path, name: str) -> Iterator[Path]:
    """A path for a file in the making; what is still there at the end is removed, whatever happened."""
    path = folder / f".{name}.{uuid4().hex}.part"
    try:
        yield path
    finally:
        with suppress(OSError):
            path.unlink(missing_ok=True)


def write(path: Path, pieces: Iterable[bytes]) -> None:
    """A new file of these pieces, on the disk when this returns: a rename must not overtake its contents."""
    with path.open("xb") as file:
        for piece in pieces:
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())


def keep(path: Path, target: Path) -> None:
    """Give a complete part its final name, in place of an older file of that name."""
    try:
        os.replace(path, target)
    except PermissionError:
        # Windows replaces no file that somebody reads; the same file, made by somebody else, is as good
        if not target.is_file() or target.stat().st_size != path.stat().st_size:
            raise


def sweep(folder: Path) -> None:
    """Remove what killed processes left here."""
    for path in folder.glob(".*.part"):
        with suppress(OSError):  # somebody else sweeps too
            if time.time() - path.stat().st_mtime > ABANDONED:
                path.unlink()
