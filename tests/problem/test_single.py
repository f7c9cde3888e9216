"""Products in single precision, with and without columns that are zero, against dense ones in double precision."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from auqadmm.blocks.design import DensePiece
from auqadmm.blocks.products import EMPTY, SingleDesign

KEPT = {"all": [], "few zero": [3], "many zero": [0, 3, 4, 9], "nothing": list(range(10))}


@pytest.fixture(params=list(KEPT))
def pair(request):
    """X (3, 20, 10) and its copy."""
    X = torch.from_numpy(np.random.default_rng(0).normal(size=(3, 20, 10)))
    X[:, :, KEPT[request.param]] = 0
    X[1, :, 6] = 0  # a column that one block does without
    return X, SingleDesign.of(X, X.amin(1), X.amax(1))


@pytest.mark.parametrize("columns", [1, 3, 16])
def test_products(pair, columns):
    X, single = pair
    coins = torch.Generator().manual_seed(0)
    u = torch.randn(3, 10, columns, generator=coins, dtype=torch.float64)
    z = torch.randn(3, 20, columns, generator=coins, dtype=torch.float64)
    close = {"rtol": 1e-5, "atol": 1e-5}
    torch.testing.assert_close(single.forward(u), X @ u, **close)
    torch.testing.assert_close(single.adjoint(z), X.mT @ z, **close)
    parts = [slice(0, 12), slice(12, 20)]
    torch.testing.assert_close(single.adjoint_squared(z, parts), X.square().mT @ z, **close)
    torch.testing.assert_close(single[1:].forward(u[1:]), X[1:] @ u[1:], **close)


def test_what_is_kept(pair):
    X, single = pair
    used = (X != 0).any(0).any(0)
    assert single.X.dtype == torch.float32
    if not used.any() or (~used).sum() <= EMPTY * 10:
        assert single.columns is None
        assert torch.equal(single.X, X.float())
    else:
        assert torch.equal(single.columns, used.nonzero()[:, 0])
        assert torch.equal(single.X, X[:, :, used].float())


def test_blocks_without_rows():
    X = torch.zeros(2, 0, 4, dtype=torch.float64)
    single = DensePiece(X, torch.arange(2)).single_precision
    assert single.forward(torch.ones(2, 4, 1, dtype=torch.float64)).shape == (2, 0, 1)
    assert torch.equal(single.adjoint(torch.ones(2, 0, 1, dtype=torch.float64)), torch.zeros(2, 4, 1).double())
