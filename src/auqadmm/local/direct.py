"""The u-step of a quadratic loss, solved with a factorisation that is kept while the weights stay the same.

    (X_jᵀ diag(c) X_j + W_j) u_j = X_jᵀ(c y) + W_j v + λ_j

written as a Newton step, which is exact for a quadratic, and repeated once or twice as iterative refinement:

    u ← u − H⁻¹∇F(u),   H = AᵀA + W,   A = √c X

rows ≥ features: Cholesky of the m×m matrix H. Fewer rows (Woodbury), with the n×n matrix S = I + AW⁻¹Aᵀ:

    H⁻¹g = W⁻¹g − W⁻¹Aᵀ S⁻¹ AW⁻¹g

A new W replaces the factors; Gram matrices AᵀA are kept. While weights stay the same, inverses take their place.

Reference: G. H. Golub, C. F. Van Loan, Matrix Computations, 4th ed., sections 2.1.4, 3.5.3 and 4.2.

Shapes: B blocks, b blocks of a piece with n rows each, m features; C = 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from auqadmm.blocks.design import DATA_PARTS, DensePiece
from auqadmm.blocks.shard import Shard
from auqadmm.errors import InputError
from auqadmm.local.base import Accurate, Iterate, LocalProblem, LocalSolution, count, over, select
from auqadmm.local.descent import Tolerance, final_status
from auqadmm.metrics.weights import Diagonal, Scalar, Weights, equal

# One solve and a few steps of refinement: each gains the digits that the conditioning of H leaves, in
# double precision all of them at once.
REFINEMENTS = 10


class Direct(Accurate):
    """Cholesky or Woodbury, exact to rounding whatever the target.

    Forming a matrix counts as one Hessian-vector product per column multiplied with X; using it again is free.

    The target only decides the `converged` flags; parameters as in `Accurate`.

    Parameters
    ----------
    factor, tol
        As in `Accurate`.

    Raises
    ------
    ValueError
        A parameter has a value that it cannot have; the message names it.

    Examples
    --------
    >>> import numpy as np
    >>> import auqadmm as aq
    >>> X, y = np.array([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0], [2.0, 1.0]]), np.array([1.0, 2.0, 3.0, 6.0])
    >>> problem = aq.Problem(aq.LeastSquares(), aq.L2(1.0), [(X[:2], y[:2]), (X[2:], y[2:])])
    >>> aq.solve(problem, "c-admm", local=aq.local.Direct()).coef.round(1)
    array([2., 1.])
    """

    def solve(self, problem: LocalProblem, u0: Tensor, reference: float | None, memory: object) -> LocalSolution:
        _check(problem.shard)
        run = problem.shard.programs
        known, hvps = factors(problem, memory)
        iterate = run(_gram_iterate, problem, known, u0)
        tolerance = Tolerance.known(problem, reference, self.factor, self.tol) or Tolerance.of(iterate, self.factor)
        iterations, active = count(iterate), iterate.finite
        at_once = 2 if run.active else 1  # on a GPU an extra step costs less than a synchronisation
        for _ in range(0, REFINEMENTS, at_once):
            iterate, iterations, active, left = run(_refine, problem, known, iterate, iterations, active, at_once)
            if not left:
                break
        converged, hvps = final_status(tolerance, problem, iterate, hvps)
        return LocalSolution(iterate.u, converged, iterate.grad_norm, hvps, iterations, known)


def _refine(
    problem: LocalProblem, factors: BlockFactors, iterate: Iterate, iterations: Tensor, active: Tensor, steps: int
) -> tuple[Iterate, Tensor, Tensor, Tensor]:
    """Steps u ← u − H⁻¹∇F(u) of the active blocks; is any still active?"""
    for _ in range(steps):
        active = active & (iterate.grad_norm > iterate.floor)
        trial = _gram_iterate(problem, factors, select(active, iterate.u - factors.solve(iterate.grad), iterate.u))
        # Not better (rounding, or a factorisation that broke down): stay. Hardly better: stop after this step.
        better = active & (trial.grad_norm < iterate.grad_norm)
        active = active & (trial.grad_norm < 0.5 * iterate.grad_norm)
        iterations = iterations + better
        iterate = _select_iterates(better, trial, iterate)
    return iterate, iterations, active, (active & (iterate.grad_norm > iterate.floor)).any()


def _gram_iterate(problem: LocalProblem, factors: BlockFactors, u: Tensor) -> Iterate:
    """F_j at u, by Gram matrices where they exist: smaller than X, and in float64 as accurate."""
    if factors.moment is None:
        return problem.at(u)
    return problem.around(GramPoint(u, factors.product(u) - factors.moment, factors))  # type: ignore[arg-type]


def _select_iterates(mask: Tensor, a: Iterate, b: Iterate) -> Iterate:
    """Blocks of a where the mask holds, of b elsewhere. The point serves for its Hessian, the same everywhere."""
    names = [f.name for f in fields(Iterate) if f.name != "point"]
    parts: dict[str, Any] = {name: select(mask, getattr(a, name), getattr(b, name)) for name in names}
    return replace(a, **parts)


@dataclass(frozen=True)
class GramPoint:
    """f_j at u, as far as a solve needs it: the gradient, and products with the Hessian."""

    u: Tensor
    grad: Tensor
    factors: BlockFactors

    def hvp(self, P: Tensor) -> Tensor:
        return self.factors.product(P)


def _check(shard: Shard) -> None:
    name = type(shard.loss).__name__
    if not shard.loss.quadratic:
        raise InputError(
            f"The direct local solver needs a quadratic loss and {name} is not one; use local='newton-cg'."
        )
    if not shard.loss.unit_curvature:
        raise InputError(
            f"The direct local solver needs squares with curvature 1 in every row and {name} does not say that it is "
            "made of them (unit_curvature); use local='newton-cg'."
        )
    if not shard.design.dense:
        raise InputError(
            "The direct local solver needs dense blocks and some are sparse; use local='newton-cg', "
            "which only multiplies with X."
        )
    if shard.shape[2] != 1:
        raise InputError(
            f"The direct local solver needs an unknown with one column and {name} has {shard.shape[2]}; "
            "use local='newton-cg'."
        )


# ---------------------------------------------------------------------- factors


@dataclass(frozen=True)
class TallFactor:
    """Blocks with rows ≥ features. blocks (b,), gram AᵀA (b, m, m), H factorised (b, m, m) unless it was released."""

    blocks: Tensor
    gram: Tensor
    factor: Tensor | None
    inverted: bool

    def solve(self, g: Tensor, W: Weights, shard: Shard) -> Tensor:
        return _solved(_factor_of(self), self.inverted, g[self.blocks])


@dataclass(frozen=True)
class WideFactor:
    """Blocks with rows < features, none included: the piece's number, blocks (b,), S factorised (b, n, n) unless it was
    released."""

    piece: int
    blocks: Tensor
    factor: Tensor | None
    inverted: bool

    def solve(self, g: Tensor, W: Weights, shard: Shard) -> Tensor:
        X, c = _rows_of(shard, self.piece)
        Wg = W.solve(g)
        y = _solved(_factor_of(self), self.inverted, c * (X @ Wg[self.blocks]))
        back = torch.zeros_like(g).index_copy(0, self.blocks, X.mT @ (c * y))
        return (Wg - W.solve(back))[self.blocks]


@dataclass(frozen=True)
class BlockFactors:
    """H⁻¹ of every block, and the data and the weights it belongs to; Xᵀ(cy) (B, m, 1) where Gram matrices are used."""

    shard: Shard
    W: Weights
    parts: tuple[TallFactor | WideFactor, ...]
    moment: Tensor | None

    def solve(self, g: Tensor) -> Tensor:
        """H⁻¹g, (B, m, 1)."""
        return self._collect(g, lambda part: part.solve(g, self.W, self.shard))

    def product(self, P: Tensor) -> Tensor:
        """AᵀAP for P (B, m, 1), by Gram matrices alone."""
        return self._collect(P, lambda part: (P[part.blocks].mT @ part.gram).mT)  # symmetric

    def inverted(self) -> BlockFactors:
        """With inverses in place of factors, for lasting weights: a product is far faster than triangular solves."""
        if all(part.inverted for part in self.parts):
            return self
        parts = (replace(part, factor=_inverse(_factor_of(part)), inverted=True) for part in self.parts)
        return replace(self, parts=tuple(parts))

    @property
    def complete(self) -> bool:
        return all(part.factor is not None for part in self.parts)

    def release(self) -> None:
        """Free memory for the factors of other weights; a return to
        these weights computes theirs anew."""
        self.shard.programs.drop([part.factor for part in self.parts if part.factor is not None])
        for part in self.parts:
            object.__setattr__(part, "factor", None)

    def _collect(self, like: Tensor, of: Callable[[Any], Tensor]) -> Tensor:
        if len(self.parts) == 1:  # a single piece: blocks are in order
            return of(self.parts[0])
        out = torch.zeros_like(like)
        for part in self.parts:
            out = out.index_copy(0, part.blocks, of(part))
        return out


def factors(problem: LocalProblem, memory: object) -> tuple[BlockFactors, Tensor]:
    """Factors for these weights, and how many products with X per block it took to form them (B,).

    The same W reuses everything and is worth an inverse; another W reuses the Gram matrices.
    """
    shard, W = problem.shard, problem.W
    hvps = torch.zeros(shard.blocks, dtype=torch.int64, device=shard.device)
    known = memory if isinstance(memory, BlockFactors) and memory.shard is shard else None
    if known is not None and known.complete and (known.W is W or equal(known.W, W)):
        return replace(known.inverted(), W=W) if known.W is not W else known.inverted(), hvps
    if known is not None:
        known.release()
    parts: list[TallFactor | WideFactor] = []
    for i, piece in enumerate(shard.design.pieces):
        assert isinstance(piece, DensePiece)
        _, n, m = piece.X.shape
        if n < m:
            parts.append(WideFactor(i, piece.blocks, *_factorised(_small(shard, i, W))))
            hvps[piece.blocks] = n
        else:
            old = known.parts[i] if known is not None else None
            gram = old.gram if isinstance(old, TallFactor) else _gram(*_rows_of(shard, i))
            parts.append(TallFactor(piece.blocks, gram, *_factorised_plus(gram, W, piece.blocks)))
            hvps[piece.blocks] = 0 if isinstance(old, TallFactor) else m
    # in single precision refinement needs the residuals of the rows themselves
    exact = shard.dtype == torch.float64 and all(isinstance(part, TallFactor) for part in parts)
    moment = known.moment if known is not None else -shard.linearize(shard.zeros()).grad if exact else None
    return BlockFactors(shard, W, tuple(parts), moment), hvps


def _factor_of(part: TallFactor | WideFactor) -> Tensor:
    assert part.factor is not None, "released: `factors` makes new ones before they are used"
    return part.factor


def _rows_of(shard: Shard, i: int) -> tuple[Tensor, Tensor]:
    """X (b, n, m) and √c (b, n, 1) of a piece."""
    piece = shard.design.pieces[i]
    assert isinstance(piece, DensePiece)
    X = piece.X
    return X, shard.design.split(shard.row_weight)[i].reshape(*X.shape[:2], 1).sqrt()


def _gram(X: Tensor, c: Tensor) -> Tensor:
    """AᵀA, some rows at a time: A is as large as the data."""
    out = X.new_zeros(X.shape[0], X.shape[2], X.shape[2])
    for rows in _slices(X.shape[1]):
        A = c[:, rows] * X[:, rows]
        out.baddbmm_(A.mT, A)
    return out


def _factorised_plus(gram: Tensor, W: Weights, blocks: Tensor) -> tuple[Tensor, bool]:
    """AᵀA + W_j factorised, some blocks at a time: temporaries are three times as large."""
    out, inverted = torch.empty_like(gram), False
    diagonal = isinstance(W, Scalar | Diagonal)
    for some in _slices(len(gram), 2 * DATA_PARTS):
        if diagonal:
            H = gram[some].clone()
            H.diagonal(dim1=1, dim2=2).add_(W.diagonal()[blocks[some], :, 0])
        else:
            H = W.take(blocks[some]).dense().add_(gram[some])
        out[some], inverted = _factorised(H)
    return out, inverted


def _small(shard: Shard, i: int, W: Weights) -> Tensor:
    """S = I + A W⁻¹ Aᵀ (b, n, n), some columns at a time.

    W is known as an operator on all blocks at once, so the others get zeros to solve for.
    """
    X, c = _rows_of(shard, i)
    blocks = shard.design.pieces[i].blocks
    _, n, m = X.shape
    S = torch.eye(n, dtype=X.dtype, device=X.device).repeat(len(blocks), 1, 1)
    for rows in _slices(n):
        At = X.new_zeros(shard.blocks, m, 1, len(range(n)[rows]))
        At[blocks, :, 0] = (c[:, rows] * X[:, rows]).mT
        S[:, :, rows] += c * (X @ W.solve(At)[blocks, :, 0])
    return S


def _slices(n: int, parts: int = DATA_PARTS) -> list[slice]:
    step = max(1, -(-n // parts))
    return [slice(i, min(i + step, n)) for i in range(0, n, step)]


def _factorised(M: Tensor) -> tuple[Tensor, bool]:
    """The Cholesky factor of M (b, k, k); on a GPU, where triangular solves are slow, the inverse. Refinement repairs
    what that costs in digits."""
    L = _cholesky(M)
    return (torch.cholesky_inverse(L), True) if M.is_cuda else (L, False)


def _inverse(L: Tensor) -> Tensor:
    """(LLᵀ)⁻¹, one block at a time, in the place of a copy of L."""
    out = torch.empty_like(L, memory_format=torch.contiguous_format)
    for j, factor in enumerate(L):
        out[j] = torch.cholesky_inverse(factor)
    return out


def _solved(factor: Tensor, inverted: bool, b: Tensor) -> Tensor:
    """The inverse is symmetric: the product is written the way that is fast on a CPU."""
    return (b.mT @ factor).mT if inverted else torch.cholesky_solve(b, factor)


def _cholesky(M: Tensor) -> Tensor:
    """Lower factors of (b, k, k); a block with a NaN matrix gets a NaN factor."""
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
