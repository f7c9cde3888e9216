"""The blocks of one process, ready for arithmetic: matrices, targets, row weights and the loss.

f_j(u) = Σ_i c_i φ(x_iᵀu + o_i, y_i) over the rows i of block j, with c_i the sample weight times the scale of the
loss's `reduction` (S1), and o_i the row's offset, zero unless given. Everything is batched: arrays
carry the leading axis B.

Shapes: B blocks of this process, N in all, R flat rows (padding included, weight 0), m features (the intercept's
column of ones is the last), C columns of the unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from auqadmm.blocks import parts
from auqadmm.blocks.design import DensePiece, Design, Piece, Runs, group_by_height, sparse_piece
from auqadmm.blocks.parts import Part, framed
from auqadmm.errors import InputError
from auqadmm.runtime import Programs

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from auqadmm.blocks.exact import ExactSums
    from auqadmm.blocks.loss import Loss, Point
    from auqadmm.columns import Frame


@dataclass(frozen=True)
class RawBlock:
    """One worker's checked rows: X numpy float (n, m) or scipy CSR, y numpy (n,) or (n, columns), weight numpy (n,).

    `columns` are the names of a data frame's columns; `offset` (n,) is added to the logits.
    """

    name: str
    X: Any
    y: np.ndarray
    weight: np.ndarray
    weighted: bool = False
    columns: tuple[str, ...] | None = None
    offset: np.ndarray | None = None

    @property
    def rows(self) -> int:
        return int(self.X.shape[0])


@dataclass(frozen=True)
class Census:
    """What every process must agree on before the first iteration."""

    blocks: int
    features: int
    columns: int
    intercept: bool
    rows: tuple[int, ...]
    weight_total: float
    classes: np.ndarray | None
    names: tuple[str, ...] = ()
    dense: bool = True  # all blocks
    offset: bool = False  # of any block

    @property
    def unknowns(self) -> int:
        return self.features * self.columns


@dataclass(frozen=True)
class Shard:
    """B blocks with their loss. `index` (B,) are the blocks' numbers among all N; `frame`: the columns' frame,
    None: the problem's own; `offset` (R,): added to the logits of rows, None where no block of any process has one."""

    design: Design
    target: Tensor
    row_weight: Tensor
    loss: Loss
    census: Census
    index: tuple[int, ...]
    names: tuple[str, ...]
    weighted: bool
    frame: Frame | None = None
    offset: Tensor | None = None

    @property
    def blocks(self) -> int:
        return self.design.blocks

    @property
    def shape(self) -> tuple[int, int, int]:
        """(B, m, C): the shape of u, λ and W's diagonal."""
        return (self.design.blocks, self.design.features, self.census.columns)

    @property
    def dtype(self) -> torch.dtype:
        return self.row_weight.dtype

    @property
    def device(self) -> torch.device:
        return self.row_weight.device

    @cached_property
    def programs(self) -> Programs:
        """Runs functions of these blocks, on a GPU as CUDA graphs."""
        fixed = (self, self.design, self.loss, self.census)
        return Programs(self.device if self.loss.recordable else torch.device("cpu"), fixed)

    @cached_property
    def groups(self) -> tuple[Part, ...]:
        """Blocks of similar height, where heights differ much (`parts.py`); else none."""
        return parts.groups(self)

    @cached_property
    def rows(self) -> tuple[int, ...]:
        """Rows of every block of this process, without padding, which depends on the other blocks."""
        heights = self.design.heights
        return tuple(min(self.census.rows[j], heights[i]) for i, j in enumerate(self.index))

    @cached_property
    def tall(self) -> Tensor:
        """Dense blocks of at least as many rows as features, in order."""
        some = [j for p in self.design.pieces if isinstance(p, DensePiece) for j in p.blocks.tolist()]
        wide = self.design.features
        return torch.tensor(sorted(j for j in some if self.rows[j] >= wide), dtype=torch.int64, device=self.device)

    @cached_property
    def single_precision(self) -> bool:
        """May local solves multiply in single precision (`single_precision.py`)?"""
        from auqadmm.blocks import single_precision  # circular imports

        return single_precision.is_applicable(self)

    @cached_property
    def plain(self) -> bool:
        """Does every row count once? Only checked on a host: a GPU synchronisation takes longer than a product."""
        return self.device.type == "cpu" and bool((self.row_weight == 1).all())

    # ------------------------------------------------------------------ other columns
    def inner(self, run: str) -> Shard:
        """The same blocks in the columns that this run entered (`enter`), or unchanged."""
        owner, inner = vars(self).get("_inner", (None, self))
        return inner if owner == run else self

    def enter(self, frame: Frame, run: str) -> None:
        """Add a copy of the blocks in other columns, until `leave`."""
        self.leave()
        vars(self)["_inner"] = run, framed(self, frame)

    def leave(self) -> None:
        if "_inner" in vars(self):
            vars(self).pop("_inner")[1].close()

    def models(self, u: Tensor) -> Tensor:
        """Models of blocks (B, m, C) in the problem's own columns."""
        return u if self.frame is None else self.frame.models_outside(u)

    def slopes(self, grad: Tensor) -> Tensor:
        """Gradients and multipliers of blocks (B, m, C), by the problem's own columns."""
        return grad if self.frame is None else self.frame.slopes_outside(grad)

    def close(self) -> None:
        """End of the run: free the memory of CUDA graphs."""
        self.leave()
        self.programs.clear()
        for group in vars(self).get("groups", ()):
            group.shard.close()

    def zeros(self) -> Tensor:
        return torch.zeros(self.shape, dtype=self.dtype, device=self.device)

    def expand(self, v: Tensor) -> Tensor:
        """One (m, C) model as the model of every block, without a copy."""
        return v.to(self.dtype).expand(self.shape)

    def exact(self, centre: Tensor | None = None, loss: Loss | None = None) -> ExactSums:
        """Sums over all rows at one v, in double precision and in columns centred at `centre` (m,); `loss` in place of
        the blocks' own."""
        from auqadmm.blocks.exact import ExactSums  # circular import

        return ExactSums(self, None if centre is None else centre.to(self.device), loss)

    def logits(self, u: Tensor, single_precision: bool = False, only: Runs = ()) -> Tensor:
        """x_iᵀu + o_i of every row, (B, m, C) -> (R, C)."""
        z = self.design.forward(u, single_precision, only)
        return z if self.offset is None else z + self.offset[:, None]

    def linearize(self, u: Tensor) -> Point:
        """Value, gradient and Hessian of every f_j at u (B, m, C), sharing the logits."""
        return self.loss.linearize(self, u)


def build_shard(
    blocks: Sequence[RawBlock],
    targets: Sequence[np.ndarray],
    loss: Loss,
    census: Census,
    index: Sequence[int],
    dtype: torch.dtype,
    device: torch.device,
) -> Shard:
    """Pad and stack the blocks, and scale the row weights by the loss's reduction."""
    dense = [j for j, b in enumerate(blocks) if not scipy.sparse.issparse(b.X)]
    sparse = [j for j, b in enumerate(blocks) if scipy.sparse.issparse(b.X)]
    pieces: list[Piece] = []
    flat_target: list[np.ndarray] = []
    flat_weight: list[np.ndarray] = []
    flat_offset: list[np.ndarray] = []
    weights = [_scaled_weight(b, loss.reduction, census) for b in blocks]
    for group in group_by_height([blocks[j].rows for j in dense]) if dense else []:
        members = [dense[i] for i in group]
        height = max(blocks[j].rows for j in members)
        X = np.empty((len(members), height, census.features), dtype=_numpy_dtype(dtype))
        for slot, j in enumerate(members):
            pad = height - blocks[j].rows
            _check_range(blocks[j], X.dtype)
            X[slot] = _pad(_with_ones(blocks[j].X, census.intercept), pad)
            flat_target.append(_pad(targets[j], pad))
            flat_weight.append(np.concatenate([weights[j], np.zeros(pad)]))
            flat_offset.append(_pad(_offset(blocks[j]), pad))
        pieces.append(DensePiece(torch.from_numpy(X).to(device), torch.tensor(members, device=device)))
    if sparse:
        for j in sparse:
            _check_range(blocks[j], _numpy_dtype(dtype))
        matrices = [_with_ones(blocks[j].X, census.intercept) for j in sparse]
        pieces.append(sparse_piece(matrices, torch.tensor(sparse, device=device), dtype, device))
        flat_target += [targets[j] for j in sparse]
        flat_weight += [weights[j] for j in sparse]
        flat_offset += [_offset(blocks[j]) for j in sparse]
    target = torch.from_numpy(np.concatenate(flat_target))
    return Shard(
        design=Design(tuple(pieces), len(blocks), census.features),
        # several columns keep all digits: times that differ must not become ties
        target=(target if target.dtype == torch.int64 or target.ndim > 1 else target.to(dtype)).to(device),
        row_weight=torch.from_numpy(np.concatenate(flat_weight)).to(device, dtype),
        loss=loss,
        census=census,
        index=tuple(index),
        names=tuple(b.name for b in blocks),
        weighted=any(b.weighted for b in blocks),
        offset=torch.from_numpy(np.concatenate(flat_offset)).to(device, dtype) if census.offset else None,
    )


def _offset(block: RawBlock) -> np.ndarray:
    return np.zeros(block.rows) if block.offset is None else block.offset


def _scaled_weight(block: RawBlock, reduction: str, census: Census) -> np.ndarray:
    if reduction == "sum":
        return block.weight
    total = float(block.weight.sum()) if reduction == "mean" else census.weight_total
    # a block without rows, or whose rows all weigh 0, adds nothing to the objective
    return block.weight / total if total > 0 else block.weight


def _with_ones(X: Any, intercept: bool) -> Any:
    if not intercept:
        return X
    if not scipy.sparse.issparse(X):
        return np.hstack([X, np.ones((X.shape[0], 1))])
    X = X.tocsr()
    if not X.has_canonical_format:
        X = X.copy()
        X.sum_duplicates()
    rows, columns = X.shape
    ends = X.indptr[1:]  # of rows: the intercept's column is the last
    data, indices = np.insert(X.data, ends, 1), np.insert(X.indices, ends, columns)
    starts = X.indptr + np.arange(rows + 1, dtype=X.indptr.dtype)
    return scipy.sparse.csr_matrix((data, indices, starts), shape=(rows, columns + 1))


def _pad(x: np.ndarray, count: int) -> np.ndarray:
    """Repeat the first row: padding then adds no value that the loss would not see anyway."""
    return x if count == 0 else np.concatenate([x, np.repeat(x[:1], count, axis=0)])


def _check_range(block: RawBlock, dtype: DTypeLike) -> None:
    """Finite in float64 may be infinite in float32."""
    X = block.X.data if scipy.sparse.issparse(block.X) else block.X
    if X.size and X.dtype.itemsize > np.dtype(dtype).itemsize:
        largest = max(abs(float(X.max())), abs(float(X.min())))
        if largest > float(np.finfo(dtype).max):
            raise InputError(
                f"{block.name}: X holds {largest:g}, beyond the range of {np.dtype(dtype)}; "
                "rescale the features or use dtype='float64'."
            )


def _numpy_dtype(dtype: torch.dtype) -> Any:
    return {torch.float64: np.float64, torch.float32: np.float32}[dtype]
