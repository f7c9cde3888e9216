"""Sums of squares over rows and features, part by part, and products that are kept."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
import torch

import auqadmm as aq
from auqadmm.blocks.design import DensePiece
from auqadmm.curvature.posterior import cosine_basis

HEIGHTS = {"even": (30, 30, 30), "padded": (30, 27, 3), "empty": (9, 0, 20), "one": (1, 1, 1)}


def shard_of(heights, sparse=False):
    rng = np.random.default_rng(0)
    X = [rng.normal(size=(n, 12)) * (rng.random((n, 12)) < 0.5) for n in heights]
    blocks = [(scipy.sparse.csr_matrix(x) if sparse else x, np.ones(len(x))) for x in X]
    problem = aq.Problem(aq.LeastSquares(), aq.L2(1.0), blocks)
    return problem.placed().shard(torch.float64, torch.device("cpu")), X


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("heights", HEIGHTS.values(), ids=HEIGHTS.keys())
def test_sums_of_squares_are_those_of_the_rows(heights, sparse):
    shard, X = shard_of(heights, sparse)
    design = shard.design
    rng = np.random.default_rng(1)
    u = rng.normal(size=(3, 12))
    w = torch.where(shard.row_weight > 0, torch.from_numpy(rng.random(design.rows)), 0.0)
    by_block = [w[design.block_of_row == j][: len(x)].numpy() for j, x in enumerate(X)]  # padding comes last
    F = cosine_basis((3, 4), intercept=False)

    squares = design.forward_squared(torch.from_numpy(u))
    plain, turned = design.adjoint_squared_in(None, w), design.adjoint_squared_in(F, w)
    for j, x in enumerate(X):
        here = squares[design.block_of_row == j][: len(x)]
        np.testing.assert_allclose(here, x**2 @ u[j], atol=1e-12)
        np.testing.assert_allclose(plain[j], (x**2).T @ by_block[j], atol=1e-12)
        np.testing.assert_allclose(turned[j], ((x @ F.dense().numpy().T) ** 2).T @ by_block[j], atol=1e-12)
    torch.testing.assert_close(plain, design.adjoint_squared(w))
    ones = torch.ones(3, 12, dtype=torch.float64)
    torch.testing.assert_close(design.squares(w), design.forward_squared(ones), rtol=1e-14, atol=0)


def test_no_copy_of_the_data_is_made():
    """Squares are taken of a part of the rows at a time."""
    taken = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, fn, types, args=(), kwargs=None):
            out = fn(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor) and not out._is_view():
                taken.append(out.numel())
            return out

    X = torch.randn(4, 500, 16, dtype=torch.float64)
    piece = DensePiece(X, torch.arange(4))
    w, F = torch.rand(2000, 1, dtype=torch.float64), cosine_basis((4, 4), intercept=False)
    with Watch():
        piece.forward_squared(torch.ones(4, 16, 1, dtype=torch.float64))
        piece.adjoint_squared_in(None, w)
        piece.adjoint_squared_in(F, w)
    assert max(taken) <= X.numel() / 7


def test_directions_that_are_asked_for_again_cost_nothing():
    shard, _ = shard_of((30, 30, 30))
    design = shard.design
    U, V = torch.randn(3, 12, 1, dtype=torch.float64), torch.randn(3, 12, 1, dtype=torch.float64)
    kept = design.along(U)
    assert design.along(U) is kept
    torch.testing.assert_close(design.along(V), design.forward(V), rtol=0, atol=0)
    again = design.along(U)
    assert again is not kept, "one set is kept at a time"
    torch.testing.assert_close(again, kept, rtol=0, atol=0)
    many = torch.randn(3, 12, 6, dtype=torch.float64)
    assert design.along(many) is not design.along(many), "many directions are as large as the data"
