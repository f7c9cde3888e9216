"""Factors of the u-step's matrices, and their inverses while weights stay the same (`direct.py`).

    H = AᵀA + W,   A = √c X             rows ≥ features: Cholesky of the m×m matrix
    S = I + AW⁻¹Aᵀ                      fewer rows: of the n×n matrix, from which H⁻¹ follows (Woodbury)

A new W replaces the factors; Gram matrices AᵀA are kept.

Shapes: B blocks, b blocks of a piece with n rows each, m features; C = 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from auqadmm.blocks.design import PARTS, DensePiece
from auqadmm.blocks.shard import Shard
from auqadmm.local.base import LocalProblem, over, select
from auqadmm.metrics.weights import Diagonal, Scalar, Weights, equal


@dataclass(frozen=True)
class TallFactor:
    """Blocks with rows ≥ features. blocks (b,), gram AᵀA (b, m, m), H factorised (b, m, m) unless it was released."""

    blocks: Tensor
    gram: Tensor
    factor: Tensor | None
    inverted: bool

    def solve(self, g: Tensor, W: Weights, shard: Shard) -> Tensor:
        return _solved(_held_by(self), self.inverted, g[self.blocks])


@dataclass(frozen=True)
class WideFactor:
    """Blocks with rows < features, none included: the piece's number, blocks (b,), S factorised (b, n, n) unless it was
    released."""

    piece: int
    blocks: Tensor
    factor: Tensor | None
    inverted: bool

    def solve(self, g: Tensor, W: Weights, shard: Shard) -> Tensor:
        X, c = _held(shard, self.piece)
        Wg = W.solve(g)
        y = _solved(_held_by(self), self.inverted, c * (X @ Wg[self.blocks]))
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
        parts = (replace(part, factor=_inverse(_held_by(part)), inverted=True) for part in self.parts)
        return replace(self, parts=tuple(parts))

    @property
    def held(self) -> bool:
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
    if known is not None and known.held and (known.W is W or equal(known.W, W)):
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
            gram = old.gram if isinstance(old, TallFactor) else _gram(*_held(shard, i))
            parts.append(TallFactor(piece.blocks, gram, *_factorised_plus(gram, W, piece.blocks)))
            hvps[piece.blocks] = 0 if isinstance(old, TallFactor) else m
    # in single precision refinement needs the residuals of the rows themselves
    exact = shard.dtype == torch.float64 and all(isinstance(part, TallFactor) for part in parts)
    moment = known.moment if known is not None else -shard.linearize(shard.zeros()).grad if exact else None
    return BlockFactors(shard, W, tuple(parts), moment), hvps


def _held_by(part: TallFactor | WideFactor) -> Tensor:
    assert part.factor is not None, "released: `factors` makes new ones before they are used"
    return part.factor


def _held(shard: Shard, i: int) -> tuple[Tensor, Tensor]:
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
    for some in _slices(len(gram), 2 * PARTS):
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
    X, c = _held(shard, i)
    blocks = shard.design.pieces[i].blocks
    _, n, m = X.shape
    S = torch.eye(n, dtype=X.dtype, device=X.device).repeat(len(blocks), 1, 1)
    for rows in _slices(n):
        At = X.new_zeros(shard.blocks, m, 1, len(range(n)[rows]))
        At[blocks, :, 0] = (c[:, rows] * X[:, rows]).mT
        S[:, :, rows] += c * (X @ W.solve(At)[blocks, :, 0])
    return S


def _slices(n: int, parts: int = PARTS) -> list[slice]:
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
