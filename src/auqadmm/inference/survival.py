"""The sums of Cox's model, block by block: information, residuals of scores, concordance, trends in time, hazards.

    H      Σ_s ω_s Σ_k p_ks (x_k − x̄_s)(x_k − x̄_s)ᵀ                           p, x̄, ω: problem/cox.py
    U_i    c_i δ_i (x_i − x̄ at its time) − Σ_s ω_s p_is (x_i − x̄_s)            a row's score, dfbeta = H⁻¹U_i
    R      Σ_i U_i U_iᵀ                                                       weights squared, as R's coxph has it

Concordance: of two rows, has the one with the earlier event the larger risk score? A pair counts if both
belong to the same group, one has an event at t, and the other is at risk then without one: it entered before t and has
its time after t, or is censored at t. Tied scores count half. O(n log n): scores are compared bit by bit of their
ranks, all pairs of a bit at once.

Does a coefficient change with time, β + θ g(t)? The score test of θ = 0 (that of cox.zph in R's survival since 3.0)
takes u = Σ g (x − x̄), Σ g V and Σ g² V beside H = Σ V, summed over events: no residual leaves a site.

    β + θ g(t),  θ = 0:    uᵀ(Σg²V − ΣgV H⁻¹ ΣgV)⁻¹u, u = Σ g (x − x̄)

Shapes: n rows of a block in the order of its risk sets, T event times, s slots, m features; A (n, m), g (T,).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from auqadmm.blocks.exact_rows import BlockRows
from auqadmm.core.reduce import B, Sums
from auqadmm.errors import AuqadmmError, InputError
from auqadmm.metrics.sums import pack, unpack
from auqadmm.problem.cox import Cox
from auqadmm.problem.risk_sets import ENTRY, EVENT, STRATUM, TIME, AtRisk, RiskSets

if TYPE_CHECKING:
    import pandas as pd

    from auqadmm.blocks.shard import Shard
    from auqadmm.core.reduce import Reduce
LARGEST_POWER = 16
TRANSFORMS = ("km", "rank", "identity", "log")
_LABELS = {
    "identity": "time",
    "log": "log(time)",
    "km": "1 − Kaplan–Meier of each stratum",
    "rank": "the rank of time in each stratum",
}


@dataclass(frozen=True)
class PairCounts:
    """Weights of pairs that agree, that disagree, and whose scores are equal: weight times weight, summed."""

    concordant: float
    discordant: float
    tied: float

    @property
    def index(self) -> float:
        """The share of pairs that agree, ties by half; NaN without any pair."""
        total = self.concordant + self.discordant + self.tied
        return float((self.concordant + 0.5 * self.tied) / total) if total > 0 else float("nan")


def pairs(
    score: np.ndarray, time: np.ndarray, event: np.ndarray, entry: np.ndarray, group: np.ndarray, weight: np.ndarray
) -> PairCounts:
    """The pairs within groups; `entry` is not above 0 for rows that are at risk from the beginning."""
    values, rank = np.unique(time, return_inverse=True)
    score_rank = np.unique(score, return_inverse=True)[1]
    dead = np.flatnonzero(event > 0)
    asked = 2 * rank[dead], group[dead], score_rank[dead]
    # at risk at t: the key of time is above that of t, the key of entry is not
    lower, equal, above = _beyond(2 * rank + (event <= 0), group, score_rank, weight, *asked)
    if (entry > 0).any():
        entered = 2 * np.searchsorted(values, entry, "right")
        late = _beyond(entered, group, score_rank, weight, *asked)
        lower, equal, above = lower - late[0], equal - late[1], above - late[2]
    sums = (float(weight[dead] @ x) for x in (lower, above - lower - equal, equal))
    return PairCounts(*sums)


def _beyond(
    key: np.ndarray,
    group: np.ndarray,
    rank: np.ndarray,
    weight: np.ndarray,
    asked: np.ndarray,
    asked_group: np.ndarray,
    asked_rank: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of every question: the weight of rows of its group with a larger key, of lower rank, of equal rank, of any."""
    q = len(asked)
    is_row = np.r_[np.zeros(q, dtype=bool), np.ones(len(key), dtype=bool)]
    k, g, r = np.r_[asked, key], np.r_[asked_group, group], np.r_[asked_rank, rank]
    w = np.r_[np.zeros(q), weight]
    order = np.lexsort((is_row, -k, g))  # of equal keys questions come first: rows with the same key do not count
    lower, equal, above = np.zeros(len(k)), np.zeros(len(k)), np.zeros(len(k))
    above[order] = _before(w[order], g[order])
    same = order[np.lexsort((r[order], g[order]))]
    equal[same] = _before(w[same], g[same], r[same])
    for bit in reversed(range(int(r.max(initial=0)).bit_length())):
        node = r[order] >> (bit + 1)
        order = order[np.argsort(node, kind="stable")]
        node, right = r[order] >> (bit + 1), (r[order] >> bit) & 1 == 1
        lower[order] += np.where(right, _before(np.where(right, 0.0, w[order]), node, g[order]), 0.0)
    return lower[:q], equal[:q], above[:q]


def _before(w: np.ndarray, *keys: np.ndarray) -> np.ndarray:
    """The sum of w before each place in its run of equal keys."""
    if not len(w):
        return np.zeros(0)
    new = np.ones(len(w), dtype=bool)
    new[1:] = False
    for key in keys:
        new[1:] |= key[1:] != key[:-1]
    total = np.r_[0.0, np.cumsum(w)[:-1]]
    starts = np.flatnonzero(new)
    return total - np.repeat(total[starts], np.diff(np.r_[starts, len(w)]))


@dataclass(frozen=True, eq=False)
class Hazards:
    """One block at v: rows less the mean of their stratum A, as given `raw`, and y (n, 4)."""

    sets: RiskSets
    A: Tensor
    raw: Tensor
    y: Tensor
    offset: Tensor
    v: Tensor

    @cached_property
    def at(self) -> AtRisk:
        return self.sets.at(self.score)

    @cached_property
    def score(self) -> Tensor:
        """Logits, but for a constant of each stratum; the same to the last bit for the same row."""
        return (self.A * self.v[:, 0]).sum(1) + self.offset

    @cached_property
    def means(self) -> Tensor:
        """x̄ of every slot, (s, m)."""
        return self.at.means(self.A)

    def information(self, g: Tensor | None = None) -> Tensor:
        """Σ g V over events, (m, m); g of every event time."""
        mass = self._mass(g)
        expected = self.at.spread(mass[:, None])
        return self.A.mT @ (expected * self.A) - self.means.mT @ (mass[:, None] * self.means)

    def trend(self, g: Tensor) -> Tensor:
        """Σ g (x − x̄) over events, (m,)."""
        tied = self.sets.tied
        seen = self.sets.event.clone()
        seen[tied.source] = seen[tied.source] * g[tied.target]
        return self.A.mT @ seen - self.means.mT @ self._mass(g)

    def _mass(self, g: Tensor | None) -> Tensor:
        return self.sets.mass if g is None else self.sets.mass * g[self.sets.slot_time]

    def scores(self) -> Tensor:
        """U_i of every row, (n, m)."""
        s, T = self.sets, len(self.sets.time)
        slots = torch.bincount(s.slot_time, minlength=T).to(self.A)[:, None]
        mean = torch.zeros(T, self.A.shape[1]).to(self.A).index_add(0, s.slot_time, self.means) / slots
        U = self.at.spread(s.mass[:, None] * self.means) - self.at.residual[:, None] * self.A
        dead = s.tied.source
        return U.index_add(0, dead, s.event[dead, None] * mean[s.tied.target], alpha=-1)

    def minus_log_likelihood(self, at: AtRisk) -> Tensor:
        return (self.sets.mass * at.log_sums).sum() - (self.sets.event * at.z).sum()

    def pairs(self) -> PairCounts:
        y = self.y.cpu().numpy()
        score, group, weight = (x.cpu().numpy() for x in (self.score, self.sets.group, self.sets.weight))
        return pairs(score, y[:, TIME], y[:, EVENT], y[:, ENTRY], group, weight)

    def sums(self) -> Sums:
        """As those of other families (`sums`); rows count once, whatever their weight."""
        new, n = self.v.new_zeros, len(self.A)
        names = ("y", "yy", "infimum", "pearson", "constant", "log_weights", "offset", "Q0", "own")
        sums: Sums = {name: new(()) for name in names}
        sums |= {"weight": new(()) + n, "rows": new(()) + n, "events": new(()) + len(self.sets.tied.source)}
        found = self.pairs()
        sums |= {name: new(()) + x for name, x in vars(found).items()}
        U = self.scores()
        sums |= {"f": self.minus_log_likelihood(self.at), "null": self.minus_log_likelihood(self.sets.at(self.offset))}
        sums |= {"H": self.information(), "R": U.mT @ U, "G": self.A.mT @ self.at.residual}
        sums["far"] = self.A.abs().pow(LARGEST_POWER).sum(0)
        sums["xx"] = self.raw.square().mT @ self.at.expected
        return sums

    # ------------------------------------------------------------------ time
    def transformed(self, how: str) -> Tensor:
        """g of every event time, (T,); "km" and "rank" within the stratum."""
        s, time = self.sets, self.sets.time
        if how in ("identity", "log"):
            return time if how == "identity" else time.log()
        group, out = s.time_group.cpu().numpy(), np.zeros(len(time))
        t, rows, of = time.cpu().numpy(), self.y[:, TIME].cpu().numpy(), s.group.cpu().numpy()
        once = s.at(-s.log_weight)  # every row counts once
        dead, others = once.dead.exp(), once.rest.exp()
        stay = (others / (others + dead)).cpu().numpy()
        for g in np.unique(group):
            here, among = group == g, np.sort(rows[of == g])
            if how == "km":
                out[here] = 1 - np.r_[1.0, np.cumprod(stay[here])[:-1]]
            else:
                low, high = (np.searchsorted(among, t[here], side) for side in ("left", "right"))
                out[here] = (low + high + 1) / (2 * len(among))
        return torch.from_numpy(out).to(time)

    def cumulative(self, grid: np.ndarray, strata: np.ndarray) -> np.ndarray:
        """The baseline's cumulative hazard, of every stratum at every time of the grid; NaN for strata without rows."""
        s = self.sets
        at = s.at((self.raw * self.v[:, 0]).sum(1) + self.offset)
        steps = s.mass.new_zeros(len(s.time)).index_add(0, s.slot_time, s.mass * torch.exp(-at.log_sums))
        jumps, time, group = (x.cpu().numpy() for x in (steps, s.time, s.time_group))
        own = np.zeros(s.groups)
        own[s.group.cpu().numpy()] = self.y[:, STRATUM].cpu().numpy()
        out = np.full((len(strata), len(grid)), np.nan)
        for number, stratum in enumerate(own):
            here = group == number
            total = np.r_[0.0, np.cumsum(jumps[here])]
            out[strata == stratum] = total[np.searchsorted(time[here], grid, "right")]
        return out


def hazards_of(shard: Shard, v: Tensor) -> Iterator[Hazards]:
    """One block after the other, in double precision."""
    loss, m = shard.loss, shard.design.features
    assert isinstance(loss, Cox)
    rows, v = BlockRows(shard), v.to(shard.device, torch.float64)
    scale = 1.0 if loss.reduction == "sum" else shard.census.weight_total
    for j in range(shard.blocks):
        parts = [part for _, part in rows.chunks(j)]
        A = torch.cat([part.A for part in parts]) if parts else v.new_zeros(0, m)
        y, c = (torch.cat([getattr(part, x) for part in parts]) if parts else None for x in ("y", "c"))
        y, c = (v.new_zeros(0, 4), v.new_zeros(0)) if y is None or c is None else (y, c * scale)
        o = torch.cat([part.o for part in parts if part.o is not None]) if shard.offset is not None and parts else None
        block = torch.zeros(len(y), dtype=torch.int64, device=y.device)
        sets = RiskSets.of(y, c, block, 1.0, loss.ties == "efron", torch.float64)
        raw = A[sets.rows]
        offset = v.new_zeros(len(raw)) if o is None else o[sets.rows]
        yield Hazards(sets, sets.centred(raw) if len(raw) else raw, raw, y[sets.rows], offset, v)


# ---------------------------------------------------------------------- maps over blocks
@dataclass(frozen=True)
class TrendQuery:
    """H, Σ g V, Σ g² V and u of all blocks."""

    transform: str

    def __call__(self, shard: Shard, blocks: B, v: Tensor) -> tuple[B, Sums]:
        m = len(v)
        sums: Sums = {name: v.new_zeros(m, m) for name in ("H", "gH", "ggH")} | {"u": v.new_zeros(m)}
        for block in hazards_of(shard, v):
            if len(block.sets.time):
                g = block.transformed(self.transform)
                more = {"H": block.information(), "gH": block.information(g), "ggH": block.information(g * g)}
                more["u"] = block.trend(g)
                sums = {name: x + more[name].to(x) for name, x in sums.items()}
        return blocks, {name: x if name == "u" else pack(x[None])[0] for name, x in sums.items()}


@dataclass(frozen=True)
class PairsQuery:
    """Pairs that agree, disagree, and are tied, of every block, (B, 3)."""

    v: Tensor

    def __call__(self, shard: Shard, blocks: object) -> Tensor:
        found = [block.pairs() for block in hazards_of(shard, self.v)]
        return torch.tensor([[x.concordant, x.discordant, x.tied] for x in found], dtype=torch.float64)


@dataclass(frozen=True, eq=False)
class BaselineQuery:
    """Cumulative hazards of every block, (B, strata, times)."""

    v: Tensor
    grid: np.ndarray
    strata: np.ndarray

    def __call__(self, shard: Shard, blocks: object) -> Tensor:
        found = [block.cumulative(self.grid, self.strata) for block in hazards_of(shard, self.v)]
        return torch.from_numpy(np.stack(found))


@dataclass(frozen=True, eq=False)
class ProportionalHazards:
    """Score tests of a trend in time, one for each coefficient, then one for all together.

    Parameters
    ----------
    names
        Of the coefficients, and "GLOBAL".
    statistic, df, p
        χ² statistics, degrees of freedom, and probabilities of larger ones where hazards are proportional.
    transform
        Which function of time: "identity" and "log" are the same everywhere, "km" and "rank" are those of each stratum.

    Examples
    --------
    >>> import numpy as np
    >>> import auqadmm as aq
    >>> rng = np.random.default_rng(0)
    >>> X, time = rng.normal(size=(80, 1)), rng.exponential(size=80)
    >>> model = aq.ConsensusCox().fit(X, (time, np.ones(80)), sites=np.arange(80) % 2)
    >>> test = model.ph_test("identity")
    >>> test.names, test.df.tolist()
    (('x0', 'GLOBAL'), [1.0, 1.0])
    """

    names: tuple[str, ...]
    statistic: np.ndarray
    df: np.ndarray
    p: np.ndarray
    transform: str

    @property
    def table(self) -> pd.DataFrame:
        """chisq, df and p of every coefficient and of all: a pandas data frame."""
        try:
            import pandas
        except ModuleNotFoundError:
            raise AuqadmmError("Tables need pandas: pip install pandas; `statistic` and `p` do without.") from None
        return pandas.DataFrame({"chisq": self.statistic, "df": self.df, "p": self.p}, index=list(self.names))

    def __repr__(self) -> str:
        wide = max(len(name) for name in self.names)
        lines = [f"Proportional hazards, score tests of a trend in {_LABELS[self.transform]}", ""]
        lines.append(" " * wide + "     chisq   df        p")
        for name, x, df, p in zip(self.names, self.statistic, self.df, self.p, strict=True):
            lines.append(f"{name.ljust(wide)}{x:10.4f}{df:5g}{p:9.3g}")
        return "\n".join(lines)


def proportional_hazards(reduce: Reduce, v: Tensor, transform: str, names: tuple[str, ...]) -> ProportionalHazards:
    """The tests at v: one round."""
    from scipy import stats

    if transform not in TRANSFORMS:
        raise InputError(f"transform must be 'km', 'rank', 'identity' or 'log', got {transform!r}.")
    v = v.to(torch.float64)
    sums = reduce.judging(TrendQuery(transform), v, (v,))
    H, gH, ggH = (unpack(sums[name][None].cpu())[0].numpy() for name in ("H", "gH", "ggH"))
    u = sums["u"].cpu().numpy()
    d = np.sqrt(np.diag(H))
    if not (d > 0).all() or np.linalg.eigvalsh(H / d / d[:, None])[0] < 1e-12:
        raise InputError("Columns are collinear or constant at all events: their trends in time cannot be tested.")
    left = ggH - gH @ np.linalg.solve(H, gH)
    spread = np.diag(left)
    if not (spread > 1e-10 * np.diag(ggH)).all() or np.linalg.matrix_rank(left) < len(u):
        raise InputError("There are too few event times to test a trend of every coefficient in time.")
    statistic = np.append(u * u / spread, u @ np.linalg.solve(left, u))
    df = np.append(np.ones(len(u)), float(len(u)))
    return ProportionalHazards((*names, "GLOBAL"), statistic, df, stats.chi2.sf(statistic, df), transform)
