"""The likelihood of Tweedie's family, 1 < p < 2: a Poisson number of Gamma amounts.

    log f(y) = log Σ_j W_j − log y − φ(z, y)/s,       j = 1, 2, …, for y > 0;  −φ(z, 0)/s for y = 0

    log W_j = j·log t − log Γ(j + 1) − log Γ(aj),     a = (2 − p)/(p − 1),
    log t = a log y − a log(p − 1) − (1 + a) log s − log(2 − p)

with s the dispersion, divided by the weight of a row where weights are precisions. log W_j is concave, largest near
j* = y²⁻ᵖ/(s(2 − p)), where it bends like a normal density of variance j*/(1 + a). Far more terms than such a density
needs are not summed: every h-th is, h times, h at most a third of the standard deviation, which changes nothing that
double precision sees.

Reference: P. K. Dunn, G. K. Smyth, Statistics and Computing 15, 2005.

Shapes: r rows; y, s and what is returned (r,); terms (r, 2·REACH + 1).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from auqadmm.blocks.curvature import times
from auqadmm.blocks.exact_blocks import BlockRows
from auqadmm.core.reduce import B, Sums
from auqadmm.inference.sums import scale_of
from auqadmm.problem.site_intercepts import loss_of_rows, one_sided

if TYPE_CHECKING:
    from auqadmm.blocks.shard import Shard

REACH = 64  # terms on either side of the largest
ROWS = 2**13  # whose terms are held at a time


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
