"""Limited-memory BFGS: what pairs say of the inverse Hessian, and the u-step of all blocks at once with a memory that
outlives it.

The inverse Hessian, in two forms:

    s_i = u⁺ − u,  y_i = ∇F⁺ − ∇F    the last h pairs, oldest first

`Pairs`: the two-loop recursion, on top of γI, γ = ⟨s,y⟩/⟨y,y⟩, or of any other matrix.
`InverseHessian`: the compact form, on top of a model B of ∇²F_j:

    H = H₀ + [S  H₀Y] ⎡ R⁻ᵀ(D + YᵀH₀Y)R⁻¹   −R⁻ᵀ ⎤ ⎡ Sᵀ  ⎤      R: s_iᵀy_j for i ≤ j,   D its diagonal
                      ⎣        −R⁻¹            0  ⎦ ⎣ YᵀH₀ ⎦      H₀ = (τB)⁻¹

so that    q = R⁻¹Sᵀg,   r = H₀(g − Yq),   Hg = r + S R⁻ᵀ(Dq − Yᵀr)         one solve with B, none when a pair is added

τ = ⟨s, y⟩ / ⟨s, Bs⟩ of the newest pair: the model then has the curvature of F_j along the last step. Products with S
and Y as whole arrays, of which there are a handful, take the place of a recursion over the pairs.

Every block has its own pairs: a block may skip one (⟨s,y⟩ lost to rounding) while others keep theirs. A slot that
was never filled holds zeros, which both forms pass over by themselves.

The u-step:

    P = −H∇F_j,   u ← u + tP,   H from the last pairs s = u⁺ − u, y = ∇F⁺ − ∇F

From one iteration to the next f_j is the same and W_j nearly so. So pairs are kept, y corrected for the change of
W_j, and so is the model of ∇²F_j that H is built upon, renewed when the curvature changed; a mere diagonal at the 2nd,
4th, 8th, … solve. A solve starts from an extrapolated solution (descent.py).

The model: a few directions and a diagonal, or a diagonal alone.

    B_j = (U_j M_j U_jᵀ + diag d_j) ⊗ S_j + ρ_j I                     as the weights of AUQ-LR (`metrics/lowrank.py`)
    A_j = Σ_i w_i x_ix_iᵀ,  w_i = c_i tr φ''(z_i)       U_j = orth(A_j·U_before)       M_j = U_jᵀA_jU_j
    d_j = max(0, diag(A_j − U_jM_jU_jᵀ))                S_j = Σ|x_i|²c_iφ''(z_i) / Σ|x_i|²w_i

Local problems have few directions of curvature far above ρ_j, and others alike: with these known, half of the
steps are saved that the diagonal takes. U_j starts at random and improves each time; one product is enough, since
the spectrum of rows falls fast, and L-BFGS steps correct the rest. It is renewed when the curvature as a whole,
e_j = Σ|x_i|²w_i = tr A_j, has changed, which takes no product to detect. From u = 0 it falls a hundredfold within the
first solve.

One step reads X twice, as a Hessian-vector product does, and counts as one.

Reference: J. Nocedal, S. J. Wright, Numerical Optimization, 2nd ed., section 7.2; R. H. Byrd, J. Nocedal,
R. B. Schnabel, Math. Program. 63 (1994), theorem 2.2.

Shapes: B blocks, m features, C columns, n = m·C unknowns, h pairs; g (B, m, C); of `Pairs` S, Y (B, h, m, C);
of `InverseHessian` S, Y (B, h, n), R (B, h, h), τ (B,);
R flat rows, r directions; u, gradients, P (B, m, C), stacked pairs
(B, h, m·C); U (B, m, r), M (B, r, r), d (B, m), S (B, C, C).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from auqadmm.blocks.curvature import times
from auqadmm.blocks.loss import Point
from auqadmm.blocks.parts import Part, part
from auqadmm.blocks.rows import RowPoint
from auqadmm.checks import check_count
from auqadmm.local.base import Bounded, Iterate, LocalProblem, LocalSolution, count, norm, over, select
from auqadmm.local.descent import (
    BlockProgress,
    DescentSolver,
    DescentStep,
    Extrapolation,
    RecalledState,
    Tolerance,
    extrapolate,
    line_search_step,
)
from auqadmm.metrics.lowrank import LowRank
from auqadmm.metrics.weights import Diagonal, Scalar, Weights, dot, equal


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
            _push(self.S, s, keep),
            _push(self.Y, y, keep),
            _push(self.rho, 1 / sy, keep),
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


def _push(stack: Tensor, x: Tensor, keep: Tensor) -> Tensor:
    return select(keep, torch.cat([stack[:, 1:], x[:, None]], dim=1), stack)


# ---------------------------------------------------------------------- in compact form


@dataclass(frozen=True)
class InverseHessian:
    """H for every block. R has ones on its diagonal where a slot is empty."""

    S: Tensor
    Y: Tensor
    R: Tensor
    model: Weights
    tau: Tensor

    @classmethod
    def of(cls, S: Tensor, Y: Tensor, model: Weights) -> InverseHessian:
        R = (S @ Y.mT).triu()
        empty = R.diagonal(dim1=1, dim2=2) == 0
        unscaled = cls(S, Y, R + torch.diag_embed(empty.to(R.dtype)), model, torch.ones_like(R[:, 0, 0]))
        return unscaled.upon(model)

    @classmethod
    def empty(cls, like: Tensor, history: int, model: Weights) -> InverseHessian:
        """Without a pair; like: (B, m, C)."""
        S = like.new_zeros(len(like), history, like[0].numel())
        R = torch.eye(history, dtype=S.dtype, device=S.device).repeat(len(S), 1, 1)
        return cls(S, S, R, model, torch.ones_like(R[:, 0, 0]))

    def upon(self, model: Weights) -> InverseHessian:
        """The same pairs on another model."""
        shape = model.diagonal().shape
        s, y = (x[:, -1].reshape(shape) for x in (self.S, self.Y))
        return replace(self, model=model, tau=_initial_scale(s, y, model, torch.ones_like(self.tau)))

    def solve(self, g: Tensor) -> Tensor:
        """H₀g."""
        return self.model.solve(g) / over(self.tau, g)

    def apply(self, g: Tensor) -> Tensor:
        """Hg, in the shape (B, m, C) of g."""
        x = g.reshape(len(self.S), 1, -1)
        # an empty slot: q = 0, so the one on the diagonal adds nothing
        q = torch.linalg.solve_triangular(self.R, (x @ self.S.mT).mT, upper=True)
        r = self.solve((x - q.mT @ self.Y).reshape(g.shape))
        rest = self.R.diagonal(dim1=1, dim2=2)[..., None] * q - (r.reshape(x.shape) @ self.Y.mT).mT
        w = torch.linalg.solve_triangular(self.R.mT, rest, upper=False)
        return r + (w.mT @ self.S).reshape(g.shape)

    def forget(self, some: Tensor) -> InverseHessian:
        """Without the pairs of the blocks where the mask holds."""
        fresh = torch.eye(self.R.shape[1], dtype=self.R.dtype, device=self.R.device).expand_as(self.R)
        S, Y = (x.masked_fill(over(some, x), 0.0) for x in (self.S, self.Y))
        return InverseHessian(S, Y, select(some, fresh, self.R), self.model, self.tau.masked_fill(some, 1.0))

    def take(self, index: Tensor) -> InverseHessian:
        """Restricted to some blocks."""
        return InverseHessian(self.S[index], self.Y[index], self.R[index], self.model.take(index), self.tau[index])

    def put(self, index: Tensor, some: InverseHessian, renewed: bool = True) -> InverseHessian:
        """With that of some blocks replaced; their model is the same unless `renewed`."""
        pairs = ((self.S, some.S), (self.Y, some.Y), (self.R, some.R), (self.tau, some.tau))
        S, Y, R, tau = (x.index_copy(0, index, y) for x, y in pairs)
        return InverseHessian(S, Y, R, put_model(self.model, index, some.model) if renewed else self.model, tau)

    def push(self, s: Tensor, y: Tensor, keep: Tensor) -> InverseHessian:
        """Append a pair (B, m, C) in the blocks where `keep` holds; the oldest leaves."""
        tau = torch.where(keep, _initial_scale(s, y, self.model, self.tau), self.tau)
        s, y = s.flatten(1), y.flatten(1)
        S, Y = _append(self.S, s, keep), _append(self.Y, y, keep)
        R = torch.zeros_like(self.R)
        R[:, :-1, :-1], R[:, :, -1] = self.R[:, 1:, 1:], (y[:, None] @ S.mT)[:, 0]
        return InverseHessian(S, Y, select(keep, R, self.R), self.model, tau)


def put_model(model: Weights, index: Tensor, some: Weights) -> Weights:
    """With the model of some blocks replaced."""
    if isinstance(model, LowRank) and isinstance(some, LowRank):
        names = ("U", "M", "d", "S", "phi")
        return replace(
            model, **{name: getattr(model, name).index_copy(0, index, getattr(some, name)) for name in names}
        )
    return Diagonal(model.diagonal().index_copy(0, index, some.diagonal()))


def _initial_scale(s: Tensor, y: Tensor, model: Weights, other: Tensor) -> Tensor:
    """τ (B,); the `other` where a pair does not determine it."""
    tau = dot(s, y) / dot(s, model.apply(s))
    return torch.where((tau > 0) & tau.isfinite(), tau, other)


def _append(stack: Tensor, x: Tensor, keep: Tensor) -> Tensor:
    """(B, h, n) with x (B, n) as the last and without the first, where `keep` holds: one copy."""
    if bool(keep.all()):
        return torch.cat([stack[:, 1:], x[:, None]], 1)
    blocks, h, n = stack.shape
    slot = torch.arange(h, device=x.device) + keep[:, None]
    first = h * torch.arange(blocks, device=x.device)[:, None]
    out = stack.reshape(blocks * h, n).index_select(0, (first + slot.clamp(max=h - 1)).flatten()).reshape(stack.shape)
    out[:, -1] = select(keep, x, out[:, -1])
    return out


# Chosen, not measured, but for the model's directions.
# a pair is kept if its change of the gradient is at least so many times the rounding error of its terms
CLEAR = 1e3
# directions of a block (steps per solve with and without them: results/speed/log.md); the data take at least so many
# times the room of one
MODEL_RANK, MODEL_ROOM = 16, 16
# the factor by which the curvature of a block may change before its model is renewed
MODEL_CHANGE = 2.5


@dataclass(frozen=True)
class LBFGSMemory:
    """What a solve leaves to the next: the inverse Hessian, for the weights W, and u at the last anchor (B, m, C)."""

    inverse: InverseHessian
    W: Weights
    path: Extrapolation
    anchor: Tensor | None = None


@dataclass(frozen=True)
class LBFGS(Bounded, DescentSolver):
    """L-BFGS with the line search of `NewtonCG`: cheap steps, few of them once it knows the problem.

    Parameters
    ----------
    factor, tol
        As in `Accurate`.
    history
        Pairs kept per block.
    max_iter
        Steps of one solve.
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
    >>> aq.solve(problem, "c-admm", local=aq.local.LBFGS(tol=1e-8)).coef.round(1)
    array([2., 1.])
    """

    history: int = 10
    max_iter: int = 200

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("history", self.history)
        check_count("max_iter", self.max_iter)

    def recall(self, problem: LocalProblem, memory: object) -> RecalledState:
        if isinstance(memory, LBFGSMemory) and memory.inverse.S.shape[1] == self.history:
            return RecalledState(memory, memory.anchor, memory.path)
        return RecalledState()

    def remember(
        self, problem: LocalProblem, before: Tensor, solution: LocalSolution, recalled: RecalledState
    ) -> LBFGSMemory:
        """Where no step was needed, the pairs are unchanged."""
        state, anchor = solution.memory.state, solution.memory.anchor
        path = extrapolate(before, solution.u, recalled.path, problem.shard.programs)
        if isinstance(state, LBFGSMemory):
            return replace(state, path=path, anchor=anchor)
        return LBFGSMemory(state.inverse, problem.W, path, anchor)

    def step(
        self, problem: LocalProblem, iterate: Iterate, progress: BlockProgress, tolerance: Tolerance, state: LBFGSState
    ) -> DescentStep:
        """One step of the active blocks; the state is the inverse Hessian."""
        if progress.round > 0:
            state = _renew_models(problem, iterate, progress.active, state)
        step = line_search_step(
            problem, iterate, progress, _direction(iterate, state.inverse), count(iterate) + progress.active, state
        )
        inverse = _update_pairs(iterate, step.there, state.inverse, step.moved & progress.active)
        return replace(step, state=replace(state, inverse=inverse))

    def begin(self, problem: LocalProblem, iterate: Iterate, progress: BlockProgress, state: Any) -> Any:
        if state is not None and not progress.flags[0]:
            return state
        return LBFGSState(_first_inverse(problem, iterate, progress.active, state, self.history))

    def take(self, state: LBFGSState, some: Part) -> LBFGSState:
        return LBFGSState(state.inverse.take(some.blocks))

    def put(self, state: LBFGSState, some: Part, new: LBFGSState) -> LBFGSState:
        return LBFGSState(state.inverse.put(some.blocks, new.inverse, new.renewed), state.renewed or new.renewed)


@dataclass(frozen=True)
class LBFGSState:
    """The state of a solve: the inverse Hessian, and whether its model was `renewed`."""

    inverse: InverseHessian
    renewed: bool = False


def _first_inverse(
    problem: LocalProblem, iterate: Iterate, active: Tensor, known: LBFGSMemory | None, history: int
) -> InverseHessian:
    """The initial state; a block that has converged already keeps its model."""
    if known is None:
        return InverseHessian.empty(iterate.u, history, model_at(problem, iterate.point, None))
    W, inverse = problem.W, known.inverse
    model, same = inverse.model, equal(known.W, W)
    if not same_kind(model, problem, iterate.point):
        old = torch.ones_like(active)
        model = model_at(problem, iterate.point, model)
    else:
        old = active & (is_outdated(model, iterate.point) if isinstance(model, LowRank) else known.path.renew)
        if not same:
            model = reweight(model, known.W, W)
        if old.any():
            model = renew_blocks(problem, iterate.point, model, old)
    if same:
        return inverse.upon(model) if old.any() else inverse
    S, Y = inverse.S, inverse.Y
    steps = S.mT.reshape(*iterate.u.shape, history)
    Y = (Y + (W.apply(steps) - known.W.apply(steps)).reshape(S.mT.shape).mT).contiguous()
    return InverseHessian.of(S, Y, model)


def _renew_models(problem: LocalProblem, iterate: Iterate, active: Tensor, state: LBFGSState) -> LBFGSState:
    """During a solve: a new model, without pairs, of each block whose curvature the old one no longer fits."""
    gone = is_outdated(state.inverse.model, iterate.point) & active
    if not gone.any():
        return state
    model = renew_blocks(problem, iterate.point, state.inverse.model, gone)
    return LBFGSState(state.inverse.forget(gone).upon(model), renewed=True)


def _direction(iterate: Iterate, inverse: InverseHessian) -> Tensor:
    P = -inverse.apply(iterate.grad)
    return select(dot(iterate.grad, P) < 0, P, -inverse.solve(iterate.grad))


def _update_pairs(iterate: Iterate, there: Iterate, inverse: InverseHessian, moved: Tensor) -> InverseHessian:
    s, y = there.u - iterate.u, there.grad - iterate.grad
    # ⟨s,y⟩ > 0 in exact arithmetic, since W_j is positive definite; a pair that is only rounding error is skipped
    eps = torch.finfo(s.dtype).eps
    clear = (dot(s, y) > eps * norm(s) * norm(y)) & (norm(y) > CLEAR * iterate.rounding_error)
    return inverse.push(s, y, moved & clear)


# ---------------------------------------------------------------------- the model of ∇²F_j, before pairs improve it


def renew_blocks(problem: LocalProblem, point: Point, old: Weights, some: Tensor) -> Weights:
    """The old model, with that of some blocks (B,) made anew at a point."""
    going = [j for j, goes in enumerate(some.tolist()) if goes]
    apart = part(problem.shard, going) if isinstance(point, RowPoint) and len(going) < len(some) else None
    if apart is None:
        new = model_at(problem, point, old)
        return new if len(going) == len(some) else put_model(old, some.nonzero()[:, 0], new.take(some))
    assert isinstance(point, RowPoint)
    return put_model(old, apart.blocks, model_at(problem.take(apart), point.take(apart), old.take(apart.blocks)))


def model_at(problem: LocalProblem, point: Point, old: Weights | None) -> Weights:
    """The model at a point, improving the directions of the old one, if any."""
    rank = _rank(problem, point)
    if rank == 0:
        return Diagonal(problem.hessian_diagonal(point))
    assert isinstance(point, RowPoint)
    assert isinstance(problem.W, Scalar)
    design, single_precision = problem.shard.design, point.anchor is not None
    B, m, C = problem.shard.shape
    rows = point.row_model(None)
    w = rows.trace[:, None]
    start = old.U if isinstance(old, LowRank) else _random_directions(m, rank, w).expand(B, m, rank)
    U = torch.linalg.qr(design.adjoint(w * design.forward(start, single_precision), single_precision))[0]
    XU = design.forward(U, single_precision)
    M = design.inner(w * XU, XU)
    d = (design.adjoint_squared(w, single_precision)[..., 0] - ((U @ M) * U).sum(2)).clamp(min=0)
    # a block without curvature (or rows) couples no columns
    S = rows.S / rows.energy[:, None, None]
    fine = torch.stack([x.isfinite().flatten(1).all(1) for x in (U, M, d, S)]).all(0)
    eye = torch.eye(C, dtype=S.dtype, device=S.device) / C
    U, M, d = (select(fine, x, torch.zeros_like(x)) for x in (U, 0.5 * (M + M.mT), d))
    return LowRank(U, M, d, select(fine, S, eye.expand_as(S)), problem.W.rho)


def reweight(model: Weights, before: Weights, W: Weights) -> Weights:
    """The same model for other weights."""
    if isinstance(model, LowRank):
        assert isinstance(W, Scalar)
        return replace(model, phi=W.rho)
    # the curvature of f_j is not negative, whatever rounding leaves of it
    own = W.diagonal()
    return Diagonal(torch.maximum(model.diagonal() - before.diagonal() + own, own))


def same_kind(model: Weights, problem: LocalProblem, point: Point) -> bool:
    """Is the model of the kind used for this problem?"""
    return isinstance(model, LowRank) == (_rank(problem, point) > 0)


def is_outdated(model: Weights, point: Point) -> Tensor:
    """(B,): the blocks whose curvature is far above or below that of their model. A diagonal model does not
    tell."""
    if not isinstance(model, LowRank) or not isinstance(point, RowPoint):
        return torch.zeros_like(point.u[:, 0, 0], dtype=torch.bool)
    design = point.shard.design
    w = times(point.shard.row_weight, point.curvature.diagonal().sum(1))
    now = design.sum_rows(design.squares(w) * w)
    then = model.M.diagonal(dim1=1, dim2=2).sum(1) + model.d.sum(1)
    return (now > MODEL_CHANGE * then) | (then > MODEL_CHANGE * now)


def _rank(problem: LocalProblem, point: Point) -> int:
    """How many directions, the same for all blocks of the problem; none where curvature is a spike or a step, which
    says little about the next point, or where W_j is not the same for all features."""
    shard = problem.shard
    if not isinstance(problem.W, Scalar) or not isinstance(point, RowPoint) or point.loss.expects:
        return 0
    if not shard.census.dense or not shard.blocks:
        return 0
    return min(MODEL_RANK, shard.design.features, sum(shard.census.rows) // (MODEL_ROOM * shard.census.blocks))


def _random_directions(m: int, rank: int, like: Tensor) -> Tensor:
    """The same for all blocks, wherever they are placed."""
    coins = torch.Generator().manual_seed(0)
    return torch.randn(m, rank, generator=coins, dtype=torch.float64).to(like)
