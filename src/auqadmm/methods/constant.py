"""C-ADMM: the same penalty for every block, W_j = ρI, never changed (S5).

Reference: S. Boyd et al., Distributed Optimization and Statistical Learning via ADMM, 2011, section 7.1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from auqadmm.core.consensus import Chosen, ConsensusADMM
from auqadmm.core.state import Blocks, Consensus
from auqadmm.methods.checks import positive
from auqadmm.metrics.weights import Scalar

if TYPE_CHECKING:
    from auqadmm.blocks.shard import Shard


def scalar_weights(shard: Shard, rho: float) -> Scalar:
    """ρI for every block of the shard."""
    _, m, C = shard.shape
    return Scalar(torch.full((shard.blocks,), rho, dtype=shard.dtype, device=shard.device), m, C)


@dataclass(frozen=True)
class C(ConsensusADMM):
    """Consensus ADMM with one fixed penalty `rho`.

    Parameters
    ----------
    rho
        The penalty, > 0.
    relaxation
        α of S2, 1 ≤ α < 2.
    residuals
        "weighted", or "paper": the dual residual without weights (S3).

    Raises
    ------
    ValueError
        A parameter has a value that it cannot have; the message names it.

    Examples
    --------
    >>> import numpy as np
    >>> import auqadmm as aq
    >>> X, y = np.array([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0], [2.0, 1.0]]), np.array([1.0, 2.0, 3.0, 6.0])
    >>> problem = aq.Problem(aq.LeastSquares(), aq.L2(1.0), [(X[:2], y[:2]), (X[2:], y[2:])])
    >>> aq.solve(problem, aq.methods.C(rho=2.0)).coef.round(1)
    array([2., 1.])
    """

    rho: float = 1.0
    name: ClassVar[str] = "c-admm"

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("rho", self.rho)

    def first_weights(self, shard: Shard, blocks: Blocks, shared: Consensus) -> Chosen:
        return Chosen(scalar_weights(shard, self.rho), {})
