"""Sentences that name columns without standard errors.

Shapes: m unknowns; d, squares (m,).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from auqadmm.blocks.rows import Loss
from auqadmm.errors import InputError
from auqadmm.problem.cox import Cox
from auqadmm.problem.site_intercepts import SiteIntercepts
from auqadmm.verdict.model import EPS

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
        f"{listed(names, bad)} {why}: drop {'it' if one else 'them'}; there are no standard errors with it."
    )


def listed(names: Sequence[str], which: Sequence[int] | np.ndarray) -> str:
    """Columns in words, six at most."""
    words = ["the intercept" if names[k] == "intercept" else f"column {names[k]!r}" for k in which]
    shown = words if len(words) <= 6 else [*words[:5], f"{len(words) - 5} more"]
    text = shown[0] if len(shown) == 1 else ", ".join(shown[:-1]) + f" and {shown[-1]}"
    return text[:1].upper() + text[1:]
