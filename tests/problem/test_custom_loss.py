"""CustomLoss: the same function written by hand equals the built-in loss; what it refuses, it says clearly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from auqadmm.blocks.loss import Loss, Point
from auqadmm.blocks.shard import Shard, build_shard
from auqadmm.problem import custom_loss
from auqadmm.problem.custom_loss import CustomLoss
from auqadmm.problem.ingest import InputError
from auqadmm.problem.losses import Huber, LeastSquares, Logistic, Multinomial
from auqadmm.problem.problem import Problem
from auqadmm.problem.regularizers import L2

M, K = 3, 3
Blocks = list[tuple[Any, ...]]


def huber(u: Tensor, X: Tensor, y: Tensor) -> Tensor:
    r = X @ u - y
    return torch.where(r.abs() <= 0.7, r * r / 2, 0.7 * r.abs() - 0.7**2 / 2)


def logistic(u: Tensor, X: Tensor, y: Tensor) -> Tensor:
    return torch.log1p(torch.exp(-y * (X @ u)))


def softmax(u: Tensor, X: Tensor, y: Tensor) -> Tensor:
    z = X @ u
    return torch.logsumexp(z, 1) - z.gather(1, y.long()[:, None])[:, 0]


def exponential(u: Tensor, X: Tensor, y: Tensor) -> Tensor:
    return torch.exp(X @ u) - y * (X @ u)


def squares(u: Tensor, X: Tensor, y: Tensor) -> Tensor:
    return 0.5 * (X @ u - y) ** 2


PAIRS: dict[str, tuple[Callable[..., Tensor], Callable[..., Loss], int]] = {
    "huber": (huber, lambda reduction: Huber(0.7, reduction=reduction), 1),
    "logistic": (logistic, lambda reduction: Logistic(reduction=reduction), 1),
    "softmax": (softmax, lambda reduction: Multinomial(reduction=reduction), K),
    "squares": (squares, lambda reduction: LeastSquares(reduction=reduction), 1),
}


def make(loss: Loss, blocks: Blocks, intercept: bool = False, dtype: torch.dtype = torch.float64) -> Shard:
    return Problem(loss, L2(1.0), blocks, intercept).shard(dtype, torch.device("cpu"))


def blocks_for(name: str, sizes: tuple[int, ...] = (7, 6, 1, 0, 12), weighted: bool = False) -> Blocks:
    rng = np.random.default_rng(len(sizes))
    blocks: Blocks = []
    for n in sizes:
        y = {"softmax": np.arange(n) % K, "logistic": np.arange(n) % 2 * 2 - 1}.get(name, rng.normal(size=n))
        weights = (rng.choice([0.0, 0.5, 2.0], n),) if weighted else ()
        blocks.append((rng.normal(size=(n, M)), y, *weights))
    return blocks


def normal(shard: Shard, *trailing: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shard.shape, *trailing, generator=generator, dtype=shard.dtype)


def assert_same(one: Point, other: Point, P: Tensor, tolerance: float = 1e-12) -> None:
    for got, expected in (
        (one.value, other.value),
        (one.grad, other.grad),
        (one.hvp(P), other.hvp(P)),
        (one.hvp(P[..., 0]), other.hvp(P[..., 0])),
        (one.hessian_diagonal(), other.hessian_diagonal()),
    ):
        torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.thin(3)
@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("weighted", [False, True])
@given(st.sampled_from(["sum", "mean", "pooled"]), st.booleans(), st.integers(0, 1000))
@settings(derandomize=True, deadline=None, max_examples=6)
def test_equals_the_built_in_loss(name: str, weighted: bool, reduction: str, intercept: bool, seed: int) -> None:
    fn, built_in, columns = PAIRS[name]
    blocks = blocks_for(name, weighted=weighted)
    custom = make(CustomLoss(fn, columns, reduction=reduction), blocks, intercept)
    twin = make(built_in(reduction=reduction), blocks, intercept)
    assert custom.shape == twin.shape
    u, P = normal(custom, seed=seed), normal(custom, 2, seed=seed + 1)
    assert_same(custom.linearize(u), twin.linearize(u), P)
    t = torch.linspace(0.1, 1.0, custom.blocks, dtype=torch.float64)
    moved = [shard.linearize(u).line(P[..., 0]).at(t) for shard in (custom, twin)]
    torch.testing.assert_close(moved[0].u, moved[1].u)
    assert_same(moved[0], moved[1], P, 1e-10)


def test_the_diagonal_comes_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    shard = make(CustomLoss(softmax, K), blocks_for("softmax"))
    point = shard.linearize(normal(shard))
    whole = point.hessian_diagonal()
    for chunk in (1, 4 * (27 * K + 5 * M * K)):  # one direction at a time; four, with a rest of one
        monkeypatch.setattr(custom_loss, "UNIT_CHUNK", chunk)
        torch.testing.assert_close(point.hessian_diagonal(), whole, rtol=1e-13, atol=1e-14)


def test_hessian_equals_autograd_for_a_function_of_its_own() -> None:
    def cosh(u: Tensor, X: Tensor, y: Tensor) -> Tensor:
        return torch.log(torch.cosh(X @ u - y)) + 0.1 * (X @ u) ** 4

    ((X, y),) = blocks_for("squares", (8,))
    shard = make(CustomLoss(cosh), [(X, y)])
    u, P = normal(shard), normal(shard, 4)
    X_, y_ = torch.from_numpy(X), torch.from_numpy(y)
    H = torch.autograd.functional.hessian(lambda w: cosh(w, X_, y_).sum(), u[0, :, 0])
    point = shard.linearize(u)
    torch.testing.assert_close(point.hvp(P)[0, :, 0], H @ P[0, :, 0], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(point.hessian_diagonal()[0, :, 0], H.diagonal(), rtol=1e-12, atol=1e-12)
    assert point.conjugate(1.0) is None


def test_a_linear_function_has_no_curvature() -> None:
    shard = make(CustomLoss(lambda u, X, y: X @ u), blocks_for("squares"))
    point = shard.linearize(normal(shard))
    assert not point.hvp(normal(shard, 2)).any()
    assert not point.hessian_diagonal().any()
    assert point.grad[0].any()


def test_float32_even_where_fn_answers_in_float64() -> None:
    blocks = blocks_for("huber", weighted=True)
    shard = make(CustomLoss(lambda u, X, y: huber(u, X, y).double()), blocks, dtype=torch.float32)
    twin = make(Huber(0.7), blocks, dtype=torch.float32)
    u, P = normal(shard), normal(shard, 2)
    assert shard.linearize(u).value.dtype == shard.linearize(u).grad.dtype == torch.float32
    assert_same(shard.linearize(u), twin.linearize(u), P, 1e-4)


@pytest.mark.parametrize("first", [0, 1])
def test_rows_of_weight_zero_add_nothing_even_where_fn_overflows(first: int) -> None:
    X, y = np.array([[1e6], [1.0], [2.0], [1e6]]), np.array([1.0, 1.0, 0.0, 2.0])
    weight = np.array([0.0, 1.0, 3.0, 0.0])
    idle = (X[:1], y[:1], weight[:1])
    X, y, weight = (np.roll(a, -first, axis=0) for a in (X, y, weight))
    # heights 5 and 4 form one stack; the second block is padded by its first row, which may not count itself
    blocks = [(np.vstack([X, [[1.0]]]), np.append(y, 1.0), np.append(weight, 1.0)), (X, y, weight), idle]
    shard = make(CustomLoss(exponential), blocks)
    clean = make(CustomLoss(exponential), [(b[0][b[2] > 0], b[1][b[2] > 0], b[2][b[2] > 0]) for b in blocks])
    u = torch.ones(shard.shape, dtype=torch.float64)
    assert_same(shard.linearize(u), clean.linearize(u), u[..., None], 1e-14)
    assert float(shard.linearize(u).value[2]) == 0.0


def test_a_process_that_holds_some_of_the_blocks() -> None:
    blocks = blocks_for("squares", (1, 7, 6, 0), weighted=True)
    blocks[1][0][6], blocks[1][2][:], blocks[2][2][:] = 1e6, [1, 1, 1, 1, 1, 1, 0], 1.0
    problem = Problem(CustomLoss(exponential, reduction="pooled"), L2(1.0), blocks)
    whole, held = problem.shard(torch.float64, torch.device("cpu")), [1, 3, 2]
    raw, targets = [problem.blocks[j] for j in held], [problem._targets[j] for j in held]
    part = build_shard(raw, targets, problem.loss, problem.census, held, whole.dtype, whole.device)
    u = normal(whole).abs()
    here, there = part.linearize(u[held]), whole.linearize(u)
    torch.testing.assert_close(here.value, there.value[held], rtol=1e-14, atol=0)
    torch.testing.assert_close(here.grad, there.grad[held], rtol=1e-13, atol=1e-14)
    assert torch.isfinite(here.grad).all()


# ---- functions that sum by themselves ----


@pytest.mark.parametrize("reduction", ["sum", "mean", "pooled"])
@pytest.mark.parametrize("sizes", [(5, 5), (5, 9, 0)])
def test_a_function_may_sum_its_rows(reduction: str, sizes: tuple[int, ...]) -> None:
    blocks = blocks_for("squares", sizes)
    total = make(CustomLoss(lambda u, X, y: squares(u, X, y).sum(), reduction=reduction), blocks)
    by_row = make(CustomLoss(squares, reduction=reduction), blocks)
    u = normal(total)
    assert_same(total.linearize(u), by_row.linearize(u), u[..., None])


@pytest.mark.parametrize(("sizes", "weighted"), [((5, 5), True), ((7, 6), False)])
def test_a_sum_is_refused_where_rows_differ(sizes: tuple[int, ...], weighted: bool) -> None:
    shard = make(CustomLoss(lambda u, X, y: squares(u, X, y).sum()), blocks_for("squares", sizes, weighted))
    with pytest.raises(InputError, match=r"single number, but some blocks .* return one loss per row"):
        shard.linearize(shard.zeros())


# ---- messages ----


def test_a_broadcast_result_is_named() -> None:
    shard = make(CustomLoss(lambda u, X, y: (X @ u[:, None] - y) ** 2), blocks_for("squares", (5,)))
    with pytest.raises(InputError, match=r"shape \(5, 5\) but one loss per row has shape \(5,\); .*\(n, 1\)"):
        shard.linearize(shard.zeros())


def test_a_result_that_is_no_tensor_is_named() -> None:
    number: Any = lambda u, X, y: 1.0  # noqa: E731
    shard = make(CustomLoss(number), blocks_for("squares", (5,)))
    with pytest.raises(InputError, match="fn returned float; it must return a tensor, one loss per row"):
        shard.linearize(shard.zeros())


def in_place(u: Tensor, X: Tensor, y: Tensor) -> Tensor:
    out = torch.zeros(len(y), dtype=y.dtype)
    out += (X @ u - y) ** 2
    return out


def branching(u: Tensor, X: Tensor, y: Tensor) -> Tensor:
    return (X @ u - y) ** 2 if (X @ u).sum() > 0 else X @ u


@pytest.mark.parametrize(
    ("fn", "words"),
    [
        (in_place, "output with shape|inplace"),
        (branching, "control flow"),
        (lambda u, X, y: X @ u[:, 0] - y, "too many indices"),
        (lambda u, X: X @ u, "positional argument"),
        (lambda u, X, y: X.T @ u - y, "size"),
    ],
    ids=["in-place", "branching", "u-is-a-vector", "two-arguments", "shapes"],
)
def test_a_function_torch_cannot_run_is_explained(fn: Any, words: str) -> None:
    shard = make(CustomLoss(fn), blocks_for("squares", (5, 5)))
    with pytest.raises(InputError, match=words) as caught:
        shard.linearize(shard.zeros())
    assert "u (3,), X (5, 3), y (5,)" in str(caught.value)
    assert "torch.where instead of `if`" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.__cause__ is not None


def test_sparse_blocks_are_refused_by_name() -> None:
    (X, y), other = blocks_for("squares", (5, 5))
    shard = make(CustomLoss(squares), [other, (scipy.sparse.csr_matrix(X), y)])
    with pytest.raises(InputError, match=r"block 1: CustomLoss needs dense data .*X\.toarray\(\)"):
        shard.linearize(shard.zeros())


@pytest.mark.parametrize("columns", [0, -1, 1.0, "2", True])
def test_columns_are_checked(columns: Any) -> None:
    with pytest.raises(InputError, match="columns must be a positive integer; got"):
        CustomLoss(squares, columns)


def test_fn_and_reduction_are_checked() -> None:
    with pytest.raises(InputError, match="fn must be a function"):
        CustomLoss("squares")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="'sum', 'mean' or 'pooled'; got 'total'"):
        CustomLoss(squares, reduction="total")
    assert CustomLoss(softmax, K).columns_for(0) == K
    assert CustomLoss(squares).target_kind == "real"
