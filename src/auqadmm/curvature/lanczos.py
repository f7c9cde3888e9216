"""Low-rank approximation of H_j = ∇²f_j by Lanczos, all blocks at once (S7).

Problem: find V (n × r, orthonormal) and D ≥ 0 (diagonal) with H_j ≈ V D Vᵀ, from products with H_j only.

Iteration, for k = 1 … r, from q_1 = start / ‖start‖:

    w = H q_k,   α_k = ⟨q_k, w⟩
    w ← (I − QQᵀ)(I − QQᵀ) w,   Q = (q_1 … q_k)          full reorthogonalisation; "twice is enough"
    β_k = ‖w‖,   q_{k+1} = w / β_k

Then T = tridiag(β, α, β) = S D Sᵀ and V = Q S; Ritz values D below 0 are set to 0. β_k = 0 is a breakdown:
Q spans an invariant subspace (a zero Hessian, an empty block, fewer distinct eigenvalues than r). That block
stops while the others go on. A repeated eigenvalue is found once: one start vector yields no more.

Reference: Parlett (1998), The Symmetric Eigenvalue Problem, SIAM, chapters 6 and 13.

Shapes: B blocks, m features, C columns, n = m·C unknowns (row-major as in u), r rank.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from auqadmm.curvature.base import DISTRIBUTIONS, Estimate, HessianPoint, check_integer, draw
from auqadmm.curvature.ritz import Ritz, ritz_pairs
from auqadmm.errors import InputError

# Vectors are stored with zeros up to a multiple of 64 bytes: BLAS adds in an order that depends on the
# alignment of a row, and two blocks with the same data are to give the same bits.
ALIGN = 16


@dataclass(frozen=True)
class Lanczos:
    """diag(V D Vᵀ) of a rank-r Lanczos approximation, the paper's estimate of curvature.

    Parameters
    ----------
    rank
        Lanczos steps r, each one Hessian-vector product per block; more than n count as n.
    seed
        Seed of the start vector, which is the same for every block and every call.
    start
        Its distribution, `"gaussian"` or `"rademacher"`. The latter finds the exact shape of a Hessian that
        is a 0/1 mask, in two steps (S9).

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
    >>> aq.solve(problem, aq.methods.AUQ(curvature=aq.curvature.Lanczos(rank=2))).coef.round(1)
    array([2., 1.])
    """

    rank: int = 5
    seed: int = 0
    start: str = "gaussian"

    def __post_init__(self) -> None:
        check_integer("rank", self.rank, least=1)
        check_integer("seed", self.seed)
        if self.start not in DISTRIBUTIONS:
            known = " or ".join(repr(d) for d in DISTRIBUTIONS)
            raise InputError(f"start must be {known}, got {self.start!r}.")

    def decompose(self, point: HessianPoint) -> Ritz:
        """Ritz values and vectors at `point`."""
        B, m, C = point.u.shape
        start = draw((m, C), self.start, self.seed, like=point.u)
        return lanczos(point.hvp, (B, m, C), self.rank, start)

    def diagonal(self, point: HessianPoint) -> Estimate:
        """Diagonals (B, m, C) at `point`."""
        ritz = self.decompose(point)
        return Estimate(ritz.diagonal(), hvps=ritz.values.shape[1])


def lanczos(hvp: Callable[[Tensor], Tensor], shape: tuple[int, int, int], rank: int, start: Tensor) -> Ritz:
    """Run min(rank, n) Lanczos steps on B symmetric operators at once.

    Parameters
    ----------
    hvp
        (B, m, C) -> (B, m, C), one symmetric operator per block.
    shape
        (B, m, C).
    rank
        Steps r ≥ 1. Every block is multiplied r times, also after its breakdown: the cost does not depend on
        which blocks share a machine, and nothing waits for a device to answer.
    start
        (m, C) start vector of all blocks; its dtype and device are those of the result.
    """
    B, m, C = shape
    n, r = m * C, min(rank, m * C)
    # below this share of the block's own scale, β is the rounding error of hvp and not a direction
    breakdown = torch.finfo(start.dtype).eps ** 0.75
    w = _padded(start.reshape(1, n)).repeat(B, 1)
    Q = w.new_zeros(B, r, w.shape[1])
    T = w.new_zeros(B, r, r, dtype=torch.float64)
    scale = T.new_zeros(B)  # largest |α|, |β| so far
    steps = torch.zeros(B, dtype=torch.int64, device=w.device)

    beta = _norm(w)
    alive = beta > 0  # a zero start vector
    for k in range(r):
        # a block that broke down has β ≈ 0: it divides by 1, and zeros take the place of its vector
        divisor = torch.where(alive, beta, 1.0)[:, None].to(w.dtype)
        q = torch.where(alive[:, None], w / divisor, 0.0)
        Q[:, k] = q
        steps += alive
        w = _padded(hvp(q[:, :n].reshape(shape)).reshape(B, n))
        alpha = torch.where(alive, _dot(q, w), 0.0)
        T[:, k, k] = alpha
        scale = torch.maximum(scale, alpha.abs())
        if k + 1 == r:  # β_r has no place in T
            break
        for _ in range(2):
            w = w - _project(Q[:, : k + 1], w)
        beta = torch.where(alive, _norm(w), 0.0)
        scale = torch.maximum(scale, beta)
        alive = alive & (beta > breakdown * scale)
        T[:, k, k + 1] = T[:, k + 1, k] = torch.where(alive, beta, 0.0)

    values, V = ritz_pairs(Q, T, scale, steps)
    return Ritz(values, V[..., :n].reshape(B, r, m, C).permute(0, 2, 3, 1), steps)


def _padded(x: Tensor) -> Tensor:
    return torch.nn.functional.pad(x, (0, -x.shape[-1] % ALIGN))


def _project(Q: Tensor, w: Tensor) -> Tensor:
    """wQᵀQ, Q (B, k, n) with orthonormal rows; w (B, n) stays a row: BLAS is slower with a column."""
    return (w[:, None, :] @ Q.mT @ Q).squeeze(1)


def _dot(x: Tensor, y: Tensor) -> Tensor:
    return (x * y).sum(-1, dtype=torch.float64)


def _norm(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x, dim=-1, dtype=torch.float64)
