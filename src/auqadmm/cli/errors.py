"""Errors that a command reports as one line."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from auqadmm.errors import AuqadmmError


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
