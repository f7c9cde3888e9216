"""The consensus step in the metric of low-rank weights, against dense matrices and a plain solver in numpy."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from auqadmm.core import composite, kronsum, pcg, pivot, vstep
from auqadmm.core.kronsum import Cholesky, KroneckerSum, Submatrix, Woodbury
from auqadmm.core.lowrank import LowRank
from auqadmm.core.vstep import LowRankMetric
from auqadmm.problem.group_lasso import GroupLasso
from auqadmm.problem.regularizers import (
    L1,
    L2,
    Box,
    ElasticNet,
    NonNegative,
    Zero,
)
from auqadmm.problem.wrappers import CustomRegularizer, FreeIntercept
from tests.core.test_lowrank import BASES, explicit, weights


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
    for name in ("dense", "small", "per_column", "factor"):
        if name in options:
            monkeypatch.setattr(kronsum, name.upper(), options.pop(name))
    if options.pop("slim", False):
        monkeypatch.setattr(kronsum, "SLIM", 1)
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
    if shape[1] == 1 and kronsum.FACTOR > 1000:
        torch.testing.assert_close(full @ (torch.from_numpy(K) + 0.5 * torch.eye(n)).double(), torch.eye(n).double())


@pytest.mark.parametrize(
    ("C", "r", "dense", "expected"),
    [(1, 2, 4096, Woodbury), (1, 8, 4096, Cholesky), (1, 2, 0, Woodbury), (3, 2, 4096, Woodbury), (3, 4, 0, Cholesky)],
)
def test_the_cheaper_factorisation_is_chosen(monkeypatch, C, r, dense, expected):
    monkeypatch.setattr(kronsum, "DENSE", dense)
    K = KroneckerSum(blocks(m=12 if r != 2 or C > 1 or dense == 0 else 24, C=C, r=r))
    assert isinstance(K.inverse(torch.zeros(K.shape, dtype=torch.float64)), expected)


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


# ---------------------------------------------------------------------- solutions
@pytest.mark.parametrize("name", CASES)
def test_it_finds_the_solution_that_a_plain_solver_finds(case, name):
    metric, K, s = case
    g, prox = CASES[name]
    found = metric.solve(g, s, tol=1e-10 * float(s.norm()))
    expected = reference(K, s.numpy(), prox)
    assert found.residual <= 1e-10 * float(s.norm())
    np.testing.assert_allclose(found.v, expected, atol=1e-8 * max(1.0, np.abs(expected).max()))


@pytest.mark.parametrize("name", CASES)
def test_a_warm_start_at_the_solution_stays_there(case, name):
    metric, _, s = case
    g, _ = CASES[name]
    tol = 1e-9 * float(s.norm())
    found = metric.solve(g, s, tol=tol)
    again = metric.solve(g, s, found.v, 1.01 * tol)
    assert again.iterations <= 1
    torch.testing.assert_close(again.v, found.v, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", [name for name in CASES if name != "custom"])
def test_the_residual_bounds_the_distance_to_the_subdifferential(case, name):
    metric, _, s = case
    g, _ = CASES[name]
    size = float(s.norm())
    for tol in (1e-2 * size, 1e-7 * size, 0.0 if g.separable else 1e-9 * size):
        found = metric.solve(g, s, tol=tol)
        distance = float(g.subgradient_distance(found.v, metric.apply(found.v) - s))
        assert distance <= found.residual * (1 + 1e-6) + 1e-12 * size
        assert found.residual <= max(tol, 1e-12 * size)


@given(seed=st.integers(0, 50), name=st.sampled_from(list(CASES)), C=st.sampled_from([1, 2, 4]))
def test_optimality_in_random_problems(seed, name, C):
    g, _ = CASES[name]
    W = blocks(N=2, m=7, C=C, r=2, seed=seed, condition=10.0 ** (seed % 4))
    metric = LowRankMetric(W)
    s = target(metric, 7, C, seed)
    found = metric.solve(g, s)
    assert found.residual <= 1e-10 * float(s.norm())
    assert metric.prox(g, s).equal(found.v), "prox is solve, and both are deterministic"


@pytest.mark.parametrize("C", [1, 3])
@pytest.mark.parametrize("name", SEPARABLE)
def test_ill_conditioned_metrics(name, C):
    """Stiff directions 1e8 times the floor, and not along the axes: scaling by the diagonal does not help."""
    g, _ = CASES[name]
    metric = LowRankMetric(blocks(m=40, C=C, r=4, condition=1e8))
    s = target(metric, 40, C)
    found = metric.solve(g, s)
    assert found.residual <= 1e-10 * float(s.norm())
    distance = float(g.subgradient_distance(found.v, metric.apply(found.v) - s))
    assert distance <= 2e-10 * float(s.norm())


@pytest.mark.parametrize("name", ["l1", "box"])
def test_ill_conditioned_metrics_by_conjugate_gradients(monkeypatch, name):
    """Where no part of K is formed the linear systems are solved loosely at first; failures make them exact."""
    monkeypatch.setattr(kronsum, "SMALL", 0)
    metric = LowRankMetric(blocks(m=40, C=3, r=4, condition=1e6))
    s = target(metric, 40, 3)
    assert metric.solve(CASES[name][0], s).residual <= 1e-10 * float(s.norm())


@pytest.mark.parametrize("C", [1, 3])
@pytest.mark.parametrize("condition", [1e8, 1e12])
def test_ill_conditioned_linear_systems(condition, C):
    metric = LowRankMetric(blocks(m=40, C=C, r=4, condition=condition))
    s = target(metric, 40, C)
    assert metric.solve(L2(0.1), s).residual <= 1e-10 * float(s.norm())


@pytest.mark.parametrize("name", SEPARABLE)
def test_a_cycle_is_left_by_the_proximal_point_method(monkeypatch, name):
    monkeypatch.setattr(pivot, "ROUNDS", 2)
    g, prox = CASES[name]
    W = blocks(C=3)
    metric = LowRankMetric(W)
    s = target(metric, 12, 3)
    found = metric.solve(g, s)
    assert found.residual <= 1e-10 * float(s.norm())
    expected = reference(explicit(W).sum(0).numpy(), s.numpy(), prox)
    np.testing.assert_allclose(found.v, expected, atol=1e-8 * max(1.0, np.abs(expected).max()))


def test_when_the_steps_run_out_the_best_point_comes_with_its_residual(monkeypatch):
    monkeypatch.setattr(vstep, "MAX_STEPS", 5)
    monkeypatch.setattr(pivot, "ROUNDS", 1)
    monkeypatch.setattr(pivot, "BUDGET", 3)
    metric = LowRankMetric(blocks(condition=1e4))
    s = target(metric, 12, 1)
    for g in (GroupLasso(0.5), L1(0.8)):
        found = metric.solve(g, s, tol=0.0)
        distance = float(g.subgradient_distance(found.v, metric.apply(found.v) - s))
        assert 1e-9 < distance <= found.residual * (1 + 1e-9)


@pytest.mark.parametrize("name", CASES)
def test_nothing_asked_nothing_done(name):
    """s = 0, from zero: v = 0 (or the nearest feasible point), without a division by ‖s‖."""
    g, _ = CASES[name]
    found = LowRankMetric(blocks(C=2)).solve(g, torch.zeros(12, 2, dtype=torch.float64))
    assert found.v.isfinite().all()
    assert found.residual <= 1e-12
    if float(g.value(torch.zeros(12, 2, dtype=torch.float64))) == 0:
        assert (found.v == 0).all()


@pytest.mark.parametrize("factor", [1e-12, 1e12])
@pytest.mark.parametrize("C", [1, 3])
def test_units_do_not_matter(factor, C):
    """K, s and g times the same number: the same v."""
    W = blocks(C=C)
    metric, scaled = LowRankMetric(W), LowRankMetric(replace(W, M=factor * W.M, d=factor * W.d, phi=factor * W.phi))
    s = target(metric, 12, C)
    for g, h in ((L2(0.3), L2(0.3 * factor)), (ElasticNet(0.8, 0.3), ElasticNet(0.8 * factor, 0.3 * factor))):
        torch.testing.assert_close(scaled.prox(h, factor * s), metric.prox(g, s), rtol=1e-8, atol=1e-9)


def test_a_useless_guess_is_not_believed():
    metric = LowRankMetric(blocks())
    s = target(metric, 12, 1)
    for guess in (torch.full_like(s, math.inf), torch.full_like(s, 1e30)):
        assert metric.solve(L2(1.0), s, guess).residual <= 1e-10 * float(s.norm())


@pytest.mark.parametrize("C", [1, 3])
@pytest.mark.parametrize("name", ["l2", "l1", "box", "group lasso"])
def test_what_is_not_finite_ends_quickly_and_is_not_called_solved(name, C):
    g, _ = CASES[name]
    W = blocks(C=C)
    s = target(LowRankMetric(W), 12, C)
    broken = s.clone()
    broken[3, 0] = torch.nan
    assert not LowRankMetric(W).solve(g, broken, tol=1e-6).residual <= 1e-6
    M = W.M.clone()
    M[1, 0, 0] = torch.nan
    assert not LowRankMetric(replace(W, M=M)).solve(g, s, tol=1e-6).residual <= 1e-6


# ---------------------------------------------------------------------- parts
def test_an_indefinite_preconditioner_is_replaced():
    K = explicit(blocks()).sum(0)
    D = K.diagonal()[:, None]
    b = torch.ones(12, 1, dtype=torch.float64)
    x, residual, _ = pcg.solve(lambda x: K @ x, [lambda x: -x, lambda x: x / D], b, 0 * b, 1e-10, 200)
    assert residual <= 1e-10
    torch.testing.assert_close(K @ x, b)


def test_conjugate_gradients_stop_in_either_norm():
    K = explicit(blocks()).sum(0)
    b = torch.ones(12, 1, dtype=torch.float64)
    x, _, sound = pcg.cg(lambda x: K @ x, lambda x: x, b, 1e-9, 100)
    assert sound
    assert float((b - K @ x).norm()) <= 1.1e-9
    loose, k, _ = pcg.cg(lambda x: K @ x, lambda x: x, b, 0.0, 100, relative=0.5)
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
    assert largest.numel <= 2 * max(m * C * C, m * N * r, C * (N * r) ** 2, kronsum.SMALL**2), "not m × m, not n × n"


def test_too_many_directions_are_cut_to_the_memory_allowed(monkeypatch):
    monkeypatch.setattr(kronsum, "FACTOR", 3 * 10**2)
    monkeypatch.setattr(kronsum, "PER_COLUMN", 0)
    metric = LowRankMetric(blocks(N=6, m=60, C=3, r=8))
    inverse = metric._K.inverse(torch.ones(60, 3, dtype=torch.float64))
    assert isinstance(inverse, Woodbury)
    assert inverse.root.shape == (3, 10, 10)
    s = target(metric, 60, 3)
    assert metric.solve(L2(1.0), s).residual <= 1e-10 * float(s.norm())
