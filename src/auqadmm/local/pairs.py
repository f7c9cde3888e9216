"""The inverse Hessian from pairs of steps and gradient differences: the two-loop recursion of L-BFGS.

    s = u⁺ − u,  y = ∇F⁺ − ∇F;   H built from the last pairs (s, y) on top of γI,  γ = ⟨s,y⟩/⟨y,y⟩

Every block has its own pairs: a block may skip one (⟨s,y⟩ lost to rounding) while others keep theirs. A slot that
was never filled holds zeros, which the two-loop recursion passes over by itself.

Reference: J. Nocedal, S. J. Wright, Numerical Optimization, 2nd ed., algorithms 7.4 and 7.5.

Shapes: B blocks, m features, C columns, h pairs; gradients (B, m, C), stacked pairs (B, h, m, C).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from auqadmm.local.base import over, select
from auqadmm.metrics.weights import dot


@dataclass(frozen=True)
class Pairs:
    """The last pairs of every block, oldest first. S, Y (B, h, m, C), rho = 1/⟨s,y⟩ (B, h), gamma (B,)."""

    S: Tensor
    Y: Tensor
    rho: Tensor
    gamma: Tensor

    @classmethod
    def none(cls, history: int, gamma: Tensor, like: Tensor) -> Pairs:
        """No pairs yet: H = γI."""
        blocks, *shape = like.shape
        empty = like.new_zeros(blocks, history, *shape)
        return cls(empty, empty.clone(), like.new_zeros(blocks, history), gamma)

    def push(self, s: Tensor, y: Tensor, keep: Tensor) -> Pairs:
        """Append a pair in the blocks where `keep` holds; the oldest leaves."""
        sy = dot(s, y)
        return Pairs(
            _append(self.S, s, keep),
            _append(self.Y, y, keep),
            _append(self.rho, 1 / sy, keep),
            torch.where(keep, sy / dot(y, y), self.gamma),
        )

    def apply(self, g: Tensor, initial: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """Hg by the two-loop recursion; `initial` applies H₀, by default γI."""
        q, alphas = g, []
        for i in reversed(range(self.rho.shape[1])):
            alpha = over(self.rho[:, i] * dot(self.S[:, i], q), g)
            q = q - alpha * self.Y[:, i]
            alphas.append(alpha)
        q = over(self.gamma, q) * q if initial is None else initial(q)
        for i, alpha in enumerate(reversed(alphas)):
            beta = over(self.rho[:, i] * dot(self.Y[:, i], q), g)
            q = q + (alpha - beta) * self.S[:, i]
        return q


def _append(stack: Tensor, x: Tensor, keep: Tensor) -> Tensor:
    return select(keep, torch.cat([stack[:, 1:], x[:, None]], dim=1), stack)
