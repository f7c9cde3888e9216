"""When to stop: the certificate, the residual rule, and the budgets (S3, S10).

A certificate says how far v is from optimal for the ORIGINAL problem, whatever method produced it:

    gap       F(v) − F* ≤ gap_bound, and how that is known (`verdict/`, docs/theory.md)
    relative  gap_bound over scale = min(F, max(F_null − F, 10⁻⁴F)), F less the infimum of its rows: the smaller of
              F that remains and the F that v explains
    KKT       dist(0, Σ_j ∇f_j(v) + ∂g(v)) / (‖Σ_j ∇f_j(0)‖ + Σ_j ‖∇f_j(v)‖): shown to users, decides nothing

Shapes: B blocks, m features, C columns; v, G (m, C).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from auqadmm.checks import is_number, whole_number
from auqadmm.core.state import Residuals
from auqadmm.errors import InputError

LEAST_SHOWN = 1e-16  # relative: smaller gaps are shown as this


@dataclass(frozen=True)
class Certificate:
    """What is known of v.

    Attributes
    ----------
    objective
        F(v).
    kkt
        Relative KKT residual, one Euclidean norm over all columns; NaN where it was not computed.
    duality_gap
        Absolute; None where no finite dual value is available.
    gap_bound, relative
        F(v) − F* is at most this, absolutely and over `scale`; infinite where nothing is known.
    evidence
        How that is known: "proved"; "estimated", by evaluating the step of the model; "rounding", v is as good as
        the arithmetic allows; "none".
    scale
        What `relative` is relative to; NaN where it was not computed.
    delta
        Predicted decrease of one proximal Newton step (an upper bound of it); NaN where it was not computed.
    reason
        Where the evidence is not enough: why, and what to do.
    notes
        Columns without influence: zeros in every row, or constants beside an intercept.

    Examples
    --------
    >>> import auqadmm as aq
    >>> certificate = aq.Certificate(objective=2.0, gap_bound=3e-7, relative=1e-7, evidence="proved")
    >>> certificate.words()
    'within 1.0e-7 of the optimum (proved)'
    >>> certificate.passes(1e-6), certificate.passes(1e-8)
    (True, False)
    >>> aq.Certificate(objective=2.0).words()
    'not known how far from the optimum'
    """

    objective: float
    kkt: float = math.nan
    duality_gap: float | None = None
    gap_bound: float = math.inf
    relative: float = math.inf
    evidence: str = "none"
    scale: float = math.nan
    delta: float = math.nan
    reason: str = ""
    notes: str = ""

    @property
    def gap(self) -> float | None:
        """The duality gap, under its old name."""
        return self.duality_gap

    @property
    def relative_gap(self) -> float | None:
        """`relative` where something is known, else None."""
        return self.relative if math.isfinite(self.relative) else None

    def passes(self, tol: float) -> bool:
        """A gap within `tol`, proved or estimated: the only way to be called converged.

        Parameters
        ----------
        tol
            The relative gap that is good enough.

        Returns
        -------
        bool

        Examples
        --------
        >>> import auqadmm as aq
        >>> aq.Certificate(objective=2.0, relative=1e-7, evidence="estimated").passes(1e-6)
        True
        """
        return self.evidence in ("proved", "estimated") and self.relative <= tol

    def words(self) -> str:
        """In one phrase, e.g. "within 3.1e-7 of the optimum (proved)".

        Returns
        -------
        str

        Examples
        --------
        >>> import auqadmm as aq
        >>> aq.Certificate(objective=2.0, relative=1e-7, evidence="proved").words()
        'within 1.0e-7 of the optimum (proved)'
        """
        if self.evidence in ("proved", "estimated") and self.relative >= 1:
            return f"up to {two_digits(self.relative)} times the scale above the optimum ({self.evidence})"
        if self.evidence in ("proved", "estimated"):
            return f"within {two_digits(max(self.relative, LEAST_SHOWN))} of the optimum ({self.evidence})"
        if self.evidence == "rounding":
            return "at the floor of rounding"
        return "not known how far from the optimum"


def two_digits(x: float) -> str:
    """Two digits and an exponent without zeros: 3.1e-7."""
    digits, _, power = f"{x:.1e}".partition("e")
    return f"{digits}e{int(power)}" if power else digits


# ---------------------------------------------------------------------- rules and budgets
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
