"""The proximal map is optimal in any metric, and the conjugate obeys Fenchel–Young."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from scipy.optimize import minimize
from torch import Tensor

from auqadmm.problem.group_lasso import GroupLasso
from auqadmm.problem.regularizers import L1, L2, Box, ElasticNet, NonNegative, Regularizer, Zero
from auqadmm.problem.wrappers import FreeIntercept
from tests.problem.regularizer_cases import (
    CASES,
    INF,
    WITH_DUAL,
    C,
    M,
    custom_l1,
    every_case,
    inner,
    law,
    matrices,
    metrics,
)

# --- the proximal map ---------------------------------------------------------------------------------------


@every_case
@law
@given(s=matrices(), K=metrics)
def test_prox_satisfies_its_optimality_condition_in_any_metric(name: str, s: Tensor, K: Tensor) -> None:
    v = CASES[name].prox(s, K)
    assert CASES[name].subgradient_distance(v, K * v - s) <= 1e-12


@every_case
@law
@given(s=matrices(), K=metrics)
def test_the_slope_of_the_prox_is_its_derivative_where_it_is_told(name: str, s: Tensor, K: Tensor) -> None:
    for at in (s, s.round(), torch.zeros_like(s)):  # edges among them
        told = CASES[name].prox_slope(at, K)
        if told is None:
            return
        y = at.clone().requires_grad_(True)
        value = CASES[name].prox(y, K)
        slope = torch.autograd.grad(value.sum(), y)[0]
        torch.testing.assert_close(told.expand_as(slope), slope, rtol=1e-14, atol=0.0)


@every_case
@law
@given(s=matrices(), K=metrics, z=matrices())
def test_prox_minimises_with_the_growth_of_the_metric(name: str, s: Tensor, K: Tensor, z: Tensor) -> None:
    reg = CASES[name]
    z = reg.prox(z, 1.0)  # any feasible point
    v = reg.prox(s, K)

    def objective(x: Tensor) -> float:
        return float(reg.value(x)) + 0.5 * inner(x, K * x) - inner(s, x)

    growth = 0.5 * inner(z - v, K * (z - v))
    assert objective(z) - objective(v) >= growth - 1e-11 * (1 + abs(objective(v)) + growth)


@every_case
@law
@given(s=matrices(), t=matrices(), K=metrics)
def test_prox_is_firmly_nonexpansive_in_the_metric(name: str, s: Tensor, t: Tensor, K: Tensor) -> None:
    difference = CASES[name].prox(s, K) - CASES[name].prox(t, K)
    moved = inner(difference, s - t)
    assert inner(difference, K * difference) <= moved + 1e-12 * (1 + abs(moved))


@every_case
def test_prox_takes_every_form_of_the_metric(name: str) -> None:
    generator = torch.Generator().manual_seed(0)
    s = 3 * torch.randn(M, C, generator=generator, dtype=torch.float64)
    shapes: list[tuple[int, ...]] = [(), (C,), (1, C), (M, 1), (M, C)]
    for shape in shapes:
        K = 0.5 + torch.rand(shape, generator=generator, dtype=torch.float64)
        torch.testing.assert_close(CASES[name].prox(s, K), CASES[name].prox(s, K.expand(M, C).contiguous()))
    torch.testing.assert_close(CASES[name].prox(s, 2.0), CASES[name].prox(s, torch.full_like(s, 2.0)))


@pytest.mark.parametrize("name", ["rows", "groups", "weights", "free-group"])
def test_prox_of_groups_is_what_scipy_finds(name: str) -> None:
    rng = np.random.default_rng(1)
    s, K = rng.normal(scale=6, size=(M, C)), 10 ** rng.uniform(-1, 1, size=(M, C))
    v = CASES[name].prox(torch.from_numpy(s), torch.from_numpy(K)).numpy()
    assert (np.abs(v) > 0).all()  # no group vanishes, so the objective is smooth around the minimum

    def objective(flat: np.ndarray) -> float:
        x = flat.reshape(M, C)
        return float(CASES[name].value(torch.from_numpy(x))) + 0.5 * (K * x * x).sum() - (s * x).sum()

    found = minimize(objective, (s / (K + 1)).ravel(), method="BFGS", options={"gtol": 1e-7, "maxiter": 500})
    np.testing.assert_allclose(v.ravel(), found.x, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("decades", [0, 2, 8])
@pytest.mark.parametrize("excess", [1e-12, 1e-5, 1e-1, 1e2, 1e6])
def test_group_prox_is_exact_for_wild_metrics_and_near_the_threshold(
    dtype: torch.dtype, decades: int, excess: float
) -> None:
    rng = np.random.default_rng(decades)
    labels = np.repeat([0, 1, 2], [1, 60, 139])
    reg = GroupLasso(1.0, labels, weights=[1.0, 1.0, 1.0])
    s = rng.normal(size=(200, 3))
    for label in range(3):
        s[labels == label] *= (1 + excess) / np.linalg.norm(s[labels == label])
    s_t = torch.tensor(s, dtype=dtype)
    K = torch.tensor(10 ** rng.uniform(-decades, decades, size=(200, 3)), dtype=dtype)
    v = reg.prox(s_t, K)
    assert torch.isfinite(v).all()
    assert reg.subgradient_distance(v, K * v - s_t) <= 30 * torch.finfo(dtype).eps * (1 + excess)


def test_groups_at_or_below_their_threshold_are_exactly_zero() -> None:
    reg = GroupLasso(5.0, [0, 0, 1, 2], weights=[1.0, 1.0, 0.0])
    s = torch.tensor([[3.0], [4.0], [-4.9], [0.0]], dtype=torch.float64)
    assert torch.equal(reg.prox(s, torch.tensor([[1.0], [2.0], [3.0], [4.0]])), torch.zeros_like(s))


def test_what_the_consensus_step_may_rely_on() -> None:
    """separable: entry by entry; quadratic: a linear proximal map."""
    gs = [
        Zero(),
        L1(0.3),
        L2(0.2),
        ElasticNet(0.1, 0.2),
        ElasticNet(0.0, 0.2),
        Box(-1, 1),
        NonNegative(),
        GroupLasso(0.3),
    ]
    gs += [FreeIntercept(g) for g in gs]
    s = torch.linspace(-2, 2, 10, dtype=torch.float64).reshape(5, 2)
    K = torch.linspace(1, 3, 10, dtype=torch.float64).reshape(5, 2)
    for g in gs:
        bumped = s.clone()
        bumped[1, 0] += 1.0
        moved = g.prox(bumped, K) != g.prox(s, K)
        moved[1, 0] = False
        assert bool(moved.any()) != g.separable, g
        odd = torch.allclose(g.prox(s, K) + g.prox(-s, K), 2 * g.prox(0 * s, K), atol=1e-12)
        affine = torch.allclose(g.prox(2 * s, K) + g.prox(0 * s, K), 2 * g.prox(s, K), atol=1e-12)
        linear = odd and affine
        assert linear == g.quadratic, g


# --- conjugates ---------------------------------------------------------------------------------------------


@every_case
@law
@given(v=matrices(), w=matrices())
def test_fenchel_young_inequality(name: str, v: Tensor, w: Tensor) -> None:
    reg = CASES[name]
    v, scale = reg.prox(v, 1.0), reg.dual_scale(w)
    w = w if scale is None else scale * w
    assert float(reg.value(v) + reg.conjugate(w)) >= inner(v, w) - 1e-11


@pytest.mark.parametrize("name", sorted(WITH_DUAL))
@law
@given(s=matrices(), K=metrics)
def test_fenchel_young_equality_at_subgradients(name: str, s: Tensor, K: Tensor) -> None:
    reg = CASES[name]
    v = reg.prox(s, K)
    w = s - K * v
    scale = reg.dual_scale(w)
    assert scale is not None
    assert scale >= 1 - 1e-11  # a subgradient is in the domain of g*, to rounding
    torch.testing.assert_close(reg.value(v) + reg.conjugate(scale * w), (v * w).sum(), rtol=1e-10, atol=1e-10)


@every_case
@law
@given(w=matrices(50.0))
def test_dual_scale_is_the_largest_factor_into_the_domain(name: str, w: Tensor) -> None:
    reg = CASES[name]
    scale = reg.dual_scale(w)
    assert (scale is not None) == (name in WITH_DUAL)
    if scale is None:
        return
    assert 0.0 <= scale <= 1.0
    assert math.isfinite(reg.conjugate(scale * w))
    if scale < 1.0:
        assert reg.conjugate(1.0001 * scale * w) == INF
    assert reg.dual_scale(torch.zeros_like(w)) == 1.0


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("reg", [L1(0.1), GroupLasso(0.1), GroupLasso(0.1, [0] * 400)], ids=["l1", "rows", "one"])
def test_rounding_does_not_leave_the_domain(reg: Regularizer, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(3)
    for _ in range(50):
        w = torch.randn(400, 3, generator=generator, dtype=dtype) * 1e3
        scale = reg.dual_scale(w)
        assert scale is not None
        assert reg.conjugate(scale * w) == 0
        assert reg.conjugate(scale * w * (1 + 20 * torch.finfo(dtype).eps + 1e-12)) == INF


def test_conjugates_in_closed_form() -> None:
    w = torch.tensor([[2.0, -1.0], [0.0, 0.5]], dtype=torch.float64)
    zero = torch.zeros_like(w)
    assert L2(2.0).conjugate(w) == w.square().sum() / 4
    assert ElasticNet(1.0, 2.0).conjugate(w) == 0.25
    assert Box(-1.0, 2.0).conjugate(w) == 6.0
    assert NonNegative().conjugate(w) == INF
    assert NonNegative().conjugate(-w.abs()) == 0
    for reg in (Zero(), L1(0.0), L2(0.0), ElasticNet(0.0, 0.0), GroupLasso(0.0), FreeIntercept(Zero())):
        assert reg.conjugate(zero) == 0
        assert reg.conjugate(w) == INF
    assert custom_l1(1.0).conjugate(w) == INF  # unknown
    assert GroupLasso(1.0, weights=[2.0, 0.0]).dual_scale(w) is None
