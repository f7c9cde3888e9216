"""A point whose Hessians are given matrices: the oracle of every estimator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor


@dataclass
class DensePoint:
    """H (B, n, n) with n = m·C; counts the products it is asked for."""

    H: Tensor
    columns: int = 1
    calls: list[int] = field(default_factory=list)

    @property
    def u(self) -> Tensor:
        B, n, _ = self.H.shape
        return self.H.new_zeros(B, n // self.columns, self.columns)

    def hvp(self, P: Tensor) -> Tensor:
        self.calls.append(P.shape[3] if P.ndim == 4 else 1)
        B, n, _ = self.H.shape
        return (self.H @ P.reshape(B, n, self.calls[-1])).reshape(P.shape)

    def hessian_diagonal(self) -> Tensor:
        return self.H.diagonal(dim1=1, dim2=2).reshape(self.u.shape)


@pytest.fixture(scope="session")
def dense_point() -> type[DensePoint]:
    return DensePoint


@pytest.fixture(scope="session")
def random_hessian() -> Callable[..., Tensor]:
    """(B, n, n) with the given eigenvalues (B, n) or (n,) in a random basis."""

    def build(eigenvalues: Tensor, blocks: int = 1, seed: int = 0) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        n = eigenvalues.shape[-1]
        gaussian = torch.randn(blocks, n, n, generator=generator, dtype=torch.float64)
        Q = torch.linalg.qr(gaussian).Q
        H = (Q * eigenvalues.expand(blocks, n)[:, None, :]) @ Q.mT
        return (H + H.mT) / 2

    return build
