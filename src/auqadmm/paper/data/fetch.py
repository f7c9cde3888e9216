"""Download one published file: size and SHA-256 as published, or a `DataError` and nothing on the disk."""

from __future__ import annotations

import hashlib
import http.client
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from auqadmm.files.atomic import keep, part, sweep, write
from auqadmm.paper.data.images import PIECE, DataError
from auqadmm.paper.data.sources import Source
from auqadmm.paper.data.unpack import unpack

# called with the name of a file, the bytes that have arrived and the bytes it has
Progress = Callable[[str, int, int], Any]
# seconds without a byte after which a server counts as gone
PATIENCE = 30.0


def fetch(source: Source, folder: Path, progress: Progress | None = None, timeout: float = PATIENCE) -> None:
    """Download `source` into `folder`; an archive is unpacked there and not kept.

    Parameters
    ----------
    progress
        Called as `progress(file, done, total)` before the first byte and after every piece. What it raises ends the
        download, and nothing is kept.
    timeout
        Seconds without a byte after which the download fails.
    """
    with _writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        sweep(folder)
        with part(folder, source.file) as path:
            write(path, _pieces(source, progress or _silent, timeout))
            if source.members:
                unpack(path, folder, source.members, label=source.url)
            else:
                keep(path, folder / source.file)


def _pieces(source: Source, progress: Progress, timeout: float) -> Iterator[bytes]:
    """The bytes of the file as they arrive; an error in place of the last ones if they are not those published."""
    digest, done = hashlib.sha256(), 0
    progress(source.file, 0, source.size)
    with _network(source, timeout):
        response = urlopen(Request(source.url, headers={"User-Agent": "auqadmm"}), timeout=timeout)
    with response:
        announced = response.headers.get("Content-Length", "")
        if announced.isdigit() and int(announced) != source.size:
            # another file, a page that says so politely, a login
            raise _refusal(source, f"the file there has {announced} bytes, the published one {source.size}")
        while True:
            with _network(source, timeout):
                piece = response.read1(PIECE)  # what has arrived, so that slow servers show progress too
            if not piece:
                break
            done += len(piece)
            if done > source.size:
                raise _refusal(source, f"more than the {source.size} bytes of the published file arrived")
            digest.update(piece)
            yield piece
            progress(source.file, done, source.size)
    if done < source.size:
        raise _refusal(source, f"the connection ended after {done} of {source.size} bytes")
    if digest.hexdigest() != source.sha256:
        found = digest.hexdigest()[:12]
        raise _refusal(source, f"what arrived has the SHA-256 {found}…, the published file {source.sha256[:12]}…")


def _silent(file: str, done: int, total: int) -> None:
    pass


def _refusal(source: Source, what: str) -> DataError:
    itself = "download and unpack it yourself" if source.members else "download it yourself"
    return DataError(
        f"{source.file} cannot be downloaded from {source.url}: {what}; nothing was kept: try again later, or {itself} "
        "and name its folder with --data DIR or AUQADMM_DATA."
    )


@contextmanager
def _network(source: Source, timeout: float) -> Iterator[None]:
    try:
        yield
    except HTTPError as error:
        error.close()
        raise _refusal(source, f"the server answers {error.code} ({_line(error.reason)})") from None
    except (OSError, http.client.HTTPException, ValueError) as error:  # ValueError: redirected to no address
        cause = error.reason if isinstance(error, URLError) else error
        if isinstance(cause, TimeoutError):
            raise _refusal(source, f"nothing arrived for {timeout:g} s") from None
        reason = getattr(cause, "strerror", None) or str(cause) or type(cause).__name__
        raise _refusal(source, f"no connection, or it broke ({_line(reason)})") from None


def _line(words: object) -> str:
    """What a server or urllib says, short and in one line; a terminal is not to obey it."""
    return " ".join("".join(c if c.isprintable() else " " for c in str(words)[:200]).split())


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise DataError(
            f"{folder}: cannot be written to ({reason}); make room there or set XDG_CACHE_HOME to another folder, or "
            "name a folder that has the files with --data DIR or AUQADMM_DATA."
        ) from None
