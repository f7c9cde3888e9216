"""What rows do not determine: sentences that name columns without standard errors; the shortest of all
coefficients that fit equally well.

Without a penalty, and with fewer rows than columns or with collinear ones, a whole subspace of coefficients has the
same objective, and which of them a run ends with depends on its path. That subspace is the null space of the
information H at the solution.

Shapes: m unknowns, the intercept last; v, d, squares (m,), H (m, m), in centred columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from auqadmm.blocks.loss import Loss
from auqadmm.errors import InputError
from auqadmm.problem.cox import Cox
from auqadmm.problem.made_of_losses import SiteIntercepts
from auqadmm.verdict.model import EPS, SINGULAR

if TYPE_CHECKING:
    from auqadmm.core.result import Result

CONSTANT_ROUNDINGS = 64.0  # times ε: what centring leaves of a column that is constant


def refuse_idle(loss: Loss, names: Sequence[str], d: np.ndarray, squares: np.ndarray) -> None:
    """Refuse columns about which there is no information: d its diagonal in centred columns, `squares` the one without
    centring."""
    bad = np.flatnonzero(d <= (CONSTANT_ROUNDINGS * EPS) ** 2 * squares)
    if bad.size == 0:
        return
    constant = squares[bad] > 0
    one = len(bad) == 1
    if not constant.any():
        why = "is zero in every row that has influence" if one else "are zero in every row that has influence"
    elif isinstance(loss, Cox):
        why = f"{'does' if one else 'do'} not vary among the rows at risk at any event"
    elif isinstance(loss, SiteIntercepts):
        why = f"{'does' if one else 'do'} not vary within any site, and so cannot be told from the site intercepts"
    else:
        why = f"{'is' if one else 'are'} constant, and so cannot be told from the intercept"
    raise InputError(
        f"{listed(names, bad)} {why}: drop {'it' if one else 'them'}; there are no standard errors with "
        f"{'it' if one else 'them'}."
    )


def listed(names: Sequence[str], which: Sequence[int] | np.ndarray) -> str:
    """Columns in words, six at most."""
    words = ["the intercept" if names[k] == "intercept" else f"column {names[k]!r}" for k in which]
    shown = words if len(words) <= 6 else [*words[:5], f"{len(words) - 5} more"]
    text = shown[0] if len(shown) == 1 else ", ".join(shown[:-1]) + f" and {shown[-1]}"
    return text[:1].upper() + text[1:]


def shortest(result: Result) -> Result:
    """The result with the part of its coefficients that rows do not determine taken away."""
    at = result.statistics
    if at is None or at.penalised:
        return result
    m = len(at.v) - int(result.has_intercept)
    H = at.sums["H"][:m, :m]
    s = np.sqrt(np.where(np.diag(H) > 0, np.diag(H), 1.0))
    e, U = np.linalg.eigh(H / s / s[:, None])
    free = U[:, e <= SINGULAR * EPS * m] / s[:, None]
    if free.shape[1] == 0:
        return result
    basis = np.linalg.qr(free / np.linalg.norm(free, axis=0))[0]
    inside = at.v.copy()
    inside[:m] -= basis @ (basis.T @ inside[:m])
    v = torch.from_numpy(at.turn @ inside)[:, None].to(result.v)
    return replace(result, v=v, statistics=replace(at, v=inside))
