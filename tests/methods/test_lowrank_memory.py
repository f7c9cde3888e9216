"""How much AUQ-LR holds at a time, in units of what it must hold."""

from __future__ import annotations

import numpy as np
import torch

import auqadmm as aq
from auqadmm.methods.auq_lr import blocks as round_of_blocks
from auqadmm.methods.auq_lr.blocks import append, combined, inner, latest
from auqadmm.metrics.kronecker_sum import KroneckerSum
from auqadmm.metrics.lowrank import LowRank
from tests.alive import Alive
from tests.methods.cases import LR


def test_columns_in_pieces_are_columns(monkeypatch):
    monkeypatch.setattr(round_of_blocks, "COLUMNS_PER_TENSOR", 3)
    coins = torch.Generator().manual_seed(0)
    vectors = torch.randn(12, 2, 5, 3, generator=coins, dtype=torch.float64)
    x = torch.randn(2, 5, 3, generator=coins, dtype=torch.float64)
    for most in (1, 2, 3, 7):
        columns: tuple[torch.Tensor, ...] = ()
        for k, new in enumerate(vectors, 1):
            columns = latest(append(columns, new), most)
            expected = vectors[max(0, k - most) : k]
            gamma = torch.arange(1.0, len(expected) + 1)
            torch.testing.assert_close(inner(columns, x), torch.einsum("qbmc,bmc->q", expected, x))
            torch.testing.assert_close(combined(columns, gamma), torch.einsum("qbmc,q->bmc", expected, gamma.double()))


def test_a_round_copies_a_piece_of_the_columns_and_not_all():
    """32 vectors of N·n numbers are the memory itself; 16 more are pieces that are copied, the rest is work. With all
    columns copied and added up it was 138."""
    rng = np.random.default_rng(0)
    N, m, rows = 4, 500, 6
    blocks = [(rng.normal(size=(rows, m)) / np.sqrt(m), rng.integers(3, size=rows)) for _ in range(N)]
    blocks[0][1][:3] = range(3)
    problem = aq.Problem(aq.Multinomial(), aq.L2(1e-3), blocks)
    method = LR(rank=0, memory=16, refresh=(), relaxation=1.2)
    with Alive() as alive:
        result = aq.solve(problem, method, max_iter=24, abs_tol=0, rel_tol=0, stop="residuals", evaluate_every=0)
    assert result.n_iter == 24
    vector = 8 * N * m * 3
    assert alive.peak <= (32 + 16 + 52) * vector


def test_factors_of_the_metric_are_made_in_their_place():
    N, m, C, r = 6, 80, 24, 12
    coins = torch.Generator().manual_seed(0)
    U = torch.linalg.qr(torch.randn(N, m, r, generator=coins, dtype=torch.float64))[0]
    M = torch.eye(r, dtype=torch.float64).repeat(N, 1, 1)
    S = torch.eye(C, dtype=torch.float64).repeat(N, 1, 1) / C
    K = KroneckerSum(LowRank(U, M, torch.ones(N, m, dtype=torch.float64), S, torch.ones(N, dtype=torch.float64)))
    h = torch.zeros(m, C, dtype=torch.float64)
    with Alive() as alive:
        _ = K.G, K._columns, K.diagonal
        small = alive.peak
        K.inverse(h)
    assert alive.peak - small <= 1.5 * 8 * C * (N * r) ** 2
