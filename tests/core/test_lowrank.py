"""Operator laws of the low-rank weights, against explicit Kronecker products."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.fft import dct

from auqadmm.metrics.lowrank import LowRank
from auqadmm.metrics.weights import Diagonal

BASES = ["identity", "random", "dct"]


def basis(kind, m, rng):
    if kind == "identity":
        return None
    F = np.linalg.qr(rng.normal(size=(m, m)))[0] if kind == "random" else dct(np.eye(m), norm="ortho", axis=0)
    return torch.from_numpy(np.ascontiguousarray(F))


def weights(B=2, m=5, C=1, r=2, seed=0, kind="identity", ranks=(None, None)):
    """Random weights; `ranks` makes M and S singular."""
    rng = np.random.default_rng(seed)

    def psd(n, rank):
        H = rng.normal(size=(B, n, n if rank is None else min(rank, n)))
        return torch.from_numpy(H @ H.swapaxes(1, 2))

    U = torch.from_numpy(np.linalg.qr(rng.normal(size=(B, m, r)))[0]) if r else torch.zeros(B, m, 0).double()
    S = torch.ones(B, 1, 1).double() if C == 1 else psd(C, ranks[1])
    d, phi = torch.from_numpy(rng.uniform(size=(B, m))), torch.from_numpy(rng.uniform(0.1, 1.0, size=B))
    return LowRank(U, psd(r, ranks[0]), d, S, phi, basis(kind, m, rng))


def explicit(W):
    """The definition, one block at a time."""
    m, n = W.d.shape[1], W.d.shape[1] * W.S.shape[-1]
    F = torch.eye(m, dtype=W.d.dtype) if W.F is None else W.F
    blocks = []
    for U, M, d, S, phi in zip(W.U, W.M, W.d, W.S, W.phi, strict=True):
        A = U @ M @ U.T + F.T @ torch.diag(d) @ F
        blocks.append(torch.kron(A, S) + phi * torch.eye(n, dtype=W.d.dtype))
    return torch.stack(blocks)


def check(W, m, C, seed=0, **tolerance):
    B, n = len(W.phi), m * C
    x = torch.from_numpy(np.random.default_rng(seed).normal(size=(B, m, C, 3))).to(W.d.dtype)
    dense = explicit(W)
    torch.testing.assert_close(W.dense(), dense, **tolerance)
    expected = (dense @ x.reshape(B, n, 3)).reshape(x.shape)
    torch.testing.assert_close(W.apply(x), expected, **tolerance)
    torch.testing.assert_close(W.apply(x[..., 1].contiguous()), expected[..., 1], **tolerance)
    torch.testing.assert_close(W.apply(W.solve(x)), x, **tolerance)
    torch.testing.assert_close(W.solve(x)[..., 0], W.solve(x[..., 0].contiguous()), **tolerance)
    assert W.diagonal().shape == (B, m, C)
    torch.testing.assert_close(W.diagonal().flatten(1), dense.diagonal(dim1=1, dim2=2), **tolerance)


sizes = st.integers(1, 4)


@given(B=sizes, m=st.integers(1, 6), C=sizes, r=st.integers(0, 6), seed=st.integers(0, 99), kind=st.sampled_from(BASES))
def test_operator_laws(B, m, C, r, seed, kind):
    check(weights(B, m, C, min(r, m), seed, kind), m, C, seed)


@given(seed=st.integers(0, 99), rank=st.integers(0, 2), kind=st.sampled_from(BASES))
def test_singular_factors_do_no_harm(seed, rank, kind):
    check(weights(3, 6, 4, 5, seed, kind, ranks=(rank, 2 - rank)), 6, 4, seed)


def test_columns_that_a_block_does_without_are_zero():
    W = weights(2, 6, 3, 4)
    U = W.U.clone()
    U[1, :, 2:] = 0
    check(replace(W, U=U), 6, 3)


@pytest.mark.parametrize("kind", BASES)
def test_a_joint_weight_acts_on_the_flattened_unknown(kind):
    m, C = 4, 3
    flat = weights(2, m * C, 1, 5, kind=kind)
    check(replace(flat, joint=True, columns=C), m, C)
    x = torch.randn(2, m, C, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    joint = replace(flat, joint=True, columns=C)
    torch.testing.assert_close(joint.apply(x), flat.apply(x.reshape(2, m * C, 1)).reshape(2, m, C))


@given(B=sizes, m=sizes, seed=st.integers(0, 99))
def test_rank_zero_with_one_column_is_a_diagonal(B, m, seed):
    W = weights(B, m, 1, 0, seed)
    D = Diagonal(W.d[..., None] + W.phi[:, None, None])
    x = torch.from_numpy(np.random.default_rng(seed).normal(size=(B, m, 1)))
    torch.testing.assert_close(W.apply(x), D.apply(x))
    torch.testing.assert_close(W.solve(x), D.solve(x))
    torch.testing.assert_close(W.diagonal(), D.diagonal())
    torch.testing.assert_close(W.dense(), D.dense())
    assert W.totals() == {}


def test_single_precision_stays_positive_when_the_floor_is_far_below_the_curvature():
    """‖W‖/φ = 1e9: in float32 the Woodbury difference would have any sign."""
    W = weights(2, 30, 1, 6)
    parts = {"M": 1e5 * torch.eye(6).expand(2, 6, 6), "d": torch.zeros(2, 30), "phi": torch.full((2,), 1e-4)}
    single = LowRank(W.U.float(), parts["M"], parts["d"], W.S.float(), parts["phi"])
    x = (single.U @ torch.ones(2, 6, 1)).float()
    y = single.solve(x)
    assert y.dtype == torch.float32
    assert single.apply(y).dtype == torch.float32
    assert ((x * y).sum((1, 2)) > 0).all()
    exact = torch.linalg.solve(explicit(single.double()), x.double().flatten(1)[..., None])[..., 0]
    torch.testing.assert_close(y.double().flatten(1), exact, rtol=0.05, atol=1e-5)


@pytest.mark.parametrize("phi", [1e-12, 1e-30, 1e-300])
def test_a_floor_below_rounding_is_not_divided_by(phi):
    W = weights(2, 6, 3, 2)
    W = replace(W, d=torch.zeros_like(W.d), phi=torch.full_like(W.phi, phi))
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(2, 6, 3)))
    y = W.solve(x)
    assert y.isfinite().all()
    assert ((x * y).flatten(1).sum(1) > 0).all()


def test_a_block_that_is_not_finite_spoils_no_other():
    W = weights(3, 6, 3, 2)
    M, S = W.M.clone(), W.S.clone()
    M[0, 0, 0], S[1, 2, 2] = torch.nan, torch.inf
    y = replace(W, M=M, S=S).solve(torch.ones(3, 6, 3, dtype=torch.float64))
    assert y[:2].isnan().flatten(1).any(1).all()
    torch.testing.assert_close(y[2], W.solve(torch.ones(3, 6, 3, dtype=torch.float64))[2])


def relative(W, V):
    W, V = explicit(W).flatten(1), explicit(V).flatten(1)
    return (W - V).norm(dim=1) / V.norm(dim=1)


@given(m=st.integers(1, 6), C=sizes, r=st.integers(0, 4), seed=st.integers(0, 99), kind=st.sampled_from(BASES))
def test_change_is_the_relative_frobenius_distance(m, C, r, seed, kind):
    new, old = weights(2, m, C, min(r, m), seed, kind), weights(2, m, C, min(r, m), seed + 1, kind)
    torch.testing.assert_close(new.change(old), relative(new, old))
    shared = replace(old, U=new.U, F=new.F)
    torch.testing.assert_close(new.change(shared), relative(new, shared))


@pytest.mark.parametrize("kinds", [("identity", "random"), ("dct", "identity"), ("dct", "random")])
def test_change_between_bases(kinds):
    new, old = weights(3, 5, 2, 2, 0, kinds[0]), weights(3, 5, 2, 3, 1, kinds[1])
    torch.testing.assert_close(new.change(old), relative(new, old))


def test_change_of_nothing_is_zero_and_small_changes_are_seen():
    W = weights(2, 5, 3, 2)
    assert W.change(W).tolist() == [0.0, 0.0]
    copy = replace(W, U=W.U.clone(), M=W.M.clone())
    assert W.change(copy).tolist() == [0.0, 0.0]
    scaled = replace(W, M=W.M * (1 + 1e-10), d=W.d * (1 + 1e-10), phi=W.phi * (1 + 1e-10))
    torch.testing.assert_close(scaled.change(W), torch.full((2,), 1e-10).double(), rtol=1e-4, atol=0)


def test_take_restricts_to_blocks():
    W = weights(4, 5, 3, 2, kind="dct")
    for index in (slice(1, 3), [3, 0], torch.tensor([True, False, False, True])):
        torch.testing.assert_close(W.take(index).dense(), W.dense()[index])


def test_double_keeps_what_is_double():
    W = weights(kind="dct")
    assert W.double() is W
    assert replace(W, d=W.d.float()).double().d.dtype == torch.float64


def test_the_factors_are_computed_once():
    W = weights()
    assert W._inverse is W._inverse


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"M": torch.zeros(2, 3, 3)}, "M must be"),
        ({"d": torch.zeros(2, 4)}, "d must be"),
        ({"phi": torch.zeros(3)}, "phi must be"),
        ({"F": torch.eye(4)}, "F must be"),
        ({"joint": True, "columns": 2}, "columns dividing 5"),
    ],
)
def test_shapes_are_checked(change, message):
    with pytest.raises(ValueError, match=message):
        replace(weights(), **change)
