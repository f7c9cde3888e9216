"""Every method takes the strengths that estimators hand it, feature by feature: `auto` may choose among all."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import auqadmm as aq
from auqadmm.baselines.objective import elastic
from auqadmm.estimators.fitting import WeightedElasticNet
from auqadmm.problem.wrappers import FreeIntercept

X = np.array([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0], [2.0, 1.0], [2.0, 0.0], [0.0, 0.0]]) * [1.0, 100.0]
Y = np.array([0, 1, 0, 1, 1, 0])
SITES = [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize("method", ["lbfgs", "lbfgs-w", "owl-qn", "fista", "auq-lr", "auto"])
def test_methods_agree(method: str) -> None:
    for kind in (aq.ConsensusLogisticRegression, aq.ConsensusLinearSVC):
        best = kind(method="newton", tol=1e-12).fit(X, Y, sites=SITES)
        found = kind(method=method, tol=1e-10, max_iter=5000).fit(X, Y, sites=SITES)
        np.testing.assert_allclose(found.coef_, best.coef_, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("seed", range(8))
def test_auto_on_small_tables(seed: int) -> None:
    rng = np.random.default_rng(seed)
    A = rng.normal(size=(12, 3)) * 10.0 ** rng.integers(-3, 4, 3)
    y = rng.integers(0, 2 + seed % 2, 12)
    y[:3] = [0, 1, min(2, 1 + seed % 2)]
    for kind in (aq.ConsensusLogisticRegression, aq.ConsensusLinearSVC):
        assert kind().fit(A, y, sites=rng.integers(0, 3, 12)).status_ in ("converged", "rounding")


def test_strengths_by_entry() -> None:
    v = torch.zeros(4, 2, dtype=torch.float64)
    g = WeightedElasticNet(torch.rand(3, 2).double(), torch.rand(3, 1).double())
    found = elastic(FreeIntercept(g), v)
    assert found is not None
    assert torch.equal(found.l1, torch.cat([g.l1, torch.zeros(1, 2)]))
    assert torch.equal(found.l2[:3], g.l2)
    assert float(found.l2[3]) == 0
