"""Signals as wishes: a run finishes what it is at, saves it and returns.

With one process that runs the loop SIGTERM is heard between two iterations, and Ctrl-C interrupts as ever. Where
several run it, their engine hears both and tells the others in the next reduction: all stop at the same iterate.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any


class StopRequests:
    """Notes these signals instead of obeying them until `restore`, in the main thread, where alone handlers can be set.

    `number` is that of the last one that came, 0: none.
    """

    def __init__(self, *signals: signal.Signals) -> None:
        self.number = 0
        self._old: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            # None: a handler that is not Python's, which could not be put back
            mine = [n for n in signals if signal.getsignal(n) is not None]
            self._old = {n: signal.signal(n, self._note) for n in mine}

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.number = number

    @property
    def listening(self) -> bool:
        return bool(self._old)

    @property
    def signal(self) -> str:
        """The name of the signal that came, or nothing."""
        return signal.Signals(self.number).name if self.number else ""

    def restore(self) -> None:
        """The handlers that were there before."""
        for number, handler in self._old.items():
            signal.signal(number, handler)
        self._old = {}
