"""Standard errors of chosen coefficients, where the information H is too large to be summed as a whole.

Wanted are b_iᵀH⁻¹b_i for a few b_i. With D the diagonal of H, every round asks for the products of Â = D^(-½)HD^(-½)
with a block of directions: what is left of all b_i, and some random ones. All directions so far are a basis V, kept
orthonormal, in which the equations are solved: block Lanczos. With r_i what is left of b_i,

    b_iᵀÂ⁻¹b_i = b_iᵀx_i + r_iᵀÂ⁻¹r_i,   0 ≤ r_iᵀÂ⁻¹r_i ≤ ‖r_i‖²/λ

λ a lower bound of the eigenvalues of Â, taken as a half of the smallest one in the basis, which is never below the
true one: the stated accuracy is an estimate, not a proof.

Reference: G. H. Golub, G. Meurant, Matrices, Moments and Quadrature with Applications, 2010, chapter 5.

Shapes: m unknowns, q chosen ones, k directions; V, ÂV (m, k), b, x, r (m, q + 1): Newton's step is the last.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from auqadmm.core.reduce import B, Reduce, Sums
from auqadmm.errors import InputError
from auqadmm.inference.sums import blocks_at
from auqadmm.inference.undetermined import listed
from auqadmm.verdict.model import EPS

if TYPE_CHECKING:
    from auqadmm.blocks.shard import Shard

CG_ENOUGH = 1e-7  # of a standard error: what is aimed at
MOST_ROUNDS = 200
RANDOM = 12  # directions beside those of the columns
COLUMN_ROUNDINGS = 10.0  # of the products, times the condition number
COLUMN_SINGULAR = 1e-12  # of the largest eigenvalue
STEP_ENOUGH = 1e-3  # of Newton's step, which is only compared with a tenth of a standard error


@dataclass(frozen=True, eq=False)
class ChosenInverse:
    """Of the chosen coefficients, in the user's columns: BᵀH⁻¹B (q, q), Newton's step (q,), and bounds of the relative
    error of the roots of the diagonal (q,)."""

    which: tuple[int, ...]
    inverse: np.ndarray
    step: np.ndarray
    accuracy: np.ndarray


@dataclass(frozen=True)
class InformationProducts:
    """HP, or JP of the expected information, at v."""

    centre: Tensor | None
    v: Tensor
    expected: bool

    def __call__(self, shard: Shard, blocks: B, P: Tensor) -> tuple[B, Sums]:
        P = P.to(shard.device)
        total = torch.zeros_like(P)
        for block in blocks_at(shard, self.centre, self.v, True):
            total = total + block.products(P, self.expected)
        return blocks, {"products": total}


def chosen_inverse(
    reduce: Reduce,
    query: InformationProducts,
    D: Tensor,
    G: Tensor,
    turn: Tensor,
    which: tuple[int, ...],
    names: Sequence[str],
) -> ChosenInverse:
    """`D` (m,): the diagonal of H; `G` (m,): the gradient; `turn` (q, m): from centred to the user's columns."""
    s = D.sqrt()
    b = torch.cat([turn.mT, -G[:, None]], 1) / s[:, None]
    noise = torch.randn(len(D), RANDOM, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    V = AV = torch.zeros(len(D), 0, dtype=torch.float64)
    new = torch.cat([b, noise], 1)
    for k in range(MOST_ROUNDS):
        new = orthonormal(V, new)
        if new.shape[1] == 0:
            break
        products = reduce.judging(query, new / s[:, None], (new,))["products"].cpu() / s[:, None]
        V, AV = torch.cat([V, new], 1), torch.cat([AV, products], 1)
        T = V.mT @ AV
        e, U = torch.linalg.eigh(0.5 * (T + T.mT))
        if float(e[0]) <= COLUMN_SINGULAR * float(e[-1]):
            raise InputError(_singular(V @ U[:, 0], names))
        y = U @ ((U.mT @ (V.mT @ b)) / e[:, None])
        x, r = V @ y, b - AV @ y
        size = (b * x).sum(0)
        rest = r.square().sum(0) / (0.5 * float(e[0]))
        accuracy = 0.5 * rest / size.clamp(min=1e-300) + COLUMN_ROUNDINGS * EPS * float(e[-1] / e[0])
        if bool((accuracy[:-1] <= CG_ENOUGH).all()) and float(rest[-1]) <= STEP_ENOUGH**2 * max(1.0, float(size[-1])):
            break
        new = torch.cat([r, products[:, -RANDOM:] if k == 0 else AV[:, -RANDOM:]], 1)
    inverse = b[:, :-1].mT @ x[:, :-1]
    step = turn @ (x[:, -1] / s)
    return ChosenInverse(which, (0.5 * (inverse + inverse.mT)).numpy(), step.numpy(), accuracy[:-1].numpy())


def orthonormal(V: Tensor, new: Tensor) -> Tensor:
    """A basis of what `new` adds to the span of V; directions that add only rounding are left out."""
    new = new / torch.linalg.vector_norm(new, dim=0).clamp(min=1e-300)
    for _ in range(2):
        new = new - V @ (V.mT @ new)
    Q, R = torch.linalg.qr(new)
    for _ in range(2):
        Q = Q - V @ (V.mT @ Q)
    kept = R.diagonal().abs() > 1e-10
    return torch.linalg.qr(Q[:, kept])[0][:, : max(0, V.shape[0] - V.shape[1])]


def numbers_of(columns: object, names: tuple[str, ...]) -> tuple[int, ...]:
    """The numbers of coefficients that are given by names or numbers."""
    several = [columns] if isinstance(columns, str | int) else columns
    if not isinstance(several, Sequence | np.ndarray) or len(several) == 0:
        raise InputError(f"columns must be a list of names or numbers of coefficients, got {columns!r}.")
    found = []
    for c in several:
        if isinstance(c, str):
            if c not in names:
                shown = ", ".join(names[:6]) + (", …" if len(names) > 6 else "")
                raise InputError(f"There is no coefficient {c!r}; there are {shown}.")
            found.append(names.index(c))
        elif isinstance(c, bool) or not isinstance(c, int | np.integer) or not -len(names) <= c < len(names):
            raise InputError(f"There is no coefficient {c!r}; there are {len(names)}.")
        else:
            found.append(int(c) % len(names))
    return tuple(dict.fromkeys(found))


def _singular(direction: Tensor, names: Sequence[str]) -> str:
    size = direction.abs()
    among = (size > math.sqrt(0.1) * size.max()).nonzero()[:, 0].tolist()
    return (
        f"{listed(names, among)} cannot be told apart, or separate the outcomes: the information is singular, and "
        "there are no standard errors. Drop one of them, or add an L2 term."
    )
