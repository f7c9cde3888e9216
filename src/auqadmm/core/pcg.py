"""Preconditioned conjugate gradients that know when rounding has the last word.

    minimise ½⟨x, Ax⟩ − ⟨b, x⟩,   A symmetric positive definite, known by products

The recursion's residual drifts away from b − Ax; `solve` measures the true one and starts again from there (iterative
refinement) as long as that helps. A preconditioner that rounding has made indefinite is replaced by the next one.

Reference: Y. Saad, Iterative Methods for Sparse Linear Systems, 2nd ed., section 9.2.

Shapes: any; b and x alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from torch import Tensor

Operator = Callable[[Tensor], Tensor]

RESTARTS = 8


def cg(
    apply: Operator, precondition: Operator, b: Tensor, tol: float, max_iter: int, relative: float = 0.0
) -> tuple[Tensor, int, bool]:
    """x with r = b − Ax, ‖r‖ ≤ tol or ⟨r, Mr⟩ ≤ relative²·⟨b, Mb⟩ by the recursion, from x = 0.

    With a good preconditioner M the second is the error in the energy norm, which sees the directions in which A is
    small. Returns x, the number of iterations, and whether A and M were positive on the way; if not, x is the last
    iterate for which they were.
    """
    x, r = b.new_zeros(b.shape), b
    y = precondition(r)
    p, ry = y, (r * y).sum()
    enough = relative**2 * float(ry)
    for k in range(max_iter):
        if float(r.norm()) <= tol or 0 < float(ry) <= enough:
            return x, k, True
        q = apply(p)
        curvature = (p * q).sum()
        if not (float(ry) > 0 and 0 < float(curvature) < math.inf):  # rounding, or numbers that are none
            return x, k, False
        step = ry / curvature
        x, r = x + step * p, r - step * q
        y = precondition(r)
        ry, old = (r * y).sum(), ry
        p = y + (ry / old) * p
    return x, max_iter, True


def solve(
    apply: Operator, preconditioners: Sequence[Operator], b: Tensor, x: Tensor, tol: float, max_iter: int
) -> tuple[Tensor, float, int]:
    """x with ‖b − Ax‖ ≤ tol if rounding allows, from the given x.

    Returns x, the true ‖b − Ax‖ and the number of iterations.
    """
    r = b - apply(x)
    residual, iterations = float(r.norm()), 0
    if not math.isfinite(residual):  # a useless start
        x, r = b.new_zeros(b.shape), b
        residual = float(r.norm())
    for precondition in preconditioners:
        for _ in range(RESTARTS):
            if residual <= tol or iterations >= max_iter:
                return x, residual, iterations
            step, k, sound = cg(apply, precondition, r, tol, max_iter - iterations)
            iterations += k
            trial = x + step
            r_trial = b - apply(trial)
            new, old = float(r_trial.norm()), residual
            if new < residual:
                x, r, residual = trial, r_trial, new
            if sound and not new < 0.5 * old:  # as good as rounding allows
                return x, residual, iterations
            if not sound:
                break
    return x, residual, iterations
