"""The weights W_j as operators, and their sum K = Σ_j W_j: the choices of a user-defined method.

Scalar      ρ_j I
Diagonal    diag(d_j)
LowRank     (U_j M_j U_jᵀ + Fᵀ diag(d_j) F) ⊗ S_j + φ_j I
Coupled     the same with classes coupled inside the directions U_j

`Weights` and `Metric` are their protocols; `DiagonalMetric` and `LowRankMetric` are the sums K, whose
`prox(g, s)` is the consensus step. `sum_blocks` adds over blocks in an order that does not depend on placement.
"""

from auqadmm.metrics.coupled import Coupled
from auqadmm.metrics.lowrank import LowRank
from auqadmm.metrics.vstep import LowRankMetric, VStep
from auqadmm.metrics.weights import Diagonal, DiagonalMetric, Metric, Scalar, Weights, sum_blocks

__all__ = [
    "Coupled",
    "Diagonal",
    "DiagonalMetric",
    "LowRank",
    "LowRankMetric",
    "Metric",
    "Scalar",
    "VStep",
    "Weights",
    "sum_blocks",
]
