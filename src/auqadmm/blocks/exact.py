"""Σ_j f_j and its derivatives at one v, in double precision and in centred columns: the sums of a verdict.

    x̃ = x − μ (but for the intercept's ones),    z_i = x̃_iᵀw + b̃,   b̃ = b + μᵀw      the same logits, to more digits
    ∇̃f = Σ_i c_i x̃_i φ'(z_i)ᵀ,    H̃ = Σ_i c_i x̃_i x̃_iᵀ ⊗ φ''(z_i)

All blocks share v, so the split into blocks does not matter. Whatever the precision of the blocks, these sums use
float64, in chunks of rows. Rounding is bounded too: with the size t_i = |x̃_i|ᵀ|v| + |y_i| of a logit's
terms, `noise` = ε Σ c_i(|φ'_i|t_i + φ_i) bounds the error of F, `floor` = ½ε² Σ c_i φ''_i t_i² that of δ.

A user-defined loss is not a function of logits: it is differentiated in the original columns, and centred afterwards.

Shapes: R flat rows, r rows of a chunk, m features (the intercept's ones last), C columns, k right-hand sides;
v (m, C), z (r, C); H (g, p, p): one group of p = mC unknowns, or, where columns do not interact, C groups of p = m.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from auqadmm.blocks.curvature import DiagonalCurvature, RowCurvature, Visited, smoothed_curvature, times
from auqadmm.blocks.design import DensePiece, with_values
from auqadmm.blocks.exact_rows import DenseRows, ExactRows, SparseRows, by_columns, centred, joint, with_offset
from auqadmm.blocks.loss import Loss, Point
from auqadmm.blocks.rows import RowLoss
from auqadmm.metrics.sums import pack, unpack

if TYPE_CHECKING:
    from auqadmm.blocks.loss import Point
    from auqadmm.blocks.rows import RowLoss
    from auqadmm.blocks.shard import Shard

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


# Numbers of a chunk of rows: on a host, to fit its cache, and on a GPU.
ROW_CHUNK = {"cpu": 2**18, "cuda": 2**26}
# A maximum as a sum: (Σ x^p)^(1/p) exceeds it by less than a factor R^(1/p), and hides which row attains it.
MAX_POWER = 16
# Logits around the best guess of a constant model, where rows have offsets.
AROUND = tuple(math.copysign(2.0 ** (abs(k) / 2 - 5), k) if k else 0.0 for k in range(-16, 17))


# ---------------------------------------------------------------------- sums over all rows of a process
@dataclass(frozen=True, eq=False)
class ExactSums:
    """The rows of a shard, centred at μ (m,), or not at all (None)."""

    shard: Shard
    centre: Tensor | None = None
    other: Loss | None = None  # a loss in place of the shard's own

    @property
    def loss(self) -> Loss:
        return self.shard.loss if self.other is None else self.other

    # ------------------------------------------------------------------ before the first iteration
    def moments(self) -> Sums:
        """Σc, Σcx, Σcx², Σc where x ≠ 0, Σcy (or Σc of each class), Σcy², inf Σcφ, Σ∇f_j(0), and data values; Σco where
        rows have offsets."""
        shard = self.shard
        loss = shard.loss
        sums: Sums = {}
        for rows in self._products(1):
            c = rows.c[:, None]
            add(sums, "weight", c.sum())
            add(sums, "x", rows.adjoint(c)[:, 0])
            add(sums, "xx", rows.squares(c)[:, 0])
            add(sums, "nonzero", rows.present(c)[:, 0])
            y = rows.y if rows.y.ndim == 1 else torch.zeros_like(rows.c)  # of several columns nothing is summed
            add(sums, "y", self._targets(y, rows.c))
            add(sums, "yy", times(rows.c, y.double().square()).sum())
            add(sums, "infimum", times(rows.c, loss.row_infimum(rows.y)).sum())
            if rows.o is not None:
                add(sums, "offset", times(rows.c, rows.o).sum())
        numbers = [p.X.numel() if isinstance(p, DensePiece) else p.A.values().numel() for p in shard.design.pieces]
        sums["values"] = torch.tensor(float(sum(numbers)), dtype=torch.float64, device=shard.device)
        zero = torch.zeros(shard.shape[1:], dtype=torch.float64, device=shard.device)
        sums["G0"] = shard.linearize(shard.expand(zero)).grad.double().sum(0)
        return sums

    def _targets(self, y: Tensor, c: Tensor) -> Tensor:
        classes = self.shard.census.classes
        if self.shard.loss.target_kind == "classes" and classes is not None:
            return torch.zeros(len(classes), dtype=torch.float64, device=c.device).index_add(0, y, c)
        return times(c, y).sum()[None]

    def null(self, logits: Tensor) -> Tensor:
        """Σ c_iφ(logits + o_i, y_i): constant models, logits (k, C) -> (k,). Where rows have offsets the best one
        does not follow from means: a single one is tried with others around it."""
        shard = self.shard
        if not isinstance(shard.loss, RowLoss):  # user-defined: its model of zeros
            return shard.linearize(shard.zeros()).value.double().sum().expand(len(logits))
        if shard.offset is not None and len(logits) == 1:
            logits = logits + torch.tensor(AROUND, dtype=logits.dtype, device=logits.device)[:, None]
        total = torch.zeros(len(logits), dtype=torch.float64, device=shard.device)
        for rows in self._products(1):
            for k, constant in enumerate(logits.to(shard.device)):
                z = with_offset(rows, constant.expand(len(rows.y), -1))
                total[k] += times(rows.c, shard.loss.row_value(z, rows.y)).sum()
        return total

    # ------------------------------------------------------------------ at a point
    def triangle(self, v: Tensor, spread: Tensor | None = None) -> Sums:
        """f, ∇̃f, the upper triangles of H̃, rounding errors, and with `spread` (m,) the reach of rows in it."""
        if not isinstance(self.loss, RowLoss):
            sums = self._own(v)
        else:
            sums = {}
            for rows in self._matrices():
                point = RowsAt.at(self.loss, rows, v)
                point.score(sums)
                add(sums, "H", pack(point.hessian(self.loss.quadratic)))
        if spread is not None:
            sums["reach"] = self.reach_apart(spread)
        return sums

    def reach_apart(self, spread: Tensor) -> Tensor:
        """Σ_i (Σ_k x̃_ik²/spread_k)^8 of rows of positive weight."""
        return self.reach_diagonal(1 / spread, torch.zeros_like(spread), 0.0)

    def step(
        self,
        v: Tensor,
        d: Tensor | None,
        fan: tuple[float, ...],
        index: Tensor,
        known: Tensor | None,
        scales: tuple[float, ...] = (),
        aside: bool = False,
        foreseen: bool = False,
        visited: Visited | None = None,
    ) -> Sums:
        """f, ∇̃f, rounding errors, the Hessian of the unknowns in `index` (of a flat v), f at v + td for every t of
        the `fan`, Σφ*(rφ') for every r of `scales`, and products of all columns with the intercept's (`aside`: there is
        one column, and an intercept). `known`: unknowns whose products with each other were sent
        before; those with all the others are sent. `foreseen`: Σx̃θ, and Σφ*(rθ) for r = 1 and the scales, of the slopes
        θ = φ' + φ''·Xd at v − d. `visited`: the points that make the curvature of rows at corners smooth."""
        sums: Sums = {}
        C, loss = v.shape[1], self.loss
        if not isinstance(loss, RowLoss):
            return self._own_step(v, d, fan, index)
        asked = [index[index % C == c] // C for c in range(C)]
        known_features = None if known is None else known // C
        parts: list[Tensor] = []
        ahead: list[tuple[Tensor, ...]] = []
        for rows in self._chunks(C, dense=False, joined=len(index) > 0):
            at = RowsAt.at(loss, rows, v)
            Xd = rows.forward(d) if d is not None and (fan or foreseen) else None
            theta = at.foreseen(loss, Xd) if foreseen and Xd is not None else None
            beside = [at.weighted.diagonal()] if aside else []
            beside += [] if theta is None else [times(rows.c, theta)]
            sides = at.score(sums, beside)
            if aside:
                add(sums, "aside", sides[0][:, :, None])
            if theta is not None:
                add(sums, "foreseen_G", sides[-1])
                values = [at.conjugate(loss, r * theta) for r in (1.0, *scales)]
                add(sums, "foreseen_conjugates", torch.stack(values))
            if len(index):
                model = at if visited is None else at.smoothed(self._own_rows, loss, visited)
                more = model.hessian_of(asked, known_features)
                parts = [a.add_(b) for a, b in zip(parts, more, strict=True)] if parts else more
            if Xd is not None and fan:
                ahead.append((at.z, Xd, rows.y, rows.c))
            if scales:
                add(sums, "conjugates", torch.stack([at.conjugate(loss, r * at.slope) for r in scales]))
        if parts:
            sums["H"] = torch.cat([x.reshape(-1) if known is not None else pack(x[None])[0] for x in parts])
        if ahead:  # of all rows at once
            z, Xd, y, c = (torch.cat(x) for x in zip(*ahead, strict=True))
            sums["fan"] = torch.stack([times(c, loss.row_value(z + t * Xd, y)).sum() for t in fan])
        return sums

    @property
    def _own_rows(self) -> RowLoss:
        assert isinstance(self.shard.loss, RowLoss)
        return self.shard.loss

    def _own_step(self, v: Tensor, d: Tensor | None, fan: tuple[float, ...], index: Tensor) -> Sums:
        sums = self._own(v) if len(index) else self._own_score(v, self._point(v))
        if len(index):
            sums["H"] = pack(unpack(sums["H"])[:, index][:, :, index])[0]
        if d is not None and fan:
            values = [self._point(v + t * d).value.double().sum() for t in fan]
            sums["fan"] = torch.stack(values)
        return sums

    def reach(self, roots: Tensor) -> Tensor:
        """Σ_i ‖T x̃_i‖^16 of rows of positive weight, T (g, q, m): the largest ‖T_g x̃_i‖ over groups."""
        total = torch.zeros((), dtype=torch.float64, device=self.shard.device)
        for rows in self._matrices():
            far = torch.stack([(rows.A @ T.mT).square().sum(1) for T in roots.to(rows.A)])
            total = total + times(rows.c.sign(), far.pow(MAX_POWER / 2).sum(0)).sum()
        return total

    def reach_diagonal(self, alpha: Tensor, beta: Tensor, gamma: float) -> Tensor:
        """Σ_i (Σ_k α_k x̃_ik² − 2β_k x̃_ik + γ)^8 of rows of positive weight, α, β (m,)."""
        total = torch.zeros((), dtype=torch.float64, device=self.shard.device)
        for rows in self._products(1):
            far = rows.form(alpha, beta) + gamma
            total = total + times(rows.c.sign(), far.clamp(min=0).pow(MAX_POWER / 2)).sum()
        return total

    def sketch(self, v: Tensor, directions: Tensor | None, diagonal: bool, score: bool) -> Sums:
        """H̃ Ω for directions (m, C, k), with the diagonal of H̃ and f, ∇̃f and rounding where requested."""
        sums: Sums = {}
        m, C = v.shape
        width = 1 if directions is None else directions.shape[2]
        if not isinstance(self.loss, RowLoss):
            point = self._point(v)
            if score:
                sums = self._own_score(v, point)
            if diagonal:  # of the original columns: enough for a preconditioner
                sums["diagonal"] = point.hessian_diagonal().double().sum(0)
            if directions is not None:
                sums["HP"] = self._own_products(point, directions)
            return sums
        for rows in self._products(C * width):
            at = RowsAt.at(self.loss, rows, v)
            if score:
                at.score(sums)
            if diagonal:
                add(sums, "diagonal", rows.squares(at.weighted.diagonal()))
            if directions is not None:
                XP = rows.forward(directions.reshape(m, C * width)).reshape(-1, C, width)
                add(sums, "HP", rows.adjoint(at.weighted.apply(XP).flatten(1)).reshape(m, C, width))
        return sums

    def conjugates(self, v: Tensor, scale: float, shift: Tensor | None) -> Tensor:
        """Σ_i c_i φ_i*(scale·(φ'_i − φ''_i a)), a (C,) the shift that makes slopes add up to zero; NaN if unknown."""
        shard = self.shard
        if not isinstance(shard.loss, RowLoss):
            return torch.full((), math.nan, dtype=torch.float64, device=shard.device)
        total = torch.zeros((), dtype=torch.float64, device=shard.device)
        for rows in self._products(v.shape[1]):
            at = RowsAt.at(shard.loss, rows, v)
            theta = at.slope
            if shift is not None:
                theta = theta - at.curvature.apply(shift.to(theta).expand_as(theta))
            total = total + at.conjugate(shard.loss, scale * theta)
        return total

    def slope_sizes(self, v: Tensor) -> Tensor:
        """Σ_i (c_i φ'_i x̃_i)² of every unknown, (m, C); of a loss of rows."""
        total = torch.zeros_like(v)
        for rows in self._products(v.shape[1]):
            total = total + rows.squares(times(rows.c, RowsAt.at(self._own_rows, rows, v).slope).square())
        return total

    def bad_rows(self, v: Tensor) -> Tensor:
        """Of every block, the first row whose loss is not finite at v; −1: none, −2: some row. (B,)"""
        shard = self.shard
        first_bad = torch.full((shard.blocks,), -1, dtype=torch.int64, device=shard.device)
        if not isinstance(shard.loss, RowLoss):  # evaluated block by block only
            values = shard.linearize(shard.expand(self._raw(v))).value
            return torch.where(values.isfinite(), first_bad, -2)
        block, counts = shard.design.block_of_row, shard.row_weight > 0
        first, bad = 0, []
        for rows in self._products(1):
            value = shard.loss.row_value(with_offset(rows, rows.forward(v)), rows.y)
            where = (~value.isfinite()).nonzero()[:, 0] + first
            bad += where[counts[where]].tolist()
            first += len(value)
        for i in reversed(bad):
            j = int(block[i])
            first_bad[j] = i - int((block == j).nonzero()[0, 0])
        return first_bad

    # ------------------------------------------------------------------ rows in chunks
    def _products(self, columns: int) -> Iterator[ExactRows]:
        yield from self._chunks(columns, dense=False)

    def _matrices(self) -> Iterator[DenseRows]:
        for rows in self._chunks(1, dense=True):
            assert isinstance(rows, DenseRows)
            yield rows

    def _chunks(self, columns: int, dense: bool, joined: bool = False) -> Iterator[ExactRows]:
        """`joined`: sparse blocks as one matrix of m columns, worth building where its columns are selected too."""
        shard = self.shard
        design = shard.design
        m = design.features
        step = max(1, ROW_CHUNK.get(shard.device.type, ROW_CHUNK["cpu"]) // max(m, columns))
        offsets = [None] * len(design.pieces) if shard.offset is None else design.split(shard.offset)
        parts = zip(design.pieces, design.split(shard.target), design.split(shard.row_weight), offsets, strict=True)
        for piece, y, c, o in parts:
            y, c = (y if y.dtype == torch.int64 else y.double()), c.double()
            o = None if o is None else o.double()
            if isinstance(piece, DensePiece):
                X = piece.X.reshape(-1, m)
                for i in range(0, max(len(X), 1), step):  # also runs once without rows, to add zeros
                    some = slice(i, i + step)
                    A = centred(X[some].double(), self.centre)
                    yield DenseRows(A, y[some], c[some], None if o is None else o[some])
                continue
            columns_of = partial(by_columns, design.cache, piece)
            if joined and shard.device.type == "cpu":
                A, At = joint(design.cache, piece)
                rows = SparseRows(A, At, 1, self.centre, y, c, columns_of, o)
            else:
                A, At = (with_values(x, x.values().double()) for x in (piece.A, piece.At))
                rows = SparseRows(A, At, len(piece.blocks), self.centre, y, c, columns_of, o)
            if dense:
                yield from rows.dense(step)
            else:
                yield rows

    # ------------------------------------------------------------------ losses that are no function of single rows
    @cached_property
    def _rows_of_own(self) -> Shard:
        return self.shard.loss.exact_rows(self.shard)

    def _point(self, v: Tensor) -> Point:
        shard = self._rows_of_own
        return shard.linearize(shard.expand(self._raw(v)))

    def _raw(self, v: Tensor) -> Tensor:
        """v in the original columns."""
        if self.centre is None:
            return v
        return torch.cat([v[:-1], v[-1:] - (self.centre[:-1, None] * v[:-1]).sum(0, keepdim=True)])

    def _moved(self, G: Tensor) -> Tensor:
        """The derivatives by centred columns, from those by the original columns; (m, …)."""
        if self.centre is None:
            return G
        mu = self.centre[:-1].reshape(-1, *[1] * (G.ndim - 1))
        return torch.cat([G[:-1] - mu * G[-1:], G[-1:]])

    def _own_score(self, v: Tensor, point: Point) -> Sums:
        f = point.value.double().sum()
        noise, floor = EPS * f.abs(), 0 * f
        known = point.rounding(EPS)
        if known is not None:
            noise, floor = known[0].double().sum(), known[1].double().sum()
        return {"f": f, "G": self._moved(point.grad.double().sum(0)), "noise": noise, "floor": floor}

    def _own_products(self, point: Point, P: Tensor) -> Tensor:
        m, C, k = P.shape
        raw = P.flatten(1) if self.centre is None else self._raw(P.flatten(1))
        raw = raw.reshape(m, C, k).to(self._rows_of_own.dtype).expand(self.shard.blocks, m, C, k)
        return self._moved(point.hvp(raw).double().sum(0))

    def _own(self, v: Tensor) -> Sums:
        m, C = v.shape
        point = self._point(v)
        unit = torch.eye(m * C, dtype=torch.float64, device=v.device).reshape(m, C, m * C)
        H = self._own_products(point, unit).reshape(m * C, m * C)
        sums = self._own_score(v, point)
        size = v.abs().reshape(-1)
        sums["floor"] = torch.maximum(sums["floor"], 0.5 * EPS**2 * (size @ H.abs() @ size))
        return sums | {"H": pack((0.5 * (H + H.mT))[None])}
