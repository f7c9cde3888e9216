"""What the conformance suites share.

suites      laws are methods `test_…`, for pytest or without it
shards      blocks in several shards of one process: like other engines, but without processes
problems    small ones for engines, and functions of blocks that any engine can send: they are pickled by name
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from auqadmm.blocks.shard import Shard
from auqadmm.core.reduce import A, B, MapFn, S, Sums
from auqadmm.core.solve import Iteration
from auqadmm.engines.local import shards_of
from auqadmm.local import NewtonCG
from auqadmm.problem import L2, ElasticNet, LeastSquares, Logistic, Multinomial, Poisson, Problem

if TYPE_CHECKING:
    from auqadmm.local.base import LocalProblem, LocalSolution


# ---------------------------------------------------------------------- suites
class Suite:
    """Laws as methods whose names begin with `test_`.

    With pytest: a subclass `class TestMine(…Suite)` that sets one attribute is collected like any test class. Without:
    `verify()` raises an AssertionError that names every law that fails, `failures()` returns them.
    """

    def checks(self) -> dict[str, Callable[[], None]]:
        """Every law by name, in the order in which they are written.

        Returns
        -------
        checks
            Functions without arguments, which raise where the law does not hold.
        """
        names = [name for cls in reversed(type(self).__mro__) for name in vars(cls) if name.startswith("test_")]
        return {name.removeprefix("test_").replace("_", " "): getattr(self, name) for name in dict.fromkeys(names)}

    def failures(self) -> dict[str, str]:
        """Check every law.

        Returns
        -------
        failures
            By name: the class of the error and its message; empty where all laws hold.
        """
        wrong = {}
        for name, check in self.checks().items():
            try:
                check()
            except Exception as error:
                wrong[name] = f"{type(error).__name__}: {error}"
        return wrong

    def verify(self) -> None:
        """Check every law.

        Raises
        ------
        AssertionError
            It names every law that failed.
        """
        wrong = self.failures()
        need(not wrong, "\n".join(f"{name}: {why}" for name, why in wrong.items()))

    def under_test(self, name: str) -> Any:
        """The attribute that the subclass set."""
        part = getattr(self, name, None)
        if part is None:
            raise TypeError(f"{type(self).__name__} must set `{name}`: {name} = …")
        return part


def need(fact: bool, otherwise: str) -> None:
    """An assertion that also holds under `python -O`."""
    if not fact:
        raise AssertionError(otherwise)


def close(what: str, a: Tensor, b: Tensor, tolerance: float, scale: float | None = None) -> None:
    """Are two tensors the same, relative to the largest entry of b or to `scale`?"""
    need(a.shape == b.shape, f"{what} has shape {tuple(a.shape)} instead of {tuple(b.shape)}")
    if not b.numel():
        return
    need(bool(a.isfinite().all()) or not bool(b.isfinite().all()), f"{what} is not finite")
    limit = tolerance * (float(b.abs().max()) if scale is None else scale)
    off = float((a - b).abs().max())
    need(off <= limit, f"{what} is off by {off:.1e}, more than {limit:.1e}")


# ---------------------------------------------------------------------- shards
@dataclass(frozen=True)
class Shards:
    """An engine that splits consecutive blocks among `count` shards, one after the other in this process."""

    count: int = 2

    def place(self, problem: Problem, dtype: torch.dtype, device: torch.device) -> ShardsEngine:
        return ShardsEngine(shards_of(problem, self.count, dtype, device))


class ShardsEngine:
    """The state of blocks is one per shard; None where no shard has any."""

    def __init__(self, shards: list[Shard]) -> None:
        self.shards = shards
        self.census = shards[0].census
        self.names = self.census.names

    def map_sum(self, fn: MapFn[B, S, A], blocks: B, shared: S) -> tuple[A, Sums]:
        new, parts = self._mapped(fn, blocks, shared)
        return new, {name: sum((p[name].double() for p in parts[1:]), x.double()) for name, x in parts[0].items()}

    def map_minmax(self, fn: MapFn[B, S, A], blocks: B, shared: S) -> tuple[A, Sums]:
        new, parts = self._mapped(fn, blocks, shared)
        stacked = {name: torch.stack([p[name].double() for p in parts]) for name in parts[0]}
        return new, {name: torch.stack([x[:, 0].amin(0), x[:, 1].amax(0)]) for name, x in stacked.items()}

    def map_concat(self, fn: Callable[[Shard, B], Sums], blocks: B) -> Sums:
        parts = [fn(shard, part) for shard, part in self._both(blocks)]
        return {name: torch.cat([p[name] for p in parts]) for name in parts[0]}

    def gather(self, fn: Callable[[Shard, B], Tensor], blocks: B) -> Tensor:
        return torch.cat([fn(shard, part) for shard, part in self._both(blocks)])

    def peek(self, fn: Callable[[Shard, B], A], blocks: B) -> A:
        return fn(*self._both(blocks)[0])

    def scatter(self, x: Tensor) -> list[Tensor]:
        return [part.to(self.shards[0].dtype) for part in x.split([shard.blocks for shard in self.shards])]

    def agreed(self, number: float) -> float:
        return number

    def same(self, settings: Mapping[str, object]) -> None:
        return None

    def first(self, work: Callable[[], bytes]) -> bytes:
        return work()

    def close(self, error: BaseException | None = None) -> None:
        for shard in self.shards:
            shard.close()

    def _both(self, blocks: Any) -> list[tuple[Shard, Any]]:
        return list(zip(self.shards, [None] * len(self.shards) if blocks is None else blocks, strict=True))

    def _mapped(self, fn: MapFn, blocks: Any, shared: Any) -> tuple[Any, list[dict[str, Tensor]]]:
        answers = [fn(shard, part, shared) for shard, part in self._both(blocks)]
        new = [part for part, _ in answers]
        return None if all(part is None for part in new) else new, [sums for _, sums in answers]


# ---------------------------------------------------------------------- problems
# ---------------------------------------------------------------------- problems
@dataclass(frozen=True)
class Share:
    """`blocks(rank, world)`: all but one block each for the first process, or for the second and none for the first."""

    blocks: tuple[Any, ...]
    skip: int = 0

    def __call__(self, rank: int, world: int) -> list[Any]:
        skip = self.skip if world > self.skip else 0
        own, holders = rank - skip, world - skip
        first = max(len(self.blocks) - holders + 1, 1)
        if own <= 0:
            return list(self.blocks[:first]) if own == 0 else []
        return list(self.blocks[first + own - 1 : first + own])


def regression() -> tuple[Any, ...]:
    """Uneven blocks, one of them empty."""
    rng = np.random.default_rng(0)
    truth = rng.normal(size=5)
    designs = [rng.normal(size=(n, 5)) for n in (12, 9, 0, 15, 7)]
    return tuple((X, X @ truth + 1 + 0.1 * rng.normal(size=len(X))) for X in designs)


def clouds(features: int = 6) -> tuple[Any, ...]:
    """One class per block, labels of text."""
    rng = np.random.default_rng(1)
    centres = rng.normal(size=(3, features))
    return tuple((c + rng.normal(size=(14, features)), np.full(14, f"class {k}")) for k, c in enumerate(centres))


def mixed() -> tuple[Any, ...]:
    """Two classes, sample weights, one block sparse: solvers that need dense blocks apply in some processes only."""
    rng = np.random.default_rng(2)
    X = rng.normal(size=(40, 5)) * (rng.random((40, 5)) < 0.6)
    y = np.where(X[:, 0] + 0.5 * rng.normal(size=40) > 0, 7, 3)
    parts = [(X[a:b], y[a:b], 1 + rng.random(b - a)) for a, b in ((0, 9), (9, 22), (22, 40))]
    parts[-1] = (scipy.sparse.csr_matrix(parts[-1][0]), *parts[-1][1:])
    return tuple(parts)


def rates() -> tuple[Any, ...]:
    """Counts; only the last block has offsets."""
    rng = np.random.default_rng(3)
    designs = [0.5 * rng.normal(size=(n, 3)) for n in (11, 8, 14)]
    parts = [(X, rng.poisson(np.exp(X[:, 0] + 0.5)).astype(float), None) for X in designs]
    return (*parts[:-1], (*parts[-1], rng.normal(size=14)))


def problems(skip: int = 0) -> dict[str, Problem]:
    """The problems of the suite by name, with blocks made later."""
    squares, pooled = LeastSquares(reduction="mean"), Multinomial(reduction="pooled")
    return {
        "elastic-net": Problem(squares, ElasticNet(0.05, 0.1), Share(regression(), skip), intercept=True),
        "multinomial": Problem(Multinomial(reduction="mean"), L2(0.1), Share(clouds(), skip)),
        "image": Problem(pooled, L2(0.01), Share(clouds(12), skip), intercept=True, image=(3, 4)),
        "logistic": Problem(Logistic(reduction="sum"), L2(0.5), Share(mixed(), skip)),
        "rates": Problem(Poisson(), L2(0.5), Share(rates(), skip), intercept=True),
    }


# ---------------------------------------------------------------------- functions sent to blocks, pickled by name
def total(shard: Shard, blocks: B, shared: Tensor) -> tuple[B, Sums]:
    grad = shard.linearize(shard.zeros()).grad
    return blocks, {"one": grad.sum(0), "two": grad.square().sum(), "three": shared * shard.blocks}


def ends(shard: Shard, blocks: B, shared: object) -> tuple[B, Sums]:
    return blocks, {"ends": torch.tensor([min(shard.index), max(shard.index)], dtype=torch.float64)}


def ragged(shard: Shard, blocks: object) -> dict[str, Tensor]:
    """Block j sends j rows of two numbers, and 5 − j numbers."""
    rows = torch.tensor([[j, i] for j in shard.index for i in range(j)], dtype=torch.float64).reshape(-1, 2)
    rest = torch.tensor([j for j in shard.index for _ in range(5 - j)], dtype=torch.float64)
    return {"rows": rows, "rest": rest, "bytes": torch.tensor([200 + j for j in shard.index], dtype=torch.uint8)}


def numbers(shard: Shard, blocks: object) -> Tensor:
    return torch.tensor(shard.index, dtype=torch.float64)


def flags(shard: Shard, blocks: object) -> Tensor:
    return torch.tensor(shard.index) > 0


def keep(shard: Shard, blocks: B, shared: object) -> tuple[B, Sums]:
    return blocks, {}


def kept(shard: Shard, blocks: Tensor) -> Tensor:
    return blocks


def note(path: list[Tensor], event: Iteration) -> None:
    path.append(event.state.shared.v.cpu())


def after_three(event: Iteration) -> bool:
    return event.row.iteration == 3


def press(event: Iteration) -> None:
    if event.row.iteration == 3:
        raise KeyboardInterrupt


def missing_file(rank: int, world: int) -> list[Any]:
    if rank == world - 1:
        raise FileNotFoundError("no such file: rows-9.parquet")
    return list(regression())


@dataclass(frozen=True)
class OnFire(NewtonCG):
    """A solver that fails in the process of the last block."""

    def solve(self, problem: LocalProblem, *args: Any) -> LocalSolution:
        if 4 in problem.shard.index:
            raise OSError("the disk is on fire")
        return super().solve(problem, *args)
