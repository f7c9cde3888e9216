"""S8: what the convergence proof needs of the weights holds on recorded runs, and what it concludes does too."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

import auqadmm as aq
from auqadmm.local import Direct
from tests.problems import class_blocks, least_squares, multinomial, regression_blocks

EXACT = Direct(tol=1e-15)


def recorded(problem, method, steps, **options):
    """W, u, v, λ of every iteration: the weights used IN iteration k, the iterates AFTER it."""
    seen = []

    def record(event):
        blocks, shared = event.state.blocks, event.state.shared
        # after step k the state already holds u^{k+1} and W^{k+1}; v and λ are those of k
        seen.append((blocks.W.diagonal().clone(), blocks.u, shared.v, blocks.lam))

    aq.solve(problem, method, max_iter=steps, abs_tol=0, rel_tol=0, certificate_tol=0, callbacks=[record], **options)
    return seen


def assert_summable(weights, bound, first=2):
    """W^k ≼ (1 + c_k) W^{k−1} and the same for the inverses, with Σ c_k finite."""
    for k in range(1, len(weights)):
        ratio = weights[k] / weights[k - 1]
        c = bound(k + first)
        assert ratio.max() <= (1 + c) * (1 + 1e-12)
        assert (1 / ratio).max() <= (1 + c) * (1 + 1e-12)


@pytest.mark.parametrize("problem", [least_squares(), multinomial()], ids=["elastic-net", "multinomial"])
@pytest.mark.parametrize("normalize", ["block", "global"])
def test_auq_weights_change_summably(problem, normalize):
    a, b = 0.1, 1.0
    W = [w for w, *_ in recorded(problem, aq.methods.AUQ(normalize=normalize), 60)]
    # weights[i] are those of iteration i + 2;  c_k = b_{k−1}/a − 1 = (b/a − 1)/(k − 1)²
    assert_summable(W, lambda k: (b / a - 1) / (k - 1) ** 2)
    for i, w in enumerate(W):
        top = a + (b - a) / (i + 2) ** 2
        assert w.min() >= a
        assert w.max() <= top * (1 + 1e-15)
    assert any(not torch.equal(W[i], W[i + 1]) for i in range(10))


def test_ac_weights_change_summably():
    C = 1e3
    method = aq.methods.AC(constant=C)
    W = [w for w, *_ in recorded(multinomial(), method, 60)]
    # weights[i] are chosen after iteration i + 1, where the clip allows 1 + C/k²
    assert_summable(W, lambda k: C / (k - 1) ** 2)
    assert len({float(w[0, 0, 0]) for w in W}) > 3, "the penalties must have moved"


def test_fixed_weights_never_change():
    for method in ("c-admm", "uq-admm"):
        W = [w for w, *_ in recorded(multinomial(), method, 10)]
        assert all(torch.equal(w, W[0]) for w in W)


# ------------------------------------------------------------------ conclusions, on a problem with a known saddle point
def saddle(blocks, l2):
    """Least squares (sums) + l2/2|v|²: v* by linear algebra, λ_j* = ∇f_j(v*)."""
    A = sum(X.T @ X for X, _ in blocks) + l2 * np.eye(blocks[0][0].shape[1])
    v = np.linalg.solve(A, sum(X.T @ y for X, y in blocks))
    return v, np.array([X.T @ (X @ v - y) for X, y in blocks])


def objective(blocks, l2, u, v):
    f = sum(0.5 * np.sum((X @ u[j] - y) ** 2) for j, (X, y) in enumerate(blocks))
    return f + 0.5 * l2 * v @ v


def tnorm(W, dv, dlam):
    """‖y‖²_T = ⟨v, ΣW v⟩ + Σ ⟨λ_j, W_j⁻¹λ_j⟩."""
    return np.sum(W.sum(0) * dv * dv) + np.sum(dlam * dlam / W)


def run_exact(method, steps, l2=0.5):
    blocks = regression_blocks()
    problem = least_squares(blocks, reduction="sum", regularizer=aq.L2(l2))
    seen = recorded(problem, method, steps, local=EXACT)
    W = seen[0][0].numpy()[..., 0]
    v = [np.zeros(6)] + [x.numpy()[:, 0] for _, _, x, _ in seen]
    lam = [np.zeros((4, 6))] + [x.numpy()[..., 0] for *_, x in seen]
    u = [x.numpy()[..., 0] for _, x, *_ in seen]  # u[i] is u^{i+2}
    return blocks, W, u, v, lam


CONSTANT = [aq.methods.C(rho=2.0), aq.methods.UQ(interval=(1.0, 1.05), curvature="exact")]


@pytest.mark.parametrize("method", CONSTANT, ids=["c", "uq"])
def test_distance_to_the_saddle_point_never_grows(method):
    blocks, W, _, v, lam = run_exact(method, 60)
    v_star, lam_star = saddle(blocks, 0.5)
    distance = [tnorm(W, v[k] - v_star, lam[k] - lam_star) for k in range(len(v))]
    assert all(b <= a * (1 + 1e-12) + 1e-20 for a, b in itertools.pairwise(distance))
    assert distance[-1] < 1e-3 * distance[0]


@pytest.mark.parametrize("method", [*CONSTANT, aq.methods.AUQ(curvature="exact")], ids=["c", "uq", "auq"])
def test_successive_differences_vanish(method):
    _, W, _, v, lam = run_exact(method, 400)
    change = [tnorm(W, v[k + 1] - v[k], lam[k + 1] - lam[k]) for k in range(len(v) - 1)]
    assert change[-1] <= 1e-4 * max(change)
    assert sum(change[len(change) // 2 :]) <= 0.05 * sum(change)


@pytest.mark.parametrize("method", CONSTANT, ids=["c", "uq"])
def test_ergodic_bound(method):
    """φ(ū, v̄) − φ* + ⟨ȳ − y*, F(ȳ)⟩ ≤ ‖y* − y⁰‖²_T / (2i) for constant weights (c_k = 0)."""
    l2 = 0.5
    blocks, W, u, v, lam = run_exact(method, 80, l2)
    v_star, lam_star = saddle(blocks, l2)
    best = objective(blocks, l2, [v_star] * 4, v_star)
    start = tnorm(W, v_star, lam_star)
    # u^k for k ≥ 2 was recorded; u^1 solves the first local problem from v = λ = 0
    first = np.array([np.linalg.solve(X.T @ X + np.diag(W[j]), X.T @ y) for j, (X, y) in enumerate(blocks)])
    us = [first, *u]
    tight = 0
    for i in (1, 2, 5, 20, 80):
        u_bar = np.mean(us[:i], axis=0)
        v_bar = np.mean(v[1 : i + 1], axis=0)
        # λ̂^k = λ^{k−1} + W(v^{k−1} − u^k)
        lam_bar = np.mean([lam[k - 1] + W * (v[k - 1] - us[k - 1]) for k in range(1, i + 1)], axis=0)
        # F(y) = (−λ; Σλ; u − v), and ⟨ȳ − y*, F(ȳ)⟩ = ⟨ȳ − y*, F(y*)⟩ as F is skew
        inner = -np.sum((u_bar - v_star) * lam_bar) + (v_bar - v_star) @ lam_bar.sum(0)
        inner += np.sum((lam_bar - lam_star) * (u_bar - v_bar))
        left = objective(blocks, l2, u_bar, v_bar) - best + inner
        assert -1e-9 <= left <= start / (2 * i) * (1 + 1e-9)
        tight += left > 1e-3 * start / (2 * i)
    assert tight >= 2, "the bound must bite somewhere, or this test shows nothing"


def test_one_class_per_worker_converges_with_every_method():
    """AUQ's interval collapses to a, yet the run still converges: the theorem's promise."""
    problem = multinomial(class_blocks())
    for method in ("ac-admm", "auq-admm"):
        assert aq.solve(problem, method, max_iter=600).status == "converged"
