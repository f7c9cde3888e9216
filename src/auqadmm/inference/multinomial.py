"""The sums of inference for several classes, relative to one of them.

Adding a vector to the coefficients of all classes changes nothing, so that only their differences are known. With the
coefficients of a reference class taken away from all, unknowns are the m of each of the C − 1 others, class by class:

    H   Σ c (diag(p) − ppᵀ) ⊗ xxᵀ          p the probabilities of the other classes
    G   Σ c (p − e) ⊗ x                     e the indicator of the row's own class, zero for the reference
    R   Σ c (p − e)(p − e)ᵀ ⊗ xxᵀ

Shapes: r rows, m features, C classes, M = (C − 1)m unknowns; v (m, C), p, e (r, C − 1), G (M,), H, R (M, M).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from auqadmm.blocks.curvature import times
from auqadmm.blocks.exact_blocks import BlockRows
from auqadmm.blocks.exact_rows import with_offset
from auqadmm.core.reduce import B, Sums
from auqadmm.errors import InputError
from auqadmm.inference.sums import LARGEST_ENTRY, SiteInformation, scale_of
from auqadmm.metrics.triangles import pack

if TYPE_CHECKING:
    from auqadmm.blocks.shard import Shard

SQUARES = ("H", "R", "C")


@dataclass(frozen=True)
class ClassesQuery:
    """All sums at v, given in centred columns; `reference`: the number of the class that others are compared with."""

    centre: Tensor | None
    reference: int
    frequency: bool = True

    def __call__(self, shard: Shard, blocks: B, v: Tensor) -> tuple[B, Sums]:
        v = v.to(shard.device)
        rows = BlockRows(shard, None if self.centre is None else self.centre.to(shard.device))
        total: Sums = {}
        for j in range(shard.blocks):
            found = self._block(shard, rows, j, v)
            site = SiteInformation.of(found["H"])
            found |= {"C": torch.outer(found["G"], found["G"]), "Q": site.form(found["G"])}
            found |= {"ranks": v.new_tensor(float(site.rank)), "sites": v.new_tensor(float(site.rank > 0))}
            total = {name: total[name] + x if name in total else x for name, x in found.items()}
        return blocks, {name: pack(x[None])[0] if name in SQUARES else x for name, x in total.items()}

    def _block(self, shard: Shard, rows: BlockRows, j: int, v: Tensor) -> Sums:
        m, C = v.shape
        M, others = (C - 1) * m, [k for k in range(C) if k != self.reference]
        new = v.new_zeros
        sums: Sums = {name: new(()) for name in ("weight", "rows", "f", "log_weights")} | {"shares": new(C)}
        sums |= {name: new(M) for name in ("G", "far", "xx")} | {"H": new(M, M), "R": new(M, M)}
        for _, part in rows.chunks(j):
            c, label = part.c * scale_of(shard), part.y.long()
            z = with_offset(part, part.forward(v))
            logs, own = z.log_softmax(1), torch.nn.functional.one_hot(label, C).to(z)
            p, away = logs.exp()[:, others], (logs.exp() - own)[:, others]
            raw = part.A if rows.centre is None else part.A + rows.centre
            scores = (away[:, :, None] * part.A[:, None]).flatten(1)
            sums["weight"] += c.sum()
            sums["rows"] += (c > 0).sum()
            sums["log_weights"] += torch.where(c > 0, c, 1.0).log().sum()
            sums["f"] -= times(c, logs.gather(1, label[:, None])[:, 0]).sum()
            sums["shares"] += own.mT @ c
            sums["G"] += scores.mT @ c
            sums["R"] += scores.mT @ ((c if self.frequency else c * c)[:, None] * scores)
            sums["far"] += times(c.sign(), part.A.abs().clamp(max=LARGEST_ENTRY).pow(16)).sum(0).repeat(C - 1)
            sums["xx"] += (raw.square().mT @ (c[:, None] * p * (1 - p))).mT.flatten()
            for a in range(C - 1):
                for b in range(a, C - 1):
                    bend = c * p[:, a] * ((1.0 if a == b else 0.0) - p[:, b])
                    block = part.A.mT @ (bend[:, None] * part.A)
                    sums["H"][a * m : a * m + m, b * m : b * m + m] += block
                    if a != b:
                        sums["H"][b * m : b * m + m, a * m : a * m + m] += block
        return sums


def contrasts(v: Tensor, reference: int) -> Tensor:
    """Coefficients (m, C) relative to one class, class by class, (M,)."""
    others = [k for k in range(v.shape[1]) if k != reference]
    return (v[:, others] - v[:, [reference]]).mT.flatten()


def number_of(reference: object, classes: Sequence[object] | np.ndarray | None) -> int:
    """The number of the class that others are compared with: the first unless it is named."""
    known = [] if classes is None else list(classes)
    if reference is None:
        return 0
    for k, label in enumerate(known):
        if label == reference:
            return k
    raise InputError(f"reference {reference!r} is no class; classes are {', '.join(map(str, known))}.")


def null_of_shares(shares: Tensor) -> float:
    """Σcφ of the model that has no columns."""
    return float(-torch.xlogy(shares, shares / shares.sum()).sum())
