"""The estimators at points of real losses, against Hessians by automatic differentiation (S7)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import scipy.sparse
import torch
from torch import Tensor

from auqadmm.blocks.loss import Loss
from auqadmm.blocks.shard import Shard
from auqadmm.curvature import Exact, Hutchinson, Lanczos
from auqadmm.problem.losses import Huber, LeastSquares, Logistic, Multinomial, Poisson, SmoothedHinge
from auqadmm.problem.problem import Problem
from auqadmm.problem.quantile import Quantile
from auqadmm.problem.regularizers import L2

F64 = torch.float64
HEIGHTS = (6, 0, 9, 3)  # uneven blocks, one of them empty
FEATURES = 4

CASES: list[tuple[Loss, Callable[[Tensor, Tensor], Tensor]]] = [
    (LeastSquares(), lambda z, y: 0.5 * (z[:, 0] - y).square()),
    (Logistic(), lambda z, y: torch.log1p(torch.exp(-(2 * y - 1) * z[:, 0]))),
    (Multinomial(), lambda z, y: torch.nn.functional.cross_entropy(z, y.long(), reduction="none")),
    (Poisson(), lambda z, y: z[:, 0].exp() - y * z[:, 0]),
    (Huber(), lambda z, y: torch.nn.functional.huber_loss(z[:, 0], y, reduction="none")),
    (Quantile(0.8, eps=0.5), lambda z, y: 0.3 * (y - z[:, 0]) + ((y - z[:, 0]).square() + 0.25).sqrt() / 2),
    (SmoothedHinge(eps=0.5), lambda z, y: _hinge(1 - (2 * y - 1) * z[:, 0], 0.5)),
]
every_loss = pytest.mark.parametrize(("loss", "rows"), CASES, ids=[type(loss).__name__ for loss, _ in CASES])


def _hinge(t: Tensor, eps: float) -> Tensor:
    return (t + (t.square() + eps**2).sqrt()) / 2


def _data(loss: Loss) -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(7)
    labels = 3 if loss.target_kind == "classes" else 2
    return [(rng.standard_normal((h, FEATURES)), rng.permutation(np.arange(h) % labels).astype(float)) for h in HEIGHTS]


def _shard(loss: Loss, sparse: bool = False) -> Shard:
    blocks = [(scipy.sparse.csr_matrix(X) if sparse else X, y) for X, y in _data(loss)]
    return Problem(loss, L2(1.0), blocks).shard(F64, torch.device("cpu"))


def _u(shard: Shard) -> Tensor:
    return torch.randn(shard.shape, generator=torch.Generator().manual_seed(1), dtype=F64) / 3


def _hessians(loss: Loss, rows: Callable[[Tensor, Tensor], Tensor], u: Tensor) -> Tensor:
    """(B, n, n) by automatic differentiation, one block at a time."""
    n = u[0].numel()
    out = []
    for (X, y), u_j in zip(_data(loss), u, strict=True):
        X_j, y_j = torch.from_numpy(X), torch.from_numpy(y)

        def f(flat: Tensor, X_j: Tensor = X_j, y_j: Tensor = y_j) -> Tensor:
            return rows(X_j @ flat.reshape(u.shape[1:]), y_j).sum()

        out.append(torch.autograd.functional.hessian(f, u_j.flatten()) if len(y) else u.new_zeros(n, n))
    return torch.stack(out)


@every_loss
@pytest.mark.parametrize("sparse", [False, True])
def test_exact_is_the_diagonal(loss, rows, sparse):
    shard = _shard(loss, sparse)
    u = _u(shard)
    estimate = Exact().diagonal(shard.linearize(u))
    expected = _hessians(loss, rows, u).diagonal(dim1=1, dim2=2).reshape(u.shape)
    torch.testing.assert_close(estimate.diagonal, expected, rtol=1e-10, atol=1e-12)
    assert estimate.hvps == 0


@every_loss
def test_lanczos_of_full_rank_is_the_hessian(loss, rows):
    shard = _shard(loss)
    u = _u(shard)
    H = _hessians(loss, rows, u)
    ritz = Lanczos(rank=100).decompose(shard.linearize(u))
    V = ritz.vectors.flatten(1, 2)
    torch.testing.assert_close((V * ritz.values[:, None]) @ V.mT, H, rtol=0, atol=1e-9)
    torch.testing.assert_close(ritz.values, torch.linalg.eigvalsh(H).flip(-1), rtol=0, atol=1e-9)
    assert ritz.steps[1] == 1  # the empty block
    assert not ritz.diagonal()[1].any()


@every_loss
def test_hutchinson_is_the_formula(loss, rows):
    shard = _shard(loss)
    u = _u(shard)
    H = _hessians(loss, rows, u)
    d = Hutchinson(probes=4, seed=2).diagonal(shard.linearize(u)).diagonal
    z = 2.0 * torch.randint(0, 2, (*u.shape[1:], 4), generator=torch.Generator().manual_seed(2)).double() - 1.0
    z = z.reshape(-1, 4)
    expected = (z * (H @ z)).mean(-1).clamp_min(0).reshape(u.shape)
    torch.testing.assert_close(d, expected, rtol=1e-10, atol=1e-12)
