"""What `method="auto"` does, and why, in half a sentence."""

from __future__ import annotations

from auqadmm.methods.lowrank import AUQLR, most_directions


def choose(blocks: int, features: int) -> tuple[AUQLR, str]:
    """The recommended method for N blocks of m features, and the reason."""
    method = AUQLR()
    most = most_directions(method.rank, blocks, features)
    room = "" if most > 0 else f", diagonal ones, since {blocks} blocks leave no room for directions"
    return method, f"curvature weights need the fewest rounds{room}"
