"""The intercepts of sites, where the rows of all sites are in this process: for predictions at the sites of the fit.

Shapes: n rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from auqadmm.blocks.rows import RowLoss
from auqadmm.blocks.shard import RawBlock
from auqadmm.core.result import Result
from auqadmm.errors import InputError
from auqadmm.estimators.checks import PerRow
from auqadmm.problem import Problem, Zero
from auqadmm.problem.made_of_losses import ProfilePoint, one_sided

MOST_NAMED = 5  # sites that a sentence names


def intercepts_of(loss: RowLoss, blocks: Sequence[RawBlock], result: Result) -> dict[str, float]:
    """By the names of sites; NaN where none is finite."""
    shard = Problem(loss, Zero(), blocks, site_intercepts=True).shard(torch.float64, torch.device("cpu"))
    point = shard.linearize(shard.expand(result.v.detach().cpu().double()))
    assert isinstance(point, ProfilePoint)
    b = torch.where(one_sided(loss, shard), torch.nan, point.b)
    return dict(zip((block.name for block in blocks), b.tolist(), strict=True))


def of_rows(known: Mapping[str, float] | None, sites: PerRow, rows: int) -> np.ndarray:
    """The intercepts of rows, (n,), by the labels of their sites."""
    if known is None:
        raise InputError(
            "Site intercepts are known at the sites alone, where the rows of the fit are: predict there, or fit a "
            "common intercept."
        )
    if sites is None:
        raise InputError(f"Every site has its own intercept: say with sites= which one owns a row, {_named(known)}.")
    labels = [str(label) for label in np.asarray(sites).ravel()]
    if len(labels) != rows:
        raise InputError(f"sites has {len(labels)} labels but X has {rows} rows; give one per row.")
    for label in dict.fromkeys(labels):
        if label not in known:
            raise InputError(f"Site {label!r} is none of the fit, {_named(known)}: its intercept is not known.")
        if np.isnan(known[label]):
            raise InputError(
                f"Site {label!r} has no finite intercept: all its targets are at one end of their range. Leave "
                "its rows out, or fit a common intercept."
            )
    return np.array([known[label] for label in labels])


def _named(known: Mapping[str, float]) -> str:
    return ", ".join(map(repr, list(known)[:MOST_NAMED])) + (", …" if len(known) > MOST_NAMED else "")
