"""The precision of each block's posterior as a low-rank weight: the W_j of `auq-lr` (S12).

    W_j = (U_j M_j U_jᵀ + Fᵀ diag(d_j) F) ⊗ S_j + φ_j I
    w_i = tr S_i,  S_i the C×C curvature of row i at v      S_j = Σ|x_i|²S_i / Σ|x_i|²w_i       A_j = Σ w_i x_ix_iᵀ
    M_j = U_jᵀA_jU_j       d_j = max(0, diag F(A_j − U_jM_jU_jᵀ)Fᵀ)       φ_j = l2/N + floor·(mean diagonal)

In scaled columns (columns.py) l2 is one number per feature: φ_j has the least of them, d_j the rest.

U_j is the leading right singular basis of block j's rows, found by block Lanczos (`krylov`) and kept. Only products
with X_j are used; nothing of size m×m is formed. A loss without rows (CustomLoss) gets the same from Hessian-vector
products on the flattened unknown: U_j from the Hessian itself, d_j by Hutchinson's estimate of the rest.

How many directions: given, or chosen per block (`affordable`), since each costs m numbers once and
saves rounds of m·C numbers. With eigenvalues σ_1 ≥ σ_2 ≥ … of the rows, the largest that W_j misses after r of
them is σ_{r+1} against the mean of the rest, and rounds grow with the root of a condition number:

    rounds(r) ≈ 2 + 2.5√q_r,    q_r = σ_{r+1} / (Σ_{k>r} σ_k/m + Cφ_j)   r minimises  m·r + rounds(r)·(m·C + round_cost)

Reference: N. Halko, P. G. Martinsson, J. A. Tropp, Finding structure with randomness, 2011.

Shapes: B blocks, N in all, R flat rows, m features, C columns, r directions; U (B, m, r), M (B, r, r), d (B, m).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.fft
import torch
from torch import Tensor

from auqadmm.blocks.curvature import RowModel, SoftmaxCurvature
from auqadmm.blocks.rows import RowLoss
from auqadmm.blocks.single_precision import linearize_single
from auqadmm.core.reduce import B, Sums
from auqadmm.core.state import ROUND_COST
from auqadmm.curvature.base import draw
from auqadmm.curvature.lanczos import krylov
from auqadmm.metrics.coupled import Coupled, pair_indices
from auqadmm.metrics.lowrank import Kronecker, LowRank, spectrum
from auqadmm.metrics.weights import sum_blocks

if TYPE_CHECKING:
    from auqadmm.blocks.design import Design
    from auqadmm.blocks.loss import Point
    from auqadmm.blocks.shard import Shard

# A block's directions are at most this share of its rows: more would reveal the rows. Without it the same rounds
# (results/ablation: share-1).
DIRECTION_SHARE = 0.25
# Directions are found so many at a time, or in so many steps of block Lanczos: all at a time takes 0.96 of the products
# and 0.99 of the rounds (results/ablation: lanczos-one-step).
LANCZOS_BLOCK, LANCZOS_STEPS = 8, 4
# The search ends when it has found so many times the directions that pay, and one step more. Chosen, not measured.
SEARCH_MARGIN = 1.5
# φ_j, of the mean curvature, at least: W_j must not be singular; without it rounds × 0.99 (results/ablation: no-floor)
PHI_FLOOR = 1e-5
PROBES = 16  # random vectors for the diagonal of a loss without rows (Hutchinson); chosen, not measured
# The model of rounds, fitted to runs with 5 to 100 directions.
LEAST_ROUNDS, ROUNDS_SLOPE = 2.0, 2.5
CONTEST_MARGIN = 1e-3  # by which a basis must win, per coordinate
FAR_FROM_PRIOR = 100.0  # times the prior: curvature beyond which the prior does not limit the logits


@dataclass(frozen=True)
class Posterior:
    """How W_j is made: at most `rank` directions per block, `l2` the curvature of g, `blocks` N, `seed` of the start.

    `choose`: every block takes as many directions as pay for themselves. `image`: the rest is
    taken as diagonal in the cosines of an image of this shape; None: in the features themselves. `coupled`: classes
    that interact stay coupled inside the directions (metrics/coupled.py). `round_cost`: what a round costs beside
    its numbers, in numbers. `first`: the share of the curvature that the first weights take, where it will fall.
    """

    rank: int
    l2: float
    blocks: int
    seed: int = 0
    choose: bool = False
    image: tuple[int, ...] | None = None
    intercept: bool = False
    coupled: bool = False
    round_cost: float = ROUND_COST
    first: float = 1.0

    def basis(self, like: Tensor) -> Kronecker | None:
        """F of S12."""
        return None if self.image is None else cosine_basis(self.image, self.intercept).to(like)

    def directions(self, shard: Shard, v: Tensor) -> Tensor:
        """U_j (B, m, r), or (B, m·C, r) for a loss without rows.

        Of unweighted rows: at v = 0 their curvature is the same for all, or, for a hinge, still zero.
        """
        as_they_are = isinstance(shard.loss, RowLoss)
        point: Any = None if as_they_are else linearize_single(shard, shard.expand(v))
        rows = torch.tensor([shard.census.rows[j] for j in shard.index], device=shard.device)
        if as_they_are or has_rows(point):
            design = shard.design
            c = shard.row_weight
            size = shard.shape[1]
            total = self._total(shard, c)

            def apply(Q: Tensor) -> Tensor:
                return design.adjoint(c[:, None] * design.forward(Q, shard.single_precision), shard.single_precision)
        else:
            B, m, C = shard.shape
            size = m * C
            total = size * mean_diagonal(shard, v)

            def apply(Q: Tensor) -> Tensor:
                return point.hvp(Q.reshape(B, m, C, -1)).reshape(B, size, -1)

        rank = min(self.rank, size)
        if rank == 0:
            return shard.row_weight.new_zeros(shard.blocks, size, 0)
        # two steps more than are kept: the last directions found have not converged
        several = max(LANCZOS_BLOCK, -(-rank // LANCZOS_STEPS))
        # one start for all blocks: placement does not matter, and equal data get equal weights
        random = draw((size, min(rank + 2 * several, size)), "gaussian", self.seed, shard.row_weight)
        affordable = partial(self._affordable, total, size, math.prod(shard.shape[1:]))

        def settled(T: Tensor) -> Tensor:
            """Which blocks have found far more directions than they would keep."""
            sigma, k = _eigenvalues(T), T.shape[-1]
            return SEARCH_MARGIN * affordable(sigma, torch.full_like(rows, min(rank, k - several))) + several <= k

        # the whole space, if within reach, may be worth it: no rest then
        early = settled if self.choose and random.shape[1] < size else None
        Q, T, used = krylov(apply, random, shard.blocks, several, early)
        sigma, E = (x.flip(-1) for x in spectrum(T))
        most = torch.ceil(DIRECTION_SHARE * rows)
        if self.choose:
            limit = torch.where(used < random.shape[1], used - several, rank).clamp(max=rank)
            most = torch.minimum(most, affordable(sigma, limit))
        Q = Q @ E[:, :, : min(rank, int(most.max()))]
        allowed = torch.arange(Q.shape[2], device=shard.device)[None] < most[:, None]
        return Q * allowed[:, None, :]

    def _affordable(self, total: Tensor, size: int, payload: int, sigma: Tensor, limit: Tensor) -> Tensor:
        """How many directions each block should send, (B,), at most `limit` (B,).

        `total` is the trace of A, `payload` the numbers of a round, `sigma` are eigenvalues of A, largest first.
        """
        sigma, total = sigma.double(), total.double()
        left = (total[:, None] - sigma.cumsum(1) + sigma).clamp(min=0)  # after 0, 1, … directions
        floor = (self.l2 / self.blocks + PHI_FLOOR * total / size) * (payload / size)
        q = sigma / (left / size + floor[:, None]).clamp(min=torch.finfo(torch.float64).tiny)
        q = torch.nn.functional.pad(q, (0, 1))  # no rest after all directions
        r = torch.arange(q.shape[1], device=q.device)
        rounds = LEAST_ROUNDS + ROUNDS_SLOPE * q.clamp(min=1).sqrt()
        cost = r * (size + (r + 1) / 2) + rounds * (payload + self.round_cost)
        return torch.where(r <= limit[:, None], cost, torch.inf).argmin(1)

    def weights(self, shard: Shard, v: Tensor, U: Tensor, old: LowRank | None, typical: float) -> LowRank:
        """W_j at v. `old` weights smooth the curvature by the uncertainty they express; `typical` is the mean
        diagonal over all blocks, the floor of a block that has no rows of its own."""
        point = linearize_single(shard, shard.expand(v))
        model = self._rows(shard, point, old)
        if model is None:
            return self._joint(shard, point, U, typical)
        _, m, C = shard.shape
        M, d, F = self._parts(shard, U, model.trace)
        share = None if old is not None or self.first == 1.0 else self._share(model.energy / (m * C))
        if share is not None:
            M, d = share[:, None, None] * M, share[:, None] * d
        # a block whose rows have no curvature left (or no rows) couples no columns
        energy = model.energy[:, None, None]
        eye = torch.eye(C, dtype=d.dtype, device=d.device) / C
        S = torch.where(energy > 0, model.S / torch.where(energy > 0, energy, 1.0), eye)
        phi = self._floor(model.energy / (m * C), typical)
        d = d + self._more_prior(shard, d)
        if self.coupled and isinstance(model.rows, SoftmaxCurvature):
            pairs = self._pairs(shard, U, model.rows)
            pairs = pairs if share is None else share[:, None, None, None] * pairs
            return sound(Coupled.of(U, pairs, d, S, phi, F))
        return sound(LowRank(U, M, d, S, phi, F))

    def _share(self, mean_diagonal: Tensor) -> Tensor:
        """Of the curvature at zero (B,): `first`, and more where the prior keeps logits small."""
        prior = self.l2 / self.blocks
        if prior == 0:
            return torch.full_like(mean_diagonal, self.first)
        above = (mean_diagonal / prior).clamp(1.0, FAR_FROM_PRIOR).log() / math.log(FAR_FROM_PRIOR)
        return self.first**above

    def _more_prior(self, shard: Shard, d: Tensor) -> Tensor | float:
        """The prior of single features beyond `l2`, (m,); tr S_j = 1, so C times it."""
        if shard.frame is None:
            return 0.0
        return shard.shape[2] * (shard.frame.prior.to(d) - self.l2).clamp(min=0) / self.blocks

    def unexplained(self, shard: Shard, v: Tensor, U: Tensor) -> Tensor:
        """Σ_j log det(diag d_j + φ_j) of unweighted rows: the smaller, the less U and F leave unexplained."""
        c, (_, m, C) = shard.row_weight, shard.shape
        if U.shape[1] != m:  # a loss without rows: no basis to choose
            return c.new_zeros(())
        _, d, _ = self._parts(shard, U, c)
        total = self._total(shard, c)
        phi = C * self._floor(total / (m * C), 0.0)
        return sum_blocks((d + phi[:, None]).log().sum(1))

    def _rows(self, shard: Shard, point: Point, old: LowRank | None) -> RowModel | None:
        """The curvature row by row, smoothed by the uncertainty that old weights express; None: it is not known."""
        variance = None
        if not getattr(shard.loss, "expects", False):
            return point.row_model(None)
        if old is None and self.l2 > 0 and shard.frame is None:  # the prior's: |x_i|²/l2
            variance = shard.design.squares(shard.row_weight) / self.l2
        elif old is None and self.l2 > 0 and shard.frame is not None:
            prior = shard.frame.prior.to(shard.row_weight).clamp(min=self.l2)
            variance = shard.design.forward_squared((1 / prior).expand(shard.shape[:2]))
        elif old is not None and not old.joint:
            variance = row_variance(shard, old) / self.blocks
        return point.row_model(variance)

    def _pairs(self, shard: Shard, U: Tensor, rows: SoftmaxCurvature) -> Tensor:
        """U_jᵀA_abU_j of all pairs of classes, (B, P, r, r)."""
        XU, pairs = shard.design.along(U, shard.single_precision), pair_indices(shard.shape[2]).mT.tolist()
        grams = torch.stack([_gram(shard.design, U, XU, rows.pair(a, b)) for a, b in pairs], 1)
        return 0.5 * (grams + grams.mT)

    def _parts(self, shard: Shard, U: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Kronecker | None]:
        """M_j and d_j of A_j = Σ w_i x_ix_iᵀ, w (R,), and the basis of d_j."""
        design, F = shard.design, self.basis(U)
        M = _gram(design, U, design.along(U, shard.single_precision), w)
        turned = U if F is None else F @ U
        total = design.adjoint_squared_in(F, w, shard.single_precision)
        d = (total - ((turned @ M) * turned).sum(-1)).clamp(min=0)
        return 0.5 * (M + M.mT), d, F

    def _total(self, shard: Shard, w: Tensor) -> Tensor:
        """tr A_j, (B,)."""
        return shard.design.sum_rows(w * shard.design.squares(w))

    def _joint(self, shard: Shard, point: Point, U: Tensor, typical: float) -> LowRank:
        B, m, C = shard.shape
        HU = point.hvp(U.reshape(B, m, C, -1)).reshape(B, m * C, -1) if U.shape[2] else U
        M = U.mT @ HU
        # Hutchinson on what U leaves over, (H − UMUᵀ)z ∘ z
        Z = draw((1, m * C, PROBES), "rademacher", self.seed, U).expand(B, -1, -1)
        HZ = point.hvp(Z.reshape(B, m, C, -1)).reshape(B, m * C, -1)
        left = HZ - U @ (M @ (U.mT @ Z))
        d = (left * Z).mean(-1).clamp(min=0)
        energy = M.diagonal(dim1=1, dim2=2).sum(1) + d.sum(1)
        phi = self._floor(energy / (m * C), typical)
        ones = torch.ones(B, 1, 1, dtype=d.dtype, device=d.device)
        return sound(LowRank(U, 0.5 * (M + M.mT), d, ones, phi, joint=True, columns=C))

    def _floor(self, mean_diagonal: Tensor, typical: float) -> Tensor:
        own = torch.clamp(mean_diagonal, min=typical)
        # no curvature anywhere and no l2: any positive number will do
        floor = self.l2 / self.blocks + PHI_FLOOR * own
        return torch.where(floor > 0, floor, torch.ones_like(floor))


def _eigenvalues(T: Tensor) -> Tensor:
    """Of positive semidefinite matrices (B, k, k), largest first, zeros where they are not finite; by the host, since a
    GPU takes longer for small ones."""
    on_host = T.cpu()
    sound = on_host.isfinite().flatten(1).all(1)[:, None, None]
    return torch.linalg.eigvalsh(torch.where(sound, on_host, 0.0)).flip(-1).clamp(min=0).to(T)


def _gram(design: Design, U: Tensor, XU: Tensor, w: Tensor) -> Tensor:
    """UᵀXᵀ diag(w) XU of every block, (B, r, r), from XU (R, r): for dense blocks X is not read again."""
    XwU = w[:, None] * XU
    return design.inner(XwU, XU) if design.dense else U.mT @ design.adjoint(XwU)


def sound(W: LowRank) -> LowRank:
    """Weights of 1 for a block whose curvature overflows: its local solve will report that, and name the block."""
    parts = [getattr(W, name) for name in W.parts]
    good = torch.stack([x.isfinite().reshape(len(W.phi), -1).all(1) for x in parts]).all(0)
    if bool(good.all()):
        return W
    eye = torch.eye(W.S.shape[1], dtype=W.S.dtype, device=W.S.device) / W.S.shape[1]

    def pick(x: Tensor, other: Tensor | float) -> Tensor:
        return torch.where(good.reshape(-1, *([1] * (x.ndim - 1))), x, other)

    other: dict[str, Tensor | float] = {"S": eye, "phi": 1.0}
    better: dict[str, Any] = {name: pick(getattr(W, name), other.get(name, 0.0)) for name in W.parts}
    return replace(W, **better)


def has_rows(point: Point) -> bool:
    """Is the Hessian known row by row?"""
    return point.row_model(None) is not None


def mean_diagonal(shard: Shard, v: Tensor) -> Tensor:
    """The mean of diag ∇²f_j over entries, (B,)."""
    point = shard.linearize(shard.expand(v))
    B, m, C = shard.shape
    model = point.row_model(None)
    if model is not None:
        return model.energy / (m * C)
    Z = draw((1, m, C, PROBES), "rademacher", 0, shard.row_weight).expand(B, m, C, -1)
    return (point.hvp(Z) * Z).mean((1, 2, 3)).clamp(min=0)


def typical_curvature(shard: Shard, blocks: B, v: Tensor) -> tuple[B, Sums]:
    """Σ_j of the mean diagonals, a map over blocks."""
    return blocks, {"mean": sum_blocks(mean_diagonal(shard, v))}


def second_wins(unexplained: Tensor, coordinates: int) -> bool:
    """Does the second of two ways to make weights leave clearly less unexplained, of N·m coordinates?"""
    return float(unexplained[1]) < float(unexplained[0]) - CONTEST_MARGIN * coordinates


def row_variance(shard: Shard, W: LowRank) -> Tensor:
    """x_iᵀW_j⁻¹x_i of every row (R,), C = 1: how uncertain its logit is by the previous weights.

    For C > 1 the plain curvature serves (a softmax has no spike), and the variance is not needed.
    """
    if W.S.shape[1] > 1:
        return torch.zeros_like(shard.row_weight)
    # in another basis than the features' its diagonal stands for the rest
    left = W.d if W.F is None else W.d @ W.F.square()
    D = left * W.S[:, 0] + W.phi[:, None]
    e, E = torch.linalg.eigh(W.M)
    G = W.U @ (E * (e.clamp(min=0) * W.S[:, 0]).sqrt()[:, None, :])
    inner = G.mT @ (G / D[..., None]) + torch.eye(G.shape[2], dtype=G.dtype, device=G.device)
    R = torch.linalg.cholesky(inner)
    Q = torch.linalg.solve_triangular(R, (G / D[..., None]).mT, upper=False).mT
    spread = shard.design.forward_squared(1 / D)
    return (spread - shard.design.forward(Q).square().sum(1)).clamp(min=0)


def cosine_basis(shape: tuple[int, ...], intercept: bool) -> Kronecker:
    """F, rows are the basis vectors, for images of `shape` (height, width) or (channels, height, width)."""
    axes = tuple(torch.from_numpy(scipy.fft.dct(np.eye(length), axis=0, norm="ortho")) for length in shape)
    return Kronecker(axes, intercept)
