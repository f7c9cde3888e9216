"""The row losses at extreme logits, against a thousand digits, and their conjugates, against the supremum."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from scipy.optimize import minimize, minimize_scalar
from torch import Tensor

from auqadmm.blocks.rows import RowLoss
from auqadmm.problem.losses import Huber, LeastSquares, Logistic, Multinomial, Poisson, SmoothedHinge
from auqadmm.problem.quantile import Quantile
from tests.problem.loss_cases import EVERY, LAWS, Case, K, cases, everything, make, uneven

# ---- extreme logits ----


def exact(loss: RowLoss, z: float, y: float) -> tuple[Decimal, Decimal, Decimal]:
    """φ, φ', φ'' of one logit with a thousand digits."""
    z_, y_ = Decimal(z), Decimal(y)
    if isinstance(loss, Logistic):
        e = (-y_ * z_).exp()
        return (1 + e).ln(), -y_ * e / (1 + e), e / (1 + e) ** 2
    if isinstance(loss, SmoothedHinge):
        t, eps = 1 - y_ * z_, Decimal(loss.eps)
        root = (t * t + eps * eps).sqrt()
        return (t + root) / 2, -y_ * (1 + t / root) / 2, eps**2 / (2 * root**3)
    if isinstance(loss, Quantile):
        r, eps, q = y_ - z_, Decimal(loss.eps), Decimal(loss.q)
        root = (r * r + eps * eps).sqrt()
        return (q - Decimal("0.5")) * r + root / 2, (1 - r / root) / 2 - q, eps**2 / (2 * root**3)
    r, d = z_ - y_, Decimal(loss.delta if isinstance(loss, Huber) else 10**9)
    if abs(r) <= d:
        return r * r / 2, r, Decimal(1)
    return d * abs(r) - d * d / 2, d.copy_sign(r), Decimal(0)


@pytest.mark.parametrize("z", [-1000.0, -750.0, -40.0, -21.0, -1.0, 0.0, 1.0, 3.0, 21.0, 40.0, 750.0, 1000.0])
@pytest.mark.parametrize("y", [-1.0, 1.0])
@pytest.mark.parametrize(
    "loss",
    [
        Logistic(),
        SmoothedHinge(),
        SmoothedHinge(1e-8),
        Huber(0.3),
        LeastSquares(),
        Quantile(0.3),
        Quantile(0.99, eps=1e-8),
    ],
)
def test_extreme_logits_keep_their_digits(loss: RowLoss, z: float, y: float) -> None:
    with localcontext() as context:
        context.prec = 1000
        expected = [float(x) for x in exact(loss, z, y)]
    logits, target = torch.tensor([[z]], dtype=torch.float64), torch.tensor([y], dtype=torch.float64)
    got = rows(loss, logits, target)
    for g, e in zip(got, expected, strict=True):
        assert float(g) == pytest.approx(e, rel=1e-13, abs=1e-300)


def rows(loss: RowLoss, z: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    s = loss.prepare(z)
    return loss.row_value(z, y), loss.row_slope(s, y), loss.row_curvature(s, y).diagonal()


@pytest.mark.parametrize(
    "z", [(1000, -1000, 0), (1000, 990, 980), (-1000, -1000, -1000), (0, 40, 45), (1000, 0, 999), (35, 0, 0)]
)
@pytest.mark.parametrize("y", [0, 1, 2])
def test_extreme_logits_of_the_softmax(z: tuple[int, ...], y: int) -> None:
    with localcontext() as context:
        context.prec = 1000
        powers = [Decimal(a).exp() for a in z]
        total = sum(powers, Decimal(0))
        p = [e / total for e in powers]
        value = float(total.ln() - z[y])
        slope = [float(q - (k == y)) for k, q in enumerate(p)]
        diagonal = [float(q * (1 - q)) for q in p]
    got = rows(Multinomial(), torch.tensor([z], dtype=torch.float64), torch.tensor([y]))
    assert float(got[0]) == pytest.approx(value, rel=1e-13, abs=1e-300)
    assert got[1][0].tolist() == pytest.approx(slope, rel=1e-13, abs=1e-300)
    assert got[2][0].tolist() == pytest.approx(diagonal, rel=1e-13, abs=1e-15)


@EVERY
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_extreme_models_give_numbers(loss: RowLoss, dtype: torch.dtype) -> None:
    """Logits near ±1000 with features that are 0 in places: no NaN anywhere, no infinity but Poisson's value."""
    blocks = uneven(loss)
    blocks = [(np.where(np.abs(X) < 0.3, 0.0, X), y) for X, y in blocks]
    shard = make(loss, blocks, dtype=dtype)
    for sign in (-1, 1):
        point = shard.linearize(sign * 700 * torch.ones(shard.shape, dtype=dtype))
        derivatives = (point.grad, point.hvp(point.u), point.hessian_diagonal())
        assert all(torch.isfinite(x).all() for x in derivatives)
        assert torch.isfinite(point.value).all() or isinstance(loss, Poisson)
        assert not point.value.isnan().any()


def test_rows_of_weight_zero_add_nothing_even_where_exp_overflows() -> None:
    X, y = np.array([[1.0], [1e6], [2.0]]), np.array([1.0, 1.0, 0.0])
    u = torch.ones(1, 1, 1, dtype=torch.float64)
    with_row = make(Poisson(), [(X, y, np.array([1.0, 0.0, 1.0]))])
    without = make(Poisson(), [(X[[0, 2]], y[[0, 2]])])
    assert make(Poisson(), [(X, y)]).linearize(u).value.isinf().all()
    for got, expected in zip(everything(with_row, u, u[..., None]), everything(without, u, u[..., None]), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-14, atol=0)


# ---- conjugates ----


@given(cases())
@LAWS
def test_fenchel_equality_at_the_slope_itself(case: Case) -> None:
    shard = case.shard()
    point = shard.linearize(3 * case.draw(shard))
    z, c = shard.design.forward(point.u), shard.row_weight
    phi = case.loss.row_value(z, shard.target)
    slope = case.loss.row_slope(case.loss.prepare(z), shard.target)
    expected = shard.design.sum_rows(c * ((z * slope).sum(1) - phi))
    scale = shard.design.sum_rows(c * ((z * slope).sum(1).abs() + phi.abs()))
    got = point.conjugate(1.0)
    assert got is not None
    gap = (got - expected).abs()
    assert (gap <= 1e-12 * (1 + scale)).all()


@EVERY
@pytest.mark.parametrize("scale", [0.1, 0.5, 0.9])
def test_conjugate_is_the_supremum_at_other_scales(loss: RowLoss, scale: float) -> None:
    if isinstance(loss, Multinomial):
        z, y = torch.tensor([[0.3, -1.2, 0.8], [2.0, 0.1, -1.0]], dtype=torch.float64), torch.tensor([1, 0])
    else:
        z = torch.tensor([[0.4], [-1.7], [2.5]], dtype=torch.float64)
        y = torch.tensor([1.0, 1.0 if loss.target_kind == "real" else -1.0, 1.0], dtype=torch.float64)
    a = scale * loss.row_slope(loss.prepare(z), y)
    got = loss.row_conjugate(a, y)
    for i in range(len(y)):

        def minus(w: Any, i: int = i) -> float:
            logits = torch.as_tensor(np.atleast_1d(w), dtype=torch.float64)[None]
            return float(loss.row_value(logits, y[i : i + 1])[0] - (a[i] * logits[0]).sum())

        if isinstance(loss, Multinomial):
            best = minimize(minus, np.zeros(K), options={"gtol": 1e-8}).fun
        else:
            best = minimize_scalar(minus, bounds=(-60, 60), method="bounded", options={"xatol": 1e-10}).fun
        assert -best <= float(got[i]) + 1e-9  # Fenchel's inequality
        assert float(got[i]) == pytest.approx(-best, abs=1e-8)


@EVERY
def test_conjugate_at_zero_is_minus_the_least_loss(loss: RowLoss) -> None:
    blocks = uneven(loss, sizes=(4,))
    shard = make(loss, blocks)
    got = shard.linearize(shard.zeros()).conjugate(0.0)
    counts = [y for y in blocks[0][1] if y > 0] if isinstance(loss, Poisson) else []
    least = -4 * loss.eps * math.sqrt(loss.q * (1 - loss.q)) if isinstance(loss, Quantile) else 0.0
    assert got is not None
    assert float(got) == pytest.approx(least + sum(y * math.log(y) - y for y in counts), abs=1e-15)
    assert -float(loss.row_infimum(shard.target).sum()) == pytest.approx(float(got), abs=1e-15)


@pytest.mark.parametrize(
    ("loss", "a", "y"),
    [
        (Logistic(), 0.1, 1.0),
        (Logistic(), -1.1, 1.0),
        (SmoothedHinge(), 0.1, 1.0),
        (SmoothedHinge(), 1.1, -1.0),
        (Huber(0.5), 0.6, 2.0),
        (Quantile(0.3), -0.31, 2.0),
        (Quantile(0.3), 0.71, 2.0),
        (Poisson(), -3.1, 3.0),
    ],
)
def test_conjugate_is_infinite_outside_its_domain(loss: RowLoss, a: float, y: float) -> None:
    got = loss.row_conjugate(torch.tensor([[a]], dtype=torch.float64), torch.tensor([y], dtype=torch.float64))
    assert got.tolist() == [math.inf]


@pytest.mark.parametrize("a", [(0.1, 0.1, 0.1), (-1.2, 0.6, 0.6), (-0.5, 0.7, -0.2), (0.2, -0.1, -0.1)])
def test_conjugate_of_the_softmax_lives_on_the_simplex(a: tuple[float, ...]) -> None:
    assert Multinomial().row_conjugate(torch.tensor([a]), torch.tensor([0])).tolist() == [math.inf]
