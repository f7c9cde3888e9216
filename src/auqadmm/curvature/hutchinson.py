"""Stochastic estimate of the diagonal of H_j = ∇²f_j (S7, "other estimators").

With random signs z_1 … z_s, entry by entry,

    d_j  =  Σ_t z_t ∘ H_j z_t  /  Σ_t z_t ∘ z_t,        z_t ∘ z_t = 1, so the denominator is s.

E z zᵀ = I makes it unbiased before negative entries are set to 0; the variance of entry p is
(1/s) Σ_{q≠p} H_pq², so a diagonal H_j is found exactly.

Reference: Bekas, Kokiopoulou and Saad (2007), An estimator for the diagonal of a matrix, Applied Numerical
Mathematics 57.

Shapes: B blocks, m features, C columns, s probes.
"""

from __future__ import annotations

from dataclasses import dataclass

from auqadmm.curvature.base import Estimate, HessianPoint, check_integer, draw


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
