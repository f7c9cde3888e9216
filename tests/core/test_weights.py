"""Operator laws of the weights, against dense matrices."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from auqadmm.metrics.weights import Diagonal, Scalar, sum_blocks


def make(kind, B, m, C, seed):
    g = torch.Generator().manual_seed(seed)
    if kind == "scalar":
        return Scalar(torch.rand(B, generator=g, dtype=torch.float64) + 0.1, m, C)
    return Diagonal(torch.rand(B, m, C, generator=g, dtype=torch.float64) + 0.1)


sizes = st.integers(1, 4)


@pytest.mark.parametrize("kind", ["scalar", "diagonal"])
@given(B=sizes, m=sizes, C=sizes, seed=st.integers(0, 99))
def test_operator_laws(kind, B, m, C, seed):
    W = make(kind, B, m, C, seed)
    x = torch.randn(B, m, C, dtype=torch.float64, generator=torch.Generator().manual_seed(seed + 1))
    dense = W.dense()
    expected = torch.einsum("bij,bj->bi", dense, x.flatten(1)).reshape(B, m, C)
    torch.testing.assert_close(W.apply(x), expected)
    torch.testing.assert_close(W.solve(W.apply(x)), x)
    torch.testing.assert_close(W.diagonal().flatten(1), dense.diagonal(dim1=1, dim2=2))
    many = torch.stack([x, 2 * x], dim=-1)
    torch.testing.assert_close(W.apply(many)[..., 1], 2 * expected)
    torch.testing.assert_close(W.solve(W.apply(many)), many)
    torch.testing.assert_close(W.totals()["K"].expand(m, C), dense.sum(0).diagonal().reshape(m, C))


@given(B=st.integers(1, 40), seed=st.integers(0, 99))
def test_sum_over_blocks_is_the_sum_and_ignores_the_trailing_shape(B, seed):
    x = np.random.default_rng(seed).normal(size=B)
    one = sum_blocks(torch.from_numpy(x))
    many = sum_blocks(torch.from_numpy(x)[:, None, None].expand(B, 3, 2).contiguous())
    assert float(one) == pytest.approx(x.sum(), abs=1e-12)
    assert (many == one).all(), "to the last bit"


def test_sum_over_no_blocks_is_zero():
    assert sum_blocks(torch.zeros(0, 3)).tolist() == [0.0, 0.0, 0.0]
    assert sum_blocks(torch.zeros(2, 3, dtype=torch.float32)).dtype == torch.float64
