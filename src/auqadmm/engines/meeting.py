"""Rendezvous of processes, and a board for failures.

Every rendezvous has a new name.

The store that `torchrun` serves may outlive the processes: restarted after a loss they would find addresses and alarms
of dead processes. So the first process makes up a name and sends it to every caller:

    rank r    writes a unique call under hello/r, and waits for the answer to this call
    rank 0    answers any call under hello/r, old ones too, until rank r confirms

A `Board` is shared storage that all can read when a collective cannot finish: who failed, who is alive. A process
that fails writes a sentence and raises the alarm. The others poll the board while they wait, write their
names, and see who did not: those are lost. The board uses the rendezvous store, over a TCP
connection of its own, so it works where the collective does not. A store that cannot be reached
is not waited for longer than `BOARD_PATIENCE`.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar
from uuid import uuid4

import torch
import torch.distributed as dist

PAUSE = 0.01  # seconds between two polls
_met: list[tuple[dist.Store, int, int]] = []


def rendezvous(limit: timedelta) -> tuple[dist.Store, int, int]:
    """A store, rank and size; kept as long as this process lives, since the first one may serve the others."""
    if not _met:
        store, rank, size = next(itertools.islice(dist.rendezvous("env://", timeout=limit), 1))
        store.set_timeout(limit)
        _met.append((dist.PrefixStore(agreed(store, rank, size, limit), store), rank, size))
    return _met[0]


def agreed(store: dist.Store, rank: int, size: int, limit: timedelta) -> str:
    """The name of this rendezvous."""
    end, mine = time.monotonic() + limit.total_seconds(), uuid4().hex
    if rank > 0:
        store.set(f"hello/{rank}", mine)
        name: str = store.get(f"answer/{mine}").decode()  # waits as long as the store does
        store.set(f"heard/{name}/{rank}", "")
        return name
    missing = list(range(1, size))
    while missing:
        if time.monotonic() > end:
            raise RuntimeError(f"no sign of rank {', '.join(map(str, missing))}")
        for r in missing:
            if store.check([f"hello/{r}"]):
                store.set(f"answer/{store.get(f'hello/{r}').decode()}", mine)
        missing = [r for r in missing if not store.check([f"heard/{mine}/{r}"])]
        time.sleep(PAUSE if missing else 0)
    return mine


def named(group: dist.ProcessGroup | None) -> str:
    """A name for processes that are connected already."""
    code = torch.frombuffer(bytearray(uuid4().bytes), dtype=torch.uint8)
    dist.broadcast(code, 0, group=group)
    return code.numpy().tobytes().hex()


T = TypeVar("T")

BOARD_PATIENCE = 4.0  # seconds for others to write their names
BOARD_LOOK = 0.5  # seconds between two polls of the board


class Board:
    """`store`: a torch.distributed store with a prefix of its own, or None where there are no others."""

    def __init__(self, store: dist.Store | None, rank: int, size: int) -> None:
        self.store, self.rank, self.size = store, rank, size
        self._busy: threading.Thread | None = None

    def alarmed(self) -> bool:
        """Has any process raised the alarm?"""
        return bool(self._ask(lambda store: store.check(["alarm"]), BOARD_LOOK))

    def reachable(self) -> bool:
        return self._ask(lambda store: store.check(["alarm"]), BOARD_PATIENCE) is not None

    def raise_alarm(self, reason: str, sentence: str = "") -> str:
        """Alert the others: a sentence if this process failed, else what it noticed; returns the first alert."""

        def write(store: dist.Store) -> str:
            if sentence:
                store.set(f"error/{self.rank}", sentence)
            store.set(f"here/{self.rank}", "")
            first: bytes = store.compare_set("alarm", "", reason)
            return first.decode()

        return self._ask(write, BOARD_PATIENCE) or reason

    def others(self) -> tuple[dict[int, str], list[int]]:
        """The sentences of processes that failed, and the ranks that do not answer within `BOARD_PATIENCE`."""
        end = time.monotonic() + BOARD_PATIENCE
        missing = self._missing()
        while missing and time.monotonic() < end:
            time.sleep(0.05)
            missing = self._missing()
        return self._sentences(), missing

    def _missing(self) -> list[int]:
        ranks = [r for r in range(self.size) if r != self.rank]
        return self._ask(lambda store: [r for r in ranks if not store.check([f"here/{r}"])], BOARD_PATIENCE) or []

    def _sentences(self) -> dict[int, str]:
        def read(store: dist.Store) -> dict[int, str]:
            failed = [r for r in range(self.size) if store.check([f"error/{r}"])]
            return {r: store.get(f"error/{r}").decode() for r in failed}

        return self._ask(read, BOARD_PATIENCE) or {}

    def _ask(self, question: Callable[[dist.Store], T], seconds: float) -> T | None:
        """The answer, or None if there is none in time: a lost connection may block for a quarter of an hour."""
        store = self.store
        if store is None or (self._busy is not None and self._busy.is_alive()):
            return None
        answer: list[T | None] = []

        def work() -> None:
            try:
                answer.append(question(store))
            except RuntimeError:  # the store is gone
                answer.append(None)

        self._busy = threading.Thread(target=work, daemon=True)
        self._busy.start()
        self._busy.join(seconds)
        return answer[0] if answer else None
