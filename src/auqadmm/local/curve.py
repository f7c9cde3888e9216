"""How F_j bends, as steps and changes of gradients tell it: the matrix of L-BFGS in compact form.

    s_i, y_i = ∇²F_j s_i    the last h pairs, oldest first
    H = H₀ + [S  H₀Y] ⎡ R⁻ᵀ(D + YᵀH₀Y)R⁻¹   −R⁻ᵀ ⎤ ⎡ Sᵀ  ⎤      R: s_iᵀy_j for i ≤ j,   D its diagonal
                      ⎣        −R⁻¹            0  ⎦ ⎣ YᵀH₀ ⎦      H₀: inverse of the diagonal of ∇²F_j

Products with S and Y as whole arrays, of which there are a handful, take the place of a recursion over the pairs.
Every block has its own pairs, and may skip one while others do not. An empty slot holds zeros.

Reference: R. H. Byrd, J. Nocedal, R. B. Schnabel, Math. Program. 63 (1994), theorem 2.2.

Shapes: B blocks, n = m·C unknowns, h pairs; S, Y (B, h, n), R and G = YᵀH₀Y (B, h, h), H₀ (B, n).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from auqadmm.local.base import select


@dataclass(frozen=True)
class Curve:
    """H for every block. R has ones on its diagonal where a slot is empty."""

    S: Tensor
    Y: Tensor
    R: Tensor
    G: Tensor
    H0: Tensor

    @classmethod
    def of(cls, S: Tensor, Y: Tensor, H0: Tensor) -> Curve:
        R = (S @ Y.mT).triu()
        empty = R.diagonal(dim1=1, dim2=2) == 0
        return cls(S, Y, R + torch.diag_embed(empty.to(R.dtype)), (Y * H0[:, None]) @ Y.mT, H0)

    def apply(self, g: Tensor) -> Tensor:
        """Hg, in the shape (B, m, C) of g."""
        x = g.reshape(len(self.H0), 1, -1)
        scaled = self.H0[:, None] * x
        a, b = (x @ self.S.mT).mT, (scaled @ self.Y.mT).mT
        d = self.R.diagonal(dim1=1, dim2=2)[..., None]
        q = torch.linalg.solve_triangular(self.R, a, upper=True)
        # an empty slot: q = 0, so the one on the diagonal adds nothing
        w = torch.linalg.solve_triangular(self.R.mT, d * q + self.G @ q - b, upper=False)
        Hg = scaled + w.mT @ self.S - self.H0[:, None] * (q.mT @ self.Y)
        return Hg.reshape(g.shape)

    def take(self, index: Tensor) -> Curve:
        """Of some blocks."""
        return Curve(*(x[index] for x in (self.S, self.Y, self.R, self.G, self.H0)))

    def put(self, index: Tensor, some: Curve) -> Curve:
        """With that of some blocks replaced."""
        pairs = ((self.S, some.S), (self.Y, some.Y), (self.R, some.R), (self.G, some.G), (self.H0, some.H0))
        return Curve(*(x.index_copy(0, index, y) for x, y in pairs))

    def push(self, s: Tensor, y: Tensor, keep: Tensor) -> Curve:
        """Append a pair in the blocks where `keep` holds; the oldest leaves."""
        s, y = s.flatten(1), y.flatten(1)
        S, Y = _append(self.S, s, keep), _append(self.Y, y, keep)
        Sy = (y[:, None] @ S.mT)[:, 0]
        Yy = ((self.H0 * y)[:, None] @ Y.mT)[:, 0]
        R = torch.zeros_like(self.R)
        R[:, :-1, :-1], R[:, :, -1] = self.R[:, 1:, 1:], Sy
        G = torch.empty_like(self.G)
        G[:, :-1, :-1], G[:, :, -1], G[:, -1] = self.G[:, 1:, 1:], Yy, Yy
        return Curve(S, Y, select(keep, R, self.R), select(keep, G, self.G), self.H0)


def _append(stack: Tensor, x: Tensor, keep: Tensor) -> Tensor:
    """(B, h, n) with x (B, n) as the last and without the first, where `keep` holds: one copy."""
    if bool(keep.all()):
        return torch.cat([stack[:, 1:], x[:, None]], 1)
    blocks, h, n = stack.shape
    slot = torch.arange(h, device=x.device) + keep[:, None]
    first = h * torch.arange(blocks, device=x.device)[:, None]
    out = stack.reshape(blocks * h, n).index_select(0, (first + slot.clamp(max=h - 1)).flatten()).reshape(stack.shape)
    out[:, -1] = select(keep, x, out[:, -1])
    return out
