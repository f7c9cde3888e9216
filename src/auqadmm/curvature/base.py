"""What an estimator of curvature is given, and what it returns; the exact diagonal and an unbiased one (S7).

Given: a point u with products by the Hessians H_j = ∇²f_j(u_j). Returned: an estimate of every diag(H_j).
Random vectors are drawn once for all blocks, on the CPU and in float64: the estimate of a block then depends
on its own data alone, not on the machine, the device or the other blocks.

Exact: for a linear model, f_j(u) = Σ_i c_i φ(x_iᵀu, y_i), the diagonal is a weighted sum of squares,

    diag(H_j) at (feature p, column q)  =  Σ_i c_i x_ip² ∂²φ_i/∂z_q²,

about as cheap as one Hessian-vector product, so it is what the denoising figure uses (S9).

Hutchinson: with random signs z_1 … z_s, entry by entry,

    d_j  =  Σ_t z_t ∘ H_j z_t  /  Σ_t z_t ∘ z_t,        z_t ∘ z_t = 1, so the denominator is s.

E z zᵀ = I makes it unbiased before negative entries are set to 0; the variance of entry p is
(1/s) Σ_{q≠p} H_pq², so a diagonal H_j is found exactly.

Reference: Bekas, Kokiopoulou and Saad (2007), An estimator for the diagonal of a matrix, Applied Numerical
Mathematics 57.

Shapes: B blocks, m features, C columns, n = m·C unknowns, k right-hand sides, s probes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from auqadmm.checks import check_integer

DISTRIBUTIONS = ("gaussian", "rademacher")


class HessianPoint(Protocol):
    """The part of a linearised shard that curvature needs; `problem.losses.Point` has it."""

    @property
    def u(self) -> Tensor: ...

    def hvp(self, P: Tensor, /) -> Tensor:
        """Products with the Hessians.

        Parameters
        ----------
        P
            (B, m, C), or (B, m, C, k) with k right-hand sides.

        Returns
        -------
        Tensor
            H_j P_j, like P.
        """
        ...

    def hessian_diagonal(self) -> Tensor:
        """The exact diagonals of all H_j.

        Returns
        -------
        Tensor
            (B, m, C).
        """
        ...


@dataclass(frozen=True)
class Estimate:
    """An estimate of the diagonals of the Hessians.

    Attributes
    ----------
    diagonal
        (B, m, C), never negative: f_j is convex.
    hvps
        Hessian-vector products spent on each block.

    Examples
    --------
    >>> import torch
    >>> import auqadmm as aq
    >>> shard = aq.Problem(aq.LeastSquares(), aq.Zero(), [([[1.0], [2.0]], [1.0, 1.0])]).shard(torch.float64, "cpu")
    >>> point = shard.linearize(torch.zeros(1, 1, 1, dtype=torch.float64))
    >>> aq.curvature.Exact().diagonal(point)
    Estimate(diagonal=tensor([[[5.]]], dtype=torch.float64), hvps=0)
    """

    diagonal: Tensor
    hvps: int


class Curvature(Protocol):
    """Anything that estimates diag(H_j) of every block of this process."""

    def diagonal(self, point: HessianPoint) -> Estimate:
        """Estimate the diagonals at a point.

        Parameters
        ----------
        point
            u with products by the Hessians there.

        Returns
        -------
        Estimate
            The diagonals, and what they cost.
        """
        ...


def draw(shape: tuple[int, ...], distribution: str, seed: int, like: Tensor) -> Tensor:
    """Seeded random numbers in the dtype and on the device of `like`; the same numbers on every device."""
    generator = torch.Generator(device="cpu").manual_seed(int(seed))
    if distribution == "gaussian":
        x = torch.randn(shape, generator=generator, dtype=torch.float64)
    else:
        x = 2.0 * torch.randint(0, 2, shape, generator=generator).double() - 1.0
    return x.to(device=like.device, dtype=like.dtype)


@dataclass(frozen=True)
class Exact:
    """diag(H_j) itself, in closed form from the loss; spends no Hessian-vector product.

    Examples
    --------
    >>> import numpy as np
    >>> import auqadmm as aq
    >>> X, y = np.array([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0], [2.0, 1.0]]), np.array([1.0, 2.0, 3.0, 6.0])
    >>> problem = aq.Problem(aq.LeastSquares(), aq.L2(1.0), [(X[:2], y[:2]), (X[2:], y[2:])])
    >>> aq.solve(problem, aq.methods.AUQ(curvature=aq.curvature.Exact())).coef.round(1)
    array([2., 1.])
    """

    def diagonal(self, point: HessianPoint) -> Estimate:
        """Diagonals (B, m, C) at `point`."""
        return Estimate(point.hessian_diagonal(), hvps=0)


@dataclass(frozen=True)
class Hutchinson:
    """Estimate diag(H_j) with random sign vectors.

    Parameters
    ----------
    probes
        Number s of sign vectors, each one Hessian-vector product per block.
    seed
        Seed of the signs, which are the same for every block and every call.

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
    >>> aq.solve(problem, aq.methods.AUQ(curvature=aq.curvature.Hutchinson(probes=4))).coef.round(1)
    array([2., 1.])
    """

    probes: int = 16
    seed: int = 0

    def __post_init__(self) -> None:
        check_integer("probes", self.probes, least=1)
        check_integer("seed", self.seed)

    def diagonal(self, point: HessianPoint) -> Estimate:
        """Diagonals (B, m, C) at `point`, from one product with s right-hand sides."""
        B, m, C = point.u.shape
        z = draw((m, C, self.probes), "rademacher", self.seed, like=point.u)
        products = z * point.hvp(z.expand(B, m, C, self.probes))
        # a convex f_j has no negative entry, an estimate of it may: off-diagonal entries are its noise
        return Estimate(products.mean(-1).clamp_min(0.0), hvps=self.probes)
