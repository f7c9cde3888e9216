"""The run so far: its state, rows and counters after the last complete iteration, and their checkpoints.

And how it ended: a status, and a message that says what to do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from auqadmm.checkpoint.run import Saved
from auqadmm.checkpoint.settings import RunCheckpoints
from auqadmm.core.history import Clock, History, Row
from auqadmm.core.reduce import Reduce, WorkerLost
from auqadmm.core.result import Result
from auqadmm.core.state import Blocks, Consensus, Setup, State, Status
from auqadmm.core.stopping import Certificate, Stopping, two_digits
from auqadmm.diagnosis.evidence import Evidence, columns, unbounded
from auqadmm.verdict.monitor import Monitor

if TYPE_CHECKING:
    from auqadmm.blocks.shard import Shard

# ---------------------------------------------------------------------- how a run ended
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


# ---------------------------------------------------------------------- the run so far
class RunRecord:
    """What is kept of a run. `at` is replaced once per complete iteration: state, rows, counters, all at once."""

    def __init__(
        self, reduce: Reduce, stopping: Stopping, clock: Clock, monitor: Monitor, keeper: RunCheckpoints | None
    ) -> None:
        self.reduce, self.stopping, self.clock, self.monitor, self.keeper = reduce, stopping, clock, monitor, keeper
        self.at: Saved | None = None
        self.rows: list[Row] = []

    @property
    def done(self) -> int:
        return len(self.rows)

    @property
    def state(self) -> State | None:
        """After the last complete iteration."""
        return None if self.at is None else self.at.state

    def mark(self, state: State, row: Row | None = None) -> None:
        """An iteration is complete."""
        if row is not None:
            self.rows.append(row)
        counters = (replace(self.reduce.traffic), self.clock.seconds)
        stop = self.stopping.tolerances
        self.at = Saved(state, self.rows, self.done, *counters, ended=None, stop=stop, gate=self.monitor.gate)

    def row(self, shared: Consensus, certificate: Certificate | None, names: Sequence[str]) -> Row:
        """What is known of an iterate; `names` of all blocks."""
        cost, r, traffic = shared.cost, shared.residuals, self.reduce.traffic
        eps = self.stopping.thresholds(r) if r is not None else (None, None)
        return Row(
            iteration=shared.iteration,
            objective=None if certificate is None else certificate.objective,
            primal_residual=None if r is None else r.primal,
            dual_residual=None if r is None else r.dual,
            eps_primal=eps[0],
            eps_dual=eps[1],
            kkt=None if certificate is None else certificate.kkt,
            seconds=self.clock.seconds,
            rounds=cost.rounds,
            bytes=cost.up + cost.down,
            bytes_up=cost.up,
            bytes_down=cost.down,
            hvps=cost.hvps,
            failed_blocks=tuple(names[j] for j in shared.failed_blocks),
            rounds_verdict=traffic.verdict,
            reductions=traffic.reductions,
            relative=None if certificate is None else certificate.relative_gap,
            expected=self.monitor.expected,
        )

    def rewind(self) -> None:
        """Discard the partial results of an interrupted iteration."""
        del self.rows[0 if self.at is None else self.at.done :]

    # ------------------------------------------------------------------ checkpoints
    def resume(self, saved: Saved, setup: Setup) -> Ending | None:
        """Go on from a checkpoint; how the run ended, if it needs no further iteration."""
        shared = replace(saved.state.shared, setup=setup)
        self.at, self.rows = replace(saved, state=replace(saved.state, shared=shared)), list(saved.rows)
        self.monitor.resume(saved.gate)
        self.reduce.traffic, self.clock.seconds = replace(saved.traffic), saved.seconds
        # new tolerances: a run that converged by the old ones continues
        if saved.ended is None or (saved.ended[0] in OVER and saved.stop != self.stopping.tolerances):
            return None
        final = saved.ended[0] in (*OVER, Status.diverged)
        return Ending(Status(saved.ended[0]), saved.ended[1], saved.certificate) if final else None

    def save_if_due(self, setup: Setup) -> None:
        if self.keeper is not None and self.keeper.due(self.done):
            self.save(setup)

    def save(self, setup: Setup, ended: Ending | None = None) -> None:
        if self.keeper is not None and self.at is not None:
            saved = self.at
            if ended is not None:
                saved = replace(saved, ended=(str(ended.status), ended.message))
            if ended is not None and ended.status in OVER:  # no further round needed
                saved = replace(saved, certificate=ended.certificate, traffic=replace(self.reduce.traffic))
            self.keeper.save(saved, setup)

    def save_end(self, setup: Setup, ended: Ending) -> None:
        """Save the end of the run, unless it is what the run was resumed from."""
        if self.at is None or self.at.ended == (str(ended.status), ended.message):
            return
        try:
            self.save(setup, ended)
        except KeyboardInterrupt:  # a second Ctrl-C: the previous checkpoint stays
            return

    def saved_where(self, ended: Ending) -> str:
        """What the message says about checkpoints."""
        if self.keeper is None:
            return ""
        unfinished = (Status.max_iter, Status.time_limit, Status.interrupted)
        if ended.status not in unfinished or self.keeper.last is None:
            return self.keeper.warning
        return f" The run is saved in {self.keeper.folder}, from where a later call goes on.{self.keeper.warning}"
