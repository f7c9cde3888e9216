"""Small problems for engines, and functions of blocks that any engine can send: they are pickled by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from auqadmm.core.reduce import B, Sums
from auqadmm.core.solve import Iteration
from auqadmm.local import NewtonCG
from auqadmm.problem import L2, ElasticNet, LeastSquares, Logistic, Multinomial, Problem

if TYPE_CHECKING:
    from auqadmm.blocks.shard import Shard
    from auqadmm.local.base import LocalProblem, LocalSolution


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


def problems(skip: int = 0) -> dict[str, Problem]:
    """The problems of the suite by name, with blocks made later."""
    squares, pooled = LeastSquares(reduction="mean"), Multinomial(reduction="pooled")
    return {
        "elastic-net": Problem(squares, ElasticNet(0.05, 0.1), Share(regression(), skip), intercept=True),
        "multinomial": Problem(Multinomial(reduction="mean"), L2(0.1), Share(clouds(), skip)),
        "image": Problem(pooled, L2(0.01), Share(clouds(12), skip), intercept=True, image=(3, 4)),
        "logistic": Problem(Logistic(reduction="sum"), L2(0.5), Share(mixed(), skip)),
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
