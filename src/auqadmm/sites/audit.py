"""What left this site: one line of JSON per message, written before it is sent."""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from auqadmm.errors import InputError
from auqadmm.sites.refusals import Declined
from auqadmm.words import visible


@dataclass(frozen=True)
class AuditLine:
    """One message out. `shapes`: of its arrays, by name; `seconds`: that its answer took; `error`: where it is one."""

    time: float
    run: str
    number: int
    request: str
    operation: str
    shapes: dict[str, list[int]]
    bytes: int
    sha256: str
    masked: bool
    seconds: float
    error: str


class AuditError(Declined):
    """The line cannot be written, so the message is not sent."""


class Audit:
    """Appends lines to a file that only its owner can read."""

    def __init__(self, path: str | Path) -> None:
        self.path, self.lock, self.last = Path(path), threading.Lock(), ""
        self.broken = False  # the last line in the file is cut off
        try:
            handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        except OSError as error:
            raise InputError(f"{self.path}: the audit file cannot be written ({error.strerror}).") from None
        self.file = os.fdopen(handle, "ab", buffering=0)

    def write(
        self,
        run: str,
        number: int,
        body: bytes,
        request: str = "",
        operation: str = "",
        shapes: dict[str, Sequence[int]] | None = None,
        masked: bool = False,
        seconds: float = 0.0,
        error: str = "",
    ) -> None:
        """The line of a message that is about to be sent; where that fails, it must not be sent."""
        sizes = {name: list(shape) for name, shape in (shapes or {}).items()}
        digest = hashlib.sha256(body).hexdigest()
        line = AuditLine(
            round(time.time(), 3), run, number, request, operation, sizes, len(body), digest, masked,
            round(seconds, 6), error,
        )  # fmt: skip
        text = json.dumps(asdict(line), separators=(",", ":")).encode() + b"\n"
        with self.lock:
            text = b"\n" + text if self.broken else text
            try:
                written = self.file.write(text)
            except (OSError, ValueError):
                written = 0
            if written != len(text):
                self.broken = self.broken or bool(written)
                raise AuditError("this site cannot write its audit file, so it sends nothing.")
            self.broken, self.last = False, digest

    def covers(self, body: bytes) -> bool:
        """Is the last line about these bytes?"""
        return hashlib.sha256(body).hexdigest() == self.last

    def close(self) -> None:
        self.file.close()

    def __enter__(self) -> Audit:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


# ---------------------------------------------------------------------- reading
def read_audit(path: str | Path) -> Iterator[AuditLine]:
    """The lines of an audit file; a line that is cut off (a full disk) is left out, any other damage is an error."""
    try:
        with Path(path).open("rb") as file:
            for number, text in enumerate(file, 1):
                try:
                    found = json.loads(text)
                except (ValueError, RecursionError):
                    found = None
                if found is None and (not text.strip() or not text.rstrip().endswith(b"}")):
                    continue
                if not isinstance(found, dict) or found.keys() != AuditLine.__annotations__.keys():
                    raise InputError(f"{path}, line {number}: this is no line of an audit file.")
                yield AuditLine(**found)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}).") from None


def table(lines: Iterator[AuditLine]) -> str:
    """Lines as a table of text."""
    head = ("time", "run", "number", "request", "operation", "shapes", "bytes", "sha256", "masked", "seconds", "error")
    rows = [head, *(_row(line) for line in lines)]
    widths = [max(len(row[k]) for row in rows) for k in range(len(head))]
    return "\n".join("  ".join(x.ljust(w) for x, w in zip(row, widths, strict=True)).rstrip() for row in rows)


def _row(line: AuditLine) -> tuple[str, ...]:
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(line.time))
    shapes = " ".join(f"{name}:{'×'.join(map(str, shape))}" for name, shape in line.shapes.items())
    fields = (
        when, line.run[:8], line.number, line.request, line.operation, shapes, line.bytes, line.sha256[:12],
        "yes" if line.masked else "no", f"{line.seconds:.3f}", line.error,
    )  # fmt: skip
    return tuple(visible(str(x)) for x in fields)
