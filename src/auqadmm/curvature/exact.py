"""The exact diagonal of H_j = ∇²f_j.

For a linear model, f_j(u) = Σ_i c_i φ(x_iᵀu, y_i), it is a weighted sum of squares,

    diag(H_j) at (feature p, column q)  =  Σ_i c_i x_ip² ∂²φ_i/∂z_q²,

about as cheap as one Hessian-vector product, so it is what the denoising figure uses (S9).

Shapes: B blocks, m features, C columns.
"""

from __future__ import annotations

from dataclasses import dataclass

from auqadmm.curvature.base import Estimate, HessianPoint


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
