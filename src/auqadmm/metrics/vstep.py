"""The v-step of S2 in the metric of low-rank weights (S12): argmin_v g(v) + ½⟨v, Kv⟩ − ⟨s, v⟩, K = Σ_j W_j.

    g quadratic                  (K + diag h) v = s + b          conjugate gradients, preconditioned (`kronecker_sum`)
    g separable with kinks       block pivoting                  (`composite`), a semismooth Newton method
    any other g                  accelerated proximal gradient   (`composite`); slower, only prox(s, K) is used

All start from a guess, as a rule the v of the iteration before. For a quadratic g the proximal map is affine and
determines h and b: prox(y, γ) = (y + b)/(γ + h) for any γ.

The result carries dist(0, Kv − s + ∂g(v)), or a bound on it, measured and not estimated by a recursion. It exceeds
the tolerance only when rounding, or for ill-conditioned K and a g of the third kind the number of steps, says so.

Shapes: N blocks, m features, C columns; v, s, guess (m, C).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from auqadmm.metrics import composite
from auqadmm.metrics.composite import Composite, Jacobi, Operator, Reshaped, accelerated, pivot, scale
from auqadmm.metrics.coupled import Coupled, CoupledSum
from auqadmm.metrics.kronecker_sum import KroneckerSum, ShiftedProduct
from auqadmm.metrics.lowrank import LowRank
from auqadmm.metrics.weights import Penalty, prox_and_slope
from auqadmm.runtime import Programs

TOLERANCE = 1e-10  # relative to ‖s‖, the default
MAX_CG = 2000  # iterations of a linear v-step
MAX_STEPS = 10_000  # proximal gradient steps of a v-step


@dataclass(frozen=True)
class VStep:
    """The result of a v-step.

    Attributes
    ----------
    v
        (m, C).
    residual
        A bound on dist(0, Kv − s + ∂g(v)).
    iterations
        Of conjugate gradients, rounds of pivoting, or steps.
    by
        The method: "linear", "pivoting" or "proximal gradient".

    Examples
    --------
    >>> import torch
    >>> import auqadmm as aq
    >>> U, M, d, S = torch.tensor([[[1.0], [0.0]]]), torch.full((1, 1, 1), 3.0), torch.zeros(1, 2), torch.ones(1, 1, 1)
    >>> K = aq.weights.LowRankMetric(aq.weights.LowRank(U, M, d, S, torch.ones(1)))
    >>> step = K.solve(aq.L2(1.0), torch.tensor([[5.0], [4.0]], dtype=torch.float64))
    >>> step.v.flatten().round(decimals=3).tolist(), step.by
    ([1.0, 2.0], 'linear')
    """

    v: Tensor
    residual: float
    iterations: int
    by: str = "linear"


@dataclass(frozen=True)
class LowRankMetric:
    """K = Σ_j W_j of all N blocks, replicated, in float64.

    Parameters
    ----------
    parts
        The weights of all blocks.

    Examples
    --------
    >>> import torch
    >>> import auqadmm as aq
    >>> U, M = torch.tensor([[[1.0], [0.0]]]).double(), torch.tensor([[[3.0]]]).double()
    >>> d, S, phi = torch.zeros(1, 2).double(), torch.ones(1, 1, 1).double(), torch.ones(1).double()
    >>> K = aq.weights.LowRankMetric(aq.weights.LowRank(U, M, d, S, phi, None))
    >>> K.prox(aq.Zero(), torch.tensor([[4.0], [2.0]])).flatten().round(decimals=6).tolist()
    [1.0, 2.0]
    """

    parts: LowRank

    def apply(self, v: Tensor) -> Tensor:
        return self._K.apply(v.reshape(self._K.shape)).reshape(v.shape)

    def diagonal(self) -> Tensor:
        """(m, C)."""
        diagonal = self._K.diagonal
        return diagonal.reshape(-1, self.parts.columns) if self.parts.joint else diagonal

    def prox(self, regularizer: Penalty, s: Tensor) -> Tensor:
        return self.solve(regularizer, s).v

    def solve(self, regularizer: Penalty, s: Tensor, guess: Tensor | None = None, tol: float | None = None) -> VStep:
        """The v-step: argmin_v g(v) + ½⟨v, Kv⟩ − ⟨s, v⟩.

        Parameters
        ----------
        regularizer
            g, by its methods `prox` and `value` and its properties `separable` and `quadratic`.
        s
            (m, C).
        guess
            Where to start; zero without one.
        tol
            Absolute, on the residual of the result; 1e-10·‖s‖ without one.

        Returns
        -------
        VStep
            v, and how far it is from exact.
        """
        s = s.double()
        guess = torch.zeros_like(s) if guess is None else guess.to(s)
        tol = TOLERANCE * float(s.norm()) if tol is None else tol
        if regularizer.quadratic:
            return self._linear(regularizer, s, guess, tol)
        D = self.diagonal()
        problem = Composite(self.apply, self._restricted, regularizer, s, D, self._scale * D)
        if regularizer.separable:
            best, by = pivot(problem, guess, tol), "pivoting"
        else:
            best, by = accelerated(problem, guess, tol, MAX_STEPS), "proximal gradient"
        return VStep(best.v, best.residual, best.iterations, by)

    def drop_cache(self) -> None:
        """Drop cached inverses, which can be computed again."""
        self._K.drop_cache()
        vars(self).pop("_recorded", None)

    def _linear(self, regularizer: Penalty, s: Tensor, guess: Tensor, tol: float) -> VStep:
        # A metric near zero, so that 1/p − γ does not cancel. At y = 1, not at 0: an l1 part of strength 0 still has
        # its kink in the formula.
        gamma = 1e-9 * self.diagonal()
        _, p = prox_and_slope(regularizer, torch.ones_like(s), gamma)
        h = (1 / p - gamma).clamp(min=0)
        b = s + (gamma + h) * regularizer.prox(torch.zeros_like(s), gamma)
        around = self._K.inverse(h.reshape(self._K.shape))
        preconditioners: list[Operator] = [self._outside(around), Jacobi(self.diagonal() + h)]
        apply = ShiftedProduct(self._K.product, h)
        if self._K.shape[1] == 1:  # the inverse is exact but for rounding
            guess = guess + preconditioners[0](b - apply(guess))
        v, residual, iterations = composite.solve(apply, preconditioners, b, guess, tol, MAX_CG, self._programs(around))
        return VStep(v, residual, iterations)

    def _restricted(self, active: Tensor, h: Tensor) -> Operator:
        inside = self._K.shape
        return self._outside(self._K.restricted(active.reshape(inside), h.reshape(inside)))

    def _outside(self, inverse: Operator) -> Operator:
        return Reshaped(inverse, self._K.shape)

    def _programs(self, around: Operator) -> Programs:
        """CUDA graphs that read K and its inverse in place: copies would double the memory."""
        known = vars(self).get("_recorded")
        if known is None or id(around) not in known.fixed:
            known = vars(self)["_recorded"] = Programs(self.parts.d.device, (self._K.product, around))
        return known

    @cached_property
    def _K(self) -> KroneckerSum:
        parts = self.parts.double()
        return CoupledSum(parts) if isinstance(parts, Coupled) else KroneckerSum(parts)

    @cached_property
    def _scale(self) -> float:
        return scale(self.apply, self.diagonal())
