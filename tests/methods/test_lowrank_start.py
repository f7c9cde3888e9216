"""How AUQ-LR begins: with a share of the curvature at zero where it will fall, and never with a guess as solution."""

import dataclasses

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

import auqadmm as aq
from auqadmm.curvature.posterior import FAR_FROM_PRIOR, Posterior
from auqadmm.local.base import LocalProblem
from auqadmm.local.newton_cg import NewtonCG
from auqadmm.methods.auq_lr.method import FIRST_SHARE, curvature_falls


def digits(l2=1.0, reduction="sum"):
    X, y = load_digits(return_X_y=True)
    blocks = [(X[y == c][:60] / 16, y[y == c][:60]) for c in range(10)]
    return aq.Problem(aq.Multinomial(reduction=reduction), aq.L2(l2), blocks, intercept=False)


def test_curvature_falls_where_rows_have_labels_and_no_corners():
    assert curvature_falls(aq.Logistic())
    assert curvature_falls(aq.Multinomial())
    for other in (aq.LeastSquares(), aq.Poisson(), aq.Huber(), aq.SmoothedHinge(), aq.Quantile()):
        assert not curvature_falls(other)


@pytest.mark.parametrize(("l2", "power"), [(1e-6, 1.0), (1e6, 0.0)])
def test_the_share_goes_by_what_the_prior_leaves_free(l2, power):
    """W of the first round less its floor is `first` to that power times the curvature."""
    shard = digits().shard(torch.float64, torch.device("cpu"))
    whole = Posterior(8, l2, shard.blocks)
    v = torch.zeros(shard.shape[1:], dtype=torch.float64)
    U = whole.directions(shard, v)
    full = whole.weights(shard, v, U, None, 0.0)
    part = dataclasses.replace(whole, first=FIRST_SHARE).weights(shard, v, U, None, 0.0)
    torch.testing.assert_close(part.M, FIRST_SHARE**power * full.M, rtol=1e-12, atol=0)
    torch.testing.assert_close(part.d, FIRST_SHARE**power * full.d, rtol=1e-12, atol=0)
    assert torch.equal(part.phi, full.phi)
    again = dataclasses.replace(whole, first=FIRST_SHARE).weights(shard, v, U, part, 0.0)
    assert torch.equal(again.M, whole.weights(shard, v, U, part, 0.0).M)  # renewed ones take all of it


def test_the_share_is_continuous_in_between():
    share = Posterior(1, 1.0, 1, first=0.1)._share(
        torch.tensor([0.5, 1.0, FAR_FROM_PRIOR**0.5, FAR_FROM_PRIOR, 1e9], dtype=torch.float64)
    )
    np.testing.assert_allclose(share, [1.0, 1.0, 0.1**0.5, 0.1, 0.1], rtol=1e-12)


def test_a_warm_start_has_curvature_of_its_own():
    problem = digits()
    start = aq.solve(problem, "auq-lr")
    seen = []
    aq.solve(
        problem, "auq-lr", warm_start=start, max_iter=1,
        callbacks=[lambda event: seen.append(event.state.shared.memory.directive.posterior.first) and False],
    )  # fmt: skip
    assert seen == [1.0]


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_a_start_that_is_good_enough_is_not_the_end(scale):
    """A tolerance that the start meets already: a residual made of the guess alone would mislead acceleration."""
    shard = digits().shard(torch.float64, torch.device("cpu"))
    W = Posterior(8, 1.0, shard.blocks).weights(
        shard, torch.zeros(shard.shape[1:], dtype=torch.float64),
        Posterior(8, 1.0, shard.blocks).directions(shard, torch.zeros(shard.shape[1:], dtype=torch.float64)), None, 0.0,
    )  # fmt: skip
    zero = torch.zeros(shard.shape, dtype=torch.float64)
    problem = LocalProblem(shard, W, zero, scale * torch.ones_like(zero))
    start = problem.at(zero)
    found = NewtonCG().solve(problem, zero, 1e3 * float(start.grad_norm.max()) / 0.01, None)
    assert bool((found.grad_norm < start.grad_norm).all())
    assert bool((found.u != zero).flatten(1).any(1).all())


def test_an_easy_problem_does_not_stand_still():
    """Means with a strong ridge, where starts are good: every iteration moves v until the gap is small."""
    problem = digits(reduction="mean")
    gaps = []
    look = [lambda event: gaps.append(event.row.objective) and False]
    run = aq.solve(problem, "auq-lr", certificate_tol=1e-9, callbacks=look)
    assert run.status == "converged"
    assert run.n_iter <= 14
    moved = np.abs(np.diff(gaps)) > 1e-13 * abs(gaps[-1])
    assert moved[:-2].all()
