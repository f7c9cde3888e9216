"""SIGTERM as a wish: the run finishes its iteration, saves it and returns."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass
class Asked:
    """The name of the signal that came, or nothing."""

    signal: str = ""


@contextmanager
def asked_to_stop() -> Iterator[Asked]:
    """Note SIGTERM instead of dying from it, in the main thread, where alone handlers can be set."""
    asked = Asked()
    old = signal.getsignal(signal.SIGTERM)
    # None: a handler that is not Python's, which could not be put back
    if threading.current_thread() is not threading.main_thread() or old is None:
        yield asked
        return

    def note(number: int, frame: object) -> None:
        asked.signal = signal.Signals(number).name

    signal.signal(signal.SIGTERM, note)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGTERM, old)
