"""Many two-class problems as one."""

import numpy as np
import pytest
import torch

import auqadmm as aq
from auqadmm.problem.made_of_losses import OneAgainstRest


@pytest.mark.parametrize("loss", [aq.SmoothedHinge(0.1), aq.Logistic()], ids=["hinge", "logistic"])
def test_every_column_is_the_answer_of_its_own_problem(loss, rng):
    X, y = rng.normal(size=(60, 4)), rng.integers(0, 3, 60)
    options = {"stop": "certificate", "certificate_tol": 1e-15, "max_iter": 1000}
    blocks = [(X[:20], y[:20]), (X[20:], y[20:])]
    together = aq.solve(aq.Problem(OneAgainstRest(loss), aq.L2(1.0), blocks, intercept=True), **options)
    assert together.status == "converged"
    total = 0.0
    for k in range(3):
        alone = aq.solve(aq.Problem(loss, aq.L2(1.0), [(A, b == k) for A, b in blocks], intercept=True), **options)
        np.testing.assert_allclose(together.v[:, k], alone.v[:, 0], atol=1e-6)
        total += alone.objective
    assert together.objective == pytest.approx(total)


def test_derivatives_are_those_of_autograd(rng):
    loss = OneAgainstRest(aq.SmoothedHinge(0.3))
    z = torch.tensor(rng.normal(size=(5, 3)), requires_grad=True)
    y = torch.tensor([0, 1, 2, 1, 0])
    (slope,) = torch.autograd.grad(loss.row_value(z, y).sum(), z, create_graph=True)
    np.testing.assert_allclose(loss.row_slope(z, y).detach(), slope.detach(), atol=1e-12)
    (second,) = torch.autograd.grad(slope.sum(), z)  # columns are apart: the Hessian of a row is diagonal
    np.testing.assert_allclose(loss.row_curvature(z, y).diagonal().detach(), second, atol=1e-10)
    a = loss.row_slope(z, y).detach()
    gap = loss.row_value(z, y) + loss.row_conjugate(a, y) - (a * z).sum(1)  # Fenchel and Young, with equality
    np.testing.assert_allclose(gap.detach(), 0, atol=1e-10)
    flat = loss.row_expected(z, y, torch.full((5,), 1e-12)).diagonal()
    assert flat.shape == z.shape
