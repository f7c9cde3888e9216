"""Operator laws of weights whose classes stay coupled, against sums over pairs of explicit Kronecker products."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from auqadmm.metrics import kronecker_sum
from auqadmm.metrics.coupled import Coupled, from_pairs, pair_indices, to_pairs
from auqadmm.metrics.lowrank import LowRank
from auqadmm.metrics.vstep import LowRankMetric
from tests.core.test_lowrank import BASES, basis
from tests.core.test_lowrank import explicit as kronecker
from tests.core.vstep_cases import CASES, reference, target


def weights(B=2, m=5, C=3, r=2, seed=0, kind="identity", unused=0):
    """Random weights; the last `unused` directions of the first block are none."""
    rng = np.random.default_rng(seed)
    U = np.linalg.qr(rng.normal(size=(B, m, r)))[0] if r else np.zeros((B, m, 0))
    A = rng.normal(size=(B, C * (C - 1) // 2, r, r + 1))
    A = A @ A.swapaxes(2, 3)
    if unused:
        U[0, :, r - unused :], A[0, :, r - unused :], A[0, :, :, r - unused :] = 0, 0, 0
    S = rng.normal(size=(B, C, C))
    d, phi = rng.uniform(size=(B, m)), rng.uniform(0.1, 1.0, size=B)
    U, A, d, S, phi = (torch.from_numpy(np.ascontiguousarray(x)) for x in (U, A, d, S @ S.swapaxes(1, 2), phi))
    return Coupled.of(U, A, d, S, phi, basis(kind, m, rng))


def explicit(W):
    """The definition: Σ_{a<b} U A_ab Uᵀ ⊗ (e_a − e_b)(e_a − e_b)ᵀ and the rest, one block at a time."""
    found, pairs, C = kronecker(W.left), to_pairs(W), W.S.shape[-1]
    for j in range(len(found)):
        for i, (a, b) in enumerate(pair_indices(C).T.tolist()):
            e = torch.zeros(C, dtype=W.d.dtype)
            e[a], e[b] = 1, -1
            found[j] += torch.kron(W.U[j] @ pairs[j, i] @ W.U[j].T, torch.outer(e, e))
    return found


def check(W, seed=0, **tolerance):
    (B, m, _), C = W.U.shape, W.S.shape[-1]
    x = torch.from_numpy(np.random.default_rng(seed).normal(size=(B, m, C, 3))).to(W.d.dtype)
    dense = explicit(W)
    torch.testing.assert_close(W.dense(), dense, **tolerance)
    torch.testing.assert_close(W.apply(x), (dense @ x.reshape(B, m * C, 3)).reshape(x.shape), **tolerance)
    torch.testing.assert_close(W.apply(x[..., 1].contiguous()), W.apply(x)[..., 1], **tolerance)
    torch.testing.assert_close(W.apply(W.solve(x)), x, **tolerance)
    torch.testing.assert_close(W.solve(x)[..., 0], W.solve(x[..., 0].contiguous()), **tolerance)
    torch.testing.assert_close(W.diagonal().flatten(1), dense.diagonal(dim1=1, dim2=2), **tolerance)


sizes = st.integers(1, 4)


@given(B=sizes, m=st.integers(1, 6), C=sizes, r=st.integers(0, 6), seed=st.integers(0, 99), kind=st.sampled_from(BASES))
def test_operator_laws(B, m, C, r, seed, kind):
    check(weights(B, m, C, min(r, m), seed, kind), seed)


@pytest.mark.parametrize("unused", [1, 2, 3])
def test_columns_that_a_block_does_without_are_zero(unused):
    check(weights(2, 6, 3, 3, unused=unused))


def test_pairs_there_and_back():
    W = weights(3, 6, 4, 3)
    torch.testing.assert_close(from_pairs(to_pairs(W), 4), W.H)
    ones = torch.ones(4, dtype=torch.float64).repeat(3)  # the same for all classes: a softmax does not see it
    torch.testing.assert_close(W.H @ ones, torch.zeros_like(W.H[..., 0]), atol=1e-12, rtol=0)


@pytest.mark.parametrize("condition", [1e4, 1e8, 1e10])
def test_the_inverse_stays_positive_far_above_the_floor(condition):
    W = weights(2, 30, 3, 6)
    W = replace(W, H=condition * W.H, d=torch.zeros_like(W.d), phi=torch.full_like(W.phi, 1e-2))
    x = torch.from_numpy(np.random.default_rng(1).normal(size=(2, 30, 3)))
    x = x + 10 * W.U @ torch.ones(2, 6, 3, dtype=torch.float64)
    y = W.solve(x)
    assert ((x * y).flatten(1).sum(1) > 0).all()
    K = explicit(W)
    dense = torch.linalg.solve(K, x.flatten(1)[..., None])
    left = (K @ y.flatten(1)[..., None])[..., 0] - x.flatten(1)
    assert left.abs().max() <= 20 * (K @ dense - x.flatten(1)[..., None]).abs().max()


def test_a_floor_below_rounding_is_not_divided_by():
    W = weights(2, 6, 3, 2)
    W = replace(W, d=torch.zeros_like(W.d), phi=torch.full_like(W.phi, 1e-300))
    y = W.solve(torch.ones(2, 6, 3, dtype=torch.float64))
    assert y.isfinite().all()


def test_single_precision_keeps_its_dtype():
    W = weights(2, 6, 3, 2)
    single = replace(W, **{name: getattr(W, name).float() for name in W.parts})
    x = torch.ones(2, 6, 3)
    assert single.apply(x).dtype == single.solve(x).dtype == torch.float32
    torch.testing.assert_close(single.solve(x).double(), W.solve(x.double()), rtol=1e-4, atol=1e-5)


@given(C=sizes, r=st.integers(0, 4), seed=st.integers(0, 99), kinds=st.tuples(*[st.sampled_from(BASES)] * 2))
def test_change_is_the_relative_frobenius_distance(C, r, seed, kinds):
    new, old = weights(2, 5, C, r, seed, kinds[0]), weights(2, 5, C, max(r - 1, 0), seed + 1, kinds[1])
    there, back = explicit(new).flatten(1), explicit(old).flatten(1)
    torch.testing.assert_close(new.change(old), (there - back).norm(dim=1) / back.norm(dim=1))
    assert new.change(new).tolist() == [0.0, 0.0]


def test_take_restricts_to_blocks():
    W = weights(4, 5, 3, 2, kind="dct")
    W.ready()
    x = torch.ones(4, 5, 3, dtype=torch.float64)
    for index in (slice(1, 3), [3, 0], torch.tensor([True, False, False, True])):
        torch.testing.assert_close(W.take(index).dense(), W.dense()[index])
        torch.testing.assert_close(W.take(index).solve(x[index]), W.solve(x)[index])


def test_with_kronecker_products_inside_it_is_the_weight_of_before():
    W = weights(2, 7, 3, 2)
    H = torch.einsum("bij,bcd->bicjd", W.M, W.S).reshape(2, 6, 6)
    torch.testing.assert_close(replace(W, H=H).dense(), LowRank(W.U, W.M, W.d, W.S, W.phi).dense())


def test_shapes_are_checked():
    with pytest.raises(ValueError, match="H must be"):
        replace(weights(), H=torch.zeros(2, 2, 2))


# ---------------------------------------------------------------------- the consensus step
PATHS = {
    "cholesky": {},
    "woodbury": {"K_PER_COLUMN": 0},
    "many active": {"K_ACTIVE": 0},
    "weak factor": {"K_PER_COLUMN": 0, "K_ACTIVE": 0, "K_FACTORS": 27},
}


@pytest.mark.parametrize("kind", ["identity", "dct"])
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", ["l2", "ridge", "l1", "elastic net", "box", "nonnegative", "group lasso", "free l2"])
@pytest.mark.thin(3)
def test_the_consensus_step_finds_what_a_plain_solver_finds(name, path, kind, monkeypatch):
    for option, value in PATHS[path].items():
        monkeypatch.setattr(kronecker_sum, option, value)
    g, prox = CASES[name]
    W = weights(3, 8, 3, 3, kind=kind)
    W = replace(W, H=30 * W.H)
    metric, K = LowRankMetric(W), explicit(W).sum(0)
    s = target(metric, 8, 3)
    torch.testing.assert_close(metric.apply(s).flatten(), K @ s.flatten())
    torch.testing.assert_close(metric.diagonal().flatten(), K.diagonal())
    found = metric.solve(g, s, tol=1e-10 * float(s.norm()))
    expected = reference(K.numpy(), s.numpy(), prox)
    assert found.residual <= 1e-10 * float(s.norm())
    np.testing.assert_allclose(found.v, expected, atol=1e-7 * max(1.0, np.abs(expected).max()))
