"""The unknowns whose Hessian is needed: all of them, or, where g sets most of them to zero, a working set.

    support of v, and the unknowns that would move farthest by themselves: √D_i|x_i − v_i|, x = prox(Dv − G, D),
    at most half as many again as the support has, no fewer than a triangle of one round's worth has, and all where
    that is half of them

Where fewer would move, the set also takes those that would if gradients changed again as in the last step,
or as such columns changed on average: the set serves the next point, whose gradient is not known yet. An unknown
that would move there and is missing costs a round. The set is no larger for it
than its limit, and gradients change less and less.

D approximates the diagonal of the Hessian, so that column units drop out. Unknowns of one group of g enter
together. When those that would move farthest are outside, one more round at the same point adds them.

Shapes: m features, C columns; v, G, D (m, C); index flat, class by class.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from auqadmm.blocks.rows import Loss
    from auqadmm.problem.regularizers import Regularizer

# Chosen, not measured (see method.py).
SET_GROWTH = 1.5  # times the support: the next working set has room for that many


@dataclass(frozen=True)
class Movers:
    """How far each unknown would move, (m, C), how far it might soon, and which are not at a kink."""

    far: Tensor
    support: Tensor
    free: Tensor
    soon: Tensor | None = None

    @classmethod
    def at(cls, g: Regularizer, v: Tensor, G: Tensor, D: Tensor, free: Tensor, turned: Tensor | None = None) -> Movers:
        """`free` (m, C): unknowns that F depends on; `turned`: how much G changed in the last step."""
        root = D.sqrt()

        def moved(G: Tensor) -> Tensor:
            return torch.where(free, root * (g.prox(D * v - G, D) - v).abs(), 0.0)

        rest = g.prox(torch.zeros_like(v), torch.ones_like(v))  # the minimiser of g alone
        soon = None
        if turned is not None:
            usual = root * (turned / root)[free].square().mean().sqrt()
            soon = moved(G + torch.copysign(torch.maximum(turned.abs(), usual), G))
        return cls(moved(G), (v != rest) & free, free, soon)

    def outside(self, index: Tensor) -> bool:
        """Would one outside move farther than all inside?"""
        flat = self.far.reshape(-1)
        if not len(index):
            return bool((flat > 0).any())
        inside = float(flat[index].max())
        rest = flat.clone()
        rest[index] = 0.0
        return float(rest.max()) > inside


def chosen(movers: Movers, units: Tensor | None, least: int, columns: int) -> Tensor:
    """The working set, class by class. `units` (mC,): which unknowns come together; None: each by itself."""
    far, support = movers.far.reshape(-1), movers.support.reshape(-1)
    many = max(least, int(SET_GROWTH * int(support.sum())))
    if 2 * many >= len(far):
        return everything(movers.far.shape, movers.free)
    soon = None if movers.soon is None else movers.soon.reshape(-1)
    if units is None:
        score, taken = far, support.clone()
    else:
        count = int(units.max()) + 1
        score = far.new_zeros(count).index_add(0, units, far.square())
        soon = None if soon is None else soon.new_zeros(count).index_add(0, units, soon.square())
        taken = torch.zeros(count, dtype=torch.bool, device=far.device)
        taken[units[support]] = True
    _add(taken, score, many)
    if soon is not None:
        _add(taken, torch.where(taken, 0.0, soon), many - int(taken.sum()))
    if units is not None:
        taken = taken[units]
    return by_class(taken.nonzero()[:, 0], columns)


def _add(taken: Tensor, score: Tensor, many: int) -> None:
    """Take the `many` with the highest scores, of those that have one."""
    order = score.topk(min(max(many, 0), len(score))).indices
    taken[order[score[order] > 0]] = True


def everything(shape: Sequence[int], free: Tensor) -> Tensor:
    """All free unknowns, class by class."""
    return by_class(free.expand(*shape).reshape(-1).nonzero()[:, 0], shape[1])


def by_class(index: Tensor, columns: int) -> Tensor:
    """The same unknowns, those of a class next to each other."""
    if columns == 1:
        return index
    return torch.cat([index[index % columns == c] for c in range(columns)])


def affordable(round_cost: float) -> int:
    """Unknowns whose triangle costs as much as a round."""
    return math.isqrt(int(2 * round_cost))


def some_rest(g: Regularizer, loss: Loss, shape: Sequence[int], round_cost: float) -> bool:
    """Are there many unknowns, most of which g keeps at a kink? Then a working set is used."""
    own = not hasattr(loss, "row_value")  # a user-defined loss: its Hessian comes as a whole
    if g.quadratic or own or math.prod(shape) <= affordable(round_cost):
        return False
    units = together(g, shape, "cpu")
    return units is None or int(units.max()) > 0


def apart(loss: Loss, columns: int) -> bool:
    """Do the columns of the model share no curvature?"""
    return columns == 1 or (hasattr(loss, "row_value") and not loss.gauge)


def whole(loss: Loss, shape: Sequence[int]) -> int:
    """Numbers of the Hessian of all unknowns."""
    m, C = shape
    return C * numbers(m) if apart(loss, C) else numbers(m * C)


def numbers(unknowns: int) -> int:
    """Of a triangle."""
    return unknowns * (unknowns + 1) // 2


def together(g: Regularizer, shape: Sequence[int], device: torch.device | str) -> Tensor | None:
    """Group labels of the unknowns that g couples; None: none; if unknown, all in one group."""
    inner, (m, C) = getattr(g, "inner", g), shape
    if g.separable:
        return None
    labels = getattr(inner, "row_groups", None)
    if labels is None:
        return torch.zeros(m * C, dtype=torch.int64, device=device)
    rows = labels(m if inner is g else m - 1).to(device)
    if inner is not g:
        rows = torch.cat([rows, rows.max()[None] + 1])
    return rows.repeat_interleave(C)
