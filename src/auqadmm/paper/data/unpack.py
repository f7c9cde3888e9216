"""A .tar.gz from somewhere else, of which only expected files are written.

An archive can name files outside the folder it is unpacked in, links to them, devices, and sizes that fill a disk.
Here the caller lists the members it wants, with their sizes. Anything but plain files and folders with plain names
makes the whole archive refused, as do other sizes; plain files that nobody asked for are skipped. No more is
decompressed than the wanted members and a small allowance, and all files get their names at the end or none does.
"""

from __future__ import annotations

import gzip
import posixpath
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from auqadmm.files.atomic import keep, part, write
from auqadmm.paper.data.images import PIECE, DataError

# bytes of headers, padding and small files that come along
ALLOWANCE = 4 << 20
# members; tarfile remembers every one it has seen
MOST = 1000
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
                if place == MOST:
                    raise DataError(f"{label}: holds more than {MOST} files; nothing was unpacked.")
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
    except Exception as error:  # tarfile answers damage with whatever its parser runs into
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
    while source is not None and left > 0 and (piece := source.read(min(left, PIECE))):
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
