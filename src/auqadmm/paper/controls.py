"""The methods of a comparison by name, and the controls that any gain of AUQ-ADMM must beat (S11).

    c-admm-a        C-ADMM at ρ = a_1: the penalty that AUQ's interval shrinks to, without any uncertainty
    auq-permuted    AUQ with the entries of each W_j shuffled: the same numbers in the wrong places
    auq-mean        AUQ with each W_j replaced by its mean: the same size, no structure

Shapes: B blocks, m features, C columns; W (B, m, C).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from auqadmm.core.consensus import Chosen
from auqadmm.core.state import Blocks, Consensus
from auqadmm.methods import AC, AUQ, AUQLR, RB, UQ, C
from auqadmm.metrics.weights import Diagonal, Scalar
from auqadmm.paper.spec import INTERVAL

if TYPE_CHECKING:
    from auqadmm.blocks.shard import Shard
    from auqadmm.core.solve import Method


@dataclass(frozen=True)
class PermutedAUQ(AUQ):
    """AUQ whose weights are permuted within each block, by one seeded permutation per block for the whole run."""

    name: ClassVar[str] = "auq-permuted"

    def next_weights(self, shard: Shard, blocks: Blocks, shared: Consensus) -> Chosen:
        chosen = super().next_weights(shard, blocks, shared)
        W = chosen.W.diagonal()
        # seeded by the block's own number: where a block is placed must not matter
        shuffled = [_shuffled(w, shared.setup.seed, j) for w, j in zip(W, shard.index, strict=True)]
        return replace(chosen, W=Diagonal(torch.stack(shuffled)))


@dataclass(frozen=True)
class MeanAUQ(AUQ):
    """AUQ whose W_j is one number, the mean of the weights that AUQ would use."""

    name: ClassVar[str] = "auq-mean"

    def next_weights(self, shard: Shard, blocks: Blocks, shared: Consensus) -> Chosen:
        chosen = super().next_weights(shard, blocks, shared)
        _, m, columns = shard.shape
        return replace(chosen, W=Scalar(chosen.W.diagonal().mean((1, 2)), m, columns))


def make(name: str, rank: int = 5) -> Method:
    """The method of a `RunSpec`."""
    if name.startswith("auq-rank-"):
        return AUQ(interval=INTERVAL, rank=int(name.removeprefix("auq-rank-")))
    known: dict[str, Callable[[], Method]] = {
        "c-admm": lambda: C(rho=1.0),
        "rb-admm": lambda: RB(rho=1.0),
        # as printed, with the dual residual without weights (S5)
        "rb-admm-paper": lambda: RB(rho=1.0, residuals="paper"),
        "ac-admm": lambda: AC(rho=1.0),
        "uq-admm": lambda: UQ(interval=INTERVAL, rank=rank),
        "auq-admm": lambda: AUQ(interval=INTERVAL, rank=rank),
        "auq-lr": lambda: AUQLR(),
        "c-admm-a": lambda: C(rho=INTERVAL[0]),
        "auq-permuted": lambda: PermutedAUQ(interval=INTERVAL, rank=rank),
        "auq-mean": lambda: MeanAUQ(interval=INTERVAL, rank=rank),
    }
    if name not in known:
        raise ValueError(f"There is no method {name!r}; there are {', '.join(known)} and auq-rank-R.")
    return known[name]()


def _shuffled(w: Tensor, seed: int, block: int) -> Tensor:
    order = _permutation(w.numel(), seed, block).to(w.device)
    return w.flatten()[order].reshape(w.shape)


@lru_cache(maxsize=256)
def _permutation(count: int, seed: int, block: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed * 1_000_003 + block)
    return torch.randperm(count, generator=generator)
