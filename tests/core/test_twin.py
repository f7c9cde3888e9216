"""The whole iteration against a naive twin: plain numpy, one block at a time, formulas as printed in S2–S7."""

from __future__ import annotations

import numpy as np
import pytest

import auqadmm as aq
from auqadmm.local import Direct
from tests.problems import least_squares, regression_blocks

STEPS = 20


def soft(x, t):
    return np.sign(x) * np.maximum(np.abs(x) - t, 0)


class Twin:
    """Least squares (means) with elastic net; W_j are full matrices, solved densely."""

    def __init__(self, blocks, l1, l2, alpha=1.0):
        self.X = [X for X, _ in blocks]
        self.y = [y for _, y in blocks]
        self.n = [len(y) for y in self.y]
        self.N, self.m = len(blocks), self.X[0].shape[1]
        self.l1, self.l2, self.alpha = l1, l2, alpha
        self.v, self.v_prev = np.zeros(self.m), None
        self.u = [np.zeros(self.m) for _ in range(self.N)]
        self.lam = [np.zeros(self.m) for _ in range(self.N)]

    def hessian(self, j):
        return self.X[j].T @ self.X[j] / self.n[j]

    def iterate(self, W):
        """One pass of S2 with weights W (list of m×m); returns the residuals of S3."""
        for j in range(self.N):
            A = self.hessian(j) + W[j]
            self.u[j] = np.linalg.solve(A, self.X[j].T @ self.y[j] / self.n[j] + W[j] @ self.v + self.lam[j])
        hat = [self.alpha * u + (1 - self.alpha) * self.v for u in self.u]
        K = sum(np.diag(w) for w in W)
        s = sum(W[j] @ hat[j] - self.lam[j] for j in range(self.N))
        self.v_prev, self.v = self.v, soft(s, self.l1) / (K + self.l2)
        self.lam_prev = [x.copy() for x in self.lam]
        dual = 0.0
        for j in range(self.N):
            change = (self.v - self.v_prev) - (self.alpha - 1) * (self.u[j] - self.v_prev)
            dual += np.sum((W[j] @ change) ** 2)
            self.lam[j] = self.lam[j] + W[j] @ (self.v - hat[j])
        primal = sum(np.sum((u - self.v) ** 2) for u in self.u)
        return np.sqrt(primal), np.sqrt(dual)


def trajectory(problem, method, steps=STEPS, **options):
    """v, λ and W of every iteration of the library."""
    seen = []

    def record(event):
        state = event.state
        seen.append((state.shared.v.numpy()[:, 0].copy(), state.blocks.lam.numpy()[..., 0].copy(), event.row))

    aq.solve(
        problem,
        method,
        max_iter=steps,
        abs_tol=0,
        rel_tol=0,
        certificate_tol=0,
        local=Direct(tol=1e-15),
        callbacks=[record],
        **options,
    )
    return seen


def compare(seen, twin, weights, tol=1e-10):
    for k, (v, lam, row) in enumerate(seen, start=1):
        primal, dual = twin.iterate(weights(k, twin))
        np.testing.assert_allclose(v, twin.v, atol=tol)
        np.testing.assert_allclose(lam, np.array(twin.lam), atol=tol)
        assert row.primal_residual == pytest.approx(primal, abs=tol)
        assert row.dual_residual == pytest.approx(dual, abs=tol)
        yield primal, dual


@pytest.mark.parametrize("alpha", [1.0, 1.6])
def test_constant(alpha):
    problem = least_squares()
    seen = trajectory(problem, aq.methods.C(rho=0.7, relaxation=alpha))
    twin = Twin(regression_blocks(), 0.05, 0.1, alpha)
    eye = np.eye(twin.m)
    assert len(list(compare(seen, twin, lambda k, t: [0.7 * eye] * t.N))) == STEPS


@pytest.mark.parametrize("normalized", [False, True])
def test_balanced(normalized):
    problem = least_squares()
    start = 100.0  # far off, so that the rule has to act
    seen = trajectory(problem, aq.methods.RB(rho=start, normalized=normalized))
    twin, rhos = Twin(regression_blocks(), 0.05, 0.1), [start]
    eye = np.eye(twin.m)
    for primal, dual in compare(seen, twin, lambda k, t: [rhos[-1] * eye] * t.N):
        r, s = primal, dual
        if normalized:
            r /= max(np.sqrt(sum(u @ u for u in twin.u)), np.sqrt(twin.N) * np.linalg.norm(twin.v))
            s /= np.sqrt(sum(x @ x for x in twin.lam))
        rho = rhos[-1]
        rhos.append(2 * rho if r > 10 * s else rho / 2 if s > 10 * r else rho)
    assert len(set(rhos)) > 1


def uncertainty(k, twin, shrink, a=0.1, b=1.0):
    """σ(diag H_j) on the interval of iteration k, with the exact diagonal (H_j is constant here)."""
    b_k = a * (1 + (b / a - 1) / k**2) if shrink else b
    W = []
    for j in range(twin.N):
        d = np.diag(twin.hessian(j))
        W.append(np.diag(a + (b_k - a) * (d - d.min()) / (d.max() - d.min())))
    return W


@pytest.mark.parametrize("shrink", [False, True])
def test_uncertainty(shrink):
    method = (aq.methods.AUQ if shrink else aq.methods.UQ)(curvature="exact")
    seen = trajectory(least_squares(), method)
    twin = Twin(regression_blocks(), 0.05, 0.1)
    assert len(list(compare(seen, twin, lambda k, t: uncertainty(k, t, shrink)))) == STEPS


def test_uncertainty_renewed_every_third_iteration():
    seen = trajectory(least_squares(), aq.methods.AUQ(curvature="exact", every=3))
    twin = Twin(regression_blocks(), 0.05, 0.1)
    assert len(list(compare(seen, twin, lambda k, t: uncertainty(1 + (k - 1) // 3, t, True)))) == STEPS


def test_global_normalisation_uses_one_range_for_all_blocks():
    seen = trajectory(least_squares(), aq.methods.UQ(curvature="exact", normalize="global"))
    twin = Twin(regression_blocks(), 0.05, 0.1)
    d = [np.diag(twin.hessian(j)) for j in range(twin.N)]
    lo, hi = min(x.min() for x in d), max(x.max() for x in d)
    W = [np.diag(0.1 + 0.9 * (x - lo) / (hi - lo)) for x in d]
    assert len(list(compare(seen, twin, lambda k, t: W))) == STEPS


def test_paper_residual_is_the_unweighted_change_of_v():
    seen = trajectory(least_squares(), aq.methods.C(rho=0.3, residuals="paper"), steps=6)
    v = [np.zeros(6)] + [x for x, _, _ in seen]
    for k, (_, _, row) in enumerate(seen, start=1):
        assert row.dual_residual == pytest.approx(2.0 * np.linalg.norm(v[k] - v[k - 1]), rel=1e-12)  # N = 4


# ------------------------------------------------------------------ AC-ADMM, transcribed from S6 alone
def spectral(pair_a, pair_b):
    out = []
    for D, E in (pair_a, pair_b):
        sd, mg = E @ E / (D @ E), D @ E / (D @ D)
        out.append((mg if 2 * mg > sd else sd - mg / 2, D @ E / (np.linalg.norm(D) * np.linalg.norm(E))))
    return out


def test_spectral_trajectory():
    blocks = regression_blocks()
    seen = trajectory(least_squares(), aq.methods.AC())
    twin = Twin(blocks, 0.05, 0.1)
    rho, stored, kinds = np.ones(twin.N), None, set()
    for k, (v, lam, _) in enumerate(seen, start=1):
        before = [x.copy() for x in twin.lam]
        v_before = twin.v.copy()
        twin.iterate([r * np.eye(twin.m) for r in rho])
        np.testing.assert_allclose(v, twin.v, atol=1e-10)
        np.testing.assert_allclose(lam, np.array(twin.lam), atol=1e-10)
        hat = [before[j] + rho[j] * (v_before - twin.u[j]) for j in range(twin.N)]
        point = ([u.copy() for u in twin.u], hat, twin.v.copy(), [x.copy() for x in twin.lam])
        if k % 2 == 0:
            u0, hat0, v0, lam0 = stored
            for j in range(twin.N):
                (a, a_cor), (b, b_cor) = spectral(
                    (twin.u[j] - u0[j], hat[j] - hat0[j]), (-(twin.v - v0), twin.lam[j] - lam0[j])
                )
                kinds.add((a_cor > 0.2, b_cor > 0.2))
                new = rho[j]
                if a_cor > 0.2 and b_cor > 0.2:
                    new = np.sqrt(a * b)
                elif a_cor > 0.2:
                    new = a
                elif b_cor > 0.2:
                    new = b
                bound = 1 + 1e10 / k**2
                rho[j] = max(min(new, rho[j] * bound), rho[j] / bound)
        if k == 1 or k % 2 == 0:
            stored = point
    assert len(seen) == STEPS
    assert len(kinds) > 1, "the run must visit more than one case of the rule"
