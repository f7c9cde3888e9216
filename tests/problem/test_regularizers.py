"""Laws of the regularizers: twins, values and distances by brute force, strong convexity, the free intercept, types."""

from __future__ import annotations

import math
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from torch import Tensor

from auqadmm.problem.group_lasso import GroupLasso
from auqadmm.problem.regularizers import L1, L2, Box, ElasticNet, NonNegative, Regularizer, Zero
from auqadmm.problem.wrappers import CustomRegularizer, FreeIntercept
from tests.problem.regularizer_cases import (
    CASES,
    FIXED_SIZE,
    INF,
    LABELS,
    PLAIN,
    C,
    M,
    custom_l1,
    every_case,
    inner,
    label,
    law,
    matrices,
    metrics,
)

# --- identities between regularizers ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (ElasticNet(0.5, 0.0), L1(0.5)),
        (ElasticNet(0.0, 0.3), L2(0.3)),
        (ElasticNet(0.0, 0.0), Zero()),
        (Box(-INF, INF), Zero()),
        (NonNegative(), Box(0.0, INF)),
        (custom_l1(0.7, with_distance=True), L1(0.7)),
        (GroupLasso(0.5, LABELS), GroupLasso(0.5, LABELS, [math.sqrt(3 * C), math.sqrt(2 * C)])),
        (GroupLasso(0.5), GroupLasso(0.5, range(M))),
    ],
    ids=label,
)
@law
@given(s=matrices(), K=metrics, grad=matrices())
def test_twins_agree(one: Regularizer, other: Regularizer, s: Tensor, K: Tensor, grad: Tensor) -> None:
    v = one.prox(s, K)
    torch.testing.assert_close(v, other.prox(s, K))
    torch.testing.assert_close(one.value(s), other.value(s))
    torch.testing.assert_close(one.subgradient_distance(v, grad), other.subgradient_distance(v, grad))
    assert one.strong_convexity == other.strong_convexity


@law
@given(s=matrices(), K=metrics, grad=matrices())
def test_group_lasso_on_one_column_is_the_lasso(s: Tensor, K: Tensor, grad: Tensor) -> None:
    s, K, grad = s[:, :1], K[:, :1], grad[:, :1]
    for group in (GroupLasso(0.5), GroupLasso(0.5, weights=[1.0] * M)):
        v = group.prox(s, K)
        torch.testing.assert_close(v, L1(0.5).prox(s, K))
        torch.testing.assert_close(group.value(s), L1(0.5).value(s))
        torch.testing.assert_close(group.subgradient_distance(v, grad), L1(0.5).subgradient_distance(v, grad))
        torch.testing.assert_close(group.conjugate(grad), L1(0.5).conjugate(grad))


def test_group_labels_are_names_not_positions() -> None:
    v = torch.arange(1.0, 11.0, dtype=torch.float64).reshape(M, C)
    rows = [v[[1, 3, 4]].norm(), v[[0, 2]].norm()]  # labels 2 and 7, in sorted order
    torch.testing.assert_close(GroupLasso(0.5, LABELS, [3.0, 5.0]).value(v), 0.5 * (3 * rows[0] + 5 * rows[1]))
    torch.testing.assert_close(GroupLasso(0.5, LABELS).value(v), 0.5 * (6**0.5 * rows[0] + 4**0.5 * rows[1]))


# --- values, distances, strong convexity --------------------------------------------------------------------


@pytest.mark.parametrize(
    "reg",
    [Zero(), L1(0.7), L2(0.8), ElasticNet(0.5, 0.3), GroupLasso(0.6), NonNegative(), Box(-0.5, 0.8)],
    ids=label,
)
def test_prox_of_one_number_is_the_minimum_over_a_grid(reg: Regularizer) -> None:
    grid = torch.linspace(-4, 4, 4001, dtype=torch.float64)
    values = torch.stack([reg.value(x.reshape(1, 1)) for x in grid])
    for s, K in [(-3.0, 1.5), (-0.9, 0.4), (-0.3, 1.0), (0.0, 2.0), (0.65, 1.0), (2.2, 0.8)]:
        best = grid[(values + 0.5 * K * grid**2 - s * grid).argmin()]
        assert abs(float(reg.prox(torch.tensor([[s]], dtype=torch.float64), K)) - float(best)) <= 2e-3


@pytest.mark.parametrize(
    "reg",
    [
        *(
            Zero(),
            L1(0.7),
            L2(0.8),
            ElasticNet(0.5, 0.3),
            GroupLasso(0.6),
            custom_l1(0.7, with_distance=True),
        ),
        *(NonNegative(), Box(-0.5, 0.5), Box(0.0, 0.0), Box([-0.5], [INF])),
    ],
    ids=label,
)
@pytest.mark.parametrize("point", [(0.0, 0.0), (0.5, 0.0), (0.5, -0.5), (0.3, 0.4)])
@pytest.mark.parametrize("grad", [(0.0, 0.0), (0.1, -0.2), (-2.0, 1.0), (1.5, 0.3)])
def test_subgradient_distance_is_the_steepest_descent_slope(
    reg: Regularizer, point: tuple[float, float], grad: tuple[float, float]
) -> None:
    """dist(0, grad + ∂g(v)) = max over unit d of −(g'(v; d) + ⟨grad, d⟩), or 0: here over a circle of d."""
    v, slope = (torch.tensor([x], dtype=torch.float64) for x in (point, grad))
    if not torch.isfinite(reg.value(v)):
        assert reg.subgradient_distance(v, slope) == INF
        return
    r, best = 1e-7, 0.0
    for angle in torch.linspace(0, 2 * math.pi, 181, dtype=torch.float64):
        d = torch.stack([angle.cos(), angle.sin()])
        d = torch.where(d.abs() < 1e-12, 0.0, d)[None]  # the axes exactly: they matter at a bound
        best = max(best, -float((reg.value(v + r * d) - reg.value(v)) / r) - inner(slope, d))
    assert abs(float(reg.subgradient_distance(v, slope)) - best) <= 1e-3


def test_natural_residual_is_zero_at_optima_and_never_above_the_distance() -> None:
    generator = torch.Generator().manual_seed(2)
    reg = custom_l1(0.7)
    for _ in range(20):
        s, grad = torch.randn(2, M, C, generator=generator, dtype=torch.float64)
        v = L1(0.7).prox(s, 1.0)
        assert reg.subgradient_distance(v, grad) <= L1(0.7).subgradient_distance(v, grad) + 1e-12
        assert reg.subgradient_distance(v, v - s) <= 1e-12
    outside = CustomRegularizer(NonNegative().value, NonNegative().prox)
    assert outside.subgradient_distance(-torch.ones(M, C), torch.zeros(M, C)) == INF


def test_indicators_are_infinite_outside_and_zero_on_the_boundary() -> None:
    v = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    assert NonNegative().value(v) == 0
    assert Box(0.0, 1.0).value(v) == 0
    assert Box([0.0, 0.5], [0.0, 2.0]).value(v) == 0
    assert Box(0.0, 0.9).value(v) == INF
    assert NonNegative().value(-v) == INF
    assert NonNegative().subgradient_distance(-v, v) == INF


@every_case
@law
@given(a=matrices(), b=matrices())
def test_strong_convexity_holds_on_segments(name: str, a: Tensor, b: Tensor) -> None:
    reg = CASES[name]
    a, b = reg.prox(a, 1.0), reg.prox(b, 1.0)
    chord = float(reg.value(a) + reg.value(b)) / 2
    assert float(reg.value((a + b) / 2)) <= chord - reg.strong_convexity / 8 * inner(a - b, a - b) + 1e-12 * (1 + chord)


def test_strong_convexity_is_the_quadratic_strength() -> None:
    assert L2(0.8).strong_convexity == 0.8
    assert ElasticNet(0.5, 0.3).strong_convexity == 0.3
    assert FreeIntercept(L2(0.8)).strong_convexity == 0.0  # not on the intercept
    assert {PLAIN[name].strong_convexity for name in set(PLAIN) - {"l2", "elastic"}} == {0.0}


# --- the free intercept -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(set(PLAIN) - FIXED_SIZE))
@law
@given(s=matrices(), K=metrics, grad=matrices())
def test_free_intercept_leaves_only_the_last_row_free(name: str, s: Tensor, K: Tensor, grad: Tensor) -> None:
    reg, free = PLAIN[name], FreeIntercept(PLAIN[name])
    v = free.prox(s, K)
    torch.testing.assert_close(v[-1], s[-1] / K[-1])
    torch.testing.assert_close(v[:-1], reg.prox(s[:-1], K[:-1]))
    torch.testing.assert_close(free.value(v), reg.value(v[:-1]))
    expected = (reg.subgradient_distance(v[:-1], grad[:-1]) ** 2 + grad[-1].square().sum()).sqrt()
    torch.testing.assert_close(free.subgradient_distance(v, grad), expected)
    w = torch.cat([grad[:-1], torch.zeros(1, C, dtype=torch.float64)])
    torch.testing.assert_close(free.conjugate(w), reg.conjugate(w[:-1]))
    assert free.conjugate(torch.cat([grad[:-1], torch.ones(1, C, dtype=torch.float64)])) == INF
    assert free.dual_scale(w) is None


@pytest.mark.parametrize("reg", [L1(1.0), GroupLasso(1.0), Box(-1.0, 1.0), NonNegative()], ids=label)
def test_free_intercept_of_a_model_without_features(reg: Regularizer) -> None:
    free, s = FreeIntercept(reg), torch.tensor([[3.0, -4.0]])
    assert torch.equal(free.prox(s, torch.tensor([[2.0, 4.0]])), torch.tensor([[1.5, -1.0]]))
    assert free.value(s) == 0
    assert free.subgradient_distance(s, s) == 5
    assert free.conjugate(0 * s) == 0


# --- types --------------------------------------------------------------------------------------------------


@every_case
def test_float32_stays_float32_and_agrees_with_float64(name: str) -> None:
    reg, generator = CASES[name], torch.Generator().manual_seed(4)
    s, grad = 2 * torch.randn(2, M, C, generator=generator)
    K = 0.1 + torch.rand(M, C, generator=generator)
    for metric in (K, 2.0):
        v = reg.prox(s, metric)
        results = [v, reg.value(v), reg.subgradient_distance(v, grad), reg.conjugate(grad)]
        wide = metric.double() if isinstance(metric, Tensor) else metric
        v64 = reg.prox(s.double(), wide)
        expected = [
            v64,
            reg.value(v64),
            reg.subgradient_distance(v64, grad.double()),
            reg.conjugate(grad.double()),
        ]
        for got, want in zip(results, expected, strict=True):
            assert got.dtype == torch.float32
            torch.testing.assert_close(got, want.float())
        assert all(result.ndim == 0 for result in results[1:])


@every_case
def test_regularizers_are_values(name: str) -> None:
    assert hash(CASES[name]) == hash(CASES[name])
    with pytest.raises(AttributeError):
        CASES[name].strength = 3.0  # type: ignore[attr-defined]
    if "custom" not in name:  # a lambda does not pickle
        copy = pickle.loads(pickle.dumps(CASES[name]))
        assert copy == CASES[name]
        s = torch.linspace(-3, 3, M * C).reshape(M, C)
        assert torch.equal(copy.prox(s, 1.5), CASES[name].prox(s, 1.5))


def test_arrays_become_tuples() -> None:
    group = GroupLasso(np.float32(2.0), np.array(LABELS), torch.tensor([1.0, 2.0]))
    assert group == GroupLasso(2, LABELS, [1, 2])
    assert hash(group) == hash(GroupLasso(2, tuple(LABELS), (1, 2)))
    assert group.groups == tuple(LABELS)
    assert Box(np.zeros(2), torch.ones(2)) == Box([0, 0], (1, 1))
    assert repr(NonNegative()) == "NonNegative()"
    assert repr(ElasticNet(1, l2=2)) == "ElasticNet(l1=1.0, l2=2.0)"
