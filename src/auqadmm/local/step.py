"""The u-step as the loop calls it: pose the local problems, solve them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from auqadmm.core.weights import Weights
from auqadmm.local.base import LocalProblem, LocalSolution, LocalSolver
from auqadmm.problem.shard import Shard


@dataclass(frozen=True)
class LocalStep:
    """A solver bound to the arguments a consensus iteration has at hand."""

    solver: LocalSolver

    def __call__(
        self,
        shard: Shard,
        W: Weights,
        v: Tensor,
        lam: Tensor,
        u: Tensor,
        reference: float | None,
        memory: Any,
    ) -> LocalSolution:
        return self.solver.solve(LocalProblem(shard, W, v, lam), u, reference, memory)
