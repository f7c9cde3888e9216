"""RB-ADMM: one penalty for all blocks, doubled or halved so that the residuals stay of one size (S5).

    ρ ← τρ   if r > μs            ρ ← ρ/τ   if s > μr            otherwise unchanged

`normalized=True` compares r/max(‖u‖, ‖v‖) with s/‖λ‖ instead, which does not change when the problem is
multiplied by a constant. The rule reads the residuals before the next local solves: two rounds per iteration.

Reference: B. S. He, H. Yang, S. L. Wang, Alternating direction method with self-adaptive penalty parameters, 2000;
normalised: B. Wohlberg, ADMM penalty parameter selection by residual balancing, 2017.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from auqadmm.core.consensus import Chosen, ConsensusADMM
from auqadmm.core.reduce import Reduce
from auqadmm.core.state import Blocks, Consensus, Residuals, Setup
from auqadmm.methods.checks import above_one, positive
from auqadmm.methods.constant import scalar_weights
from auqadmm.metrics.weights import Scalar

if TYPE_CHECKING:
    from auqadmm.blocks.shard import Shard


@dataclass(frozen=True)
class RB(ConsensusADMM):
    """Residual balancing from `rho`, with factor `tau` when the residuals differ by more than `mu`.

    Parameters
    ----------
    rho
        The first penalty, > 0.
    tau
        The factor by which the penalty changes, > 1.
    mu
        How far apart the residuals must be for a change.
    normalized
        Compare residuals relative to models and multipliers, which does not depend on units (S5).
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
    >>> aq.solve(problem, aq.methods.RB(rho=2.0)).coef.round(1)
    array([2., 1.])
    """

    rho: float = 1.0
    tau: float = 2.0
    mu: float = 10.0
    normalized: bool = False
    name: ClassVar[str] = "rb-admm"

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("rho", self.rho)
        above_one("tau", self.tau)
        above_one("mu", self.mu)

    def separate(self, shared: Consensus) -> bool:
        return True

    def first_scalars(self, setup: Setup) -> Mapping[str, float]:
        warm = setup.warm
        if warm is not None and warm.method == self.name and isinstance(warm.weights, Scalar):
            return {"rho": float(warm.weights.rho[0]), "changed": 1.0}
        return {"rho": self.rho, "changed": 1.0}

    def prepare(self, blocks: Blocks, shared: Consensus, reduce: Reduce) -> tuple[Blocks, Consensus]:
        if shared.residuals is None:
            return blocks, shared
        rho = shared.scalars["rho"]
        new = self.balanced(rho, shared.residuals)
        return blocks, replace(shared, scalars={"rho": new, "changed": float(new != rho)})

    def balanced(self, rho: float, r: Residuals) -> float:
        """The rule, on norms over all blocks."""
        primal, dual = r.primal, r.dual
        if self.normalized:
            size, lam = max(r.u_norm, r.v_norm), r.lam_norm
            # before anything has moved there is no scale to compare with: keep ρ
            if size == 0 or lam == 0:
                return rho
            primal, dual = primal / size, dual / lam
        if primal > self.mu * dual:
            return rho * self.tau
        if dual > self.mu * primal:
            return rho / self.tau
        return rho

    def weights_due(self, shared: Consensus) -> bool:
        return shared.scalars["changed"] == 1.0

    def first_weights(self, shard: Shard, blocks: Blocks, shared: Consensus) -> Chosen:
        return Chosen(scalar_weights(shard, shared.scalars["rho"]), {})
