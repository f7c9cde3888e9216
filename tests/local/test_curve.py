"""The matrix of L-BFGS against the recursion that defines it, with dense matrices, one block and one pair at a time."""

from __future__ import annotations

import pytest
import torch

from auqadmm.local.lbfgs import InverseHessian
from auqadmm.metrics.lowrank import LowRank
from auqadmm.metrics.weights import Diagonal

M, C = 4, 2
N = M * C
ALL = torch.ones(3, dtype=torch.bool)


def pairs(h, seed=0):
    """h pairs of quadratics in three blocks, (3, h, N) each."""
    coins = torch.Generator().manual_seed(seed)
    root = torch.randn(3, N, N, generator=coins, dtype=torch.float64)
    S = torch.randn(3, h, N, generator=coins, dtype=torch.float64)
    return S, S @ (root @ root.mT + torch.eye(N, dtype=torch.float64))


def model_of(kind, seed=5):
    coins = torch.Generator().manual_seed(seed)
    if kind == "diagonal":
        return Diagonal(0.1 + torch.rand(3, M, C, generator=coins, dtype=torch.float64))
    U = torch.linalg.qr(torch.randn(3, M, 2, generator=coins, dtype=torch.float64))[0]
    roots = (torch.randn(3, k, k, generator=coins, dtype=torch.float64) for k in (2, C))
    squares = [x @ x.mT for x in roots]
    d, phi = (0.1 + torch.rand(*shape, generator=coins, dtype=torch.float64) for shape in ((3, M), (3,)))
    return LowRank(U, squares[0], d, squares[1], phi)


def by_recursion(S, Y, model):
    """H₊ = (I − sy'/s'y) H (I − ys'/s'y) + ss'/s'y from H₀, whose size the newest pair tells."""
    found = []
    for s_of, y_of, B in zip(S, Y, model.dense(), strict=True):
        told = [(s, y) for s, y in zip(s_of, y_of, strict=True) if s.any()]
        tau = (told[-1][0] @ told[-1][1]) / (told[-1][0] @ B @ told[-1][0]) if told else 1.0
        H = torch.linalg.inv(tau * B)
        for s, y in told:
            V = torch.eye(N, dtype=H.dtype) - torch.outer(y, s) / (s @ y)
            H = V.mT @ H @ V + torch.outer(s, s) / (s @ y)
        found.append(H)
    return torch.stack(found)


def whole(curve):
    """H as a matrix, column by column."""
    columns = torch.eye(N, dtype=torch.float64).reshape(N, 1, M, C).expand(N, 3, M, C)
    return torch.stack([curve.apply(e).flatten(1) for e in columns], 2)


def pushed(S, Y, model, history, keep=None):
    curve = InverseHessian.empty(torch.zeros(3, M, C, dtype=torch.float64), history, model)
    for i, (s, y) in enumerate(zip(S.unbind(1), Y.unbind(1), strict=True)):
        curve = curve.push(s.reshape(3, M, C), y.reshape(3, M, C), ALL if keep is None else keep[i])
    return curve


@pytest.mark.parametrize("kind", ["diagonal", "low rank"])
@pytest.mark.parametrize("h", [1, 3, 6])
def test_the_compact_form_is_the_recursion(kind, h):
    S, Y = pairs(h)
    model = model_of(kind)
    torch.testing.assert_close(whole(InverseHessian.of(S, Y, model)), by_recursion(S, Y, model), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("kind", ["diagonal", "low rank"])
def test_without_a_pair_it_is_the_inverse_of_the_model(kind):
    model = model_of(kind)
    curve = InverseHessian.empty(torch.zeros(3, M, C, dtype=torch.float64), 4, model)
    torch.testing.assert_close(whole(curve), torch.linalg.inv(model.dense()))
    torch.testing.assert_close(whole(InverseHessian.of(curve.S, curve.Y, model)), whole(curve))


@pytest.mark.parametrize("kind", ["diagonal", "low rank"])
def test_the_newest_pair_is_met(kind):
    S, Y = pairs(3)
    curve = pushed(S, Y, model_of(kind), 4)
    s = curve.apply(Y[:, -1].reshape(3, M, C)).flatten(1)
    torch.testing.assert_close(s, S[:, -1], rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("kind", ["diagonal", "low rank"])
def test_pushing_pairs_one_by_one_is_the_same_as_all_at_once(kind):
    S, Y = pairs(9)
    model = model_of(kind)
    expected = by_recursion(S[:, -4:], Y[:, -4:], model)
    torch.testing.assert_close(whole(pushed(S, Y, model, 4)), expected, rtol=1e-7, atol=1e-9)


def test_a_block_may_skip_a_pair():
    S, Y = pairs(3)
    model = model_of("low rank")
    curve = pushed(S, Y, model, 4, [ALL, torch.tensor([True, False, True]), torch.tensor([True, True, False])])
    for j, told in enumerate(([0, 1, 2], [0, 2], [0, 1])):
        expected = by_recursion(S[:, told], Y[:, told], model)[j]
        torch.testing.assert_close(whole(curve)[j], expected, rtol=1e-8, atol=1e-10)


def test_pairs_upon_another_model():
    S, Y = pairs(4)
    other = model_of("low rank", seed=8)
    curve = pushed(S, Y, model_of("diagonal"), 4).upon(other)
    torch.testing.assert_close(whole(curve), by_recursion(S, Y, other), rtol=1e-8, atol=1e-10)


def test_blocks_may_forget():
    S, Y = pairs(4)
    model = model_of("low rank")
    curve = pushed(S, Y, model, 4).forget(torch.tensor([False, True, False]))
    torch.testing.assert_close(whole(curve)[1], torch.linalg.inv(model.dense()[1]))
    torch.testing.assert_close(whole(curve)[[0, 2]], by_recursion(S, Y, model)[[0, 2]], rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("kind", ["diagonal", "low rank"])
def test_some_blocks_go_on_alone(kind):
    """Taken, changed and put back: theirs is what they made of it, that of the others is what it was."""
    S, Y = pairs(4)
    model, other = model_of(kind), model_of(kind, seed=8)
    index = torch.tensor([0, 2])
    curve = pushed(S, Y, model, 5)
    for renewed, own in ((False, model), (True, other)):
        some = curve.take(index)
        some = some.upon(own.take(index)) if renewed else some
        back = curve.put(
            index, some.push(2 * S[index, 0].reshape(2, M, C), 2 * Y[index, 0].reshape(2, M, C), ALL[:2]), renewed
        )
        more = [torch.cat([x, 2 * x[:, :1]], 1) for x in (S, Y)]
        torch.testing.assert_close(whole(back)[1], by_recursion(S, Y, model)[1], rtol=1e-8, atol=1e-10)
        torch.testing.assert_close(whole(back)[index], by_recursion(*more, own)[index], rtol=1e-8, atol=1e-10)
