"""When to stop: the residual rule, the certificate, and the budgets (S3)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real

from auqadmm.core.state import Residuals
from auqadmm.errors import InputError

RULES = ("certificate", "residuals", "both")


@dataclass(frozen=True)
class Stopping:
    """Tolerances and budgets of a run.

    `rule`: "certificate" (a gap that is proved or estimated, the default; "both" is its old name) or "residuals" (the
    paper's). `certificate_tol` = 0: no verdict is run.
    """

    max_iter: int = 250
    abs_tol: float = 1e-4
    rel_tol: float = 1e-5
    certificate_tol: float = 1e-5
    time_limit: float | None = None
    rule: str = "certificate"

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise InputError(f"stop must be one of {', '.join(map(repr, RULES))}; got {self.rule!r}.")
        if self.rule == "both":  # both rules were requested; the gap alone is enough
            object.__setattr__(self, "rule", "certificate")
        object.__setattr__(self, "max_iter", whole_number("max_iter", self.max_iter))
        for name in ("abs_tol", "rel_tol", "certificate_tol"):
            value = getattr(self, name)
            if not (is_number(value) and math.isfinite(value) and value >= 0):
                raise InputError(f"{name} must be a finite number ≥ 0, got {value!r}.")
        if self.time_limit is not None and not (is_number(self.time_limit) and self.time_limit > 0):
            raise InputError(f"time_limit must be a positive number of seconds or None, got {self.time_limit!r}.")

    @property
    def tolerances(self) -> dict[str, float]:
        return {name: float(getattr(self, name)) for name in ("abs_tol", "rel_tol", "certificate_tol")}

    def thresholds(self, r: Residuals) -> tuple[float, float]:
        """(ε_pri, ε_dual) of S3; `r.scale` is √(N·n), or √n in the paper's reading."""
        eps_primal = r.scale * self.abs_tol + self.rel_tol * max(r.u_norm, r.v_norm)
        eps_dual = r.scale * self.abs_tol + self.rel_tol * r.lam_norm
        return eps_primal, eps_dual

    def residuals_pass(self, r: Residuals) -> bool:
        """The test of S3."""
        eps_primal, eps_dual = self.thresholds(r)
        return r.primal <= eps_primal and r.dual <= eps_dual


def is_number(value: object) -> bool:
    """A real number, not a bool."""
    return isinstance(value, Real) and not isinstance(value, bool)


def whole_number(name: str, value: float, least: int = 0) -> int:
    """`value` as an int, or one clear sentence."""
    if not is_number(value) or not math.isfinite(value) or int(value) != value or value < least:
        raise InputError(f"{name} must be a whole number ≥ {least}, got {value!r}.")
    return int(value)
