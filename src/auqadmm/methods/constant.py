"""C-ADMM: the same penalty for every block, W_j = ρI, never changed (S5).

Reference: S. Boyd et al., Distributed Optimization and Statistical Learning via ADMM, 2011, section 7.1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from auqadmm.core.consensus import Chosen, ConsensusADMM
from auqadmm.core.state import Blocks, Consensus
from auqadmm.methods.checks import positive
from auqadmm.metrics.weights import Scalar


def scalar_weights(shard: Any, rho: float) -> Scalar:
    """ρI for every block of the shard."""
    _, m, C = shard.shape
    return Scalar(torch.full((shard.blocks,), rho, dtype=shard.dtype, device=shard.device), m, C)


@dataclass(frozen=True)
class C(ConsensusADMM):
    """Consensus ADMM with one fixed penalty `rho`."""

    rho: float = 1.0
    name: ClassVar[str] = "c-admm"

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("rho", self.rho)

    def first_weights(self, shard: Any, blocks: Blocks, shared: Consensus) -> Chosen:
        return Chosen(scalar_weights(shard, self.rho), {})
