"""A weighting rule: the plain diagonal of the Hessian at the consensus, renewed three times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import auqadmm as aq


@dataclass(frozen=True)
class Jacobi(aq.methods.ConsensusADMM):
    """W_j = diag ∇²f_j(v), not below `floor` times its largest entry, nor below `least`."""

    floor: float = 0.1
    least: float = 1e-3
    name: ClassVar[str] = "jacobi"

    def first_weights(self, shard, blocks, shared):
        d = shard.linearize(shard.expand(shared.v)).hessian_diagonal()  # (B, m, C): of all blocks held here
        bound = (self.floor * d.flatten(1).amax(1)).clamp(min=self.least)
        return aq.methods.Chosen(aq.weights.Diagonal(d.maximum(bound[:, None, None])), memory={})

    def weights_due(self, shared):
        return shared.iteration in (2, 4, 8)
