"""The sums of inference, a map over blocks: what every block adds at the solution v.

    H, J    the information, observed Σ c φ''(x − x̄)(x − x̄)ᵀ, and expected (only where it is another)
    R       Σ c φ'² (x − x̄)(x − x̄)ᵀ                 for robust covariances; c² in place of c for precision weights
    C       Σ_j λ_j λ_jᵀ, λ_j = ∇f_j(v)              for covariances that are robust by site
    Q       Σ_j λ_jᵀ H_j⁺ λ_j, with Σ_j rank H_j     how much sites differ
    Gk …    derivatives by the size k of the negative binomial: `size`
    further f, its infimum, ∇f, Pearson's statistic, constants of the likelihood, Σc, Σcy, Σcy², rows, Σ|x|¹⁶

x̄ is zero, or with site intercepts the block's mean weighted by c φ''. Nothing of a single block is in them but through
these sums. Everything is in double precision and in columns centred at μ.

The likelihood of Tweedie's family, 1 < p < 2, a Poisson number of Gamma amounts, takes one sum more:

    log f(y) = log Σ_j W_j − log y − φ(z, y)/s,       j = 1, 2, …, for y > 0;  −φ(z, 0)/s for y = 0

    log W_j = j·log t − log Γ(j + 1) − log Γ(aj),     a = (2 − p)/(p − 1),
    log t = a log y − a log(p − 1) − (1 + a) log s − log(2 − p)

with s the dispersion, divided by the weight of a row where weights are precisions. log W_j is concave, largest near
j* = y²⁻ᵖ/(s(2 − p)), where it bends like a normal density of variance j*/(1 + a). Far more terms than such a density
needs are not summed: every h-th is, h times, h at most a third of the standard deviation, which changes nothing that
double precision sees.

Reference: P. K. Dunn, G. K. Smyth, Statistics and Computing 15, 2005.

Shapes: m features (the intercept's ones last), r rows; v (m, 1), λ (m,), H (m, m), packed (m(m + 1)/2,).
Of the series: y, s (r,), terms (r, 2·REACH + 1).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from auqadmm.blocks.curvature import times
from auqadmm.blocks.exact_rows import BlockRows, DenseRows, with_offset
from auqadmm.blocks.rows import RowLoss
from auqadmm.core.reduce import B, Sums
from auqadmm.inference.families import family_of
from auqadmm.inference.size import size_terms
from auqadmm.inference.survival import hazards_of
from auqadmm.metrics.sums import pack
from auqadmm.problem.cox import Cox
from auqadmm.problem.families import NegativeBinomial
from auqadmm.problem.made_of_losses import SiteIntercepts, best_intercepts, loss_of_rows, one_sided

if TYPE_CHECKING:
    from auqadmm.blocks.shard import Shard


SITE_RANK = 1e-9  # of the largest eigenvalue of a site's scaled information: what is below is zero
LARGEST_ENTRY = 1e18  # entries beyond this are cut before their 16th power
REACH = 64  # terms on either side of the largest
ROWS = 2**13  # whose terms are held at a time


@dataclass(frozen=True)
class StatisticsQuery:
    """All sums at v, given in centred columns. `frequency`: a row of weight w counts w times; `whole`: with matrices,
    else only the diagonals of H and J."""

    centre: Tensor | None
    frequency: bool = True
    whole: bool = True

    def __call__(self, shard: Shard, blocks: B, v: Tensor) -> tuple[B, Sums]:
        sums: Sums = {}
        for found in block_sums(shard, self.centre, v, self.frequency, self.whole):
            if not self.whole:
                sums = {name: sums[name] + x if name in sums else x for name, x in found.items()}
                continue
            H, G = found["H"], found["G"]
            site = SiteInformation.of(H)
            found |= {"C": torch.outer(G, G), "Q": site.form(G), "ranks": found["Q0"] + site.rank}
            found["sites"] = found.pop("Q0") + float(site.rank > 0)
            if "Gk" in found:
                found["Ck"] = torch.cat([G, found["Gk"][None]]) * found["Gk"]
            for name, x in found.items():
                sums[name] = sums[name] + x if name in sums else x
        squares = ("H", "J", "R", "C") if self.whole else ()
        return blocks, {name: pack(x[None])[0] if name in squares else x for name, x in sums.items()}


@dataclass(frozen=True)
class SitesQuery:
    """The one-step estimates of every block and their standard errors, (B, 2, m): v − H_j⁺λ_j, NaN where the block's
    rows do not determine them. `turn` (m, m): from centred columns to the user's."""

    centre: Tensor | None
    turn: Tensor
    v: Tensor

    def __call__(self, shard: Shard, blocks: object) -> Tensor:
        out, turn = [], self.turn.to(shard.device)
        v = self.v.to(shard.device)
        for found in block_sums(shard, self.centre, v):
            site = SiteInformation.of(found["H"])
            out.append(torch.stack(site.estimates(v[:, 0], found["G"], turn)))
        return torch.stack(out)


@dataclass(frozen=True)
class NullSlopesQuery:
    """Σcφ, Σcφ' and Σcφ'' of a model that is a constant, where rows have offsets; of the sites whose rows count."""

    def __call__(self, shard: Shard, blocks: B, constant: Tensor) -> tuple[B, Sums]:
        loss = loss_of_rows(shard.loss)
        total, rows = torch.zeros(3, dtype=torch.float64, device=shard.device), BlockRows(shard)
        idle = one_sided(loss, shard) if loss is not shard.loss else None
        for j in range(shard.blocks):
            if idle is not None and bool(idle[j]):  # its own intercept has no end: the deviance leaves it out too
                continue
            for _, part in rows.chunks(j):
                c = part.c * scale_of(shard)
                z = with_offset(part, constant.to(c).expand(len(c), 1))
                s = loss.prepare(z)
                parts = loss.row_value(z, part.y), loss.row_slope(s, part.y)[:, 0]
                bend = loss.row_curvature(s, part.y).diagonal()[:, 0]
                total = total + torch.stack([times(c, x).sum() for x in (*parts, bend)])
        return blocks, {"null": total}


def scale_of(shard: Shard) -> float:
    """What turns the weights of rows back into sample weights."""
    return 1.0 if shard.loss.reduction == "sum" else shard.census.weight_total


def block_sums(
    shard: Shard, centre: Tensor | None, v: Tensor, frequency: bool = True, whole: bool = True
) -> Iterator[Sums]:
    """The sums of one block after the other, at v."""
    if isinstance(shard.loss, Cox):
        yield from (block.sums() for block in hazards_of(shard, v.to(shard.device)))
    else:
        yield from (block(whole) for block in blocks_at(shard, centre, v, frequency))


def blocks_at(shard: Shard, centre: Tensor | None, v: Tensor, frequency: bool) -> Iterator[BlockAt]:
    """One block after the other, at v."""
    centre = None if centre is None else centre.to(shard.device)
    v, rows = v.to(shard.device), BlockRows(shard, centre)
    loss = shard.loss
    profile = isinstance(loss, SiteIntercepts)
    inner = loss_of_rows(loss)
    assert isinstance(inner, RowLoss)
    b = idle = None
    if profile:
        z = torch.zeros(shard.design.rows, 1, dtype=torch.float64, device=shard.device)
        for j in range(shard.blocks):
            for some, part in rows.chunks(j):
                z[some] = with_offset(part, part.forward(v))
        idle, b = one_sided(inner, shard), best_intercepts(inner, shard, z)
    for j in range(shard.blocks):
        yield BlockAt(
            shard, inner, rows, j, v, frequency, None if b is None else b[j], idle is not None and bool(idle[j])
        )


@dataclass(frozen=True, eq=False)
class BlockAt:
    """One block at v; `b`: its own intercept, `idle`: it has none that is finite, and says nothing."""

    shard: Shard
    loss: RowLoss
    rows: BlockRows
    j: int
    v: Tensor
    frequency: bool
    b: Tensor | None
    idle: bool

    def __call__(self, whole: bool = True) -> Sums:
        m, loss, family = len(self.v), self.loss, family_of(self.loss)
        new = self.v.new_zeros
        names = ("weight", "y", "yy", "rows", "f", "infimum", "pearson", "constant", "log_weights", "offset", "Q0")
        sums: Sums = {name: new(()) for name in names} | {name: new(m) for name in ("G", "far", "xx")}
        shape = (m, m) if whole else (m,)
        sums |= {"H": new(shape), "own": new(())} | ({"R": new(shape)} if whole else {})
        expected = family is not None and not family.canonical
        if expected:
            sums["J"] = new(shape)
        size = loss.k if isinstance(loss, NegativeBinomial) else None
        if size is not None:
            sums |= {"Gk": new(()), "Hk": new(m + 1), "Rk": new(m + 1)}
        if self.idle:
            return sums
        middle, middles, drift = self._middles(expected)
        for _, part in self.rows.chunks(self.j, middle):
            y, c, z, s, h, w = self._at(part, middle, expected)
            slope = loss.row_slope(s, y)[:, 0]
            sums["rows"] += (c > 0).sum()
            for name, x in (
                ("y", y),
                ("yy", y.square()),
                ("f", loss.row_value(z, y)),
                ("infimum", loss.row_infimum(y)),
            ):
                sums[name] += times(c, x).sum()
            sums["weight"] += c.sum()
            sums["log_weights"] += torch.where(c > 0, c, 1.0).log().sum()
            if part.o is not None:
                sums["offset"] += times(c, part.o).sum()
            if family is not None:
                sums["pearson"] += times(c, family.pearson(loss, z[:, 0], y)).sum()
                sums["constant"] += family.constant(loss, y, c).sum()
            A = part.A - middles[0]
            sums["G"] += part.A.mT @ times(c, slope)  # slopes add up to zero where rows are shifted
            sums["H"] += _squares(A, times(c, h), whole)
            if whole:
                sums["R"] += _squares(A, times(c if self.frequency else c * c, slope.square()), whole)
            if size is not None:
                own, bend, cross = size_terms(size, z[:, 0], y)
                shifted = own - drift * slope
                square = times(c if self.frequency else c * c, shifted)
                sums["Gk"] += times(c, own).sum()
                sums["Hk"] += torch.cat([A.mT @ times(c, cross), times(c, bend - drift * cross).sum()[None]])
                sums["Rk"] += torch.cat([A.mT @ (square * slope), (square @ shifted)[None]])
            if w is not None:
                sums["J"] += _squares(part.A - middles[1], times(c, w), whole)
            sums["far"] += times(c.sign(), part.A.abs().clamp(max=LARGEST_ENTRY).pow(16)).sum(0)
            raw = part.A if middle is None else part.A + middle
            raw = raw if self.rows.centre is None else raw + self.rows.centre
            sums["xx"] += raw.square().mT @ times(c, h)
        sums["own"] += float(self.b is not None and float(sums["weight"]) > 0)
        return sums

    def products(self, P: Tensor, expected: bool) -> Tensor:
        """HP, or JP, for directions P (m, k)."""
        out = torch.zeros_like(P)
        if self.idle:
            return out
        middle, middles, _ = self._middles(expected)
        for _, part in self.rows.chunks(self.j, middle):
            _, c, _, _, h, w = self._at(part, middle, expected)
            A, bend = (part.A - middles[0], h) if w is None else (part.A - middles[1], w)
            out += A.mT @ (times(c, bend)[:, None] * (A @ P))
        return out

    def _at(self, part: DenseRows, middle: Tensor | None, expected: bool) -> tuple[Any, ...]:
        """Targets, weights, logits, what the loss prepares, φ'' and its expectation."""
        y, c = part.y, part.c * scale_of(self.shard)
        z = with_offset(part, part.forward(self.v))
        if middle is not None:
            z = z + middle @ self.v
        if self.b is not None:
            z = z + self.b
        s = self.loss.prepare(z)
        family = family_of(self.loss)
        w = family.expected(self.loss, z[:, 0], y) if expected and family is not None else None
        return y, c, z, s, self.loss.row_curvature(s, y).diagonal()[:, 0], w

    def _middles(self, expected: bool) -> tuple[Tensor | None, list[Tensor | float], Tensor | float]:
        """With an intercept of the block's own: the mean of its rows, the weighted means relative to that, and
        −∂b/∂k of the negative binomial."""
        if self.b is None:
            return None, [0.0, 0.0], 0.0
        m = len(self.v)
        total, weight = self.v.new_zeros(m), self.v.new_zeros(())
        for _, part in self.rows.chunks(self.j):
            total, weight = total + part.A.mT @ part.c, weight + part.c.sum()
        if not float(weight) > 0:
            return None, [0.0, 0.0], 0.0
        middle = total / weight
        tops, bottoms = [self.v.new_zeros(m) for _ in range(2)], [self.v.new_zeros(()) for _ in range(2)]
        drift = self.v.new_zeros(())
        for _, part in self.rows.chunks(self.j, middle):
            y, c, z, _, h, w = self._at(part, middle, expected)
            for k, x in enumerate((h, w)):
                if x is not None:
                    tops[k], bottoms[k] = tops[k] + part.A.mT @ times(c, x), bottoms[k] + times(c, x).sum()
            if isinstance(self.loss, NegativeBinomial):
                drift = drift + times(c, size_terms(self.loss.k, z[:, 0], y)[2]).sum()
        bottoms = [bottom.clamp(min=1e-300) for bottom in bottoms]
        return middle, [top / bottom for top, bottom in zip(tops, bottoms, strict=True)], drift / bottoms[0]


def _squares(A: Tensor, weight: Tensor, whole: bool) -> Tensor:
    """Σ w a aᵀ over rows a, or its diagonal."""
    return A.mT @ (weight[:, None] * A) if whole else A.square().mT @ weight


@dataclass(frozen=True)
class SiteInformation:
    """H_j by its eigenvectors, in unknowns scaled by the root of its diagonal: s (m,), basis (m, rank), e (rank,)."""

    s: Tensor
    basis: Tensor
    others: Tensor
    e: Tensor

    @classmethod
    def of(cls, H: Tensor) -> SiteInformation:
        d = H.diagonal()
        s = torch.where(d > 0, d, 1.0).sqrt()
        e, U = torch.linalg.eigh(H / s / s[:, None])
        kept = e > SITE_RANK * e.amax().clamp(min=1e-300)
        return cls(s, U[:, kept], U[:, ~kept], e[kept])

    @property
    def rank(self) -> int:
        return len(self.e)

    def form(self, G: Tensor) -> Tensor:
        """GᵀH⁺G, G in the range of H."""
        return ((self.basis.mT @ (G / self.s)).square() / self.e).sum()

    def estimates(self, v: Tensor, G: Tensor, turn: Tensor) -> tuple[Tensor, Tensor]:
        """`turn`(v − H⁺G) and the standard errors; NaN where they are not determined."""
        step = self.basis @ ((self.basis.mT @ (G / self.s)) / self.e) / self.s
        sides = turn / self.s
        error = ((sides @ self.basis).square() / self.e).sum(1).sqrt()
        size = torch.linalg.vector_norm(sides, dim=1).clamp(min=1e-300)
        unknown = torch.linalg.vector_norm(sides @ self.others, dim=1) > 1e-6 * size
        return tuple(torch.where(unknown, torch.nan, x) for x in (turn @ (v - step), error))  # type: ignore[return-value]


@dataclass(frozen=True)
class SeriesQuery:
    """Σ log ΣW_j − log y over all rows, for the dispersion that is sent."""

    frequency: bool

    def __call__(self, shard: Shard, blocks: B, dispersion: Tensor) -> tuple[B, Sums]:
        loss, rows = loss_of_rows(shard.loss), BlockRows(shard)
        total = torch.zeros((), dtype=torch.float64, device=shard.device)
        idle = one_sided(loss, shard) if loss is not shard.loss else None
        for j in range(shard.blocks):
            if idle is not None and bool(idle[j]):
                continue
            for _, part in rows.chunks(j):
                c = part.c * scale_of(shard)
                s = dispersion.to(c).expand(len(c))
                for some in torch.arange(len(c), device=c.device).split(ROWS):
                    C, y = c[some], part.y[some]
                    if self.frequency:
                        total = total + times(C, log_series(y, s[some], loss.power)).sum()
                    else:
                        each = log_series(y, s[some] / torch.where(C > 0, C, 1.0), loss.power)
                        total = total + times(C.sign(), each).sum()
        return blocks, {"series": total}


def log_series(y: Tensor, s: Tensor, p: float) -> Tensor:
    """log ΣW_j − log y of every row; 0 where y is."""
    a = (2 - p) / (p - 1)
    some = torch.where(y > 0, y, 1.0)
    log_t = a * some.log() - a * torch.log(s.new_tensor(p - 1)) - (1 + a) * s.log() - torch.log(s.new_tensor(2 - p))
    top = some.pow(2 - p) / (s * (2 - p))
    h = ((top / (1 + a)).sqrt() / 3).floor().clamp(min=1)
    first = (top.round() - REACH * h).clamp(min=1)
    j = first[:, None] + h[:, None] * torch.arange(2 * REACH + 1, dtype=y.dtype, device=y.device)
    terms = j * log_t[:, None] - torch.lgamma(j + 1) - torch.lgamma(a * j)
    return torch.where(y > 0, torch.logsumexp(terms, 1) + h.log() - some.log(), 0.0)
