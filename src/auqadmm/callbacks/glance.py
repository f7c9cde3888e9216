"""What a glance at a running solve tells, beyond its history row."""

from __future__ import annotations

import math
from dataclasses import dataclass

from auqadmm.columns.method import FramedState
from auqadmm.core.solve import Iteration
from auqadmm.core.state import Blocks

SHARE = 0.5


@dataclass(frozen=True)
class Glance:
    """Iterations per second; seconds left, to the tolerances if `meets`, else to the limit of iterations (None: no
    trend); the block furthest from consensus with its share of Σ‖u_j − v‖², where one has most of it."""

    rate: float
    left: float | None
    meets: bool
    furthest: tuple[str, float] | None


def furthest(event: Iteration) -> tuple[str, float] | None:
    """Known only where all blocks are in this process."""
    blocks, shared = event.state.blocks, event.state.shared
    if not isinstance(blocks, Blocks) or shared.residuals is None:
        return None
    count = blocks.u.shape[0]
    if count != shared.setup.blocks or count != len(event.names) or count < 3:
        return None
    v = shared.memory.shared.v if isinstance(shared.memory, FramedState) else shared.v  # in the columns of u
    squares = (blocks.u - v.to(blocks.u)).flatten(1).double().square().sum(1)
    total, j = float(squares.sum()), int(squares.argmax())
    if not (total > 0 and math.isfinite(total)):
        return None
    share = float(squares[j]) / total
    return (event.names[j], share) if share >= SHARE else None
