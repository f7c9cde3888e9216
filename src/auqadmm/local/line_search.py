"""How far to go along a direction: a root of the slope, bracketed, for every block at once.

    φ(t) = F_j(u + tP),   φ'(t) = ⟨∇f_j(u + tP), P⟩ + ⟨W(u − v) − λ, P⟩ + t⟨P, WP⟩,   a = −φ'(0) > 0

φ is convex, so φ' only grows, and a step is good when −σa ≤ φ'(t) ≤ 0: not too short, and downhill all the way,
which together give the sufficient decrease of Wolfe's conditions without a look at values. A step slightly past the
minimum, 0 < φ'(t) ≤ a/2, is taken as well if F went down by Armijo's rule (Newton's unit step often ends there).
Slopes keep their meaning until the gradient is at rounding; differences of values are lost at its square root.

Rows of the data are touched once, for XP: slopes and values at any t come from z + t·XP.

Reference: J. Nocedal, S. J. Wright, Numerical Optimization, 2nd ed., section 3.1; for slopes in place of values
W. W. Hager, H. Zhang, SIAM J. Optim. 16 (2005), section 2.

Shapes: B blocks, R flat rows, m features, C columns; P (B, m, C); t, slopes and values (B,).
"""

from __future__ import annotations

import torch
from torch import Tensor

from auqadmm.local.base import ULPS, Iterate, LocalProblem, dot, norm
from auqadmm.problem.rows import Line, Point, RowLine, RowPoint

SHORT = 0.25  # σ: the share of the initial slope that may be left
PAST = 0.25  # the share of it that may remain beyond the minimum
ARMIJO = 1e-4
# Each second trial halves the bracket: enough to find a step of 2⁻²⁰ and to grow one by 2⁴⁰.
TRIALS = 40


def search(problem: LocalProblem, here: Iterate, P: Tensor, active: Tensor) -> tuple[Iterate, Tensor]:
    """Step along P in the active blocks (P is zero in the others).

    Returns the new iterate and the blocks that moved (B,). A block for which no step is better, which for a convex
    F and a descent direction happens at the limit of rounding only, stays where it is.
    """
    line = here.point.line(P)
    t, point = _step_lengths(problem, here, line, P, active)
    there = problem.around(point)
    # Where a is below the noise of slopes the unit step was taken unseen: it must show in the gradient's norm.
    unseen = active & (_descent(here, P) <= _noise(here, P))
    undo = (t > 0) & ~(there.finite & (~unseen | (there.grad_norm < here.grad_norm)))
    if undo.any():
        t = torch.where(undo, 0.0, t)
        there = problem.around(line.at(t))
    return there, t > 0


def _step_lengths(problem: LocalProblem, here: Iterate, line: Line, P: Tensor, active: Tensor) -> tuple[Tensor, Point]:
    """t (B,), zero where no step was found, and f_j there."""
    a = _descent(here, P)
    noise = _noise(here, P)
    linear = dot(here.pull - problem.lam, P)
    bend = dot(problem.W.apply(P), P)
    open_ = active & (a > 0)
    t = open_.to(a.dtype)
    lo, slope_lo = torch.zeros_like(a), -a
    hi, slope_hi = torch.full_like(a, torch.inf), torch.full_like(a, torch.inf)
    for trial in range(TRIALS):
        point = line.at(t)
        slope = _slope(line, point, P) + linear + t * bend
        change = point.value - here.point.value + t * (linear + 0.5 * t * bend)
        # Values carry rounding: a change within it cannot contradict the slopes.
        slack = ULPS * torch.finfo(a.dtype).eps * here.point.value.abs()
        lower = change <= slack - ARMIJO * t * a
        finite = slope.isfinite() & point.value.isfinite()
        good = (slope >= -SHORT * a) & ((slope <= 0) | ((slope <= PAST * a) & lower))
        open_ = open_ & ~(finite & (good | (a <= noise)))
        if not open_.any():
            return t, point
        # A trial that overflowed went too far, like one that climbs.
        far = ~finite | (slope > 0)
        hi, slope_hi = _update(open_ & far, t, torch.where(finite, slope, torch.inf), hi, slope_hi)
        lo, slope_lo = _update(open_ & ~far, t, slope, lo, slope_lo)
        t = torch.where(open_, _next(lo, slope_lo, hi, slope_hi, a, halve=trial % 2 == 1), t)
    # Still descending at the lower end of the bracket (or at the start, t = 0): a small step, but a safe one.
    t = torch.where(open_, lo, t)
    return t, line.at(t)


def _next(lo: Tensor, slope_lo: Tensor, hi: Tensor, slope_hi: Tensor, a: Tensor, halve: bool) -> Tensor:
    """The next trial: by secants, away from the ends of the bracket; halving it every other time."""
    # No upper end yet: the secant through t = 0, at least twice and at most ten times as far.
    ahead = lo * (a / (a + slope_lo)).clamp(2.0, 10.0).nan_to_num(10.0)
    width = hi - lo
    share = torch.full_like(lo, 0.5) if halve else -slope_lo / (slope_hi - slope_lo)
    # an infinite slope at the upper end says nothing of where the root is
    share = torch.where(slope_hi.isfinite(), share, 0.5).clamp(0.1, 0.9)
    return torch.where(hi.isfinite(), lo + share * width, ahead)


def _update(mask: Tensor, t: Tensor, slope: Tensor, old_t: Tensor, old_slope: Tensor) -> tuple[Tensor, Tensor]:
    return torch.where(mask, t, old_t), torch.where(mask, slope, old_slope)


def _slope(line: Line, point: Point, P: Tensor) -> Tensor:
    """⟨∇f_j(u + tP), P⟩ (B,): for a loss of rows Σ_i c_i φ'(z_i)·(XP)_i, which leaves X alone."""
    if isinstance(line, RowLine) and isinstance(point, RowPoint):
        c = point.shard.row_weight
        rows = (point.slope * line.XP).sum(1)
        # a row of weight 0 adds exactly 0, even where its slope is infinite
        return point.shard.design.sum_rows(torch.where(c == 0, 0.0, c * rows))
    return dot(point.grad, P)


def _descent(here: Iterate, P: Tensor) -> Tensor:
    """a = −φ'(0), (B,)."""
    return -dot(here.grad, P)


def _noise(here: Iterate, P: Tensor) -> Tensor:
    """The size of slopes that are rounding: one unit in the last place of the terms of ∇F_j along P."""
    return torch.finfo(P.dtype).eps * here.plain_scale * norm(P)
