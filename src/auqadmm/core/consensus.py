"""The consensus step shared by all weighted methods: the paper's algorithm box, line by line (S2).

    v-step    v⁺ ← argmin g(v) + ½⟨v, Kv⟩ − ⟨s, v⟩              replicated; K = Σ W_j, s = Σ (W_j û_j − λ_j)
    dual      λ_j ← λ_j + W_j(v⁺ − û_j)                          per block; residuals r, s travel as scalars
    primal    W_j when due;  u_j ← argmin f_j(u) + ½‖v − u + W_j⁻¹λ_j‖²_{W_j};  û_j = αu_j + (1−α)v
              the next s (and K when W_j changed) is summed

`init` does the first primal part, `step` the three lines above, so that after step k the state holds v^k, λ^k, the
residuals of iteration k, and the sums for v^{k+1}. Dual and primal part share one reduction; methods that need the
residuals before they choose W_j (residual balancing) take two, and a range over all blocks (global normalisation)
takes a third, in the iterations in which weights are renewed.

Shapes: B blocks of this process, N in all, m features, C columns; u, lam (B, m, C), v, s (m, C).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from auqadmm.checks import relaxation
from auqadmm.core.reduce import Reduce, failed_blocks, score
from auqadmm.core.state import Blocks, Consensus, Residuals, Setup, State
from auqadmm.errors import InputError
from auqadmm.metrics.weights import DiagonalMetric, Metric, Weights, sum_blocks, sum_squares

if TYPE_CHECKING:
    from auqadmm.blocks.shard import Shard

Sums = dict[str, Tensor]

SQUARES = ("primal", "dual", "u", "lam", "moved")


@dataclass(frozen=True)
class Chosen:
    """New weights, the method's memory per block, and the Hessian-vector products they cost per block.

    Parameters
    ----------
    W
        W_j of all blocks of this process: one of `auqadmm.weights`.
    memory
        Arrays that the method keeps in `blocks.memory`: tensors with one entry per block.
    hvps
        Hessian-vector products that were made for it, per block.

    Examples
    --------
    >>> import torch
    >>> import auqadmm as aq
    >>> chosen = aq.methods.Chosen(aq.weights.Scalar(torch.ones(3), features=2, columns=1), memory={})
    >>> chosen.W.diagonal().shape, chosen.hvps
    (torch.Size([3, 2, 1]), 0)
    """

    W: Weights
    memory: Mapping[str, Tensor]
    hvps: int = 0


@dataclass(frozen=True, kw_only=True)
class ConsensusADMM(ABC):
    """Base of all weighted consensus methods; subclasses choose W_j.

    Parameters
    ----------
    relaxation
        α of S2; 1 is the paper's, 1 ≤ α < 2 allowed.
    residuals
        "weighted" (textbook dual residual) or "paper" (S3).

    Raises
    ------
    InputError
        `relaxation` is outside of [1, 2), or `residuals` is neither of the two.

    Examples
    --------
    W_j the diagonal of the Hessian at the start:

    >>> from dataclasses import dataclass
    >>> from typing import ClassVar
    >>> import numpy as np
    >>> import auqadmm as aq
    >>> @dataclass(frozen=True)
    ... class Jacobi(aq.methods.ConsensusADMM):
    ...     name: ClassVar[str] = "jacobi"
    ...     def first_weights(self, shard, blocks, shared):
    ...         d = shard.linearize(shard.expand(shared.v)).hessian_diagonal()
    ...         return aq.methods.Chosen(aq.weights.Diagonal(d.clamp(min=0.1)), memory={})
    >>> X, y = np.array([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0], [2.0, 1.0]]), np.array([1.0, 2.0, 3.0, 6.0])
    >>> problem = aq.Problem(aq.LeastSquares(), aq.L2(1.0), [(X[:2], y[:2]), (X[2:], y[2:])])
    >>> aq.solve(problem, Jacobi()).coef.round(1)
    array([2., 1.])
    """

    relaxation: float = 1.0
    residuals: str = "weighted"
    name: ClassVar[str] = ""
    accuracy: ClassVar[float] = 1.0  # of local solves, relative to the solver's own tolerance

    def __post_init__(self) -> None:
        relaxation(self.relaxation)
        if self.residuals not in ("weighted", "paper"):
            raise InputError(f"residuals must be 'weighted' or 'paper', got {self.residuals!r}.")

    # ------------------------------------------------------------------ what a method chooses
    @abstractmethod
    def first_weights(self, shard: Shard, blocks: Blocks, shared: Consensus) -> Chosen:
        """W_j of the first iteration; a map over blocks.

        Parameters
        ----------
        shard
            The blocks of a process.
        blocks
            Their state: u^0 and λ^0.
        shared
            The replicated state: v^0, scalars, setup.

        Returns
        -------
        Chosen
            Weights, and the method's memory.
        """

    def next_weights(self, shard: Shard, blocks: Blocks, shared: Consensus) -> Chosen:
        """W_j of iteration k + 1, called when `weights_due(shared)`; by default `first_weights`.

        Parameters
        ----------
        shard
            The blocks of a process.
        blocks
            Their state: u^k, λ^k, the weights so far.
        shared
            The replicated state: v^k, v^{k−1}.

        Returns
        -------
        Chosen
            Weights, and the method's memory.
        """
        return self.first_weights(shard, blocks, shared)

    def weights_due(self, shared: Consensus) -> bool:
        """Do the weights change after this iteration?

        Parameters
        ----------
        shared
            The replicated state; the answer must depend on nothing else, so that all processes agree.

        Returns
        -------
        bool
            False: W_j stay.
        """
        return False

    def observe(self, shard: Shard, blocks: Blocks, shared: Consensus) -> Mapping[str, Tensor]:
        """The method's memory, updated before λ_j moves.

        Parameters
        ----------
        shard
            The blocks of a process.
        blocks
            Their state: u^k, λ^{k−1}.
        shared
            The replicated state: v^k, v^{k−1}.

        Returns
        -------
        memory
            The next `blocks.memory`.
        """
        return blocks.memory

    def first_scalars(self, setup: Setup) -> Mapping[str, float]:
        """The method's replicated scalars at the start.

        Parameters
        ----------
        setup
            What stays fixed during the run.

        Returns
        -------
        scalars
            The first `shared.scalars`, by name.
        """
        return {}

    def separate(self, shared: Consensus) -> bool:
        """Does this iteration's primal part need a reduction of its own first? Then it takes more rounds.

        Parameters
        ----------
        shared
            The replicated state.

        Returns
        -------
        bool
            True: `prepare` is called between the dual and the primal part.
        """
        return False

    def prepare(self, blocks: Blocks, shared: Consensus, reduce: Reduce) -> tuple[Blocks, Consensus]:
        """Replicated values needed before the primal part (of the first iteration too, when iteration is 0).

        Parameters
        ----------
        blocks
            The state of the blocks.
        shared
            The replicated state.
        reduce
            For rounds of its own.

        Returns
        -------
        blocks, shared
            Both, with what was found.
        """
        return blocks, shared

    def metric(self, sums: Mapping[str, Tensor]) -> Metric:
        """K from the sums of the weights' `totals`.

        Parameters
        ----------
        sums
            Over all blocks.

        Returns
        -------
        Metric
            In which the v-step is taken.
        """
        return DiagonalMetric(sums["K"])

    # ------------------------------------------------------------------ the box
    def init(self, setup: Setup, reduce: Reduce) -> State:
        warm, v = setup.warm, setup.first_v()
        lam = None if warm is None or warm.lam is None else reduce.scatter(warm.lam)
        shared = Consensus(setup=setup, iteration=0, v=v, scalars=self.first_scalars(setup))
        blocks = reduce.place(start_blocks, lam, shared)
        blocks, shared = self.prepare(blocks, shared, reduce)
        blocks, sums = reduce(self.primal, blocks, shared, down=(v,))
        return State(blocks, self._pending(shared, sums))

    def step(self, state: State, reduce: Reduce) -> State:
        old = state.shared
        assert old.metric is not None
        assert old.s is not None
        failed = failed_blocks(state, reduce)
        v = old.metric.prox(old.setup.regularizer, old.s)  # v-step
        shared = replace(
            old,
            iteration=old.iteration + 1,
            v=v,
            v_prev=old.v,
            failed_blocks=failed,
            cost=reduce.cost(old.hvps),
        )
        if self.separate(shared):
            blocks, sums = reduce(self.dual, state.blocks, shared, down=(v,))
            blocks, shared = self.prepare(blocks, self._measured(shared, sums), reduce)
            blocks, sums = reduce(self.primal, blocks, shared)
        else:
            blocks, sums = reduce(self.dual_primal, state.blocks, shared, down=(v,))
            shared = self._measured(shared, sums)
        return State(blocks, self._pending(shared, sums))

    # ------------------------------------------------------------------ maps over blocks
    def dual(self, shard: Shard, blocks: Blocks, shared: Consensus) -> tuple[Blocks, Sums]:
        """λ-step and the squares of the residuals (S3), a map over blocks.

        Parameters
        ----------
        shard, blocks
            Of this process.
        shared
            The replicated state.

        Returns
        -------
        Blocks, dict
            With new multipliers; the squares, by name.
        """
        assert shared.v_prev is not None
        memory = self.observe(shard, blocks, shared)
        v, v_prev = shard.expand(shared.v), shard.expand(shared.v_prev)
        lam, sums = shard.programs(_dual, blocks.u, blocks.lam, blocks.W, v, v_prev, self.relaxation)
        if shared.setup.scoring:
            sums |= score(shard, None, shared.v)[1]
        return replace(blocks, lam=lam, memory=memory), sums

    def primal(self, shard: Shard, blocks: Blocks, shared: Consensus) -> tuple[Blocks, Sums]:
        """Weights when due, local solves, and the summands of the next v-step, a map over blocks.

        Parameters
        ----------
        shard, blocks
            Of this process.
        shared
            The replicated state.

        Returns
        -------
        Blocks, dict
            With new local models and weights; the sums of the v-step, by name.
        """
        chosen = self._choose(shard, blocks, shared)
        W = blocks.W if chosen is None else chosen.W
        v = shard.expand(shared.v)
        solution = shared.setup.solve(
            shard, W, v, blocks.lam, blocks.u, shared.reference, blocks.solver_memory, self.accuracy
        )
        solved = (solution.u, solution.hvps, solution.converged, solution.grad_norm)
        sums = shard.programs(_primal, *solved, blocks.lam, W, v, self.relaxation)
        if chosen is not None:
            sums = sums | W.totals() | {"hvps": sums["hvps"] + chosen.hvps * shard.blocks}
        memory = blocks.memory if chosen is None else chosen.memory
        failed = ~solution.converged
        return Blocks(solution.u, blocks.lam, W, failed, memory, solution.memory), sums

    def dual_primal(self, shard: Shard, blocks: Blocks, shared: Consensus) -> tuple[Blocks, Sums]:
        """Both parts in one reduction: λ^k, then u^{k+1}, which needs nothing from other blocks but v^k.

        Parameters
        ----------
        shard, blocks
            Of this process.
        shared
            The replicated state.

        Returns
        -------
        Blocks, dict
            After both; the sums of both.
        """
        blocks, dual = self.dual(shard, blocks, shared)
        blocks, primal = self.primal(shard, blocks, shared)
        return blocks, dual | primal

    def _choose(self, shard: Shard, blocks: Blocks, shared: Consensus) -> Chosen | None:
        if shared.iteration > 0:
            return self.next_weights(shard, blocks, shared) if self.weights_due(shared) else None
        return self.first_weights(shard, blocks, shared)

    # ------------------------------------------------------------------ replicated bookkeeping
    def _measured(self, shared: Consensus, sums: Mapping[str, Tensor]) -> Consensus:
        assert shared.v_prev is not None
        N, n = shared.setup.blocks, shared.setup.unknowns
        weighted = self.residuals == "weighted"
        norms = torch.stack([(shared.v - shared.v_prev).norm(), shared.v.norm()])
        squares = torch.stack([sums[name] for name in SQUARES])
        change, v_norm, *values = torch.cat([norms, squares]).tolist()  # one device-to-host transfer
        change, v_norm = math.sqrt(N) * change, math.sqrt(N) * v_norm
        primal, dual, u, lam, moved = map(math.sqrt, values)
        reference = moved / math.sqrt(N)
        residuals = Residuals(
            primal=primal,
            dual=dual if weighted else change,
            u_norm=u,
            v_norm=v_norm,
            lam_norm=lam,
            reference=reference,
            scale=math.sqrt(N * n) if weighted else math.sqrt(n),
        )
        scored = {name: sums[name] for name in ("f", "G", "norms")} if shared.setup.scoring else None
        return replace(shared, residuals=residuals, reference=reference, scored=scored)

    def _pending(self, shared: Consensus, sums: Mapping[str, Tensor]) -> Consensus:
        hvps, failed, not_finite = torch.stack([sums["hvps"], sums["failed"], sums["not_finite"]]).tolist()
        return replace(
            shared,
            s=sums["s"],
            metric=self.metric(sums) if "K" in sums else shared.metric,
            hvps=shared.hvps + int(hvps),
            inner_failures=int(failed),
            not_finite=int(not_finite),
        )


def _dual(u: Tensor, lam: Tensor, W: Weights, v: Tensor, v_prev: Tensor, alpha: float) -> tuple[Tensor, Sums]:
    """The new multipliers, and the squares of the residuals."""
    lam = lam + W.apply(v - _relaxed(u, v_prev, alpha))
    dual = W.apply((v - v_prev) - (alpha - 1) * (u - v_prev))
    squares = (u - v, dual, u, lam, W.apply(u - v_prev))
    return lam, {name: sum_squares(x) for name, x in zip(SQUARES, squares, strict=True)}


def _primal(
    u: Tensor, hvps: Tensor, converged: Tensor, grad_norm: Tensor, lam: Tensor, W: Weights, v: Tensor, alpha: float
) -> Sums:
    """The summands of the next v-step, and how the local solves ended."""
    healthy = grad_norm.isfinite() & W.diagonal().isfinite().flatten(1).all(1)
    return {
        "s": sum_blocks(W.apply(_relaxed(u, v, alpha)) - lam),
        "hvps": hvps.sum().double(),
        "failed": (~converged).sum().double(),
        "not_finite": (~healthy).sum().double(),
    }


def start_blocks(shard: Shard, lam: Tensor | None, shared: Consensus) -> tuple[Blocks, Sums]:
    """The first state of every block (S2): u = 0 or N(0, 1), λ = 0; from a warm start u = v and its λ."""
    setup = shared.setup
    u = shard.expand(shared.v).clone()
    if setup.start == "random":
        u = torch.stack([_normal(shard, setup.seed, j) for j in shard.index])
    if lam is None:
        # at a solution v the multipliers are the local gradients, so a bare v still starts at the solution
        lam = shard.zeros() if setup.warm is None else shard.linearize(shard.expand(shared.v)).grad
    failed = torch.zeros(shard.blocks, dtype=torch.bool, device=shard.device)
    return Blocks(u, lam, None, failed), {}


def _normal(shard: Shard, seed: int, block: int) -> Tensor:
    # seeded by the block's own number: where a block is placed must not matter
    generator = torch.Generator().manual_seed(seed * 1_000_003 + block)
    return torch.randn(shard.shape[1:], generator=generator, dtype=torch.float64).to(shard.device, shard.dtype)


def _relaxed(u: Tensor, v: Tensor, alpha: float) -> Tensor:
    # α = 1 must give u to the last bit
    return u if alpha == 1.0 else alpha * u + (1 - alpha) * v
