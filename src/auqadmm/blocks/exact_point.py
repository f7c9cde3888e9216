"""Rows at one v: values, slopes and curvature, and their sums.

Shapes: r rows of a chunk, m features, C columns; v (m, C), z (r, C); H (g, p, p): one group of p = mC unknowns, or,
where columns do not interact, C groups of p = m.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from auqadmm.blocks.corners import Visited, smoothed_curvature
from auqadmm.blocks.curvature import DiagonalCurvature, RowCurvature, times
from auqadmm.blocks.exact_rows import DenseRows, ExactRows, with_offset

if TYPE_CHECKING:
    from auqadmm.blocks.rows import RowLoss

EPS = torch.finfo(torch.float64).eps

Sums = dict[str, Tensor]


@dataclass(frozen=True, eq=False)
class RowsAt:
    """Rows at v: values (r,), slopes (r, C), curvature without and with row weights."""

    rows: ExactRows
    z: Tensor
    value: Tensor
    slope: Tensor
    curvature: RowCurvature
    weighted: RowCurvature
    v: Tensor
    real: bool

    @classmethod
    def at(cls, loss: RowLoss, rows: ExactRows, v: Tensor) -> RowsAt:
        z = with_offset(rows, rows.forward(v))
        s = loss.prepare(z)
        curvature = loss.row_curvature(s, rows.y)
        value, slope = loss.row_value(z, rows.y), loss.row_slope(s, rows.y)
        return cls(rows, z, value, slope, curvature, curvature.weighted(rows.c), v, loss.target_kind == "real")

    def score(self, sums: Sums, beside: Sequence[Tensor] = ()) -> Sequence[Tensor]:
        """Adds f, ∇̃f and rounding errors; returns Σx̃_i b_i for every b (r, C) of `beside`, in the same product."""
        rows = self.rows
        slope = times(rows.c, self.slope)
        size = rows.sizes(self.v) + (rows.y.abs()[:, None] if self.real else 1.0)
        size = size if rows.o is None else size + rows.o.abs()[:, None]
        f = times(rows.c, self.value).sum()
        add(sums, "f", f)
        together = torch.cat([slope, *beside], 1) if beside else slope
        G, *sides = (x.contiguous() for x in rows.adjoint(together).split(slope.shape[1], 1))
        add(sums, "G", G)
        add(sums, "noise", EPS * ((slope.abs() * size).sum() + f.abs()))
        add(sums, "floor", 0.5 * EPS**2 * (self.weighted.diagonal() * size.square()).sum())
        return sides

    def foreseen(self, loss: RowLoss, Xd: Tensor) -> Tensor:
        """The slopes that the step d to this point predicted, (r, C): φ' + φ''·Xd at its start."""
        s = loss.prepare(self.z - Xd)
        return loss.row_slope(s, self.rows.y) + loss.row_curvature(s, self.rows.y).apply(Xd)

    def conjugate(self, loss: RowLoss, theta: Tensor) -> Tensor:
        """Σφ*(θ)."""
        rows = loss.row_conjugate(theta, self.rows.y)
        rows = rows if self.rows.o is None else rows - theta.sum(1) * self.rows.o
        return times(self.rows.c, rows).sum()

    def hessian(self, quadratic: bool) -> Tensor:
        """(g, p, p); one group where columns do not interact and have the same curvature."""
        rows, (m, C) = self.rows, self.v.shape
        assert isinstance(rows, DenseRows)
        if isinstance(self.weighted, DiagonalCurvature):
            h = self.weighted.h[:, :1] if quadratic else self.weighted.h
            return torch.stack([rows.gram(h[:, a]) for a in range(h.shape[1])])
        H = self.v.new_zeros(m, C, m, C)
        for b in range(C):
            unit = torch.zeros_like(self.slope)
            unit[:, b] = 1.0
            column = self.weighted.apply(unit)
            for a in range(b + 1):
                H[:, a, :, b] = rows.gram(column[:, a])
                H[:, b, :, a] = H[:, a, :, b]
        return H.reshape(1, m * C, m * C)

    def smoothed(self, loss: RowLoss, now: RowLoss, visited: Visited) -> RowsAt:
        """With curvature that the points before this one make smooth; `loss`: the one whose corners `now` widens."""
        past = with_offset(self.rows, self.rows.forward(visited.columns.to(self.v)))
        curvature = smoothed_curvature(loss, now, visited, past, self.z, self.rows.y)
        return replace(self, curvature=curvature, weighted=curvature.weighted(self.rows.c))

    def hessian_of(self, features: list[Tensor], known: Tensor | None) -> list[Tensor]:
        """Of the features named for every class: a matrix for each where classes do not interact, one for all else, of
        which upper triangles are used; with `known`, the products of new features with those and with each other."""
        rows, C = self.rows, self.v.shape[1]
        taken = [rows.take(f) for f in features]
        if known is not None:
            whole = rows.take(torch.cat([known, features[0]]))
            return [rows.between(taken[0], self.weighted.diagonal()[:, 0], whole)]
        if isinstance(self.weighted, DiagonalCurvature):
            return [rows.between(taken[c], self.weighted.h[:, c], taken[c]) for c in range(C)]
        sizes = [len(f) for f in features]
        H = self.v.new_zeros(sum(sizes), sum(sizes))
        ends = [0, *torch.tensor(sizes).cumsum(0).tolist()]
        for b in range(C):
            unit = torch.zeros_like(self.slope)
            unit[:, b] = 1.0
            column = self.weighted.apply(unit)
            for a in range(b + 1):
                block = rows.between(taken[a], column[:, a], taken[b])
                H[ends[a] : ends[a + 1], ends[b] : ends[b + 1]] = block
        return [H]


def add(sums: Sums, name: str, x: Tensor) -> None:
    sums[name] = sums[name] + x if name in sums else x
