"""Where the solution of the next u-step is to be expected: the solutions move on a smooth path.

    start at   u + θ(u − u_before),   θ = ⟨u − u_before, step before⟩ / ‖step before‖², between 0 and 1

θ is the share of the step before that the last step repeated: the rate of an iteration that converges linearly, and 0
for one that turns back.

Shapes: B blocks, m features, C columns; u (B, m, C), θ (B,).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from auqadmm.local.base import dot, over
from auqadmm.runtime.cuda_graphs import Programs


@dataclass(frozen=True)
class Extrapolation:
    """The last step of the solution `move` (B, m, C), the share θ of it that may come again (B,), and how many solves
    there were."""

    move: Tensor
    share: Tensor
    solves: int

    def ahead(self, u: Tensor, run: Programs, who: Tensor | None = None) -> Tensor:
        """From u, the last solution, to the next, in the blocks `who` (B,), all without it."""
        return run(_predict, u, self.share if who is None else self.share * who, self.move)

    @property
    def renew(self) -> bool:
        """Is it time for new curvature? At the 2nd, 4th, 8th, … solve."""
        return self.solves & (self.solves - 1) == 0


def extrapolate(before: Tensor, u: Tensor, last: Extrapolation | None, run: Programs) -> Extrapolation:
    """The solution went from `before` to u."""
    if last is None:
        return Extrapolation(u - before, torch.zeros_like(u[:, 0, 0]), 1)
    move, share = run(_update_share, before, u, last.move)
    return Extrapolation(move, share, last.solves + 1)


def _predict(u: Tensor, share: Tensor, move: Tensor) -> Tensor:
    return u + over(share, u) * move


def _update_share(before: Tensor, u: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
    move = u - before
    return move, (dot(move, last) / dot(last, last)).nan_to_num(0.0, 0.0, 0.0).clamp(0.0, 1.0)
