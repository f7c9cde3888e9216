"""Newton's method where fewer rows bend than unknowns may move: its Hessian is singular, and l1 alone decides."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.optimize
import torch

import auqadmm as aq
from auqadmm.methods.newton.model import GroupedHessian, newton_step


def wide(rows, columns, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, columns))
    return X, 3 * X[:, :20] @ rng.normal(size=20) + rng.normal(size=rows)


def least(X, y, q, eps, l1):
    """By L-BFGS-B on the positive and the negative parts, begun anew where a line search gave up."""

    def F(both):
        up, down = np.split(both, 2)
        r = y - X @ (up - down)
        root = np.sqrt(r**2 + eps**2)
        slope = -X.T @ ((q - 0.5) + 0.5 * r / root)
        return ((q - 0.5) * r + 0.5 * root).sum() + l1 * both.sum(), np.concatenate([slope + l1, l1 - slope])

    x, bounds = np.zeros(2 * X.shape[1]), [(0, None)] * (2 * X.shape[1])
    options = {"maxiter": 50_000, "maxfun": 100_000, "ftol": 1e-15, "gtol": 1e-9, "maxcor": 50}
    for _ in range(10):
        x = scipy.optimize.minimize(F, x, jac=True, method="L-BFGS-B", bounds=bounds, options=options).x
    return F(x)[0]


@pytest.mark.parametrize(("cost", "shape"), [(500, (40, 90)), (32_000, (24, 45))], ids=["working set", "all unknowns"])
def test_a_quantile_of_more_columns_than_rows_arrives(cost, shape):
    X, y = wide(*shape)
    problem = aq.Problem(aq.Quantile(0.4, eps=0.05), aq.L1(0.3), [(X[j::4], y[j::4]) for j in range(4)])
    run = aq.solve(problem, "newton", round_cost=cost, certificate_tol=1e-6, max_iter=150)
    assert run.status == "converged", run.message
    assert run.objective == pytest.approx(least(X, y, 0.4, 0.05, 0.3), rel=1e-5)


@pytest.mark.parametrize("share", [None, 0.0, 1e-2])
def test_a_step_lowers_the_model_however_singular_it_is(share):
    X, y = (torch.as_tensor(x) for x in wide(30, 70))
    H, G = X.mT @ X, -(X.mT @ y)[:, None]
    g, v = aq.L1(0.3), torch.zeros(70, 1, dtype=torch.float64)
    found = newton_step(g, v, G, GroupedHessian(((torch.arange(70), H),)), 1e-9, share)
    d = found.d
    assert float((G * d).sum() + 0.5 * (d * (H @ d)).sum() + g.value(d)) < 0
    assert found.linear > 0
