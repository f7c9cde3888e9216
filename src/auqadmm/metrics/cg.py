"""Preconditioned conjugate gradients that stop where rounding error dominates.

    minimise ½⟨x, Ax⟩ − ⟨b, x⟩,   A symmetric positive definite, known by products

The recursion's residual drifts away from b − Ax; `solve` measures the true one and starts again from there (iterative
refinement) as long as that helps. A preconditioner that rounding has made indefinite is replaced by the next one.

Reference: Y. Saad, Iterative Methods for Sparse Linear Systems, 2nd ed., section 9.2.

Shapes: any; b and x alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from auqadmm.runtime import Programs

Operator = Callable[[Tensor], Tensor]

RESTARTS = 8  # of the recursion from the true residual, for one preconditioner


@dataclass(frozen=True)
class PCGState:
    """The state of the recursion: ry = ⟨r, Mr⟩, steps so far, `open` while they go on, `sound` while A and M are
    positive; scalars are tensors."""

    x: Tensor
    r: Tensor
    p: Tensor
    ry: Tensor
    steps: Tensor
    open: Tensor
    sound: Tensor


def cg(
    apply: Operator,
    precondition: Operator,
    b: Tensor,
    tol: float,
    max_iter: int,
    relative: float = 0.0,
    programs: Programs | None = None,
) -> tuple[Tensor, int, bool]:
    """x with r = b − Ax, ‖r‖ ≤ tol or ⟨r, Mr⟩ ≤ relative²·⟨b, Mb⟩ by the recursion, from x = 0.

    With a good preconditioner M the second is the error in the energy norm, which sees the directions in which A is
    small. Returns x, the number of iterations, and whether A and M were positive on the way; if not, x is the last
    iterate for which they were. With `programs` a GPU does several steps between two host synchronisations.
    """
    y = precondition(b)
    ry = (b * y).sum()
    enough = torch.stack([b.new_full((), tol), relative**2 * ry])
    zero = torch.zeros((), dtype=torch.int64, device=b.device)
    sound = torch.ones((), dtype=torch.bool, device=b.device)
    run = PCGState(torch.zeros_like(b), b, y, ry, zero, ~_is_small(b, ry, enough), sound)
    several = programs is not None and programs.active
    steps = programs.notes.get(cg, 4) if programs is not None and several else 1
    done, left, fine = _to_host(run)
    while left and done < max_iter:
        steps = min(steps, max_iter - done)
        if programs is not None and several:
            run = programs.repeat(_step, steps, run, apply, precondition, enough)
        else:
            run = _step(run, apply, precondition, enough)
        done, left, fine = _to_host(run)
        steps = max(2, done // 4) if several else 1
    if programs is not None:
        programs.notes[cg] = max(done, 2)
    return run.x, int(done), bool(fine)


def _step(at: PCGState, apply: Operator, precondition: Operator, enough: Tensor) -> PCGState:
    """One step; once `open` is False it changes nothing."""
    q = apply(at.p)
    curvature = (at.p * q).sum()
    # not positive: rounding, or NaN
    sound = (at.ry > 0) & (curvature > 0) & curvature.isfinite()
    go = at.open & sound
    step = torch.where(go, at.ry / curvature, 0.0)
    x = torch.where(go, at.x + step * at.p, at.x)
    r = torch.where(go, at.r - step * q, at.r)
    y = precondition(r)
    ry = (r * y).sum()
    p = torch.where(go, y + (ry / at.ry) * at.p, at.p)
    left = go & ~_is_small(r, ry, enough)
    return PCGState(x, r, p, torch.where(go, ry, at.ry), at.steps + go, left, at.sound & (sound | ~at.open))


def _is_small(r: Tensor, ry: Tensor, enough: Tensor) -> Tensor:
    return (r.norm() <= enough[0]) | ((ry > 0) & (ry <= enough[1]))


def _to_host(run: PCGState) -> list[int]:
    """Steps, `open`, `sound`: one device-to-host transfer."""
    return torch.stack([run.steps, run.open.long(), run.sound.long()]).tolist()


def solve(
    apply: Operator,
    preconditioners: Sequence[Operator],
    b: Tensor,
    x: Tensor,
    tol: float,
    max_iter: int,
    programs: Programs | None = None,
) -> tuple[Tensor, float, int]:
    """x with ‖b − Ax‖ ≤ tol if rounding allows, from the given x.

    Returns x, the true ‖b − Ax‖ and the number of iterations.
    """
    r = b - apply(x)
    residual, iterations = float(r.norm()), 0
    if not math.isfinite(residual):  # a useless start: begin at zero
        x, r = b.new_zeros(b.shape), b
        residual = float(r.norm())
    for precondition in preconditioners:
        for _ in range(RESTARTS):
            if residual <= tol or iterations >= max_iter:
                return x, residual, iterations
            step, k, sound = cg(apply, precondition, r, tol, max_iter - iterations, programs=programs)
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


@dataclass(frozen=True)
class Reshaped:
    """An inverse that acts on x in its own shape; a joint weight takes (m·C, 1)."""

    inverse: Operator
    shape: tuple[int, int]

    def __call__(self, x: Tensor) -> Tensor:
        return self.inverse(x.reshape(self.shape)).reshape(x.shape)


@dataclass(frozen=True)
class Jacobi:
    """x ↦ x / D."""

    D: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        return x / self.D
