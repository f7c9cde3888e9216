"""Around the loop: deferred signals, callbacks of all processes, and gathering the weights of all blocks.

Shapes: B blocks of this process, N in all.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Sequence
from dataclasses import fields, replace
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from auqadmm.core.reduce import A, Engine, Reduce, Sums
from auqadmm.errors import AuqadmmError

if TYPE_CHECKING:
    from auqadmm.blocks.shard import Shard
    from auqadmm.core.solve import Callback, Iteration


class StopRequests:
    """Records these signals instead of acting on them until `restore`; main thread only, as Python demands of handlers.

    `number` is that of the last signal received, 0: none.
    """

    def __init__(self, *signals: signal.Signals) -> None:
        self.number = 0
        self._old: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            # None: a handler not installed from Python, which could not be restored
            mine = [n for n in signals if signal.getsignal(n) is not None]
            self._old = {n: signal.signal(n, self._note) for n in mine}

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.number = number

    @property
    def listening(self) -> bool:
        return bool(self._old)

    @property
    def signal(self) -> str:
        """The name of the signal received, or ""."""
        return signal.Signals(self.number).name if self.number else ""

    def restore(self) -> None:
        """Reinstall the previous handlers."""
        for number, handler in self._old.items():
            signal.signal(number, handler)
        self._old = {}


WISH, INTERRUPT, FAILED = 1.0, 2.0, 3.0  # what a callback may answer; over processes the maximum counts


class CallbackError(AuqadmmError, RuntimeError):
    """A callback of another process failed."""


class SharedCallbacks:
    """Callbacks of several processes as one: if one asks to stop, all stop. No communication where there are none."""

    def __init__(self, callbacks: Sequence[Callback], engine: Engine) -> None:
        self.callbacks, self.engine = callbacks, engine
        self.any = engine.agreed(float(bool(callbacks))) > 0

    def __call__(self, event: Iteration) -> bool:
        if not self.any:
            return False
        failure: Exception | None = None
        try:
            wishes = [bool(callback(event)) for callback in self.callbacks]
            wish = WISH * any(wishes)
        except KeyboardInterrupt:
            wish = INTERRUPT
        except Exception as error:
            wish, failure = FAILED, error
        wish = self.engine.agreed(wish)
        # raised only after all processes know, so that they save the run together
        if failure is not None:
            raise failure
        if wish == FAILED:
            raise CallbackError(f"A callback of another process failed after iteration {event.row.iteration}.")
        if wish == INTERRUPT:
            raise KeyboardInterrupt
        return wish == WISH


def all_weights(weights: Any, reduce: Reduce) -> Any:
    """The weights of all N blocks from those of each process, zero-padded where blocks keep fewer directions.

    `weights` are in the engine's form, which may be a handle to arrays on other machines.
    """
    if weights is None:
        return None
    kind = reduce.engine.peek(_itself, weights)
    names = [f.name for f in fields(kind) if isinstance(getattr(kind, f.name), Tensor)]
    shapes = reduce.minmax(partial(_shapes, names), weights, None)[1]
    sizes = {name: [int(n) for n in x[1].tolist()] for name, x in shapes.items()}
    return replace(kind, **{name: reduce.gather(partial(_padded, name, sizes[name]), weights) for name in names})


def _itself(shard: Shard, weights: A) -> A:
    return weights


def _shapes(names: Sequence[str], shard: Shard, weights: A, shared: None) -> tuple[A, Sums]:
    shapes = {name: torch.tensor(getattr(weights, name).shape[1:], dtype=torch.float64) for name in names}
    return weights, {name: torch.stack([x, x]) for name, x in shapes.items()}


def _padded(name: str, size: Sequence[int], shard: Shard, weights: object) -> Tensor:
    x: Tensor = getattr(weights, name)
    missing = [(0, n - have) for n, have in zip(size, x.shape[1:], strict=True)]
    return torch.nn.functional.pad(x, [n for pair in reversed(missing) for n in pair])
