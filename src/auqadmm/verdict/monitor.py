"""During a run: the cheap certificate after each iteration, the whole verdict where the gate says it may pass.

Shapes: m features, C columns; v (m, C).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from auqadmm.core.certificate import Certificate
from auqadmm.core.state import Consensus
from auqadmm.verdict.gate import Gate, is_due
from auqadmm.verdict.judge import Judge
from auqadmm.verdict.point import at_rounding, relative_to

MONITOR_PATIENCE = 3  # iterations without progress, before a run ends
NOTHING = 1e-3  # of the tolerance: a decrease that does not count
GONE = 1e-12  # of the loss to be explained: less than this counts as none
PART = 0.1  # of the objective that the next step removes, where classes are separable


class Monitor:
    """Keeps what verdicts showed (`gate`, part of a checkpoint), the last one, and an estimate of the gap."""

    def __init__(self, judge: Judge, tol: float) -> None:
        self.judge, self.tol, self.gate = judge, tol, Gate()
        self.judged: tuple[int, Certificate] | None = None
        self.expected: float | None = None

    def resume(self, gate: Gate) -> None:
        """Resume from a checkpoint."""
        self.gate = gate
        self.judge.null, self.judge.gram = gate.null, gate.gram

    def asked(self, v: Tensor, first: bool) -> Mapping[str, Tensor]:
        """What a certificate needs, in rounds of its own: the run stops by residuals, but the method has none.
        `first`: round 0 was not counted before."""
        before = replace(self.judge.reduce.traffic)
        self.judge.begin()
        if not first:
            self.judge.reduce.traffic = before
        return self.judge.score(v)

    def verdict(self, shared: Consensus, sums: Mapping[str, Tensor], certificate: Certificate) -> Certificate:
        """The cheap certificate, or the whole verdict where the cheap one says that it may pass."""
        judge, tol = self.judge, self.tol
        gap = certificate.duality_gap
        if gap is not None and judge.null is None and gap <= tol * abs(certificate.objective):
            judge.ask_null()  # what the gap is relative to
            certificate = judge.cheap(shared.v, sums)
        estimate = self.gate.estimate(judge, shared, sums)
        self.expected = (
            relative_to(estimate, judge.scale(certificate.objective, least=False)) if math.isfinite(estimate) else None
        )
        exactly = shared.exactly
        free = exactly is not None and "H" in exactly
        opens = free or self.gate.opens(judge, shared.iteration, estimate, certificate.objective, tol)
        if opens and not free and exactly is not None and "gap" in sums:  # no better bound is available
            opens = at_rounding(float(sums["gap"]), float(exactly["noise"]), certificate.objective) or is_due(
                shared.iteration
            )
        opens = opens or (shared.still and not self.gate.rest)
        by_gradients = shared.residuals is None and not is_due(shared.iteration)
        waiting = self.gate.waits(judge, gap, by_gradients) if opens and not free else None
        if waiting is not None:
            opens, self.gate = False, waiting
        if not certificate.passes(tol) and opens:
            verdict = judge.full(shared.v, tol, certificate, exactly)
            certificate = verdict.certificate
            self.gate = self.gate.after(judge, shared, sums, verdict, tol)
            self.judged = (shared.iteration, certificate)
        else:
            self.gate = replace(self.gate, null=judge.null)
        self.gate = replace(self.gate, rest=self.gate.rest + 1 if self._rests(shared, certificate) else 0)
        return certificate

    def _rests(self, shared: Consensus, certificate: Certificate) -> bool:
        """Can F not fall, by a model with the exact curvature, and yet nothing is proved? Then columns are
        collinear, or F has no minimum."""
        if shared.still:
            return not certificate.passes(self.tol)
        exactly, judge = shared.exactly, self.judge
        if exactly is None or shared.predicted is None or certificate.evidence != "none" or judge.columns is None:
            return False
        left, null = (0.0 if x is None else x - judge.columns.infimum for x in (certificate.objective, judge.null))
        gone = GONE * null if math.isfinite(null) else 0.0
        if left <= gone and shared.predicted >= PART * left:  # all remaining loss vanishes along the step
            return True
        least = max(float(exactly["noise"]), NOTHING * self.tol * judge.scale(certificate.objective), gone)
        return bool(self.reason(certificate)) and shared.predicted <= least

    def reason(self, certificate: Certificate) -> str:
        """Why nothing is proved: now, or at the last verdict."""
        return certificate.reason or ("" if self.judged is None else self.judged[1].reason)

    def ends(self, certificate: Certificate) -> Certificate | None:
        """The certificate of a run that cannot progress, with its reason; None: it can."""
        if self.gate.rest < MONITOR_PATIENCE or certificate.passes(self.tol) or certificate.evidence == "rounding":
            return None
        return replace(certificate, reason=self.reason(certificate))

    def last(self, shared: Consensus | None, v: Tensor, whole: bool) -> Certificate:
        """The certificate of the v that a run ends with; `whole`: a whole verdict, not only the cheap certificate."""
        if self.judged is not None and shared is not None and self.judged[0] == shared.iteration:
            return self.judged[1]
        known = None if shared is None else shared.scored
        certificate = self.judge.cheap(v, self.judge.score(v) if known is None else known)
        if whole and self.tol > 0 and not certificate.passes(self.tol):
            exactly = None if shared is None else shared.exactly
            return self.judge.full(v, self.tol, certificate, exactly).certificate
        if not math.isfinite(certificate.objective):
            return replace(certificate, reason=self.judge.infinite(v))
        return certificate
