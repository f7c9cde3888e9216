"""UQ-ADMM and AUQ-ADMM: diagonal weights from the uncertainty of each block's model (S7).

    d_j = diag of a low-rank approximation of H_j = ∇²f_j,     W_j = σ(d_j)
    σ the affine map of [min d_j, max d_j] onto [a, b]

UQ computes the weights once. AUQ computes them anew every `every` iterations and shrinks the interval,
a_k = a_1, b_k = a_1(1 + (b_1/a_1 − 1)/k²), so that the changes are summable and the method converges (S8).

Reference: J. Ye, C. Wan, S. Wu Fung, Adaptive uncertainty-weighted ADMM for distributed optimization.

Shapes: B blocks, m features, C columns; d, W (B, m, C).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from auqadmm import curvature
from auqadmm.checks import at_least_one, is_number, one_of
from auqadmm.core.consensus import Chosen, ConsensusADMM
from auqadmm.core.reduce import Reduce
from auqadmm.core.state import Blocks, Consensus
from auqadmm.errors import InputError
from auqadmm.metrics.weights import Diagonal

if TYPE_CHECKING:
    from auqadmm.blocks.shard import Shard
    from auqadmm.curvature.base import Curvature

# Entries of d_j that differ by no more than this, relative to the largest, are rounding and not information.
CURVATURE_NOISE = 1e-12


@dataclass(frozen=True)
class UQ(ConsensusADMM):
    """Uncertainty weights, computed once.

    Parameters
    ----------
    interval
        [a, b] onto which the weights are mapped, 0 < a ≤ b.
    rank
        Steps of Lanczos.
    at
        Take H_j at the local models ("u") or at the consensus ("v").
    normalize
        Map each block's own range onto the interval ("block", the paper's) or the range over all blocks ("global").
    curvature
        "lanczos", "exact", "hutchinson" or an estimator object.
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
    >>> aq.solve(problem, aq.methods.UQ(rank=2)).coef.round(1)
    array([2., 1.])
    """

    interval: tuple[float, float] = (0.1, 1.0)
    rank: int = 5
    at: str = "u"
    normalize: str = "block"
    curvature: str | Curvature = "lanczos"
    name: ClassVar[str] = "uq-admm"

    def __post_init__(self) -> None:
        super().__post_init__()
        ends = tuple(self.interval) if isinstance(self.interval, tuple | list) else ()
        if len(ends) != 2 or not all(map(is_number, ends)) or not 0 < ends[0] <= ends[1] < float("inf"):
            raise InputError(f"interval must be (a, b) with 0 < a ≤ b, got {self.interval!r}.")
        at_least_one("rank", self.rank)
        one_of("at", self.at, ("u", "v"))
        one_of("normalize", self.normalize, ("block", "global"))
        curvature.resolve(self.curvature, self.rank, 0)

    def interval_at(self, k: int) -> tuple[float, float]:
        """The interval of an iteration.

        Parameters
        ----------
        k
            The iteration, from 1.

        Returns
        -------
        tuple
            a_k and b_k.
        """
        return self.interval

    def separate(self, shared: Consensus) -> bool:
        return self.normalize == "global" and self.weights_due(shared)

    def first_weights(self, shard: Shard, blocks: Blocks, shared: Consensus) -> Chosen:
        return self.next_weights(shard, blocks, shared)

    def next_weights(self, shard: Shard, blocks: Blocks, shared: Consensus) -> Chosen:
        interval = self.interval_at(shared.iteration + 1)
        if self.normalize == "global":
            d, hvps = blocks.memory["d"], int(blocks.memory["d_hvps"])
            lo, hi = (d.new_full((shard.blocks,), shared.scalars[x]) for x in ("low", "high"))
        else:
            d, hvps = self.diagonals(shard, blocks, shared)
            lo, hi = extremes(d, shared.setup.intercept)
        return Chosen(Diagonal(affine(d, lo, hi, interval)), {}, hvps)

    def diagonals(self, shard: Shard, blocks: Blocks, shared: Consensus) -> tuple[Tensor, int]:
        """The diagonals of curvature.

        Parameters
        ----------
        shard, blocks
            Of this process.
        shared
            The replicated state.

        Returns
        -------
        Tensor, int
            d_j, (B, m, C), and the Hessian-vector products it cost.
        """
        where = blocks.u if self.at == "u" else shard.expand(shared.v)
        estimator = curvature.resolve(self.curvature, self.rank, shared.setup.seed)
        estimate = estimator.diagonal(shard.linearize(where))
        return estimate.diagonal, estimate.hvps

    # ------------------------------------------------------------------ one range for all blocks
    def prepare(self, blocks: Blocks, shared: Consensus, reduce: Reduce) -> tuple[Blocks, Consensus]:
        due = shared.iteration == 0 or self.weights_due(shared)
        if self.normalize == "block" or not due:
            return blocks, shared
        blocks, extremes = reduce.minmax(self.ranges, blocks, shared)
        low, high = extremes["range"].tolist()
        return blocks, replace(shared, scalars={"low": low, "high": high})

    def ranges(self, shard: Shard, blocks: Blocks, shared: Consensus) -> tuple[Blocks, dict[str, Tensor]]:
        """Keep d_j for the primal part, and report its range: a map over blocks.

        Parameters
        ----------
        shard, blocks
            Of this process.
        shared
            The replicated state.

        Returns
        -------
        Blocks, dict
            With d_j in memory; `range`, the smallest and the largest entry over these blocks.
        """
        d, hvps = self.diagonals(shard, blocks, shared)
        lo, hi = extremes(d, shared.setup.intercept)
        memory = {"d": d, "d_hvps": torch.tensor(hvps)}
        return replace(blocks, memory=memory), {"range": torch.stack([lo.min(), hi.max()]).double()}


@dataclass(frozen=True)
class AUQ(UQ):
    """Adaptive uncertainty weights: computed anew every `every` iterations, on a shrinking interval.

    Parameters
    ----------
    interval, rank, at, normalize, curvature, relaxation, residuals
        As in `UQ`; the interval is that of the first iteration.
    every
        Iterations between renewals of weights and interval.

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
    >>> aq.solve(problem, aq.methods.AUQ(rank=2)).coef.round(1)
    array([2., 1.])
    """

    every: int = 1
    name: ClassVar[str] = "auq-admm"

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least_one("every", self.every)

    def interval_at(self, k: int) -> tuple[float, float]:
        a, b = self.interval
        i = 1 + (k - 1) // self.every
        return a, a + (b - a) / i**2

    def weights_due(self, shared: Consensus) -> bool:
        return shared.iteration % self.every == 0


def extremes(d: Tensor, intercept: bool) -> tuple[Tensor, Tensor]:
    """Smallest and largest entry of each block (B,), without an intercept's row, which would dominate the range."""
    flat = (d[:, :-1] if intercept else d).flatten(1)
    return flat.amin(1), flat.amax(1)


def affine(d: Tensor, lo: Tensor, hi: Tensor, interval: tuple[float, float]) -> Tensor:
    """σ of S7: [lo, hi] onto [a, b], clipped; the middle where a block's d is constant (no information)."""
    a, b = interval
    width = hi - lo
    informed = width > CURVATURE_NOISE * hi.abs()
    share = (d - lo[:, None, None]) / torch.where(informed, width, torch.ones_like(width))[:, None, None]
    # a + (b − a)·share, not p·d + q: with a = b this is a to the last bit
    W = (a + (b - a) * share.clamp(0, 1)).clamp(a, b)
    return torch.where(informed[:, None, None], W, torch.full_like(W, (a + b) / 2))
