"""Weights that keep a low-rank factor of the curvature (S12), as operators.

    W_j = A_j ⊗ S_j + φ_j I,    A_j = U_j M_j U_jᵀ + Fᵀ diag(d_j) F

acts on x_j (m, C) as A_j x_j S_j + φ_j x_j: U_j are the directions kept of block j, M_j their curvature, d_j
the diagonal of the rest in the orthonormal basis F, S_j the coupling of the columns (classes), φ_j > 0 the floor.

The inverse is closed form. With S_j = Q diag(σ) Qᵀ and G = F U_j M_j^½ for every column c of x_j Q

    (D_c + σ_c G Gᵀ)⁻¹ = D_c⁻¹ − σ_c D_c⁻¹ G (I + σ_c Gᵀ D_c⁻¹ G)⁻¹ Gᵀ D_c⁻¹,     D_c = σ_c d_j + φ_j

in the basis F (Woodbury). It is computed in float64 whatever the dtype of x: the difference cancels when φ_j is far
below the curvature, and a preconditioner that rounds to an indefinite matrix breaks conjugate gradients.

A loss without this Kronecker structure sets `joint`: the unknown is flattened, m·C takes the place of m, and S_j = 1.

For images F is a Kronecker product of small matrices, axis by axis: a product with a vector of m entries costs
m·(a₁ + a₂ + …) instead of m², for axes of lengths a₁·a₂·… = m (+ 1 with a last coordinate of its own).

Reference: G. H. Golub, C. F. Van Loan, Matrix Computations, 4th ed., sections 2.1.4 and 12.3.

Shapes: B blocks, m features, C columns, r directions; x is (B, m, C) or (B, m, C, k) with k right-hand sides;
U (B, m, r), M (B, r, r), d (B, m), S (B, C, C), phi (B,), F (m, m) or None for the identity.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from auqadmm.errors import InputError


# ---------------------------------------------------------------------- the basis F
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


# ---------------------------------------------------------------------- the weights
PAGED_NUMBERS = 2**22  # larger arrays are allocated page by page, anew each time
CACHED_NUMBERS = 2**18  # so many fit into a CPU cache


@dataclass(frozen=True)
class LowRank:
    """W_j = (U_j M_j U_jᵀ + Fᵀ diag(d_j) F) ⊗ S_j + φ_j I for every block of this process.

    Parameters
    ----------
    U
        Orthonormal columns; r may be 0, and unused columns of a block are zero.
    M, S
        Symmetric, positive semidefinite. C = 1: S is (B, 1, 1), ones.
    d
        ≥ 0.
    phi
        > 0.
    F
        Orthonormal, rows are the basis vectors, the same for all blocks; None is the identity.
    joint
        Act on the flattened unknown: m·C takes the place of m, S is (B, 1, 1).
    columns
        C of the unknown, where `joint`.

    Raises
    ------
    InputError
        The shapes do not belong together; the message names the array and its shape.

    Examples
    --------
    W = 4 uuᵀ + I with u the first unit vector:

    >>> import torch
    >>> import auqadmm as aq
    >>> U, one = torch.tensor([[[1.0], [0.0]]]), torch.ones(1, 1, 1)
    >>> W = aq.weights.LowRank(U, 4 * one, torch.zeros(1, 2), one, torch.ones(1))
    >>> W.dense()[0].tolist()
    [[5.0, 0.0], [0.0, 1.0]]
    """

    U: Tensor
    M: Tensor
    d: Tensor
    S: Tensor
    phi: Tensor
    F: Basis = None
    joint: bool = False
    columns: int = 1
    curved: ClassVar[bool] = True  # a model of the curvature: it preconditions local solves
    parts: ClassVar[tuple[str, ...]] = ("U", "M", "d", "S", "phi")  # arrays with one entry per block

    def __post_init__(self) -> None:
        blocks, m, r = self.U.shape
        C = self.S.shape[-1]
        expected = {"M": (blocks, r, r), "d": (blocks, m), "S": (blocks, C, C), "phi": (blocks,)}
        for name, shape in expected.items():
            if getattr(self, name).shape != shape:
                raise InputError(f"LowRank: {name} must be {shape}, got {tuple(getattr(self, name).shape)}")
        if self.F is not None and self.F.shape != (m, m):
            raise InputError(f"LowRank: F must be {(m, m)}, got {tuple(self.F.shape)}")
        if self.joint and (C != 1 or m % self.columns):
            raise InputError(f"LowRank: a joint weight needs S of 1 × 1 and columns dividing {m}, got C = {C}")

    # ------------------------------------------------------------------ the protocol of metrics/weights.py
    def apply(self, x: Tensor) -> Tensor:
        if self.S.shape[-1] == 1 and self.F is None and not x.is_cuda:
            E, G = self._simple
            rows = x.reshape(len(E), E.shape[2], -1).mT
            return torch.baddbmm(rows * E, rows @ G.mT, G).mT.reshape(x.shape)
        y = self._inside(x)
        Ay = self._model(y.flatten(2)).reshape(y.shape)
        return (_columns(Ay, self.S) + self.phi[:, None, None, None] * y).reshape(x.shape)

    def solve(self, x: Tensor) -> Tensor:
        return self._inverse.solve(self._inside(x).double()).reshape(x.shape).to(x.dtype)

    def diagonal(self) -> Tensor:
        """(B, m, C)."""
        by_row = ((self.U @ self.M) * self.U).sum(2)
        by_row = by_row + (self.d if self.F is None else self.d @ self.F.square())
        S = self.S.diagonal(dim1=1, dim2=2)
        diagonal = by_row[:, :, None] * S[:, None, :] + self.phi[:, None, None]
        return diagonal.reshape(len(self.phi), -1, self.columns) if self.joint else diagonal

    def dense(self) -> Tensor:
        """(B, n, n) with n = m·C: for direct local solves and tests only."""
        (blocks, m), C = self.d.shape, self.S.shape[-1]
        A = (self.U @ self.M @ self.U.mT).mT
        if self.F is None:
            A.diagonal(dim1=1, dim2=2).add_(self.d)
        else:
            A += self.F.mT @ (self.d[:, :, None] * dense_basis(self.F))
        A = A * self.S if C == 1 else torch.einsum("bij,bcd->bicjd", A, self.S).reshape(blocks, m * C, m * C)
        A.diagonal(dim1=1, dim2=2).add_(self.phi[:, None])
        return A

    def totals(self) -> dict[str, Tensor]:
        """Empty: K is not a sum of small arrays but built from the parts of all blocks (`LowRankMetric`)."""
        return {}

    # ------------------------------------------------------------------ more
    def ready(self) -> None:
        """Compute the factors of `solve` now: that synchronises with the host, which CUDA graphs must not."""
        _ = self._inverse.Z

    def drop_cache(self) -> None:
        """Drop the cached factors of `solve`, which can be computed again."""
        for name in ("_inverse", "_simple", "_half"):
            vars(self).pop(name, None)

    def take(self, index: Tensor) -> LowRank:
        """The weights of some blocks: a slice, a mask or positions."""
        some = replace(self, **{name: getattr(self, name)[index] for name in self.parts})
        if "_inverse" in vars(self):  # cached already
            vars(some)["_inverse"] = self._inverse.take(index)
        if "_simple" in vars(self):
            vars(some)["_simple"] = tuple(x[index] for x in self._simple)
        return some

    def double(self) -> LowRank:
        """The same weights in float64.

        Returns
        -------
        LowRank
            Itself where they are.
        """
        parts: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self)}
        wide = {name: x.double() for name, x in parts.items() if isinstance(x, Tensor | Kronecker)}
        return self if self.d.dtype == torch.float64 else replace(self, **(parts | wide))

    def change(self, old: LowRank) -> Tensor:
        """‖W − W_old‖_F / ‖W_old‖_F of every block, without forming either.

        Parameters
        ----------
        old
            Weights of the same kind and the same blocks.

        Returns
        -------
        Tensor
            (B,).
        """
        return change(self.double(), old.double())

    # ------------------------------------------------------------------ inside
    def _inside(self, x: Tensor) -> Tensor:
        """(B, m, C, k) in the operator's shape."""
        blocks, m = self.d.shape
        return x.reshape(blocks, m, self.S.shape[-1], -1)

    def _model(self, x: Tensor) -> Tensor:
        """A_j x_j, x (B, m, q)."""
        low = (x.mT @ self.U @ self.M @ self.U.mT).mT  # vectors as rows: BLAS is slower with columns
        if self.F is None:
            return low + self.d[:, :, None] * x
        return low + self.F.mT @ (self.d[:, :, None] * (self.F @ x))

    @cached_property
    def _simple(self) -> tuple[Tensor, Tensor]:
        """One column, F the identity: W_j = diag(E_j) + G_jᵀG_j with E (B, 1, m) and G (B, r, m), read once."""
        E = self.d[:, None] * self.S + self.phi[:, None, None]
        return E, (self.S.sqrt() * self._half).mT.contiguous()

    @cached_property
    def _half(self) -> Tensor:
        return half(self)

    @cached_property
    def _inverse(self) -> LowRankInverse:
        return LowRankInverse.of(self.double())


@dataclass(frozen=True)
class LowRankInverse:
    """W_j⁻¹ in float64. Q (B, C, C), sigma (B, C), D (B, m, C), G (B, m, r), T = L⁻¹ (B, C, r, r) with
    LLᵀ = I + σ_c Gᵀ D_c⁻¹ G: two products are faster than two triangular solves, on a GPU by far. One column needs
    Z = √σ T Gᵀ D⁻¹ (B, r, m) only: W_j⁻¹ = D⁻¹ − Zᵀ Z."""

    F: Basis
    Q: Tensor
    sigma: Tensor
    D: Tensor
    G: Tensor
    T: Tensor

    @cached_property
    def Z(self) -> Tensor | None:
        return self.T[:, 0] @ (self.sigma[:, :, None].sqrt() * self.G / self.D).mT if self.D.shape[2] == 1 else None

    @classmethod
    def of(cls, W: LowRank) -> LowRankInverse:
        sigma, Q = spectrum(W.S)
        G = W._half
        G = G if W.F is None else W.F @ G
        D = W.d[:, :, None] * sigma[:, None, :] + W.phi[:, None, None]
        # d = 0 with a floor φ below the rounding of the rest: lift it to that rounding, a change of W that apply()
        # does not see, instead of dividing by it
        size = sigma[:, -1] * (G.square().sum((1, 2)) + W.d.amax(1)) + W.phi
        D = torch.maximum(D, torch.finfo(D.dtype).eps * size[:, None, None])
        eye = torch.eye(G.shape[-1], dtype=G.dtype, device=G.device)
        # one column at a time: all at once would copy G as often as there are columns
        gram = [sigma[:, c, None, None] * (G.mT @ (G / D[:, :, c, None])) for c in range(sigma.shape[1])]
        L = torch.linalg.cholesky_ex(eye + torch.stack(gram, 1))[0]
        return cls(W.F, Q, sigma, D, G, torch.linalg.solve_triangular(L, eye.expand_as(L), upper=False))

    def take(self, index: Tensor) -> LowRankInverse:
        return replace(self, **{name: getattr(self, name)[index] for name in ("Q", "sigma", "D", "G", "T")})

    def solve(self, y: Tensor) -> Tensor:
        """y (B, m, C, k)."""
        F, (blocks, m, C, k) = self.F, y.shape
        if self.Z is not None:
            y = y if F is None else (F @ y.flatten(2)).reshape(y.shape)
            rows = y.flatten(2).mT
            y = torch.baddbmm(rows / self.D.mT, rows @ self.Z.mT, self.Z, alpha=-1).mT.reshape(y.shape)
            return y if F is None else (F.mT @ y.flatten(2)).reshape(y.shape)
        # columns last, k before them: then no product needs a copy; and no more of that size at a time than needed
        y = y.transpose(2, 3).flatten(2)
        y = y if F is None else F @ y
        y = self.inside((y.reshape(blocks, m * k, C) @ self.Q).reshape(blocks, m, k, C))
        y = (y.reshape(blocks, m * k, C) @ self.Q.mT).reshape(blocks, m, k * C)
        y = y if F is None else F.mT @ y
        return y.reshape(blocks, m, k, C).transpose(2, 3)

    def inside(self, y: Tensor) -> Tensor:
        """In the bases F and Q, y (B, m, k, C), which is written to."""
        (blocks, _, k, C), D = y.shape, self.D[:, :, None, :]
        y = y.div_(D)
        known = (self.G.mT @ y.flatten(2)).reshape(blocks, self.G.shape[-1], k, C).permute(0, 3, 1, 2)
        known = self.sigma[:, :, None, None] * (self.T.mT @ (self.T @ known))
        known = self.G @ known.permute(0, 2, 3, 1).flatten(2)
        return y.addcdiv_(known.reshape(y.shape), D, value=-1)


def half(W: LowRank) -> Tensor:
    """U_j M_j^½, (B, m, r): its columns times their transposes add up to U_j M_j U_jᵀ."""
    return W.U @ root(W.M)


def root(M: Tensor) -> Tensor:
    """R_j with R_j R_jᵀ = M_j, (B, n, n)."""
    e, E = spectrum(M)
    return E * e.sqrt()[:, None, :]


def pieces(blocks: int, numbers: int) -> list[slice]:
    """All blocks, a few at a time where temporaries of `numbers` entries per block would be large."""
    step = max(1, CACHED_NUMBERS // numbers if blocks * numbers > PAGED_NUMBERS else blocks)
    return [slice(first, min(first + step, blocks)) for first in range(0, blocks, step)]


def spectrum(M: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues and eigenvectors of positive semidefinite matrices (B, n, n).

    A singular matrix has eigenvalues of −ε: set to 0. A matrix that is not finite (a block that diverges) has
    NaN eigenvalues, instead of an exception that would hide which block it is.
    """
    finite = M.isfinite().all(-1).all(-1)
    e, E = torch.linalg.eigh(torch.where(finite[:, None, None], M, 0.0))
    return torch.where(finite[:, None], e.clamp(min=0), torch.nan), E


def _columns(x: Tensor, S: Tensor) -> Tensor:
    """x_j S_j for x (B, m, C, k)."""
    if S.shape[-1] == 1:
        return x * S[..., None]
    return torch.einsum("bmck,bcd->bmdk", x, S)


# ---------------------------------------------------------------------- how far weights moved


def change(new: LowRank, old: LowRank) -> Tensor:
    """‖W − W_old‖_F / ‖W_old‖_F, (B,); both in float64."""
    if _same(new.U, old.U) and _same(new.F, old.F):
        step = replace(new, M=new.M - old.M, d=new.d - old.d)
        overlap, there, back = old.U.mT @ old.U, _along(step.U, step.M, old.F), _along(old.U, old.M, old.F)
        moved, cross, kept = (
            _low(a, b, overlap) + (x * b.d + y * a.d + a.d * b.d).sum(1)
            for a, b, x, y in ((step, step, there, there), (step, old, there, back), (old, old, back, back))
        )
        trace, total = ((x + a.d).sum(1) for a, x in ((step, there), (old, back)))
    else:
        kept, both, total = _inner(old, old), _inner(new, old), _trace(old)
        cross = both - kept
        moved = _inner(new, new) - both - cross
        trace = _trace(new) - total
    dS, dphi = new.S - old.S, new.phi - old.phi
    n = old.d.shape[1] * old.S.shape[-1]
    square = moved * _frobenius(new.S, new.S) + 2 * cross * _frobenius(new.S, dS) + kept * _frobenius(dS, dS)
    square = square + 2 * dphi * (trace * _tr(new.S) + total * _tr(dS)) + n * dphi.square()
    size = kept * _frobenius(old.S, old.S) + 2 * old.phi * total * _tr(old.S) + n * old.phi.square()
    return (square.clamp(min=0) / size).sqrt()  # φ > 0, so W_old is not zero


def inner(a: LowRank, b: LowRank) -> Tensor:
    """⟨W_j, W'_j⟩, (B,); both in float64."""
    n = a.d.shape[1] * a.S.shape[-1]
    floors = a.phi * _trace(b) * _tr(b.S) + b.phi * _trace(a) * _tr(a.S) + n * a.phi * b.phi
    return _inner(a, b) * _frobenius(a.S, b.S) + floors


def _frobenius(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum((1, 2))


def _tr(a: Tensor) -> Tensor:
    return a.diagonal(dim1=1, dim2=2).sum(1)


def _trace(W: LowRank) -> Tensor:
    """tr A_j, (B,)."""
    return _frobenius(W.U @ W.M, W.U) + W.d.sum(1)


def _inner(a: LowRank, b: LowRank) -> Tensor:
    """⟨A_j, A'_j⟩, (B,)."""
    low = _low(a, b, a.U.mT @ b.U)
    there = (_along(a.U, a.M, b.F) * b.d).sum(1)
    back = there if a is b else (_along(b.U, b.M, a.F) * a.d).sum(1)
    return low + there + back + _diagonals(a, b)


def _low(a: LowRank, b: LowRank, overlap: Tensor) -> Tensor:
    """⟨U_j M_j U_jᵀ, U'_j M'_j U'_jᵀ⟩ with the overlap U_jᵀU'_j, (B,)."""
    return _frobenius(a.M @ overlap, overlap @ b.M)


def _along(U: Tensor, M: Tensor, F: Basis) -> Tensor:
    """The diagonal of F U M Uᵀ Fᵀ, (B, m)."""
    FU = U if F is None else F @ U
    return ((FU @ M) * FU).sum(2)


def _diagonals(a: LowRank, b: LowRank) -> Tensor:
    """⟨Fᵀ diag(d) F, F'ᵀ diag(d') F'⟩ = dᵀ (F F'ᵀ)∘(F F'ᵀ) d', (B,)."""
    if _same(a.F, b.F):
        return (a.d * b.d).sum(1)
    if a.F is None or b.F is None:
        turn = b.F.mT if a.F is None else a.F  # type: ignore[union-attr]  # not both are None
    else:
        turn = dense_basis(a.F) @ dense_basis(b.F).mT
    return ((a.d @ turn.square()) * b.d).sum(1)


def _same(a: Basis, b: Basis) -> bool:
    if a is b or a is None or b is None:
        return a is b
    if isinstance(a, Kronecker) or isinstance(b, Kronecker):
        return isinstance(a, Kronecker) and a.equal(b)
    return a.shape == b.shape and torch.equal(a, b)
