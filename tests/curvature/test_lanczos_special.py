"""Lanczos on masks, negative curvature, in single precision, without a start, misused (S7, S9)."""

from __future__ import annotations

import pytest
import torch

from auqadmm.curvature import Lanczos
from auqadmm.curvature.lanczos import lanczos

F64 = torch.float64


def test_negative_ritz_values_are_set_to_zero(dense_point, random_hessian):
    H = random_hessian(torch.tensor([-3.0, -1.0, 2.0, 4.0], dtype=F64))
    ritz = Lanczos(rank=4).decompose(dense_point(H))
    expected = torch.tensor([[4.0, 2.0, 0.0, 0.0]], dtype=F64)
    torch.testing.assert_close(ritz.values, expected, rtol=1e-12, atol=1e-12)
    assert (ritz.diagonal() >= 0).all()


def test_mask_projector_needs_rademacher(dense_point):
    mask = torch.zeros(8, 8, dtype=F64)
    mask[:4, :4] = 1.0
    point = dense_point(torch.diag(mask.flatten())[None])
    inside = mask.flatten() > 0
    for rank in (2, 5):  # the third step would divide by rounding error
        ritz = Lanczos(rank=rank, start="rademacher").decompose(point)
        d = ritz.diagonal().flatten()
        torch.testing.assert_close(d, mask.flatten() / 16, rtol=1e-13, atol=1e-16)
        assert ritz.steps.item() == 2
    d = Lanczos(rank=2, start="gaussian").diagonal(point).diagonal.flatten()
    assert d[inside].max() > 10 * d[inside].min()


def test_float32(dense_point, random_hessian):
    H = random_hessian(torch.linspace(1.0, 5.0, 7, dtype=F64), blocks=2)
    single = Lanczos(rank=7).diagonal(dense_point(H.float())).diagonal
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), dense_point(H).hessian_diagonal(), rtol=1e-5, atol=1e-5)


def test_start_of_zeros_has_no_direction(dense_point, random_hessian):
    point = dense_point(random_hessian(torch.ones(4, dtype=F64)))
    ritz = lanczos(point.hvp, (1, 4, 1), 3, torch.zeros(4, 1, dtype=F64))
    assert ritz.steps.tolist() == [0]
    assert not ritz.vectors.any()
    assert not ritz.values.any()


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"rank": 0}, "rank must be an integer of at least 1, got 0"),
        ({"rank": 2.5}, "rank must be an integer of at least 1, got 2.5"),
        ({"rank": True}, "rank must be an integer of at least 1, got True"),
        ({"seed": "a"}, "seed must be an integer, got 'a'"),
        ({"start": "uniform"}, "start must be 'gaussian' or 'rademacher', got 'uniform'"),
    ],
)
def test_wrong_parameters(kwargs, message):
    with pytest.raises(ValueError, match=message):
        Lanczos(**kwargs)
