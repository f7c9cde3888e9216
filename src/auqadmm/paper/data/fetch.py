"""Data sets by name: found on this machine, or downloaded once.

Searched in this order; only the first place with any file of the data set is read, so that two
copies are never mixed:

    1. the folder the caller names (`--data DIR`): DIR/<name>, or DIR itself
    2. $AUQADMM_DATA, in the same way
    3. the user's cache: <cache>/<name>, where downloads are kept
    4. the address of the data set: what the cache lacks is downloaded, unless that is forbidden

Files in named folders may be any part of a data set; only downloads are compared with published checksums.

Downloads have size and SHA-256 as published, or are a `DataError` and nothing on the disk. MNIST's own page has been
gone for years; the address is that of a mirror of its files. The MD5 sums that the authors of CIFAR-10 publish, and
those commonly quoted for MNIST and SVHN, belong to the same files as these SHA-256 sums.

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
import os
import posixpath
import sys
import tarfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from auqadmm.files.atomic import keep, part, sweep, write
from auqadmm.paper.data.images import CIFAR_FILES, READ_AT_ONCE, DataError, Images, cifar10, digits, mnist, svhn


# ---------------------------------------------------------------------- what the published data sets consist of
@dataclass(frozen=True)
class Source:
    """One file to download. An archive lists the `members` that are taken out of it, name → bytes."""

    url: str
    size: int
    sha256: str
    members: Mapping[str, int] = field(default_factory=dict)

    @property
    def file(self) -> str:
        return self.url.rsplit("/", 1)[1]

    def in_cache(self, folder: Path) -> bool:
        """Whether all its files exist, with the published sizes."""
        left = self.members or {self.file: self.size}
        try:
            return all((folder / name).stat().st_size == size for name, size in left.items())
        except OSError:  # missing, or not accessible
            return False


@dataclass(frozen=True)
class DataSet:
    """How a data set is read and from where it is downloaded.

    A folder with anything that matches one of `traces` counts as a folder of the data set.
    """

    read: Callable[[Path, bool], Images]
    train: tuple[Source, ...]
    test: tuple[Source, ...]
    traces: tuple[str, ...]

    def sources(self, train: bool) -> tuple[Source, ...]:
        return self.train if train else self.test

    def in_folder(self, folder: Path) -> bool:
        return folder.is_dir() and any(any(folder.glob(trace)) for trace in self.traces)


MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist/"
SVHN = "http://ufldl.stanford.edu/housenumbers/"
CIFAR10 = Source(
    "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    170_052_171,
    "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    {f"cifar-10-batches-bin/{name}": 30_730_000 for name in CIFAR_FILES[True] + CIFAR_FILES[False]},
)

DATA_SETS = {
    "mnist": DataSet(
        mnist,
        train=(
            Source(
                MNIST + "train-images-idx3-ubyte.gz",
                9_912_422,
                "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            ),
            Source(
                MNIST + "train-labels-idx1-ubyte.gz",
                28_881,
                "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            ),
        ),
        test=(
            Source(
                MNIST + "t10k-images-idx3-ubyte.gz",
                1_648_877,
                "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            ),
            Source(
                MNIST + "t10k-labels-idx1-ubyte.gz",
                4_542,
                "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
            ),
        ),
        traces=("*-idx[13]-ubyte", "*-idx[13]-ubyte.gz"),
    ),
    "cifar10": DataSet(
        cifar10,
        train=(CIFAR10,),
        test=(CIFAR10,),
        traces=("cifar-10-*", "data_batch_*", "test_batch*"),
    ),
    "svhn": DataSet(
        svhn,
        train=(
            Source(
                SVHN + "train_32x32.mat",
                182_040_794,
                "435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8",
            ),
        ),
        test=(
            Source(
                SVHN + "test_32x32.mat",
                64_275_384,
                "cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",
            ),
        ),
        traces=("*_32x32.mat",),
    ),
}


# ---------------------------------------------------------------------- one file
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


# ---------------------------------------------------------------------- a data set
NAMES = ("digits", *DATA_SETS)
VARIABLE = "AUQADMM_DATA"
Folder = str | os.PathLike[str]


def load(
    name: str,
    data: Folder | None = None,
    train: bool = True,
    *,
    download: bool = True,
    progress: Progress | None = None,
) -> Images:
    """A data set by name.

    Parameters
    ----------
    name
        "mnist", "cifar10", "svhn", or "digits", which comes with scikit-learn.
    data
        A folder to look in first: the folder of the data set, or one with a folder `name`.
    train
        The training images; False for the test images.
    download
        Whether to download what is not on this machine into `user_cache()`.
    progress
        Called as `progress(file, done, total)`, in bytes, while a file is downloaded.
    """
    if name == "digits":
        return digits(train)
    root = locate(name, data, train, download=download, progress=progress)
    try:
        return DATA_SETS[name].read(root, train)
    except DataError as error:
        if root != user_cache() / name:
            raise
        raise DataError(f"{str(error).rstrip('.')}; delete {root}, and it will be downloaded again.") from None


def locate(
    name: str,
    data: Folder | None = None,
    train: bool = True,
    *,
    download: bool = True,
    progress: Progress | None = None,
) -> Path:
    """The folder of a data set, for its reader; the parameters are those of `load`."""
    if name not in DATA_SETS:
        hint = ": it comes with scikit-learn and has no folder" if name == "digits" else ""
        raise DataError(f"{name!r} is not one of {', '.join(DATA_SETS)}{hint}.")
    wanted = DATA_SETS[name]
    named = [("--data", data), (VARIABLE, os.environ.get(VARIABLE) or None)]
    looked = []
    for option, given in named:
        if given is None:
            continue
        folder = _existing(option, given)
        for place in (folder / name, folder):
            try:
                if wanted.in_folder(place):
                    return place
            except OSError as error:
                raise DataError(f"{place}: cannot be read ({error.strerror or error}).") from None
        looked.append(str(folder))
    cache = user_cache() / name
    missing = [source for source in wanted.sources(train) if not source.in_cache(cache)]
    if missing and not download:
        places = ", ".join([*looked, str(cache)])
        files = " and ".join(source.url for source in missing)
        raise DataError(
            f"{name} is not on this machine (looked in {places}) and may not be downloaded; allow it, or get {files} "
            f"and name the folder with --data DIR or {VARIABLE}."
        )
    for source in missing:
        fetch(source, cache, progress)
    return cache


def user_cache() -> Path:
    """Where downloads are kept: the system's cache folder, in a folder `auqadmm`."""
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or "~/AppData/Local"
    elif sys.platform == "darwin":
        base = "~/Library/Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME", "")
        # by the XDG rules a relative path is ignored
        base = base if os.path.isabs(base) else "~/.cache"
    folder = Path(os.path.expanduser(base))
    if not folder.is_absolute():
        raise DataError(f"There is no home directory for {base}; name a folder with --data DIR or {VARIABLE}.")
    return folder / "auqadmm"


def _existing(option: str, given: Folder) -> Path:
    folder = Path(os.path.expanduser(given))
    try:
        if folder.is_dir():
            return folder
        reason = "is no folder" if folder.exists() else "does not exist"
    except OSError as error:
        reason = f"cannot be read ({error.strerror or error})"
    raise DataError(f"{folder}, named by {option}, {reason}.")
