"""A user's separable regularizer takes the fast consensus step, and it gives what the slow one gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch

import auqadmm as aq
from tests.stranger.stranger_parts.regularizer import Lopsided

UP, DOWN = 0.4, 0.7


def soft(s, K):
    return ((s - UP).clamp(min=0) + (s + DOWN).clamp(max=0)) / K


def slope(s, K):
    return ((s > UP) | (s < -DOWN)).to(s) / K


def value(v):
    return (UP * v.clamp(min=0) - DOWN * v.clamp(max=0)).sum()


@dataclass(frozen=True)
class Slow(Lopsided):
    separable: ClassVar[bool] = False


FAST = {
    "subclass": Lopsided(UP, DOWN),
    "custom": aq.CustomRegularizer(value, soft, separable=True),
    "custom with its slope": aq.CustomRegularizer(value, soft, separable=True, prox_slope=slope),
    "free intercept": aq.regularizers.FreeIntercept(aq.CustomRegularizer(value, soft, separable=True)),
}
SLOW = {
    "subclass": Slow(UP, DOWN),
    "custom": aq.CustomRegularizer(value, soft),
    "custom with its slope": aq.CustomRegularizer(value, soft),
    "free intercept": aq.regularizers.FreeIntercept(aq.CustomRegularizer(value, soft)),
}


def metric(features=40, columns=1, blocks=4):
    rng = np.random.default_rng(0)
    U = torch.linalg.qr(torch.from_numpy(rng.normal(size=(blocks, features, 5))))[0]
    M = torch.diag_embed(torch.from_numpy(rng.uniform(1.0, 50.0, size=(blocks, 5))))
    d = torch.from_numpy(rng.uniform(0.1, 2.0, size=(blocks, features)))
    S = torch.eye(columns, dtype=torch.float64).repeat(blocks, 1, 1)
    return aq.weights.LowRankMetric(aq.weights.LowRank(U, M, d, S, torch.full((blocks,), 0.1, dtype=torch.float64)))


@pytest.mark.parametrize("kind", FAST)
@pytest.mark.parametrize("columns", [1, 3])
def test_the_fast_step_is_taken_and_equals_the_slow_one(kind, columns):
    K = metric(columns=columns)
    s = torch.from_numpy(np.random.default_rng(1).normal(size=(40, columns)))
    fast, slow = (K.solve(g, s, tol=1e-12) for g in (FAST[kind], SLOW[kind]))
    assert (fast.by, slow.by) == ("pivoting", "proximal gradient")
    assert fast.residual <= 1e-11
    torch.testing.assert_close(fast.v, slow.v, rtol=0, atol=1e-9)
    assert torch.equal(fast.v == 0, slow.v == 0)
    assert 0 < int((fast.v == 0).sum()) < fast.v.numel()
    assert fast.iterations * 5 < slow.iterations  # rounds of pivoting, and steps


def test_a_built_in_one_gives_the_same():
    K, s = metric(), torch.from_numpy(np.random.default_rng(1).normal(size=(40, 1)))
    own = K.solve(Lopsided(0.5, 0.5), s, tol=1e-12)
    torch.testing.assert_close(own.v, K.solve(aq.L1(0.5), s, tol=1e-12).v, rtol=0, atol=1e-12)


def curved(v):
    return (v.square() + 1).sqrt().sum()


def curved_prox(s, K):
    """v/√(v² + 1) + Kv = s, by Newton's method on a monotone function."""
    v = s / (K + 1)
    for _ in range(60):
        root = (v.square() + 1).sqrt()
        v = v - (v / root + K * v - s) / (1 / root**3 + K)
    return v


def test_separable_without_kinks_and_not_quadratic():
    """Pieces are curved: pivoting is Newton's method then."""
    fast = aq.CustomRegularizer(curved, curved_prox, separable=True)
    slow = aq.CustomRegularizer(curved, curved_prox)
    K, s = metric(), torch.from_numpy(3 * np.random.default_rng(1).normal(size=(40, 1)))
    a, b = K.solve(fast, s, tol=1e-11), K.solve(slow, s, tol=1e-11)
    assert (a.by, b.by) == ("pivoting", "proximal gradient")
    torch.testing.assert_close(a.v, b.v, rtol=0, atol=1e-8)


@pytest.mark.parametrize("method", ["auq-lr", "newton"])
def test_whole_runs_ask_the_prox_less_and_end_at_the_same_point(method):
    rng = np.random.default_rng(2)
    blocks = [(X := rng.normal(size=(30, 12)), X[:, 0] - X[:, 3] + 0.2 * rng.normal(size=30)) for _ in range(3)]
    asked = []

    def counted(s, K):
        asked.append(1)
        return ((s - 9 * UP).clamp(min=0) + (s + 9 * DOWN).clamp(max=0)) / K

    found, calls = [], []
    for separable in (True, False):
        asked.clear()
        g = aq.CustomRegularizer(lambda v: 9 * value(v), counted, separable=separable)
        found.append(aq.solve(aq.Problem(aq.LeastSquares(), g, blocks), method, certificate_tol=1e-9))
        calls.append(len(asked))
    assert all(str(r.status) in ("converged", "rounding") for r in found)
    np.testing.assert_allclose(found[0].coef, found[1].coef, atol=1e-4)
    assert abs(found[0].objective - found[1].objective) < 1e-7 * abs(found[0].objective)
    if method == "auq-lr":
        assert calls[0] < calls[1]


def test_what_cannot_be():
    with pytest.raises(aq.InputError, match="separable must be True or False, got 'yes'"):
        aq.CustomRegularizer(value, soft, separable="yes")
    with pytest.raises(aq.InputError, match="prox_slope is of use where separable=True only"):
        aq.CustomRegularizer(value, soft, prox_slope=slope)
