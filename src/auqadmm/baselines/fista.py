"""FISTA: accelerated proximal gradient with adaptive step length, one reduction per iteration.

    minimise over v   f(v) + g(v),  f = Σ_j f_j
    x⁺   argmin g(x) + ⟨∇f(y), x⟩ + L/2‖x − y‖²
    t⁺   (1 + √(1 + 4θt²))/2,   θ = L⁺/L
    y⁺   x⁺ + (t − 1)/t⁺ · (x⁺ − x)
    test f(x⁺) ≤ f(y) + ⟨∇f(y), x⁺ − y⟩ + L/2‖x⁺ − y‖²,   else x⁺ again from the same y with a larger L

Neither y⁺ nor ∇f(y⁺) needs the outcome of the test, so f(x⁺) is sent with f(y⁺) and ∇f(y⁺): n + 2 numbers up; with
them all that a certificate at x⁺ needs where every iterate is certified, n + 1 numbers more. The test is FISTA's own,
not a substitute, and an x⁺ that fails it never becomes an iterate. With it, and with θ where L was lowered (a larger L
than planned is harmless), F(x_k) − F* ≤ L_k/(2t_k²)·‖x₀ − x*‖² until the first restart.

L falls by half per iteration until the test rejects it in some iteration k, and is then kept until 2k + 10;
at every restart it falls by half once: there t = 1, and nothing proved before is needed. Where both sides of the
test are rounding it counts as passed, and gradients decide: ‖Δ∇f‖/‖Δy‖ over the last two y never exceeds the Lipschitz
constant, so L is raised to it.

The momentum is restarted when ⟨y − x⁺, x⁺ − x⟩ > 0: it points uphill.

Reference: A. Beck, M. Teboulle, SIAM J. Imaging Sci. 2 (2009); K. Scheinberg, D. Goldfarb, X. Bai, Found. Comput.
Math. 14 (2014) for a falling L; B. O'Donoghue, E. Candès, Found. Comput. Math. 15 (2015) for the restart.

Shapes: m features, C columns, n = m·C; x, y, ∇f (m, C).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from auqadmm.baselines.objective import (
    OBJECTIVE_ULPS,
    advance,
    diverged,
    dot,
    scored,
    unchanged,
    value_and_gradient,
)
from auqadmm.checks import positive
from auqadmm.core.reduce import B, Reduce, Sums, score
from auqadmm.core.state import Consensus, Cost, Setup, State
from auqadmm.metrics.weights import sum_blocks

if TYPE_CHECKING:
    from auqadmm.blocks.shard import Shard

FISTA_TRIALS = 100  # of L in one iteration, each a round: far more than the growth of L can need
DOWN = 0.5  # L is tried this much smaller, so that it can follow a curvature that falls
UP = (2.0, 10.0)  # a rejected L grows by the factor that the test indicates, within these bounds
FISTA_PATIENCE = 10  # rejected in iteration k, L is not lowered before iteration 2k + this
BITS = 10  # bits kept of a first L


@dataclass(frozen=True)
class FISTAMemory:
    """Replicated: f and ∇f at y, L and t for the next step. The iterate itself is x.

    `frozen`: the iteration before which L is not lowered, since the test rejected a smaller one recently.
    """

    y: Tensor
    f: float
    G: Tensor
    L: float
    t: float
    frozen: int
    ulp: float
    used: tuple[float, float] = (math.inf, 1.0)
    """(L, t) that led to x, which determine its bound; none before the first step."""


@dataclass(frozen=True)
class FISTA:
    """Accelerated proximal gradient on the sum over all workers, for any g with a proximal map.

    Parameters
    ----------
    restart
        Drop the momentum when it points uphill.
    lipschitz
        First guess of the Lipschitz constant of ∇f, far too small or too large is harmless; None: measured near
        the start, by one more gradient.

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
    >>> aq.solve(problem, aq.baselines.FISTA()).coef.round(1)
    array([2., 1.])
    """

    restart: bool = True
    lipschitz: float | None = None
    name: ClassVar[str] = "fista"

    def __post_init__(self) -> None:
        if self.lipschitz is not None:
            positive("lipschitz", self.lipschitz)

    def init(self, setup: Setup, reduce: Reduce) -> State:
        y, ulp, cost = setup.first_v(), setup.precision, reduce.cost(hvps=0)
        _, sums = reduce(score if setup.scoring else value_and_gradient, None, y, down=(y,))
        G = sums["G"]
        L = _slope_change(reduce, y, G, ulp) if self.lipschitz is None else self.lipschitz
        memory = FISTAMemory(y, float(sums["f"]), G, L, t=1.0, frozen=0, ulp=ulp)
        return State(None, Consensus(setup=setup, iteration=0, v=y, cost=cost, memory=memory, scored=scored(sums)))

    def step(self, state: State, reduce: Reduce) -> State:
        old, now = state.shared, state.shared.memory
        if not (math.isfinite(now.f) and bool(now.G.isfinite().all())):
            return diverged(state, reduce.cost(hvps=0))
        L, frozen, momentum = now.L, now.frozen, True
        patience = 2 * old.iteration + FISTA_PATIENCE
        for _ in range(FISTA_TRIALS):
            x = old.setup.regularizer.prox(L * now.y - now.G, L)
            plan = self._plan(now, old.v, x, old.iteration < frozen, momentum)
            y = x + plan.beta * (x - old.v) if plan.beta > 0 else x
            trial = _evaluate(reduce, x, y, plan.beta, old.setup.scoring)
            if not trial.finite:  # overflow: shorter, and without momentum in case that caused it
                L, frozen, momentum = UP[1] * L, patience, False
                continue
            d = x - now.y
            change = trial.f_x - now.f - dot(now.G, d)
            model = 0.5 * L * dot(d, d)
            noise = OBJECTIVE_ULPS * now.ulp * max(abs(now.f), abs(trial.f_x))
            if change <= model + noise:
                significant = model > noise
                L_next = plan.theta * L if significant else max(L, _curvature(trial.G - now.G, y - now.y))
                memory = FISTAMemory(y, trial.f, trial.G, L_next, plan.t, frozen, now.ulp, (L, now.t))
                return advance(state, x, trial.cost, memory, trial.scored)
            # the change shows by how much L is too small; beyond ten times it may only be a distant steep part of f
            # model = 0: d² underflowed
            missing = change / model if model > 0 else UP[0]
            L, frozen = L * min(max(missing, UP[0]), UP[1]), patience
        # every trial overflowed: x stays, and the next step starts with a far shorter one
        restarted = FISTAMemory(now.y, now.f, now.G, L, 1.0, patience, now.ulp)
        return unchanged(state, reduce.cost(hvps=0), restarted)

    def _plan(self, now: FISTAMemory, x_old: Tensor, x: Tensor, frozen: bool, momentum: bool) -> _Plan:
        """The next step from x, before anything about x is known."""
        if not momentum or (self.restart and dot(now.y - x, x - x_old) > 0):
            return _Plan(theta=DOWN if momentum else 1.0, t=1.0, beta=0.0)
        theta = 1.0 if frozen else DOWN
        t = 0.5 * (1 + math.sqrt(1 + 4 * theta * now.t**2))
        return _Plan(theta, t, (now.t - 1) / t)


@dataclass(frozen=True)
class _Plan:
    theta: float
    t: float
    beta: float


@dataclass(frozen=True)
class _Trial:
    f_x: float
    f: float
    G: Tensor
    cost: Cost
    scored: Mapping[str, Tensor] | None

    @property
    def finite(self) -> bool:
        return math.isfinite(self.f_x) and math.isfinite(self.f) and bool(self.G.isfinite().all())


def _evaluate(reduce: Reduce, x: Tensor, y: Tensor, beta: float, scoring: bool) -> _Trial:
    """One round. A worker forms y from x, the previous x and β: n + 1 numbers down."""
    cost = reduce.cost(hvps=0)
    work = _scores_and_next_gradient if scoring else value_and_next_gradient
    _, sums = reduce(work, None, (x, y), down=(x, torch.tensor(beta)))
    return _Trial(float(sums["f"]), float(sums["f_y"]), sums["G_y"], cost, scored(sums))


def value_and_next_gradient(shard: Shard, blocks: B, points: tuple[Tensor, Tensor]) -> tuple[B, Sums]:
    """Σ f_j(x), Σ f_j(y) and Σ ∇f_j(y), a map over blocks."""
    x, y = points
    _, sums = value_and_gradient(shard, blocks, y)
    f = sum_blocks(shard.linearize(shard.expand(x)).value)
    return blocks, {"f": f, "f_y": sums["f"], "G_y": sums["G"]}


def _scores_and_next_gradient(shard: Shard, blocks: B, points: tuple[Tensor, Tensor]) -> tuple[B, Sums]:
    """The same with all that a certificate at x needs, n + 1 numbers more."""
    return blocks, value_and_next_gradient(shard, blocks, points)[1] | score(shard, blocks, points[0])[1]


def _slope_change(reduce: Reduce, y: Tensor, G: Tensor, ulp: float) -> float:
    """‖∇f(y + h) − ∇f(y)‖/‖h‖ for a short h along −∇f(y): a first L, and one round."""
    size = float(G.norm())
    # ∇f(y) = 0: f gives no direction, and any L will do
    h = -G * (math.sqrt(ulp) * max(1.0, float(y.norm())) / size) if size > 0 else G
    _, sums = reduce(value_and_gradient, None, y + h, down=(y + h,))
    L = float((sums["G"] - G).norm() / h.norm()) if size > 0 else 0.0
    # f is linear along h, or overflows: no information; the test will adapt L
    if not math.isfinite(L) or L <= 0:
        return 1.0
    # half the digits of a difference of gradients: the others depend on the order of summation
    mantissa, exponent = math.frexp(L)
    return math.ldexp(round(2**BITS * mantissa), exponent - BITS)


def _curvature(dG: Tensor, dy: Tensor) -> float:
    """‖ΔG‖/‖Δy‖, a lower bound on the Lipschitz constant; 0 where y did not move."""
    moved = float(dy.norm())
    return float(dG.norm()) / moved if moved > 0 else 0.0
