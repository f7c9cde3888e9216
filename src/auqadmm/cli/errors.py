"""Errors that a command reports as one line."""

from __future__ import annotations

import tempfile
from pathlib import Path


class CommandError(Exception):
    """The message is all the user needs: one sentence, no traceback."""


def writable_folder(path: Path) -> Path:
    """The folder, made if need be and tried out by writing to it; before any work, not after."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except (FileExistsError, NotADirectoryError):
        raise CommandError(f"Cannot write to {path}: it is a file, or lies inside one; choose another --out.") from None
    except OSError as error:
        raise CommandError(f"Cannot write to {path}: {error.strerror or error}; choose another --out.") from None
    return path
