"""The weights W_j as operators, and their sum K = Σ_j W_j (S2).

Methods choose W_j; all other code only applies it, solves with it or adds it up. A weight is positive definite.
The sum over blocks is formed by adding `totals()` over all blocks; a `Metric` is made of the sums.

Shapes: B blocks, m features, C columns; x is (B, m, C) or (B, m, C, k) with k right-hand sides.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor


def sum_blocks(x: Tensor) -> Tensor:
    """Sum over the leading axis as a balanced tree of elementwise additions, in float64.

    The order depends on B alone, never on the trailing shape, so that one number per block and n equal numbers
    per block add up to the same bits (UQ with a = b is C-ADMM exactly).

    Parameters
    ----------
    x
        (B, …); B may be 0.

    Returns
    -------
    Tensor
        (…), float64.

    Examples
    --------
    >>> import torch
    >>> import auqadmm as aq
    >>> aq.weights.sum_blocks(torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])).tolist()
    [9.0, 12.0]
    """
    x = x.double()
    if x.shape[0] == 0:
        return x.new_zeros(x.shape[1:])
    while x.shape[0] > 1:
        even = x.shape[0] // 2 * 2
        pairs = x[0:even:2] + x[1:even:2]
        x = pairs if even == x.shape[0] else torch.cat([pairs, x[even:]])
    return x[0]


def sum_squares(x: Tensor) -> Tensor:
    """Σ_j ‖x_j‖² of one array per block, (B, …), in float64."""
    return sum_blocks(x.flatten(1).double().square().sum(1))


def dot(x: Tensor, y: Tensor) -> Tensor:
    """⟨x_j, y_j⟩ per block, (B,)."""
    return (x * y).flatten(1).sum(1)


class Proximal(Protocol):
    """A g given by its proximal map: argmin_v g(v) + ½⟨v, Kv⟩ − ⟨s, v⟩ for a diagonal K, (m, C)."""

    def prox(self, s: Tensor, K: Tensor) -> Tensor: ...


class Penalty(Proximal, Protocol):
    """g as v-steps and models of F use it: a regularizer, or its restriction to some unknowns."""

    @property
    def separable(self) -> bool: ...
    @property
    def quadratic(self) -> bool: ...
    def value(self, v: Tensor) -> Tensor: ...
    def fall(self, v: Tensor, there: Tensor) -> tuple[Tensor, Tensor]: ...
    def subgradient(self, v: Tensor, grad: Tensor) -> Tensor | None: ...


class Metric(Protocol):
    """K = Σ_j W_j, replicated: what the v-step needs of all weights together."""

    def apply(self, v: Tensor) -> Tensor:
        """K v.

        Parameters
        ----------
        v
            (m, C).

        Returns
        -------
        Tensor
            (m, C).
        """
        ...

    def prox(self, regularizer: Penalty, s: Tensor) -> Tensor:
        """The v-step: argmin_v g(v) + ½⟨v, Kv⟩ − ⟨s, v⟩.

        Parameters
        ----------
        regularizer
            g.
        s
            (m, C).

        Returns
        -------
        Tensor
            v, (m, C).
        """
        ...


class Weights(Protocol):
    """W_j for every block of this process."""

    def apply(self, x: Tensor) -> Tensor:
        """W_j x_j.

        Parameters
        ----------
        x
            (B, m, C), or (B, m, C, k) with k right-hand sides.

        Returns
        -------
        Tensor
            Like x.
        """
        ...

    def solve(self, x: Tensor) -> Tensor:
        """W_j⁻¹ x_j.

        Parameters
        ----------
        x
            (B, m, C) or (B, m, C, k).

        Returns
        -------
        Tensor
            Like x.
        """
        ...

    def diagonal(self) -> Tensor:
        """The diagonals of all W_j.

        Returns
        -------
        Tensor
            (B, m, C).
        """
        ...

    def dense(self) -> Tensor:
        """All W_j as matrices: for direct local solves and tests only.

        Returns
        -------
        Tensor
            (B, n, n) with n = m·C.
        """
        ...

    def totals(self) -> dict[str, Tensor]:
        """What a `Metric` is made of: summands over the blocks of this process.

        Returns
        -------
        summands
            By name, "K" for diagonal weights; their sums over all processes reach `ConsensusADMM.metric`.
        """
        ...

    def take(self, index: Tensor) -> Weights:
        """The weights of some blocks.

        Parameters
        ----------
        index
            Numbers of blocks of this process.

        Returns
        -------
        Weights
            Of the same kind.
        """
        ...


@dataclass(frozen=True)
class DiagonalMetric:
    """K with k on the diagonal.

    Parameters
    ----------
    k
        A scalar, or (m, C); positive.

    Examples
    --------
    >>> import torch
    >>> import auqadmm as aq
    >>> K = aq.weights.DiagonalMetric(torch.tensor(2.0))
    >>> K.prox(aq.L1(1.0), torch.tensor([[3.0], [0.5]])).flatten().tolist()
    [1.0, 0.0]
    """

    k: Tensor

    def apply(self, v: Tensor) -> Tensor:
        return self.k * v

    def prox(self, regularizer: Penalty, s: Tensor) -> Tensor:
        return regularizer.prox(s, self.k)


@dataclass(frozen=True)
class Scalar:
    """W_j = ρ_j I for every block of this process.

    Parameters
    ----------
    rho
        ρ_j > 0, (B,).
    features, columns
        m and C of the unknown.

    Examples
    --------
    >>> import torch
    >>> import auqadmm as aq
    >>> W = aq.weights.Scalar(torch.tensor([2.0, 3.0]), features=2, columns=1)
    >>> W.apply(torch.ones(2, 2, 1)).flatten().tolist()
    [2.0, 2.0, 3.0, 3.0]
    """

    rho: Tensor
    features: int
    columns: int

    def apply(self, x: Tensor) -> Tensor:
        return _over(self.rho, x) * x

    def solve(self, x: Tensor) -> Tensor:
        return x / _over(self.rho, x)

    def diagonal(self) -> Tensor:
        return self.rho[:, None, None].expand(-1, self.features, self.columns)

    def dense(self) -> Tensor:
        """(B, n, n) with n = m·C: for direct local solves and tests only."""
        return torch.diag_embed(self.diagonal().flatten(1))

    def totals(self) -> dict[str, Tensor]:
        return {"K": sum_blocks(self.rho)}

    def take(self, index: Tensor) -> Scalar:
        return replace(self, rho=self.rho[index])


@dataclass(frozen=True)
class Diagonal:
    """W_j = diag(d_j) for every block of this process.

    Parameters
    ----------
    d
        The diagonals, > 0, (B, m, C).

    Examples
    --------
    >>> import torch
    >>> import auqadmm as aq
    >>> W = aq.weights.Diagonal(torch.tensor([[[2.0], [4.0]]]))
    >>> W.solve(torch.ones(1, 2, 1)).flatten().tolist()
    [0.5, 0.25]
    """

    d: Tensor

    def apply(self, x: Tensor) -> Tensor:
        return _over(self.d, x) * x

    def solve(self, x: Tensor) -> Tensor:
        return x / _over(self.d, x)

    def diagonal(self) -> Tensor:
        return self.d

    def dense(self) -> Tensor:
        """(B, n, n) with n = m·C: for direct local solves and tests only."""
        return torch.diag_embed(self.d.flatten(1))

    def totals(self) -> dict[str, Tensor]:
        return {"K": sum_blocks(self.d)}

    def take(self, index: Tensor) -> Diagonal:
        return Diagonal(self.d[index])


def equal(a: Weights, b: Weights) -> bool:
    """Are these the same diagonal weights? Compares values: a resumed run has other objects."""
    if not isinstance(a, Scalar | Diagonal) or not isinstance(b, Scalar | Diagonal):
        return False
    return a is b or torch.equal(a.diagonal(), b.diagonal())


def _over(w: Tensor, x: Tensor) -> Tensor:
    """Append axes until w multiplies x entry by entry."""
    return w.reshape(*w.shape, *([1] * (x.ndim - w.ndim)))


def prox_and_slope(g: Proximal, y: Tensor, D: Tensor) -> tuple[Tensor, Tensor]:
    """prox(y, D) of a separable g and its derivative, entry by entry."""
    known = getattr(g, "prox_slope", None)  # user-defined g may have none
    if known is not None and (slope := known(y, D)) is not None:
        return g.prox(y, D), slope
    with torch.enable_grad():
        y = y.detach().requires_grad_(True)
        value = g.prox(y, D)
        # each entry of the sum depends on its own y alone, so the gradient is the derivative entry by entry
        slope = torch.autograd.grad(value.sum(), y)[0] if value.requires_grad else torch.zeros_like(y)
    return value.detach(), slope
