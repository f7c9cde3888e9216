"""The size k of the negative binomial as one more unknown of the likelihood.

With ℓ a row's log-likelihood and μ = exp(z), its derivatives by k are

    ∂ℓ/∂k      ψ(y + k) − ψ(k) − log(1 + μ/k) + (μ − y)/(k + μ)
    ∂²ℓ/∂k²    ψ'(y + k) − ψ'(k) + μ/(k(k + μ)) + (y − μ)/(k + μ)²
    ∂²ℓ/∂z∂k   μ(y − μ)/(k + μ)²                                      of mean zero: u and k are orthogonal

A block adds to the sums

    Gk   −Σ c ∂ℓ/∂k
    Hk   the last column of the information of (u, k), (m + 1,)
    Rk   that of Σ c s sᵀ, s the scores of rows in (u, k); and Ck that of Σ_j λ_j λ_jᵀ

Shapes: r rows; z, y and what is returned (r,); matrices of all unknowns (m + 1, m + 1), k last.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from auqadmm.errors import InputError

if TYPE_CHECKING:
    from auqadmm.inference.statistics import Statistics


def size_terms(k: float, z: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """−∂ℓ/∂k, −∂²ℓ/∂k² and −∂²ℓ/∂z∂k of every row."""
    K, mu = torch.full_like(z, k), torch.exp(z)
    whole = k + mu
    slope = torch.digamma(y + K) - torch.digamma(K) - torch.log1p(mu / k) + (mu - y) / whole
    # ζ(2, x) is ψ'(x), to more digits than torch.polygamma has
    bend = torch.special.zeta(2.0, y + K) - torch.special.zeta(2.0, K) + mu / (k * whole) + (y - mu) / whole.square()
    return -slope, -bend, -mu * (y - mu) / whole.square()


def with_size(at: Statistics, name: str, matrix: np.ndarray) -> np.ndarray:
    """A matrix of u (m, m) with the row and the column of k, from the sums `name`."""
    last = at.sums[name]
    return np.block([[matrix, last[:-1, None]], [last[None]]])


def inverse_with_size(at: Statistics, inverse: np.ndarray) -> np.ndarray:
    """The inverse of the information of (u, k), from that of u alone."""
    h, corner = at.sums["Hk"][:-1], at.sums["Hk"][-1]
    x = inverse @ h
    left = corner - h @ x
    if not left > 0:
        raise InputError(
            "The likelihood does not bend in k at the solution: k has no standard error. Give it, NegativeBinomial(k)."
        )
    y = np.append(-x, 1.0)
    return np.pad(inverse, ((0, 1), (0, 1))) + np.outer(y, y) / left
