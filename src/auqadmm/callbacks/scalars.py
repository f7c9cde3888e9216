"""The numbers of an iteration that a tracker draws as curves."""

from __future__ import annotations

import math

from auqadmm.core.history import Row

NAMES = (
    "objective",
    "kkt",
    "primal_residual",
    "dual_residual",
    "eps_primal",
    "eps_dual",
    "rounds",
    "bytes",
    "hvps",
    "seconds",
)


def scalars(row: Row) -> dict[str, float]:
    """By name, those that are known and finite."""
    values = {name: getattr(row, name) for name in NAMES}
    found = {name: float(x) for name, x in values.items() if x is not None and math.isfinite(x)}
    return found | {"failed_blocks": float(len(row.failed_blocks))}
