"""What a run with several processes needs around the loop: callbacks that all processes heed, weights of all blocks in
one place, and the last complete iterate when a worker is lost.

Shapes: B blocks here, N in all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from auqadmm.core.certificate import Certificate
from auqadmm.core.history import History, Row
from auqadmm.core.reduce import Engine, WorkerLost
from auqadmm.core.result import Result
from auqadmm.core.solve import Callback, Iteration
from auqadmm.core.state import Status

WISH, INTERRUPT = 1.0, 2.0


class Heeded:
    """Callbacks of several processes as one: what one of them wishes, all do. Free of charge where there are none."""

    def __init__(self, callbacks: Sequence[Callback], engine: Engine) -> None:
        self.callbacks, self.engine = callbacks, engine
        self.any = engine.agreed(float(bool(callbacks))) > 0

    def __call__(self, event: Iteration) -> bool:
        if not self.any:
            return False
        try:
            wishes = [bool(callback(event)) for callback in self.callbacks]
            wish = WISH * any(wishes)
        except KeyboardInterrupt:
            wish = INTERRUPT
        wish = self.engine.agreed(wish)
        if wish == INTERRUPT:
            raise KeyboardInterrupt
        return wish == WISH


class Kept:
    """A callback that keeps what is left of a run when a worker is lost and nothing can be summed any more."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.last: Iteration | None = None

    def __call__(self, event: Iteration) -> None:
        self.rows.append(event.row)
        self.last = event

    def result(self, lost: WorkerLost) -> Result:
        """The iterate before; objective and KKT residual as far as they are known. Its multipliers are lost too."""
        if self.last is None:
            raise lost
        row, n = self.last.row, len(self.rows)
        unknown = [math.nan if x is None else x for x in (row.objective, row.kkt)]
        return Result(
            v=self.last.state.shared.v,
            status=Status.interrupted,
            message=f"{str(lost).capitalize()} Stopped in iteration {n + 1}; v is the iterate before it.",
            n_iter=n,
            history=History(tuple(self.rows)),
            certificate=Certificate(*unknown),
            method=self.last.method,
        )


def all_weights(weights: Any, engine: Engine) -> Any:
    """The weights of all N blocks from those of each process, zeros added where blocks keep fewer directions.

    `weights` are as the engine holds them: it may be no more than a name for what lives elsewhere.
    """
    if weights is None:
        return None
    kind = engine.peek(_itself, weights)
    names = [f.name for f in fields(kind) if isinstance(getattr(kind, f.name), Tensor)]
    shapes = engine.map_minmax(partial(_shapes, names), weights, None)[1]
    sizes = {name: [int(n) for n in x[1].tolist()] for name, x in shapes.items()}
    return replace(kind, **{name: engine.gather(partial(_padded, name, sizes[name]), weights) for name in names})


def _itself(shard: Any, weights: Any) -> Any:
    return weights


def _shapes(names: Sequence[str], shard: Any, weights: Any, shared: Any) -> tuple[Any, dict[str, Tensor]]:
    shapes = {name: torch.tensor(getattr(weights, name).shape[1:], dtype=torch.float64) for name in names}
    return weights, {name: torch.stack([x, x]) for name, x in shapes.items()}


def _padded(name: str, size: Sequence[int], shard: Any, weights: Any) -> Tensor:
    x: Tensor = getattr(weights, name)
    missing = [(0, n - have) for n, have in zip(size, x.shape[1:], strict=True)]
    return torch.nn.functional.pad(x, [n for pair in reversed(missing) for n in pair])
