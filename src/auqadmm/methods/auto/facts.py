"""How hard a problem is, from the sums of round 0.

Shapes: m features, C columns; G, l2 (m, C), spread (m,).
"""

from __future__ import annotations

import math

import torch

from auqadmm.core.state import Setup
from auqadmm.methods.auq_lr.method import FEWEST_COUPLED, coupled_directions
from auqadmm.methods.auto.cost import Facts


def facts_of(setup: Setup) -> Facts:
    """The facts that the choice depends on."""
    known = (setup.blocks, setup.features, setup.columns, setup.loss, setup.regularizer)
    stiff, far = hardness(setup)
    coupled = coupled_directions(setup, setup.round_cost) >= FEWEST_COUPLED
    return Facts(*known, would_move(setup), stiff, far, spread_of(setup), coupled, setup.rows)


def spread_of(setup: Setup) -> float:
    """The scale for widths of corners: the spread of the target, about zero where there is no intercept."""
    if setup.seen is None:
        return 1.0
    return setup.seen.target_spread if setup.intercept else setup.seen.target_size


def hardness(setup: Setup) -> tuple[float, float]:
    """`Facts.stiff` and `Facts.far`, from the squares of columns and the gradient at zero."""
    seen, loss = setup.seen, setup.loss
    if seen is None or not hasattr(loss, "row_value") or not seen.weight > 0:
        return math.inf, math.inf
    some = slice(None, -1) if setup.intercept else slice(None)
    G = seen.slopes(seen.start)
    filled = ~seen.empty[some]
    l2 = setup.regularizer.convexity(torch.zeros_like(G))[some][filled]
    least = float(l2.min()) if l2.numel() else 0.0
    if not least > 0:
        return math.inf, math.inf
    trace = float(seen.spread[some][filled].sum())
    far = math.sqrt(trace / seen.weight) * float(G[some].norm()) / least
    spread = spread_of(setup)
    if loss.dispersed and spread > 0:  # few rows have curvature at a time; and logits move in units of the target
        loss, far = loss.eased(loss.easing(spread)), far / spread
    return bend_at_zero(loss, setup.columns) * trace / least, far


def bend_at_zero(loss: object, columns: int) -> float:
    """The largest curvature of a row whose logits are zero, and its target too if that is a real number."""
    kind = loss.target_kind  # type: ignore[attr-defined]
    y = torch.ones(1, dtype=torch.float64) if kind == "binary" else torch.zeros(1, dtype=torch.float64)
    y = y.long() if kind == "classes" else y
    z = torch.zeros(1, columns, dtype=torch.float64)
    return float(loss.row_curvature(loss.prepare(z), y).diagonal().max())  # type: ignore[attr-defined]


def would_move(setup: Setup) -> int | None:
    """How many unknowns leave zero by their own prox step, from the gradient of round 0."""
    seen = setup.seen
    if seen is None or not setup.regularizer.separable:
        return None
    G = seen.slopes(seen.start)
    D = seen.spread[:, None].expand(G.shape)
    zero = torch.zeros_like(G)
    return int((setup.regularizer.prox(-G, D) != setup.regularizer.prox(zero, D)).sum())
