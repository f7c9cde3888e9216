"""The loop that Newton's method and L-BFGS share: direction, line search, until every block has converged.

    P ← a descent direction of F_j at u;   t ← line search;   u ← u + tP

A block that is solved (‖∇F_j‖ is at the target, or at its rounding error), that rounding keeps from moving, or that met
NaN or infinity stops. When most are done, the others go on without them. On a CPU iterations run in single precision,
from an anchor where the gradient is known to double precision (`blocks/single_precision.py`), and a block counts as
solved where that is sure.

Solutions move smoothly between iterations, so a solve may start from an extrapolated point (`Extrapolation`):

    start at   u + θ(u − u_before),   θ = ⟨u − u_before, step before⟩ / ‖step before‖², between 0 and 1

θ is the share of the step before that the last step repeated: the rate of an iteration that converges linearly, and 0
for one that reverses.

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
from auqadmm.local.base import GRADIENT_ULPS, Iterate, LocalProblem, LocalSolution, count, over, select
from auqadmm.local.line_search import search
from auqadmm.metrics.weights import dot
from auqadmm.runtime import Programs

# Chosen, not measured, but for blocks that leave (results/speed/log.md).
# Within this factor of the cheap estimate of rounding, a sharper estimate of the limit is worth computing.
NEAR_ROUNDING = 1000.0
# Blocks that have more than this share of the rows stay together; a share up to the second may be copied.
STAY_SHARE, COPY_SHARE = 0.5, 0.125
# share of the initial gradient that a solve must reach even if it starts within its tolerance
PROGRESS = 0.9
# Size of X below which no block leaves: on a CPU, and on a GPU, where waiting is cheap.
LEAVE_CPU, LEAVE_GPU = 2**20, 2**27


@dataclass(frozen=True)
class DescentState:
    """The result of a descent: the method's last state, and u at the last anchor (B, m, C), if any."""

    state: Any
    anchor: Tensor | None


@dataclass(frozen=True)
class BlockProgress:
    """Which blocks go on: `active` (B,), of which those in `doubt` may have reached rounding; which `met` their goal.

    `alive`: not stuck, and finite; `checked`: rounding is known. `any` says whether any is active, in doubt, or short
    of the tolerance though finite, and `host_flags` the same on the host. `round` counts steps; `left` (B,) are the
    products that a block may still take, None: unlimited.
    """

    active: Tensor
    doubt: Tensor
    met: Tensor
    alive: Tensor
    checked: Tensor
    any: Tensor
    host_flags: tuple[int, ...] | None = None
    round: int = 0
    left: Tensor | None = None

    def among(self, some: Tensor) -> BlockProgress:
        """All but these blocks (B,) stop."""
        active, doubt = self.active & some, self.doubt & some
        flags = torch.stack([active.any(), doubt.any(), self.any[2]])
        return replace(self, active=active, doubt=doubt, alive=self.alive & some, any=flags, host_flags=None).on_host()

    def take(self, some: Part) -> BlockProgress:
        masks = {name: getattr(self, name)[some.blocks] for name in ("active", "doubt", "met", "alive", "checked")}
        return replace(self, **masks)

    def on_host(self) -> BlockProgress:
        """With the flags copied to the host, if not yet done."""
        return self if self.host_flags is not None else replace(self, host_flags=tuple(self.any.tolist()))

    @property
    def flags(self) -> tuple[int, ...]:
        assert self.host_flags is not None
        return self.host_flags


@dataclass(frozen=True)
class DescentStep:
    """The new iterate, the blocks that moved (B,), products it took (B,), the method's state, the progress, and the
    `most` products of a block, where the host knows."""

    there: Iterate
    moved: Tensor
    hvps: Tensor
    state: Any
    progress: BlockProgress | None = None
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
        self, problem: LocalProblem, iterate: Iterate, progress: BlockProgress, tolerance: Tolerance, state: Any
    ) -> DescentStep:
        """One step of the active blocks."""
        ...

    def begin(self, problem: LocalProblem, iterate: Iterate, progress: BlockProgress, state: Any) -> Any:
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
    path: Extrapolation | None = None
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
        self, problem: LocalProblem, u0: Tensor, reference: float | None, memory: object, which: Tensor | None = None
    ) -> LocalSolution:
        """`which` (B,): the blocks to solve, by default all."""
        known = self.recall(problem, memory)
        start = u0 if known.path is None else known.path.ahead(u0, problem.shard.programs, which)
        solution = descend(self, problem, start, reference, self.max_iter, known.state, known.anchor, which)
        return replace(solution, memory=self.remember(problem, u0, solution, known))


def descend(
    method: DescentMethod,
    problem: LocalProblem,
    u0: Tensor,
    reference: float | None,
    max_iter: int,
    state: Any = None,
    anchor: Tensor | None = None,
    which: Tensor | None = None,
) -> LocalSolution:
    """Descend from u0 until every block meets its tolerance; the memory of the solution is a `DescentState`.

    `which` (B,): the blocks to move, by default all.
    """
    run = problem.shard.programs
    tolerance = Tolerance.known(problem, reference, method.factor, method.tol)
    if tolerance is not None:
        iterate, tolerance, progress = run(_first_progress, problem, tolerance, u0, anchor, which, method.tol is None)
    else:
        iterate = run(_iterate_at, problem, u0, None)
        tolerance = Tolerance.of(iterate, method.factor)
        progress = run(check_progress, tolerance, iterate, _restrict(iterate.finite, which), ~iterate.finite)
    progress = progress.on_host()
    state = method.begin(problem, iterate, progress, state)
    budget = None if method.products is None else torch.full_like(count(iterate), method.products)
    return _next_progress(method, problem, iterate, tolerance, progress, state, range(max_iter), which, budget)


def _first_progress(
    problem: LocalProblem, tolerance: Tolerance, u0: Tensor, anchor: Tensor | None, which: Tensor | None, follows: bool
) -> tuple[Iterate, Tolerance, BlockProgress]:
    """`follows`: the tolerance depends on the outer residual, and is not fixed."""
    iterate = _iterate_at(problem, u0, anchor)
    # where slopes jump, extrapolation does not help: start at the last solution
    if follows and problem.curved and not getattr(problem.shard.loss, "expects", False):
        tolerance = tolerance.beyond(iterate)
    return iterate, tolerance, check_progress(tolerance, iterate, _restrict(iterate.finite, which), ~iterate.finite)


def _restrict(mask: Tensor, which: Tensor | None) -> Tensor:
    return mask if which is None else mask & which


def _iterate_at(problem: LocalProblem, u: Tensor, anchor: Tensor | None) -> Iterate:
    return problem.near(u, anchor) if problem.shard.single_precision else problem.at(u)


def refresh_anchors(
    problem: LocalProblem, tolerance: Tolerance, iterate: Iterate, progress: BlockProgress, which: Tensor | None
) -> tuple[Iterate, BlockProgress]:
    """Where the anchor of a block is too far away for an accurate gradient or convergence test, the anchor
    moves to the iterate."""
    moved = single_precision.change(iterate.point)
    if moved is None:
        return iterate, progress
    size = torch.maximum(tolerance.at(iterate), iterate.grad_norm)
    # norms are those of the problem, in which the change may be larger or smaller by a factor
    far = _restrict(size * iterate.plain_scale < single_precision.TRUST * moved * iterate.scale, which)
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
    progress: BlockProgress,
    state: Any,
    rounds: range,
    which: Tensor | None,
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
        iterate, progress = refresh_anchors(problem, tolerance, iterate, progress, which)
        if not progress.flags[0]:
            break
        progress = replace(progress, host_flags=None, round=i, left=None if budget is None else budget - hvps)
        some = blocks_to_keep(problem, iterate, progress.active)
        if some is not None:
            ended, hvps = final_status(
                tolerance, problem, iterate, hvps, progress.active if which is None else progress.active | ~which
            )
            done = LocalSolution(iterate.u, ended, iterate.grad_norm, hvps, iterations, state)
            own = method.take(state, some)
            rounds = range(i, rounds.stop)
            ours, theirs = (problem.take(some), iterate.take(some), tolerance.take(some), progress.take(some)), None
            if which is not None:
                theirs = which[some.blocks]
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
        problem, tolerance, iterate, progress, which
    )  # out of steps: convergence not yet checked
    progress = progress.on_host()
    converged = progress.met
    if progress.flags[2]:
        converged, hvps = final_status(tolerance, problem, iterate, hvps, None if which is None else ~which)
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


def check_progress(tolerance: Tolerance, iterate: Iterate, alive: Tensor, checked: Tensor) -> BlockProgress:
    met = tolerance.met(iterate)
    active = alive & ~met
    doubt = active & ~checked & (iterate.grad_norm <= NEAR_ROUNDING * iterate.floor)
    short = iterate.finite & ~met
    return BlockProgress(active, doubt, met, alive, checked, torch.stack([active.any(), doubt.any(), short.any()]))


def line_search_step(
    problem: LocalProblem,
    iterate: Iterate,
    progress: BlockProgress,
    P: Tensor,
    hvps: Tensor,
    state: Any,
    XP: Tensor | None = None,
) -> DescentStep:
    """The step along P that a line search finds. XP may be given only if P is zero in inactive blocks."""
    P = select(progress.active, P, P.new_zeros(())) if XP is None else P
    there, moved = search(problem, iterate, P, progress.active, XP)
    return DescentStep(there, moved, hvps, state)


# ---------------------------------------------------------------------- when a block counts as solved


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


# ---------------------------------------------------------------------- extrapolation


@dataclass(frozen=True)
class Extrapolation:
    """The last step of the solution `move` (B, m, C), the share θ of it expected to repeat (B,), and how many solves
    there were."""

    move: Tensor
    share: Tensor
    solves: int

    def ahead(self, u: Tensor, run: Programs, which: Tensor | None = None) -> Tensor:
        """Extrapolated from u, the last solution, in the blocks `which` (B,), all by default."""
        return run(_predict, u, self.share if which is None else self.share * which, self.move)

    @property
    def renew(self) -> bool:
        """Is new curvature due? At the 2nd, 4th, 8th, … solve."""
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
