"""A step over the corners of a hinge: rows near their corner keep their loss, the others their slope.

    minimise over P   ⟨∇F_j, P⟩ + ½⟨P, W_jP⟩ + Σ_i ψ_i(x_iᵀP),     ψ_i(δ) = c_i(φ(z_i + δ) − φ(z_i) − φ'(z_i)δ)

over the k rows of `hinge_rows.py`. Newton's system would approximate them by parabolas, and the next step find others
at their corners. With σ = ψ' the minimiser is

    P = −W⁻¹(∇F + Xᵀs),   s = σ(δ),   δ = XP = δ₀ − Gs,   G = XW⁻¹Xᵀ,   δ₀ = −XW⁻¹∇F

k equations, solved by Newton's method on ½⟨s, Gs⟩ + Σψ(δ₀ − Gs), whose gradient is Ge, e = s − σ(δ):

    (I + DG)ds = −e,   D = diag ψ''(δ), averaged over the last change of δ (`cg.py`)

with a search for the root of the slope along ds, from the s of parabolas; only that s where rows are left out that
matter, since the next step differs anyway. Nothing but k×k matrices, where a step of the whole problem reads all
rows twice. The model is convex and touches F_j at P = 0, so that its minimiser descends.

Shapes: B blocks, m features, k rows; s, e, δ (B, k), G (B, k, k), X of the rows (B, k, m).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from auqadmm.blocks.rows import RowLoss, RowPoint
from auqadmm.local.base import Iterate, LocalProblem, select
from auqadmm.local.cg import average
from auqadmm.local.hinge_rows import ActiveRows
from auqadmm.metrics.weights import dot

# steps at most, and trials of a step's length
HINGE_STEPS, HINGE_TRIALS = 40, 12
# the share of a slope that may remain on either side of its root
ROOT_SLOPE = 0.25


@dataclass(frozen=True)
class HingeRows:
    """ψ of the chosen rows: logits z, targets y, weights c and slopes φ'(z), all (B, k)."""

    loss: RowLoss
    z: Tensor
    y: Tensor
    c: Tensor
    slope: Tensor

    def change(self, delta: Tensor) -> Tensor:
        """σ(δ)."""
        return self._weigh(self._slope(self.z + delta) - self.slope)

    def curvature(self, delta: Tensor, width: Tensor) -> Tensor:
        """ψ'' within `width` (B, 1) of δ."""
        z = (self.z + delta).reshape(-1, 1)
        averages = average(self.loss, z, self.y.flatten(), width.expand_as(self.z).reshape(-1, 1))
        return self._weigh(averages.reshape(self.z.shape))

    def _weigh(self, x: Tensor) -> Tensor:
        """c x; 0 for a row of weight 0, even if x is NaN."""
        return torch.where(self.c == 0, 0.0, self.c * x)

    def _slope(self, z: Tensor) -> Tensor:
        return self.loss.row_slope(self.loss.prepare(z.reshape(-1, 1)), self.y.flatten()).reshape(z.shape)


def direction(problem: LocalProblem, iterate: Iterate, near: ActiveRows, width: Tensor, share: Tensor) -> Tensor:
    """P, to a `share` (B,) of ‖∇F_j‖, in the norm of W⁻¹; curvature first within `width` (B,) of z."""
    point, W = iterate.point, problem.W
    assert isinstance(point, RowPoint)
    c = torch.where(near.there, near.of(point.shard.row_weight), 0.0)
    bends = HingeRows(point.loss, near.of(point.z[:, 0]), near.of(point.shard.target), c, near.of(point.slope[:, 0]))
    WX = W.solve(near.X.mT[:, :, None])[:, :, 0]
    down = -W.solve(iterate.grad)
    G, delta = near.X @ WX, -(iterate.grad.mT @ WX)[:, 0]
    D = bends.curvature(torch.zeros_like(delta), width[:, None])
    s = _newton(G, D, -D * delta)  # initial guess: σ linearised
    if bool(near.enough.any()):
        target = (share * dot(-iterate.grad, down).sqrt()).masked_fill(~near.enough, torch.inf)
        target = target.nan_to_num(torch.inf, torch.inf)  # inactive blocks: NaN
        s = _solved(bends, G, delta, s, width[:, None], target)
    P = down - WX @ s[..., None]
    return select(dot(iterate.grad, P) < 0, P, down)


def _solved(bends: HingeRows, G: Tensor, delta: Tensor, s: Tensor, width: Tensor, enough: Tensor) -> Tensor:
    """From s and δ₀ to s with ‖e‖_G ≤ `enough` (B,), or the step limit; a converged block does not move."""
    delta = delta - _times(G, s)
    change = bends.change(delta)
    count = (bends.c > 0).sum(1, keepdim=True).clamp(min=1)  # others have no curvature
    for _ in range(HINGE_STEPS):
        e = s - change
        left = ~(_inner_column(e, _times(G, e)).clamp(min=0).sqrt() <= enough[:, None])
        if not bool(left.any()):
            break
        ds = torch.where(left, _newton(G, bends.curvature(delta, width), e), 0.0)
        h = _times(G, ds)
        t, change = _length(bends, delta, s, ds, h, _inner_column(h, e).abs())
        s, delta = s + t * ds, delta - t * h
        width = torch.where(left, t * (h.square().sum(1, keepdim=True) / count).sqrt(), width)
    return s


def _newton(G: Tensor, D: Tensor, e: Tensor) -> Tensor:
    """−(I + DG)⁻¹e, by way of the symmetric I + √D G √D."""
    q = D.clamp(min=0).sqrt()
    M = q[:, :, None] * G * q[:, None]
    M.diagonal(dim1=1, dim2=2).add_(1.0)
    L = torch.linalg.cholesky_ex(M)[0]
    x = torch.cholesky_solve((q * _times(G, e))[..., None], L)[..., 0]
    return q * x - e


def _length(bends: HingeRows, delta: Tensor, s: Tensor, ds: Tensor, h: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
    """t ≤ 1 (B, 1) near the root of the slope ⟨h, s + t ds − σ(δ − th)⟩, which grows from −`first`; and σ there."""
    t = torch.ones_like(first)
    low, high = torch.zeros_like(t), t
    for _ in range(HINGE_TRIALS):
        change = bends.change(delta - t * h)
        slope = _inner_column(h, s + t * ds - change)
        open_ = (slope > ROOT_SLOPE * first) | ((slope < -ROOT_SLOPE * first) & (t < 1))
        if not bool(open_.any()):
            break
        high, low = torch.where(open_ & (slope > 0), t, high), torch.where(open_ & (slope <= 0), t, low)
        t = torch.where(open_, 0.5 * (low + high), t)
    else:
        change = bends.change(delta - t * h)
    return t, change


def _times(G: Tensor, x: Tensor) -> Tensor:
    return (G @ x[..., None])[..., 0]


def _inner_column(x: Tensor, y: Tensor) -> Tensor:
    """(B, 1)."""
    return (x * y).sum(1, keepdim=True)
