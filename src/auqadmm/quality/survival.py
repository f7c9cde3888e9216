"""The figures of Cox's models where their rows are: pairs of rows of one site, and events.

Pairs are of rows of the same site and stratum; of rows that were held out, only those of one fold, which the same model
judges.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from auqadmm.core.reduce import Reduce
from auqadmm.errors import InputError
from auqadmm.inference.concordance import PairCounts, pairs
from auqadmm.inference.survival import hazards_of
from auqadmm.problem.risk_sets import ENTRY, EVENT, TIME
from auqadmm.quality.folds import Folds
from auqadmm.quality.quality import Quality
from auqadmm.words import listed, short

if TYPE_CHECKING:
    from auqadmm.blocks.shard import Shard

NUMBERS = ("rows", "weight", "concordant", "discordant", "tied", "events")


@dataclass(frozen=True, eq=False)
class SurvivalQuery:
    """`NUMBERS` of every block, (B, 6), at the model v (m, 1), or with folds at v (F, m, 1)."""

    v: Tensor
    folds: Folds | None = None

    def __call__(self, shard: Shard, blocks: object) -> Tensor:
        several = self.v if self.folds is not None else self.v[None]
        out = torch.zeros(shard.blocks, len(NUMBERS), dtype=torch.float64)
        for k, v in enumerate(several):
            for j, at in enumerate(hazards_of(shard, v)):
                chosen = torch.ones(len(at.y), dtype=torch.bool, device=at.y.device)
                if self.folds is not None:
                    fold = torch.from_numpy(self.folds.of_block(shard.index[j], shard.rows[j]))
                    chosen = (fold == k).to(chosen.device)[at.sets.rows]
                y, w = at.y[chosen].cpu().numpy(), at.sets.weight[chosen].cpu().numpy()
                score, group = at.score[chosen].cpu().numpy(), at.sets.group[chosen].cpu().numpy()
                found = pairs(score, y[:, TIME], y[:, EVENT], y[:, ENTRY], group, w)
                own = [len(y), w.sum(), found.concordant, found.discordant, found.tied, (y[:, EVENT] > 0).sum()]
                out[j] += torch.tensor(own, dtype=torch.float64)
        return out


def survival_quality(reduce: Reduce, v: Tensor, sites: bool, folds: Folds | None, notes: tuple[str, ...]) -> Quality:
    """Of the model v (m, 1), or with folds of the models v (F, m, 1)."""
    if not bool(v.isfinite().all()):
        raise InputError("The model holds numbers that are not finite: it has no quality.")
    before = reduce.traffic.rounds, reduce.traffic.up
    each = reduce.gather(SurvivalQuery(v.to(torch.float64), folds), None).cpu().numpy()
    told = [dict(zip(NUMBERS, row.tolist(), strict=True)) for row in each]
    names = tuple(reduce.engine.names)
    whole = dict(zip(NUMBERS, each.sum(0).tolist(), strict=True))
    alone = [name for name, site in zip(short(names), told, strict=True) if _figures(site)["concordance"] is None]
    if sites and alone and len(alone) < len(names):
        notes = (*notes, f"No concordance of its own, for want of pairs that can be compared: {listed(alone, 4)}.")
    return Quality(
        figures=_figures(whole),
        rows=round(whole["rows"]),
        weight=whole["weight"],
        site_names=names if sites else (),
        site_figures=tuple({name: site[name] for name in ("rows", "weight")} | _figures(site) for site in told)
        if sites
        else (),
        by="" if folds is None else folds.words,
        notes=notes,
        rounds=reduce.traffic.rounds - before[0],
        numbers=(reduce.traffic.up - before[1]) // 8,
    )


def _figures(sums: dict[str, float]) -> dict[str, float | None]:
    index = PairCounts(sums["concordant"], sums["discordant"], sums["tied"]).index
    return {"concordance": None if math.isnan(index) else index, "events": sums["events"]}
