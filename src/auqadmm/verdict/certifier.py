"""Objective, KKT residual and duality gap at any v, without a run: for optima that were computed in another way.

Shapes: m features, C columns; v (m, C).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from torch import Tensor

from auqadmm.core.certificate import Certificate
from auqadmm.core.reduce import Reduce, score
from auqadmm.verdict.duality import full_gap, plain_gap
from auqadmm.verdict.queries import ConjugateQuery

if TYPE_CHECKING:
    from auqadmm.problem.regularizers import Regularizer


class Certifier:
    """Computes certificates, uncounted; remembers ‖Σ ∇f_j(0)‖, the scale of the problem."""

    def __init__(self, reduce: Reduce, regularizer: Regularizer, zero: Tensor, precision: float = 2.3e-16) -> None:
        self.reduce, self.g, self.precision = reduce, regularizer, precision
        self.grad_at_zero = float(reduce.free(score, None, zero)["G"].norm())

    def certify(self, v: Tensor) -> Certificate:
        """The gap is None where a free intercept would need its own slopes."""
        sums = self.reduce.free(score, None, v)
        f, G = float(sums["f"]), sums["G"]
        scale = self.grad_at_zero + float(sums["norms"])
        distance = float(self.g.subgradient_distance(v, G))
        kkt = distance / scale if scale > 0 else distance
        gap = plain_gap(self.g, v, G, self.precision)
        if gap is None and self.g.dual_scale(-G) is not None:
            gap = full_gap(self.g, v, f, G, None, partial(self._conjugate, v), self.precision)
        return Certificate(f + float(self.g.value(v)), kkt, gap)

    def _conjugate(self, v: Tensor, scale: float, shift: Tensor | None) -> float:
        return float(self.reduce.free(ConjugateQuery(None, scale, shift), None, v)["conjugate"])
