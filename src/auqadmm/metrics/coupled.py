"""Low-rank weights whose classes stay coupled inside the kept directions (S12), as operators.

    W_j = (U_j ⊗ I) H_j (U_j ⊗ I)ᵀ + Fᵀ diag(d_j) F ⊗ S_j + φ_j I

The Hessian of a softmax is Σ_{a<b} A_ab ⊗ (e_a − e_b)(e_a − e_b)ᵀ with A_ab = Σ_i p_a p_b x_i x_iᵀ. One Kronecker
product A ⊗ S is a poor fit of that sum, however many directions it keeps. Here H_j is the projection of the Hessian
itself, and the Kronecker form of `lowrank.py` stands for the rest.

H_j is stored by pairs of classes: H_ab = −U_jᵀA_abU_j for a ≠ b, and H_aa = Σ_b U_jᵀA_abU_j, so that rows add up to 0.

The inverse is closed form. In the bases F and Q of `lowrank.py` the rest P is separate for every class c; with
Z_c = P_c⁻¹U_j, blockdiag(U_jᵀZ_c) = G Gᵀ and H' = H_j in the basis Q,

    W_j⁻¹ = P⁻¹ − Z T Zᵀ,      T = (H'⁻¹ + G Gᵀ)⁻¹ = G⁻ᵀ (I − (I + Gᵀ H' G)⁻¹) G⁻¹,

which needs no inverse of the singular H'.

Their sum over blocks, K = Σ_j W_j, has products and approximate inverses, as in `kronecker_sum.py`:

    K x = Σ_j U_j [H_j (U_jᵀx)] + Fᵀ [row i of Fx times Q_i]_i + κx

In the eigenbasis P of the pooled curvature of classes the preconditioner keeps only what each column has by itself,
H_cj = (I ⊗ P_c)ᵀ H_j (I ⊗ P_c) of size r × r.

Shapes: B blocks, m features, C columns, r directions, P = C(C−1)/2 pairs; H (B, r·C, r·C) with directions before
classes, pairs (B, P, r, r); the rest as in `lowrank.py`. M_j is the sum of H_j over classes. Of all N blocks: R = N·r
directions; x, h, active (m, C).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from auqadmm.errors import InputError
from auqadmm.metrics import kronecker_sum, lowrank
from auqadmm.metrics.kronecker_sum import KroneckerSum
from auqadmm.metrics.lowrank import Basis, LowRank, pieces, spectrum


@dataclass(frozen=True)
class Coupled(LowRank):
    """W_j = (U_j ⊗ I) H_j (U_j ⊗ I)ᵀ + Fᵀ diag(d_j) F ⊗ S_j + φ_j I for every block of this process.

    Parameters
    ----------
    U, M, d, S, phi, F, joint, columns
        As in `LowRank`; M is H_j without coupling of classes.
    H
        Curvature of all classes together in the directions U_j, symmetric and positive semidefinite, (B, rC, rC).

    Raises
    ------
    InputError
        The shapes do not belong together; the message names the array and its shape.

    Examples
    --------
    Two classes, one direction:

    >>> import torch
    >>> import auqadmm as aq
    >>> U, M = torch.tensor([[[1.0], [0.0]]]), torch.ones(1, 1, 1)
    >>> H = torch.tensor([[[2.0, -1.0], [-1.0, 2.0]]])
    >>> W = aq.weights.Coupled(U, M, torch.zeros(1, 2), torch.eye(2)[None], torch.ones(1), H=H)
    >>> W.diagonal()[0].tolist()
    [[3.0, 3.0], [1.0, 1.0]]
    """

    H: Tensor = field(kw_only=True)
    parts: ClassVar[tuple[str, ...]] = (*LowRank.parts, "H")

    def __post_init__(self) -> None:
        super().__post_init__()
        size = self.U.shape[2] * self.S.shape[-1]
        if self.H.shape != (len(self.U), size, size):
            raise InputError(f"Coupled: H must be {(len(self.U), size, size)}, got {tuple(self.H.shape)}")

    @classmethod
    def of(cls, U: Tensor, pairs: Tensor, d: Tensor, S: Tensor, phi: Tensor, F: Basis) -> Coupled:
        """From the curvatures of pairs of classes, as blocks measure them.

        Parameters
        ----------
        U, d, S, phi, F
            As in `LowRank`.
        pairs
            U_jᵀA_abU_j for all a < b, (B, C(C−1)/2, r, r), in the order of `torch.triu_indices(C, C, 1)`.

        Returns
        -------
        Coupled
            With M and H made of them.
        """
        return cls(U, sum_over_pairs(pairs), d, S, phi, F, H=from_pairs(pairs, S.shape[-1]))

    @cached_property
    def left(self) -> LowRank:
        """The rest, outside the directions."""
        return LowRank(self.U[:, :, :0], self.M[:, :0, :0], self.d, self.S, self.phi, self.F)

    def apply(self, x: Tensor) -> Tensor:
        y = self._inside(x)
        blocks, _, C, q = y.shape
        known = (self.U.mT @ y.flatten(2)).reshape(blocks, self.H.shape[1], q)
        known = (self.H @ known).reshape(blocks, self.U.shape[2], C * q)
        return self.left.apply(x) + (self.U @ known).reshape(x.shape)

    def diagonal(self) -> Tensor:
        known = [((self.U @ H) * self.U).sum(2) for H in self.of_classes()]
        return self.left.diagonal() + torch.stack(known, 2)

    def dense(self) -> Tensor:
        (blocks, m, k), C = self.U.shape, self.S.shape[-1]
        eye = torch.eye(C, dtype=self.U.dtype, device=self.U.device)
        wide = torch.einsum("bmr,cd->bmcrd", self.U, eye).reshape(blocks, m * C, k * C)
        return self.left.dense() + wide @ self.H @ wide.mT

    def change(self, old: LowRank) -> Tensor:
        new, old = self.double(), old.double()
        assert isinstance(new, Coupled)
        assert isinstance(old, Coupled)
        square, both = inner(old, old), inner(new, old)
        return ((inner(new, new) - 2 * both + square).clamp(min=0) / square).sqrt()

    def of_classes(self) -> list[Tensor]:
        """The parts of H_j that belong to one class.

        Returns
        -------
        list of Tensor
            One (B, r, r) per class.
        """
        k, C = self.U.shape[2], self.S.shape[-1]
        by_class = self.H.reshape(len(self.H), k, C, k, C)
        return [by_class[:, :, c, :, c] for c in range(C)]

    def ready(self) -> None:
        _ = self._inverse, self.left

    def take(self, index: Tensor) -> LowRank:
        some = super().take(index)
        vars(some)["left"] = self.left.take(index)
        return some

    @cached_property
    def _inverse(self) -> Any:
        W = self.double()
        assert isinstance(W, Coupled)
        return CoupledInverse.of(W)


@dataclass(frozen=True)
class CoupledInverse:
    """W_j⁻¹ in float64: that of the rest, Z (B, C, m, r) in the bases F and Q, T (B, C·r, C·r)."""

    left: lowrank.LowRankInverse
    Z: Tensor
    T: Tensor

    @classmethod
    def of(cls, W: Coupled) -> CoupledInverse:
        (blocks, _, k), C = W.U.shape, W.S.shape[-1]
        known = lowrank.LowRankInverse.of(W.left)
        L = W.U if W.F is None else W.F @ W.U
        Z = known.inside(L[..., None].repeat(1, 1, 1, C)).permute(0, 3, 1, 2).contiguous()
        unused = torch.diag_embed((W.U == 0).all(1).to(L))  # zero padding of blocks with fewer directions
        G = torch.linalg.cholesky_ex(L[:, None].mT @ Z + unused[:, None])[0]  # (B, C, k, k)
        eye = torch.eye(k, dtype=L.dtype, device=L.device)
        back = torch.linalg.solve_triangular(G, eye.expand_as(G), upper=False)
        # classes before directions: products with G are products of small blocks
        turned = torch.einsum("bkcld,bce,bdf->befkl", W.H.reshape(blocks, k, C, k, C), known.Q, known.Q)
        inside = _between(G, turned, G).transpose(2, 3).reshape(blocks, k * C, k * C)
        whole = torch.eye(k * C, dtype=L.dtype, device=L.device)
        rest = whole - torch.cholesky_inverse(torch.linalg.cholesky_ex(whole + inside)[0])
        T = _between(back, rest.reshape(blocks, C, k, C, k).transpose(2, 3), back)
        return cls(known, Z, T.transpose(2, 3).reshape(blocks, k * C, k * C))

    def take(self, index: Tensor) -> CoupledInverse:
        return replace(self, left=self.left.take(index), Z=self.Z[index], T=self.T[index])

    def solve(self, y: Tensor) -> Tensor:
        """y (B, m, C, q)."""
        F, Q, (blocks, m, C, q) = self.left.F, self.left.Q, y.shape
        y = y.transpose(2, 3).flatten(2)
        y = y if F is None else F @ y
        y = (y.reshape(blocks, m * q, C) @ Q).reshape(blocks, m, q, C)
        known = self.Z.mT @ y.permute(0, 3, 1, 2)  # (B, C, k, q)
        known = (self.T @ known.flatten(1, 2)).reshape(known.shape)
        y = self.left.inside(y) - (self.Z @ known).permute(0, 2, 3, 1)
        y = (y.reshape(blocks, m * q, C) @ Q.mT).reshape(blocks, m, q * C)
        y = y if F is None else F.mT @ y
        return y.reshape(blocks, m, q, C).transpose(2, 3)


def _between(left: Tensor, H: Tensor, right: Tensor) -> Tensor:
    """left_aᵀ H_ab right_b for H (B, C, C, k, k) and left, right (B, C, k, k)."""
    return left.mT[:, :, None] @ H @ right[:, None]


def from_pairs(pairs: Tensor, C: int) -> Tensor:
    """H (B, k·C, k·C) from U_jᵀA_abU_j of all pairs a < b, (B, P, k, k), in the order of `pair_indices`."""
    blocks, k = len(pairs), pairs.shape[-1]
    a, b = pair_indices(C, pairs.device)
    H = pairs.new_zeros(blocks, C, C, k, k)
    H[:, a, b] = -pairs
    H[:, b, a] = -pairs
    H[:, range(C), range(C)] = -H.sum(2)
    return H.permute(0, 3, 1, 4, 2).reshape(blocks, k * C, k * C)


def sum_over_pairs(pairs: Tensor) -> Tensor:
    """M_j = U_jᵀA_jU_j, (B, r, r): a pair counts in two classes."""
    return 2 * pairs.sum(1)


def to_pairs(W: Coupled) -> Tensor:
    """U_jᵀA_abU_j of all pairs, (B, P, k, k)."""
    blocks, k, C = len(W.H), W.U.shape[2], W.S.shape[-1]
    a, b = pair_indices(C, W.H.device)
    return -W.H.reshape(blocks, k, C, k, C).permute(0, 2, 4, 1, 3)[:, a, b]


def pair_indices(C: int, device: torch.device | None = None) -> Tensor:
    """a and b of all pairs a < b, (2, P)."""
    return torch.triu_indices(C, C, 1, device=device)


# ---------------------------------------------------------------------- how far weights moved


def inner(a: Coupled, b: Coupled) -> Tensor:
    """⟨W_j, W'_j⟩; both in float64."""
    return lowrank.inner(a.left, b.left) + _low(a, b) + _against(a, b) + _against(b, a)


def _low(a: Coupled, b: Coupled) -> Tensor:
    """tr H (O ⊗ I) H' (O ⊗ I)ᵀ with the overlap O = U_jᵀU'_j."""
    overlap, C = a.U.mT @ b.U, a.S.shape[-1]
    blocks, r, s = overlap.shape
    moved = (overlap @ b.H.reshape(blocks, s, C * s * C)).reshape(blocks, r * C, s, C)
    return (a.H * (overlap[:, None] @ moved).reshape(blocks, r * C, r * C)).sum((1, 2))


def _against(a: Coupled, b: Coupled) -> Tensor:
    """The directions of a against the rest of b."""
    G = a.U if b.F is None else b.F @ a.U
    seen = G.mT @ (b.d[:, :, None] * G)
    eye = b.S.new_ones(b.S.shape[-1]).diag().expand_as(b.S)
    return (seen * _over_classes(a, b.S)).sum((1, 2)) + b.phi * ((a.U.mT @ a.U) * _over_classes(a, eye)).sum((1, 2))


def _over_classes(a: Coupled, S: Tensor) -> Tensor:
    """Σ_cd S_cd N_(·c)(·d), (B, k, k)."""
    (blocks, _, k), C = a.U.shape, S.shape[-1]
    by_class = a.H.reshape(blocks, k, C, k, C).permute(0, 1, 3, 2, 4)
    return (by_class * S[:, None, None]).sum((3, 4))


# ---------------------------------------------------------------------- K = Σ_j W_j


@dataclass(frozen=True)
class CoupledSum(KroneckerSum):
    """K of the coupled weights `parts` of all N blocks, in float64, acting on (m, C)."""

    parts: Coupled

    @cached_property
    def G(self) -> Tensor:
        """The directions themselves, (m, R)."""
        return self.parts.U.transpose(0, 1).flatten(1).contiguous()

    @cached_property
    def product(self) -> CoupledSumProduct:  # type: ignore[override]
        return CoupledSumProduct(self.left.product, self.G, self.parts.H)

    @cached_property
    def left(self) -> KroneckerSum:
        """Of the rest."""
        return KroneckerSum(self.parts.left)

    @cached_property
    def diagonal(self) -> Tensor:
        """(m, C)."""
        kept = torch.zeros_like(self.left.diagonal)
        for some in self._pieces:
            U = self.parts.U[some]
            kept += torch.stack([((U @ H[some]) * U).sum((0, 2)) for H in self.parts.of_classes()], 1)
        return self.left.diagonal + kept

    # ------------------------------------------------------------------ inverses
    def strengths(self, q: Tensor) -> Tensor:
        return self._by_column.diagonal(dim1=2, dim2=3).flatten(1)

    def halved(self, c: int, G: Tensor, weight: Tensor, keep: Tensor | None) -> tuple[Tensor, Tensor]:
        by_block = self._by_column[c]
        if keep is not None:  # from the blocks: all directions against all would be R² numbers
            j, k = keep // by_block.shape[-1], keep % by_block.shape[-1]
            by_block = torch.where(j[:, None] == j, by_block[j[:, None], k[:, None], k], 0.0)[None]
        # singular along the sum of all classes (softmax does not depend on it): no Cholesky factor
        e, E = spectrum(by_block)
        root = torch.block_diag(*(E * e.sqrt()[:, None, :]))
        return G @ root, root

    def known(self, c: int, q: Tensor) -> Tensor:
        K = self.G.new_zeros(len(self.G), len(self.G))
        for some in self._pieces:
            by_block = self.parts.U[some] @ self._by_column[c, some]
            K += by_block.transpose(0, 1).flatten(1) @ self._by_block[:, some].flatten(1).mT
        return K

    @cached_property
    def _columns(self) -> tuple[Tensor, Tensor]:
        S, d = self.parts.S, self.parts.d
        pooled = torch.einsum("jrcrd->cd", self._by_class) + torch.einsum("j,jcd->cd", d.sum(1), S)
        P = spectrum(pooled[None])[1][0]
        return P, torch.einsum("ac,jab,bc->cj", P, S, P).clamp(min=0)

    @property
    def _by_class(self) -> Tensor:
        """H_j as (N, r, C, r, C)."""
        (N, _, r), C = self.parts.U.shape, self.shape[1]
        return self.parts.H.reshape(N, r, C, r, C)

    @cached_property
    def _by_column(self) -> Tensor:
        """H_cj, (C, N, r, r)."""
        H, P = self._by_class, self._columns[0].mT
        by_column = H.new_empty(len(P), *H.shape[:2], H.shape[3])
        for some in pieces(len(H), H[0].numel()):
            for c, p in enumerate(P):
                by_column[c, some] = torch.einsum("jrasb,a,b->jrs", H[some], p, p)
        return by_column

    def _principal(self, active: Tensor) -> Tensor:
        row, column = active.nonzero().unbind(1)
        K = self.left._principal(active)
        own = torch.nn.functional.one_hot(column, self.shape[1]).to(K)
        for U, H in zip(self.parts.U, self.parts.H, strict=True):
            wide = (U[row][:, :, None] * own[:, None, :]).flatten(1)  # (a, r·C)
            K = K + wide @ H @ wide.mT
        return K


@dataclass(frozen=True)
class CoupledSumProduct:
    """x ↦ Kx, in the shape of x: G (m, R), H (N, r·C, r·C)."""

    left: kronecker_sum.KroneckerSumProduct
    G: Tensor
    H: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        y = x.reshape(len(self.G), -1)
        known = (y.mT @ self.G).mT.reshape(len(self.H), self.H.shape[1], 1)
        known = (self.H @ known).reshape(self.G.shape[1], y.shape[1])
        return self.left(x) + (known.mT @ self.G.mT).mT.reshape(x.shape)
