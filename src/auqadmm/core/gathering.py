"""What a run with several processes needs around the loop: callbacks that all processes heed, and weights of all blocks
in one place.

Shapes: B blocks here, N in all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from auqadmm.core.reduce import Engine, Reduce
from auqadmm.core.solve import Callback, Iteration
from auqadmm.errors import AuqadmmError

WISH, INTERRUPT, FAILED = 1.0, 2.0, 3.0


class CallbackError(AuqadmmError, RuntimeError):
    """A callback of another process failed."""


class Heeded:
    """Callbacks of several processes as one: what one of them wishes, all do. Free of charge where there are none."""

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
        # raised once all know, so that they can save the run together
        if failure is not None:
            raise failure
        if wish == FAILED:
            raise CallbackError(f"A callback of another process failed after iteration {event.row.iteration}.")
        if wish == INTERRUPT:
            raise KeyboardInterrupt
        return wish == WISH


def all_weights(weights: Any, reduce: Reduce) -> Any:
    """The weights of all N blocks from those of each process, zeros added where blocks keep fewer directions.

    `weights` are as the engine holds them: it may be no more than a name for what lives elsewhere.
    """
    if weights is None:
        return None
    kind = reduce.engine.peek(_itself, weights)
    names = [f.name for f in fields(kind) if isinstance(getattr(kind, f.name), Tensor)]
    shapes = reduce.minmax(partial(_shapes, names), weights, None)[1]
    sizes = {name: [int(n) for n in x[1].tolist()] for name, x in shapes.items()}
    return replace(kind, **{name: reduce.gather(partial(_padded, name, sizes[name]), weights) for name in names})


def _itself(shard: Any, weights: Any) -> Any:
    return weights


def _shapes(names: Sequence[str], shard: Any, weights: Any, shared: Any) -> tuple[Any, dict[str, Tensor]]:
    shapes = {name: torch.tensor(getattr(weights, name).shape[1:], dtype=torch.float64) for name in names}
    return weights, {name: torch.stack([x, x]) for name, x in shapes.items()}


def _padded(name: str, size: Sequence[int], shard: Any, weights: Any) -> Tensor:
    x: Tensor = getattr(weights, name)
    missing = [(0, n - have) for n, have in zip(size, x.shape[1:], strict=True)]
    return torch.nn.functional.pad(x, [n for pair in reversed(missing) for n in pair])
