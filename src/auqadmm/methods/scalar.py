"""Scalar penalties, W_j = ρ_jI: C-ADMM, RB-ADMM and AC-ADMM.

C-ADMM: the same ρ for every block, never changed (S5).

RB-ADMM: one ρ for all blocks, doubled or halved so that the residuals stay of one size (S5).

    ρ ← τρ   if r > μs            ρ ← ρ/τ   if s > μr            otherwise unchanged

`normalized=True` compares r/max(‖u‖, ‖v‖) with s/‖λ‖ instead, which does not change when the problem is
multiplied by a constant. The rule reads the residuals before the next local solves: two rounds per iteration.

AC-ADMM: one spectral penalty per block, from differences of iterates and multipliers (S6).

    λ̂_j = λ_j^{k−1} + W_j(v^{k−1} − u_j^k)
    Du = u_j^k − u_j^{k0}   Dλ̂ = λ̂_j^k − λ̂_j^{k0}   Dv = −(v^k − v^{k0})   Dλ = λ_j^k − λ_j^{k0}
    a, b    spectral step sizes of the pairs (Du, Dλ̂), (Dv, Dλ):  SD = ⟨D',D'⟩/⟨D,D'⟩, MG = ⟨D,D'⟩/⟨D,D⟩,
            MG if 2·MG > SD else SD − MG/2
    ρ̂       √(ab) if both pairs correlate, a or b if one does, else ρ
    ρ       ← clip(ρ̂, ρ/(1 + C_cg/k²), ρ(1 + C_cg/k²))

The iterates of k = 1 are stored, estimates are made every `every` iterations against the point stored last.

Reference: S. Boyd et al., Distributed Optimization and Statistical Learning via ADMM, 2011, section 7.1; B. S. He,
H. Yang, S. L. Wang, Alternating direction method with self-adaptive penalty parameters, 2000, normalised: B. Wohlberg,
ADMM penalty parameter selection by residual balancing, 2017; Z. Xu et al., Adaptive consensus ADMM for distributed
optimization, 2017.

Shapes: B blocks, m features, C columns; u, lam, lam_hat (B, m, C), v (m, C); ρ and all estimates (B,).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from auqadmm.checks import above_one, at_least_one, is_number, positive
from auqadmm.core.consensus import Chosen, ConsensusADMM
from auqadmm.core.reduce import Reduce
from auqadmm.core.state import Blocks, Consensus, Residuals, Setup
from auqadmm.errors import InputError
from auqadmm.metrics.weights import Scalar, dot

if TYPE_CHECKING:
    from auqadmm.blocks.shard import Shard


SPECTRAL_NOISE = 100.0  # units of rounding


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


# ---------------------------------------------------------------------- balanced residuals


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
        """The rule, on norms over all blocks.

        Parameters
        ----------
        rho
            The penalty of the last iteration.
        r
            Its residuals.

        Returns
        -------
        float
            The penalty of the next one.
        """
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


# ---------------------------------------------------------------------- spectral steps


@dataclass(frozen=True)
class AC(ConsensusADMM):
    """Adaptive consensus ADMM.

    Parameters
    ----------
    rho
        First penalty of every block.
    every
        Iterations between estimates (T_f).
    correlation
        A pair counts when its correlation exceeds this.
    constant
        C_cg: how much a penalty may change, 1 + C_cg/k² in iteration k (S8).
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
    >>> aq.solve(problem, aq.methods.AC()).coef.round(1)
    array([2., 1.])
    """

    rho: float = 1.0
    every: int = 2
    correlation: float = 0.2
    constant: float = 1e10
    name: ClassVar[str] = "ac-admm"
    accuracy: ClassVar[float] = 0.1  # λ̂_j stands for ∇f_j(u_j): a loose local solve hides the correlation

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("rho", self.rho)
        positive("constant", self.constant)
        at_least_one("every", self.every)
        if not (is_number(self.correlation) and 0 <= self.correlation < 1):
            raise InputError(f"correlation must lie in [0, 1), got {self.correlation!r}.")

    def first_weights(self, shard: Shard, blocks: Blocks, shared: Consensus) -> Chosen:
        W, warm = scalar_weights(shard, self.rho), shared.setup.warm
        if warm is not None and warm.method == self.name and isinstance(warm.weights, Scalar):
            W = replace(W, rho=warm.weights.rho[list(shard.index)].to(W.rho))  # penalties of the warm start
        return Chosen(W, {})

    def weights_due(self, shared: Consensus) -> bool:
        return shared.iteration > 1 and shared.iteration % self.every == 0

    def observe(self, shard: Shard, blocks: Blocks, shared: Consensus) -> Mapping[str, Tensor]:
        """Keep λ̂_j of this iteration; after the first iteration also store its point as k0."""
        assert shared.v_prev is not None
        v, v_prev = shard.expand(shared.v), shard.expand(shared.v_prev)
        lam_hat = blocks.lam + blocks.W.apply(v_prev - blocks.u)
        memory = {**blocks.memory, "lam_hat": lam_hat}
        if shared.iteration == 1:
            relaxed = blocks.u if self.relaxation == 1 else self.relaxation * (blocks.u - v_prev) + v_prev
            lam = blocks.lam + blocks.W.apply(v - relaxed)
            memory |= _stored(blocks.u, shared.v, lam, lam_hat)
        return memory

    def next_weights(self, shard: Shard, blocks: Blocks, shared: Consensus) -> Chosen:
        old = blocks.memory
        rho = blocks.W.rho
        du, dlam_hat = blocks.u - old["u0"], old["lam_hat"] - old["lam_hat0"]
        dv, dlam = shard.expand(-(shared.v - old["v0"])), blocks.lam - old["lam0"]
        # λ and λ̂ = λ + ρ(v − u) are known to rounding of their terms: smaller changes count as zero. Without this the
        # penalty of a block without rows, whose λ̂ is zero, would be a quotient of rounding errors.
        noise = (
            SPECTRAL_NOISE
            * torch.finfo(rho.dtype).eps
            * (_size(blocks.lam) + rho * (_size(blocks.u) + _size(old["u0"])))
        )
        a, a_counts = spectral_step(du, dlam_hat, self.correlation, noise)
        b, b_counts = spectral_step(dv, dlam, self.correlation, noise)
        hat = torch.where(a_counts, torch.where(b_counts, torch.sqrt(a * b), a), torch.where(b_counts, b, rho))
        bound = 1 + self.constant / shared.iteration**2
        rho = torch.minimum(torch.maximum(hat, rho / bound), rho * bound)
        memory = {**old, **_stored(blocks.u, shared.v, blocks.lam, old["lam_hat"])}
        return Chosen(replace(blocks.W, rho=rho), memory)


def spectral_step(D: Tensor, E: Tensor, threshold: float, noise: Tensor | float = 0.0) -> tuple[Tensor, Tensor]:
    """The safeguarded spectral step of each pair (D, E), and whether the pair is correlated enough to count.

    A block that did not move (D = 0, or E no larger than its `noise`), or moved without correlation, does not count;
    its step is 1, so that nothing is divided by zero.
    """
    DE, DD, EE = dot(D, E), dot(D, D), dot(E, E)
    correlation = DE / torch.where((DD > 0) & (EE > 0), torch.sqrt(DD) * torch.sqrt(EE), torch.ones_like(DE))
    counts = (correlation > threshold) & (DD > 0) & (EE.sqrt() > noise) & (DE > 0)
    one = torch.ones_like(DE)
    sd = torch.where(counts, EE, one) / torch.where(counts, DE, one)
    mg = torch.where(counts, DE, one) / torch.where(counts, DD, one)
    step = torch.where(2 * mg > sd, mg, sd - mg / 2)
    counts &= step.isfinite() & (step > 0)
    return torch.where(counts, step, one), counts


def _size(x: Tensor) -> Tensor:
    return x.flatten(1).norm(dim=1)


def _stored(u: Tensor, v: Tensor, lam: Tensor, lam_hat: Tensor) -> dict[str, Tensor]:
    return {"u0": u, "v0": v, "lam0": lam, "lam_hat0": lam_hat}
