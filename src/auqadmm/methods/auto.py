"""What `method="auto"` does: AUQ-LR, with as many directions as the server can hold."""

from __future__ import annotations

from auqadmm.methods.lowrank import AUQLR

# Bytes that the directions of all blocks may take on the server: N·m·rank numbers of 8 bytes.
ROOM = 2**30


def choose(blocks: int, features: int) -> tuple[AUQLR, str]:
    """The recommended method for N blocks of m features, and the reason in half a sentence."""
    default = AUQLR()
    affordable = ROOM // (8 * blocks * features)
    if affordable >= default.rank:
        return default, f"low-rank curvature weights, {default.rank} directions per block"
    return AUQLR(rank=affordable), f"{affordable} directions per block, all that {blocks} blocks leave room for"
