"""How far v is from optimal for the ORIGINAL problem, whatever method produced it (S10).

    KKT   dist(0, Σ_j ∇f_j(v) + ∂g(v)) / (‖Σ_j ∇f_j(0)‖ + Σ_j ‖∇f_j(v)‖)
    gap   primal − dual at the dual point θ_i = c·φ'(x_iᵀv):
          g(v) + ⟨G, v⟩ + g*(−G) with G = Σ_j ∇f_j(v) when c = 1 (then f_j needs no conjugate), and
          F(v) + g(v) + Σ_i φ_i*(c φ_i') + g*(−c G) when −G must be scaled into the domain of g* (L1, GroupLasso)

The gap is None where no finite dual value is at hand: no regularizer, half-open constraints, an unpenalised
intercept, or a loss without a conjugate that needs scaling.

Shapes: B blocks, m features, C columns; v, G (m, C).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from auqadmm.core.reduce import Reduce
from auqadmm.core.weights import sum_blocks


@dataclass(frozen=True)
class Certificate:
    """Optimality of v: objective, relative KKT residual, duality gap (None where there is no finite dual)."""

    objective: float
    kkt: float
    gap: float | None = None

    @property
    def relative_gap(self) -> float | None:
        """The gap over |objective|, None where either is unknown or the objective is 0."""
        if self.gap is None or self.objective == 0 or not math.isfinite(self.objective):
            return None
        return self.gap / abs(self.objective)

    def evidence(self, tol: float) -> str:
        """The number that passes `tol`, in words; the KKT residual where neither does."""
        gap = self.relative_gap
        if self.kkt > tol and gap is not None and gap <= tol:
            return f"relative duality gap {gap:.1e}"
        return f"KKT residual {self.kkt:.1e}"

    def passes(self, tol: float) -> bool:
        """KKT residual or relative duality gap within `tol`."""
        gap = self.relative_gap
        return self.kkt <= tol or (gap is not None and gap <= tol)


def score(shard: Any, blocks: Any, v: Tensor) -> tuple[Any, dict[str, Tensor]]:
    """Σ f_j(v), Σ ∇f_j(v) and Σ ‖∇f_j(v)‖, a map over blocks."""
    return blocks, scores(shard.linearize(shard.expand(v)))


def scores(point: Any) -> dict[str, Tensor]:
    """The summands of `score` from a point where they are known."""
    grad = point.grad
    return {
        "f": sum_blocks(point.value),
        "G": sum_blocks(grad),
        "norms": sum_blocks(grad.flatten(1).double().norm(dim=1)),
    }


def conjugates(scale: float, shard: Any, blocks: Any, v: Tensor) -> tuple[Any, dict[str, Tensor]]:
    """Σ_j Σ_i φ_i*(scale·φ_i'(x_iᵀv)); NaN where the loss knows no conjugate."""
    point = shard.linearize(shard.expand(v))
    value = point.conjugate(scale)
    return blocks, {"conjugate": sum_blocks(point.value * math.nan if value is None else value)}


class Certifier:
    """Computes certificates; remembers ‖Σ ∇f_j(0)‖, the scale of the problem."""

    def __init__(self, reduce: Reduce, regularizer: Any, zero: Tensor, blocks: Any, precision: float = 2.3e-16) -> None:
        self.reduce = reduce
        self.g = regularizer
        self.precision = precision
        self.grad_at_zero = float(reduce.free(score, blocks, zero)["G"].norm())

    def certify(
        self,
        blocks: Any,
        v: Tensor,
        *,
        gap: bool,
        counted: bool = False,
        known: Mapping[str, Tensor] | None = None,
    ) -> Certificate:
        """Certificate at v. `counted`: a decision hangs on it, so its round and bytes count. `known`: its sums."""
        reduce = (lambda fn, b, x: self.reduce(fn, b, x)[1]) if counted else self.reduce.free
        sums = reduce(score, blocks, v) if known is None else known
        f, G = float(sums["f"]), sums["G"]
        objective = f + float(self.g.value(v))
        scale = self.grad_at_zero + float(sums["norms"])
        distance = float(self.g.subgradient_distance(v, G))
        # all gradients vanish (e.g. a zero data matrix): only the distance itself can speak
        kkt = distance / scale if scale > 0 else distance
        return Certificate(objective, kkt, self._gap(reduce, blocks, v, f, G) if gap else None)

    def _gap(self, reduce: Any, blocks: Any, v: Tensor, f: float, G: Tensor) -> float | None:
        scale = self.g.dual_scale(-G)
        if scale is None:
            return None
        if scale == 1.0:
            terms = [float(self.g.value(v)), float((G * v).sum()), float(self.g.conjugate(-G))]
        else:
            conjugate = float(reduce(partial(conjugates, scale), blocks, v)["conjugate"])
            terms = [f, float(self.g.value(v)), conjugate, float(self.g.conjugate(-scale * G))]
        gap, rounding = sum(terms), self.precision * sum(map(abs, terms))
        # terms that cancel leave their rounding: a gap below it is not known to be smaller
        return max(gap, rounding) if math.isfinite(gap) else None
