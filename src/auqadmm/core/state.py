"""What an iteration reads and what it returns: frozen data, `state → new state`.

Shapes: B blocks of this process, N blocks in all, m features, C columns of the unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from auqadmm.metrics.weights import Metric, Weights

if TYPE_CHECKING:
    from auqadmm.local.base import LocalStep
    from auqadmm.problem.regularizers import Regularizer
    from auqadmm.verdict.queries import ColumnMoments

ROUND_COST = 32_000  # numbers that a link carries during one round trip


class Status(str, Enum):
    """How a run ended. Compares equal to its name, e.g. `result.status == "converged"`.

    Examples
    --------
    >>> import auqadmm as aq
    >>> aq.Status.converged == "converged"
    True
    >>> [str(status) for status in aq.Status]
    ['converged', 'max_iter', 'time_limit', 'interrupted', 'diverged', 'residuals', 'rounding', 'undecided']
    """

    converged = "converged"
    max_iter = "max_iter"
    time_limit = "time_limit"
    interrupted = "interrupted"
    diverged = "diverged"
    residuals = "residuals"
    rounding = "rounding"
    undecided = "undecided"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class WarmStart:
    """Where to start.

    Parameters
    ----------
    v
        The model (m, C), an intercept's row last.
    lam
        Multipliers (N, m, C); None: the gradients at v, which is right when v is a solution.
    weights, method
        The weights of a run and the method that made them; RB- and AC-ADMM take their own penalties over.

    Examples
    --------
    >>> import numpy as np
    >>> import auqadmm as aq
    >>> X, y = np.array([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0], [2.0, 1.0]]), np.array([1.0, 2.0, 3.0, 6.0])
    >>> problem = aq.Problem(aq.LeastSquares(), aq.L2(1.0), [(X[:2], y[:2]), (X[2:], y[2:])])
    >>> first = aq.solve(problem, "c-admm", max_iter=5, certificate_tol=0)
    >>> start = aq.WarmStart(first.v, first.lam)
    >>> aq.solve(problem, "c-admm", warm_start=start).status == "converged"
    True
    """

    v: Tensor
    lam: Tensor | None = None
    weights: Weights | None = None
    method: str | None = None


@dataclass(frozen=True)
class Setup:
    """What stays fixed during a run, replicated.

    Attributes
    ----------
    blocks, features, columns
        N, m (with the intercept's row) and C.
    intercept
        Is the last row of v a free intercept?
    regularizer
        g.
    solve
        The u-step: the local problems of all blocks of a process.
    device
        Where v lives.
    seed
        Of random starts and vectors.
    start
        "zeros" or "random", the first u_j.
    scoring
        Are f_j(v) and ∇f_j(v) summed with every iteration?
    precision
        The rounding unit of the arithmetic on blocks.
    warm
        A start from earlier results.
    image
        The shape of the features, if they are pixels.
    loss
        That of the problem.
    names
        Of the features, if they have any.
    seen
        What round 0 measured on the columns, if it ran.
    rows
        Of all blocks; 0 if not counted.
    round_cost
        What a round costs beside its numbers, in numbers.

    Examples
    --------
    What a method's `init` is given; by hand only in a test of one:

    >>> import auqadmm as aq
    >>> setup = aq.methods.Setup(blocks=2, features=3, columns=1, intercept=True, regularizer=aq.L2(1.0), solve=None)
    >>> setup.unknowns, setup.first_v().shape
    (3, torch.Size([3, 1]))
    """

    blocks: int
    features: int
    columns: int
    intercept: bool
    regularizer: Regularizer
    solve: LocalStep
    device: torch.device | str = "cpu"
    seed: int = 0
    start: str = "zeros"
    scoring: bool = False
    precision: float = 2.3e-16
    warm: WarmStart | None = None
    image: tuple[int, ...] | None = None
    loss: Any = None
    names: tuple[str, ...] | None = None
    seen: ColumnMoments | None = None
    rows: int = 0
    round_cost: float = ROUND_COST

    @property
    def unknowns(self) -> int:
        return self.features * self.columns

    def zeros(self) -> Tensor:
        """A model of zeros.

        Returns
        -------
        Tensor
            (m, C).
        """
        return torch.zeros(self.features, self.columns, dtype=torch.float64, device=self.device)

    def first_v(self) -> Tensor:
        """Where a run starts.

        Returns
        -------
        Tensor
            (m, C): the warm start's v, or zeros.
        """
        zero = self.zeros()
        return zero if self.warm is None else self.warm.v.to(zero)


@dataclass(frozen=True)
class Blocks:
    """The state of the blocks of a process, kept with the data.

    Attributes
    ----------
    u, lam
        u_j and λ_j, (B, m, C).
    W
        The weights; None before the first iteration.
    failed
        (B,): the last local solve missed its tolerance.
    memory
        The method's arrays, or tuples of arrays.
    solver_memory
        Whatever the local solver keeps.

    Examples
    --------
    >>> import torch
    >>> import auqadmm as aq
    >>> zero = torch.zeros(2, 3, 1)
    >>> blocks = aq.methods.Blocks(zero, zero, W=None, failed=torch.zeros(2, dtype=torch.bool))
    >>> len(blocks.u), dict(blocks.memory)
    (2, {})
    """

    u: Tensor
    lam: Tensor
    W: Any
    failed: Tensor
    memory: Mapping[str, Any] = field(default_factory=dict)
    solver_memory: Any = None


@dataclass(frozen=True)
class Cost:
    """The total cost of an iterate.

    Attributes
    ----------
    rounds
        So far.
    up, down
        Bytes of one worker.
    hvps
        Hessian-vector products.

    Examples
    --------
    >>> import auqadmm as aq
    >>> aq.methods.Cost(rounds=3, up=2400)
    Cost(rounds=3, up=2400, down=0, hvps=0)
    """

    rounds: int = 0
    up: int = 0
    down: int = 0
    hvps: int = 0


@dataclass(frozen=True)
class Residuals:
    """Norms of S3, over all blocks. `reference` is the size of W_j(u_j − v), the scale of inner tolerances."""

    primal: float
    dual: float
    u_norm: float
    v_norm: float
    lam_norm: float
    reference: float
    scale: float


@dataclass(frozen=True)
class Consensus:
    """The replicated state. The pending v-step is argmin g + ½⟨v, Kv⟩ − ⟨s, v⟩ (S2).

    Attributes
    ----------
    setup
        What stays fixed.
    iteration
        Complete ones.
    v, v_prev, s
        (m, C) in float64: the model, the one before, and the linear term of the next v-step.
    metric
        K of the next v-step.
    residuals, reference
        Norms of S3; the scale of inner tolerances.
    scalars, memory
        The method's own; `memory` is whatever frozen object it likes.
    hvps
        Hessian-vector products so far.
    inner_failures, not_finite
        How many blocks missed their tolerance in the last local solves, or have NaN or infinity.
    failed_blocks
        Which missed it in the solves before.
    cost
        Of v.
    scored
        The sums of a certificate at v, if summed with the iteration (`setup.scoring`).
    predicted
        How much F would fall by the method's own model, where that is free: it decides when a verdict is run.

    Examples
    --------
    >>> from dataclasses import replace
    >>> import auqadmm as aq
    >>> setup = aq.methods.Setup(blocks=2, features=3, columns=1, intercept=True, regularizer=aq.L2(1.0), solve=None)
    >>> shared = aq.methods.Consensus(setup, iteration=0, v=setup.first_v())
    >>> replace(shared, iteration=1).iteration, shared.iteration
    (1, 0)
    """

    setup: Setup
    iteration: int
    v: Tensor
    s: Tensor | None = None
    metric: Metric | None = None
    v_prev: Tensor | None = None
    residuals: Residuals | None = None
    reference: float | None = None
    scalars: Mapping[str, float] = field(default_factory=dict)
    hvps: int = 0
    inner_failures: int = 0
    not_finite: int = 0
    failed_blocks: tuple[int, ...] = ()
    cost: Cost = Cost()
    memory: Any = None
    scored: Mapping[str, Tensor] | None = None
    predicted: float | None = None

    @property
    def exactly(self) -> Mapping[str, Tensor] | None:
        """The sums that a verdict at v is made of, Hessian and all, where the method has them (`verdict`)."""
        return getattr(self.memory, "exactly", None)

    @property
    def still(self) -> bool:
        """Does the method know that it cannot lower F any further, within rounding?"""
        return getattr(self.memory, "still", False)


@dataclass(frozen=True)
class State:
    """A whole run between two iterations.

    Attributes
    ----------
    blocks
        The state of the blocks, or an engine's handle to it.
    shared
        The replicated state.

    Examples
    --------
    Gradient descent with steps of length 0.1, by a map that sums the gradients of blocks:

    >>> from dataclasses import replace
    >>> import auqadmm as aq
    >>> def gradient(shard, blocks, v):
    ...     return blocks, {"G": shard.linearize(shard.expand(v)).grad.sum(0)}
    >>> class Descent:
    ...     name = "descent"
    ...     def init(self, setup, reduce):
    ...         return aq.methods.State(None, aq.methods.Consensus(setup, iteration=0, v=setup.first_v()))
    ...     def step(self, state, reduce):
    ...         old = state.shared
    ...         blocks, sums = reduce(gradient, state.blocks, old.v)
    ...         v = old.setup.regularizer.prox(10 * old.v - sums["G"], 10.0)
    ...         return aq.methods.State(blocks, replace(old, iteration=old.iteration + 1, v=v, v_prev=old.v))
    >>> problem = aq.Problem(aq.LeastSquares(), aq.L2(1.0), [([[1.0]], [2.0]), ([[1.0]], [4.0])])
    >>> aq.solve(problem, Descent()).coef.round(1)
    array([2.])
    """

    blocks: Any
    shared: Consensus
