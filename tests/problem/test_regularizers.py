"""Laws of the regularizers: optimality of the prox in any metric, distances, Fenchel–Young, messages."""

from __future__ import annotations

import math
import pickle
import re
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import minimize
from torch import Tensor

from auqadmm.problem.group_lasso import GroupLasso
from auqadmm.problem.regularizers import (
    L1,
    L2,
    Box,
    ElasticNet,
    NonNegative,
    Regularizer,
    Zero,
)
from auqadmm.problem.wrappers import CustomRegularizer, FreeIntercept

M, C = 5, 2
INF = math.inf
LABELS = [7, 2, 7, 2, 2]


def custom_l1(strength: float, with_distance: bool = False) -> CustomRegularizer:
    twin = L1(strength)
    distance = twin.subgradient_distance if with_distance else None
    return CustomRegularizer(lambda v: strength * v.abs().sum(), twin.prox, distance)


def label(reg: Regularizer) -> str:
    """A test id without the address of a function: parallel test workers must agree on it."""
    return "custom" if isinstance(reg, CustomRegularizer) else repr(reg)


PLAIN: dict[str, Regularizer] = {
    "zero": Zero(),
    "l1": L1(0.7),
    "l1-off": L1(0.0),
    "l2": L2(0.8),
    "l2-off": L2(0.0),
    "elastic": ElasticNet(0.5, 0.3),
    "elastic-l1": ElasticNet(0.5, 0.0),
    "elastic-off": ElasticNet(0.0, 0.0),
    "rows": GroupLasso(0.6),
    "groups": GroupLasso(0.4, LABELS),
    "weights": GroupLasso(0.6, LABELS, [1.3, 0.4]),
    "free-group": GroupLasso(0.6, LABELS, [1.3, 0.0]),
    "groups-off": GroupLasso(0.0, LABELS),
    "nonnegative": NonNegative(),
    "box": Box(-0.5, 0.8),
    "box-rows": Box([-1.0, 0.0, 0.3, -INF, -INF], [-0.5, 0.0, INF, 0.1, INF]),
    "custom": custom_l1(0.7),
    "custom-distance": custom_l1(0.7, with_distance=True),
}
INTERCEPT: dict[str, Regularizer] = {
    "intercept-elastic": FreeIntercept(ElasticNet(0.5, 0.3)),
    "intercept-groups": FreeIntercept(GroupLasso(0.6, [1, 0, 0, 1])),
    "intercept-box": FreeIntercept(Box(-0.5, [0.1, 0.2, 0.3, INF])),
}
CASES = PLAIN | INTERCEPT
# The largest c with c·w in the domain of g*: a number for these, None for all others.
WITH_DUAL = {"l1", "l2", "elastic", "elastic-l1", "rows", "groups", "weights", "box"}

FIXED_SIZE = {"groups", "weights", "free-group", "groups-off", "box-rows"}  # they fit M rows only

law = settings(derandomize=True, max_examples=12, deadline=None)
every_case = pytest.mark.parametrize("name", CASES)


def matrices(bound: float = 5.0) -> st.SearchStrategy[Tensor]:
    elements = st.floats(-bound, bound, allow_subnormal=False)
    return arrays(np.float64, (M, C), elements=elements).map(torch.from_numpy)


metrics = matrices(2.0).map(lambda power: 10.0**power)  # K in [1e-2, 1e2], different in every entry


def inner(a: Tensor, b: Tensor) -> float:
    return float((a * b).sum())


# --- the proximal map ---------------------------------------------------------------------------------------


@every_case
@law
@given(s=matrices(), K=metrics)
def test_prox_satisfies_its_optimality_condition_in_any_metric(name: str, s: Tensor, K: Tensor) -> None:
    v = CASES[name].prox(s, K)
    assert CASES[name].subgradient_distance(v, K * v - s) <= 1e-12


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


# --- messages -----------------------------------------------------------------------------------------------


ORDER = "Box: lower ≤ upper must hold, lower < inf and upper > -inf, "


def identity(x: Tensor, K: Tensor | None = None) -> Tensor:
    return x


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: L2(-1.0), "L2: strength must be a finite number ≥ 0, got -1.0"),
        (lambda: L1(math.nan), "L1: strength must be a finite number ≥ 0, got nan"),
        (lambda: L1("much"), "L1: strength must be a finite number ≥ 0, got 'much'"),
        (lambda: L2(None), "L2: strength must be a finite number ≥ 0, got None"),
        (lambda: ElasticNet(INF, 0.0), "ElasticNet: l1 must be a finite number ≥ 0, got inf"),
        (lambda: ElasticNet(0.0, -2), "ElasticNet: l2 must be a finite number ≥ 0, got -2.0"),
        (lambda: GroupLasso(-0.5), "GroupLasso: strength must be a finite number ≥ 0, got -0.5"),
        (
            lambda: GroupLasso(1, [0, 1], [1, -3]),
            "GroupLasso: weights[1] must be a finite number ≥ 0, got -3.0",
        ),
        (
            lambda: GroupLasso(1, [0, 1, 1], [1, 2, 3]),
            "GroupLasso: weights must have one entry per group, got 3 for 2 groups",
        ),
        (
            lambda: GroupLasso(1, [0.5, 1.0]),
            "GroupLasso: groups must be integer labels, one per feature, got float64 of shape (2,)",
        ),
        (
            lambda: GroupLasso(1, [[0, 1]]),
            "GroupLasso: groups must be integer labels, one per feature, got int64 of shape (1, 2)",
        ),
        (
            lambda: Box([0, 3], [1, 2]),
            ORDER + "got lower 3.0 and upper 2.0 at entry 1",
        ),
        (
            lambda: Box(1, 0),
            ORDER + "got lower 1.0 and upper 0.0 at entry 0",
        ),
        (lambda: Box(math.nan, 0), ORDER + "got lower nan and upper 0.0 at entry 0"),
        (lambda: Box(INF, INF), ORDER + "got lower inf and upper inf at entry 0"),
        (lambda: Box(-INF, -INF), ORDER + "got lower -inf and upper -inf at entry 0"),
        (
            lambda: Box([0, 0], [1, 1, 1]),
            "Box: lower and upper must be equally long, got 2 and 3 entries",
        ),
        (
            lambda: Box("low", 1),
            "Box: lower must be a number or a sequence of one number per feature, got 'low'",
        ),
        (
            lambda: Box(0, [[1, 2]]),
            "Box: upper must be a number or a sequence of one number per feature, got [[1, 2]]",
        ),
    ],
)
def test_bad_values_are_named(make: Callable[[], Regularizer], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message) + "$"):
        make()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CustomRegularizer(3, identity), "CustomRegularizer: value must be a function, got 3"),
        (lambda: CustomRegularizer(identity, None), "CustomRegularizer: prox must be a function, got None"),
        (
            lambda: CustomRegularizer(identity, identity, 1),
            "CustomRegularizer: subgradient_distance must be a function, got 1",
        ),
        (lambda: FreeIntercept("l1"), "FreeIntercept: inner must be a Regularizer, got 'l1'"),
    ],
)
def test_bad_types_are_named(make: Callable[[], Regularizer], message: str) -> None:
    with pytest.raises(TypeError, match=re.escape(message) + "$"):
        make()


@pytest.mark.parametrize(
    ("reg", "message"),
    [
        (
            GroupLasso(1, [0, 1, 1]),
            "GroupLasso: groups must have one entry per feature, got 3 for 5 features",
        ),
        (
            GroupLasso(1, None, [1, 2]),
            "GroupLasso: weights must have one entry per feature, got 2 for 5 features",
        ),
        (Box([0, 0], 1), "Box: lower must have one entry per feature, got 2 for 5 features"),
        (Box(0, [1]), "Box: upper must have one entry per feature, got 1 for 5 features"),
        (FreeIntercept(Box(0, [1] * 5)), "Box: upper must have one entry per feature, got 5 for 4 features"),
    ],
    ids=label,
)
def test_misfits_are_named_by_check_and_at_use(reg: Regularizer, message: str) -> None:
    v = torch.ones(M, C)
    for use in (
        lambda: reg.check(M),
        lambda: reg.value(v),
        lambda: reg.prox(v, 1.0),
        lambda: reg.subgradient_distance(v, v),
        lambda: reg.conjugate(v),
    ):
        with pytest.raises(ValueError, match=re.escape(message) + "$"):
            use()


@every_case
def test_what_fits_passes_the_check(name: str) -> None:
    CASES[name].check(M)


def test_what_a_users_function_returns_is_checked() -> None:
    v = torch.ones(M, C)
    reg = CustomRegularizer(identity, lambda s, K: s[:1])
    with pytest.raises(ValueError, match=re.escape("value must return a tensor of shape (), got (5, 2)")):
        reg.value(v)
    with pytest.raises(ValueError, match=re.escape("prox must return a tensor of shape (5, 2), got (1, 2)")):
        reg.prox(v, 1.0)
    plain = CustomRegularizer(lambda v: 1, lambda s, K: s.numpy(), lambda v, grad: 0.5)  # numbers and arrays pass
    assert plain.value(v) == 1
    assert plain.value(v).dtype == torch.float32
    assert torch.equal(plain.prox(v, 1.0), v)
    assert plain.subgradient_distance(v, v) == 0.5


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
