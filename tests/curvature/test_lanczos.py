"""Lanczos against dense eigenvalues and against a textbook twin; rank and layout (S7)."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from auqadmm.curvature import Lanczos
from auqadmm.curvature.base import draw

F64 = torch.float64


def twin(H: np.ndarray, rank: int, q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """One block, as in the textbook: Ritz values (largest first) and the diagonal of V max(D, 0) Vᵀ."""
    basis = [q / np.linalg.norm(q)]
    while len(basis) < min(rank, len(q)):
        w = H @ basis[-1]
        for _ in range(2):
            for p in basis:
                w = w - p * (p @ w)
        if np.linalg.norm(w) <= 1e-12 * np.linalg.norm(H, 2):
            break
        basis.append(w / np.linalg.norm(w))
    Q = np.stack(basis, 1)
    values, S = np.linalg.eigh(Q.T @ H @ Q)
    dense = (Q @ S) @ np.diag(values.clip(0)) @ (Q @ S).T
    return values[::-1].clip(0), np.diag(dense)


def dense_of(V: Tensor, values: Tensor) -> Tensor:
    V = V.flatten(1, 2)
    return (V * values[:, None, :]) @ V.mT


def test_full_rank_is_the_eigendecomposition(dense_point, random_hessian):
    H = random_hessian(torch.linspace(0.5, 9.0, 12, dtype=F64), blocks=3)
    point = dense_point(H, columns=3)
    ritz = Lanczos(rank=12).decompose(point)
    torch.testing.assert_close(ritz.values, torch.linalg.eigvalsh(H).flip(-1), rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(dense_of(ritz.vectors, ritz.values), H, rtol=0, atol=1e-11)
    torch.testing.assert_close(ritz.diagonal(), point.hessian_diagonal(), rtol=1e-11, atol=1e-11)
    assert ritz.steps.tolist() == [12, 12, 12]


def test_extreme_ritz_values_converge(dense_point, random_hessian):
    H = random_hessian(100.0 * 0.8 ** torch.arange(80, dtype=F64), blocks=4)
    values = Lanczos(rank=20).decompose(dense_point(H)).values
    top = torch.linalg.eigvalsh(H).flip(-1)
    torch.testing.assert_close(values[:, :3], top[:, :3], rtol=1e-9, atol=0)
    assert (values <= top[:, :1] * (1 + 1e-12)).all()
    assert (values.diff(dim=-1) <= 0).all()


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    n=st.integers(1, 14),
    rank=st.integers(1, 16),
    hessian_rank=st.integers(0, 14),
    seed=st.integers(0, 2**16),
    start=st.sampled_from(["gaussian", "rademacher"]),
)
def test_dense_twin(dense_point, n, rank, hessian_rank, seed, start):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((min(n, hessian_rank), n))
    H = X.T @ X
    estimator = Lanczos(rank=rank, seed=seed, start=start)
    ritz = estimator.decompose(dense_point(torch.from_numpy(H)[None]))
    q = draw((n, 1), start, seed, like=torch.zeros((), dtype=F64)).numpy().ravel()
    values, diagonal = twin(H, rank, q)
    got = ritz.values[0].numpy()
    size = 1e-9 * max(1.0, np.linalg.norm(H))
    assert got.shape == (min(rank, n),)
    np.testing.assert_allclose(got[: len(values)], values, rtol=0, atol=size)
    np.testing.assert_allclose(got[len(values) :], 0.0, atol=size)
    np.testing.assert_allclose(ritz.diagonal()[0].numpy().ravel(), diagonal, rtol=0, atol=size)


def test_layout_is_row_major_as_in_u(dense_point):
    entries = torch.arange(1.0, 13.0, dtype=F64).reshape(4, 3)  # (m, C), all different
    point = dense_point(torch.diag(entries.flatten())[None], columns=3)
    ritz = Lanczos(rank=12).decompose(point)
    torch.testing.assert_close(ritz.diagonal()[0], entries, rtol=1e-10, atol=0)
    assert ritz.vectors.shape == (1, 4, 3, 12)
    where = ritz.vectors[0, :, :, 0].abs().flatten().argmax().item()
    assert where == 11  # the top Ritz vector sits on the last row and column


def test_rank_one_is_the_rayleigh_quotient(dense_point, random_hessian):
    H = random_hessian(torch.linspace(1.0, 2.0, 6, dtype=F64), blocks=2)
    ritz = Lanczos(rank=1).decompose(dense_point(H))
    q = draw((6, 1), "gaussian", 0, like=H)[:, 0]
    q = q / q.norm()
    torch.testing.assert_close(ritz.values[:, 0], torch.einsum("i,bij,j->b", q, H, q))
    torch.testing.assert_close(ritz.diagonal()[:, :, 0], ritz.values * q.square())


def test_rank_above_n_is_n(dense_point, random_hessian):
    point = dense_point(random_hessian(torch.tensor([1.0, 2.0, 5.0], dtype=F64)))
    estimate = Lanczos(rank=50).diagonal(point)
    assert estimate.hvps == len(point.calls) == 3
    torch.testing.assert_close(estimate.diagonal, point.hessian_diagonal(), rtol=1e-12, atol=1e-12)


def test_basis_stays_orthonormal_when_ill_conditioned(dense_point, random_hessian):
    H = random_hessian(torch.logspace(6, -6, 100, dtype=F64), blocks=2)
    ritz = Lanczos(rank=90).decompose(dense_point(H))
    V = ritz.vectors.flatten(1, 2)
    for b, used in enumerate(ritz.steps.tolist()):
        assert used > 40  # the plain three-term recurrence would have lost orthogonality long before
        eye = torch.eye(used, dtype=F64)
        torch.testing.assert_close(V[b, :, :used].mT @ V[b, :, :used], eye, rtol=0, atol=1e-12)
