"""How a run ended: a status, and a sentence to act on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from auqadmm.core.certificate import Certificate
from auqadmm.core.checkpoint_run import Saved
from auqadmm.core.history import History, Row
from auqadmm.core.reduce import WorkerLost
from auqadmm.core.result import Result
from auqadmm.core.state import Status
from auqadmm.core.stopping import Stopping


@dataclass(frozen=True)
class Ended:
    status: Status
    message: str


def reached(done: int, stopping: Stopping, certificate: Certificate | None) -> Ended:
    """The tolerances are met."""
    rule = {"both": "residuals and certificate", "residuals": "residuals", "certificate": "certificate"}
    how = "" if certificate is None else f" ({certificate.evidence(stopping.certificate_tol)})"
    return Ended(Status.converged, f"Converged after {count(done)}: {rule[stopping.rule]} within tolerance{how}.")


def out_of_budget(rows: Sequence[Row], stopping: Stopping, status: Status, what: str) -> Ended:
    """A limit was met before the tolerances: what is missing."""
    if not rows:
        return Ended(status, f"Stopped at the {what} before the first iteration was complete.")
    row = rows[-1]
    parts = []
    if row.primal_residual is not None:
        parts.append(f"primal residual {row.primal_residual:.1e} (tolerance {row.eps_primal:.1e})")
        parts.append(f"dual residual {row.dual_residual:.1e} (tolerance {row.eps_dual:.1e})")
    if row.kkt is not None:
        parts.append(f"KKT residual {row.kkt:.1e} (tolerance {stopping.certificate_tol:.1e})")
    advice = "raise the limit, warm-start from this result or try another method (result.diagnose() says more)"
    return Ended(status, f"Stopped at the {what}: {', '.join(parts)}; {advice}.{_failures(rows)}")


def left(saved: Saved, method: str, lost: WorkerLost, more: str) -> Result:
    """What is left when a worker is lost and nothing can be summed any more: the last complete iterate.

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
        certificate=Certificate(*(math.nan if x is None else x for x in known)),
        method=method,
    )


def sentence(error: BaseException) -> str:
    """What an error says, with a capital and a full stop."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text[0].upper() + text[1:] + ("" if text.endswith(".") else ".")


def count(n: int, what: str = "iteration") -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


def _failures(rows: Sequence[Row]) -> str:
    failed = [name for row in rows for name in row.failed_blocks]
    if not failed:
        return ""
    worst = max(set(failed), key=failed.count)
    return f" The local solve of {worst} missed its tolerance in {failed.count(worst)} iterations."
