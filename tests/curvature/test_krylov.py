"""Block Lanczos finds the leading eigenvectors, and goes on where the operator has no more to say."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from auqadmm.curvature.lanczos import krylov


def matrices(*spectra, n=60):
    """Symmetric matrices (B, n, n) with these leading eigenvalues, in random bases."""
    rng = np.random.default_rng(0)
    out = []
    for values in spectra:
        E = np.linalg.qr(rng.normal(size=(n, len(values))))[0]
        out.append((E * values) @ E.T)
    return torch.from_numpy(np.stack(out))


def found(A, size, several=5):
    random = torch.randn(A.shape[1], size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    calls = []

    def apply(Q):
        calls.append(Q.shape[2])
        return A @ Q

    Q, T, _ = krylov(apply, random.to(A), len(A), several)
    return Q, T, calls


def test_leading_eigenvalues_come_first():
    A = matrices(2.0 ** -np.arange(60), 1.0 / np.arange(1, 61) ** 2)
    _, T, calls = found(A, 30)
    values = torch.linalg.eigvalsh(T).flip(-1)
    torch.testing.assert_close(values[:, :12], torch.linalg.eigvalsh(A).flip(-1)[:, :12], rtol=1e-3, atol=1e-12)
    assert sum(calls) == 35, "a product with the start, and one with each vector"


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("size", [3, 20, 60])
def test_the_basis_is_orthonormal_whatever_the_rank(size, dtype):
    """No curvature, one direction, fewer than a step brings, as many as there are."""
    A = matrices([0.0], [3.0], [5.0, 4.0, 1e-9], np.ones(60), np.linspace(1, 2, 60)).to(dtype)
    Q, T, _ = found(A, size)
    assert Q.shape == (5, 60, size)
    assert Q.dtype == T.dtype == dtype
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(Q.mT @ Q, torch.eye(size, dtype=dtype).expand(5, -1, -1), rtol=0, atol=100 * eps)
    torch.testing.assert_close(T, Q.mT @ A @ Q, rtol=0, atol=1000 * eps)
    assert abs(float(torch.linalg.eigvalsh(T)[2, -1]) - 5.0) < 1e3 * eps


def test_a_block_does_not_see_its_neighbours():
    A = matrices([7.0, 2.0, 1.0], 1.0 / np.arange(1, 61), np.ones(60))
    together = found(A, 20)[0]
    for j in range(3):
        torch.testing.assert_close(found(A[j : j + 1], 20)[0][0], together[j], rtol=0, atol=1e-9)


def test_a_block_that_has_seen_enough_does_not_depend_on_its_neighbours():
    A = matrices(2.0 ** -np.arange(60), 1.0 / np.arange(1, 61) ** 2)
    random = torch.randn(60, 30, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def settled(T):
        return torch.linalg.eigvalsh(T)[:, -15] < 1e-3  # the first at once, the second never

    both = krylov(lambda Q: A @ Q, random, 2, 5, settled)
    alone = krylov(lambda Q: A[:1] @ Q, random, 1, 5, settled)
    assert both[2].tolist() == [15, 30]
    assert alone[2].tolist() == [15]
    assert alone[0].shape == (1, 60, 15), "no more is looked for"
    torch.testing.assert_close(both[1][:1, :15, :15], alone[1])
    assert not both[1][0, 15:].any()
