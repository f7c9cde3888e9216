"""Lanczos on many blocks: each block as if it were alone, whatever its neighbours do (S7)."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from auqadmm.curvature import Lanczos

F64 = torch.float64


@pytest.fixture
def mixed(random_hessian):
    """Full rank, zero, rank 1, rank 2, identity: they break down after 9, 1, 2, 3 and 1 steps."""
    n = 9
    spectra = torch.zeros(5, n, dtype=F64)
    spectra[0] = torch.linspace(1.0, 7.0, n)
    spectra[2, 0] = 3.0
    spectra[3, :2] = torch.tensor([2.0, 5.0])
    spectra[4] = 1.0
    return torch.cat([random_hessian(s, seed=i) for i, s in enumerate(spectra)])


def test_breakdown_in_some_blocks_leaves_the_others_untouched(dense_point, mixed):
    ritz = Lanczos(rank=6).decompose(dense_point(mixed))
    assert ritz.steps.tolist() == [6, 1, 2, 3, 1]
    for b, used in enumerate(ritz.steps.tolist()):
        assert not ritz.vectors[b, ..., used:].any()
        assert not ritz.values[b, used:].any()
        V = ritz.vectors[b, :, 0, :used]  # zero Ritz values and empty slots must not mix
        torch.testing.assert_close(V.mT @ V, torch.eye(used, dtype=F64), rtol=0, atol=1e-13)
    alone = Lanczos(rank=6).decompose(dense_point(mixed[:1]))
    torch.testing.assert_close(ritz.values[:1], alone.values, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(ritz.diagonal()[:1], alone.diagonal(), rtol=1e-12, atol=1e-12)
    # a Hessian of low rank is found entirely, an eigenvalue repeated n times only once
    exact = dense_point(mixed).hessian_diagonal()
    torch.testing.assert_close(ritz.diagonal()[1:4], exact[1:4], rtol=0, atol=1e-13)
    torch.testing.assert_close(ritz.values[4], mixed.new_tensor([1.0, 0, 0, 0, 0, 0]))


@pytest.mark.parametrize("rank", [1, 4])
def test_zero_hessian_gives_zeros(dense_point, rank):
    ritz = Lanczos(rank=rank).decompose(dense_point(torch.zeros(3, 4, 4, dtype=F64), columns=2))
    assert torch.equal(ritz.values, torch.zeros(3, rank, dtype=F64))
    assert torch.equal(ritz.diagonal(), torch.zeros(3, 2, 2, dtype=F64))


def test_no_blocks(dense_point):
    estimate = Lanczos(rank=2).diagonal(dense_point(torch.zeros(0, 4, 4, dtype=F64)))
    assert estimate.diagonal.shape == (0, 4, 1)


@pytest.mark.parametrize("broken", [torch.nan, torch.inf])
def test_a_block_that_overflowed_answers_nan_alone(dense_point, mixed, broken):
    good = Lanczos(rank=4).diagonal(dense_point(mixed)).diagonal
    mixed[1] = broken
    got = Lanczos(rank=4).diagonal(dense_point(mixed)).diagonal
    assert got[1].isnan().all()
    others = [0, 2, 3, 4]
    torch.testing.assert_close(got[others], good[others], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("factor", [1e-8, 1e8, 1e-60, 1e60])
def test_scaling_the_hessian_scales_the_answer(dense_point, mixed, factor):
    ritz = Lanczos(rank=6).decompose(dense_point(mixed))
    scaled = Lanczos(rank=6).decompose(dense_point(mixed * factor))
    assert torch.equal(ritz.steps, scaled.steps)
    torch.testing.assert_close(scaled.values / factor, ritz.values, rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(scaled.diagonal() / factor, ritz.diagonal(), rtol=1e-11, atol=1e-12)


def test_blocks_of_very_different_scale_keep_their_own_breakdown(dense_point, mixed):
    factors = mixed.new_tensor([1e-8, 1.0, 1e8, 1e-8, 1e8])[:, None, None]
    ritz = Lanczos(rank=6).decompose(dense_point(mixed * factors))
    assert ritz.steps.tolist() == [6, 1, 2, 3, 1]


@pytest.mark.parametrize("factor", [1e-8, 1.0, 1e8])
def test_breakdown_in_single_precision(dense_point, mixed, factor):
    ritz = Lanczos(rank=6).decompose(dense_point((mixed * factor).float()))
    assert ritz.steps.tolist() == [6, 1, 2, 3, 1]
    expected = Lanczos(rank=6).diagonal(dense_point(mixed)).diagonal
    torch.testing.assert_close(ritz.diagonal().double() / factor, expected, rtol=0, atol=1e-4)


def test_batched_equals_one_by_one(dense_point, mixed):
    together = Lanczos(rank=4).diagonal(dense_point(mixed, columns=3)).diagonal
    alone = [Lanczos(rank=4).diagonal(dense_point(H[None], columns=3)).diagonal for H in mixed]
    torch.testing.assert_close(together, torch.cat(alone), rtol=1e-12, atol=1e-13)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(order=st.permutations(range(5)), rank=st.integers(1, 7), seed=st.integers(0, 1000))
def test_block_order_does_not_matter(dense_point, random_hessian, order, rank, seed):
    spectra = torch.rand(5, 7, generator=torch.Generator().manual_seed(seed), dtype=F64)
    H = torch.cat([random_hessian(s, seed=seed + i) for i, s in enumerate(spectra)])
    estimator = Lanczos(rank=rank, seed=seed)
    d = estimator.diagonal(dense_point(H)).diagonal
    permuted = estimator.diagonal(dense_point(H[list(order)])).diagonal
    torch.testing.assert_close(permuted, d[list(order)], rtol=1e-11, atol=1e-12)


class RankOnePlusDiagonal:
    """H = diag(a) + b bᵀ, the same in every block, multiplied entry by entry: equal blocks, equal bits."""

    def __init__(self, blocks: int, m: int, C: int, dtype: torch.dtype) -> None:
        generator = torch.Generator().manual_seed(m)
        self.a = torch.rand(m, C, generator=generator, dtype=F64).to(dtype)
        self.b = torch.randn(m, C, generator=generator, dtype=F64).to(dtype)
        self.u = torch.zeros(blocks, m, C, dtype=dtype)

    def hvp(self, P: torch.Tensor) -> torch.Tensor:
        return self.a * P + self.b * (self.b * P).flatten(1).sum(-1)[:, None, None]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("columns", [1, 3])
@pytest.mark.parametrize("rank", [5, 11, 27])
@pytest.mark.parametrize("features", [13, 101, 785])
def test_equal_blocks_give_equal_bits(dtype, columns, rank, features):
    point = RankOnePlusDiagonal(5, features, columns, dtype)
    ritz = Lanczos(rank=rank).decompose(point)
    for x in (ritz.values, ritz.vectors, ritz.steps, ritz.diagonal()):
        assert torch.equal(x, x[:1].expand_as(x))


def test_calls_repeat_bit_by_bit_and_leave_the_global_generator_alone(dense_point, mixed):
    before = torch.get_rng_state()
    first = Lanczos().diagonal(dense_point(mixed)).diagonal
    assert torch.equal(first, Lanczos().diagonal(dense_point(mixed)).diagonal)
    assert torch.equal(before, torch.get_rng_state())
    assert not torch.equal(first, Lanczos(seed=1).diagonal(dense_point(mixed)).diagonal)


def test_cost_is_the_rank_even_when_all_blocks_break_down(dense_point):
    point = dense_point(torch.eye(6, dtype=F64).expand(2, 6, 6).contiguous())
    assert Lanczos(rank=4).diagonal(point).hvps == len(point.calls) == 4
