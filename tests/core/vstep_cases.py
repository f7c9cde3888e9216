"""Metrics of low-rank weights for the consensus step, and a plain solver in numpy to compare with."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from auqadmm.metrics import kronecker_sum
from auqadmm.metrics.vstep import LowRankMetric
from auqadmm.problem.group_lasso import GroupLasso
from auqadmm.problem.regularizers import L1, L2, Box, ElasticNet, NonNegative, Zero
from auqadmm.problem.wrappers import CustomRegularizer, FreeIntercept
from tests.core.test_lowrank import explicit, weights


# ---------------------------------------------------------------------- problems
def blocks(N=3, m=12, C=1, r=2, seed=0, condition=1e2, kind="identity"):
    """Weights of N blocks that share part of their directions; for C > 2, S is singular as that of a softmax."""
    rng = np.random.default_rng(seed)
    W = weights(N, m, C, 0, seed, kind)
    common = rng.normal(size=(m, r))
    U = np.linalg.qr(common + 0.5 * rng.normal(size=(N, m, r)))[0]
    M = np.stack([np.diag(condition * rng.uniform(0.1, 1.0, size=r)) for _ in range(N)])
    S = W.S
    if C > 2:
        P = torch.eye(C, dtype=torch.float64) - 1 / C
        S = P @ S @ P
    return replace(W, U=torch.from_numpy(U), M=torch.from_numpy(M), S=S, phi=torch.full((N,), 1 / N).double())


def target(metric, m, C, seed=0):
    """An s whose solutions are neither all zero nor all inside."""
    rng = np.random.default_rng(seed + 7)
    v = torch.from_numpy(rng.normal(size=(m, C)) * (rng.uniform(size=(m, C)) < 0.6))
    return metric.apply(v) + torch.from_numpy(rng.normal(size=(m, C)))


PATHS = {
    "one column, dense": {"C": 1, "r": 8},
    "one column, Woodbury": {"C": 1, "r": 2, "slim": True},
    "one column, neither": {"C": 1, "r": 8, "dense": 0, "factor": 16},
    "one column, dense, dct": {"C": 1, "r": 8, "kind": "dct"},
    "one column, beyond dense, dct": {"C": 1, "r": 2, "kind": "dct", "dense": 0},
    "columns, Woodbury": {"C": 3, "r": 2, "small": 0},
    "columns, Cholesky": {"C": 3, "r": 6, "small": 0},
    "columns, few active": {"C": 3, "r": 2},
    "columns, few active, dct": {"C": 3, "r": 2, "kind": "dct"},
    "columns, weak factor, random": {"C": 3, "r": 6, "kind": "random", "small": 0, "per_column": 0, "factor": 27},
    "joint": {"C": 3, "r": 5, "joint": True},
}


@pytest.fixture(params=PATHS, ids=lambda name: name.replace(", ", "-").replace(" ", "-"))
def case(request, monkeypatch):
    """Metric, dense K and s, one for each way to invert K."""
    options = dict(PATHS[request.param])
    m, C = 12, options.pop("C")
    limits = {"dense": "K_FEATURES", "small": "K_ACTIVE", "per_column": "K_PER_COLUMN", "factor": "K_FACTORS"}
    for name, limit in limits.items():
        if name in options:
            monkeypatch.setattr(kronecker_sum, limit, options.pop(name))
    if options.pop("slim", False):
        monkeypatch.setattr(kronecker_sum, "K_SLIM", 1)
    if options.pop("joint", False):
        W = replace(blocks(m=m * C, C=1, **options), joint=True, columns=C)
    else:
        W = blocks(m=m, C=C, **options)
    metric = LowRankMetric(W)
    return metric, explicit(W).sum(0).numpy(), target(metric, m, C)


# ---------------------------------------------------------------------- an independent solver
def soft(x, t):
    return np.sign(x) * np.maximum(np.abs(x) - t, 0)


def shrink(x, t):
    size = np.linalg.norm(x, axis=1, keepdims=True)
    return x * np.maximum(1 - t / np.maximum(size, 1e-300), 0)


def free(prox):
    return lambda x, a: np.concatenate([prox(x[:-1], a), x[-1:]])


# each with its proximal map in the metric a·I: argmin g(v) + a/2‖v − x‖²
CASES = {
    "zero": (Zero(), lambda x, a: x),
    "l2": (L2(0.3), lambda x, a: a * x / (a + 0.3)),
    "ridge": (ElasticNet(0.0, 0.7), lambda x, a: a * x / (a + 0.7)),
    "l1": (L1(0.8), lambda x, a: soft(x, 0.8 / a)),
    "elastic net": (ElasticNet(0.8, 0.3), lambda x, a: a * soft(x, 0.8 / a) / (a + 0.3)),
    "curved": (ElasticNet(0.1, 50.0), lambda x, a: a * soft(x, 0.1 / a) / (a + 50.0)),
    "box": (Box(-0.3, 0.2), lambda x, a: x.clip(-0.3, 0.2)),
    "narrow box": (Box(1.0, 1.0 + 1e-7), lambda x, a: x.clip(1.0, 1.0 + 1e-7)),
    "half-open box": (Box(-math.inf, 0.1), lambda x, a: np.minimum(x, 0.1)),
    "nonnegative": (NonNegative(), lambda x, a: np.maximum(x, 0)),
    "group lasso": (GroupLasso(0.5), lambda x, a: shrink(x, 0.5 * math.sqrt(x.shape[1]) / a)),
    "custom": (
        CustomRegularizer(lambda v: v.abs().sum(), lambda s, K: s.sign() * (s.abs() - 1).clamp(min=0) / K),
        lambda x, a: soft(x, 1 / a),
    ),
    "free l2": (FreeIntercept(L2(2.0)), free(lambda x, a: a * x / (a + 2.0))),
    "free l1": (FreeIntercept(L1(0.8)), free(lambda x, a: soft(x, 0.8 / a))),
    "free box": (FreeIntercept(Box(-0.3, 0.2)), free(lambda x, a: x.clip(-0.3, 0.2))),
    "free group lasso": (
        FreeIntercept(GroupLasso(0.5)),
        free(lambda x, a: shrink(x, 0.5 * math.sqrt(x.shape[1]) / a)),
    ),
}
SEPARABLE = [name for name, (g, _) in CASES.items() if g.separable and not g.quadratic]


def reference(K, s, prox):
    """Accelerated proximal gradient with the identity as its metric, to 1e-12."""
    a = np.linalg.eigvalsh(K)[-1]
    v = y = np.zeros_like(s)
    t = 1.0
    for _ in range(50_000):
        new = prox(y - ((K @ y.reshape(-1)).reshape(s.shape) - s) / a, a)
        if np.linalg.norm(new - y) * a <= 1e-12 * np.linalg.norm(s):
            return new
        t, old = (1.0, 1.0) if ((y - new) * (new - v)).sum() > 0 else ((1 + math.sqrt(1 + 4 * t * t)) / 2, t)
        y, v = new + (old - 1) / t * (new - v), new
    raise AssertionError("the reference did not converge")
