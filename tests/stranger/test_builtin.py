"""The library's own parts pass the suites that it hands out."""

from __future__ import annotations

import pytest
import torch

import auqadmm as aq
from auqadmm.testing import LossSuite, MethodSuite, RegularizerSuite, Shards


def softplus(u, X, y):
    return torch.nn.functional.softplus(X @ u) - 0.1 * y * (X @ u)


LOSSES = [
    aq.LeastSquares(),
    aq.Logistic(),
    aq.Multinomial(),
    aq.SmoothedHinge(0.5),
    aq.Huber(1.0),
    aq.Poisson(),
    aq.Quantile(0.3, eps=0.3),
    aq.Gamma(),
    aq.NegativeBinomial(2.0),
    aq.Tweedie(1.3),
    aq.Probit(),
    aq.CLogLog(),
    aq.losses.OneAgainstRest(aq.Logistic()),
    aq.CustomLoss(softplus, infimum=-10.0),
]
SITES = [aq.LeastSquares(), aq.Logistic(), aq.Poisson(), aq.Huber(1.0), aq.Quantile(0.3, eps=0.3)]
REGULARIZERS = [
    aq.Zero(),
    aq.L1(0.5),
    aq.L2(0.7),
    aq.ElasticNet(0.4, 0.6),
    aq.GroupLasso(0.5),
    aq.GroupLasso(0.5, [0, 0, 1, 1, 2]),
    aq.NonNegative(),
    aq.Box(-0.5, [1, 1, 2, 1, 1]),
    aq.regularizers.FreeIntercept(aq.L1(0.5)),
]
METHODS = {"auq-lr": 1, "rb-admm": 2, "newton": None}


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: type(loss).__name__)
@pytest.mark.thin(2)
def test_losses(loss):
    counts = {"targets": lambda self, rng, rows: rng.poisson(2.0, size=rows).astype(float)}
    type("Losses", (LossSuite,), {"loss": loss, **(counts if isinstance(loss, aq.NegativeBinomial) else {})})().verify()


@pytest.mark.parametrize("inner", [aq.Logistic(), aq.CLogLog()], ids=lambda loss: type(loss).__name__)
def test_losses_of_trials(inner):
    shares = {"targets": lambda self, rng, rows: rng.random(rows).round(1)}
    type("Trials", (LossSuite,), {"loss": aq.losses.Trials(inner), **shares})().verify()


@pytest.mark.campaign
@pytest.mark.parametrize("loss", SITES, ids=lambda loss: type(loss).__name__)
@pytest.mark.thin(4)
def test_losses_with_an_intercept_of_every_site(loss):
    type("Sites", (LossSuite,), {"loss": aq.losses.SiteIntercepts(loss), "coupled": True})().verify()


@pytest.mark.parametrize("g", REGULARIZERS, ids=lambda g: type(g).__name__)
def test_regularizers(g):
    type("Regularizers", (RegularizerSuite,), {"regularizer": g})().verify()


@pytest.mark.parametrize("method", METHODS)
def test_methods(method):
    type("Methods", (MethodSuite,), {"method": method, "rounds": METHODS[method]})().verify()


def test_a_method_that_refuses_kinks():
    type("Methods", (MethodSuite,), {"method": "lbfgs", "rounds": None, "smooth": True})().verify()


def test_shards_are_dealt_out_in_order():
    blocks = [(torch.full((2, 1), float(j)), torch.zeros(2)) for j in range(5)]
    problem = aq.Problem(aq.LeastSquares(), aq.L2(1.0), blocks)
    shards = aq.engines.shards_of(problem, 3, torch.float64, torch.device("cpu"))
    assert [shard.index for shard in shards] == [(0,), (1, 2), (3, 4)]
    assert aq.solve(problem, engine=Shards(9)).n_iter == aq.solve(problem).n_iter
