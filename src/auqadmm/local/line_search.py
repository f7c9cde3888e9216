"""Line search: a bracketed root of the slope, for every block at once.

    φ(t) = F_j(u + tP),   φ'(t) = ⟨∇f_j(u + tP), P⟩ + ⟨W(u − v) − λ, P⟩ + t⟨P, WP⟩,   a = −φ'(0) > 0

φ is convex, so φ' only grows, and a step is good when −σa ≤ φ'(t) ≤ 0: not too short, and downhill all the way,
which together give the sufficient decrease of Wolfe's conditions without function values. A step slightly past the
minimum, 0 < φ'(t) ≤ a/2, is taken as well if F went down by Armijo's rule (Newton's unit step often ends there).
Slopes stay accurate until the gradient is at rounding; differences of values only to its square root.

Rows of the data are touched once, for XP: slopes and values at any t come from z + t·XP.

Reference: J. Nocedal, S. J. Wright, Numerical Optimization, 2nd ed., section 3.1; for slopes in place of values
W. W. Hager, H. Zhang, SIAM J. Optim. 16 (2005), section 2.

Shapes: B blocks, R flat rows, m features, C columns; P (B, m, C); t, slopes and values (B,).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from auqadmm.blocks.loss import Line, Point
from auqadmm.blocks.rows import RowLine, RowPoint
from auqadmm.local.base import GRADIENT_ULPS, Iterate, LocalProblem, norm
from auqadmm.metrics.weights import dot

# The usual conditions of Wolfe and Armijo; chosen, not measured.
SLOPE_LEFT = 0.25  # σ: the share of the initial slope that may remain
SLOPE_PAST = 0.25  # the share of it that may remain beyond the minimum
ARMIJO = 1e-4  # sufficient decrease of F beyond the minimum, relative to the slope
# Each second trial halves the bracket: enough to find a step of 2⁻²⁰ and to grow one by 2⁴⁰.
LINE_TRIALS = 40


def search(
    problem: LocalProblem, iterate: Iterate, P: Tensor, active: Tensor, XP: Tensor | None = None
) -> tuple[Iterate, Tensor]:
    """Step along P in the active blocks (P is zero in the others); XP (R, C), if it is known.

    Returns the new iterate and the blocks that moved (B,). A block for which no step is better, which for a convex
    F and a descent direction happens at the limit of rounding only, stays where it is.
    """
    run = problem.shard.programs
    ray, bracket, left = run(_first, problem, iterate, P, active, XP)
    for trial in range(1, LINE_TRIALS):
        if not left:
            break
        bracket, left = run(_narrow, iterate, ray, bracket, trial % 2 == 0)
    if left:
        # Still descending at the lower end of the bracket (or at the start, t = 0): a small step, but a safe one.
        bracket = run(_lower_end, ray, bracket)
    there, t, undo, any_undo = run(_finish, problem, iterate, ray, bracket, active)
    if any_undo:
        t = torch.where(undo, 0.0, t)
        there = problem.around(ray.line.at(t))
    return there, t > 0


def unit_step(
    problem: LocalProblem, iterate: Iterate, P: Tensor, active: Tensor
) -> tuple[Iterate, Tensor, Tensor, Tensor]:
    """The first trial alone, without a transfer: the iterate, t (B,), whether any block must undo it, and whether any
    needs another trial."""
    ray, bracket, left = _first(problem, iterate, P, active)
    there, t, _, undo = _finish(problem, iterate, ray, bracket, active)
    return there, t, undo, left


@dataclass(frozen=True)
class SearchLine:
    """F_j along P: a = −φ'(0), its `noise`, and the part of φ' that W_j and λ_j add, linear + t·bend; all (B,)."""

    line: Line
    P: Tensor
    a: Tensor
    noise: Tensor
    linear: Tensor
    bend: Tensor


@dataclass(frozen=True)
class Bracket:
    """The last trial t and f_j there; the ends of the bracket with their slopes; the active blocks, all (B,)."""

    t: Tensor
    point: Point
    slope: Tensor
    lo: Tensor
    slope_lo: Tensor
    hi: Tensor
    slope_hi: Tensor
    open: Tensor


def _first(
    problem: LocalProblem, iterate: Iterate, P: Tensor, active: Tensor, XP: Tensor | None = None
) -> tuple[SearchLine, Bracket, Tensor]:
    """The ray, and the trial of the unit step; is any block still searching?"""
    a, point = _descent(iterate, P), iterate.point
    linear = dot(iterate.pull - problem.lam, P)
    line = RowLine(point, P, XP) if isinstance(point, RowPoint) and XP is not None else point.line(P)
    ray = SearchLine(line, P, a, _noise(iterate, P), linear, dot(problem.W.apply(P), P))
    open_ = active & (a > 0)
    none = torch.full_like(a, torch.inf)
    zero = torch.zeros_like(a)
    return ray, *_evaluate_trial(iterate, ray, open_.to(a.dtype), zero, -a, none, none, open_)


def _narrow(iterate: Iterate, ray: SearchLine, at: Bracket, halve: bool) -> tuple[Bracket, Tensor]:
    """The bracket made narrower (or a longer step), and a trial within."""
    # A trial that overflowed went too far, like one that climbs.
    finite = _finite(at.slope, at.point)
    far = ~finite | (at.slope > 0)
    hi, slope_hi = _update(at.open & far, at.t, torch.where(finite, at.slope, torch.inf), at.hi, at.slope_hi)
    lo, slope_lo = _update(at.open & ~far, at.t, at.slope, at.lo, at.slope_lo)
    t = torch.where(at.open, _next(lo, slope_lo, hi, slope_hi, ray.a, halve), at.t)
    return _evaluate_trial(iterate, ray, t, lo, slope_lo, hi, slope_hi, at.open)


def _evaluate_trial(
    iterate: Iterate,
    ray: SearchLine,
    t: Tensor,
    lo: Tensor,
    slope_lo: Tensor,
    hi: Tensor,
    slope_hi: Tensor,
    open_: Tensor,
) -> tuple[Bracket, Tensor]:
    """A trial at t: the blocks that do not accept it."""
    point, a = ray.line.at(t), ray.a
    slope = _slope(ray.line, point, ray.P) + ray.linear + t * ray.bend
    change = point.value - iterate.point.value + t * (ray.linear + 0.5 * t * ray.bend)
    # Values carry rounding: a change within it cannot contradict the slopes.
    slack = GRADIENT_ULPS * torch.finfo(a.dtype).eps * iterate.point.value.abs()
    lower = change <= slack - ARMIJO * t * a
    finite = _finite(slope, point)
    good = (slope >= -SLOPE_LEFT * a) & ((slope <= 0) | ((slope <= SLOPE_PAST * a) & lower))
    open_ = open_ & ~(finite & (good | (a <= ray.noise)))
    return Bracket(t, point, slope, lo, slope_lo, hi, slope_hi, open_), open_.any()


def _lower_end(ray: SearchLine, at: Bracket) -> Bracket:
    """The lower end, where no trial was accepted."""
    finite = _finite(at.slope, at.point)
    lo, _ = _update(at.open & finite & (at.slope <= 0), at.t, at.slope, at.lo, at.slope_lo)
    t = torch.where(at.open, lo, at.t)
    return replace(at, t=t, point=ray.line.at(t))


def _finish(
    problem: LocalProblem, iterate: Iterate, ray: SearchLine, at: Bracket, active: Tensor
) -> tuple[Iterate, Tensor, Tensor, Tensor]:
    """The iterate at the end of the step; the blocks in which it is to be undone, and whether there are any."""
    there = problem.around(at.point)
    # Where a is below the noise of slopes the unit step was taken unchecked: it must lower the gradient's norm.
    unseen = active & (ray.a <= ray.noise)
    undo = (at.t > 0) & ~(there.finite & (~unseen | (there.grad_norm < iterate.grad_norm)))
    return there, at.t, undo, undo.any()


def _next(lo: Tensor, slope_lo: Tensor, hi: Tensor, slope_hi: Tensor, a: Tensor, halve: bool) -> Tensor:
    """The next trial: by secants, away from the ends of the bracket; halving it every other time."""
    # No upper end yet: the secant through t = 0, at least twice and at most ten times as far.
    ahead = lo * (a / (a + slope_lo)).clamp(2.0, 10.0).nan_to_num(10.0)
    width = hi - lo
    share = torch.full_like(lo, 0.5) if halve else -slope_lo / (slope_hi - slope_lo)
    # an infinite slope at the upper end does not locate the root
    share = torch.where(slope_hi.isfinite(), share, 0.5).clamp(0.1, 0.9)
    return torch.where(hi.isfinite(), lo + share * width, ahead)


def _update(mask: Tensor, t: Tensor, slope: Tensor, old_t: Tensor, old_slope: Tensor) -> tuple[Tensor, Tensor]:
    return torch.where(mask, t, old_t), torch.where(mask, slope, old_slope)


def _finite(slope: Tensor, point: Point) -> Tensor:
    """Are slope and value finite, (B,)?"""
    return slope.abs() + point.value.abs() < torch.inf


def _slope(line: Line, point: Point, P: Tensor) -> Tensor:
    """⟨∇f_j(u + tP), P⟩, (B,)."""
    if isinstance(line, RowLine) and isinstance(point, RowPoint):
        return line.slope(point)
    return dot(point.grad, P)


def _descent(iterate: Iterate, P: Tensor) -> Tensor:
    """a = −φ'(0), (B,)."""
    return -dot(iterate.grad, P)


def _noise(iterate: Iterate, P: Tensor) -> Tensor:
    """The rounding error of slopes along P."""
    return iterate.rounding_error * norm(P)
