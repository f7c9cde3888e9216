"""What left each site, as the coordinator counted it: one entry per message that a site sent in answer.

The other end of sites/audit.py. A message is counted when its bytes are here, by its digest, so one that was sent twice
because a connection broke counts once. What it holds is noted when it has been read.
"""

from __future__ import annotations

import hashlib
import math
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from torch import Tensor

WORDS = {
    "open": "terms of the site, names of columns",
    "plan": "answer to the plan",
    "meet": "done: keys for masks have met",
    "columns": "kinds, levels and labels of columns, rows",
    "add": "sums of columns",
    "encode": "done: columns are encoded",
    "make": "done: blocks are made",
    "read": "names and rows of blocks, classes",
    "settle": "done: blocks are settled",
    "put": "done: a state is in place",
    "ping": "version and clock",
}  # what an answer holds, for requests that name no operation
MOST_LINES = 2000  # the latest entries are kept one by one, so that a long life takes no more memory; sums count all


@dataclass(frozen=True)
class LedgerEntry:
    """One message of a site. `shapes`: of its arrays, before masks; `failed`: it was no answer, but a reason."""

    site: str
    time: float
    run: str
    number: int
    request: str
    operation: str
    shapes: Mapping[str, tuple[int, ...]]
    bytes: int
    sha256: str
    masked: bool = False
    error: str = ""

    @property
    def numbers(self) -> int:
        return sum(math.prod(shape) for shape in self.shapes.values())


@dataclass(frozen=True)
class Amount:
    """How much: messages, those among them whose sums were masked, and those that were refusals or errors."""

    messages: int = 0
    numbers: int = 0
    bytes: int = 0
    masked: int = 0
    errors: int = 0

    def __add__(self, other: Amount) -> Amount:
        return Amount(*(a + b for a, b in zip(asdict(self).values(), asdict(other).values(), strict=True)))


class Ledger:
    """Counted by the server's thread, read by any."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.asked = ("", "", time.monotonic())  # request, operation, since when
        self._lines: dict[int, LedgerEntry] = {}  # by their place among all
        self._count = 0
        self._sums: dict[tuple[str, str, str], Amount] = {}
        self._last: dict[str, tuple[LedgerEntry, int]] = {}  # of every site, with its place

    def asking(self, request: str, operation: str = "") -> None:
        """What sites are asked next."""
        with self.lock:
            self.asked = (request, operation, time.monotonic())

    def took(self, site: str, run: str, number: int, body: bytes, error: str = "") -> None:
        """A message has come in; an empty one says nothing but that it was heard."""
        if not body:
            return
        digest = hashlib.sha256(body).hexdigest()
        with self.lock:
            last = self._last.get(site)
            if last is not None and (last[0].run, last[0].number, last[0].sha256) == (run, number, digest):
                return
            request, operation, _ = self.asked
            entry = LedgerEntry(site, time.time(), run, number, request, operation, {}, len(body), digest, error=error)
            place, self._count = self._count, self._count + 1
            self._lines[place] = entry
            self._lines.pop(place - MOST_LINES, None)
            self._last[site] = (entry, place)
            self._add(entry, Amount(1, 0, len(body), 0, int(bool(error))))

    def read(self, answers: Mapping[str, Mapping[str, Any]]) -> None:
        """What the last message of each of these sites holds."""
        with self.lock:
            for site, answer in answers.items():
                if site not in self._last:
                    continue
                entry, place = self._last[site]
                shapes, masked = arrays_of(answer.get("message"))
                error = str(answer.get("error", ""))
                full = replace(entry, shapes=shapes, masked=masked, error=error)
                self._last[site] = (full, place)
                if place in self._lines:
                    self._lines[place] = full
                self._add(entry, Amount(0, full.numbers, 0, int(masked), int(bool(error))))

    def _add(self, entry: LedgerEntry, more: Amount) -> None:
        key = (entry.site, entry.request, entry.operation)
        self._sums[key] = self._sums.get(key, Amount()) + more

    @property
    def lines(self) -> list[LedgerEntry]:
        """The latest messages, one by one."""
        with self.lock:
            return list(self._lines.values())

    # ------------------------------------------------------------------ sums
    def sums(self) -> dict[tuple[str, str, str], Amount]:
        """By site, request and operation, in the order in which they were first asked for."""
        with self.lock:
            return dict(self._sums)

    def by_site(self) -> dict[str, Amount]:
        totals: dict[str, Amount] = {}
        for (site, _, _), amount in self.sums().items():
            totals[site] = totals.get(site, Amount()) + amount
        return totals

    def by_operation(self) -> dict[tuple[str, str], Amount]:
        """Of all sites together."""
        totals: dict[tuple[str, str], Amount] = {}
        for (_, *what), amount in self.sums().items():
            totals[what[0], what[1]] = totals.get((what[0], what[1]), Amount()) + amount
        return totals

    def summary(self) -> list[dict[str, Any]]:
        """For summary.json: per site in all, and by what was asked for."""
        sums = self.sums()
        return [
            {"site": site, **asdict(total), "by": [
                {"request": request, "operation": operation, "what": words_of(request, operation), **asdict(amount)}
                for (of, request, operation), amount in sums.items() if of == site
            ]}
            for site, total in sorted(self.by_site().items())
        ]  # fmt: skip


def words_of(request: str, operation: str) -> str:
    """What was asked for, for a person."""
    return f"{request}: {operation}" if operation else WORDS.get(request, request)


def arrays_of(message: object) -> tuple[dict[str, tuple[int, ...]], bool]:
    """Shapes of the arrays in an answer, as they are without masks, and whether it is masked."""
    if isinstance(message, list | tuple) and len(message) == 3:  # of a sum: whether it has state, arrays, seconds
        message = message[1]
    if isinstance(message, Tensor):
        return {"": tuple(message.shape)}, False
    if not isinstance(message, Mapping):
        return {}, False
    if "limbs" in message:
        return {name: _whole(shape) for name, shape in message["shapes"].items()}, True
    return {str(name): tuple(x.shape) for name, x in message.items() if isinstance(x, Tensor)}, False


def _whole(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(int(n) for n in shape)
