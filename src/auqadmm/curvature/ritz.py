"""Ritz pairs: what a basis Q and the projected matrix T = QᵀHQ say about the eigenvalues of H (S7).

    T = S D Sᵀ,   V = Q S,   H ≈ V max(D, 0) Vᵀ

Shapes: B blocks, m features, C columns, n = m·C unknowns (row-major as in u), r rank.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Ritz:
    """H_j ≈ Σ_i values_i vectors_i vectors_iᵀ. Unused slots of a block are zero.

    Attributes
    ----------
    values
        (B, r), largest first, never negative.
    vectors
        (B, m, C, r), orthonormal within each block.
    steps
        (B,) number of slots in use.
    """

    values: Tensor
    vectors: Tensor
    steps: Tensor

    def diagonal(self) -> Tensor:
        """diag(V D Vᵀ), (B, m, C), without forming the n × n matrix."""
        D = self.values[:, None, None, :]
        return ((self.vectors * D) * self.vectors).sum(-1)


def ritz_pairs(Q: Tensor, T: Tensor, scale: Tensor, steps: Tensor) -> tuple[Tensor, Tensor]:
    """Values (B, r) and vectors (B, r, ·) of the leading `steps` slots of each block.

    Q (B, r, ·) has orthonormal rows, T (B, r, r) entries of size at most `scale` (B,) and bandwidth 1.
    """
    used = torch.arange(T.shape[-1], device=T.device) < steps[:, None]
    # eigh refuses a batch with one non-finite matrix; only a block that overflowed gets NaN
    finite = T.isfinite().flatten(1).all(-1)
    unit = torch.where(finite & (scale > 0), scale, 1.0)  # scale is 0 for a zero Hessian
    T = torch.where(finite[:, None, None], T / unit[:, None, None], 0.0)
    # |eigenvalues| ≤ 3 by Gershgorin: at −4 the unused slots come last and mix with no eigenvector in use
    T = T + torch.diag_embed(torch.where(used, 0.0, -4.0).to(T.dtype))
    values, S = (x.flip(-1) for x in torch.linalg.eigh(T))
    values = torch.where(used, values.clamp_min(0.0) * unit[:, None], 0.0)
    values = torch.where(finite[:, None], values, torch.nan)
    vectors = torch.where(used[:, :, None], S.mT.to(Q.dtype) @ Q, 0.0)
    return values.to(Q.dtype), vectors
