"""Limited-memory BFGS for the u-step, all blocks at once.

    s = u⁺ − u,  y = ∇F⁺ − ∇F;   P = −H∇F,  H built from the last pairs (s, y) on top of γI,  γ = ⟨s,y⟩/⟨y,y⟩

Every block has its own pairs: a block may skip one (⟨s,y⟩ lost to rounding) while others keep theirs. A slot that
was never filled holds zeros, which the two-loop recursion passes over by itself.

Reference: J. Nocedal, S. J. Wright, Numerical Optimization, 2nd ed., algorithms 7.4 and 7.5.

Shapes: B blocks, m features, C columns, h pairs; u, gradients, P (B, m, C), stacked pairs (B, h, m, C).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from auqadmm.local.base import (
    Goal,
    Iterate,
    LocalProblem,
    LocalSolution,
    check_count,
    check_tolerance,
    count,
    dot,
    norm,
    over,
    select,
)
from auqadmm.local.descent import Look, Step, descend, searched


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
        """Hg by the two-loop recursion; `initial` applies what H is built upon, γI without it."""
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


@dataclass(frozen=True)
class LBFGS:
    """L-BFGS with the line search of `NewtonCG`: cheap steps, many of them; needs no Hessian but at the start.

    Parameters
    ----------
    history
        Pairs kept per block.
    factor
        The target for ‖∇F_j‖ relative to the outer residual.
    tol
        An absolute target instead.
    max_iter
        Steps of one solve.
    """

    history: int = 10
    factor: float = 0.01
    tol: float | None = None
    max_iter: int = 200

    def __post_init__(self) -> None:
        check_count("history", self.history)
        check_tolerance(self.factor, self.tol)
        check_count("max_iter", self.max_iter)

    def solve(self, problem: LocalProblem, u0: Tensor, reference: float | None, memory: Any) -> LocalSolution:
        return descend(self, problem, u0, reference, self.max_iter)

    def step(self, problem: LocalProblem, here: Iterate, look: Look, goal: Goal, state: Any) -> Step:
        return searched(problem, here, look, *self._direction(problem, here, look.active, state))

    def _direction(
        self, problem: LocalProblem, here: Iterate, active: Tensor, state: Any
    ) -> tuple[Tensor, Tensor, Any]:
        """−Hg; the state is the pairs, and the iterate they lead to."""
        hvps = count(here)
        if state is None:
            gamma = _cauchy(problem, here)
            pairs = Pairs.none(self.history, gamma, here.u)
            hvps = hvps + active
        else:
            pairs, last = state
            s, y = here.u - last.u, here.grad - last.grad
            # ⟨s,y⟩ > 0 in exact arithmetic, since W_j is positive definite; a pair of rounding errors is left out.
            keep = dot(s, y) > torch.finfo(s.dtype).eps * norm(s) * norm(y)
            pairs = pairs.push(s, y, keep)
        P = -pairs.apply(here.grad)
        descends = dot(here.grad, P) < 0
        return select(descends, P, -over(pairs.gamma, here.grad) * here.grad), hvps, (pairs, here)


def _cauchy(problem: LocalProblem, here: Iterate) -> Tensor:
    """γ = ⟨g,g⟩/⟨g,Hg⟩ (B,): the step along −g that is exact for a quadratic, so that the first trial fits."""
    g = here.grad
    bend = dot(g, problem.hvp(here.point, g))
    # g = 0 (a block that starts solved) or an overflow: any γ does, the block does not move or the search cuts it
    return torch.where((bend > 0) & bend.isfinite(), dot(g, g) / bend, 1.0)
