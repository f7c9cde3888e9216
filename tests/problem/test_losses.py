"""Laws of the row losses: a naive loop over blocks and rows, autograd, extreme logits, weights, conjugates."""

from __future__ import annotations

import math
import pickle
from dataclasses import dataclass, replace
from decimal import Decimal, localcontext
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize, minimize_scalar
from sklearn.metrics import log_loss
from torch import Tensor

from auqadmm.problem.design import Design
from auqadmm.problem.ingest import InputError
from auqadmm.problem.losses import (
    Huber,
    LeastSquares,
    Logistic,
    Multinomial,
    Poisson,
    SmoothedHinge,
)
from auqadmm.problem.problem import Problem
from auqadmm.problem.regularizers import L2
from auqadmm.problem.rows import Loss, RowLoss
from auqadmm.problem.shard import Shard

CPU = torch.device("cpu")
M, K = 3, 3
LOSSES: dict[str, RowLoss] = {
    "least-squares": LeastSquares(),
    "multinomial": Multinomial(),
    "logistic": Logistic(),
    "hinge": SmoothedHinge(0.3),
    "sharp-hinge": SmoothedHinge(),
    "huber": Huber(0.7),
    "poisson": Poisson(),
}
EVERY = pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES.keys())
LAWS = settings(derandomize=True, deadline=None, max_examples=40)
Blocks = list[tuple[Any, ...]]


@dataclass(frozen=True)
class Case:
    loss: RowLoss
    blocks: Blocks
    intercept: bool
    seed: int

    def shard(self, dtype: torch.dtype = torch.float64) -> Shard:
        return make(self.loss, self.blocks, self.intercept, dtype)

    def draw(self, shard: Shard, *trailing: int) -> Tensor:
        generator = torch.Generator().manual_seed(self.seed + 17 * len(trailing))
        return torch.randn(*shard.shape, *trailing, generator=generator, dtype=shard.dtype)


def make(loss: Loss, blocks: Blocks, intercept: bool = False, dtype: torch.dtype = torch.float64) -> Shard:
    return Problem(loss, L2(1.0), blocks, intercept).shard(dtype, CPU)


def targets(loss: Loss, rng: np.random.Generator, rows: int) -> np.ndarray:
    if loss.target_kind == "classes":
        return rng.integers(0, K, rows)
    if loss.target_kind == "binary":
        return rng.choice([-1.0, 1.0], rows)
    return rng.poisson(2.0, rows).astype(float) if isinstance(loss, Poisson) else rng.normal(size=rows)


def uneven(loss: Loss, seed: int = 0, sizes: tuple[int, ...] = (7, 6, 1, 0, 12), weighted: bool = False) -> Blocks:
    """Blocks of which some are padded, one is empty, and whose labels cover all classes together."""
    rng = np.random.default_rng(seed)
    blocks: Blocks = [(rng.normal(size=(n, M)), targets(loss, rng, n)) for n in sizes]
    tallest = max(range(len(sizes)), key=lambda j: sizes[j])
    if loss.target_kind != "real":
        blocks[tallest][1][:K] = np.arange(K) if loss.target_kind == "classes" else [-1, 1, 1]
    return [(*b, rng.choice([0.0, 0.5, 2.0], len(b[1]))) for b in blocks] if weighted else blocks


@st.composite
def cases(draw: st.DrawFn) -> Case:
    loss = replace(
        draw(st.sampled_from(list(LOSSES.values()))), reduction=draw(st.sampled_from(["sum", "mean", "pooled"]))
    )
    seed = draw(st.integers(0, 10_000))
    sizes = (*draw(st.lists(st.integers(0, 9), max_size=4)), 10)
    blocks = uneven(loss, seed, sizes, weighted=draw(st.booleans()))
    sparse = draw(st.lists(st.booleans(), min_size=len(sizes), max_size=len(sizes)))
    blocks = [(scipy.sparse.csr_matrix(b[0]), *b[1:]) if s else b for b, s in zip(blocks, sparse, strict=True)]
    return Case(loss, blocks, draw(st.booleans()), seed)


# ---- the naive twin: textbook formulas, one row at a time, differentiated by autograd ----


def textbook(loss: RowLoss, z: Tensor, y: Any) -> Tensor:
    """φ of one row, z (C,)."""
    match loss:
        case LeastSquares():
            return (z[0] - y) ** 2 / 2
        case Multinomial():
            return torch.log(torch.exp(z).sum()) - z[int(y)]
        case Logistic():
            return torch.log(1 + torch.exp(-y * z[0]))
        case SmoothedHinge():
            t = 1 - y * z[0]
            return (t + torch.sqrt(t * t + loss.eps**2)) / 2
        case Huber():
            r = z[0] - y
            if abs(float(r.detach())) <= loss.delta:
                return r * r / 2
            return loss.delta * r.abs() - loss.delta**2 / 2
        case Poisson():
            return torch.exp(z[0]) - y * z[0]
    raise AssertionError(loss)


def naive(case: Case, j: int, u: Tensor) -> Tensor:
    """f_j(u), u (m, C), from the blocks as the user gave them."""
    weights = [b[2] if len(b) == 3 else np.ones(len(b[1])) for b in case.blocks]
    scale = {
        "sum": 1.0,
        "mean": float(weights[j].sum()),
        "pooled": float(sum(w.sum() for w in weights)),
    }[case.loss.reduction]
    X = case.blocks[j][0]
    X = X.toarray() if scipy.sparse.issparse(X) else X
    total = u.sum() * 0
    for x, y, w in zip(X, case.blocks[j][1], weights[j], strict=True):
        row = torch.tensor([*x, 1.0] if case.intercept else x)
        if w > 0:
            total = total + (w / scale) * textbook(case.loss, row @ u, y)
    return total


@given(cases())
@LAWS
def test_value_gradient_and_hessian_equal_the_naive_loop(case: Case) -> None:
    shard = case.shard()
    u, P = case.draw(shard), case.draw(shard, 2)
    point = shard.linearize(u)
    product, diagonal = point.hvp(P), point.hessian_diagonal()
    n = shard.census.unknowns
    for j in range(shard.blocks):
        leaf = u[j].clone().requires_grad_()
        value = naive(case, j, leaf)
        (grad,) = torch.autograd.grad(value, leaf)
        hessian = torch.autograd.functional.hessian(lambda w, j=j: naive(case, j, w), u[j]).reshape(n, n)
        torch.testing.assert_close(point.value[j], value.detach(), rtol=1e-11, atol=1e-12)
        torch.testing.assert_close(point.grad[j], grad, rtol=1e-11, atol=1e-12)
        # the sharp hinge bends within 1/5000, where the textbook second derivative itself loses digits
        torch.testing.assert_close(product[j].reshape(n, 2), hessian @ P[j].reshape(n, 2), rtol=1e-7, atol=1e-10)
        torch.testing.assert_close(diagonal[j].reshape(n), hessian.diagonal(), rtol=1e-7, atol=1e-10)


@given(cases(), st.floats(-3, 3))
@LAWS
def test_hvp_is_linear_symmetric_positive_and_takes_many_directions(case: Case, a: float) -> None:
    shard = case.shard()
    point = shard.linearize(case.draw(shard))
    P = case.draw(shard, 3)
    many = point.hvp(P)
    assert many.shape == P.shape
    for k in range(3):
        torch.testing.assert_close(point.hvp(P[..., k]), many[..., k], rtol=1e-12, atol=1e-12)
    both = point.hvp(a * P[..., 0] + P[..., 1])
    torch.testing.assert_close(both, a * many[..., 0] + many[..., 1], rtol=1e-10, atol=1e-9)
    gram = torch.einsum("bmck,bmcl->bkl", P, many)
    torch.testing.assert_close(gram, gram.mT, rtol=1e-10, atol=1e-9)
    assert (gram.diagonal(dim1=1, dim2=2) >= -1e-12).all()


@given(cases())
@LAWS
def test_a_line_gives_the_points_on_it(case: Case) -> None:
    shard = case.shard()
    u, P = case.draw(shard), case.draw(shard, 1)[..., 0]
    t = torch.linspace(-1.0, 2.0, shard.blocks, dtype=torch.float64)
    moved, fresh = shard.linearize(u).line(P).at(t), shard.linearize(u + t[:, None, None] * P)
    torch.testing.assert_close(moved.u, fresh.u)
    for got, expected in ((moved.value, fresh.value), (moved.grad, fresh.grad), (moved.hvp(P), fresh.hvp(P))):
        torch.testing.assert_close(got, expected, rtol=1e-8, atol=1e-8)


@given(cases())
@LAWS
def test_sparse_blocks_equal_dense_ones(case: Case) -> None:
    dense = [(b[0].toarray() if scipy.sparse.issparse(b[0]) else b[0], *b[1:]) for b in case.blocks]
    shard, twin = case.shard(), replace(case, blocks=dense).shard()
    u, P = case.draw(shard), case.draw(shard, 2)
    for one, other in zip(everything(shard, u, P), everything(twin, u, P), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)


def everything(shard: Shard, u: Tensor, P: Tensor) -> tuple[Tensor, ...]:
    point = shard.linearize(u)
    conjugate = point.conjugate(0.5)
    assert conjugate is not None
    return point.value, point.grad, point.hvp(P), point.hessian_diagonal(), conjugate


# ---- weights, reductions, shapes ----


@EVERY
@pytest.mark.parametrize("reduction", ["sum", "mean", "pooled"])
def test_weight_two_is_a_row_twice_and_weight_zero_is_no_row(loss: RowLoss, reduction: str) -> None:
    loss = replace(loss, reduction=reduction)
    weights = [np.array([2.0, 0.0, 1.0, 1.0, 1.0, 1.0, 0.0]), np.array([1.0, 1.0, 2.0, 1.0, 1.0, 1.0, 1.0, 2.0])]
    plain = uneven(loss, 3, (7, 8))
    weighted = [(X, y, w) for (X, y), w in zip(plain, weights, strict=True)]
    repeated = [
        (np.repeat(X, w.astype(int), axis=0), np.repeat(y, w.astype(int)))
        for (X, y), w in zip(plain, weights, strict=True)
    ]
    one, other = make(loss, weighted), make(loss, repeated)
    u = Case(loss, weighted, False, 5).draw(one)
    for got, expected in zip(everything(one, u, u[..., None]), everything(other, u, u[..., None]), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-13)


@EVERY
def test_reductions_are_multiples_of_each_other(loss: RowLoss) -> None:
    sizes = (7, 6, 1, 0, 12)
    values = {}
    for reduction in ("sum", "mean", "pooled"):
        shard = make(replace(loss, reduction=reduction), uneven(loss, sizes=sizes))
        values[reduction] = shard.linearize(0.3 * torch.ones(shard.shape, dtype=torch.float64)).value
    rows = torch.tensor([max(n, 1) for n in sizes])
    torch.testing.assert_close(values["mean"], values["sum"] / rows)
    torch.testing.assert_close(values["pooled"], values["sum"] / sum(sizes))


@EVERY
def test_the_sum_does_not_depend_on_how_rows_are_split(loss: RowLoss) -> None:
    blocks = uneven(loss)
    whole = [tuple(np.concatenate([b[i] for b in blocks]) for i in range(2))]
    split, one = make(loss, blocks), make(loss, whole)
    v = Case(loss, whole, False, 1).draw(one)[0]
    points = split.linearize(split.expand(v)), one.linearize(one.expand(v))
    torch.testing.assert_close(points[0].value.sum(), points[1].value.sum(), rtol=1e-12, atol=0)
    torch.testing.assert_close(points[0].grad.sum(0), points[1].grad.sum(0), rtol=1e-11, atol=1e-12)


@EVERY
def test_an_empty_block_adds_exactly_nothing(loss: RowLoss) -> None:
    shard = make(loss, uneven(loss))
    u = torch.ones(shard.shape, dtype=torch.float64)
    for part in everything(shard, u, u[..., None]):
        assert not part[3].any()
        assert part[4].any()


@EVERY
@pytest.mark.parametrize("sparse", [False, True])
def test_float32_shards_give_float32(loss: RowLoss, sparse: bool) -> None:
    blocks = uneven(loss, weighted=True)
    if sparse:
        blocks = [(scipy.sparse.csr_matrix(b[0]), *b[1:]) for b in blocks]
    exact, single = make(loss, blocks), make(loss, blocks, dtype=torch.float32)
    u = 0.5 * Case(loss, blocks, False, 2).draw(exact)
    parts = zip(everything(exact, u, u[..., None]), everything(single, u.float(), u.float()[..., None]), strict=True)
    for expected, got in parts:
        assert got.dtype == torch.float32
        tolerance = 1e-2 if loss == SmoothedHinge() else 1e-4  # the sharp hinge: u's rounding against its bend
        torch.testing.assert_close(got.double(), expected, rtol=tolerance, atol=tolerance)


def test_string_labels_and_a_class_missing_at_a_worker() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(9, M))
    codes = np.array([0, 1, 0, 1, 2, 2, 2, 0, 1])
    names = np.array(["ant", "bee", "cat"])[codes]
    cut = slice(0, 4), slice(4, 9)  # the first worker never sees class 2
    numbers, words = (make(Multinomial(), [(X[s], y[s]) for s in cut]) for y in (codes, names))
    assert numbers.shape == words.shape == (2, M, 3)
    u = torch.randn(2, M, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert torch.equal(numbers.linearize(u).grad, words.linearize(u).grad)
    assert (words.linearize(u).grad[0, :, 2] != 0).any()
    yes_no = make(Logistic(), [(X[s], np.where(codes[s] == 0, "no", "yes")) for s in cut])
    torch.testing.assert_close(yes_no.target[:4], torch.tensor([-1.0, 1.0, -1.0, 1.0], dtype=torch.float64))


def test_multinomial_equals_scikit_learn() -> None:
    rng = np.random.default_rng(1)
    X, y, w = rng.normal(size=(30, M)), rng.integers(0, K, 30), rng.uniform(0.1, 2, 30)
    u = rng.normal(size=(M, K))
    shard = make(Multinomial(reduction="mean"), [(X, y, w)])
    expected = log_loss(y, torch.softmax(torch.from_numpy(X @ u), 1).numpy(), sample_weight=w)
    assert float(shard.linearize(torch.from_numpy(u)[None]).value) == pytest.approx(expected, rel=1e-12)


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
    r, d = z_ - y_, Decimal(loss.delta if isinstance(loss, Huber) else 10**9)
    if abs(r) <= d:
        return r * r / 2, r, Decimal(1)
    return d * abs(r) - d * d / 2, d.copy_sign(r), Decimal(0)


@pytest.mark.parametrize("z", [-1000.0, -750.0, -40.0, -21.0, -1.0, 0.0, 1.0, 3.0, 21.0, 40.0, 750.0, 1000.0])
@pytest.mark.parametrize("y", [-1.0, 1.0])
@pytest.mark.parametrize("loss", [Logistic(), SmoothedHinge(), SmoothedHinge(1e-8), Huber(0.3), LeastSquares()])
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
    assert got is not None
    assert float(got) == pytest.approx(sum(y * math.log(y) - y for y in counts), abs=1e-15)


@pytest.mark.parametrize(
    ("loss", "a", "y"),
    [
        (Logistic(), 0.1, 1.0),
        (Logistic(), -1.1, 1.0),
        (SmoothedHinge(), 0.1, 1.0),
        (SmoothedHinge(), 1.1, -1.0),
        (Huber(0.5), 0.6, 2.0),
        (Poisson(), -3.1, 3.0),
    ],
)
def test_conjugate_is_infinite_outside_its_domain(loss: RowLoss, a: float, y: float) -> None:
    got = loss.row_conjugate(torch.tensor([[a]], dtype=torch.float64), torch.tensor([y], dtype=torch.float64))
    assert got.tolist() == [math.inf]


@pytest.mark.parametrize("a", [(0.1, 0.1, 0.1), (-1.2, 0.6, 0.6), (-0.5, 0.7, -0.2), (0.2, -0.1, -0.1)])
def test_conjugate_of_the_softmax_lives_on_the_simplex(a: tuple[float, ...]) -> None:
    assert Multinomial().row_conjugate(torch.tensor([a]), torch.tensor([0])).tolist() == [math.inf]


# ---- cost ----


def test_points_and_lines_share_products_and_probabilities(monkeypatch: pytest.MonkeyPatch) -> None:
    shard = make(Multinomial(), uneven(Multinomial()))
    u = torch.zeros(shard.shape, dtype=torch.float64)
    calls = {"forward": 0, "softmax": 0}
    forward, softmax = Design.forward, torch.softmax

    def count_forward(self: Design, x: Tensor) -> Tensor:
        calls["forward"] += 1
        return forward(self, x)

    def count_softmax(*args: Any, **kwargs: Any) -> Tensor:
        calls["softmax"] += 1
        return softmax(*args, **kwargs)

    monkeypatch.setattr(Design, "forward", count_forward)
    monkeypatch.setattr(torch, "softmax", count_softmax)
    point = shard.linearize(u)
    assert point.value is point.value
    assert point.grad is point.grad
    point.hessian_diagonal()
    point.conjugate(0.5)
    assert calls == {"forward": 1, "softmax": 1}
    point.hvp(u + 1)
    line = point.line(u + 1)
    assert calls == {"forward": 3, "softmax": 1}
    for t in (0.5, 0.25):
        moved = line.at(torch.full((shard.blocks,), t, dtype=torch.float64))
        moved.value, moved.grad  # noqa: B018
    assert calls == {"forward": 3, "softmax": 3}


# ---- construction and messages ----


def test_what_a_loss_says_of_itself() -> None:
    assert [x.target_kind for x in LOSSES.values()] == [
        *("real", "classes", "binary", "binary", "binary", "real", "real")
    ]
    assert [name for name, x in LOSSES.items() if x.quadratic] == ["least-squares"]
    assert Multinomial().columns_for(7) == 7
    assert Logistic().columns_for(2) == LeastSquares().columns_for(0) == 1
    assert SmoothedHinge().eps == 1 / 5000
    assert SmoothedHinge(0.1) == SmoothedHinge(eps=0.1) != SmoothedHinge()
    assert all(x.reduction == "sum" for x in LOSSES.values())
    for x in LOSSES.values():
        assert pickle.loads(pickle.dumps(x)) == x


@EVERY
def test_reduction_is_checked(loss: RowLoss) -> None:
    with pytest.raises(ValueError, match=r"'sum', 'mean' or 'pooled'; got 'average'"):
        type(loss)(reduction="average")
    with pytest.raises(TypeError):
        type(loss)(1.0, "mean")  # type: ignore[arg-type, call-arg]


@pytest.mark.parametrize("value", [0, -1.0, math.inf, math.nan, "small", None, True])
def test_parameters_are_checked(value: Any) -> None:
    with pytest.raises(InputError, match="SmoothedHinge: eps must be a positive finite number; got"):
        SmoothedHinge(eps=value)
    with pytest.raises(InputError, match="Huber: delta must be a positive finite number; got"):
        Huber(delta=value)


def test_poisson_refuses_negative_counts() -> None:
    X = np.ones((2, 1))
    with pytest.raises(InputError, match=r"block 1: y\[1\] is -2.0; Poisson"):
        make(Poisson(), [(X, np.array([0, 3])), (X, np.array([1, -2]))])
    LeastSquares().check_target("block 0", np.array([-1.0]))
