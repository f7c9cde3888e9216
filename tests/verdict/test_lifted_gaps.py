"""At the optimum the terms of a duality gap cancel; what is said of it is never below their rounding, whoever asks."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import auqadmm as aq
from auqadmm.core.reduce import Reduce
from auqadmm.engines import LocalEngine
from auqadmm.verdict.duality import Certifier, full_gap
from tests.problems import pooled, regression_blocks
from tests.verdict.asking import judge_of

ULP = 2.0**-52
SEEDS = range(8)


def ridge(seed, l2=0.7):
    """A problem, its optimum by normal equations, and |g| + |⟨G, v⟩| + |g*| there."""
    blocks = regression_blocks(seed=seed)
    X, y = pooled(blocks)
    v = np.linalg.solve(X.T @ X + l2 * np.eye(6), X.T @ y)
    G = X.T @ (X @ v - y)
    size = l2 / 2 * v @ v + abs(G @ v) + G @ G / (2 * l2)
    return aq.Problem(aq.LeastSquares(), aq.L2(l2), blocks), torch.from_numpy(v)[:, None], size


def lasso(seed):
    """A problem, its optimum by coordinate descent, f, the slopes of its rows, and the largest value of l1."""
    blocks = regression_blocks(seed=seed, noise=1.0)
    X, y = pooled(blocks)
    l1 = 0.3 * abs(X.T @ y).max()
    v = np.zeros(6)
    for _ in range(3000):
        for i in range(6):
            s = X[:, i] @ (y - X @ v + X[:, i] * v[i])
            v[i] = np.sign(s) * max(abs(s) - l1, 0) / (X[:, i] @ X[:, i])
    return blocks, X, y, v, l1


@pytest.mark.parametrize("seed", SEEDS)
def test_what_travels_with_an_iteration(seed):
    problem, v, size = ridge(seed)
    judge = judge_of(problem)
    judge.begin()
    found = judge.cheap(v, judge.score(v))
    assert found.duality_gap >= 0.99 * ULP * size
    assert found.duality_gap <= 100 * ULP * size
    assert found.gap_bound == found.duality_gap


@pytest.mark.parametrize("seed", SEEDS)
def test_the_certifier(seed):
    problem, v, size = ridge(seed)
    shard = problem.shard(torch.float64, torch.device("cpu"))
    found = Certifier(Reduce(LocalEngine(shard)), problem.g, torch.zeros_like(v)).certify(v).duality_gap
    assert 0.99 * ULP * size <= found <= 100 * ULP * size


@pytest.mark.parametrize("seed", SEEDS)
def test_a_gap_with_conjugates(seed):
    _, X, y, v, l1 = lasso(seed)
    slopes = X @ v - y
    f, G = float(slopes @ slopes / 2), torch.from_numpy(X.T @ slopes)[:, None]

    def conjugate(scale, shift):
        a = scale * slopes
        return float(a @ a / 2 + a @ y)

    terms = (f, l1 * abs(v).sum(), abs(conjugate(1.0, None)))
    found = full_gap(aq.L1(l1), torch.from_numpy(v)[:, None], f, G, None, conjugate, ULP)
    assert 0.99 * ULP * sum(terms) <= found <= 1000 * ULP * sum(terms)
    assert full_gap(aq.L1(l1), torch.from_numpy(v)[:, None], f, G, None, conjugate, ULP, noise=1.0) >= 1.0


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("loss", [aq.LeastSquares(), aq.Logistic()], ids=["squares", "logistic"])
def test_the_bound_of_newtons_method(loss, seed):
    blocks = regression_blocks(seed=seed, noise=1.0)
    if isinstance(loss, aq.Logistic):
        blocks = [(X, np.where(y > 0, 1.0, -1.0)) for X, y in blocks]
    l1 = 2.0
    run = aq.solve(aq.Problem(loss, aq.L1(l1), blocks), aq.methods.Newton(round_cost=2), certificate_tol=1e-18)
    X, y = pooled(blocks)
    v = run.v.numpy()[:, 0]
    f = np.logaddexp(0, -y * (X @ v)).sum() if isinstance(loss, aq.Logistic) else ((X @ v - y) ** 2).sum() / 2
    penalty = l1 * abs(v).sum()
    size = min(2 * penalty, f + penalty)  # without conjugates of the rows, and with
    found = run.certificate.duality_gap
    assert found is not None
    assert 0.99 * ULP * size <= found <= 1e5 * ULP * (f + penalty)
