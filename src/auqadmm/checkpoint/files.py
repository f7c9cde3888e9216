"""One checkpoint is one folder that is complete or absent.

    DIR/checkpoint-000007/
      checkpoint.json                       what it is, of which run, and size and SHA-256 of every other file
      history.json                          the rows so far
      shared.json, shared.safetensors       the replicated state: structure and arrays
      blocks-00000.json, .safetensors       the state of the blocks of one process, and so on for every process

Writing: all files into a hidden folder, each flushed to the disk, then one rename. A process that is
killed leaves a hidden `.part` folder that readers ignore. Removal works in reverse.

Input is untrusted: names come from a fixed list, links and devices are not opened, sizes are checked before
anything is read, and checksums before anything is parsed. Checksums protect against damage, not against forgery: a
forged checkpoint may contain a wrong state, but it cannot run code.

The folder of one run is used by one process only, the first of those that run the loop. A checkpoint that is refused is
never removed or replaced. New ones get higher numbers, and those removed to keep only a few were written by the same
run and are complete.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn
from uuid import uuid4

from auqadmm.checkpoint.codec import CheckpointError, Identity

FORMAT, CHECKPOINT_VERSION = "auqadmm checkpoint", 1
MANIFEST = "checkpoint.json"
FOLDER = re.compile(r"checkpoint-([0-9]{6,9})", re.ASCII)
PART = re.compile(r"\.checkpoint-[0-9]{6,9}\.[0-9a-f]{32}\.part", re.ASCII)
FILE = re.compile(r"history\.json|(shared|blocks-[0-9]{5})\.(json|safetensors)", re.ASCII)
LARGEST_MANIFEST = 2**28  # bytes: larger files are not read into memory


# ---------------------------------------------------------------------- writing
def write(folder: Path, number: int, files: Mapping[str, bytes], about: Mapping[str, object]) -> Path:
    """A new checkpoint; on an error the folder is unchanged."""
    table = {name: {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()} for name, data in files.items()}
    content = {"format": FORMAT, "version": CHECKPOINT_VERSION, **about, "files": table}
    manifest = json.dumps({"checksum": _checksum(content), "content": content}, indent=1, allow_nan=False)
    target = folder / f"checkpoint-{number:06d}"
    part = folder / f".{target.name}.{uuid4().hex}.part"
    try:
        part.mkdir()
        for name, data in {**files, MANIFEST: manifest.encode()}.items():
            _write_file(part / name, data)
        _flush(part)
        if os.path.lexists(target):  # a rename would replace an empty folder of that name
            raise FileExistsError(f"{target} is there already")
        os.rename(part, target)
    except BaseException:
        discard(part)
        raise
    _flush(folder)
    return target


def remove(path: Path) -> None:
    """Remove a checkpoint: first its name, then its files. Foreign files are kept."""
    part = path.with_name(f".{path.name}.{uuid4().hex}.part")
    with suppress(OSError):
        os.rename(path, part)
        discard(part)


def discard(part: Path) -> None:
    """Remove an unfinished folder."""
    with suppress(OSError):
        for name in os.listdir(part):
            if name == MANIFEST or FILE.fullmatch(name):
                (part / name).unlink()
        part.rmdir()


def sweep(folder: Path) -> None:
    """Remove what killed processes left; requires the lock."""
    for name in os.listdir(folder):
        if PART.fullmatch(name) and not (folder / name).is_symlink():
            discard(folder / name)


def _write_file(path: Path, data: bytes) -> None:
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _flush(folder: Path) -> None:
    """The names in a folder, on the disk."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# ---------------------------------------------------------------------- reading
def numbers(folder: Path) -> list[int]:
    """The checkpoints in the folder, newest first."""
    matches = (FOLDER.fullmatch(name) for name in os.listdir(folder))
    return sorted({int(m[1]) for m in matches if m and f"checkpoint-{int(m[1]):06d}" == m[0]}, reverse=True)


def read(path: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The manifest of a checkpoint, and its files; CheckpointError if it is not complete."""
    try:
        if path.is_symlink() or not path.is_dir():
            raise CheckpointError("it is not a folder")
        about = _manifest(_read_file(path / MANIFEST, None))
        table = _table(about.get("files"))
        files = {name: _read_file(path / name, size) for name, (size, _) in table.items()}
    except OSError as error:
        raise CheckpointError(f"{Path(error.filename or path).name} cannot be read ({error.strerror})") from None
    for name, data in files.items():
        if hashlib.sha256(data).hexdigest() != table[name][1]:
            raise CheckpointError(f"{name} is damaged (its checksum differs)")
    return about, files


def parse(name: str, data: bytes) -> Any:
    """Standard JSON, or a CheckpointError."""
    try:
        return json.loads(data.decode(), parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise CheckpointError(f"{name} is not JSON") from None


def _no_constant(text: str) -> NoReturn:
    raise ValueError(text)


def _manifest(data: bytes) -> dict[str, Any]:
    manifest = parse(MANIFEST, data)
    content = manifest.get("content") if isinstance(manifest, dict) else None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise CheckpointError(f"{MANIFEST} is not that of an {FORMAT}")
    if content.get("version") != CHECKPOINT_VERSION:
        version = str(content.get("version"))[:20]
        raise CheckpointError(f"{MANIFEST} has format version {version}, and this library reads {CHECKPOINT_VERSION}")
    if manifest.get("checksum") != _checksum(content):
        raise CheckpointError(f"{MANIFEST} is damaged (its checksum differs)")
    return content


def _table(files: object) -> dict[str, tuple[int, str]]:
    """Names, sizes and checksums; in total no more than this machine's memory."""
    table = {}
    for name, entry in files.items() if isinstance(files, dict) else ():
        match entry:
            case {"size": int(size), "sha256": str(digest)} if FILE.fullmatch(name) and size >= 0:
                table[name] = (size, digest)
            case _:
                raise CheckpointError(f"{MANIFEST} names a file that does not belong to a checkpoint ({name[:60]!r})")
    if not {"history.json", "shared.json", "shared.safetensors"} <= set(table):
        raise CheckpointError(f"{MANIFEST} does not name all files of a checkpoint")
    if sum(size for size, _ in table.values()) > machine_memory():
        raise CheckpointError("it is larger than the memory of this machine")
    return table


def _read_file(path: Path, size: int | None) -> bytes:
    """A regular file of exactly this size; links are not followed, and opening never blocks."""
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    handle = os.open(path, flags)
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise CheckpointError(f"{path.name} is not a file")
        if size is None and status.st_size > LARGEST_MANIFEST:
            raise CheckpointError(f"{path.name} is too large")
        if size is not None and status.st_size != size:
            raise CheckpointError(f"{path.name} holds {status.st_size} bytes instead of {size}")
        with os.fdopen(handle, "rb", closefd=False) as file:
            data = file.read(status.st_size)
    finally:
        os.close(handle)
    if len(data) != status.st_size:
        raise CheckpointError(f"{path.name} changed while it was read")
    return data


def _checksum(content: Mapping[str, object]) -> str:
    try:
        text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (ValueError, RecursionError):
        raise CheckpointError(f"{MANIFEST} holds what no checkpoint holds") from None
    return hashlib.sha256(text.encode()).hexdigest()


def machine_memory() -> int:
    """Bytes; 2**40 where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 2**40


# ---------------------------------------------------------------------- one run per folder
class Lock:
    """A lock of the run that writes to the folder; released by the system when its process ends, however it ends."""

    def __init__(self, folder: Path) -> None:
        try:
            import fcntl
        except ImportError:  # Windows: two runs in one folder are not detected
            self._handle = -1
            return
        self._let_go = lambda handle: fcntl.flock(handle, fcntl.LOCK_UN)
        self._handle = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.release()
            raise CheckpointError(f"The folder {folder} is in use by another run; give each run its own.") from None
        except OSError:  # a file system without locks
            pass

    def release(self) -> None:
        if self._handle >= 0:
            with suppress(OSError):  # explicit: a process forked meanwhile would keep the lock
                self._let_go(self._handle)
            os.close(self._handle)
            self._handle = -1


# ---------------------------------------------------------------------- the folder of one run
def name_of(number: int) -> str:
    return f"checkpoint-{number:06d}"


class Folder:
    """From `open` to `close`. `run` tells the checkpoints of this run from others in the folder."""

    def __init__(self, path: str | os.PathLike[str], identity: Identity) -> None:
        self.path, self.identity = Path(os.fspath(path)).absolute(), identity
        self.run = uuid4().hex
        self._lock: Lock | None = None
        self._writers: dict[int, str] = {}  # the run that wrote a checkpoint, of those that were read

    def open(self, resume: bool | str) -> list[int]:
        """Lock it; the numbers of the checkpoints in it, newest first."""
        try:
            if resume is True and not self.path.is_dir():
                raise CheckpointError(f"There is no checkpoint to resume from: {self.path} is not a folder.")
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = Lock(self.path)
            sweep(self.path)
            known = numbers(self.path)
        except OSError as error:
            raise CheckpointError(f"The folder {self.path} cannot be used: {error.strerror or error}.") from None
        if resume is True and not known:
            raise CheckpointError(f"There is no checkpoint to resume from in {self.path}.")
        if resume is False and known:
            raise CheckpointError(
                f"The folder {self.path} holds checkpoints already and resume is False; choose another folder."
            )
        return known

    def read(self, number: int) -> dict[str, bytes]:
        """The files of a checkpoint that is complete and belongs to this run."""
        about, contents = read(self.path / name_of(number))
        self.identity.check(about)
        self._writers[number] = about["run"]
        return contents

    def adopt(self, number: int, known: list[int]) -> list[int]:
        """Continue as the run that wrote this checkpoint; its complete ones up to this, oldest first."""
        self.run = self._writers[number]
        return [*sorted(k for k in known if k < number and self._is_own(k)), number]

    def _is_own(self, number: int) -> bool:
        try:
            return read(self.path / name_of(number))[0].get("run") == self.run
        except CheckpointError:
            return False

    def write(self, contents: Mapping[str, bytes], iteration: int, status: str | None) -> int:
        """A new checkpoint; its number."""
        about = {"run": self.run, "iteration": iteration, "status": status, **self.identity.about()}
        number = 1 + max(numbers(self.path), default=0)
        write(self.path, number, contents, about)
        return number

    def remove(self, number: int) -> None:
        """Remove a checkpoint, in the process that opened the folder."""
        if self._lock is not None:
            remove(self.path / name_of(number))

    def close(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None


# ---------------------------------------------------------------------- files as one message
def as_message(contents: Mapping[str, bytes]) -> bytes:
    """Names and sizes as a line of JSON, then the files one after the other."""
    head = json.dumps({name: len(data) for name, data in contents.items()}).encode()
    return b"\n".join([head, b"".join(contents.values())])


def from_message(message: bytes) -> dict[str, bytes]:
    end = message.index(b"\n")
    contents, first = {}, end + 1
    for name, size in json.loads(message[:end]).items():
        contents[name] = message[first : first + size]
        first += size
    return contents
