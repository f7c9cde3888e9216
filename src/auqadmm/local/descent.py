"""The loop that Newton's method and L-BFGS share: direction, line search, until every block has converged.

    P ← a descent direction of F_j at u;   t ← line search;   u ← u + tP

A block that is solved, that rounding keeps from moving, or that met NaN or infinity stops. When most
are done, the others go on without them. On a CPU iterations run in single precision, from an anchor where the
gradient is known to double precision (`blocks/single_precision.py`), and a block counts as solved where that is sure.

Shapes: B blocks; u, P (B, m, C); masks and counters (B,).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from auqadmm.blocks import single_precision
from auqadmm.blocks.parts import Part, part
from auqadmm.blocks.rows import RowPoint
from auqadmm.local.base import Extrapolation, Iterate, LocalProblem, LocalSolution, count, select
from auqadmm.local.line_search import search
from auqadmm.local.tolerance import Tolerance, final_status
from auqadmm.runtime.cuda_graphs import Programs

# Within this factor of the cheap estimate of rounding, a sharper estimate of the limit is worth computing.
NEAR_ROUNDING = 1000.0
# Blocks that have more than this share of the rows stay together; a share up to the second may be copied.
STAY_SHARE, COPY_SHARE = 0.5, 0.125
# Size of X below which no block leaves: on a CPU, and on a GPU, where waiting is cheap.
LEAVE_CPU, LEAVE_GPU = 2**20, 2**27


@dataclass(frozen=True)
class DescentState:
    """The result of a descent: the method's last state, and u at the last anchor (B, m, C), if any."""

    state: Any
    anchor: Tensor | None


@dataclass(frozen=True)
class Progress:
    """Which blocks go on: `active` (B,), of which those in `doubt` may have reached rounding; which `met` their goal.

    `alive`: not stuck, and finite; `checked`: rounding is known. `any` says whether any is active, in doubt, or short
    of the tolerance though finite, and `told` the same on the host. `round` counts steps; `left` (B,) are the
    products that a block may still take, None: unlimited.
    """

    active: Tensor
    doubt: Tensor
    met: Tensor
    alive: Tensor
    checked: Tensor
    any: Tensor
    told: tuple[int, ...] | None = None
    round: int = 0
    left: Tensor | None = None

    def among(self, some: Tensor) -> Progress:
        """All but these blocks (B,) stop."""
        active, doubt = self.active & some, self.doubt & some
        flags = torch.stack([active.any(), doubt.any(), self.any[2]])
        return replace(self, active=active, doubt=doubt, alive=self.alive & some, any=flags, told=None).on_host()

    def take(self, some: Part) -> Progress:
        masks = {name: getattr(self, name)[some.blocks] for name in ("active", "doubt", "met", "alive", "checked")}
        return replace(self, **masks)

    def on_host(self) -> Progress:
        """With the flags copied to the host, if not yet done."""
        return self if self.told is not None else replace(self, told=tuple(self.any.tolist()))

    @property
    def flags(self) -> tuple[int, ...]:
        assert self.told is not None
        return self.told


@dataclass(frozen=True)
class DescentStep:
    """The new iterate, the blocks that moved (B,), products it took (B,), the method's state, the progress, and the
    `most` products of a block, where the host knows."""

    there: Iterate
    moved: Tensor
    hvps: Tensor
    state: Any
    progress: Progress | None = None
    most: int | None = None


class DescentMethod(Protocol):
    """What a descent method defines: `factor`, `tol` as in `Tolerance.known`, `products` as in `Bounded`."""

    @property
    def factor(self) -> float: ...
    @property
    def tol(self) -> float | None: ...
    @property
    def products(self) -> int | None: ...

    def step(
        self, problem: LocalProblem, iterate: Iterate, progress: Progress, tolerance: Tolerance, state: Any
    ) -> DescentStep:
        """One step of the active blocks."""
        ...

    def begin(self, problem: LocalProblem, iterate: Iterate, progress: Progress, state: Any) -> Any:
        """The state to begin with, from the arguments of `descend`; possibly no block will move."""
        ...

    def take(self, state: Any, some: Part) -> Any:
        """The state of some blocks."""
        ...

    def put(self, state: Any, some: Part, new: Any) -> Any:
        """The state, with that of some blocks replaced: for the end of a solve."""
        ...


@dataclass(frozen=True)
class RecalledState:
    """What a method keeps from earlier solves: its state, u at the last anchor (B, m, C), the path of the solutions,
    and the products `spent` (B,) since a factor was made."""

    state: Any = None
    anchor: Tensor | None = None
    trail: Extrapolation | None = None
    spent: Tensor | None = None


class DescentSolver(DescentMethod, Protocol):
    """A descent method that starts from extrapolated solutions."""

    @property
    def max_iter(self) -> int: ...

    def recall(self, problem: LocalProblem, memory: object) -> RecalledState:
        """The part of an earlier solve's memory that is valid for this one."""
        ...

    def remember(self, problem: LocalProblem, before: Tensor, solution: LocalSolution, recalled: RecalledState) -> Any:
        """For the next solve; `before` is where the last one ended."""
        ...

    def solve(
        self, problem: LocalProblem, u0: Tensor, reference: float | None, memory: object, who: Tensor | None = None
    ) -> LocalSolution:
        """`who` (B,): the blocks to solve, by default all."""
        known = self.recall(problem, memory)
        start = u0 if known.trail is None else known.trail.ahead(u0, problem.shard.programs, who)
        solution = descend(self, problem, start, reference, self.max_iter, known.state, known.anchor, who)
        return replace(solution, memory=self.remember(problem, u0, solution, known))


def descend(
    method: DescentMethod,
    problem: LocalProblem,
    u0: Tensor,
    reference: float | None,
    max_iter: int,
    state: Any = None,
    anchor: Tensor | None = None,
    who: Tensor | None = None,
) -> LocalSolution:
    """Descend from u0 until every block meets its tolerance; the memory of the solution is a `DescentState`.

    `who` (B,): the blocks to move, by default all.
    """
    run = problem.shard.programs
    tolerance = Tolerance.known(problem, reference, method.factor, method.tol)
    if tolerance is not None:
        iterate, tolerance, progress = run(_first_progress, problem, tolerance, u0, anchor, who, method.tol is None)
    else:
        iterate = run(_iterate_at, problem, u0, None)
        tolerance = Tolerance.of(iterate, method.factor)
        progress = run(check_progress, tolerance, iterate, _restrict(iterate.finite, who), ~iterate.finite)
    progress = progress.on_host()
    state = method.begin(problem, iterate, progress, state)
    budget = None if method.products is None else torch.full_like(count(iterate), method.products)
    return _next_progress(method, problem, iterate, tolerance, progress, state, range(max_iter), who, budget)


def _first_progress(
    problem: LocalProblem, tolerance: Tolerance, u0: Tensor, anchor: Tensor | None, who: Tensor | None, follows: bool
) -> tuple[Iterate, Tolerance, Progress]:
    """`follows`: the tolerance depends on the outer residual, and is not fixed."""
    iterate = _iterate_at(problem, u0, anchor)
    # where slopes jump, extrapolation does not help: start at the last solution
    if follows and problem.curved and not getattr(problem.shard.loss, "expects", False):
        tolerance = tolerance.beyond(iterate)
    return iterate, tolerance, check_progress(tolerance, iterate, _restrict(iterate.finite, who), ~iterate.finite)


def _restrict(mask: Tensor, who: Tensor | None) -> Tensor:
    return mask if who is None else mask & who


def _iterate_at(problem: LocalProblem, u: Tensor, anchor: Tensor | None) -> Iterate:
    return problem.near(u, anchor) if problem.shard.single_precision else problem.at(u)


def refresh_anchors(
    problem: LocalProblem, tolerance: Tolerance, iterate: Iterate, progress: Progress, who: Tensor | None
) -> tuple[Iterate, Progress]:
    """Where the anchor of a block is too far away for an accurate gradient or convergence test, the anchor
    moves to the iterate."""
    moved = single_precision.change(iterate.point)
    if moved is None:
        return iterate, progress
    size = torch.maximum(tolerance.at(iterate), iterate.grad_norm)
    # norms are those of the problem, in which the change may be larger or smaller by a factor
    far = _restrict(size * iterate.plain_scale < single_precision.TRUST * moved * iterate.scale, who)
    if not bool(far.any()):
        return iterate, progress
    assert isinstance(iterate.point, RowPoint)
    iterate = problem.around(single_precision.reanchored(iterate.point, far))
    alive, checked = (
        torch.where(far, iterate.finite, progress.alive),
        torch.where(far, ~iterate.finite, progress.checked),
    )
    return iterate, check_progress(tolerance, iterate, alive, checked).on_host()


def _next_progress(
    method: DescentMethod,
    problem: LocalProblem,
    iterate: Iterate,
    tolerance: Tolerance,
    progress: Progress,
    state: Any,
    rounds: range,
    who: Tensor | None,
    budget: Tensor | None = None,
    taken: int = 0,
) -> LocalSolution:
    """`budget` (B,): products that a block may take; `taken`: no block has taken more before."""
    run, products = problem.shard.programs, method.products
    hvps = iterations = count(iterate)
    for i in rounds:
        progress = progress.on_host()
        if budget is not None and products is not None and taken >= products:  # most solves avoid this transfer
            progress = progress.among(hvps < budget)
        if progress.flags[1]:
            tolerance, hvps = (
                run(Tolerance.attainable, tolerance, problem, iterate, progress.doubt),
                hvps + progress.doubt,
            )
            progress = run(
                check_progress, tolerance, iterate, progress.alive, progress.checked | progress.doubt
            ).on_host()
        iterate, progress = refresh_anchors(problem, tolerance, iterate, progress, who)
        if not progress.flags[0]:
            break
        progress = replace(progress, told=None, round=i, left=None if budget is None else budget - hvps)
        some = blocks_to_keep(problem, iterate, progress.active)
        if some is not None:
            ended, hvps = final_status(
                tolerance, problem, iterate, hvps, progress.active if who is None else progress.active | ~who
            )
            done = LocalSolution(iterate.u, ended, iterate.grad_norm, hvps, iterations, state)
            own = method.take(state, some)
            rounds = range(i, rounds.stop)
            ours, theirs = (problem.take(some), iterate.take(some), tolerance.take(some), progress.take(some)), None
            if who is not None:
                theirs = who[some.blocks]
            less = None if progress.left is None else progress.left[some.blocks]
            rest = _next_progress(method, *ours, own, rounds, theirs, less, taken)
            return done.put(
                some,
                rest,
                DescentState(
                    method.put(state, some, rest.memory.state), single_precision.gathered(iterate.point, some)
                ),
            )
        step = method.step(problem, iterate, progress, tolerance, state)
        iterate, state = step.there, step.state
        hvps, iterations = hvps + step.hvps, iterations + progress.active
        if budget is not None:
            taken += int(step.hvps.max()) + 1 if step.most is None else step.most + 1  # + rounding check
        progress = step.progress or run(
            check_progress, tolerance, iterate, progress.alive & (step.moved | ~progress.active), progress.checked
        )
    iterate, progress = refresh_anchors(
        problem, tolerance, iterate, progress, who
    )  # out of steps: convergence not yet checked
    progress = progress.on_host()
    converged = progress.met
    if progress.flags[2]:
        converged, hvps = final_status(tolerance, problem, iterate, hvps, None if who is None else ~who)
    return LocalSolution(
        iterate.u, converged, iterate.grad_norm, hvps, iterations, DescentState(state, _anchor(iterate))
    )


def _anchor(iterate: Iterate) -> Tensor | None:
    point = iterate.point
    return point.anchor.u if isinstance(point, RowPoint) and point.anchor is not None else None


def blocks_to_keep(problem: LocalProblem, iterate: Iterate, active: Tensor) -> Part | None:
    """The active blocks, where the others have most of the data and should leave; None where all stay.

    Leaving costs a few small copies, and on a GPU new CUDA graphs.
    """
    shard = problem.shard
    size = shard.design.rows * shard.design.features
    if size < (LEAVE_GPU if shard.programs.active else LEAVE_CPU) or not isinstance(iterate.point, RowPoint):
        return None
    if bool(active.all()):
        return None
    going = [j for j, goes in enumerate(active.tolist()) if goes]
    share = sum(shard.design.heights[j] for j in going) / shard.design.rows
    if share > STAY_SHARE:
        return None
    some = part(shard, going, copies=share <= COPY_SHARE)
    if some is not None:
        vars(some.shard)["programs"] = Programs(torch.device("cpu"))
    return some


def check_progress(tolerance: Tolerance, iterate: Iterate, alive: Tensor, checked: Tensor) -> Progress:
    met = tolerance.met(iterate)
    active = alive & ~met
    doubt = active & ~checked & (iterate.grad_norm <= NEAR_ROUNDING * iterate.floor)
    short = iterate.finite & ~met
    return Progress(active, doubt, met, alive, checked, torch.stack([active.any(), doubt.any(), short.any()]))


def line_search_step(
    problem: LocalProblem,
    iterate: Iterate,
    progress: Progress,
    P: Tensor,
    hvps: Tensor,
    state: Any,
    XP: Tensor | None = None,
) -> DescentStep:
    """The step along P that a line search finds. XP may be given only if P is zero in inactive blocks."""
    P = select(progress.active, P, P.new_zeros(())) if XP is None else P
    there, moved = search(problem, iterate, P, progress.active, XP)
    return DescentStep(there, moved, hvps, state)
