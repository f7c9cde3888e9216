"""What `auto` takes for a loss that is not quadratic: L-BFGS with its memory, and Newton's method where that is better.

- W_j is a model of the curvature (AUQ-LR): Newton-CG, which it preconditions.
- On a GPU: Newton-CG, which synchronises less often with the host, and keeps less.
- A hinge: Newton's method, with systems of the few rows with curvature (`hinge.py`).
- Small problems: Newton-CG, whose steps take less beside the products with X.
- Blocks of a few rows: Newton-CG, whose systems take no more steps than there are rows; pairs would take as much memory
  as the data, and work.
- Else L-BFGS. Blocks that have not converged after many steps go to Newton-CG, and stay there where a factor of
  the Hessian will help it (`cg.py`).

Chosen per block, from its own rows or the whole problem's: placement on processes does not matter.
Blocks of very different height are solved one group after the other (`Shard.groups`), so that none waits for another.

Shapes: B blocks; masks (B,).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from auqadmm.blocks.shard import Shard
from auqadmm.local import hinge
from auqadmm.local.base import Bounded, LocalProblem, LocalSolution, select
from auqadmm.local.cg import factor_is_applicable
from auqadmm.local.descent import Extrapolation
from auqadmm.local.lbfgs import LBFGS, LBFGSMemory
from auqadmm.local.newton_cg import NewtonCG, NewtonMemory

# pairs that L-BFGS keeps, at most and at least; the data take so many times their memory
MOST_PAIRS, LEAST_PAIRS, PAIRS_ROOM = 10, 4, 8
# multiplications of a product with X, of all processes together, below which it is not what takes the time
SMALL_PRODUCT = 2**21
# steps of L-BFGS after which Newton's method takes over; and after the first solve, if a factor would help (20 steps:
# results/speed/log.md)
LBFGS_STEPS, LBFGS_STEPS_LATER = 60, 20


@dataclass(frozen=True)
class MixedMemory:
    """What a solve by both passes to the next: the memory of each, and the blocks solved by Newton's method, (B,)."""

    pairs: LBFGSMemory
    newton: NewtonMemory | None
    hard: Tensor


class Mixed(Bounded):
    """L-BFGS where it pays, Newton-CG elsewhere.

    Parameters
    ----------
    factor, tol
        As in `Accurate`, of each.
    products
        Hessian-vector products that a solve may spend on a block, which then returns its iterate; None: no bound.

    Raises
    ------
    ValueError
        A parameter has a value that it cannot have; the message names it.

    Examples
    --------
    >>> import numpy as np
    >>> import auqadmm as aq
    >>> X, y = np.array([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0], [2.0, 1.0]]), np.array([1.0, 2.0, 3.0, 6.0])
    >>> problem = aq.Problem(aq.LeastSquares(), aq.L2(1.0), [(X[:2], y[:2]), (X[2:], y[2:])])
    >>> aq.solve(problem, "c-admm", local=aq.local.Mixed(tol=1e-8)).coef.round(1)
    array([2., 1.])
    """

    def solve(self, problem: LocalProblem, u0: Tensor, reference: float | None, memory: object) -> LocalSolution:
        # on a GPU both methods would double the kernel launches
        groups = () if problem.shard.programs.active else problem.shard.groups
        if not groups:
            return self._together(problem, u0, reference, memory)
        none = torch.zeros(len(u0), dtype=torch.int64, device=u0.device)
        solution = LocalSolution(u0, none > 0, torch.zeros_like(u0[:, 0, 0]), none, none, None)
        known = memory if isinstance(memory, tuple) and len(memory) == len(groups) else (None,) * len(groups)
        left: tuple[object, ...] = ()
        for group, own in zip(groups, known, strict=True):
            some = self._together(problem.take(group), u0[group.blocks], reference, own)
            left = (*left, some.memory)
            solution = solution.put(group, some, left)
        return solution

    def _together(self, problem: LocalProblem, u0: Tensor, reference: float | None, memory: object) -> LocalSolution:
        shard, newton = problem.shard, NewtonCG(self.factor, self.tol, products=self.products)
        census = shard.census
        small = sum(census.rows) * census.unknowns < SMALL_PRODUCT
        if problem.curved or shard.programs.active or small or _by_rows(problem):
            return newton.solve(problem, u0, reference, memory)
        known = memory if isinstance(memory, MixedMemory) else None
        hard = _few_rows(shard) if known is None else known.hard
        if isinstance(memory, NewtonMemory) or bool(hard.all()):  # all blocks are solved by Newton's method from now on
            return newton.solve(problem, u0, reference, memory if known is None else known.newton)
        patience = LBFGS_STEPS_LATER if known is not None and _factor_helps(shard) else LBFGS_STEPS
        pairs, before = None if known is None else known.pairs, None if known is None else known.newton
        lbfgs = LBFGS(self.factor, self.tol, _pairs(shard), patience, products=self.products)
        first = lbfgs.solve(problem, u0, reference, pairs, ~hard)
        left = ~hard & ~first.converged
        solution = replace(first, memory=MixedMemory(first.memory, None, hard))
        if bool(hard.any()):
            rest = newton.solve(problem, u0, reference, before, hard)
            solution = _select_solutions(hard, rest, solution, replace(solution.memory, newton=rest.memory))
        if bool(left.any()):
            rest = newton.solve(problem, first.u, reference, None, left)
            stays = torch.zeros_like(hard).index_fill(0, shard.tall, factor_is_applicable(shard)) & left
            if bool(stays.any()):
                steps = first.memory.path.solves
                hard, own = hard | stays, _merge_memories(stays, rest.memory, solution.memory.newton, u0, rest.u, steps)
                solution = replace(solution, memory=replace(solution.memory, newton=own, hard=hard))
            solution = _select_solutions(left, rest, solution, solution.memory)
        return solution


def _by_rows(problem: LocalProblem) -> bool:
    """Are the systems of Newton's method those of the few rows with curvature?"""
    return problem.shard.loss.cornered and hinge.is_applicable(problem)


def _few_rows(shard: Shard) -> Tensor:
    """(B,): blocks of few rows."""
    rows = torch.tensor(shard.rows, device=shard.device)
    return rows // (2 * PAIRS_ROOM * shard.shape[2]) < LEAST_PAIRS


def _pairs(shard: Shard) -> int:
    """How many pairs, the same for all blocks of the problem."""
    census = shard.census
    return max(LEAST_PAIRS, min(MOST_PAIRS, sum(census.rows) // (2 * PAIRS_ROOM * census.blocks * census.columns)))


def _factor_helps(shard: Shard) -> bool:
    """Would a factor help some block of the problem?"""
    return shard.census.columns == 1 and max(shard.census.rows) >= shard.census.features


def _select_solutions(mask: Tensor, a: LocalSolution, b: LocalSolution, memory: object) -> LocalSolution:
    """Blocks of a where the mask holds, of b elsewhere, with what both spent there."""
    hvps, iterations = torch.where(mask, a.hvps, 0) + b.hvps, torch.where(mask, a.iterations, 0) + b.iterations
    u, grad_norm = select(mask, a.u, b.u), torch.where(mask, a.grad_norm, b.grad_norm)
    return LocalSolution(u, torch.where(mask, a.converged, b.converged), grad_norm, hvps, iterations, memory)


def _merge_memories(
    some: Tensor, new: NewtonMemory, old: NewtonMemory | None, before: Tensor, u: Tensor, solves: int
) -> NewtonMemory:
    """The memory of Newton's method where it took over in some blocks (B,), after so many solves. They start without
    extrapolation."""
    path = Extrapolation(u - before, torch.zeros_like(u[:, 0, 0]), solves)
    if old is None:
        return replace(new, path=path)
    move, share = select(some, path.move, old.path.move), torch.where(some, 0.0, old.path.share)
    D = new.D if old.D is None else old.D if new.D is None else select(some, new.D, old.D)
    anchor = None if old.anchor is None or new.anchor is None else select(some, new.anchor, old.anchor)
    spent = None if old.spent is None or new.spent is None else torch.where(some, new.spent, old.spent)
    path = Extrapolation(move, share, solves)
    return replace(old, D=D, path=path, spent=spent, due=old.due or new.due, anchor=anchor)
