"""Laws of the row losses: a naive loop over blocks and rows, autograd, lines, sparse blocks, what is computed once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from auqadmm.blocks.design import Design
from auqadmm.blocks.rows import RowLoss
from auqadmm.problem.losses import Huber, LeastSquares, Logistic, Multinomial, Poisson, SmoothedHinge
from auqadmm.problem.quantile import Quantile
from tests.problem.loss_cases import LAWS, Case, cases, everything, make, uneven

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
        case Quantile():
            r = y - z[0]
            return (loss.q - 0.5) * r + torch.sqrt(r * r + loss.eps**2) / 2
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


# ---- cost ----


def test_points_and_lines_share_products_and_probabilities(monkeypatch: pytest.MonkeyPatch) -> None:
    shard = make(Multinomial(), uneven(Multinomial()))
    u = torch.zeros(shard.shape, dtype=torch.float64)
    calls = {"forward": 0, "softmax": 0}
    forward, prepare = Design.forward, Multinomial.prepare

    def count_forward(self: Design, *args: Any) -> Tensor:
        calls["forward"] += 1
        return forward(self, *args)

    def count_softmax(self: Multinomial, z: Tensor) -> Tensor:
        calls["softmax"] += 1
        return prepare(self, z)

    monkeypatch.setattr(Design, "forward", count_forward)
    monkeypatch.setattr(Multinomial, "prepare", count_softmax)
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
