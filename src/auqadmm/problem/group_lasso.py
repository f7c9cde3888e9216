"""GroupLasso: g(v) = c Σ_g w_g‖v_g‖₂, whole groups of features enter or leave the model together.

In a metric K that varies inside a group the proximal map (S2) has no closed form; one scalar equation per group
gives it, solved for all groups at once.

Shapes: v, s, grad, w (m, C), m features (rows), C columns; K a number or broadcastable to (m, C); G groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from auqadmm.errors import InputError
from auqadmm.problem.regularizers import (
    Metric,
    Regularizer,
    check_length,
    in_brief,
    indicator,
    number,
    scale_into,
    slack,
)


@dataclass(frozen=True)
class GroupLasso(Regularizer):
    """strength·Σ_g w_g‖v_g‖₂; all C columns of the rows of a group belong to it.

    Parameters
    ----------
    strength : float
    groups : sequence of int, optional
        One label per feature; without it each feature (row) is its own group.
    weights : sequence of float, optional
        One w_g ≥ 0 per group, in sorted order of the labels; default √(number of entries of the group).

    Raises
    ------
    ValueError
        A strength or weight is no finite number ≥ 0, or groups and weights are not of the same number.

    Examples
    --------
    >>> import torch
    >>> import auqadmm as aq
    >>> g = aq.GroupLasso(1.0, groups=[0, 0, 1], weights=[1.0, 1.0])
    >>> v = torch.tensor([[3.0], [4.0], [-2.0]], dtype=torch.float64)
    >>> float(g.value(v))
    7.0
    >>> g.prox(v, torch.tensor(1.0)).flatten().tolist()
    [2.4000000000000004, 3.2, -1.0]
    """

    strength: float
    groups: Sequence[int] | None = None
    weights: Sequence[float] | None = None
    # group of each row (m,), rows sorted by group (m,), rows per group (G,); None: each row is a group
    _rows: tuple[Tensor, ...] | None = field(init=False, repr=False, compare=False, default=None)

    def __post_init__(self) -> None:
        object.__setattr__(self, "strength", number("GroupLasso: strength", self.strength))
        if self.weights is not None:
            weights = tuple(number(f"GroupLasso: weights[{i}]", w) for i, w in enumerate(self.weights))
            object.__setattr__(self, "weights", weights)
        if self.groups is None:
            return
        labels = np.asarray(self.groups)
        if labels.ndim != 1 or labels.dtype.kind not in "iu":
            got = f"{labels.dtype} of shape {labels.shape}"
            raise InputError(f"GroupLasso: groups must be integer labels, one per feature, got {got}")
        _, inverse, counts = np.unique(labels, return_inverse=True, return_counts=True)
        if self.weights is not None and len(self.weights) != len(counts):
            got = f"{len(self.weights)} for {len(counts)} groups"
            raise InputError(f"GroupLasso: weights must have one entry per group, got {got}")
        rows = inverse, np.argsort(inverse, kind="stable"), counts
        object.__setattr__(self, "groups", tuple(labels.tolist()))
        object.__setattr__(self, "_rows", tuple(torch.from_numpy(array) for array in rows))

    def __repr__(self) -> str:
        groups, weights = in_brief(self.groups), in_brief(self.weights)
        return f"{type(self).__name__}(strength={self.strength!r}, groups={groups}, weights={weights})"

    def check(self, features: int) -> None:
        check_length("GroupLasso: groups", self.groups, features)
        if self.groups is None:
            check_length("GroupLasso: weights", self.weights, features)

    def row_groups(self, features: int) -> Tensor:
        """The group of every row of v.

        Parameters
        ----------
        features
            m, rows of v; where `groups` was given, its length.

        Returns
        -------
        Tensor
            (m,), numbers 0 … G−1 in sorted order of the labels.
        """
        return torch.arange(features) if self._rows is None else self._rows[0]

    def _reduce(self, x: Tensor, how: Literal["sum", "max"] = "sum") -> Tensor:
        """(m, C) → (G,), over sorted segments: a scattered add is not reproducible on CUDA, and ranks that
        repeat the consensus step must agree to the last bit."""
        by_row = x.sum(dim=1) if how == "sum" else x.amax(dim=1)
        if self._rows is None:
            return by_row
        _, order, counts = (part.to(x.device) for part in self._rows)
        return torch.segment_reduce(by_row[order], how, lengths=counts, axis=0)

    def _spread(self, per_group: Tensor) -> Tensor:
        """(G,) → (m, 1)."""
        return (per_group if self._rows is None else per_group[self._rows[0].to(per_group.device)])[:, None]

    def _norms(self, x: Tensor) -> Tensor:
        return self._reduce(x.square()).sqrt()

    def _limits(self, v: Tensor) -> Tensor:
        """t_g = strength·w_g, shape (G,). Every method calls this first, so the shape is checked here."""
        self.check(v.shape[0])
        weights = self._reduce(torch.ones_like(v)).sqrt() if self.weights is None else v.new_tensor(self.weights)
        return self.strength * weights

    def value(self, v: Tensor) -> Tensor:
        return (self._limits(v) * self._norms(v)).sum()

    def prox(self, s: Tensor, K: Metric) -> Tensor:
        limits, norms = self._limits(s), self._norms(s)
        K = torch.as_tensor(K, dtype=s.dtype, device=s.device).expand_as(s)
        tau = self._spread(self._radius(s, K, limits, norms))
        v = s * (tau / (K * tau + self._spread(limits)))  # tau > 0 and K > 0, so no division by 0
        return torch.where(self._spread(norms > limits), v, 0.0)

    def _radius(self, s: Tensor, K: Tensor, t: Tensor, norms: Tensor) -> Tensor:
        """τ = ‖v_g‖ of the prox, shape (G,); any positive number for a group that the prox sets to 0.

        Optimality is v_i = s_i/(K_i + μ), μ = t/τ, that is n(τ) = ‖s/(Kτ + t)‖ = 1. As a power mean of affine
        functions 1/n is increasing and concave (affine if K is constant in the group), so Newton's method on
        1/n − 1 climbs to the root from the left end of the bracket (‖s‖ − t)/max K ≤ τ ≤ (‖s‖ − t)/min K.
        """
        tol = 4 * torch.finfo(s.dtype).eps
        excess = torch.where(norms > t, norms - t, 1.0)
        lo, hi = excess / self._reduce(K, "max"), excess / -self._reduce(-K, "max")
        tau = lo
        for _ in range(100):  # usually a handful; 100 bisections exhaust any bracket
            divisor = self._spread(tau) * K + self._spread(t)
            x = s / divisor
            n, slope = self._norms(x), self._reduce(x.square() * K / divisor)
            lo, hi = torch.where(n > 1, tau, lo), torch.where(n < 1, tau, hi)
            safe = torch.where(slope > 0, slope, 1.0)  # slope = 0: s = 0 in the group
            new = tau + n.square() * (n - 1) / safe
            new = torch.where((new > lo) & (new < hi), new, lo.sqrt() * hi.sqrt())  # outside: rounding
            settled = (norms <= t) | ((n - 1).abs() <= tol) | ((new - tau).abs() <= tol * tau)
            if settled.all():
                break
            tau = torch.where(settled, tau, new)
        return tau

    def subgradient(self, v: Tensor, grad: Tensor) -> Tensor:
        limits, norms, sizes = self._limits(v), self._norms(v), self._norms(grad)
        unit = v / self._spread(torch.where(norms > 0, norms, 1.0))
        left = (1 - limits / torch.where(sizes > 0, sizes, 1.0)).clamp(min=0)  # a group at 0: all of the unit ball
        return torch.where(self._spread(norms > 0), grad + self._spread(limits) * unit, grad * self._spread(left))

    def subgradient_distance(self, v: Tensor, grad: Tensor) -> Tensor:
        limits, norms = self._limits(v), self._norms(v)
        unit = v / self._spread(torch.where(norms > 0, norms, 1.0))  # a group at 0 has no direction
        at_zero = (self._norms(grad) - limits).clamp(min=0)  # there ∂‖·‖ is the whole unit ball
        return torch.where(norms > 0, self._norms(grad + self._spread(limits) * unit), at_zero).norm()

    def conjugate(self, w: Tensor) -> Tensor:
        wide = w.double()  # a float32 sum over a large group would need a slack that is no longer negligible
        return indicator(self._norms(wide) <= self._limits(wide) * slack(w, terms=w.numel()), w)

    def dual_scale(self, w: Tensor) -> float | None:
        if self.strength == 0 or (self.weights is not None and 0.0 in self.weights):
            return None  # an unpenalised group: g* is finite only where w vanishes on it
        return scale_into(self._norms(w.double()), self._limits(w.double()))

    def at_rest(self, w: Tensor, radius: Tensor) -> Tensor | None:
        # rows by themselves: the norm of a group's columns is at most the root of the sum of their squares
        far = self._reduce(radius[:, :1].square()).sqrt()
        return self._spread(self._norms(w) + far < self._limits(w)).expand_as(w)
