"""All blocks in this process: every primitive is the identity around one call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from auqadmm.blocks.shard import Shard
from auqadmm.core.reduce import MapFn
from auqadmm.problem import Problem

T = TypeVar("T")


@dataclass(frozen=True)
class Local:
    """All blocks in this process.

    Examples
    --------
    >>> import numpy as np
    >>> import auqadmm as aq
    >>> X, y = np.array([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0], [2.0, 1.0]]), np.array([1.0, 2.0, 3.0, 6.0])
    >>> problem = aq.Problem(aq.LeastSquares(), aq.L2(1.0), [(X[:2], y[:2]), (X[2:], y[2:])])
    >>> aq.solve(problem, engine=aq.engines.Local()).coef.round(1)
    array([2., 1.])
    """

    def place(self, problem: Problem, dtype: torch.dtype, device: torch.device) -> LocalEngine:
        return LocalEngine(problem.placed().shard(dtype, device))


class LocalEngine:
    """One shard holds everything."""

    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self.names = shard.names
        self.census = shard.census

    def map_sum(self, fn: MapFn, blocks: object, shared: object) -> tuple[Any, dict[str, Tensor]]:
        return fn(self.shard, blocks, shared)

    def map_minmax(self, fn: MapFn, blocks: object, shared: object) -> tuple[Any, dict[str, Tensor]]:
        return fn(self.shard, blocks, shared)

    def map_concat(self, fn: Callable[[Any, Any], dict[str, Tensor]], blocks: object) -> dict[str, Tensor]:
        return fn(self.shard, blocks)

    def gather(self, fn: Callable[[Any, Any], Tensor], blocks: object) -> Tensor:
        return fn(self.shard, blocks)

    def peek(self, fn: Callable[[Any, Any], T], blocks: object) -> T:
        return fn(self.shard, blocks)

    def scatter(self, x: Tensor) -> Tensor:
        return x.to(self.shard.device, self.shard.dtype)

    def agreed(self, number: float) -> float:
        return number

    def first(self, work: Callable[[], bytes]) -> bytes:
        return work()

    def same(self, settings: Mapping[str, object]) -> None:
        return None

    def close(self, error: BaseException | None = None) -> None:
        self.shard.close()
