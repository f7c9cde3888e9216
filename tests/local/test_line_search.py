"""The line search: the step it promises, for every block on its own, and down to rounding."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from auqadmm.local import NewtonCG
from auqadmm.local.cg import averaged
from auqadmm.local.lbfgs import Pairs
from auqadmm.local.line_search import SLOPE_LEFT, SLOPE_PAST, search
from auqadmm.metrics.weights import dot
from tests.local.cases import LOSSES, UNEVEN, local_problem, shard_of, start_of


@given(
    loss=st.sampled_from(LOSSES),
    length=st.floats(1e-6, 1e4),
    seed=st.integers(0, 50),
    kind=st.sampled_from(["scalar", "dense"]),
)
def test_a_step_goes_down_and_ends_where_the_slope_is_small(loss, length, seed, kind):
    """Whatever the length of the direction: steepest descent, scaled up or down by many orders."""
    local = local_problem(shard_of(loss, UNEVEN), kind, seed=seed)
    here = local.at(start_of(local.shard, seed=seed))
    P = -length * here.grad
    active = torch.tensor([True, True, True, False, True])
    P[3] = 0
    there, moved = search(local, here, P, active)
    assert moved.tolist() == active.tolist()
    assert torch.equal(there.u[3], here.u[3])
    assert (local.value(there.point)[active] < local.value(here.point)[active]).all()
    start, end = dot(here.grad, P)[active], dot(there.grad, P)[active]
    assert (end >= 1.001 * SLOPE_LEFT * start).all()
    assert (end <= -1.001 * SLOPE_PAST * start).all()


def test_a_direction_uphill_is_not_followed():
    local = local_problem(shard_of("Logistic"))
    here = local.at(start_of(local.shard))
    there, moved = search(local, here, here.grad, torch.ones(3, dtype=torch.bool))
    assert not moved.any()
    assert torch.equal(there.u, here.u)


@pytest.mark.parametrize("loss", LOSSES)
def test_newton_steps_are_accepted_far_below_the_square_root_of_rounding(loss):
    """Values are flat to rounding there; a test on values would reject at random."""
    local = local_problem(shard_of(loss, UNEVEN), "dense")
    found = NewtonCG(tol=1e-13, max_iter=200).solve(local, start_of(local.shard), None, None)
    assert found.converged.all()
    assert found.grad_norm.max() < 1e-11


def test_pairs_of_each_block_are_its_own():
    """A pair skipped by one block leaves that block's H as it was; empty slots do nothing."""
    coins = torch.Generator().manual_seed(0)
    s, y, g = (torch.randn(2, 4, 1, generator=coins, dtype=torch.float64) for _ in range(3))
    y = s + 0.1 * y
    none = Pairs.none(3, torch.ones(2, dtype=torch.float64), g)
    assert torch.equal(none.apply(g), g)
    pairs = none.push(s, y, torch.tensor([True, False]))
    assert torch.equal(pairs.apply(g)[1], g[1])
    torch.testing.assert_close(pairs.apply(y)[0], s[0])  # the secant equation Hy = s
    for _ in range(3):
        pairs = pairs.push(s, y, torch.tensor([True, True]))
    torch.testing.assert_close(pairs.apply(y), s)


@pytest.mark.parametrize("loss", ["Logistic", "SmoothedHinge", "Huber", "Poisson", "Quantile"])
def test_average_curvature_is_the_slope_of_slopes_and_turns_into_the_hessian(loss):
    shard = shard_of(loss, UNEVEN)
    u, P = start_of(shard), start_of(shard, seed=9)
    point = shard.linearize(u)
    assert averaged(point, None) is point
    near = averaged(point, shard.linearize(u + 1e-14 * P))
    torch.testing.assert_close(near.hvp(P), point.hvp(P))
    far = averaged(point, shard.linearize(u + 0.3 * P))
    width = far.width
    mean = torch.stack(
        [
            shard.loss.row_curvature(shard.loss.prepare(point.z + a * width), shard.target).diagonal()
            for a in torch.linspace(-1, 1, 200_001, dtype=torch.float64)[::20]
        ]
    ).mean(0)
    torch.testing.assert_close(far.curvature.diagonal(), mean, rtol=2e-2, atol=2e-3)


def test_several_columns_keep_their_own_curvature():
    shard = shard_of("Multinomial")
    point = shard.linearize(start_of(shard))
    assert averaged(point, shard.linearize(shard.zeros())) is point
