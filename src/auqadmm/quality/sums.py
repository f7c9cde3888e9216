"""What is asked of the blocks: three sums over all of them, and the figures of each.

Shapes: N blocks, r rows of a block; figures of blocks (N, names).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from auqadmm.core.reduce import B, Sums
from auqadmm.quality.calibration import calibrate
from auqadmm.quality.measures import Figures, Known, Measure, middle_of
from auqadmm.quality.rows import Models, Scored

if TYPE_CHECKING:
    from auqadmm.blocks.shard import Shard

COUNTS = ("rows", "weight")


@dataclass(frozen=True)
class FirstQuery:
    """Sums that need nothing else."""

    measure: Measure
    models: Models

    def __call__(self, shard: Shard, blocks: B, shared: object) -> tuple[B, Sums]:
        return blocks, added(shard, self.models, self.measure.first)


@dataclass(frozen=True)
class SecondQuery:
    """Sums around the means that the first gave, and bins."""

    measure: Measure
    models: Models

    def __call__(self, shard: Shard, blocks: B, first: Known) -> tuple[B, Sums]:
        return blocks, added(shard, self.models, lambda at: self.measure.second(at, first))


@dataclass(frozen=True)
class LineQuery:
    """The loss on a line of models (`Measure.line`), and its derivatives. `first`: the sums of the first query."""

    measure: Measure
    models: Models
    first: Known

    def __call__(self, shard: Shard, blocks: B, at: tuple[float, float]) -> tuple[B, Sums]:
        return blocks, added(shard, self.models, lambda rows: {"line": self.measure.line(rows, self.first, *at)})


@dataclass(frozen=True)
class SiteFigures:
    """The figures of every block by itself, (B, names); NaN where there is none. Ranks are exact here."""

    measure: Measure
    models: Models

    def __call__(self, shard: Shard, blocks: object) -> Tensor:
        out = [self._of(at) for _, at in self.models.scored(shard)]
        return torch.tensor(out, dtype=torch.float64, device=shard.device)

    def _of(self, at: Scored) -> list[float]:
        measure = self.measure
        first = arrays(measure.first(at))
        if not float(first["weight"]) > 0:
            return [float(first["rows"]), 0.0, *[math.nan] * len(measure.names)]
        second = arrays(measure.second(at, first))

        def line(a: float, d: float) -> Tensor:
            return measure.line(at, first, a, d).cpu()

        figures = measure.figures(first, second, measure.null(first, line, at.o is not None))
        aucs = measure.exact(at)
        auc = mean_or_none(aucs)
        figures |= {"auc": auc} if aucs else {}
        if measure.calibrated and not (measure.ranked and auc is None):
            figures |= calibrate(line, second["line"], middle_of(first), None if auc is None else (auc, auc))
        return [float(first[name]) for name in COUNTS] + [_number(figures, name) for name in measure.names]


def added(shard: Shard, models: Models, of: Callable[[Scored], Sums]) -> Sums:
    """Sums of all blocks of a shard."""
    total: Sums = {}
    for _, at in models.scored(shard):
        for name, x in of(at).items():
            total[name] = total[name] + x if name in total else x
    return total


def arrays(sums: Sums) -> dict[str, np.ndarray]:
    return {name: x.detach().cpu().numpy() for name, x in sums.items()}


def mean_or_none(values: list[float | None]) -> float | None:
    """Of all classes; None where one has none."""
    known = [x for x in values if x is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None


def _number(figures: Figures, name: str) -> float:
    value = figures.get(name)
    return math.nan if value is None else value
