"""A matrix that is a Kronecker product of small ones, used like a tensor: the basis of an image, axis by axis.

A product with a vector of m entries costs m·(a₁ + a₂ + …) instead of m², for axes of lengths a₁·a₂·… = m.

Shapes: m = a₁·a₂·… (+ 1 with a last coordinate of its own); x (…, m, q).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Kronecker:
    """factors[0] ⊗ factors[1] ⊗ …, square matrices; `extra`: one more coordinate, left unchanged (an intercept)."""

    factors: tuple[Tensor, ...]
    extra: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        m = int(self.extra)
        m += torch.Size(len(f) for f in self.factors).numel()
        return m, m

    @property
    def mT(self) -> Kronecker:
        return self._each(lambda f: f.mT)

    def square(self) -> Kronecker:
        """Entry by entry: the square of a product is the product of squares."""
        return self._each(Tensor.square)

    def to(self, like: Tensor | torch.device | torch.dtype) -> Kronecker:
        return self._each(lambda f: f.to(like))

    def double(self) -> Kronecker:
        return self._each(Tensor.double)

    def dense(self) -> Tensor:
        """(m, m)."""
        return self @ torch.eye(self.shape[0], dtype=self.factors[0].dtype, device=self.factors[0].device)

    def __matmul__(self, x: Tensor) -> Tensor:
        m = self.shape[0] - int(self.extra)
        y = x[..., :m, :]
        lead, q = y.shape[:-2], y.shape[-1]
        before, after = 1, m
        for f in self.factors:
            after //= len(f)
            y = f @ y.reshape(*lead, before, len(f), after * q)
            before *= len(f)
        y = y.reshape(*lead, m, q)
        return torch.cat([y, x[..., m:, :]], -2) if self.extra else y

    def __rmatmul__(self, x: Tensor) -> Tensor:
        """x F for x (k, m)."""
        return (self.mT @ x.mT).mT

    def equal(self, other: object) -> bool:
        if not isinstance(other, Kronecker) or self.extra != other.extra or len(self.factors) != len(other.factors):
            return False
        return all(a is b or torch.equal(a, b) for a, b in zip(self.factors, other.factors, strict=True))

    def _each(self, change: Callable[[Tensor], Tensor]) -> Kronecker:
        return Kronecker(tuple(change(f) for f in self.factors), self.extra)


Basis = Tensor | Kronecker | None


def dense_basis(F: Tensor | Kronecker) -> Tensor:
    return F.dense() if isinstance(F, Kronecker) else F
