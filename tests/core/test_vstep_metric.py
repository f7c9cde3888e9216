"""The metric of low-rank weights: sums, inverses and their cost, against dense matrices."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from auqadmm.metrics import composite, kronecker_sum, vstep
from auqadmm.metrics.kronecker_sum import Cholesky, KroneckerSum, Submatrix, Woodbury
from auqadmm.metrics.lowrank import LowRank
from auqadmm.metrics.vstep import LowRankMetric
from auqadmm.problem.group_lasso import GroupLasso
from auqadmm.problem.regularizers import L2, ElasticNet
from tests.core.test_lowrank import BASES, explicit, weights
from tests.core.vstep_cases import blocks, case, target

__all__ = ["case"]  # a fixture


# ---------------------------------------------------------------------- the metric
@given(N=st.integers(1, 4), m=st.integers(1, 5), C=st.integers(1, 3), r=st.integers(0, 3), kind=st.sampled_from(BASES))
def test_the_metric_is_the_sum_of_the_weights(N, m, C, r, kind):
    W = weights(N, m, C, min(r, m), N + m, kind)
    metric, K = LowRankMetric(W), explicit(W).sum(0)
    v = torch.from_numpy(np.random.default_rng(0).normal(size=(m, C)))
    torch.testing.assert_close(metric.apply(v), (K @ v.flatten()).reshape(m, C))
    torch.testing.assert_close(metric.diagonal(), K.diagonal().reshape(m, C))
    active = v > 0
    torch.testing.assert_close(
        KroneckerSum(W)._principal(active), K[active.flatten()][:, active.flatten()], check_stride=False
    )


def test_weights_in_single_precision_add_up_in_double():
    W = blocks(C=3)
    single = LowRank(W.U.float(), W.M.float(), W.d.float(), W.S.float(), W.phi.float())
    v = torch.ones(12, 3)
    assert LowRankMetric(single).apply(v.double()).dtype == torch.float64
    assert LowRankMetric(single).prox(L2(1.0), v).dtype == torch.float64


def test_an_inverse_is_symmetric_and_positive_and_exact_for_one_column(case):
    metric, K, s = case
    shape = metric._K.shape
    h = torch.full(shape, 0.5, dtype=torch.float64)
    inverse = metric._K.inverse(h)
    assert metric._K.inverse(h.clone()) is inverse, "the factors are kept"
    n = s.numel()
    full = torch.stack([inverse(e.reshape(shape)).flatten() for e in torch.eye(n, dtype=torch.float64)])
    torch.testing.assert_close(full, full.T)
    assert torch.linalg.eigvalsh(full)[0] > 0
    if shape[1] == 1 and kronecker_sum.K_FACTORS > 1000:
        torch.testing.assert_close(full @ (torch.from_numpy(K) + 0.5 * torch.eye(n)).double(), torch.eye(n).double())


@pytest.mark.parametrize(
    ("C", "r", "dense", "expected"),
    [(1, 2, 4096, Woodbury), (1, 8, 4096, Cholesky), (1, 2, 0, Woodbury), (3, 2, 4096, Woodbury), (3, 4, 0, Cholesky)],
)
def test_the_cheaper_factorisation_is_chosen(monkeypatch, C, r, dense, expected):
    monkeypatch.setattr(kronecker_sum, "K_FEATURES", dense)
    K = KroneckerSum(blocks(m=12 if r != 2 or C > 1 or dense == 0 else 24, C=C, r=r))
    assert isinstance(K.inverse(torch.zeros(K.shape, dtype=torch.float64)), expected)


@pytest.mark.parametrize("C", [1, 3])
def test_factors_of_several_columns_are_inverted_and_do_the_same(C):
    K = KroneckerSum(blocks(m=12, C=C, r=8))
    h = torch.full(K.shape, 0.5, dtype=torch.float64)
    inverse = K.inverse(h)
    assert isinstance(inverse, Cholesky)
    assert inverse.inverted == (C > 1)
    P, q = K._columns
    x = torch.from_numpy(np.random.default_rng(0).normal(size=K.shape))
    dense = [K.column(c, q_c) + 0.5 * torch.eye(12, dtype=torch.float64) for c, q_c in enumerate(q)]
    by_hand = torch.stack([torch.linalg.solve(B, (x @ P)[:, c]) for c, B in enumerate(dense)], 1) @ P.mT
    torch.testing.assert_close(inverse(x), by_hand)


def test_a_part_of_the_metric_is_inverted_exactly_where_it_is_small():
    W = blocks(C=3)
    K, dense = KroneckerSum(W), explicit(W).sum(0)
    active = torch.from_numpy(np.random.default_rng(0).uniform(size=(12, 3)) < 0.5)
    h = torch.where(active, 0.3, 0.0).double()
    inverse = K.restricted(active, h)
    assert isinstance(inverse, Submatrix)
    x = torch.where(active, 1.0, 0.0).double()
    a = active.flatten()
    expected = torch.zeros(36, dtype=torch.float64)
    expected[a] = torch.linalg.solve(dense[a][:, a] + 0.3 * torch.eye(int(a.sum())), x.flatten()[a])
    torch.testing.assert_close(inverse(x).flatten(), expected)


# ---------------------------------------------------------------------- parts
def test_an_indefinite_preconditioner_is_replaced():
    K = explicit(blocks()).sum(0)
    D = K.diagonal()[:, None]
    b = torch.ones(12, 1, dtype=torch.float64)
    x, residual, _ = composite.solve(lambda x: K @ x, [lambda x: -x, lambda x: x / D], b, 0 * b, 1e-10, 200)
    assert residual <= 1e-10
    torch.testing.assert_close(K @ x, b)


def test_conjugate_gradients_stop_in_either_norm():
    K = explicit(blocks()).sum(0)
    b = torch.ones(12, 1, dtype=torch.float64)
    x, _, sound = composite.cg(lambda x: K @ x, lambda x: x, b, 1e-9, 100)
    assert sound
    assert float((b - K @ x).norm()) <= 1.1e-9
    loose, k, _ = composite.cg(lambda x: K @ x, lambda x: x, b, 0.0, 100, relative=0.5)
    assert k < 12
    assert float((b - K @ loose).norm()) <= 0.51 * float(b.norm())


def test_a_scale_found_too_small_is_mended(monkeypatch):
    monkeypatch.setattr(vstep, "scale", lambda apply, D: 0.3)  # Γ = 0.3 diag K
    metric = LowRankMetric(blocks())
    s = target(metric, 12, 1)
    assert metric.solve(GroupLasso(0.5), s).residual <= 1e-10 * float(s.norm())


def test_the_scale_dominates_the_metric():
    for seed in range(5):
        metric = LowRankMetric(blocks(m=30, seed=seed, condition=1e3))
        root = metric.diagonal().flatten().rsqrt()
        largest = torch.linalg.eigvalsh(root[:, None] * explicit(metric.parts).sum(0) * root)[-1]
        assert composite.scale(metric.apply, metric.diagonal()) >= largest


# ---------------------------------------------------------------------- cost
class Largest(TorchDispatchMode):
    """The number of entries of the largest tensor made."""

    numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for x in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(x, torch.Tensor):
                self.numel = max(self.numel, x.numel())
        return out


@pytest.mark.thin(2)
@pytest.mark.parametrize("g", [L2(1.0), ElasticNet(3.0, 1.0)], ids=["l2", "elastic-net"])
def test_a_large_problem_needs_no_large_matrix(g):
    N, m, C, r = 5, 2000, 10, 8
    p = torch.from_numpy(np.random.default_rng(0).dirichlet(np.ones(C), size=(N, 20)))
    softmax = torch.diag_embed(p.mean(1)) - p.mT @ p / 20  # Hessians of a softmax, averaged over rows
    metric = LowRankMetric(replace(blocks(N, m, C, r, condition=1e3), S=softmax))
    s = target(metric, m, C)
    with Largest() as largest:
        found = metric.solve(g, s, tol=1e-9 * float(s.norm()))
    assert found.residual <= 1e-9 * float(s.norm())
    assert found.iterations <= 30
    assert largest.numel <= 2 * max(m * C * C, m * N * r, C * (N * r) ** 2, kronecker_sum.K_ACTIVE**2), (
        "not m × m, not n × n"
    )


def test_too_many_directions_are_cut_to_the_memory_allowed(monkeypatch):
    monkeypatch.setattr(kronecker_sum, "K_FACTORS", 3 * 10**2)
    monkeypatch.setattr(kronecker_sum, "K_PER_COLUMN", 0)
    metric = LowRankMetric(blocks(N=6, m=60, C=3, r=8))
    inverse = metric._K.inverse(torch.ones(60, 3, dtype=torch.float64))
    assert isinstance(inverse, Woodbury)
    assert inverse.root.shape == (3, 10, 10)
    s = target(metric, 60, 3)
    assert metric.solve(L2(1.0), s).residual <= 1e-10 * float(s.norm())
