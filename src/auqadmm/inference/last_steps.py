"""The last steps to the maximum of a likelihood.

A run ends where the objective is right to a share of itself: δ ≤ tol·F. The step that is left is then √(2δ) standard
errors long, 1e-7 of one for F = 500 and tol = 1e-17: a coefficient of 0.1 standard errors is wrong in its sixth digit,
and so is the p-value of one of 5. The sums of inference hold the gradient and the Hessian, so that

    v ← v − (H + L)⁻¹(G + Lv)

is known without another round. The covariances are those of the v that was asked about, which is near enough up to
`ENOUGH`; from farther away the sums are asked for once more. Newton's method squares the distance, so that one
such step is enough. A step that does not shrink what is left tenfold is not taken, nor one that moves logits
noticeably: outcomes that columns separate have no optimum.

Shapes: m unknowns in centred columns; v, G, L (m,), H (m, m).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from auqadmm.core.reduce import Sums
from auqadmm.metrics.sums import unpack
from auqadmm.verdict.model import QuadraticModel

ENOUGH = 3e-10  # standard errors: sums change by a few such shares of themselves, p-values of z = 20 by 400
NEAR = 0.1  # standard errors: farther away the model is refused
LAST_STEPS = 3
FAR_POWER = 16  # of the entries whose sums are kept in place of the largest
SHRINKS = 0.1  # of what was left before, at most
STILL = 1e-3  # logits: where columns separate outcomes a step is long however short it is beside its error


def at_the_optimum(v: Tensor, sums: Sums, strengths: Tensor, ask: Callable[[Tensor], Sums]) -> tuple[Tensor, Sums]:
    """v (m,) and its sums after as many of Newton's steps as it takes; `ask` tells the sums of another v."""
    step, away = _step(v, sums, strengths)
    for _ in range(LAST_STEPS):
        if step is None or not ENOUGH < away <= NEAR:
            break
        there = v + step
        found = ask(there)
        next_step, left = _step(there, found, strengths)
        if next_step is None or not left <= SHRINKS * away:
            return v, sums
        v, sums, step, away = there, found, next_step, left
    if step is None or away > ENOUGH or _moved(step, sums) > STILL:
        return v, sums
    H = unpack(sums["H"][None])[0]
    return v + step, {**sums, "G": sums["G"] + H @ step}


def _step(v: Tensor, sums: Sums, strengths: Tensor) -> tuple[Tensor | None, float]:
    """Newton's step, and how many standard errors it is long; None where there is none."""
    model = _model(sums, strengths)
    if model is None or model.singular:
        return None, 0.0
    group = model.groups[0]
    spread = group.solve(torch.eye(len(v), dtype=torch.float64)).diagonal().sqrt() / group.s
    step = -group.solve((sums["G"].cpu() + strengths * v.cpu()) / group.s) / group.s
    return step.to(v), float((step.abs() / spread).max())


def undetermined(sums: Sums, strengths: Tensor) -> bool:
    """Is the information singular?"""
    model = _model(sums, strengths)
    return model is not None and model.singular


def _model(sums: Sums, strengths: Tensor) -> QuadraticModel | None:
    H = unpack(sums["H"][None].cpu())
    if not bool(H.isfinite().all()):
        return None
    return QuadraticModel.of(H, strengths[:, None], torch.zeros(len(strengths), 1, dtype=torch.bool))


def _moved(step: Tensor, sums: Sums) -> float:
    """How far the step moves logits, at most, by one coefficient."""
    return float((step.abs() * sums["far"].to(step) ** (1 / FAR_POWER)).max())
