"""Low-rank approximation of H_j = ∇²f_j by Lanczos (S7), leading eigenvectors by blocks (S12); all H_j at once.

Problem: find V (n × r, orthonormal) and D ≥ 0 (diagonal) with H_j ≈ V D Vᵀ, from products with H_j only.

Iteration, for k = 1 … r, from q_1 = start / ‖start‖:

    w = H q_k,   α_k = ⟨q_k, w⟩
    w ← (I − QQᵀ)(I − QQᵀ) w,   Q = (q_1 … q_k)          full reorthogonalisation; "twice is enough"
    β_k = ‖w‖,   q_{k+1} = w / β_k

Then T = tridiag(β, α, β) = S D Sᵀ and V = Q S; Ritz values D below 0 are set to 0. β_k = 0 is a breakdown:
Q spans an invariant subspace (a zero Hessian, an empty block, fewer distinct eigenvalues than r). That block
stops while the others go on. A repeated eigenvalue is found once: one start vector yields no more.

By blocks, products with a few vectors at a time:

    Q_1 = orth(A·start),   Q_{k+1} = orth((I − QQᵀ) A Q_k),  Q = (Q_1 … Q_k)         T = QᵀAQ

The largest eigenvalues converge faster than with powers of A: the leading 64 of 96 vectors, from seven
products with 16 at a time, are as good as 64 vectors after five products with all of them.
An invariant subspace (few rows, equal rows, no rows) is continued at random: a little noise in every new
block, far below A's own part and far above rounding.

References: Parlett (1998), The Symmetric Eigenvalue Problem, SIAM, chapters 6 and 13. G. H. Golub, C. F. Van Loan,
Matrix Computations, 4th ed., section 10.3.6.

Shapes: B blocks, m features, C columns, n = m·C unknowns (row-major as in u), r rank, b vectors at a time, k in all;
Q (B, n, k), T (B, k, k).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from auqadmm.checks import check_integer
from auqadmm.curvature.base import DISTRIBUTIONS, Estimate, HessianPoint, draw
from auqadmm.errors import InputError


@dataclass(frozen=True)
class Ritz:
    """H_j ≈ Σ_i values_i vectors_i vectors_iᵀ. Unused slots of a block are zero.

    Attributes
    ----------
    values
        (B, r), largest first, never negative.
    vectors
        (B, m, C, r), orthonormal within each block.
    steps
        (B,) number of slots in use.

    Examples
    --------
    One block, two features, one slot:

    >>> import torch
    >>> import auqadmm as aq
    >>> vectors = torch.tensor([0.6, 0.8]).reshape(1, 2, 1, 1)
    >>> ritz = aq.curvature.Ritz(torch.tensor([[100.0]]), vectors, torch.tensor([1]))
    >>> ritz.diagonal().flatten().round().tolist()
    [36.0, 64.0]
    """

    values: Tensor
    vectors: Tensor
    steps: Tensor

    def diagonal(self) -> Tensor:
        """diag(V D Vᵀ), without forming the n × n matrix.

        Returns
        -------
        Tensor
            (B, m, C).
        """
        D = self.values[:, None, None, :]
        return ((self.vectors * D) * self.vectors).sum(-1)


def ritz_pairs(Q: Tensor, T: Tensor, scale: Tensor, steps: Tensor) -> tuple[Tensor, Tensor]:
    """Values (B, r) and vectors (B, r, ·) of the leading `steps` slots of each block.

    Q (B, r, ·) has orthonormal rows, T (B, r, r) entries of size at most `scale` (B,) and bandwidth 1.
    """
    used = torch.arange(T.shape[-1], device=T.device) < steps[:, None]
    # eigh refuses a batch with one non-finite matrix; only a block that overflowed gets NaN
    finite = T.isfinite().flatten(1).all(-1)
    unit = torch.where(finite & (scale > 0), scale, 1.0)  # scale is 0 for a zero Hessian
    T = torch.where(finite[:, None, None], T / unit[:, None, None], 0.0)
    # |eigenvalues| ≤ 3 by Gershgorin: at −4 the unused slots come last and mix with no eigenvector in use
    T = T + torch.diag_embed(torch.where(used, 0.0, -4.0).to(T.dtype))
    values, S = (x.flip(-1) for x in torch.linalg.eigh(T))
    values = torch.where(used, values.clamp_min(0.0) * unit[:, None], 0.0)
    values = torch.where(finite[:, None], values, torch.nan)
    vectors = torch.where(used[:, :, None], S.mT.to(Q.dtype) @ Q, 0.0)
    return values.to(Q.dtype), vectors


# Vectors are stored with zeros up to a multiple of 64 bytes: BLAS adds in an order that depends on the
# alignment of a row, and two blocks with the same data are to give the same bits.
ALIGNED_NUMBERS = 16


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
        """The low-rank approximation itself.

        Parameters
        ----------
        point
            u with products by the Hessians there.

        Returns
        -------
        Ritz
            Its values and vectors.
        """
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
    return torch.nn.functional.pad(x, (0, -x.shape[-1] % ALIGNED_NUMBERS))


def _project(Q: Tensor, w: Tensor) -> Tensor:
    """wQᵀQ, Q (B, k, n) with orthonormal rows; w (B, n) stays a row: BLAS is slower with a column."""
    return (w[:, None, :] @ Q.mT @ Q).squeeze(1)


def _dot(x: Tensor, y: Tensor) -> Tensor:
    return (x * y).sum(-1, dtype=torch.float64)


def _norm(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x, dim=-1, dtype=torch.float64)


# ---------------------------------------------------------------------- block Lanczos
KRYLOV_STEPS = 3  # steps before a block may stop; all to the end: the same rounds (results/ablation: lanczos-to-end)


def krylov(
    apply: Callable[[Tensor], Tensor],
    random: Tensor,
    blocks: int,
    several: int,
    settled: Callable[[Tensor], Tensor] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """An orthonormal basis Q for each of the blocks, as many vectors as `random` has, T = QᵀAQ, and how many of the
    vectors each block uses, (B,); T is zero in the others.

    Parameters
    ----------
    apply
        (B, n, b) -> (B, n, b), one symmetric operator per block.
    random
        (n, k), the same for all blocks: the first columns are the start, the others the noise of new blocks.
    several
        b, vectors at a time.
    settled
        T -> (B,): which blocks have converged. Each uses its vectors up to then, whatever its
        neighbours do; when all have, the iteration ends.
    """
    first, *others = (x.expand(blocks, -1, -1) for x in random.split(several, 1))
    new = apply(first)
    Q = torch.linalg.qr(new + _noise(first, new))[0]
    products = apply(Q)
    T = Q.mT @ products
    used = torch.full((blocks,), random.shape[1], device=random.device)
    for other in others:
        if settled is not None and Q.shape[2] >= KRYLOV_STEPS * several:
            used = torch.where(settled(0.5 * (T + T.mT)), used.clamp(max=Q.shape[2]), used)
            if bool((used <= Q.shape[2]).all()):
                break
        new = products[:, :, : other.shape[2]]
        new = new + _noise(other, new)
        for _ in range(2):  # twice is enough, with unit vectors in between
            new = torch.linalg.qr(new - Q @ (Q.mT @ new))[0]
        products = apply(new)
        beside, own = Q.mT @ products, new.mT @ products
        T = torch.cat([torch.cat([T, beside], 2), torch.cat([beside.mT, own], 2)], 1)
        Q = torch.cat([Q, new], 2)
    used = used.clamp(max=Q.shape[2])
    inside = torch.arange(Q.shape[2], device=T.device) < used[:, None]
    return Q, 0.5 * (T + T.mT) * (inside[:, :, None] & inside[:, None, :]), used


def _noise(random: Tensor, x: Tensor) -> Tensor:
    """Small beside x; where x is zero any size will do."""
    scale = torch.linalg.vector_norm(x, dim=(1, 2), keepdim=True) / torch.linalg.vector_norm(random[0])
    scale = torch.where(scale > 0, scale, 1.0)
    return torch.finfo(x.dtype).eps ** 0.75 * scale * random
