"""The u-step as the loop calls it: pose the local problems, solve them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from auqadmm.blocks.shard import Shard
from auqadmm.local.base import Accurate, Bounded, LocalProblem, LocalSolution, LocalSolver
from auqadmm.metrics.lowrank import LowRank
from auqadmm.metrics.weights import Weights


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
        accuracy: float = 1.0,
        products: int | None = None,
    ) -> LocalSolution:
        """`accuracy` < 1 tightens a tolerance that follows the outer residuals; a fixed one stays. `products`: of the
        Hessian, that a block may take, unless the solver has its own bound."""
        solver = self.solver
        if isinstance(W, LowRank):
            W.ready()
        if accuracy != 1.0 and isinstance(solver, Accurate):
            solver = replace(solver, factor=accuracy * solver.factor)
        if products is not None and isinstance(solver, Bounded) and solver.products is None:
            solver = replace(solver, products=products)
        return solver.solve(LocalProblem(shard, W, v, lam), u, reference, memory)
