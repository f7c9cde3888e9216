"""What an estimator of curvature is given, and what it returns (S7).

Given: a point u with products by the Hessians H_j = ∇²f_j(u_j). Returned: an estimate of every diag(H_j).
Random vectors are drawn once for all blocks, on the CPU and in float64: the estimate of a block then depends
on its own data alone, not on the machine, the device or the other blocks.

Shapes: B blocks, m features, C columns, n = m·C unknowns, k right-hand sides.
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral
from typing import Protocol

import torch
from torch import Tensor

from auqadmm.errors import InputError

DISTRIBUTIONS = ("gaussian", "rademacher")


class HessianPoint(Protocol):
    """The part of a linearised shard that curvature needs; `problem.losses.Point` has it."""

    @property
    def u(self) -> Tensor: ...

    def hvp(self, P: Tensor, /) -> Tensor:
        """H_j P_j for P (B, m, C) or (B, m, C, k)."""
        ...

    def hessian_diagonal(self) -> Tensor: ...


@dataclass(frozen=True)
class Estimate:
    """An estimate of the diagonals of the Hessians.

    Attributes
    ----------
    diagonal
        (B, m, C), never negative: f_j is convex.
    hvps
        Hessian-vector products spent on each block.
    """

    diagonal: Tensor
    hvps: int


class Curvature(Protocol):
    """Anything that estimates diag(H_j) of every block of this process."""

    def diagonal(self, point: HessianPoint) -> Estimate: ...


def draw(shape: tuple[int, ...], distribution: str, seed: int, like: Tensor) -> Tensor:
    """Seeded random numbers in the dtype and on the device of `like`; the same numbers on every device."""
    generator = torch.Generator(device="cpu").manual_seed(int(seed))
    if distribution == "gaussian":
        x = torch.randn(shape, generator=generator, dtype=torch.float64)
    else:
        x = 2.0 * torch.randint(0, 2, shape, generator=generator).double() - 1.0
    return x.to(device=like.device, dtype=like.dtype)


def check_integer(name: str, value: object, least: int | None = None) -> None:
    """Refuse a parameter that is not an integer, or is below `least`."""
    ok = isinstance(value, Integral) and not isinstance(value, bool)
    if not ok or (least is not None and int(value) < least):  # type: ignore[call-overload]
        bound = "" if least is None else f" of at least {least}"
        raise InputError(f"{name} must be an integer{bound}, got {value!r}.")
