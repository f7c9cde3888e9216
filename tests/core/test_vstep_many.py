"""The consensus step with many blocks: a few of them at a time are all of them, and nothing grows with their square."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from auqadmm.methods.auq_lr.blocks import directions, first_parts, unpacked
from auqadmm.metrics import kronecker_sum, lowrank
from auqadmm.metrics.vstep import LowRankMetric
from auqadmm.problem.regularizers import L2
from tests.core import test_coupled, vstep_cases
from tests.core.test_lowrank import explicit
from tests.core.test_vstep_metric import Largest

COUPLED, KRONECKER = "coupled", "Kronecker"
WAYS = {
    "cholesky": {},
    "woodbury": {"K_PER_COLUMN": 0, "K_FEATURES": 0},
    "some directions": {"K_PER_COLUMN": 0, "K_FEATURES": 0, "K_FACTORS": 75},
}


def parts(kind, N, m=24, C=3, r=2):
    return test_coupled.weights(N, m, C, r) if kind == COUPLED else vstep_cases.blocks(N, m, C, r)


@pytest.fixture(params=WAYS)
def way(request, monkeypatch):
    for option, value in WAYS[request.param].items():
        monkeypatch.setattr(kronecker_sum, option, value)


@pytest.mark.parametrize(("kind", "C"), [(KRONECKER, 1), (KRONECKER, 3), (COUPLED, 3)])
def test_a_few_blocks_at_a_time(kind, C, way, monkeypatch):
    W = parts(kind, 20, C=C)
    K = (test_coupled.explicit if kind == COUPLED else explicit)(W).sum(0)
    s = torch.linspace(-1, 1, 24 * C, dtype=torch.float64).reshape(24, C)
    whole = LowRankMetric(W).solve(L2(1.0), s, tol=1e-12)
    monkeypatch.setattr(lowrank, "PAGED_NUMBERS", 0)
    monkeypatch.setattr(lowrank, "CACHED_NUMBERS", 150)  # three blocks; of H, four
    metric = LowRankMetric(W)
    assert len(metric._K._pieces) == 7
    torch.testing.assert_close(metric.apply(s).flatten(), K @ s.flatten())
    torch.testing.assert_close(metric.diagonal().flatten(), K.diagonal())
    found = metric.solve(L2(1.0), s, tol=1e-12)
    expected = torch.linalg.solve(K + torch.eye(len(K), dtype=K.dtype), s.flatten()).reshape(s.shape)
    torch.testing.assert_close(found.v, expected)
    assert abs(found.iterations - whole.iterations) <= 1


@pytest.mark.thin(2)
@pytest.mark.parametrize("kind", [KRONECKER, COUPLED])
def test_nothing_grows_with_the_square_of_the_blocks(kind, way):
    sizes = {}
    for N in (64, 256):
        metric = LowRankMetric(parts(kind, N))
        s = torch.ones(24, 3, dtype=torch.float64)
        with Largest() as largest:
            assert metric.solve(L2(1.0), s).residual <= 1e-10 * float(s.norm())
        sizes[N] = largest.numel
    assert sizes[256] <= 4 * sizes[64]


def test_a_part_of_the_directions_is_that_of_the_whole_matrix():
    K = LowRankMetric(parts(COUPLED, 5))._K
    keep = torch.tensor([9, 0, 3, 4, 8, 1])
    whole = torch.block_diag(*K._by_column[1])
    B, root = K.halved(1, K.G[:, keep], torch.ones(6), keep)
    torch.testing.assert_close(root @ root.mT, whole[keep][:, keep])
    torch.testing.assert_close(B @ B.mT, K.G[:, keep] @ whole[keep][:, keep] @ K.G[:, keep].mT)


@pytest.mark.parametrize("kind", [KRONECKER, COUPLED])
def test_parts_arrive_as_they_were_sent(kind, monkeypatch):
    """Also where blocks keep different numbers of directions, a few blocks at a time."""
    monkeypatch.setattr(lowrank, "PAGED_NUMBERS", 0)
    monkeypatch.setattr(lowrank, "CACHED_NUMBERS", 150)
    W = parts(kind, 7, r=3)
    if kind == COUPLED:
        W = test_coupled.weights(7, 24, 3, 3, unused=2)
    sent = first_parts(None, SimpleNamespace(W=W))
    found = unpacked(directions(sent), sent, 3, None)
    assert type(found) is type(W)
    assert all(torch.equal(getattr(found, name), getattr(W, name)) for name in ("U", "d", "phi"))
    torch.testing.assert_close(found.dense(), W.dense(), rtol=1e-14, atol=1e-13)
