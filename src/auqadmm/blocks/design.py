"""The data matrices X_j of all blocks of a process, as one linear map.

    forward   z = (X_1 u_1; …; X_B u_B)          logits of every row, flat
    adjoint   (X_1ᵀ z_1, …, X_Bᵀ z_B)            back to one array per block

Losses then depend on rows only, never on blocks: they work on flat arrays of R rows. Dense blocks of similar height are
stacked into one *piece* (shorter blocks are padded by repeating their first row; padded rows carry weight 0),
sparse blocks form one block-diagonal CSR piece, so no product loops over blocks.

Shapes: B blocks, R rows of all pieces (padding included), m features, k any trailing columns, b blocks of a piece.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from auqadmm.blocks import products
from auqadmm.blocks.products import SingleDesign, survives_rounding
from auqadmm.metrics.lowrank import Basis

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix


@dataclass(frozen=True)
class SparsePiece:
    """b sparse blocks as one block-diagonal matrix. A (rows, b·m) and its transpose, both CSR; heights (b,).

    `shift` (m,) is subtracted from every row, in the products, so that the data stay sparse.
    """

    A: Tensor
    At: Tensor
    heights: Tensor
    blocks: Tensor
    features: int
    shift: Tensor | None = None

    @property
    def rows(self) -> int:
        return self.A.shape[0]

    def forward(self, u: Tensor, single_precision: bool = False) -> Tensor:
        z = self.A @ u.reshape(u.shape[0] * u.shape[1], u.shape[-1])
        return z if self.shift is None else z - self._spread(self.shift @ u)

    def adjoint(self, z: Tensor, single_precision: bool = False) -> Tensor:
        u = self._pulled(self.At, z)
        return u if self.shift is None else u - self.shift[:, None] * self.sum_rows(z)[:, None]

    def adjoint_squared(self, z: Tensor, single_precision: bool = False) -> Tensor:
        u = self._pulled(_squared(self.At), z)
        if self.shift is None:
            return u
        h = self.shift[:, None]
        return u - h * (2 * self._pulled(self.At, z) - h * self.sum_rows(z)[:, None])

    def forward_squared(self, u: Tensor) -> Tensor:
        z = _squared(self.A) @ u.reshape(u.shape[0] * u.shape[1], u.shape[-1])
        if self.shift is None:
            return z
        h = self.shift[:, None]
        return z - 2 * (self.A @ (h * u).reshape(u.shape[0] * u.shape[1], -1)) + self._spread(self.shift.square() @ u)

    def _pulled(self, At: Tensor, z: Tensor) -> Tensor:
        return (At @ z).reshape(len(self.blocks), self.features, z.shape[-1])

    def _spread(self, x: Tensor) -> Tensor:
        """One number per block and column, (b, k), for each of its rows."""
        return x.repeat_interleave(self.heights, dim=0, output_size=self.rows)

    def squares(self, like: Tensor) -> Tensor:
        ones = torch.ones(len(self.blocks), self.features, 1, dtype=like.dtype, device=like.device)
        return self.forward_squared(ones)[:, 0]

    def adjoint_squared_in(self, F: Basis, z: Tensor, single_precision: bool = False) -> Tensor:
        if F is None:
            return self.adjoint_squared(z)
        out = []
        m = self.features
        for j, (first, w) in enumerate(
            zip(self.heights.cumsum(0) - self.heights, z.split(self.heights.tolist()), strict=True)
        ):
            a, b = int(first), int(first) + len(w)
            crow = self.A.crow_indices()[a : b + 1]
            entries = slice(int(crow[0]), int(crow[-1]))
            row = torch.arange(len(w), device=w.device).repeat_interleave(crow.diff())
            rows = w.new_zeros(len(w), m)
            rows[row, self.A.col_indices()[entries] - j * m] = self.A.values()[entries]
            rows = rows if self.shift is None else rows - self.shift
            out.append((F @ rows.mT).square() @ w)
        return torch.stack(out)

    def sum_rows(self, x: Tensor) -> Tensor:
        return torch.segment_reduce(x.contiguous(), "sum", lengths=self.heights, axis=0)

    def inner(self, P: Tensor, Q: Tensor) -> Tensor:
        outer = (P[:, :, None] * Q[:, None, :]).flatten(1)
        return self.sum_rows(outer).reshape(len(self.blocks), P.shape[1], Q.shape[1])

    def block_of_row(self) -> Tensor:
        return self.blocks.repeat_interleave(self.heights, output_size=self.rows)


def sparse_piece(matrices: Sequence[Any], blocks: Tensor, dtype: torch.dtype, device: torch.device) -> SparsePiece:
    """Stack scipy CSR matrices block-diagonally; the transpose is stored too, since CSR products go one way."""
    import scipy.sparse

    A = scipy.sparse.block_diag(matrices, format="csr")
    At = A.T.tocsr()
    heights = torch.tensor([x.shape[0] for x in matrices], device=device)
    return SparsePiece(
        A=_csr(A, dtype, device),
        At=_csr(At, dtype, device),
        heights=heights,
        blocks=blocks,
        features=matrices[0].shape[1],
    )


def _indices(x: np.ndarray) -> Tensor:
    # torch before 2.13 does not take numpy's array of nothing for a contiguous one
    return torch.from_numpy(x) if x.size else torch.empty(0, dtype=torch.int64)


def _csr(A: csr_matrix, dtype: torch.dtype, device: torch.device) -> Tensor:
    # 32 bits where they do: half the memory of an index, and faster products
    index = torch.int32 if max(*A.shape, A.nnz) < 2**31 else torch.int64
    with warnings.catch_warnings():  # torch announces that its CSR layout is in beta
        warnings.simplefilter("ignore", UserWarning)
        return torch.sparse_csr_tensor(
            torch.from_numpy(A.indptr).to(index),
            _indices(A.indices).to(index),
            torch.from_numpy(np.asarray(A.data)).to(dtype),
            size=A.shape,
            device=device,
            check_invariants=True,
        )


def _squared(A: Tensor) -> Tensor:
    """The same pattern with every entry squared."""
    return with_values(A, A.values().square())


def with_values(A: Tensor, values: Tensor) -> Tensor:
    """The same pattern with other values."""
    return torch.sparse_csr_tensor(A.crow_indices(), A.col_indices(), values, A.shape, check_invariants=False)


# Work on copies of the data, such as their squares, goes part by part.
DATA_PARTS = 8
# A block joins a piece when padding it to the piece's height adds at most this share of rows.
PADDING = 0.25


# neighbours among the blocks
Runs = tuple[slice, ...]


@dataclass(frozen=True)
class DensePiece:
    """b dense blocks of n rows each. X (b, n, m), blocks (b,) positions among the B."""

    X: Tensor
    blocks: Tensor

    @property
    def rows(self) -> int:
        return self.X.shape[0] * self.X.shape[1]

    @cached_property
    def single_precision(self) -> SingleDesign:
        """X in single precision."""
        return SingleDesign.of(self.X, *self.range)

    @cached_property
    def range(self) -> tuple[Tensor, Tensor]:
        """The minimum and the maximum of every column of every block, (b, m) each; X must be on the host."""
        X = self.X.numpy()  # torch is three times as slow
        return torch.from_numpy(X.min(1, initial=np.inf)), torch.from_numpy(X.max(1, initial=-np.inf))

    def forward(self, u: Tensor, single_precision: bool = False, only: Runs = ()) -> Tensor:  # (b, m, k) -> (b·n, k)
        if not only:
            z = self.single_precision.forward(u) if single_precision else products.forward(self.X, u)
            return z.reshape(self.rows, u.shape[-1])
        z = u.new_zeros(*self.X.shape[:2], u.shape[-1])
        for run in only:
            z[run] = (
                self.single_precision[run].forward(u[run])
                if single_precision
                else products.forward(self.X[run], u[run])
            )
        return z.flatten(0, 1)

    def adjoint(self, z: Tensor, single_precision: bool = False, only: Runs = ()) -> Tensor:  # (b·n, k) -> (b, m, k)
        z = self._stack(z)
        if not only:
            return self.single_precision.adjoint(z) if single_precision else products.adjoint(self.X, z)
        u = z.new_zeros(len(z), self.X.shape[2], z.shape[2])
        for run in only:
            u[run] = (
                self.single_precision[run].adjoint(z[run])
                if single_precision
                else products.adjoint(self.X[run], z[run])
            )
        return u

    def adjoint_squared(self, z: Tensor, single_precision: bool = False) -> Tensor:
        z = self._stack(z)
        if single_precision:
            return self.single_precision.adjoint_squared(z, self._parts())
        out = z.new_zeros(z.shape[0], self.X.shape[2], z.shape[2])
        for part in self._parts():
            out = out + products.adjoint(self.X[:, part].square(), z[:, part])
        return out

    def forward_squared(self, u: Tensor) -> Tensor:
        # vectors as rows: BLAS is slower with columns
        rows = [u.mT @ self.X[:, part].square().mT for part in self._parts()]
        return torch.cat(rows, 2).mT.reshape(self.rows, u.shape[-1])

    def squares(self, like: Tensor) -> Tensor:  # (b·n,)
        return torch.linalg.vector_norm(self.X, dim=2).square().flatten()

    def adjoint_squared_in(self, F: Basis, z: Tensor, single_precision: bool = False) -> Tensor:
        if F is None and single_precision:
            return self.adjoint_squared(z, single_precision)
        w = self._stack(z).mT
        out = w.new_zeros(*w.shape[:2], self.X.shape[2])
        for part in self._parts():
            if F is None:
                out = torch.baddbmm(out, w[..., part], self.X[:, part].square())
            else:  # one block at a time: transposed and squared they are two more copies
                turned = [w_j[:, part] @ (F @ X[part].mT).square().mT for X, w_j in zip(self.X, w, strict=True)]
                out = out + torch.stack(turned)
        return out.mT

    def _parts(self) -> list[slice]:
        """Rows of every block in chunks: copies of all of them are as large as the data."""
        n = self.X.shape[1]
        step = max(1, -(-n // DATA_PARTS))
        return [slice(i, i + step) for i in range(0, max(n, 1), step)]

    def sum_rows(self, x: Tensor) -> Tensor:  # (b·n, k) -> (b, k)
        return self._stack(x).sum(1)

    def inner(self, P: Tensor, Q: Tensor) -> Tensor:  # (b·n, p), (b·n, q) -> (b, p, q)
        return self._stack(P).mT @ self._stack(Q)

    def block_of_row(self) -> Tensor:
        return self.blocks.repeat_interleave(self.X.shape[1])

    def _stack(self, z: Tensor) -> Tensor:
        return z.reshape(self.X.shape[0], self.X.shape[1], z.shape[-1])


# Some of the blocks, stored so that one product covers them all.
Piece = DensePiece | SparsePiece


@dataclass(frozen=True)
class Design:
    """All pieces. `rows` is R; a row's position in flat arrays follows the order of the pieces.

    `cache` holds arrays computed from the data.
    """

    pieces: tuple[Piece, ...]
    blocks: int
    features: int
    cache: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def rows(self) -> int:
        return sum(p.rows for p in self.pieces)

    @property
    def dense(self) -> bool:
        return all(isinstance(p, DensePiece) for p in self.pieces)

    def forward(self, u: Tensor, single_precision: bool = False, only: Runs = ()) -> Tensor:
        """(B, m, …) -> (R, …); `single_precision`: in float32 (`single_precision.py`). `only`: u is zero in all other
        blocks, and their data are not read if there is a single dense piece."""
        flat = u.flatten(2) if u.ndim > 2 else u.unsqueeze(-1)
        if only and (piece := self._whole) is not None:
            return piece.forward(flat, single_precision, only).reshape(piece.rows, *u.shape[2:])
        parts = [p.forward(self._take(flat, p), single_precision) for p in self.pieces]
        z = parts[0] if len(parts) == 1 else torch.cat(parts)
        return z.reshape(z.shape[0], *u.shape[2:])

    def forward_squared(self, u: Tensor) -> Tensor:
        """Σ_k x_ik² u_k of every row: (B, m) -> (R,)."""
        parts = [p.forward_squared(self._take(u.unsqueeze(-1), p)) for p in self.pieces]
        return torch.cat(parts)[:, 0]

    def along(self, U: Tensor, single_precision: bool = False) -> Tensor:
        """`forward` of directions that are used repeatedly, (B, m, r) -> (R, r): the last result is cached, if
        they are few. Same values as without the cache."""
        known = self.cache.get("along")
        if known is not None and known[0] is U:
            return known[1]
        z = self.forward(U, single_precision)
        self.cache.pop("along", None)
        if U.shape[2] * DATA_PARTS <= self.features:
            self.cache["along"] = (U, z)
        return z

    def squares(self, like: Tensor) -> Tensor:
        """|x_i|² of every row, (R,), in the dtype and on the device of `like`, the same as the data's."""
        if "squares" not in self.cache:
            self.cache["squares"] = torch.cat([p.squares(like) for p in self.pieces])
        return self.cache["squares"]

    def adjoint(self, z: Tensor, single_precision: bool = False, only: Runs = ()) -> Tensor:
        """(R, …) -> (B, m, …), the transpose of `forward`; `only`: z is zero in the rows of other blocks."""
        if only and (piece := self._whole) is not None:
            flat = z.flatten(1) if z.ndim > 1 else z.unsqueeze(-1)
            return piece.adjoint(flat, single_precision, only).reshape(self.blocks, self.features, *z.shape[1:])
        return self._collect(z, lambda p, part: p.adjoint(part, single_precision), (self.features,))

    def adjoint_squared(self, z: Tensor, single_precision: bool = False) -> Tensor:
        """Σ_i x_i² z_i per block, the square taken entry by entry: (R, …) -> (B, m, …)."""
        return self._collect(z, lambda p, part: p.adjoint_squared(part, single_precision), (self.features,))

    def adjoint_squared_in(self, F: Basis, z: Tensor, single_precision: bool = False) -> Tensor:
        """Σ_i (F x_i)² z_i per block, F (m, m) a basis or None for the identity: (R,) -> (B, m). For
        renewing weights, not for every round."""
        return self._collect(z, lambda p, part: p.adjoint_squared_in(F, part, single_precision), (self.features,))

    def sum_rows(self, x: Tensor) -> Tensor:
        """Sum over the rows of each block: (R, …) -> (B, …)."""
        return self._collect(x, lambda p, part: p.sum_rows(part), ())

    def inner(self, P: Tensor, Q: Tensor) -> Tensor:
        """P_jᵀQ_j over the rows of each block: (R, p), (R, q) -> (B, p, q)."""
        out = P.new_zeros(self.blocks, P.shape[1], Q.shape[1])
        for piece, p, q in zip(self.pieces, self.split(P), self.split(Q), strict=True):
            out[piece.blocks] = piece.inner(p, q)
        return out

    @cached_property
    def coarse(self) -> Tensor | None:
        """(B,): blocks for which single precision is too coarse (`single_precision.py`); None: none. For dense
        blocks on the host."""
        coarse = torch.zeros(self.blocks, dtype=torch.bool)
        for piece in self.pieces:
            if isinstance(piece, DensePiece):
                coarse[piece.blocks] = ~survives_rounding(*piece.range)
        return coarse if bool(coarse.any()) else None

    @cached_property
    def heights(self) -> list[int]:
        """Rows of every block, padding included."""
        return self.block_of_row.bincount(minlength=self.blocks).tolist()

    @cached_property
    def block_of_row(self) -> Tensor:
        """(R,): which of the B blocks each flat row belongs to."""
        return torch.cat([p.block_of_row() for p in self.pieces])

    def split(self, x: Tensor) -> tuple[Tensor, ...]:
        """Cut a flat array (R, …) into one part per piece."""
        return torch.split(x, [p.rows for p in self.pieces])

    @property
    def _whole(self) -> DensePiece | None:
        """The single dense piece of all blocks, if there is one."""
        piece = self.pieces[0]
        return piece if len(self.pieces) == 1 and isinstance(piece, DensePiece) else None

    def _take(self, u: Tensor, piece: Piece) -> Tensor:
        return u if len(self.pieces) == 1 else u[piece.blocks]

    def _collect(self, z: Tensor, product: Callable[[Piece, Tensor], Tensor], shape: tuple[int, ...]) -> Tensor:
        flat = z.flatten(1) if z.ndim > 1 else z.unsqueeze(-1)
        trailing = z.shape[1:]
        if len(self.pieces) == 1:  # a single piece: blocks are in order
            return product(self.pieces[0], flat).reshape(self.blocks, *shape, *trailing)
        out = flat.new_zeros(self.blocks, *shape, flat.shape[-1])
        for piece, part in zip(self.pieces, self.split(flat), strict=True):
            out[piece.blocks] = product(piece, part)
        return out.reshape(self.blocks, *shape, *trailing)


def group_by_height(heights: Sequence[int]) -> list[list[int]]:
    """Group blocks so that padding each to the tallest of its group adds at most `PADDING` of the rows.

    Equal heights give one group in the original order, which is the fast path of `Design`.
    """
    if len(set(heights)) <= 1:
        return [list(range(len(heights)))]
    groups: list[list[int]] = []
    for j in sorted(range(len(heights)), key=lambda j: -heights[j]):
        tallest = heights[groups[-1][0]] if groups else -1
        # an empty block joins only other empty blocks: it has no row to repeat as padding
        fits = tallest <= (1 + PADDING) * heights[j] and (heights[j] > 0 or tallest == 0)
        if groups and fits:
            groups[-1].append(j)
        else:
            groups.append([j])
    return [sorted(g) for g in groups]
