"""What `auto` takes for a loss that is not quadratic: L-BFGS with its memory, and Newton's method where that is better.

- W_j is a model of the curvature (AUQ-LR): Newton-CG, which it preconditions.
- On a GPU: Newton-CG, which does more between two looks of the host, and keeps less.
- A hinge: Newton's method, whose systems are those of the few rows that bend (`corners.py`).
- Small problems: Newton-CG, whose steps take less beside the products with X.
- Blocks of a few rows: Newton-CG, whose systems take no more steps than there are rows; pairs would take as much room
  as the data, and be as much work.
- Else L-BFGS. Blocks that have not arrived after many steps are finished by Newton-CG, which stays where a factor of
  the Hessian will help it (`factored.py`).

Blocks of very different height are solved one group after the other (`Shard.groups`), each by what suits it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from auqadmm.local import corners
from auqadmm.local.base import Accurate, LocalProblem, LocalSolution
from auqadmm.local.factored import suits
from auqadmm.local.lbfgs import LBFGS
from auqadmm.local.newton_cg import Memory, NewtonCG

# pairs that L-BFGS keeps, at most and at least; the data take so many times their room
MOST, LEAST, ROOM = 10, 4, 8
# multiplications of a product with X below which it is not what takes the time
SMALL = 2**21
# steps of L-BFGS after which Newton's method takes over; and after the first solve, where a factor would help that
PATIENCE, SOON = 60, 20


class Mixed(Accurate):
    """L-BFGS where it pays, Newton-CG elsewhere; parameters as in `Accurate`."""

    def solve(self, problem: LocalProblem, u0: Tensor, reference: float | None, memory: Any) -> LocalSolution:
        # a GPU would only start twice as many operations
        groups = () if problem.shard.programs.active else problem.shard.groups
        if not groups:
            return self._together(problem, u0, reference, memory)
        none = torch.zeros(len(u0), dtype=torch.int64, device=u0.device)
        found = LocalSolution(u0, none > 0, torch.zeros_like(u0[:, 0, 0]), none, none, None)
        known = memory if isinstance(memory, tuple) and len(memory) == len(groups) else (None,) * len(groups)
        left: tuple[Any, ...] = ()
        for group, own in zip(groups, known, strict=True):
            some = self._together(problem.take(group), u0[group.blocks], reference, own)
            left = (*left, some.memory)
            found = found.put(group, some, left)
        return found

    def _together(self, problem: LocalProblem, u0: Tensor, reference: float | None, memory: Any) -> LocalSolution:
        newton = NewtonCG(self.factor, self.tol)
        blocks, m, columns = problem.shard.shape
        rows = problem.shard.design.rows
        pairs = rows // max(1, ROOM * 2 * blocks * columns)
        hard = isinstance(memory, Memory)
        small = rows * m * columns < SMALL or pairs < LEAST
        few = corners.suits(problem)
        if problem.curved or problem.shard.programs.active or small or hard or few:
            return newton.solve(problem, u0, reference, memory)
        patience = SOON if memory is not None and suits(problem.shard) else PATIENCE
        first = LBFGS(self.factor, self.tol, min(MOST, pairs), patience).solve(problem, u0, reference, memory)
        if first.converged.all():
            return first
        rest = newton.solve(problem, first.u, reference, None)
        spent = {"hvps": first.hvps + rest.hvps, "iterations": first.iterations + rest.iterations}
        return replace(rest, memory=rest.memory if suits(problem.shard) else first.memory, **spent)
