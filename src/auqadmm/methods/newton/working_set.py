"""The unknowns whose Hessian is needed: all of them, or, where g sets most of them to zero, a working set, without
those that a duality gap proves to be zero (docs/theory.md).

    support of v, and the unknowns that would move farthest by themselves: √D_i|x_i − v_i|, x = prox(Dv − G, D),
    at most half as many again as the support has, no fewer than a triangle of one round's worth has, and all where
    that is half of them

Where fewer would move, the set also takes those that would if gradients changed again as in the last step,
or as such columns changed on average: the set serves the next point, whose gradient is not known yet. An unknown
that would move there and is missing costs a round. The set is no larger for it
than its limit, and gradients change less and less.

D approximates the diagonal of the Hessian, so that column units drop out. Unknowns of one group of g enter
together. When those that would move farthest are outside, one more round at the same point adds them.

The gap is made from what every round sums.

Slopes θ_i = s(φ'_i − φ″_i a) are a dual point: a = G_b/H_bb makes them add up to zero beside an intercept, s ≤ 1 brings
Σxθ into the domain of g*. Their conjugates D(s, a) = Σφ*(θ) would take one more round; they are bounded instead:

    D(1, 0) = ⟨G, v⟩ − f,    D(0, 0) = −inf f,    D(r, 0) for a few r: sent with the round, or for squares known
    D(1, a) ≤ D(1, 0) − a⟨HE_b, v⟩ + ½a²H_bb/(1 − M|a|)
    D(s, a) ≤ tD(1, a′) + (1 − t)D(r, 0),    t = (s − r)/(1 − r),  a′ = sa/t

Beside an accepted step d from u to v = u + d the slopes that its model predicts, θ_i = s(φ'_i + φ″_i x_iᵀd) at u, are a
dual point too. d minimises that model, so that they add up to zero, and Σxθ is in the domain of g* on the working set,
to rounding: their gap is of the fourth order in d, where that of slopes at v is of the second. Their D(r) are sent too.

With φ″ ≤ L the optimal slopes are no farther from θ than √(2L·gap), so that at the optimum no entry of Σxθ is farther
from this one than √(2L·gap)·‖x_k‖: where g keeps an unknown at zero for all of these, it is zero.

Reference: E. Ndiaye, O. Fercoq, A. Gramfort, J. Salmon, Gap safe screening rules for sparsity enforcing penalties, JMLR
18, 2017.

Shapes: m features, C columns; v, G, D, w (m, C); index flat, class by class; B (m,), the products of all columns
with the intercept.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from auqadmm.verdict.duality import ROUNDINGS, at_least_rounding, penalised
from auqadmm.verdict.queries import EPS, ColumnMoments

if TYPE_CHECKING:
    from auqadmm.blocks.loss import Loss
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
    units = coupled_groups(g, shape, "cpu")
    return units is None or int(units.max()) > 0


def columns_independent(loss: Loss, columns: int) -> bool:
    """Do the columns of the model share no curvature?"""
    return columns == 1 or (hasattr(loss, "row_value") and not loss.gauge)


def full_hessian_numbers(loss: Loss, shape: Sequence[int]) -> int:
    """Numbers of the Hessian of all unknowns."""
    m, C = shape
    return C * numbers(m) if columns_independent(loss, C) else numbers(m * C)


def numbers(unknowns: int) -> int:
    """Of a triangle."""
    return unknowns * (unknowns + 1) // 2


def coupled_groups(g: Regularizer, shape: Sequence[int], device: torch.device | str) -> Tensor | None:
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


# Chosen, not measured (see method.py).
SCALES = (0.5, 0.9, 0.99, 0.999, 0.9999)  # multiples of the slopes whose conjugates are summed
ANY_SLOPE = 1e300  # a slope that every g with kinks changes
SPREAD_ROUNDING = 64.0  # of ε: rounding error of a column's mean in its spread


@dataclass(frozen=True)
class DualBound:
    """A bound of F(v) − F*, and −Σxθ of the slopes it was computed with."""

    gap: float
    w: Tensor

    def zero(self, g: Regularizer, bend: float, columns: ColumnMoments) -> Tensor | None:
        """Which unknowns (m, C) are zero at the optimum, as far as proved; None: nothing is known."""
        if not math.isfinite(bend):
            return None
        size = columns.spread.to(self.w)
        if columns.centre is not None:  # a difference of sums: add rounding
            size = size + SPREAD_ROUNDING * EPS * columns.weight * columns.centre.to(self.w).square()
        radius = (2 * bend * self.gap * size).sqrt()[:, None].expand_as(self.w)
        return g.at_rest(self.w, radius)


def scales(g: Regularizer, loss: Loss, like: Tensor) -> tuple[float, ...]:
    """The scales r whose conjugates are worth sending: where slopes may have to be scaled."""
    inner = getattr(g, "inner", g)
    if loss.quadratic or not hasattr(loss, "row_value"):
        return ()
    limit = inner.dual_scale(torch.full_like(like if inner is g else like[:-1], ANY_SLOPE))
    return SCALES if limit is not None and limit < 1 else ()


def predicted_bound(
    g: Regularizer, loss: Loss, columns: ColumnMoments, v: Tensor, sums: Mapping[str, Tensor]
) -> DualBound | None:
    """The bound at v by the slopes that the step predicted; None: no dual point, or not sent."""
    if "foreseen_G" not in sums:
        return None
    f, slopes, noise, inner, inside = float(sums["f"]), sums["foreseen_G"], float(sums["noise"]), g, v
    if columns.intercept:
        left = float(slopes[-1].abs().sum())
        if not left <= ROUNDINGS * noise:  # slopes that do not add up to zero are no dual point
            return None
        noise += left * float(v[-1].abs().max())
        inner, inside, slopes = penalised(g), v[:-1], slopes[:-1]
    s = inner.dual_scale(-slopes)
    if s is None:
        return None
    at_one, *rest = sums["foreseen_conjugates"].tolist()
    best = at_one if s == 1 else math.inf
    for r, value in {0.0: -columns.infimum, **dict(zip(SCALES, rest, strict=True))}.items():
        if r < s < 1:
            t = (s - r) / (1 - r)
            best = min(best, t * at_one + (1 - t) * value)
    return _gap_bound(inner, [f, float(inner.value(inside)), best], s, slopes, noise, columns.intercept)


def _gap_bound(
    inner: Regularizer, terms: list[float], s: float, slopes: Tensor, noise: float, intercept: bool
) -> DualBound | None:
    """The gap f + g + D + g*(−Σxθ), no smaller than its rounding error."""
    w = -s * slopes
    gap = at_least_rounding([*terms, float(inner.conjugate(w))], EPS, noise)
    if gap is None:
        return None
    return DualBound(gap, torch.cat([w, torch.zeros_like(w[:1])]) if intercept else w)


def dual_bound(
    g: Regularizer, loss: Loss, columns: ColumnMoments, v: Tensor, sums: Mapping[str, Tensor], B: Tensor | None
) -> DualBound | None:
    """The bound at v, from f, G, noise and conjugates; B where there is an intercept. None: there is none."""
    if not hasattr(loss, "row_value") or (columns.intercept and (B is None or v.shape[1] > 1)):
        return None
    f, slopes, noise, M = float(sums["f"]), sums["G"], float(sums["noise"]), loss.concordance
    at_one = float((slopes * v).sum()) - f
    a, curvature, tilt, inner, inside = 0.0, 0.0, 0.0, g, v
    if B is not None:
        b, inner, inside = B.reshape(-1), penalised(g), v[:-1]
        curvature, tilt = float(b[-1]), float(b @ v[:, 0])
        if not curvature > 0:
            return None
        a = float(slopes[-1, 0]) / curvature
        moved = slopes - a * b[:, None]
        noise += float(moved[-1].abs().sum() * v[-1].abs().max())
        slopes = moved[:-1]
    s = inner.dual_scale(-slopes)
    if s is None:
        return None

    def whole(a: float) -> float:
        """D(1, a)."""
        left = 1 - M * abs(a) if a else 1.0
        return at_one - a * tilt + 0.5 * a * a * curvature / left if left > 0 else math.inf

    known = {0.0: -columns.infimum}
    if loss.quadratic:
        known |= {r: r * r * f + r * (at_one - f) for r in SCALES}
    elif "conjugates" in sums:
        known |= dict(zip(SCALES, sums["conjugates"].tolist(), strict=True))
    best = whole(a) if s == 1 else math.inf
    for r, value in known.items():
        if r < s < 1:
            t = (s - r) / (1 - r)
            best = min(best, t * whole(s * a / t) + (1 - t) * value)
    return _gap_bound(inner, [f, float(inner.value(inside)), best], s, slopes, noise, B is not None)
