"""The inexact u-step of the paper's released code, all blocks at once.

Per u-step and block, one fresh `torch.optim.LBFGS([U], lr, max_iter, history_size)` without line search, whose
`step(F_j)` is called `calls` times (S11). In the terms of that optimizer:

    call       evaluate F, g; nothing more if max|g| ≤ 1e-7
      iterate    pair s = t d, y = g − g_prev, kept if ⟨y,s⟩ > 1e-10;  γ = ⟨y,s⟩/⟨y,y⟩
                 d = −Hg (−g at the very first);  t = lr (lr·min(1, 1/‖g‖₁) at the very first)
                 stop before moving if ⟨g,d⟩ > −1e-9
                 u ← u + t d;  evaluate F, g, except in the call's last iteration
                 stop if max|g| ≤ 1e-7, max|t d| ≤ 1e-9 or |ΔF| < 1e-9, or after max_iter, or 5/4 max_iter evaluations

Pairs, d, t and g_prev persist from call to call. No convergence is intended: 1/1000 of a quasi-Newton step,
120 times. The outer iterates depend on it, so it is reproduced exactly; a batched mask takes the place of each exit.

Reference: the PyTorch optimizer of that name; D. C. Liu, J. Nocedal, Math. Program. 45 (1989).

Shapes: B blocks, m features, C columns, h pairs; u, d, g (B, m, C), one number per block (B,).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from auqadmm.checks import check_count, is_number
from auqadmm.errors import InputError
from auqadmm.local.base import LocalProblem, LocalSolution, norm, over, select
from auqadmm.local.lbfgs import Pairs
from auqadmm.metrics.weights import dot

GRAD_TOLERANCE = 1e-7  # of torch.optim.LBFGS, as are the two below
CHANGE_TOLERANCE = 1e-9  # of steps, of F, and of slopes
CURVATURE = 1e-10  # ⟨s, y⟩ up to which a pair is dropped


@dataclass(frozen=True)
class Released:
    """A fixed amount of L-BFGS with a tiny step length, as in the paper's experiments.

    Parameters
    ----------
    calls, max_iter
        Calls of the optimizer per u-step, and its iterations per call.
    lr
        The step length.
    history
        Pairs kept per block.

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
    >>> result = aq.solve(problem, "c-admm", local=aq.local.Released(calls=2), max_iter=2, certificate_tol=0)
    >>> result.status == "max_iter"
    True
    """

    calls: int = 30
    lr: float = 1e-3
    max_iter: int = 4
    history: int = 20

    def __post_init__(self) -> None:
        check_count("calls", self.calls)
        check_count("max_iter", self.max_iter)
        check_count("history", self.history)
        if not (is_number(self.lr) and self.lr > 0):
            raise InputError(f"lr must be positive; got {self.lr!r}.")

    def solve(self, problem: LocalProblem, u0: Tensor, reference: float | None, memory: object) -> LocalSolution:
        """`converged` is True wherever numbers are finite: the amount of work is fixed, the accuracy is not."""
        run = problem.shard.programs
        trace = run(_evaluate, _start(u0, self.history), problem)
        # a GPU runs all calls: calls after convergence change nothing
        at_once = self.calls if run.active else 1
        for _ in range(0, self.calls, at_once):
            trace = run.repeat(_call, at_once, trace, problem, self.max_iter, self.lr)
            if not _live_blocks(trace).any():
                break
        none = torch.zeros_like(trace.iterations)
        return LocalSolution(trace.safe, trace.alive, problem.norm(trace.g), none, trace.iterations, None)


def _call(trace: _OptimizerState, problem: LocalProblem, max_iter: int, lr: float) -> _OptimizerState:
    """One call of the optimizer in the live blocks."""
    live = _live_blocks(trace)
    for i in range(1, max_iter + 1):
        trace = _direction(trace, live, lr)
        live = live & ~(dot(trace.g, trace.d) > -CHANGE_TOLERANCE)
        step = over(trace.t, trace.d) * trace.d
        trace = replace(trace, u=select(live, trace.u + step, trace.u))
        if i == max_iter or i + 1 >= max_iter * 5 // 4:
            break
        before = trace.F
        trace = _evaluate(trace, problem)
        stuck = _small(step, CHANGE_TOLERANCE) | ((trace.F - before).abs() < CHANGE_TOLERANCE)
        live = live & trace.alive & ~_small(trace.g, GRAD_TOLERANCE) & ~stuck
    return _evaluate(trace, problem)


def _live_blocks(trace: _OptimizerState) -> Tensor:
    """The blocks that the next call would change, (B,)."""
    return trace.alive & ~_small(trace.g, GRAD_TOLERANCE)


@dataclass(frozen=True)
class _OptimizerState:
    """The optimizers of all blocks: iterates, F and g there, and what persists from call to call."""

    u: Tensor
    safe: Tensor  # the last u with finite F and g
    alive: Tensor  # a block that met NaN or infinity stays stopped
    F: Tensor
    g: Tensor
    g_prev: Tensor
    d: Tensor
    t: Tensor
    pairs: Pairs
    iterations: Tensor


def _start(u0: Tensor, history: int) -> _OptimizerState:
    per_block = u0.new_zeros(u0.shape[0])
    return _OptimizerState(  # no shared tensors: a CUDA graph writes the new state in place
        u=u0,
        safe=u0.clone(),
        alive=per_block == 0,
        F=per_block,
        g=torch.zeros_like(u0),
        g_prev=torch.zeros_like(u0),
        d=torch.zeros_like(u0),
        t=per_block.clone(),
        pairs=Pairs.none(history, torch.ones_like(per_block), u0),
        iterations=per_block.to(torch.int64),
    )


def _evaluate(trace: _OptimizerState, problem: LocalProblem) -> _OptimizerState:
    """F and g at u; a block where they are not finite goes back to its last finite u and stops."""
    point = problem.shard.linearize(trace.u)
    F, g = problem.value(point), problem.grad(point)
    alive = trace.alive & F.isfinite() & norm(g).isfinite()
    safe = select(alive, trace.u, trace.safe)
    return replace(trace, safe=safe, alive=alive, F=F.double(), g=g)


def _direction(trace: _OptimizerState, live: Tensor, lr: float) -> _OptimizerState:
    """Update the pairs, then direction and step length of the live blocks."""
    first = trace.iterations == 0
    s, y = over(trace.t, trace.d) * trace.d, trace.g - trace.g_prev
    pairs = trace.pairs.push(s, y, live & ~first & (dot(s, y) > CURVATURE))
    # without pairs H is the identity: the first direction is −g
    d = -pairs.apply(trace.g)
    t = lr * torch.where(first, (1 / trace.g.abs().flatten(1).sum(1)).clamp(max=1.0), 1.0)
    return replace(
        trace,
        g_prev=select(live, trace.g, trace.g_prev),
        d=select(live, d, trace.d),
        t=torch.where(live, t, trace.t),
        pairs=pairs,
        iterations=trace.iterations + live,
    )


def _small(x: Tensor, tolerance: float) -> Tensor:
    """max|x_j| ≤ tolerance per block, (B,)."""
    return x.abs().flatten(1).amax(1) <= tolerance
