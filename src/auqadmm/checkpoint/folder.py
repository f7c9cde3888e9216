"""The folder of one run, used by one process only: the first of those that run the loop.

A checkpoint that is refused is never removed or replaced. New ones get higher numbers, and those removed to keep
only a few were written by the same run and are complete.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from uuid import uuid4

from auqadmm.checkpoint import files
from auqadmm.checkpoint.codec import CheckpointError
from auqadmm.checkpoint.identity import Identity


def name_of(number: int) -> str:
    return f"checkpoint-{number:06d}"


class Folder:
    """From `open` to `close`. `run` tells the checkpoints of this run from others in the folder."""

    def __init__(self, path: str | os.PathLike[str], identity: Identity) -> None:
        self.path, self.identity = Path(os.fspath(path)).absolute(), identity
        self.run = uuid4().hex
        self._lock: files.Lock | None = None
        self._writers: dict[int, str] = {}  # the run that wrote a checkpoint, of those that were read

    def open(self, resume: bool | str) -> list[int]:
        """Lock it; the numbers of the checkpoints in it, newest first."""
        try:
            if resume is True and not self.path.is_dir():
                raise CheckpointError(f"There is no checkpoint to resume from: {self.path} is not a folder.")
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = files.Lock(self.path)
            files.sweep(self.path)
            known = files.numbers(self.path)
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
        about, contents = files.read(self.path / name_of(number))
        self.identity.check(about)
        self._writers[number] = about["run"]
        return contents

    def adopt(self, number: int, known: list[int]) -> list[int]:
        """Continue as the run that wrote this checkpoint; its complete ones up to this, oldest first."""
        self.run = self._writers[number]
        return [*sorted(k for k in known if k < number and self._is_own(k)), number]

    def _is_own(self, number: int) -> bool:
        try:
            return files.read(self.path / name_of(number))[0].get("run") == self.run
        except CheckpointError:
            return False

    def write(self, contents: Mapping[str, bytes], iteration: int, status: str | None) -> int:
        """A new checkpoint; its number."""
        about = {"run": self.run, "iteration": iteration, "status": status, **self.identity.about()}
        number = 1 + max(files.numbers(self.path), default=0)
        files.write(self.path, number, contents, about)
        return number

    def remove(self, number: int) -> None:
        """Remove a checkpoint, in the process that opened the folder."""
        if self._lock is not None:
            files.remove(self.path / name_of(number))

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
