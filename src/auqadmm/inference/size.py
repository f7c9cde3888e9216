"""The size k of the negative binomial as one more unknown of the likelihood, and the search for the most likely one.

With ℓ a row's log-likelihood and μ = exp(z), its derivatives by k are

    ∂ℓ/∂k      ψ(y + k) − ψ(k) − log(1 + μ/k) + (μ − y)/(k + μ)
    ∂²ℓ/∂k²    ψ'(y + k) − ψ'(k) + μ/(k(k + μ)) + (y − μ)/(k + μ)²
    ∂²ℓ/∂z∂k   μ(y − μ)/(k + μ)²                                      of mean zero: u and k are orthogonal

A block adds to the sums

    Gk   −Σ c ∂ℓ/∂k
    Hk   the last column of the information of (u, k), (m + 1,)
    Rk   that of Σ c s sᵀ, s the scores of rows in (u, k); and Ck that of Σ_j λ_j λ_jᵀ

The most likely k: Newton's method on log k, every step a fit from the last one. The slope of max_u ℓ(u, k) is ∂ℓ/∂k at
the best u. Its curvature is that of k less what u gives way. Both come with these sums, one round per step.

Shapes: r rows; z, y and what is returned (r,); matrices of all unknowns (m + 1, m + 1), k last.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from auqadmm.errors import InputError

if TYPE_CHECKING:
    from auqadmm.core.result import Result
    from auqadmm.inference.statistics import Statistics
SIZE_STEPS = 60
FAR = math.log(20.0)  # the longest step in log k
SIZE_ENOUGH = 1e-9  # the step in log k, found by Newton's method, that ends the search: the next one is its square
LARGEST_SIZE = 1e5  # times the mean count: a larger k adds less than 1e-5 to the variance of Poisson


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


@dataclass(frozen=True)
class SizeSearch:
    """`fit(k, last, whole)`: the result for a given k, with its sums, from the result of the last step or None;
    `whole`: with the null model, which is needed at the end alone."""

    fit: Callable[[float, Result | None, bool], Result]
    quadratic: bool

    def __call__(self) -> tuple[float, Result, int]:
        """k, its result, and how many rounds all fits took."""
        low, high, t = -math.inf, math.inf, 0.0
        result, rounds = None, 0
        for _ in range(SIZE_STEPS):
            result = self.fit(math.exp(t), result, False)
            rounds += result.history[-1].rounds
            at = result.statistics
            assert at is not None
            slope, bend = self._derivatives(at, math.exp(t))
            low, high = (t, high) if slope < 0 else (low, t)
            if slope < 0 and math.exp(t) > LARGEST_SIZE * max(1.0, at.number("y") / at.number("weight")):
                raise InputError(
                    "The counts vary no more than Poisson's: the most likely k is infinite; use family='poisson'."
                )
            step = -slope / bend if bend > 0 else -math.copysign(FAR, slope)
            step = max(-FAR, min(FAR, step))
            if abs(step) <= SIZE_ENOUGH:
                if math.isnan(at.null):
                    result = self.fit(math.exp(t), result, True)
                    rounds += result.history[-1].rounds
                    at = result.statistics
                    assert at is not None
                return math.exp(t), replace(result, statistics=replace(at, searched=True)), rounds
            there = t + step
            t = there if low < there < high else 0.5 * (low + high)
        raise InputError("The most likely k was not found: give it, NegativeBinomial(k).")

    def _derivatives(self, at: Statistics, k: float) -> tuple[float, float]:
        """By log k, of −max_u ℓ."""
        slope, h = at.number("Gk"), at.sums["Hk"]
        bend = h[-1]
        if self.quadratic:
            H = at.sums["H"] + np.diag(at.strengths)
            bend = bend - h[:-1] @ np.linalg.lstsq(H, h[:-1], rcond=None)[0]
        return k * slope, k * k * float(bend) + k * slope
