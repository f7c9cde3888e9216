"""Truncated Newton for the u-step: conjugate gradients on the Newton system, all blocks at once.

    (∇²f_j + W_j) P = −∇F_j   until   ‖residual‖ ≤ η‖∇F_j‖,   η = min(0.1, √(‖∇F_j‖ / its terms))
    u ← u + tP

preconditioned by the diagonal, by W_j where it models the curvature, or by a factor of the Hessian at an earlier point
where the diagonal proved to be poor (cg.py). W_j makes every system positive definite, separable data included.
η falls with the gradient, so convergence is superlinear; a quadratic loss needs one system only, solved to the target
at once. ∇²f_j is averaged over the last step's length (`secant`), which carries Newton's method over the corners of a
hinge.

Solved blocks wait for the others. A GPU does a few steps before the host checks for convergence: a step
too many costs less than a synchronisation, and changes nothing.

Reference: J. Nocedal, S. J. Wright, Numerical Optimization, 2nd ed., section 7.1; R. S. Dembo, S. C. Eisenstat,
T. Steihaug, SIAM J. Numer. Anal. 19 (1982).

Shapes: B blocks, m features, C columns; vectors (B, m, C), one number per block (B,).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from auqadmm.blocks.loss import Point
from auqadmm.blocks.parts import Part
from auqadmm.checks import check_count
from auqadmm.local.base import Bounded, Iterate, LocalProblem, LocalSolution, count, select
from auqadmm.local.cg import (
    EASY,
    PRICE,
    CGState,
    KeptFactor,
    NewtonSystem,
    averaged,
    cg_step,
    ensure_descent,
    factor_is_applicable,
    factored,
    moved,
    open_runs,
    zero_products,
)
from auqadmm.local.descent import (
    BlockProgress,
    DescentSolver,
    DescentStep,
    Extrapolation,
    RecalledState,
    Tolerance,
    check_progress,
    extrapolate,
    line_search_step,
)
from auqadmm.local.hinge import ActiveRowInverse, active_row_inverse, active_rows, add_other_rows, direction
from auqadmm.local.hinge import is_applicable as hinge_applies
from auqadmm.local.line_search import unit_step
from auqadmm.metrics.weights import Diagonal, Weights, dot

# What was tried here is in results/speed/log.md; a value without a number was chosen, not measured.
# conjugate-gradient steps of a GPU before the first host check, where the last such system is no guide
FIRST_CHECK = 4
# residual of a system that is solved at once: an extra step costs less than more rows of little curvature
CORNER_FORCING = 0.05
# steps over corners where more rows have curvature than fit; then conjugate gradients
LEAPS = 12
# the share of the tolerance to which systems are solved where W_j preconditions: to 0.5 products × 1.13
# (results/ablation: nearly-half)
CG_SHARE = 0.9


@dataclass(frozen=True)
class NewtonCG(Bounded, DescentSolver):
    """Newton's method with conjugate gradients inside: products with X only, so sparse blocks are supported.

    Parameters
    ----------
    factor, tol
        As in `Accurate`.
    max_iter, max_cg
        Newton steps of one solve, and conjugate-gradient steps of one Newton step.
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
    >>> aq.solve(problem, "c-admm", local=aq.local.NewtonCG(tol=1e-8)).coef.round(1)
    array([2., 1.])
    """

    max_iter: int = 100
    max_cg: int = 250

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("max_iter", self.max_iter)
        check_count("max_cg", self.max_cg)

    def recall(self, problem: LocalProblem, memory: object) -> RecalledState:
        if problem.curved:
            return RecalledState(NewtonCGState(), memory.anchor if isinstance(memory, AnchorMemory) else None)
        if not isinstance(memory, NewtonMemory):
            return RecalledState(NewtonCGState())
        return RecalledState(memory.state(), memory.anchor, memory.path, memory.spent)

    def remember(
        self, problem: LocalProblem, before: Tensor, solution: LocalSolution, recalled: RecalledState
    ) -> NewtonMemory | AnchorMemory | None:
        state, anchor = solution.memory.state, solution.memory.anchor
        if problem.curved:  # no anchor where slopes jump: it must be near
            return None if anchor is None or problem.shard.loss.cornered else AnchorMemory(anchor)
        path = extrapolate(before, solution.u, recalled.path, problem.shard.programs)
        if not len(before) or before.shape[2] > 1 or not factor_is_applicable(problem.shard):  # factors: one column
            return NewtonMemory(state.D, path, anchor=anchor, went=state.went, has_D=state.has_D)
        spent = torch.zeros_like(solution.hvps).index_fill(0, problem.shard.tall, 1) * (solution.hvps - EASY).clamp(
            min=0
        )
        if recalled.spent is not None:
            spent = spent + (recalled.spent if state.built is None else recalled.spent * ~state.built)
        return NewtonMemory(state.D, path, state.factor, spent, bool((spent > PRICE).any()), anchor)

    def step(
        self,
        problem: LocalProblem,
        iterate: Iterate,
        progress: BlockProgress,
        tolerance: Tolerance,
        state: NewtonCGState,
    ) -> DescentStep:
        """One Newton step of the active blocks."""
        run = problem.shard.programs
        if problem.shard.loss.cornered and hinge_applies(problem):
            return self._over_corners(problem, iterate, progress, tolerance, state)
        system, cg_state, D = run(
            _newton_system, problem, iterate, state.last, state.D, state.keep, state.factor, progress.active, tolerance
        )
        state = replace(state, last=iterate.point if iterate.u.shape[2] == 1 else None, D=D)
        if run.active:
            return self._leap(problem, iterate, progress, tolerance, system, cg_state, state)
        cg_state = self._solved(problem, iterate, progress, system, cg_state)
        P, XP = cg_state.P, cg_state.XP
        if XP is None or not (~progress.active | (dot(iterate.grad, P) < 0)).all():
            P, XP = ensure_descent(iterate, system, cg_state), None
        return line_search_step(problem, iterate, progress, P, cg_state.hvps, state, XP)

    def _limit(self, progress: BlockProgress) -> int | Tensor:
        """Steps that a system may take, for each block where they are counted."""
        return self.max_cg if progress.left is None else progress.left.clamp(max=self.max_cg)

    def _solved(
        self, problem: LocalProblem, iterate: Iterate, progress: BlockProgress, system: NewtonSystem, cg_state: CGState
    ) -> CGState:
        """Solve a system to its tolerance, on a CPU."""
        cg_state, limit = replace(cg_state, XP=zero_products(iterate.point)), self._limit(progress)
        while (left := open_runs(problem, cg_state.open)) is not None:
            cg_state = cg_step(cg_state, system, problem, limit, left)
        return cg_state

    def _over_corners(
        self,
        problem: LocalProblem,
        iterate: Iterate,
        progress: BlockProgress,
        tolerance: Tolerance,
        state: NewtonCGState,
    ) -> DescentStep:
        """A step of a hinge over its corners; by conjugate gradients in blocks with too many curved rows."""
        width, has_D = state.width, state.has_D
        assert width is not None
        assert has_D is not None
        model = averaged(iterate.point, None, width)
        near = active_rows(problem, model.hessian, _forcing_term(iterate).clamp(min=CORNER_FORCING), progress.active)
        many = progress.active & ~near.enough
        D, new = state.D, many & ~has_D
        if not problem.curved and bool(new.any()):
            diagonal = model.hessian_diagonal()
            D, has_D = diagonal if D is None else select(new, diagonal, D), has_D | new
        wider = add_other_rows(problem, D, near)
        P = direction(wider, iterate, near, width, 0.5 * tolerance.at(iterate) / iterate.grad_norm)
        hvps = count(iterate) + progress.active  # a step reads X twice
        if (problem.curved or progress.round >= LEAPS) and bool(many.any()):
            system, cg_state, _ = _newton_system(
                problem, iterate, state.last, None, False, active_row_inverse(wider, near), many, tolerance
            )
            cg_state = self._solved(problem, iterate, progress, system, cg_state)
            P, hvps = select(many, ensure_descent(iterate, system, cg_state), P), torch.where(many, cg_state.hvps, hvps)
        return _with_logit_moves(
            iterate,
            line_search_step(problem, iterate, progress, P, hvps, replace(state, last=iterate.point, D=D, has_D=has_D)),
        )

    def begin(
        self, problem: LocalProblem, iterate: Iterate, progress: BlockProgress, state: NewtonCGState
    ) -> NewtonCGState:
        if problem.shard.loss.cornered and hinge_applies(problem):
            none = torch.zeros_like(iterate.grad_norm)
            width, has_D = none if state.width is None else state.width, state.has_D
            return replace(state, width=width, went=none, has_D=none > 0 if has_D is None else has_D)
        if not progress.flags[0]:
            # as if all had moved: a block's memory must not depend on other blocks
            first = state.D is None and state.factor is None and not problem.curved
            return replace(state, D=iterate.point.hessian_diagonal()) if first else state
        if state.build is None:
            return state
        new = factored(problem, iterate.point.hessian, state.build & progress.active)
        if new is None:
            return state
        built = torch.zeros_like(progress.active).index_fill(0, new.blocks, True)
        return replace(state, factor=new if state.factor is None else state.factor.renewed(new), built=built)

    def take(self, state: NewtonCGState, some: Part) -> NewtonCGState:
        last = None if state.last is None else state.last.take(some)  # type: ignore[attr-defined]
        D, factor = state.D, state.factor
        D = None if D is None else D[some.blocks]
        own = None if factor is None else factor.take(some.blocks, some.of)
        width, went, has_D = (None if x is None else x[some.blocks] for x in (state.width, state.went, state.has_D))
        keep = state.keep and D is not None
        return replace(state, last=last, D=D, factor=own, keep=keep, width=width, went=went, has_D=has_D)

    def put(self, state: NewtonCGState, some: Part, new: NewtonCGState) -> NewtonCGState:
        def together(whole: Tensor | None, part: Tensor | None) -> Tensor | None:
            return whole if whole is None or part is None else whole.index_copy(0, some.blocks, part)

        D = state.D
        if D is None and new.D is not None:  # of a hinge, in blocks that did not leave
            D = new.D.new_zeros(some.of, *new.D.shape[1:])
        went, has_D = together(state.went, new.went), together(state.has_D, new.has_D)
        return replace(state, last=None, D=together(D, new.D), width=None, went=went, has_D=has_D)

    def _leap(
        self,
        problem: LocalProblem,
        iterate: Iterate,
        progress: BlockProgress,
        tolerance: Tolerance,
        system: NewtonSystem,
        cg_state: CGState,
        state: NewtonCGState,
    ) -> DescentStep:
        """On a GPU direction, unit step and test run without a transfer, assuming the system takes no more steps than
        the last one of its kind and the unit step is accepted. It mostly is."""
        run, kind = problem.shard.programs, (NewtonCG, progress.round)
        steps, limit = min(run.notes.get(kind, FIRST_CHECK), self.max_cg), self._limit(progress)
        short = True
        while short:
            cg_state = run.repeat(cg_step, steps, cg_state, system, problem, limit)
            leap = run(
                _finish,
                problem,
                iterate,
                system,
                cg_state,
                progress.active,
                progress.alive,
                progress.checked,
                tolerance,
            )
            needed, short, further, undo, *flags = leap.summary.tolist()
            steps = max(2, needed // 4)
        run.notes[kind] = needed
        if further or undo:
            return replace(line_search_step(problem, iterate, progress, leap.P, cg_state.hvps, state), most=needed)
        return DescentStep(
            leap.there, leap.moved, cg_state.hvps, state, replace(leap.progress, host_flags=tuple(flags)), needed
        )


@dataclass(frozen=True)
class NewtonMemory:
    """What a solve passes to the next: the diagonal D (B, m, C) of ∇²f_j, the path of the solutions, a factor of the
    Hessian where the diagonal was not enough, the products `spent` since it was made (B,) and whether a block is `due`
    for one, u at the last anchor, how far the logits of a hinge `went` (B,), and which blocks have a D, `has_D`."""

    D: Tensor | None
    path: Extrapolation
    factor: KeptFactor | None = None
    spent: Tensor | None = None
    due: bool = False
    anchor: Tensor | None = None
    went: Tensor | None = None
    has_D: Tensor | None = None

    def state(self) -> NewtonCGState:
        keep = not self.path.renew and self.D is not None
        build = self.spent > PRICE if self.due and self.spent is not None else None
        has_D = self.has_D if keep else None
        return NewtonCGState(None, self.D, keep, self.factor, build, width=self.went, has_D=has_D)


@dataclass(frozen=True)
class AnchorMemory:
    """What a solve passes to the next where W_j preconditions: u at the last anchor (B, m, C)."""

    anchor: Tensor


@dataclass(frozen=True)
class NewtonCGState:
    """The last point, where `averaged` will use it; the diagonal D of ∇²f_j last preconditioned with, and
    whether to `keep` it; the factor in its place, where to `build` a new one (B,), and where it was `built`. Of a hinge
    how far logits may move in the next step, `width`, how far they `went` in this solve, and which blocks have a D."""

    last: Point | None = None
    D: Tensor | None = None
    keep: bool = False
    factor: KeptFactor | None = None
    build: Tensor | None = None
    built: Tensor | None = None
    width: Tensor | None = None
    went: Tensor | None = None
    has_D: Tensor | None = None


def _with_logit_moves(iterate: Iterate, step: DescentStep) -> DescentStep:
    """Updated with how far the logits moved, for a hinge."""
    width = moved(iterate.point, step.there.point)  # type: ignore[arg-type]
    return replace(step, state=replace(step.state, width=width, went=step.state.went + width))


def _newton_system(
    problem: LocalProblem,
    iterate: Iterate,
    last: Point | None,
    D: Tensor | None,
    keep: bool,
    factor: KeptFactor | ActiveRowInverse | None,
    active: Tensor,
    tolerance: Tolerance,
) -> tuple[NewtonSystem, CGState, Tensor | None]:
    """The system, the CG state, and the diagonal of ∇²f_j: a new one of the active blocks, unless to `keep`
    the old, and of all where there is none."""
    quadratic = problem.shard.loss.quadratic
    model = iterate.point if quadratic else averaged(iterate.point, last)
    precondition: Weights | KeptFactor | ActiveRowInverse = factor or problem.W
    whole = isinstance(factor, ActiveRowInverse) or (factor is not None and len(factor.blocks) == len(iterate.u))
    if not problem.curved and not whole:
        if D is None or not keep:
            new = model.hessian_diagonal()
            D = new if D is None else select(active, new, D)
        base = Diagonal(D + problem.W.diagonal())
        precondition = replace(factor, base=base) if isinstance(factor, KeptFactor) else base
    # W_j keeps the residual small in the norm that counts: the true residual is hardly larger
    enough = (CG_SHARE if problem.curved and not problem.shard.loss.cornered else 0.5) * tolerance.at(iterate)
    if tolerance.share is not None or not quadratic:
        enough = torch.maximum(enough, _forcing_term(iterate) * iterate.grad_norm)
    zero = torch.zeros_like(iterate.grad)
    r = select(active, -iterate.grad, zero)
    p = select(active, precondition.solve(r), zero)  # weights of an inactive block may be NaN
    hvps = torch.zeros_like(active, dtype=torch.int64)
    return NewtonSystem(model.hessian, precondition, enough), CGState(zero, r, p, dot(r, p), active.clone(), hvps), D


def _forcing_term(iterate: Iterate) -> Tensor:
    """The share of ‖∇F_j‖ that a system's residual may have, (B,)."""
    return (iterate.grad_norm / iterate.scale).sqrt().clamp(max=0.1)


@dataclass(frozen=True)
class UnitStep:
    """The unit step along P; `summary`: steps of conjugate gradients, any block unfinished?, unit step not good?,
    undo?, and the flags of `progress`."""

    P: Tensor
    there: Iterate
    moved: Tensor
    progress: BlockProgress
    summary: Tensor


def _finish(
    problem: LocalProblem,
    iterate: Iterate,
    system: NewtonSystem,
    cg_state: CGState,
    active: Tensor,
    alive: Tensor,
    checked: Tensor,
    tolerance: Tolerance,
) -> UnitStep:
    P = select(active, ensure_descent(iterate, system, cg_state), iterate.u.new_zeros(()))
    there, t, undo, further = unit_step(problem, iterate, P, active)
    moved = t > 0
    after = check_progress(tolerance, there, alive & (moved | ~active), checked)
    flags = (cg_state.open.any(), further, undo, *after.any.unbind())
    return UnitStep(P, there, moved, after, torch.stack([cg_state.hvps.max(), *(x.long() for x in flags)]))
