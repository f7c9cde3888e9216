"""The paper's inner loop as one would write it first: a torch optimizer per block and automatic derivatives.

Per u-step and block a fresh `torch.optim.LBFGS` without line search, called 30 times; what `local="released"` does for
all blocks at once, with its own derivatives and the order of products that is fastest. Both give the same iterates.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import auqadmm as aq
from auqadmm.local import Released
from auqadmm.local.base import LocalProblem, LocalSolution


class Plain:
    """A local solver for means and sums over dense blocks."""

    def __init__(self) -> None:
        self.like = Released()

    def solve(self, problem: LocalProblem, u0: Tensor, reference: float | None, memory: Any) -> LocalSolution:
        shard = problem.shard
        weight = problem.W.diagonal()
        u, start = torch.empty_like(u0), 0
        for piece in shard.design.pieces:
            for X, j in zip(piece.X, piece.blocks.tolist(), strict=True):
                rows = slice(start, start + len(X))
                start += len(X)
                own = (X, shard.target[rows], shard.row_weight[rows])
                u[j] = self._block(shard.loss, own, weight[j], problem.v[j], problem.lam[j], u0[j])
        none = torch.zeros(len(u), dtype=torch.int64, device=u.device)
        return LocalSolution(u, none == 0, torch.zeros_like(u[:, 0, 0]), none, none, None)

    def _block(self, loss: Any, data: Any, w: Tensor, v: Tensor, lam: Tensor, u0: Tensor) -> Tensor:
        X, y, c = data
        u = u0.clone().requires_grad_(True)
        like = self.like
        optimizer = torch.optim.LBFGS([u], lr=like.lr, max_iter=like.max_iter, history_size=like.history)

        def closure() -> Tensor:
            optimizer.zero_grad()
            gap = u - v
            F = (c * _rows(loss, X @ u, y)).sum() + (gap * (0.5 * w * gap - lam)).sum()
            F.backward()
            return F

        for _ in range(like.calls):
            optimizer.step(closure)
        return u.detach()


def _rows(loss: Any, z: Tensor, y: Tensor) -> Tensor:
    if isinstance(loss, aq.Multinomial):
        return functional.cross_entropy(z, y, reduction="none")
    if isinstance(loss, aq.LeastSquares):
        return 0.5 * (z[:, 0] - y) ** 2
    assert isinstance(loss, aq.SmoothedHinge)
    t = 1 - y * z[:, 0]
    return 0.5 * (t + torch.sqrt(t**2 + loss.eps**2))
