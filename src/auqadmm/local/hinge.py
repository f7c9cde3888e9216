"""Losses with corners: the rows that have curvature, and a step over their corners.

    ∇²f_j + W_j = Σ_i d_i x_ix_iᵀ + W_j,   d_i = c_iφ''(z_i)

A hinge has curvature only near its corner: of thousands of rows some dozens have a d_i that matters.
Leave out rows as long as Σ d_i|x_i|² of those left out is at most η times the smallest eigenvalue of W_j: a direction
made of the others leaves at most η‖∇F_j‖ of Newton's system, the tolerance of conjugate gradients, without
a single product with X. Conjugate gradients themselves need about as many steps as there are such rows. Where there are
more rows than memory for them, the others enter by their diagonal, which is added to W_j. If that does not converge,
M = AᵀA + W_j with A = √d X preconditions conjugate gradients:

    M⁻¹ = W⁻¹ − W⁻¹Aᵀ (I + AW⁻¹Aᵀ)⁻¹ AW⁻¹

In the step the k chosen rows keep their loss, the others their slope:

    minimise over P   ⟨∇F_j, P⟩ + ½⟨P, W_jP⟩ + Σ_i ψ_i(x_iᵀP),     ψ_i(δ) = c_i(φ(z_i + δ) − φ(z_i) − φ'(z_i)δ)

Newton's system would approximate them by parabolas, and the next step find others at their corners. With σ = ψ' the
minimiser is

    P = −W⁻¹(∇F + Xᵀs),   s = σ(δ),   δ = XP = δ₀ − Gs,   G = XW⁻¹Xᵀ,   δ₀ = −XW⁻¹∇F

k equations, solved by Newton's method on ½⟨s, Gs⟩ + Σψ(δ₀ − Gs), whose gradient is Ge, e = s − σ(δ):

    (I + DG)ds = −e,   D = diag ψ''(δ), averaged over the last change of δ (`cg.py`)

with a search for the root of the slope along ds, from the s of parabolas; only that s where rows are left out that
matter, since the next step differs anyway. Nothing but k×k matrices, where a step of the whole problem reads all
rows twice. The model is convex and touches F_j at P = 0, so that its minimiser descends.

Reference: G. H. Golub, C. F. Van Loan, Matrix Computations, 4th ed., section 2.1.4.

Shapes: B blocks, R flat rows, m features, k rows per block; d (R,), X of the rows (B, k, m), x (B, m, 1); s, e, δ
(B, k), G (B, k, k).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from auqadmm.blocks.curvature import RowHessian
from auqadmm.blocks.design import DensePiece
from auqadmm.blocks.rows import RowLoss, RowPoint
from auqadmm.local.base import Iterate, LocalProblem, select
from auqadmm.local.cg import average
from auqadmm.metrics.lowrank import LowRank
from auqadmm.metrics.weights import Diagonal, Scalar, Weights, dot

if TYPE_CHECKING:
    from auqadmm.blocks.loss import Hessian

# rows per block, at most (the nearest 160: results/speed/log.md); and the share of its data that they may take, if they
# are more than a few
MOST_ROWS, ROWS_SHARE, FEW_ROWS = 160, 0.25, 32
# steps at most, and trials of a step's length
HINGE_STEPS, HINGE_TRIALS = 40, 12
# the share of a slope that may remain on either side of its root
ROOT_SLOPE = 0.25


@dataclass(frozen=True)
class ActiveRows:
    """The chosen rows of every block: X (B, k, m), their places in flat arrays (B, k), d there, 0 for padding
    (not `there`). Are they `enough`, (B,)?"""

    X: Tensor
    row: Tensor
    d: Tensor
    there: Tensor
    enough: Tensor

    def of(self, x: Tensor) -> Tensor:
        """The chosen entries of a flat array: (R,) -> (B, k)."""
        return x[self.row]


@dataclass(frozen=True)
class ActiveRowInverse:
    """M_j of every block: W_j with the diagonal of other rows, W_j⁻¹Aᵀ (B, m, k), and (I + AW⁻¹Aᵀ)⁻¹ (B, k, k)."""

    W: Weights
    WA: Tensor
    inner: Tensor

    def solve(self, x: Tensor) -> Tensor:
        return self.W.solve(x) - self.WA @ (self.inner @ (self.WA.mT @ x))


def is_applicable(problem: LocalProblem) -> bool:
    """One column, dense blocks, a loss with corners, and weights whose smallest eigenvalue is known. On a GPU dozens of
    steps of conjugate gradients take less time than selecting rows, which synchronises with the host."""
    shard = problem.shard
    few = shard.shape[2] == 1 and shard.census.dense and shard.loss.cornered and shard.device.type == "cpu"
    return few and shard.blocks > 0 and isinstance(problem.W, Scalar | Diagonal | LowRank)


def active_rows(problem: LocalProblem, hessian: Hessian, eta: Tensor, active: Tensor) -> ActiveRows:
    """The rows of the active blocks that leave a residual of at most η (B,), where they are enough."""
    assert isinstance(hessian, RowHessian)
    design, W = problem.shard.design, problem.W
    blocks, m, _ = problem.shard.shape
    d = hessian.curvature.diagonal()[:, 0]
    rows_of = torch.tensor(problem.shard.rows, device=d.device)
    most = (ROWS_SHARE * rows_of).long().clamp(min=FEW_ROWS, max=MOST_ROWS).minimum(rows_of)
    allowed = torch.where(active, eta * _smallest_eigenvalue(W), torch.inf)
    chosen: list[tuple[DensePiece, int, Tensor, Tensor]] = []
    enough = torch.ones_like(active)
    needed, first = 0, 0
    for piece, sizes in zip(design.pieces, design.split(d * design.squares(problem.lam)), strict=True):
        assert isinstance(piece, DensePiece)
        sizes = sizes.reshape(piece.X.shape[:2])
        own = most[piece.blocks]
        top, rows = sizes.topk(int(own.max()), dim=1)
        total = sizes.sum(1, keepdim=True)
        left_out = torch.cat([total, total - top.cumsum(1)], 1)  # after 0, 1, …, k rows
        count = (~(left_out <= allowed[piece.blocks, None])).sum(1)
        enough[piece.blocks] = count <= own
        count = torch.minimum(count + count // 2, own)  # margin: rows that reach their corner in the step matter too
        needed = max(needed, int(count.max()))
        chosen.append((piece, first, rows, count))
        first += piece.rows
    X = d.new_zeros(blocks, needed, m)
    row = torch.zeros(blocks, needed, dtype=torch.int64, device=d.device)
    there = torch.zeros_like(row, dtype=torch.bool)
    for piece, first, rows, count in chosen:
        rows = rows[:, :needed]
        n, k = piece.X.shape[1], rows.shape[1]
        own = rows + n * torch.arange(len(rows), device=d.device)[:, None]
        mine = torch.arange(k, device=d.device) < count[:, None]
        X[piece.blocks, :k] = piece.X.flatten(0, 1)[own].masked_fill_(~mine[..., None], 0.0)
        row[piece.blocks, :k] = first + own
        there[piece.blocks, :k] = mine
    return ActiveRows(X, row, torch.where(there, d[row], 0.0), there, enough)


def add_other_rows(problem: LocalProblem, D: Tensor | None, near: ActiveRows) -> LocalProblem:
    """With the diagonal of rows that are left out added to W_j, where they matter; D (B, m, 1) is that of ∇²f_j. Not
    where W_j models them already."""
    if bool(near.enough.all()) or problem.curved or D is None:
        return problem
    others = D - (near.d[..., None] * near.X.square()).sum(1)[..., None]
    others = others.clamp(min=0).masked_fill(near.enough[:, None, None], 0.0)
    return replace(problem, W=Diagonal(problem.W.diagonal() + others))


def active_row_inverse(problem: LocalProblem, near: ActiveRows) -> ActiveRowInverse:
    """M with these rows; W_j alone where Cholesky fails by rounding."""
    W, A = problem.W, near.d.sqrt()[..., None] * near.X
    WA = W.solve(A.mT[:, :, None])[:, :, 0]
    eye = torch.eye(A.shape[1], dtype=A.dtype, device=A.device)
    L, info = torch.linalg.cholesky_ex(eye + A @ WA)
    inner = torch.cholesky_inverse(L)
    failed = (info != 0) | ~inner.isfinite().flatten(1).all(1)
    return ActiveRowInverse(
        W, WA.masked_fill(failed[:, None, None], 0.0), inner.masked_fill(failed[:, None, None], 0.0)
    )


def _smallest_eigenvalue(W: Weights) -> Tensor:
    """A lower bound of the eigenvalues of W_j, (B,)."""
    if isinstance(W, LowRank):
        return W.phi + W.d.amin(1)
    return W.diagonal().amin((1, 2))


# ---------------------------------------------------------------------- the step


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
    rows = HingeRows(point.loss, near.of(point.z[:, 0]), near.of(point.shard.target), c, near.of(point.slope[:, 0]))
    WX = W.solve(near.X.mT[:, :, None])[:, :, 0]
    down = -W.solve(iterate.grad)
    G, delta = near.X @ WX, -(iterate.grad.mT @ WX)[:, 0]
    D = rows.curvature(torch.zeros_like(delta), width[:, None])
    s = _newton(G, D, -D * delta)  # initial guess: σ linearised
    if bool(near.enough.any()):
        target = (share * dot(-iterate.grad, down).sqrt()).masked_fill(~near.enough, torch.inf)
        target = target.nan_to_num(torch.inf, torch.inf)  # inactive blocks: NaN
        s = _solved(rows, G, delta, s, width[:, None], target)
    P = down - WX @ s[..., None]
    return select(dot(iterate.grad, P) < 0, P, down)


def _solved(rows: HingeRows, G: Tensor, delta: Tensor, s: Tensor, width: Tensor, enough: Tensor) -> Tensor:
    """From s and δ₀ to s with ‖e‖_G ≤ `enough` (B,), or the step limit; a converged block does not move."""
    delta = delta - _times(G, s)
    change = rows.change(delta)
    count = (rows.c > 0).sum(1, keepdim=True).clamp(min=1)  # others have no curvature
    for _ in range(HINGE_STEPS):
        e = s - change
        left = ~(_inner_column(e, _times(G, e)).clamp(min=0).sqrt() <= enough[:, None])
        if not bool(left.any()):
            break
        ds = torch.where(left, _newton(G, rows.curvature(delta, width), e), 0.0)
        h = _times(G, ds)
        t, change = _length(rows, delta, s, ds, h, _inner_column(h, e).abs())
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


def _length(rows: HingeRows, delta: Tensor, s: Tensor, ds: Tensor, h: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
    """t ≤ 1 (B, 1) near the root of the slope ⟨h, s + t ds − σ(δ − th)⟩, which grows from −`first`; and σ there."""
    t = torch.ones_like(first)
    low, high = torch.zeros_like(t), t
    for _ in range(HINGE_TRIALS):
        change = rows.change(delta - t * h)
        slope = _inner_column(h, s + t * ds - change)
        open_ = (slope > ROOT_SLOPE * first) | ((slope < -ROOT_SLOPE * first) & (t < 1))
        if not bool(open_.any()):
            break
        high, low = torch.where(open_ & (slope > 0), t, high), torch.where(open_ & (slope <= 0), t, low)
        t = torch.where(open_, 0.5 * (low + high), t)
    else:
        change = rows.change(delta - t * h)
    return t, change


def _times(G: Tensor, x: Tensor) -> Tensor:
    return (G @ x[..., None])[..., 0]


def _inner_column(x: Tensor, y: Tensor) -> Tensor:
    """(B, 1)."""
    return (x * y).sum(1, keepdim=True)
