"""Files that are complete or absent.

An unfinished file has a temporary name, `.<name>.<random>.part`, in the folder where it is to stay, and is renamed
when it is complete. A process that is killed leaves a `.part` that readers ignore and `sweep` removes later;
two processes that make the same file do not interfere before the rename, and either result is complete.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

# seconds after which a part counts as abandoned
ABANDONED = 24 * 3600.0


@contextmanager
def part(folder: Path, name: str) -> Iterator[Path]:
    """A path for an unfinished file; removed at the end if it still exists."""
    path = folder / f".{name}.{uuid4().hex}.part"
    try:
        yield path
    finally:
        with suppress(OSError):
            path.unlink(missing_ok=True)


def write(path: Path, pieces: Iterable[bytes]) -> None:
    """A new file of these pieces, on the disk when this returns: the rename must come after its contents."""
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
        # Windows cannot replace a file that is open; the same file from another process is as good
        if not target.is_file() or target.stat().st_size != path.stat().st_size:
            raise


def sweep(folder: Path) -> None:
    """Remove what killed processes left here."""
    for path in folder.glob(".*.part"):
        with suppress(OSError):  # another process sweeps too
            if time.time() - path.stat().st_mtime > ABANDONED:
                path.unlink()
