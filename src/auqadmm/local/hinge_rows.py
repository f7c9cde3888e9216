"""The rows of a hinge with curvature: their selection, and Newton's system with them alone.

    ∇²f_j + W_j = Σ_i d_i x_ix_iᵀ + W_j,   d_i = c_iφ''(z_i)

A hinge has curvature only near its corner: of thousands of rows some dozens have a d_i that matters.
Leave out rows as long as Σ d_i|x_i|² of those left out is at most η times the smallest eigenvalue of W_j: a direction
made of the others leaves at most η‖∇F_j‖ of Newton's system, the tolerance of conjugate gradients, without
a single product with X. Conjugate gradients themselves need about as many steps as there are such rows. The direction
from the k rows is in `hinge_step.py`. Where there are more rows than memory for them, the others enter by their
diagonal, which is added to W_j. If that does not converge, M = AᵀA + W_j with A = √d X preconditions conjugate
gradients:

    M⁻¹ = W⁻¹ − W⁻¹Aᵀ (I + AW⁻¹Aᵀ)⁻¹ AW⁻¹

Reference: G. H. Golub, C. F. Van Loan, Matrix Computations, 4th ed., section 2.1.4.

Shapes: B blocks, R flat rows, m features, k rows per block; d (R,), X of the rows (B, k, m), x (B, m, 1).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from auqadmm.blocks.curvature import RowHessian
from auqadmm.blocks.design import DensePiece
from auqadmm.metrics.lowrank import LowRank
from auqadmm.metrics.weights import Diagonal, Scalar, Weights

if TYPE_CHECKING:
    from auqadmm.blocks.rows import Hessian
    from auqadmm.local.base import LocalProblem

# rows per block, at most; and the share of its data that they may take, if they are more than a few
MOST_ROWS, ROWS_SHARE, FEW_ROWS = 160, 0.25, 32


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
