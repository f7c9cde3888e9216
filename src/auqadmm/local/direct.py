"""The u-step of a quadratic loss, solved with a factorisation that is kept while the weights stay the same.

    (X_jᵀ diag(c) X_j + W_j) u_j = X_jᵀ(c y) + W_j v + λ_j

written as a Newton step, which is exact for a quadratic, and repeated once or twice as iterative refinement:

    u ← u − H⁻¹∇F(u),   H = AᵀA + W,   A = √c X

rows ≥ features: Cholesky of the m×m matrix H. Fewer rows (Woodbury), with Z = W⁻¹Aᵀ and the n×n matrix S = I + AZ:

    H⁻¹g = W⁻¹g − Z S⁻¹ Zᵀg

Reference: G. H. Golub, C. F. Van Loan, Matrix Computations, 4th ed., sections 2.1.4, 3.5.3 and 4.2.

Shapes: B blocks, b blocks of a piece with n rows each, m features; C = 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from auqadmm.core.weights import Weights
from auqadmm.local.base import (
    Goal,
    LocalProblem,
    LocalSolution,
    check_tolerance,
    count,
    over,
    select,
    settle,
)
from auqadmm.problem.design import DensePiece
from auqadmm.problem.shard import Shard

# One solve and as many steps of refinement as pay: each gains the digits that the conditioning of H leaves, in
# double precision all of them at once.
STEPS = 10


@dataclass(frozen=True)
class Direct:
    """Cholesky or Woodbury, exact to rounding whatever the target.

    Forming a matrix counts as one Hessian-vector product per column multiplied with X; using it again is free.

    Parameters
    ----------
    factor
        The target for ‖∇F_j‖ relative to the outer residual; only the `converged` flags depend on it.
    tol
        An absolute target instead.
    """

    factor: float = 0.01
    tol: float | None = None

    def __post_init__(self) -> None:
        check_tolerance(self.factor, self.tol)

    def solve(self, problem: LocalProblem, u0: Tensor, reference: float | None, memory: Any) -> LocalSolution:
        _check(problem.shard)
        factors, hvps = _factors(problem, memory)
        here = problem.at(u0)
        goal = Goal.of(here, reference, self.factor, self.tol)
        iterations = count(here)
        active = here.finite
        for _ in range(STEPS):
            active = active & (here.grad_norm > here.floor)
            if not active.any():
                break
            u = select(active, here.u - factors.solve(here.grad), here.u)
            trial = problem.at(u)
            # Not better (rounding, or a factorisation that broke down): stay. Hardly better: stop after this step.
            worse = active & ~(trial.grad_norm < here.grad_norm)
            iterations = iterations + (active & ~worse)
            active = active & (trial.grad_norm < 0.5 * here.grad_norm)
            here = problem.at(select(worse, here.u, u)) if worse.any() else trial
        converged, hvps = settle(goal, problem, here, hvps)
        return LocalSolution(here.u, converged, here.grad_norm, hvps, iterations, factors)


@dataclass(frozen=True)
class Tall:
    """Blocks with rows ≥ features. blocks (b,), gram AᵀA and the Cholesky factor of H, both (b, m, m)."""

    blocks: Tensor
    gram: Tensor
    chol: Tensor

    def solve(self, g: Tensor, Wg: Tensor) -> Tensor:
        return torch.cholesky_solve(g[self.blocks], self.chol)


@dataclass(frozen=True)
class Wide:
    """Blocks with rows < features, none included. blocks (b,), Z = W⁻¹Aᵀ (b, m, n), Cholesky factor of S (b, n, n)."""

    blocks: Tensor
    Z: Tensor
    chol: Tensor

    def solve(self, g: Tensor, Wg: Tensor) -> Tensor:
        return Wg[self.blocks] - self.Z @ torch.cholesky_solve(self.Z.mT @ g[self.blocks], self.chol)


@dataclass(frozen=True)
class Factors:
    """H⁻¹ of every block, and the data and the weights it belongs to."""

    shard: Shard
    W: Weights
    parts: tuple[Tall | Wide, ...]

    def solve(self, g: Tensor) -> Tensor:
        """H⁻¹g, (B, m, 1)."""
        Wg = self.W.solve(g)
        if len(self.parts) == 1:  # one piece holds the blocks in their own order
            return self.parts[0].solve(g, Wg)
        out = torch.empty_like(g)
        for part in self.parts:
            out[part.blocks] = part.solve(g, Wg)
        return out


def _factors(problem: LocalProblem, memory: Any) -> tuple[Factors, Tensor]:
    """Factors for these weights, and how many products with X per block it took to form them (B,).

    The same W (the object, not its numbers) reuses everything; another W reuses the Gram matrices.
    """
    shard, W = problem.shard, problem.W
    hvps = torch.zeros(shard.blocks, dtype=torch.int64, device=shard.device)
    known = memory if isinstance(memory, Factors) and memory.shard is shard else None
    if known is not None and known.W is W:
        return known, hvps
    parts: list[Tall | Wide] = []
    row_weights = shard.design.split(shard.row_weight)
    for i, (piece, c) in enumerate(zip(shard.design.pieces, row_weights, strict=True)):
        assert isinstance(piece, DensePiece)
        b, n, m = piece.X.shape
        A = c.reshape(b, n, 1).sqrt() * piece.X
        if n < m:
            parts.append(_wide(piece.blocks, A, W, shard.blocks))
            hvps[piece.blocks] = n
        else:
            old = known.parts[i] if known is not None else None
            gram = old.gram if isinstance(old, Tall) else A.mT @ A
            parts.append(Tall(piece.blocks, gram, _cholesky(gram + W.dense()[piece.blocks])))
            hvps[piece.blocks] = 0 if isinstance(old, Tall) else m
    return Factors(shard, W, tuple(parts)), hvps


def _wide(blocks: Tensor, A: Tensor, W: Weights, total: int) -> Wide:
    """W is known as an operator on all blocks at once, so the others get zeros to solve for."""
    _, n, m = A.shape
    At = A.new_zeros(total, m, 1, n)
    At[blocks, :, 0] = A.mT
    Z = W.solve(At)[blocks, :, 0]
    eye = torch.eye(n, dtype=A.dtype, device=A.device)
    return Wide(blocks, Z, _cholesky(eye + A @ Z))


def _cholesky(M: Tensor) -> Tensor:
    """Lower factors of (b, k, k); a block whose matrix is not a number gets a factor that is not one either."""
    L, info = torch.linalg.cholesky_ex(M)
    failed = info != 0
    if not failed.any():
        return L
    # Single precision with curvature far above the weight rounds H to an indefinite matrix. The smallest lift that
    # rounding justifies makes it definite again; refinement then repairs the difference.
    k = M.shape[-1]
    lift = k * torch.finfo(M.dtype).eps * M.diagonal(dim1=1, dim2=2).amax(1)
    eye = torch.eye(k, dtype=M.dtype, device=M.device)
    lifted, _ = torch.linalg.cholesky_ex(M + over(lift, M) * eye)
    return select(failed, lifted, L)


def _check(shard: Shard) -> None:
    name = type(shard.loss).__name__
    if not shard.loss.quadratic:
        raise ValueError(
            f"The direct local solver needs a quadratic loss and {name} is not one; use local='newton-cg'."
        )
    if not shard.design.dense:
        raise ValueError(
            "The direct local solver needs dense blocks and some are sparse; use local='newton-cg', "
            "which only multiplies with X."
        )
    if shard.shape[2] != 1:
        raise ValueError(
            f"The direct local solver needs an unknown with one column and {name} has {shard.shape[2]}; "
            "use local='newton-cg'."
        )
