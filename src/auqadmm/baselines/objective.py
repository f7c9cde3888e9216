"""F(v) = Σ_j f_j(v) + g(v) for gradient methods: one counted reduction per point.

    up      Σ_j f_j(v) and Σ_j ∇f_j(v), n + 1 numbers         down     v, n numbers

Where the loop stops by certificates (`Setup.scoring`), Σ_j ‖∇f_j(v)‖ goes up too: then the certificate at v is known
without a round of its own.

g is replicated and needs no communication. Where g = l1‖v‖₁ + l2/2‖v‖² its smooth part joins the gradient:
`grad` = Σ_j ∇f_j(v) + l2·v, and the method handles l1.

Shapes: B blocks, m features, C columns, n = m·C; v, gradients (m, C); l1, l2 one number per row, (m, 1).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from auqadmm.core.reduce import B, Reduce, Sums, score, scores
from auqadmm.core.state import Cost, State
from auqadmm.metrics.weights import sum_blocks
from auqadmm.problem.regularizers import L1, L2, ElasticNet, Zero
from auqadmm.problem.wrappers import FreeIntercept, ScaledRegularizer

if TYPE_CHECKING:
    from auqadmm.blocks.loss import Point
    from auqadmm.blocks.shard import Shard
    from auqadmm.problem.regularizers import Regularizer

# Values of F are sums over all rows: a difference below this many ulps of F is rounding.
OBJECTIVE_ULPS = 16.0


def value_and_gradient(shard: Shard, blocks: B, v: Tensor) -> tuple[B, Sums]:
    """Σ f_j(v) and Σ ∇f_j(v), a map over blocks."""
    return blocks, summands(shard, shard.linearize(shard.expand(v)), scoring=False)


def summands(shard: Shard, point: Point, scoring: bool) -> Sums:
    """What workers send; `scoring`: all that a certificate needs."""
    return scores(shard, point) if scoring else {"f": sum_blocks(point.value), "G": sum_blocks(point.grad)}


def scored(sums: Mapping[str, Tensor]) -> Sums | None:
    """The sums of a certificate, if available."""
    return {name: sums[name] for name in ("f", "G", "norms")} if "norms" in sums else None


def dot(x: Tensor, y: Tensor) -> float:
    return float((x * y).sum())


# ---------------------------------------------------------------------- g = l1‖v‖₁ + l2/2‖v‖²
@dataclass(frozen=True)
class Elastic:
    """The strengths row by row: an intercept's are 0. l1, l2 (m, 1)."""

    l1: Tensor
    l2: Tensor

    @property
    def smooth(self) -> bool:
        return not bool((self.l1 > 0).any())


def elastic(g: Regularizer, v: Tensor) -> Elastic | None:
    """The strengths of g on the rows of v; None where g is not of this family."""
    match g:
        case Zero():
            l1, l2 = 0.0, 0.0
        case L1(strength):
            l1, l2 = strength, 0.0
        case L2(strength):
            l1, l2 = 0.0, strength
        case ElasticNet(l1, l2):
            pass
        case ScaledRegularizer(inner, scale):
            strengths, s = elastic(inner, v), scale[:, None].to(v)
            return strengths and Elastic(strengths.l1 / s, strengths.l2 / s.square())
        case FreeIntercept(inner):
            strengths = elastic(inner, v[:-1])
            return strengths and Elastic(
                *(torch.cat([x, torch.zeros_like(x[:1])]) for x in (strengths.l1, strengths.l2))
            )
        case _:  # strengths of every entry, as in estimators
            l1_rows, l2_rows = getattr(g, "l1", None), getattr(g, "l2", None)
            if not isinstance(l1_rows, Tensor) or not isinstance(l2_rows, Tensor):
                return None
            return Elastic(l1_rows.to(v).expand(v.shape[0], -1), l2_rows.to(v).expand(v.shape[0], -1))
    return Elastic(v.new_full((v.shape[0], 1), l1), v.new_full((v.shape[0], 1), l2))


# ---------------------------------------------------------------------- F
@dataclass(frozen=True)
class ObjectivePoint:
    """F(v), the gradient of its smooth part, the traffic when v was formed, and the sums of a certificate."""

    v: Tensor
    value: float
    grad: Tensor
    cost: Cost
    scored: Mapping[str, Tensor] | None = None

    @property
    def finite(self) -> bool:
        return math.isfinite(self.value) and bool(self.grad.isfinite().all())


@dataclass(frozen=True)
class Objective:
    """F, evaluated by reductions."""

    reduce: Reduce
    g: Regularizer
    penalty: Elastic
    scoring: bool = False

    def at(self, v: Tensor) -> ObjectivePoint:
        """One round."""
        cost = self.reduce.cost(hvps=0)
        _, sums = self.reduce(score if self.scoring else value_and_gradient, None, v, down=(v,))
        return self.point(v, sums, cost)

    def point(self, v: Tensor, sums: Mapping[str, Tensor], cost: Cost) -> ObjectivePoint:
        """F at v from the sums over blocks."""
        value = float(sums["f"]) + float(self.g.value(v))
        return ObjectivePoint(v, value, sums["G"] + self.penalty.l2 * v, cost, scored(sums))


# ---------------------------------------------------------------------- states that several methods return
def advance(state: State, v: Tensor, cost: Cost, memory: object, scored: Mapping[str, Tensor] | None) -> State:
    """The state after one more iteration."""
    old = state.shared
    new = replace(old, iteration=old.iteration + 1, v=v, v_prev=old.v, cost=cost, memory=memory, scored=scored)
    return State(state.blocks, new)


def unchanged(state: State, cost: Cost, memory: object) -> State:
    """One more iteration that leaves v unchanged."""
    return advance(state, state.shared.v, cost, memory, state.shared.scored)


def diverged(state: State, cost: Cost) -> State:
    """F is not finite at the start: no descent is possible, and the loop ends the run as diverged."""
    old = state.shared
    return advance(state, torch.full_like(old.v, math.nan), cost, old.memory, None)
