"""One loss of every kind, and random blocks of rows to try them on: uneven, weighted, sparse, empty."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch
from hypothesis import settings
from hypothesis import strategies as st
from torch import Tensor

from auqadmm.blocks.loss import Loss
from auqadmm.blocks.rows import RowLoss
from auqadmm.blocks.shard import Shard
from auqadmm.problem.losses import Huber, LeastSquares, Logistic, Multinomial, Poisson, SmoothedHinge
from auqadmm.problem.problem import Problem
from auqadmm.problem.quantile import Quantile
from auqadmm.problem.regularizers import L2

CPU = torch.device("cpu")
M, K = 3, 3
LOSSES: dict[str, RowLoss] = {
    "least-squares": LeastSquares(),
    "multinomial": Multinomial(),
    "logistic": Logistic(),
    "hinge": SmoothedHinge(0.3),
    "sharp-hinge": SmoothedHinge(),
    "huber": Huber(0.7),
    "poisson": Poisson(),
    "quantile": Quantile(0.8, eps=0.3),
    "sharp-quantile": Quantile(0.1),
}
EVERY = pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES.keys())
LAWS = settings(derandomize=True, deadline=None, max_examples=40)
Blocks = list[tuple[Any, ...]]


@dataclass(frozen=True)
class Case:
    loss: RowLoss
    blocks: Blocks
    intercept: bool
    seed: int

    def shard(self, dtype: torch.dtype = torch.float64) -> Shard:
        return make(self.loss, self.blocks, self.intercept, dtype)

    def draw(self, shard: Shard, *trailing: int) -> Tensor:
        generator = torch.Generator().manual_seed(self.seed + 17 * len(trailing))
        return torch.randn(*shard.shape, *trailing, generator=generator, dtype=shard.dtype)


def make(loss: Loss, blocks: Blocks, intercept: bool = False, dtype: torch.dtype = torch.float64) -> Shard:
    return Problem(loss, L2(1.0), blocks, intercept).shard(dtype, CPU)


def targets(loss: Loss, rng: np.random.Generator, rows: int) -> np.ndarray:
    if loss.target_kind == "classes":
        return rng.integers(0, K, rows)
    if loss.target_kind == "binary":
        return rng.choice([-1.0, 1.0], rows)
    return rng.poisson(2.0, rows).astype(float) if isinstance(loss, Poisson) else rng.normal(size=rows)


def uneven(loss: Loss, seed: int = 0, sizes: tuple[int, ...] = (7, 6, 1, 0, 12), weighted: bool = False) -> Blocks:
    """Blocks of which some are padded, one is empty, and whose labels cover all classes together."""
    rng = np.random.default_rng(seed)
    blocks: Blocks = [(rng.normal(size=(n, M)), targets(loss, rng, n)) for n in sizes]
    tallest = max(range(len(sizes)), key=lambda j: sizes[j])
    if loss.target_kind != "real":
        blocks[tallest][1][:K] = np.arange(K) if loss.target_kind == "classes" else [-1, 1, 1]
    return [(*b, rng.choice([0.0, 0.5, 2.0], len(b[1]))) for b in blocks] if weighted else blocks


@st.composite
def cases(draw: st.DrawFn) -> Case:
    loss = replace(
        draw(st.sampled_from(list(LOSSES.values()))), reduction=draw(st.sampled_from(["sum", "mean", "pooled"]))
    )
    seed = draw(st.integers(0, 10_000))
    sizes = (*draw(st.lists(st.integers(0, 9), max_size=4)), 10)
    blocks = uneven(loss, seed, sizes, weighted=draw(st.booleans()))
    sparse = draw(st.lists(st.booleans(), min_size=len(sizes), max_size=len(sizes)))
    blocks = [(scipy.sparse.csr_matrix(b[0]), *b[1:]) if s else b for b, s in zip(blocks, sparse, strict=True)]
    return Case(loss, blocks, draw(st.booleans()), seed)


def everything(shard: Shard, u: Tensor, P: Tensor) -> tuple[Tensor, ...]:
    point = shard.linearize(u)
    conjugate = point.conjugate(0.5)
    assert conjugate is not None
    return point.value, point.grad, point.hvp(P), point.hessian_diagonal(), conjugate
