"""During a run: the cheap certificate after each iteration, the whole verdict where the gate says it may pass.

Is a verdict worth its cost now? The server estimates δ without communication, from the gradient at v.

    at first     the decrease by the method's own model of F (`Consensus.predicted`), or a step in the metric K of a
                 diagonal consensus step, or in the squares of the columns
    later        the Hessian of the last verdict, which near the optimum is the Hessian; where it is too large, or g
                 has kinks, the first estimate, corrected by the last verdict

An estimate decides only when a verdict is run, never its result. In case it is far off, iterations 16, 64, 256, … run
one once the run has cost as much as it will. Where g has kinks or the loss corners, or a verdict takes products
and an iteration only a gradient, and yet a duality gap costs nothing, the run waits for it as long as that is cheaper
than a verdict: at worst this doubles the cost.

Shapes: m features, C columns; v, G (m, C).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from auqadmm.core.state import Consensus
from auqadmm.core.stopping import Certificate
from auqadmm.metrics.weights import DiagonalMetric
from auqadmm.verdict.judge import Judge
from auqadmm.verdict.point import Verdict, at_rounding, relative_to

if TYPE_CHECKING:
    from auqadmm.problem.regularizers import Regularizer

# Chosen, not measured one by one; what verdicts cost with all of them as they are: results/verdict.
# A first estimate may be this far above the tolerance, or must be this far below: block models overestimate the
# decrease for squares, and underestimate it where the curvature falls on the way.
GATE_LENIENT, GATE_STRICT = 1.5, 0.15
GATE_CORNERS = 0.1  # the same later on, for losses whose curvature jumps
GATE_WARM = 100.0  # the same of a run that was started near the optimum, perhaps
GATE_FIRST = 16  # the first iteration that runs a verdict in any case
KEPT_HESSIAN = 1024  # unknowns up to which the Hessian of a verdict is kept


@dataclass(frozen=True)
class Gate:
    """What earlier verdicts showed: `asked`, the iteration of the last one; `ratio` of δ to the estimate then; how far
    a bound lies above δ; the rounding floor; the null model; the factors L, s of the Hessian, group by group; and the
    triangle of a Hessian that is the same everywhere. `rest`: consecutive iterations in which F could not fall and
    nothing could be proved; `since`: what the run had cost when a verdict was first worth its price."""

    asked: int = 0
    wrong: int = 0
    ratio: float | None = None
    inflation: float = 1.0
    floor: float = 0.0
    null: float | None = None
    factors: tuple[tuple[Tensor, Tensor], ...] = ()
    gram: Tensor | None = None
    rest: int = 0
    since: float | None = None

    def estimate(self, judge: Judge, shared: Consensus, sums: Mapping[str, Tensor]) -> float:
        """An estimate of δ at v."""
        columns = judge.columns
        assert columns is not None
        G = columns.slopes(sums["G"])
        if self.factors:
            return self._kept(judge, G, shared.v)
        estimate = shared.predicted
        if estimate is None:
            metric = shared.metric
            K = metric.k if isinstance(metric, DiagonalMetric) else columns.spread[:, None]
            estimate = _predicted_fall(judge.g, shared.v, sums["G"] if isinstance(metric, DiagonalMetric) else G, K)
        return estimate if self.ratio is None else self.ratio * estimate

    def _kept(self, judge: Judge, G: Tensor, v: Tensor) -> float:
        L, s = self.factors[0]
        slopes = (G + judge.g.convexity(v) * v).to(s)
        parts = [slopes.reshape(-1)] if L.shape[0] == v.numel() else list(slopes.mT)
        total = 0.0
        for (L, s), r in zip(self.factors, parts, strict=True):
            total += 0.5 * float(torch.linalg.solve_triangular(L, (r / s)[:, None], upper=False).square().sum())
        return total

    def opens(self, judge: Judge, k: int, estimate: float, objective: float, tol: float) -> bool:
        """Could a verdict after iteration k be "converged", or "rounding"?"""
        if not math.isfinite(objective):
            return False
        if is_due(k):
            return judge.spent >= judge.price
        if k < self.asked + 2**self.wrong and self.wrong:
            return False
        if self.ratio is None:
            assert judge.columns is not None
            factor = GATE_LENIENT if judge.loss.quadratic else GATE_STRICT
            factor = factor if judge.setup.warm is None else GATE_WARM
            return estimate <= factor * tol * abs(objective - judge.columns.infimum)
        factor = GATE_CORNERS if judge.loss.cornered else 1.0
        return self.inflation * estimate <= max(factor * tol * judge.scale(objective), self.floor)

    def after(self, judge: Judge, shared: Consensus, sums: Mapping[str, Tensor], verdict: Verdict, tol: float) -> Gate:
        """Updated with this verdict."""
        certificate = verdict.certificate
        gram = (
            judge.gram if judge.gram is not None and judge.gram.numel() <= KEPT_HESSIAN**2 else None
        )  # to be saved with a run
        new = replace(self, asked=shared.iteration, null=judge.null, floor=verdict.floor, gram=gram)
        delta = certificate.delta if math.isfinite(certificate.delta) else certificate.gap_bound
        if not math.isfinite(delta):
            return replace(new, wrong=min(self.wrong + 1, 6), ratio=self.ratio or 1.0)
        estimate = replace(self, factors=(), ratio=None).estimate(judge, shared, sums)
        ratio = delta / estimate if estimate > 0 else 1.0
        missed = self.ratio is not None and delta <= tol * certificate.scale  # small enough, and yet not converged
        factors = self.factors
        model = verdict.model
        if model is not None and judge.g.quadratic and judge.setup.unknowns <= KEPT_HESSIAN:
            factors = tuple((g.L, g.s) for g in model.groups if g.L is not None)
        wrong = min(self.wrong + 1, 6) if missed else 0
        return replace(new, ratio=ratio, inflation=verdict.inflation, factors=factors, wrong=wrong)

    def waits(self, judge: Judge, gap: float | None, by_gradients: bool) -> Gate | None:
        """With the start of the wait for a gap that costs nothing; None: no wait. `by_gradients`: an
        iteration takes one gradient, and several of these are cheaper than products with the Hessian."""
        kinks = not judge.g.quadratic or judge.loss.cornered or (by_gradients and not judge.fits_triangle)
        if gap is None or not judge.price or not kinks:
            return None
        new = self if self.since is not None else replace(self, since=judge.spent)
        return new if judge.spent - (new.since or 0.0) < judge.price else None


def is_due(k: int) -> bool:
    """Is a verdict due in any case?"""
    return k >= GATE_FIRST and k & (k - 1) == 0 and k.bit_length() % 2 == 1


def _predicted_fall(g: Regularizer, v: Tensor, G: Tensor, K: Tensor) -> float:
    """The decrease predicted by a proximal step in the diagonal metric K; g(v) may be infinite."""
    K = torch.as_tensor(K, dtype=v.dtype, device=v.device)
    x = g.prox(K * v - G, K)
    d = x - v
    fall = float(g.value(v) - g.value(x) - (G * d).sum() - 0.5 * (K * d * d).sum())
    return fall if math.isfinite(fall) else math.inf


# ---------------------------------------------------------------------- the run
MONITOR_PATIENCE = 3  # iterations without progress, before a run ends
NO_DECREASE = 1e-3  # of the tolerance: a decrease that does not count
NOTHING_TO_EXPLAIN = 1e-12  # of the loss to be explained: less than this counts as none
SEPARABLE_SHARE = 0.1  # of the objective that the next step removes, where classes are separable


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
        gone = NOTHING_TO_EXPLAIN * null if math.isfinite(null) else 0.0
        if left <= gone and shared.predicted >= SEPARABLE_SHARE * left:  # all remaining loss vanishes along the step
            return True
        least = max(float(exactly["noise"]), NO_DECREASE * self.tol * judge.scale(certificate.objective), gone)
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
