"""Who is at risk when: sums over risk sets and their adjoints, for all blocks of a process at once.

Row k is at risk at the event time t of its group (its block, and its stratum there) if entry_k < t ≤ time_k. Its event
times are therefore an interval of the sorted event times of all groups, and an interval is a few nodes of a binary tree
above them: rows → intervals that differ → nodes → event times. Each arrow takes averages weighted by e^z, with shares
e^{a − b} of what is collected (a a part, b = log Σ e^a), all in [0, 1]: nothing is subtracted, nothing overflows, and
risk sets of very different size do not disturb each other. O(n log n), no loop over rows or times.

The d rows that have their events at t are kept apart from the others at risk, because ties take a share of them away:

    log S_s = log(e^{rest_t} + (1 − l/d) e^{tied_t})      slots s: Breslow l = 0 once, weight Σc; Efron l = 0 … d − 1,
                                                         weight Σc/d each

Shapes: n rows of positive weight, T event times, s slots, k columns; z, c (n,), x (n, k).
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from auqadmm.blocks.design import with_values

TIME, EVENT, ENTRY, STRATUM = range(4)


@dataclass(frozen=True, eq=False)
class Collection:
    """Each target collects some sources, pair by pair: `source`, `target` (pairs,), sorted by target.

    `turn` sorts the pairs by source.
    """

    source: Tensor
    target: Tensor
    turn: Tensor
    sources: int
    targets: int

    @classmethod
    def of(cls, source: np.ndarray, target: np.ndarray, sources: int, targets: int) -> Collection:
        order = np.lexsort((source, target))
        source, target = source[order], target[order]
        turn = np.argsort(source, kind="stable")
        index = [torch.from_numpy(x.astype(np.int64)) for x in (source, target, turn)]
        return cls(index[0], index[1], index[2], sources, targets)

    def to(self, device: torch.device) -> Collection:
        return replace(self, source=self.source.to(device), target=self.target.to(device), turn=self.turn.to(device))

    @cached_property
    def lengths(self) -> Tensor:
        return torch.bincount(self.target, minlength=self.targets)

    def log_sums(self, a: Tensor) -> Tensor:
        """log Σ e^a over the sources of each target, (targets,); −∞ where there are none."""
        x = a[self.source]
        top = torch.segment_reduce(x, "max", lengths=self.lengths, unsafe=True, initial=-torch.inf)
        level = torch.where(top.isfinite(), top, 0.0)
        return (
            torch.segment_reduce(torch.exp(x - level[self.target]), "sum", lengths=self.lengths, unsafe=True).log()
            + level
        )

    def averages(self, a: Tensor, b: Tensor) -> Averages:
        """Means over the sources, weighted by e^a; b = log Σ e^a."""
        return Averages(self, torch.exp(a[self.source] - b[self.target]))

    @cached_property
    def forward(self) -> Tensor:
        """The pairs as a sparse matrix, (targets, sources)."""
        return _pattern(self.lengths, self.source, (self.targets, self.sources))

    @cached_property
    def backward(self) -> Tensor:
        """Its transpose."""
        lengths = torch.bincount(self.source, minlength=self.sources)
        return _pattern(lengths, self.target[self.turn], (self.sources, self.targets))


@dataclass(frozen=True, eq=False)
class Averages:
    """Shares (pairs,) of a collection, as a linear map and its transpose."""

    of: Collection
    shares: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """(sources, k) → (targets, k); 0 where nothing is collected."""
        return _product(self.of.forward, self.shares, x)

    def adjoint(self, y: Tensor) -> Tensor:
        """(targets, k) → (sources, k)."""
        return _product(self.of.backward, self.shares[self.of.turn], y)


def _pattern(lengths: Tensor, index: Tensor, shape: tuple[int, int]) -> Tensor:
    ends = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]).to(torch.int32)
    with warnings.catch_warnings():  # torch announces that its CSR layout is in beta
        warnings.simplefilter("ignore", UserWarning)
        return torch.sparse_csr_tensor(ends, index.to(torch.int32), torch.zeros(len(index)).to(index.device), shape)


def _product(pattern: Tensor, values: Tensor, x: Tensor) -> Tensor:
    if not len(values) or not x.shape[1]:
        return x.new_zeros(pattern.shape[0], x.shape[1])
    return with_values(pattern, values) @ x


@dataclass(frozen=True, eq=False)
class RiskSets:
    """The rows of positive weight, and which of them are at risk at which event.

    `rows` (n,): their flat positions, `block` (n,); group after group, of the `sizes` (G,). `weight`, `event` (n,): c,
    and c of rows with an event, else 0; `log_weight` of c times what makes it a sample weight. `time` (T,): the event
    times; `slot_time` (s,): which of them a slot belongs to, `slot_block` its block, `left` log(1 − l/d), `mass` (s,).
    """

    rows: Tensor
    block: Tensor
    sizes: Tensor
    weight: Tensor
    event: Tensor
    log_weight: Tensor
    steps: tuple[Collection, ...]
    tied: Collection
    time: Tensor
    time_group: Tensor
    slot_time: Tensor
    slot_block: Tensor
    left: Tensor
    mass: Tensor

    @classmethod
    def of(
        cls, target: Tensor, weight: Tensor, block: Tensor, scale: Tensor | float, efron: bool, dtype: torch.dtype
    ) -> RiskSets:
        """Of flat rows: target (R, 4) with time, event, entry and stratum; weight, block (R,). `scale`, a number or
        (R,): times the weight, the weight of a row beside others."""
        y, c, j = (x.detach().cpu().numpy() for x in (target, weight.double(), block))
        kept = np.flatnonzero(c > 0)
        order = kept[np.lexsort((y[kept, TIME], y[kept, STRATUM], j[kept]))]
        y, c, j = y[order], c[order], j[order]
        group = _numbered(j, y[:, STRATUM])
        time, entry, event = y[:, TIME], y[:, ENTRY], y[:, EVENT] > 0
        values = np.unique(time[event])
        base = group * (len(values) + 1)
        keys, tie = np.unique(base[event] + np.searchsorted(values, time[event]), return_inverse=True)
        T, n = len(keys), len(order)
        first, last = (np.searchsorted(keys, base + np.searchsorted(values, x, "right")) for x in (entry, time))
        steps = _steps(first, last - event, T)
        deaths = np.flatnonzero(event)
        counts = np.bincount(tie, minlength=T)
        total = np.bincount(tie, weights=c[deaths], minlength=T)
        where = np.repeat(np.arange(T), counts) if efron else np.arange(T)
        place = np.arange(len(where)) - np.repeat(counts.cumsum() - counts, counts) if efron else np.zeros(T)
        of_group = np.zeros(int(group[-1]) + 1 if n else 0, dtype=np.int64)
        of_group[group] = j
        factor = scale.detach().cpu().double().numpy()[order] if isinstance(scale, Tensor) else scale
        device = target.device

        def real(x: np.ndarray) -> Tensor:
            return torch.from_numpy(np.asarray(x, dtype=np.float64)).to(device, dtype)

        def whole(x: np.ndarray) -> Tensor:
            return torch.from_numpy(np.asarray(x, dtype=np.int64)).to(device)

        return cls(
            rows=whole(order),
            block=whole(j),
            sizes=whole(np.bincount(group) if n else np.zeros(0)),
            weight=real(c),
            event=real(c * event),
            log_weight=real(np.log(c * factor)),
            steps=tuple(step.to(device) for step in steps),
            tied=Collection.of(deaths, tie, n, T).to(device),
            time=torch.from_numpy(values[keys % (len(values) + 1)]).to(device),
            time_group=whole(keys // (len(values) + 1)),
            slot_time=whole(where),
            slot_block=whole(of_group[keys // (len(values) + 1)][where]),
            left=real(np.log1p(-place / counts[where])),
            mass=real(total[where] / (counts[where] if efron else 1)),
        )

    @property
    def groups(self) -> int:
        return len(self.sizes)

    @cached_property
    def group(self) -> Tensor:
        """(n,): the group of each row."""
        return torch.arange(self.groups, device=self.rows.device).repeat_interleave(self.sizes)

    def centred(self, x: Tensor) -> Tensor:
        """x (n, k) less the mean of its group, which no average over a risk set notices."""
        mean = torch.segment_reduce(x.contiguous(), "mean", lengths=self.sizes, axis=0, unsafe=True)
        return x - mean.repeat_interleave(self.sizes, dim=0)

    def at(self, z: Tensor) -> AtRisk:
        """The risk sets weighted by c·e^z, z (n,)."""
        a = z + self.log_weight
        parts, b = [], a
        for step in self.steps:
            total = step.log_sums(b)
            parts.append(step.averages(b, total))
            b = total
        tied = self.tied.log_sums(a)
        return AtRisk(self, z, tuple(parts), self.tied.averages(a, tied), b, tied)


@dataclass(frozen=True, eq=False)
class AtRisk:
    """Risk sets at logits z (n,): `others`, `tied` average over those at risk without and with an event then; `rest`
    and `dead` (T,) are the logarithms of their sums."""

    sets: RiskSets
    z: Tensor
    others: tuple[Averages, ...]
    tied: Averages
    rest: Tensor
    dead: Tensor

    @cached_property
    def log_sums(self) -> Tensor:
        """log S of every slot, (s,)."""
        s = self.sets
        return torch.logaddexp(self.rest[s.slot_time], self.dead[s.slot_time] + s.left)

    @cached_property
    def _share(self) -> Tensor:
        """Of those without an event then, (s, 1)."""
        return torch.exp(self.rest[self.sets.slot_time] - self.log_sums)[:, None]

    def means(self, x: Tensor) -> Tensor:
        """The mean of x (n, k) over every slot's risk set, (s, k)."""
        others, t = x, self.sets.slot_time
        for step in self.others:
            others = step(others)
        return self._share * others[t] + (1 - self._share) * self.tied(x)[t]

    def spread(self, y: Tensor) -> Tensor:
        """The adjoint of `means`, (s, k) → (n, k)."""
        t, T = self.sets.slot_time, len(self.rest)
        others = y.new_zeros(T, y.shape[1]).index_add(0, t, self._share * y)
        tied = y.new_zeros(T, y.shape[1]).index_add(0, t, (1 - self._share) * y)
        for step in reversed(self.others):
            others = step.adjoint(others)
        return others + self.tied.adjoint(tied)

    @cached_property
    def expected(self) -> Tensor:
        """The events that each row was to have, (n,)."""
        return self.spread(self.sets.mass[:, None])[:, 0]

    @property
    def residual(self) -> Tensor:
        """Events expected less events seen, (n,): the slopes of minus the log-likelihood by z."""
        return self.expected - self.sets.event


def _numbered(*keys: np.ndarray) -> np.ndarray:
    """0, 1, … by runs of equal keys, which are sorted."""
    if not len(keys[0]):
        return np.zeros(0, dtype=np.int64)
    new = np.zeros(len(keys[0]), dtype=bool)
    for key in keys:
        new[1:] |= key[1:] != key[:-1]
    return new.cumsum()


def _steps(first: np.ndarray, last: np.ndarray, T: int) -> tuple[Collection, ...]:
    """Rows → intervals → nodes → times, for rows at risk at the times first … last − 1."""
    held = np.flatnonzero(first < last)
    codes, interval = np.unique(first[held] * (T + 1) + last[held], return_inverse=True)
    low, high = codes // (T + 1), codes % (T + 1)
    pairs, levels, begin, width = [], [], 0, T
    numbers = np.arange(len(codes))
    while (low < high).any():
        levels.append(begin)
        odd = (low < high) & (low % 2 == 1)
        pairs.append((numbers[odd], begin + low[odd]))
        low = low + odd
        odd = (low < high) & (high % 2 == 1)
        high = high - odd
        pairs.append((numbers[odd], begin + high[odd]))
        low, high, begin, width = low // 2, high // 2, begin + width, (width + 1) // 2
    source, node = (np.concatenate([p[i] for p in pairs]) if pairs else np.zeros(0, dtype=np.int64) for i in (0, 1))
    used, node = np.unique(node, return_inverse=True)
    number = np.full(begin + 1, -1)
    number[used] = np.arange(len(used))
    times = np.arange(T)
    above = [number[first_node + (times >> h)] for h, first_node in enumerate(levels)]
    found = [np.stack([nodes, times])[:, nodes >= 0] for nodes in above]
    up = np.concatenate(found, 1) if found else np.zeros((2, 0), dtype=np.int64)
    return (
        Collection.of(held, interval, len(first), len(codes)),
        Collection.of(source, node, len(codes), len(used)),
        Collection.of(up[0], up[1], len(used), T),
    )
