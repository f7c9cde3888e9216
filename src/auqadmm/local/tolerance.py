"""When a block counts as solved: ‖∇F_j‖ is at the target, or at its rounding error.

Shapes: B blocks; one number per block (B,).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from auqadmm.local.base import GRADIENT_ULPS, Iterate, LocalProblem

if TYPE_CHECKING:
    from auqadmm.blocks.parts import Part

PROGRESS = 0.9  # share of the initial gradient that a solve must reach even if it starts within its tolerance


@dataclass(frozen=True)
class Tolerance:
    """The gradient norm at which a block is solved.

    `fixed` (B,) is set at the start. With a `share`, the norm must also fall to that share of ‖W_j(u − v)‖, the
    step's own size: a gradient that is small against a steep start may still leave a large error of u if W_j is small.
    `noise` (B,) is added to the iterate's own rounding floor.
    """

    fixed: Tensor
    share: float | None
    noise: Tensor

    @classmethod
    def known(
        cls, problem: LocalProblem, reference: float | None, factor: float, tol: float | None
    ) -> Tolerance | None:
        """`tol` if given; else `factor` times the outer residual `reference`, so that local work follows the outer
        progress; None if there is none yet.
        """
        wanted = tol
        if wanted is None and reference is not None:
            wanted = factor * reference
        if wanted is None:
            return None
        zero = torch.zeros(problem.shard.blocks, dtype=problem.shard.dtype, device=problem.shard.device)
        return cls(torch.full_like(zero, wanted), None, zero)

    @classmethod
    def of(cls, start: Iterate, factor: float) -> Tolerance:
        """`factor` times the gradient at the start and the step's size."""
        return cls(factor * start.grad_norm, factor, torch.zeros_like(start.grad_norm))

    def beyond(self, start: Iterate) -> Tolerance:
        """The tolerance, but always below the initial gradient: a start within it is extrapolated
        from earlier rounds, and accepting it would feed the outer loop only its own history."""
        return replace(self, fixed=torch.minimum(self.fixed, PROGRESS * start.grad_norm))

    def take(self, some: Part) -> Tolerance:
        return Tolerance(self.fixed[some.blocks], self.share, self.noise[some.blocks])

    def at(self, iterate: Iterate) -> Tensor:
        """The norm to reach at this iterate, (B,)."""
        wanted = self.fixed
        if self.share is not None:
            wanted = torch.minimum(wanted, self.share * iterate.pull_norm)
        return torch.maximum(wanted, iterate.floor + self.noise)

    def met(self, iterate: Iterate) -> Tensor:
        """(B,): solved, or lost in rounding; False for a gradient that is not finite."""
        return iterate.finite & (iterate.grad_norm <= self.at(iterate))

    def attainable(self, problem: LocalProblem, iterate: Iterate, doubt: Tensor) -> Tolerance:
        """The tolerance, raised to the measured rounding error in the blocks in doubt (B,): one Hessian-vector product.

        u_j itself is rounded, and so is every product on the way to ∇f_j: like a change of u_j by an ulp of each
        entry, signs at random, which ∇²f_j turns into a change of the gradient. Where the columns of X cancel in Xu
        this is far more than an ulp of ∇f_j.
        """
        coins = torch.Generator().manual_seed(0)
        signs = 2.0 * torch.randint(2, iterate.u.shape[1:], generator=coins) - 1.0
        change = problem.norm(iterate.point.hvp(signs.to(iterate.u) * iterate.u))
        return replace(
            self, noise=torch.where(doubt, GRADIENT_ULPS * torch.finfo(iterate.u.dtype).eps * change, self.noise)
        )


def final_status(
    tolerance: Tolerance, problem: LocalProblem, iterate: Iterate, hvps: Tensor, open_: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Which blocks have converged (B,), with the rounding check for those that stopped early, which
    the `open_` ones have not had; and `hvps`."""
    met = tolerance.met(iterate)
    doubt = iterate.finite & ~met
    if open_ is not None:
        doubt = doubt & ~open_
    if not doubt.any():
        return met, hvps
    return tolerance.attainable(problem, iterate, doubt).met(iterate), hvps + doubt
