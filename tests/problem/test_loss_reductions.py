"""Weights, reductions, labels and precisions of the row losses, and what they say of bad arguments."""

from __future__ import annotations

import math
import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch
from sklearn.metrics import log_loss

from auqadmm.blocks.rows import RowLoss
from auqadmm.problem.ingest import InputError
from auqadmm.problem.losses import Huber, LeastSquares, Logistic, Multinomial, Poisson, SmoothedHinge
from auqadmm.problem.quantile import Quantile
from tests.problem.loss_cases import EVERY, LOSSES, Case, K, M, everything, make, uneven

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


# ---- construction and messages ----


def test_what_a_loss_says_of_itself() -> None:
    assert [x.target_kind for x in LOSSES.values()] == [
        *("real", "classes", "binary", "binary", "binary", "real", "real", "real", "real")
    ]
    assert [name for name, x in LOSSES.items() if x.quadratic] == ["least-squares"]
    assert Multinomial().columns_for(7) == 7
    assert Logistic().columns_for(2) == LeastSquares().columns_for(0) == 1
    assert SmoothedHinge().eps == 1 / 5000
    assert SmoothedHinge(0.1) == SmoothedHinge(eps=0.1) != SmoothedHinge()
    assert Quantile() == Quantile(q=0.5, eps=0.01) != Quantile(0.6)
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
    with pytest.raises(InputError, match="Quantile: eps must be a positive finite number; got"):
        Quantile(eps=value)


@pytest.mark.parametrize("value", [0, 1, 1.0, -0.1, 1.5, math.inf, math.nan, "median", None, True])
def test_a_quantile_lies_between_zero_and_one(value: Any) -> None:
    with pytest.raises(InputError, match="Quantile: q must be a number between 0 and 1; got"):
        Quantile(value)


def test_poisson_refuses_negative_counts() -> None:
    X = np.ones((2, 1))
    with pytest.raises(InputError, match=r"block 1: y\[1\] is -2.0; Poisson"):
        make(Poisson(), [(X, np.array([0, 3])), (X, np.array([1, -2]))])
    LeastSquares().check_target("block 0", np.array([-1.0]))
