"""What pairs of steps and gradient differences say of the inverse Hessian: L-BFGS, in two forms.

    s_i = u⁺ − u,  y_i = ∇F⁺ − ∇F    the last h pairs, oldest first

`Pairs`: the two-loop recursion, on top of γI, γ = ⟨s,y⟩/⟨y,y⟩, or of any other matrix.
`InverseHessian`: the compact form, on top of a model B of ∇²F_j (lbfgs.py):

    H = H₀ + [S  H₀Y] ⎡ R⁻ᵀ(D + YᵀH₀Y)R⁻¹   −R⁻ᵀ ⎤ ⎡ Sᵀ  ⎤      R: s_iᵀy_j for i ≤ j,   D its diagonal
                      ⎣        −R⁻¹            0  ⎦ ⎣ YᵀH₀ ⎦      H₀ = (τB)⁻¹

so that    q = R⁻¹Sᵀg,   r = H₀(g − Yq),   Hg = r + S R⁻ᵀ(Dq − Yᵀr)         one solve with B, none when a pair is added

τ = ⟨s, y⟩ / ⟨s, Bs⟩ of the newest pair: the model then has the curvature of F_j along the last step. Products with S
and Y as whole arrays, of which there are a handful, take the place of a recursion over the pairs.

Every block has its own pairs: a block may skip one (⟨s,y⟩ lost to rounding) while others keep theirs. A slot that
was never filled holds zeros, which both forms pass over by themselves.

Reference: J. Nocedal, S. J. Wright, Numerical Optimization, 2nd ed., algorithms 7.4 and 7.5; R. H. Byrd, J. Nocedal,
R. B. Schnabel, Math. Program. 63 (1994), theorem 2.2.

Shapes: B blocks, m features, C columns, n = m·C unknowns, h pairs; g (B, m, C); of `Pairs` S, Y (B, h, m, C);
of `InverseHessian` S, Y (B, h, n), R (B, h, h), τ (B,).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from auqadmm.local.base import over, select
from auqadmm.metrics.lowrank import LowRank
from auqadmm.metrics.weights import Diagonal, Weights, dot


@dataclass(frozen=True)
class Pairs:
    """The last pairs of every block, oldest first. S, Y (B, h, m, C), rho = 1/⟨s,y⟩ (B, h), gamma (B,)."""

    S: Tensor
    Y: Tensor
    rho: Tensor
    gamma: Tensor

    @classmethod
    def none(cls, history: int, gamma: Tensor, like: Tensor) -> Pairs:
        """No pairs yet: H = γI."""
        blocks, *shape = like.shape
        empty = like.new_zeros(blocks, history, *shape)
        return cls(empty, empty.clone(), like.new_zeros(blocks, history), gamma)

    def push(self, s: Tensor, y: Tensor, keep: Tensor) -> Pairs:
        """Append a pair in the blocks where `keep` holds; the oldest leaves."""
        sy = dot(s, y)
        return Pairs(
            _push(self.S, s, keep),
            _push(self.Y, y, keep),
            _push(self.rho, 1 / sy, keep),
            torch.where(keep, sy / dot(y, y), self.gamma),
        )

    def apply(self, g: Tensor, initial: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """Hg by the two-loop recursion; `initial` applies H₀, by default γI."""
        q, alphas = g, []
        for i in reversed(range(self.rho.shape[1])):
            alpha = over(self.rho[:, i] * dot(self.S[:, i], q), g)
            q = q - alpha * self.Y[:, i]
            alphas.append(alpha)
        q = over(self.gamma, q) * q if initial is None else initial(q)
        for i, alpha in enumerate(reversed(alphas)):
            beta = over(self.rho[:, i] * dot(self.Y[:, i], q), g)
            q = q + (alpha - beta) * self.S[:, i]
        return q


def _push(stack: Tensor, x: Tensor, keep: Tensor) -> Tensor:
    return select(keep, torch.cat([stack[:, 1:], x[:, None]], dim=1), stack)


# ---------------------------------------------------------------------- in compact form


@dataclass(frozen=True)
class InverseHessian:
    """H for every block. R has ones on its diagonal where a slot is empty."""

    S: Tensor
    Y: Tensor
    R: Tensor
    model: Weights
    tau: Tensor

    @classmethod
    def of(cls, S: Tensor, Y: Tensor, model: Weights) -> InverseHessian:
        R = (S @ Y.mT).triu()
        empty = R.diagonal(dim1=1, dim2=2) == 0
        unscaled = cls(S, Y, R + torch.diag_embed(empty.to(R.dtype)), model, torch.ones_like(R[:, 0, 0]))
        return unscaled.upon(model)

    @classmethod
    def empty(cls, like: Tensor, history: int, model: Weights) -> InverseHessian:
        """Without a pair; like: (B, m, C)."""
        S = like.new_zeros(len(like), history, like[0].numel())
        R = torch.eye(history, dtype=S.dtype, device=S.device).repeat(len(S), 1, 1)
        return cls(S, S, R, model, torch.ones_like(R[:, 0, 0]))

    def upon(self, model: Weights) -> InverseHessian:
        """The same pairs on another model."""
        shape = model.diagonal().shape
        s, y = (x[:, -1].reshape(shape) for x in (self.S, self.Y))
        return replace(self, model=model, tau=_initial_scale(s, y, model, torch.ones_like(self.tau)))

    def solve(self, g: Tensor) -> Tensor:
        """H₀g."""
        return self.model.solve(g) / over(self.tau, g)

    def apply(self, g: Tensor) -> Tensor:
        """Hg, in the shape (B, m, C) of g."""
        x = g.reshape(len(self.S), 1, -1)
        # an empty slot: q = 0, so the one on the diagonal adds nothing
        q = torch.linalg.solve_triangular(self.R, (x @ self.S.mT).mT, upper=True)
        r = self.solve((x - q.mT @ self.Y).reshape(g.shape))
        rest = self.R.diagonal(dim1=1, dim2=2)[..., None] * q - (r.reshape(x.shape) @ self.Y.mT).mT
        w = torch.linalg.solve_triangular(self.R.mT, rest, upper=False)
        return r + (w.mT @ self.S).reshape(g.shape)

    def forget(self, some: Tensor) -> InverseHessian:
        """Without the pairs of the blocks where the mask holds."""
        fresh = torch.eye(self.R.shape[1], dtype=self.R.dtype, device=self.R.device).expand_as(self.R)
        S, Y = (x.masked_fill(over(some, x), 0.0) for x in (self.S, self.Y))
        return InverseHessian(S, Y, select(some, fresh, self.R), self.model, self.tau.masked_fill(some, 1.0))

    def take(self, index: Tensor) -> InverseHessian:
        """Restricted to some blocks."""
        return InverseHessian(self.S[index], self.Y[index], self.R[index], self.model.take(index), self.tau[index])

    def put(self, index: Tensor, some: InverseHessian, renewed: bool = True) -> InverseHessian:
        """With that of some blocks replaced; their model is the same unless `renewed`."""
        pairs = ((self.S, some.S), (self.Y, some.Y), (self.R, some.R), (self.tau, some.tau))
        S, Y, R, tau = (x.index_copy(0, index, y) for x, y in pairs)
        return InverseHessian(S, Y, R, put_model(self.model, index, some.model) if renewed else self.model, tau)

    def push(self, s: Tensor, y: Tensor, keep: Tensor) -> InverseHessian:
        """Append a pair (B, m, C) in the blocks where `keep` holds; the oldest leaves."""
        tau = torch.where(keep, _initial_scale(s, y, self.model, self.tau), self.tau)
        s, y = s.flatten(1), y.flatten(1)
        S, Y = _append(self.S, s, keep), _append(self.Y, y, keep)
        R = torch.zeros_like(self.R)
        R[:, :-1, :-1], R[:, :, -1] = self.R[:, 1:, 1:], (y[:, None] @ S.mT)[:, 0]
        return InverseHessian(S, Y, select(keep, R, self.R), self.model, tau)


def put_model(model: Weights, index: Tensor, some: Weights) -> Weights:
    """With the model of some blocks replaced."""
    if isinstance(model, LowRank) and isinstance(some, LowRank):
        names = ("U", "M", "d", "S", "phi")
        return replace(
            model, **{name: getattr(model, name).index_copy(0, index, getattr(some, name)) for name in names}
        )
    return Diagonal(model.diagonal().index_copy(0, index, some.diagonal()))


def _initial_scale(s: Tensor, y: Tensor, model: Weights, other: Tensor) -> Tensor:
    """τ (B,); the `other` where a pair does not determine it."""
    tau = dot(s, y) / dot(s, model.apply(s))
    return torch.where((tau > 0) & tau.isfinite(), tau, other)


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
