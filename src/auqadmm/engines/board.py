"""A notice board that all processes can read when a collective cannot finish: who failed, who is still there.

A process that fails leaves a sentence and raises the alarm. The others look at the board while they wait, leave their
names, and see who did not: those are lost. The board is the store by which the processes found each other, one TCP
connection of its own, so it works where the collective does not. A store that cannot be reached answers nothing, and
is not waited for longer than `PATIENCE`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

import torch.distributed as dist

T = TypeVar("T")

PATIENCE = 4.0  # seconds for others to leave their names
LOOK = 0.5  # seconds between two looks at the board


class Board:
    """`store`: a torch.distributed store with a prefix of its own, or None where there are no others."""

    def __init__(self, store: dist.Store | None, rank: int, size: int) -> None:
        self.store, self.rank, self.size = store, rank, size
        self._busy: threading.Thread | None = None

    def alarmed(self) -> bool:
        """Has any process raised the alarm?"""
        return bool(self._ask(lambda store: store.check(["alarm"]), LOOK))

    def reachable(self) -> bool:
        return self._ask(lambda store: store.check(["alarm"]), PATIENCE) is not None

    def raise_alarm(self, reason: str, sentence: str = "") -> str:
        """Tell the others: a sentence if this process failed, else what it noticed; returns what was noticed first."""

        def write(store: dist.Store) -> str:
            if sentence:
                store.set(f"error/{self.rank}", sentence)
            store.set(f"here/{self.rank}", "")
            first: bytes = store.compare_set("alarm", "", reason)
            return first.decode()

        return self._ask(write, PATIENCE) or reason

    def others(self) -> tuple[dict[int, str], list[int]]:
        """The sentences of processes that failed, and the ranks that do not answer within `PATIENCE`."""
        end = time.monotonic() + PATIENCE
        missing = self._missing()
        while missing and time.monotonic() < end:
            time.sleep(0.05)
            missing = self._missing()
        return self._sentences(), missing

    def _missing(self) -> list[int]:
        ranks = [r for r in range(self.size) if r != self.rank]
        return self._ask(lambda store: [r for r in ranks if not store.check([f"here/{r}"])], PATIENCE) or []

    def _sentences(self) -> dict[int, str]:
        def read(store: dist.Store) -> dict[int, str]:
            failed = [r for r in range(self.size) if store.check([f"error/{r}"])]
            return {r: store.get(f"error/{r}").decode() for r in failed}

        return self._ask(read, PATIENCE) or {}

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
