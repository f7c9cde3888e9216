"""How a run ended: a status, and a message that says what to do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from auqadmm.checkpoint.run import Saved
from auqadmm.core.certificate import Certificate, two_digits
from auqadmm.core.history import History, Row
from auqadmm.core.reduce import Reduce, WorkerLost
from auqadmm.core.result import Result
from auqadmm.core.state import Blocks, State, Status
from auqadmm.core.stopping import Stopping
from auqadmm.diagnosis.evidence import Evidence, columns, unbounded

if TYPE_CHECKING:
    from auqadmm.blocks.shard import Shard

OVER = (Status.converged, Status.residuals, Status.rounding, Status.undecided)  # ends that only other tolerances change


@dataclass(frozen=True)
class Ending:
    """Status and message; the last certificate, and what a diagnosis needs."""

    status: Status
    message: str
    certificate: Certificate | None = None
    evidence: Evidence | None = None


def ending_by_certificate(done: int, certificate: Certificate) -> Ending:
    """A gap within tolerance, or rounding error reached before it."""
    if certificate.evidence == "rounding":
        message = f"At the floor of rounding after {count(done)}: v is as good as the arithmetic allows."
        return Ending(Status.rounding, f"{message} {certificate.reason}".rstrip(), certificate)
    return Ending(Status.converged, f"Converged: {certificate.words()}; {count(done)}.", certificate)


def ending_undecided(done: int, certificate: Certificate) -> Ending:
    """F falls no further, and how far the optimum is cannot be known."""
    return Ending(
        Status.undecided,
        f"Undecided after {count(done)}: no step lowers the objective noticeably any more.",
        certificate,
    )


def ending_by_residuals(done: int) -> Ending:
    """The paper's test, by its own name."""
    return Ending(Status.residuals, f"Primal and dual residuals within tolerance after {count(done)}.")


def ending_by_budget(rows: Sequence[Row], status: Status, what: str) -> Ending:
    """A budget was used up before the tolerances were met."""
    if not rows:
        return Ending(status, f"Not converged: stopped at the {what} before the first iteration was complete.")
    return Ending(status, f"Not converged: stopped at the {what}.{_failed_solves(rows)}")


def ending_by_interrupt(done: int) -> Ending:
    """Ctrl-C."""
    return Ending(Status.interrupted, f"Interrupted after {done} iterations; v is the last complete iterate.")


def ending_by_signal(name: str, done: int) -> Ending:
    return Ending(Status.interrupted, f"Stopped by {name} after {count(done)}; v is the last complete iterate.")


def ending_by_callback(done: int) -> Ending:
    return Ending(Status.interrupted, f"A callback stopped the run after {done} iterations.")


def ending_by_v(iteration: int) -> Ending:
    """v is no longer finite."""
    return Ending(
        Status.diverged,
        f"The v-step of iteration {iteration} gave NaN or infinity; v is the iterate before it. "
        "Rescale the features or choose a larger regularisation.",
    )


def ending_by_loss(iteration: int) -> Ending:
    """Σf_j or its gradient is no longer finite."""
    return Ending(
        Status.diverged,
        f"The loss or its gradient is not finite at the v of iteration {iteration}; v is the iterate "
        "before it. Rescale the features or the targets.",
    )


def final_message(result: Result, stopping: Stopping) -> str:
    """The message of a finished run: how far v is from the optimum, and where it is not near enough, why and what to
    do."""
    return f"{_message(result, stopping)} {result.certificate.notes}".rstrip()


def _message(result: Result, stopping: Stopping) -> str:
    certificate, message = result.certificate, result.message
    if result.status is Status.residuals:
        known = f"; {certificate.words()}" if certificate.evidence != "none" else ""
        return f"{message.removesuffix('.')}{known}."
    if result.status is Status.undecided:
        return f"{message} {certificate.reason}".rstrip()
    if result.status not in (Status.max_iter, Status.time_limit) or not result.n_iter:
        return f"{message} {certificate.reason}" if certificate.reason and result.status not in OVER else message
    asked = f" (asked: {two_digits(stopping.certificate_tol)})" if stopping.certificate_tol > 0 else ""
    where = (
        "It is not known how far v is from the optimum"
        if certificate.evidence == "none"
        else f"V is {certificate.words()}"
    )
    otherwise = "Raise the limit, warm-start from this result or try another method; result.diagnose() says more."
    return f"{message} {where}{asked}. {certificate.reason or otherwise}"


def with_reason(certificate: Certificate, evidence: Evidence) -> Certificate:
    """With the most fundamental reason: no minimum, then the verdict's own reason, then badly scaled columns."""
    falls = unbounded(evidence)
    finding = falls or (None if certificate.reason else columns(evidence))
    if finding is None or certificate.evidence == "rounding":
        return certificate
    return replace(certificate, reason=f"{sentence(Exception(finding.sentence))} Try {finding.setting}.")


def lost_worker_result(saved: Saved, method: str, lost: WorkerLost, more: str) -> Result:
    """The result when a worker is lost and no reduction is possible any more: the last complete iterate.

    Objective and KKT residual as far as they are known; multipliers are lost with their blocks. `more`: what to say of
    checkpoints.
    """
    rows = tuple(saved.rows[: saved.done])
    row = rows[-1] if rows else None
    known = (None, None) if row is None else (row.objective, row.kkt)
    message = f"{sentence(lost)} Stopped in iteration {saved.done + 1}; v is the iterate before it.{more}"
    return Result(
        v=saved.state.shared.v,
        status=Status.interrupted,
        message=message,
        n_iter=saved.done,
        history=History(rows),
        certificate=Certificate(objective=_or_nan(known[0]), kkt=_or_nan(known[1])),
        method=method,
    )


def _or_nan(x: float | None) -> float:
    return math.nan if x is None else x


def sentence(error: BaseException) -> str:
    """What an error says, with a capital and a full stop."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text[0].upper() + text[1:] + ("" if text.endswith(".") else ".")


def count(n: int, what: str = "iteration") -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


def _failed_solves(rows: Sequence[Row]) -> str:
    failed = [name for row in rows for name in row.failed_blocks]
    if not failed:
        return ""
    worst = max(dict.fromkeys(failed), key=failed.count)  # the first of several
    return f" The local solve of {worst} missed its tolerance in {failed.count(worst)} iterations."


# ---------------------------------------------------------------------- NaN and infinity in the state of blocks

# the local solve may overflow although all its inputs are finite: code 0
STEPS = {0: "local solve (u-step)", 1: "local solve (u-step)", 2: "weights", 3: "multiplier"}


def not_finite(state: State, reduce: Reduce, iteration: int) -> Ending | None:
    """The end of a run in which some block's state is NaN or infinite; None if all are finite."""
    if state.shared.not_finite == 0:
        return None
    codes = reduce.gather(_health, state.blocks)
    j = int(codes.argmax())
    return Ending(
        Status.diverged,
        f"The {STEPS[int(codes[j])]} of {reduce.engine.names[j]} gave NaN or infinity in iteration {iteration}; "
        "v is the iterate before it. Rescale that block's features or lower the penalty.",
    )


def _health(shard: Shard, blocks: Blocks) -> Tensor:
    """Per block: 0 healthy, 1 local solve, 2 weights, 3 multiplier not finite (B,)."""
    grad = shard.linearize(blocks.u).grad
    bad = [~x.isfinite().flatten(1).all(1) for x in (blocks.u + grad, blocks.W.diagonal(), blocks.lam)]
    # non-finite weights or multipliers make the local solve non-finite too: report the cause
    code = bad[0] * 1
    code = torch.where(bad[2], torch.full_like(code, 3), code)
    return torch.where(bad[1], torch.full_like(code, 2), code)
