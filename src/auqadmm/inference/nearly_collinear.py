"""Standard errors where columns are nearly collinear.

With S = H/ss, s the root of the diagonal of H, and λ its smallest eigenvalue, rounding of H by ε of its entries
changes H⁻¹ by a share of about ε·m/λ: nothing that counts for λ = 10⁻⁶, but the fifth digit for λ = 10⁻¹⁰, that of two
columns whose correlation is 1 − 10⁻¹⁰. Rows tell more than their squares do. With S = LLᵀ and T = s⁻¹L⁻ᵀ

    K = Tᵀ(H T) = Σ c φ'' (Tᵀx)(Tᵀx)ᵀ ≈ 1,      H⁻¹ = T K⁻¹ Tᵀ = F Fᵀ

where H T is summed over rows, x first multiplied with T: K is right to ε/√λ. This is what QR by two Cholesky factors
does (Y. Yamamoto et al., Electron. Trans. Numer. Anal. 44, 2015); here it takes one more round.

The error of an intercept is a difference of large numbers that nearly cancel; with the factor F only their roots are.

Shapes: m unknowns in centred columns; H, K, T, F (m, m), s (m,).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from auqadmm.errors import InputError
from auqadmm.inference.undetermined import listed
from auqadmm.verdict.model import EPS, HessianGroup, QuadraticModel

WHITENED = 1e-6  # the smallest eigenvalue below which the rows are asked once more
TRUSTED = 1e-5  # of a standard error: what rounding of the sums may make up


def whitening(H: Tensor) -> Tensor | None:
    """T with TᵀHT ≈ 1 where H is nearly singular; None where it is not, or where it is singular to rounding."""
    if not bool(H.isfinite().all()) or not bool((H.diagonal() > 0).all()):
        return None
    none = torch.zeros(len(H), 1, dtype=H.dtype)
    group = QuadraticModel.of(H[None], none, none.bool()).groups[0]
    return None if group.singular or group.least > WHITENED else _root(group)


def factor(group: HessianGroup, sums: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    """F with FFᵀ the inverse of the information `name`, H or J."""
    if "white" + name not in sums:
        return _root(group).numpy()
    # K = CCᵀ
    C = np.linalg.cholesky(sums["white" + name])
    return np.linalg.solve(C, sums["T"].T).T


def refuse_untrusted(group: HessianGroup, names: Sequence[str]) -> None:
    """Refuse numbers whose digits are not known, where they come from squares of rows alone."""
    if EPS * len(names) <= TRUSTED * group.least:
        return
    weights = group.weakest().abs().numpy()
    raise InputError(
        f"{listed(names, np.flatnonzero(weights > 0.1 * weights.max()))} are nearly collinear: these standard errors "
        "would not be right to five digits. Drop one of them, or replace one by the difference."
    )


def _root(group: HessianGroup) -> Tensor:
    """s⁻¹L⁻ᵀ."""
    assert group.L is not None
    eye = torch.eye(len(group.s), dtype=torch.float64)
    return torch.linalg.solve_triangular(group.L.mT, eye, upper=True) / group.s[:, None]
