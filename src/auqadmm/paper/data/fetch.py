"""Download one published file: size and SHA-256 as published, or a `DataError` and nothing on the disk.

Of a .tar.gz only expected files are written. An archive can name files outside the folder it is unpacked in, links to
them, devices, and sizes that fill a disk. So the caller lists the members it wants, with their sizes. Anything but
plain files and folders with plain names makes the whole archive refused, as do other sizes; other plain files
are skipped. No more is decompressed than the wanted members and a small allowance, and all files get their
names at the end or none does.
"""

from __future__ import annotations

import gzip
import hashlib
import http.client
import posixpath
import tarfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from auqadmm.files.atomic import keep, part, sweep, write
from auqadmm.paper.data.images import READ_AT_ONCE, DataError
from auqadmm.paper.data.sources import Source

# called with the name of a file, the bytes received and the total
Progress = Callable[[str, int, int], Any]
# seconds without a byte after which a server counts as gone
DOWNLOAD_PATIENCE = 30.0


def fetch(source: Source, folder: Path, progress: Progress | None = None, timeout: float = DOWNLOAD_PATIENCE) -> None:
    """Download `source` into `folder`; an archive is unpacked there and not kept.

    Parameters
    ----------
    progress
        Called as `progress(file, done, total)` before the first byte and after every piece. An exception ends the
        download, without a file.
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
    """The bytes of the file as they arrive; an error before the last ones if the checksum differs."""
    digest, done = hashlib.sha256(), 0
    progress(source.file, 0, source.size)
    with _network(source, timeout):
        response = urlopen(Request(source.url, headers={"User-Agent": "auqadmm"}), timeout=timeout)
    with response:
        announced = response.headers.get("Content-Length", "")
        if announced.isdigit() and int(announced) != source.size:
            # another file, an error page, a login
            raise _refusal(source, f"the file there has {announced} bytes, the published one {source.size}")
        while True:
            with _network(source, timeout):
                piece = response.read1(READ_AT_ONCE)  # returns what has arrived, so that slow servers show progress too
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
        actual = digest.hexdigest()[:12]
        raise _refusal(source, f"what arrived has the SHA-256 {actual}…, the published file {source.sha256[:12]}…")


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
    except (OSError, http.client.HTTPException, ValueError) as error:  # ValueError: a redirect to an invalid address
        cause = error.reason if isinstance(error, URLError) else error
        if isinstance(cause, TimeoutError):
            raise _refusal(source, f"nothing arrived for {timeout:g} s") from None
        reason = getattr(cause, "strerror", None) or str(cause) or type(cause).__name__
        raise _refusal(source, f"no connection, or it broke ({_line(reason)})") from None


def _line(words: object) -> str:
    """An error of the server or urllib, short and in one line, without control characters."""
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


# bytes of headers, padding and small files besides the members
ALLOWANCE = 4 << 20
# members; tarfile keeps every one in memory
MOST_FILES = 1000
PLAIN = (tarfile.REGTYPE, tarfile.AREGTYPE)


def unpack(archive: Path, folder: Path, members: Mapping[str, int], label: str | None = None) -> None:
    """Write the members of an archive, all or none.

    Parameters
    ----------
    archive
        A gzip-compressed tar file.
    folder
        Where the members go, under their names in the archive.
    members
        Names of the wanted members, with "/", and how many bytes each must have.
    label
        What errors call the archive; its path if None.
    """
    label = label or str(archive)
    with ExitStack() as parts:
        written: dict[str, Path] = {}
        with _members(archive, sum(members.values()) + ALLOWANCE, label) as tar:
            for place, member in enumerate(tar):
                name = _plain_name(member, label)
                if place == MOST_FILES:
                    raise DataError(f"{label}: holds more than {MOST_FILES} files; nothing was unpacked.")
                if member.isdir() or name not in members:
                    continue
                if name in written or member.size != members[name]:
                    wrong = "a second time" if name in written else f"with {member.size} bytes, not {members[name]}"
                    raise DataError(f"{label}: holds {name} {wrong}; nothing was unpacked.")
                target = folder / name
                target.parent.mkdir(parents=True, exist_ok=True)
                written[name] = parts.enter_context(part(target.parent, target.name))
                write(written[name], _contents(tar, member))
        if missing := [name for name in members if name not in written]:
            raise DataError(f"{label}: holds no {missing[0]}; nothing was unpacked.")
        for name, path in written.items():
            keep(path, folder / name)


@contextmanager
def _members(archive: Path, limit: int, label: str) -> Iterator[tarfile.TarFile]:
    """The archive, to be read from front to back ("r|") and no further than `limit` bytes."""
    try:
        with gzip.open(archive) as raw:
            stream: Any = _Limited(raw, limit, label)
            with tarfile.open(fileobj=stream, mode="r|") as tar:
                yield tar
    except DataError:
        raise
    except Exception as error:  # tarfile raises many kinds of errors on damaged input
        if isinstance(error, OSError) and not isinstance(error, gzip.BadGzipFile):
            raise  # the disk, not the archive
        reason = " ".join(str(error).split()) or "it ends early"
        raise DataError(f"{label}: is damaged or no .tar.gz ({reason}); nothing was unpacked.") from None


def _plain_name(member: tarfile.TarInfo, label: str) -> str:
    """The name without "./"; a member that is no plain file or folder inside the archive's own folder is refused."""
    name = member.name
    if name.startswith("/") or "\\" in name or ":" in name or ".." in name.split("/"):
        wrong = "a path that leads out of its folder"
    elif member.issparse() or not (member.type in PLAIN or member.isdir()):
        wrong = "a link, a device or another thing that is no plain file"
    else:
        return posixpath.normpath(name)
    raise DataError(f"{label}: refused, because its member {ascii(name)[:80]} is {wrong}; nothing was unpacked.")


def _contents(tar: tarfile.TarFile, member: tarfile.TarInfo) -> Iterator[bytes]:
    source = tar.extractfile(member)
    left = member.size
    while source is not None and left > 0 and (piece := source.read(min(left, READ_AT_ONCE))):
        left -= len(piece)
        yield piece
    if left:
        raise EOFError


class _Limited:
    """A stream that refuses to give more than `left` bytes."""

    def __init__(self, stream: gzip.GzipFile, left: int, label: str) -> None:
        self.stream, self.left, self.label = stream, left, label

    def read(self, count: int) -> bytes:
        piece = self.stream.read(count)
        self.left -= len(piece)
        if self.left < 0:
            raise DataError(f"{self.label}: unpacks to far more than it should; nothing was unpacked.")
        return piece
