"""What `method="auto"` does, and why, in a sentence."""

from __future__ import annotations

from typing import Any

from auqadmm.core.lowrank import LowRank
from auqadmm.methods.lowrank import AUQLR, most_directions


def choose(blocks: int, features: int) -> tuple[AUQLR, str]:
    """The recommended method for N blocks of m features, and the reason."""
    method = AUQLR()
    if most_directions(method.rank, blocks, features) == 0:
        return method, f"curvature weights need the fewest rounds, diagonal ones since {blocks} blocks leave no room"
    return method, "curvature weights need the fewest rounds"


def found(weights: Any) -> str:
    """What the run made of it: directions per block, and the basis of the rest."""
    if not isinstance(weights, LowRank):
        return ""
    ranks = (weights.U != 0).any(1).sum(1)
    least, most = int(ranks.min()), int(ranks.max())
    count = f"{most}" if least == most else f"{least} to {most}"
    basis = "" if weights.F is None else ", the rest in cosines"
    return f"; {count} direction{'s' * (most != 1)} per block paid for themselves{basis}"
