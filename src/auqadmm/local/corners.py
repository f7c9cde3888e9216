"""Newton's system where few rows bend, solved at once.

    ∇²f_j + W_j = Σ_i d_i x_ix_iᵀ + W_j,   d_i = c_iφ''(z_i)

A hinge bends at its corner, and nowhere else to speak of: of thousands of rows some dozens have a d_i that counts.
Leave out rows as long as Σ d_i|x_i|² of those left out is at most η times the smallest eigenvalue of W_j. With the k
others, A = √d X, the matrix M = AᵀA + W_j has an inverse in closed form,

    M⁻¹ = W⁻¹ − W⁻¹Aᵀ (I + AW⁻¹Aᵀ)⁻¹ AW⁻¹

and P = −M⁻¹∇F_j leaves a residual of at most η‖∇F_j‖ in the system: what conjugate gradients are asked for, without a
single product with X. Conjugate gradients themselves need about as many steps as rows bend. Where that takes too many
rows, M with as many as there may be, and with the diagonal of the others added to W_j, preconditions them.

Reference: G. H. Golub, C. F. Van Loan, Matrix Computations, 4th ed., section 2.1.4.

Shapes: B blocks, R flat rows, m features, k rows per block; d (R,), A (B, k, m), x (B, m, 1).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from auqadmm.core.lowrank import LowRank
from auqadmm.core.weights import Diagonal, Scalar, Weights
from auqadmm.problem.curvature import RowHessian
from auqadmm.problem.design import DensePiece

if TYPE_CHECKING:
    from auqadmm.local.base import LocalProblem
    from auqadmm.problem.rows import Hessian

# rows per block, at most; and the share of the data that they may take
MOST, ROOM = 256, 0.25


@dataclass(frozen=True)
class Corners:
    """M_j of every block: W_j (with the diagonal of other rows, if they count), W_j⁻¹Aᵀ (B, m, k), and (I + AW⁻¹Aᵀ)⁻¹
    (B, k, k); are the rows enough?"""

    W: Weights
    WA: Tensor
    inner: Tensor
    enough: bool

    def solve(self, x: Tensor) -> Tensor:
        return self.W.solve(x) - self.WA @ (self.inner @ (self.WA.mT @ x))


def suits(problem: LocalProblem) -> bool:
    """One column, dense blocks, a loss with corners, and weights whose smallest eigenvalue is known. On a GPU dozens of
    steps of conjugate gradients take less time than the choice of rows, for which the host must wait."""
    shard = problem.shard
    few = shard.shape[2] == 1 and shard.design.dense and shard.loss.cornered and shard.device.type == "cpu"
    return few and shard.blocks > 0 and isinstance(problem.W, Scalar | Diagonal | LowRank)


def corners(problem: LocalProblem, hessian: Hessian, eta: Tensor, active: Tensor) -> Corners | None:
    """M for the active blocks, to η (B,) where the rows are enough; None where it does not exist in rounded numbers."""
    assert isinstance(hessian, RowHessian)
    design, W = problem.shard.design, problem.W
    blocks, m, _ = problem.shard.shape
    most = min(MOST, int(ROOM * design.rows / blocks))
    d = hessian.curvature.diagonal()[:, 0]
    parts = design.split(d), design.split(d * design.squares(problem.lam))
    allowed = torch.where(active, eta * _least(W), torch.inf)
    chosen: list[tuple[DensePiece, Tensor, Tensor]] = []
    needed, enough = 0, True
    for piece, own, sizes in zip(design.pieces, *parts, strict=True):
        assert isinstance(piece, DensePiece)
        shape = piece.X.shape[:2]
        sizes = sizes.reshape(shape)
        top, rows = sizes.topk(min(most, shape[1]), dim=1)
        total = sizes.sum(1, keepdim=True)
        left_out = torch.cat([total, total - top.cumsum(1)], 1)  # after 0, 1, …, k rows
        count = int((~(left_out <= allowed[piece.blocks, None])).sum(1).max())
        enough = enough and count <= top.shape[1]
        needed = max(needed, min(count, top.shape[1]))
        chosen.append((piece, rows, own.reshape(shape)))
    At = d.new_zeros(blocks, m, 1, needed)
    for piece, rows, own in chosen:
        rows = rows[:, :needed]
        A = own.gather(1, rows).sqrt()[..., None] * piece.X[torch.arange(len(rows), device=d.device)[:, None], rows]
        At[piece.blocks, :, 0, : rows.shape[1]] = A.mT
    if not enough and not problem.curved:
        others = hessian.diagonal() - At.square().sum(3)
        W = Diagonal(W.diagonal() + others.clamp(min=0))
    WA = W.solve(At)[:, :, 0]
    eye = torch.eye(needed, dtype=d.dtype, device=d.device)
    L, info = torch.linalg.cholesky_ex(eye + At[:, :, 0].mT @ WA)
    return Corners(W, WA, torch.cholesky_inverse(L), enough) if bool((info == 0).all()) else None


def _least(W: Weights) -> Tensor:
    """A lower bound of the eigenvalues of W_j, (B,)."""
    if isinstance(W, LowRank):
        return W.phi + W.d.amin(1)
    return W.diagonal().amin((1, 2))
