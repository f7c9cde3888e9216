"""NaN and infinity in the state of blocks: which block, in which step, and what to do.

Shapes: B blocks here.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from auqadmm.core.ending import Ending
from auqadmm.core.reduce import Reduce
from auqadmm.core.state import Blocks, State, Status

# the local solve may overflow although all it is made of is finite: code 0
STEPS = {0: "local solve (u-step)", 1: "local solve (u-step)", 2: "weights", 3: "multiplier"}


def not_finite(state: State, reduce: Reduce, iteration: int) -> Ending | None:
    """The end of a run whose blocks' state is no longer made of numbers; None if it is."""
    if state.shared.not_finite == 0:
        return None
    codes = reduce.gather(_health, state.blocks)
    j = int(codes.argmax())
    return Ending(
        Status.diverged,
        f"The {STEPS[int(codes[j])]} of {reduce.engine.names[j]} gave NaN or infinity in iteration {iteration}; "
        "v is the iterate before it. Rescale that block's features or lower the penalty.",
    )


def _health(shard: Any, blocks: Blocks) -> Tensor:
    """Per block: 0 healthy, 1 local solve, 2 weights, 3 multiplier not finite (B,)."""
    grad = shard.linearize(blocks.u).grad
    bad = [~x.isfinite().flatten(1).all(1) for x in (blocks.u + grad, blocks.W.diagonal(), blocks.lam)]
    # weights spoil the local solve, and so does a spoiled multiplier: blame the cause
    code = bad[0] * 1
    code = torch.where(bad[2], torch.full_like(code, 3), code)
    return torch.where(bad[1], torch.full_like(code, 2), code)
