"""Coefficients that rows do not determine: the shortest of all that fit equally well.

Without a penalty, and with fewer rows than columns or with collinear ones, a whole subspace of coefficients has the
same objective, and which of them a run ends with depends on its path. That subspace is the null space of the
information H at the solution.

Shapes: m unknowns, the intercept last; v (m,), H (m, m), in centred columns.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from auqadmm.core.result import Result

SHORTEST_RANK = 1e-10  # of the largest eigenvalue, in columns of information one


def shortest(result: Result) -> Result:
    """The result with the part of its coefficients that rows do not determine taken away."""
    at = result.statistics
    if at is None or at.penalised:
        return result
    m = len(at.v) - int(result.has_intercept)
    H = at.sums["H"][:m, :m]
    s = np.sqrt(np.where(np.diag(H) > 0, np.diag(H), 1.0))
    e, U = np.linalg.eigh(H / s / s[:, None])
    free = U[:, e <= SHORTEST_RANK * max(e[-1], 0.0)] / s[:, None]
    if free.shape[1] == 0:
        return result
    basis = np.linalg.qr(free / np.linalg.norm(free, axis=0))[0]
    inside = at.v.copy()
    inside[:m] -= basis @ (basis.T @ inside[:m])
    v = torch.from_numpy(at.turn @ inside)[:, None].to(result.v)
    return replace(result, v=v, statistics=replace(at, v=inside))
