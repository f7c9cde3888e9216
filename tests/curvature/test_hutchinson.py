"""Hutchinson: unbiased, exact for diagonal Hessians, one product (S7)."""

from __future__ import annotations

import pytest
import torch

from auqadmm.curvature import Hutchinson

F64 = torch.float64


@pytest.mark.parametrize("probes", [1, 3, 16])
def test_exact_for_diagonal_hessians(dense_point, probes):
    entries = torch.arange(24.0, dtype=F64).reshape(2, 4, 3)  # (B, m, C): a transposed layout would show
    point = dense_point(torch.diag_embed(entries.flatten(1)), columns=3)
    assert torch.equal(Hutchinson(probes=probes).diagonal(point).diagonal, entries)


def test_one_product_with_all_probes(dense_point, random_hessian):
    point = dense_point(random_hessian(torch.ones(4, dtype=F64), blocks=2))
    assert Hutchinson(probes=7).diagonal(point).hvps == 7
    assert point.calls == [7]


def test_unbiased_within_its_standard_error(dense_point, random_hessian):
    H = random_hessian(torch.linspace(2.0, 4.0, 10, dtype=F64), blocks=3)
    exact = dense_point(H).hessian_diagonal()
    off_diagonal = (H.square().sum(-1) - exact[..., 0].square())[..., None]
    probes = 20_000
    error = Hutchinson(probes=probes).diagonal(dense_point(H)).diagonal - exact
    assert (error.abs() < 5 * (off_diagonal / probes).sqrt()).all()
    assert error.abs().max() > 0


def test_explicit_formula(dense_point, random_hessian):
    H = random_hessian(torch.linspace(0.1, 4.0, 6, dtype=F64))
    got = Hutchinson(probes=5, seed=3).diagonal(dense_point(H)).diagonal[0, :, 0]
    generator = torch.Generator().manual_seed(3)
    z = 2.0 * torch.randint(0, 2, (6, 1, 5), generator=generator)[:, 0].double() - 1.0
    expected = sum(z[:, t] * (H[0] @ z[:, t]) for t in range(5)) / z.square().sum(-1)
    torch.testing.assert_close(got, expected.clamp_min(0))


def test_negative_entries_are_clipped(dense_point):
    H = torch.tensor([[[1.0, 0.0], [0.0, -1.0]]], dtype=F64)
    got = Hutchinson(probes=2).diagonal(dense_point(H)).diagonal
    assert got.flatten().tolist() == [1.0, 0.0]


def test_seeded_the_same_for_every_block(dense_point, random_hessian):
    H = random_hessian(torch.linspace(1.0, 4.0, 6, dtype=F64)).expand(3, 6, 6).contiguous()
    d = Hutchinson(probes=2).diagonal(dense_point(H)).diagonal
    torch.testing.assert_close(d, d[:1].expand_as(d), rtol=1e-13, atol=0)
    assert not torch.equal(d, Hutchinson(probes=2, seed=1).diagonal(dense_point(H)).diagonal)


@pytest.mark.parametrize("probes", [0, -1, 1.0, None])
def test_wrong_probes(probes):
    with pytest.raises(ValueError, match="probes must be an integer of at least 1"):
        Hutchinson(probes=probes)
