"""Why a run did not converge, as findings: a code, a sentence with numbers, and one setting to try next.

Every rule reads the run's evidence (`evidence.py`) and history, and reports only where values are far
from those of a healthy run. Findings come in the order in which to act on them.

Shapes: N blocks, m features, C columns; distance (N,), weights (N, m, C), scales (m,).
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from auqadmm.core.state import Status
from auqadmm.diagnosis.evidence import SCALED, UNEVEN, Finding, Trend, columns, recent, trend, unbounded
from auqadmm.metrics.weights import sum_blocks

if TYPE_CHECKING:
    from auqadmm.core.result import Result
    from auqadmm.diagnosis.evidence import Evidence
    from auqadmm.problem import Problem

# Thresholds; healthy runs of all methods stay below them (tests/test_diagnose.py).
IMBALANCE = 300.0  # relative primal over relative dual residual, or the reverse, median of the later half
TYPICAL = 30.0  # of that: usual for a penalty within a factor of ten of a good one
OUTLYING = 0.7  # share of Σ‖u_j − v‖² that one block has; since the others balance it, 1 − 1/N is the most
ALONE = 4.0  # and how many times farther out it is than the median block: N − 1 where only one is out
AT_ONE_END = 0.95  # share of the weights that lie at one end of the interval
EDGE = 0.02  # as a share of the interval's length
FAILING = 0.1  # share of the later iterations in which a local solve missed its tolerance
RISE = 10.0  # residual at the end, over its least value
LONGEST_FORECAST = 20.0  # forecasts beyond this multiple of the run so far are not given


@dataclass(frozen=True)
class Diagnosis:
    """All findings, the first to act on first; `str()` of it is a text to read.

    Attributes
    ----------
    findings
        What stands out; `code in diagnosis` and `for finding in diagnosis` use them.
    summary
        One sentence on the whole.

    Examples
    --------
    >>> import auqadmm as aq
    >>> found = aq.Diagnosis((aq.Finding("budget", "iterations ran out", "max_iter=500"),), "Not converged.")
    >>> print(found)
    Not converged.
    - budget: iterations ran out
      try: max_iter=500
    >>> "budget" in found, len(found)
    (True, 1)
    """

    findings: tuple[Finding, ...]
    summary: str

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings)

    def __len__(self) -> int:
        return len(self.findings)

    def __contains__(self, code: object) -> bool:
        return any(finding.code == code for finding in self.findings)

    def __str__(self) -> str:
        return "\n".join([self.summary, *(f"- {finding}" for finding in self.findings)])


def diagnose(result: Result, problem: Problem | None = None) -> Diagnosis:
    """What stands out in a run; with its problem also in the data."""
    if result.status in (Status.converged, Status.rounding):
        return Diagnosis(
            (), f"{str(result.status).capitalize()} after {result.n_iter} iterations: nothing to diagnose."
        )
    if result.evidence is None:
        return Diagnosis((), f"Nothing is known of this run but its message: {result.message}")
    findings = [rule(result, result.evidence) for rule in CAUSES]
    if (
        problem is not None
        and not result.evidence.framed
        and not any(f is not None and f.code == "uneven-features" for f in findings)
    ):
        findings.insert(0, _uneven(_scales(problem)))
    if not any(
        finding is not None and finding.code == "diverged" for finding in findings
    ):  # then other findings mean little
        findings += [rule(result, result.evidence) for rule in CHOICES]
    if not any(findings):  # report a budget only where nothing else is wrong
        findings = [_budget(result, result.evidence)]
    kept = tuple(finding for finding in findings if finding is not None)
    ended = f"{result.method} ended after {result.n_iter} iterations ({result.status})"
    if not kept:
        more = "" if problem is not None else "; result.diagnose(problem) looks at the data too"
        return Diagnosis((), f"{ended}: nothing stands out{more}.")
    return Diagnosis(kept, f"{ended}; {len(kept)} thing{'s' * (len(kept) != 1)} to look at, the first one first:")


# ---------------------------------------------------------------------- the problem
def _diverged(result: Result, evidence: Evidence) -> Finding | None:
    """NaN or infinity, or residuals that climb: those of ADMM on a convex problem never do for long."""
    if result.status is Status.diverged:
        single = evidence.precision > 1e-12
        setting = 'dtype="float64"' if single else "features divided by their standard deviations"
        return Finding("diverged", f"the numbers left the range of the machine: {result.message}", setting)
    rows = result.history.rows
    known = [x for row in rows if (x := row.kkt if row.primal_residual is None else row.primal_residual) is not None]
    later = known[len(known) // 2 :]
    if len(known) < 10 or not known[-1] > RISE * min(known) or not all(b >= a for a, b in pairwise(later)):
        return None
    name, rho = "KKT" if rows[-1].primal_residual is None else "primal", getattr(evidence.method, "rho", None)
    return Finding(
        "diverged",
        f"the {name} residual grows: {known[-1]:.1e} at the end, {min(known):.1e} at its best. Is the loss convex?",
        'method="c-admm"' if rho is None else f"method=methods.{type(evidence.method).__name__}(rho={10 * rho:g})",
    )


def _uneven(scales: Tensor) -> Finding | None:
    filled = scales[scales > 0]
    if len(filled) < 2:
        return None
    low, high = float(filled.min()), float(filled.max())
    if not high > UNEVEN * low:
        return None
    a, b = int(torch.where(scales > 0, scales, math.inf).argmin()), int(scales.argmax())
    return Finding(
        "uneven-features",
        f"feature {b} is {high / low:.1e} times as large as feature {a} (root mean squares {high:.2g} and {low:.2g}).",
        SCALED,
    )


def _scales(problem: Problem) -> Tensor:
    """Root mean square of every feature over all rows of this process (m,), without the intercept's column."""
    placed = problem.placed()
    shard = placed.shard(torch.float64, torch.device("cpu"))
    counts = (shard.row_weight > 0).double()
    squares = sum_blocks(shard.design.adjoint_squared(counts[:, None])[..., 0])
    scales = (squares / counts.sum().clamp(min=1)).sqrt()
    return scales[:-1] if placed.intercept else scales


# ---------------------------------------------------------------------- the settings
def _inner(result: Result, evidence: Evidence) -> Finding | None:
    rows = result.history.rows[len(result.history) // 2 :]
    bad = [row for row in rows if row.failed_blocks]
    if len(bad) < max(2, FAILING * len(rows)):
        return None
    worst, times = Counter(name for row in bad for name in row.failed_blocks).most_common(1)[0]
    bound = getattr(evidence.method, "products", None)
    within = "" if bound is None else f" ({bound} Hessian products were not enough)"
    return Finding(
        "inner-inaccurate",
        f"local solves missed their tolerance in {len(bad)} of the last {len(rows)} iterations, those of {worst!r} in "
        f"{times}{within}.",
        _more_inner(evidence.solver, bound),
    )


def _more_inner(solver: object, bound: int | None) -> str:
    if bound is not None:  # more products save no rounds there
        return 'method="auto"'
    name, limit = type(solver).__name__, getattr(solver, "max_iter", None)
    if limit is None or name == "Released":
        return 'local="newton-cg"'
    return f"local=local.{name}(max_iter={10 * limit})"


def _penalty(result: Result, evidence: Evidence) -> Finding | None:
    """Relative residuals: primal over the size of the models, dual over that of the multipliers."""
    r = evidence.residuals
    if r is None or not (hasattr(evidence.method, "rho") or hasattr(evidence.method, "interval")):
        return None
    models, multipliers = max(r.u_norm, r.v_norm), r.lam_norm
    rows = result.history.rows[len(result.history) // 2 :]
    if not (models > 0 and multipliers > 0) or len(rows) < 4:
        return None
    ratios = [_ratio((row.primal_residual or 0.0) / models, (row.dual_residual or 0.0) / multipliers) for row in rows]
    ratio = statistics.median(ratios)
    if not max(ratio, 1 / ratio) > IMBALANCE:
        return None
    small = ratio > 1
    names = ("primal", "dual") if small else ("dual", "primal")
    times = max(ratio, 1 / ratio)
    return Finding(
        "penalty-too-small" if small else "penalty-too-large",
        f"the relative {names[0]} residual was {times:.1g} times the relative {names[1]} one in the later half of the "
        f"run: the penalty is far too {'small' if small else 'large'}.",
        _rescaled(evidence.method, times / TYPICAL if small else TYPICAL / times),
    )


def _ratio(primal: float, dual: float) -> float:
    """primal / dual, between 10⁻⁶ and 10⁶; a dual residual of 0: v no longer moves."""
    if not (math.isfinite(primal) and math.isfinite(dual)) or primal == dual == 0:
        return 1.0
    return min(max(primal / dual if dual > 0 else math.inf, 1e-6), 1e6)


def _rescaled(method: Any, factor: float) -> str:
    name = type(method).__name__
    if hasattr(method, "interval"):
        a, b = (float(f"{factor * x:.1g}") for x in method.interval)
        return f"method=methods.{name}(interval=({a:g}, {b:g}))"
    if getattr(method, "normalized", None) is False:
        return f"method=methods.{name}(normalized=True)"
    return f"method=methods.{name}(rho={float(f'{factor * method.rho:.1g}'):g})"


def _weights(result: Result, evidence: Evidence) -> Finding | None:
    """σ maps the range of each block's curvature onto [a, b]: one entry of huge curvature leaves all others at a."""
    method = evidence.method
    if not hasattr(method, "interval_at") or result.weights is None:
        return None
    a, b = method.interval_at(result.n_iter + 1)
    if not b > a:
        return None
    share = (result.weights.diagonal().double() - a) / (b - a)
    low, high = float((share < EDGE).double().mean()), float((share > 1 - EDGE).double().mean())
    if max(low, high) < AT_ONE_END:
        return None
    end, value = ("lower", a) if low >= high else ("upper", b)
    return Finding(
        "weights-at-end",
        f"{max(low, high):.0%} of the weights lie at the {end} end {value:.3g} of the interval: a few entries of large "
        "curvature take all of it, and the rest cannot be told apart.",
        'method="auto"',
    )


def _far_block(result: Result, evidence: Evidence) -> Finding | None:
    distance = evidence.distance
    if distance is None or len(distance) < 5 or not bool(distance.isfinite().all()):
        return None
    squares = distance.square()
    share, j = float(squares.max() / squares.sum().clamp(min=1e-300)), int(distance.argmax())
    typical = float(distance.median())
    if share < OUTLYING or float(distance[j]) < ALONE * typical:
        return None
    auto = hasattr(evidence.method, "rank") and not hasattr(evidence.method, "interval")  # weights of its own already
    return Finding(
        "far-block",
        f"{evidence.names[j]!r} makes up {share:.0%} of the distance from consensus: ‖u − v‖ = "
        f"{float(distance[j]):.2g}, the median block {typical:.2g}; its data are unlike the others'.",
        f"the units and labels of {evidence.names[j]!r} checked" if auto else 'method="auto"',
    )


def _budget(result: Result, evidence: Evidence) -> Finding | None:
    stopping = evidence.stopping
    line: Trend | None = trend(recent(result.history.rows, stopping, result.certificate.relative_gap))
    done = result.n_iter
    if line is None or line.left < 1 or line.left > LONGEST_FORECAST * done:
        return None
    total = _round_up(done + (2.0 if line.slowing else 1.2) * line.left)
    setting = f"max_iter={total}"
    if result.status is Status.time_limit and stopping.time_limit is not None:
        setting = f"time_limit={_round_up(stopping.time_limit * total / done)}"
    return Finding(
        "budget",
        f"the run converges {'more and more slowly' if line.slowing else 'steadily'}, by {1 - line.rate:.1%} per "
        f"iteration, and would need {'at least' if line.slowing else 'about'} {line.left:.0f} more.",
        setting,
    )


def _round_up(x: float) -> int:
    """Two digits."""
    step = 10 ** max(math.floor(math.log10(x)) - 1, 0)
    return math.ceil(x / step) * step


Rule = Callable[["Result", "Evidence"], Finding | None]
CAUSES: tuple[Rule, ...] = (lambda _, evidence: unbounded(evidence), _diverged, lambda _, evidence: columns(evidence))
CHOICES: tuple[Rule, ...] = (_inner, _far_block, _penalty, _weights)
