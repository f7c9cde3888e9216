"""Steps over the corners of a hinge: the minimiser of the model, by its gradient in dense numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.optimize
import torch

import auqadmm as aq
from auqadmm.local import NewtonCG
from auqadmm.local.base import LocalProblem
from auqadmm.local.cg import averaged
from auqadmm.local.hinge import active_rows, direction
from auqadmm.metrics.weights import Diagonal, Scalar
from tests.local.cases import start_of
from tests.local.test_corners import low_rank, margins

ALL = torch.ones(2, dtype=torch.bool)


def at_corners(weights="scalar", eps=2e-4, sizes=(900, 700), reduction="sum"):
    """A local problem, a point on the way to its solution, and the rows near their corners there."""
    shard = margins(sizes, 30, reduction, eps)
    blocks, m, _ = shard.shape
    W = Scalar(torch.ones(blocks, dtype=torch.float64), m, 1)
    if weights == "diagonal":
        W = Diagonal(0.5 + torch.rand(blocks, m, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(1)))
    if weights == "low-rank":
        W = low_rank(shard)
    local = LocalProblem(shard, W, shard.zeros(), 0.1 * start_of(shard))
    solution = NewtonCG(tol=1e-3).solve(local, shard.zeros(), None, None).u
    here = local.at(solution + 2e-3 * start_of(shard, seed=3))
    width = torch.full((blocks,), 0.02, dtype=torch.float64)
    hessian = averaged(here.point, None, width).hessian
    near = active_rows(local, hessian, torch.full((blocks,), 1e-2, dtype=torch.float64), torch.ones(blocks) > 0)
    return local, here, near, width


def left(local, here, near, P):
    """The gradient of the model at P, block by block, written with the formula of the hinge."""
    eps, shard = local.shard.loss.eps, local.shard

    def slope(z, y):
        t = 1 - y * z
        return -y * (1 + t / np.sqrt(t * t + eps * eps)) / 2

    out = []
    for j in range(len(P)):
        rows = near.row[j][near.there[j]].numpy()
        X = near.X[j][near.there[j]].numpy()
        z, y = here.point.z[rows, 0].numpy(), shard.target[rows].numpy()
        c = shard.row_weight[rows].numpy()
        change = slope(z + X @ P[j, :, 0].numpy(), y) - slope(z, y)
        out.append(torch.from_numpy(X.T @ (c * change))[:, None])
    return here.grad + local.W.apply(P) + torch.stack(out)


@pytest.mark.thin(3)
@pytest.mark.parametrize("weights", ["scalar", "diagonal", "low-rank"])
@pytest.mark.parametrize("share", [0.1, 1e-6])
@pytest.mark.parametrize("eps", [2e-4, 2e-2])
def test_the_direction_minimises_the_model(weights, share, eps):
    local, here, near, width = at_corners(weights, eps)
    near = replace(near, enough=ALL)
    assert near.X.shape[1] > 20
    P = direction(local, here, near, width, torch.full((2,), share, dtype=torch.float64))
    rest = left(local, here, near, P)

    def size(x):
        return (x * local.W.solve(x)).flatten(1).sum(1).sqrt()

    assert (size(rest) <= 1.01 * share * size(here.grad)).all()
    assert ((here.grad * P).flatten(1).sum(1) < 0).all()


def test_against_another_minimiser():
    local, here, near, width = at_corners(eps=2e-2)
    P = direction(
        local,
        here,
        replace(near, enough=ALL),
        width,
        torch.full((2,), 1e-9, dtype=torch.float64),
    )

    def residual(p):
        return left(local, here, near, torch.from_numpy(p).reshape(2, 30, 1)).flatten().numpy()

    found = scipy.optimize.root(residual, np.zeros(60), method="krylov", options={"fatol": 1e-9, "maxiter": 500})
    assert found.success
    np.testing.assert_allclose(P.flatten().numpy(), found.x, rtol=1e-5, atol=1e-7)


def test_blocks_of_few_rows_beside_tall_ones():
    """The small block has fewer rows than the other chooses: the places that stay empty add nothing."""
    local, here, near, width = at_corners(sizes=(900, 8))
    assert not near.there.all()
    P = direction(
        local,
        here,
        replace(near, enough=ALL),
        width,
        torch.full((2,), 1e-8, dtype=torch.float64),
    )
    assert torch.linalg.vector_norm(left(local, here, near, P)) <= 1e-6 * torch.linalg.vector_norm(here.grad)


def test_numbers_that_are_not_finite_still_descend():
    local, here, near, width = at_corners()
    broken = replace(near, X=near.X.clone())
    broken.X[0, 0, 0] = torch.nan
    P = direction(local, here, broken, width, torch.full((2,), 1e-3, dtype=torch.float64))
    assert P.isfinite().all()
    assert ((here.grad * P).flatten(1).sum(1) < 0).all()


def test_most_solves_take_a_single_step():
    """C-ADMM on a sharp hinge: once rows settle, a solve is a step over its corners."""
    problem = aq.Problem(aq.SmoothedHinge(eps=2e-4), aq.L2(0.1), [(b, y) for b, y in _halves(np.random.default_rng(0))])
    result = aq.solve(problem, "c-admm", max_iter=40, abs_tol=0.0, rel_tol=0.0, stop="residuals")
    last = (result.history[-1].hvps - result.history[19].hvps) / 20 / 2
    assert last <= 1.5


def _halves(rng):
    truth = rng.normal(size=20)
    for _ in range(2):
        X = rng.normal(size=(2000, 20))
        yield X, np.where(X @ truth + rng.normal(size=2000) > 0, 1.0, -1.0)
