"""What `solve(on_loss=…)` does when a worker is lost.

    "stop"      return the last complete iterate; the message names the worker, and the folder to resume from
    "restart"   place the problem anew and resume from the last checkpoint, a few times at most without progress

Only an engine whose loop runs in one process can be restarted here. Where every process calls `solve`, those
that survive cannot restart the lost one: they raise `WorkerLost`, and whoever started them starts all again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

from auqadmm.checkpoint.settings import Checkpoint
from auqadmm.core.ending import count, sentence
from auqadmm.core.reduce import WorkerLost
from auqadmm.core.result import Result
from auqadmm.errors import InputError

Attempt = Callable[[Checkpoint | None], Result]
SHOWN = 3  # losses named in a message


def read(
    checkpoint: Checkpoint | str | PathLike[str] | None, on_loss: Any, engine: Any
) -> tuple[Checkpoint | None, str]:
    """Both settings, checked."""
    if checkpoint is not None and not isinstance(checkpoint, Checkpoint):
        checkpoint = Checkpoint(checkpoint)
    if on_loss not in ("stop", "restart"):
        raise InputError(f"on_loss must be 'stop' or 'restart', got {on_loss!r}.")
    if on_loss == "restart" and checkpoint is None:
        raise InputError("on_loss='restart' needs checkpoint, a folder: a run begins again from what is saved there.")
    if on_loss == "restart" and hasattr(engine, "map_sum"):
        raise InputError(
            "on_loss='restart' needs an engine that can be placed anew, by its name or its settings; "
            f"this {type(engine).__name__} holds a problem already."
        )
    return checkpoint, on_loss


def recovered(attempt: Attempt, checkpoint: Checkpoint | None, on_loss: str, spmd: bool) -> Result:
    """The result of `attempt`, repeated after a loss if `on_loss` says so. `spmd`: every process calls `solve`."""
    losses: list[str] = []
    left: Result | None = None
    furthest, vain = -1, 0
    while True:
        try:
            result = attempt(checkpoint)
            return replace(result, message=result.message + _told(losses))
        except WorkerLost as lost:
            left = lost.left or left
            if checkpoint is None or on_loss == "stop":
                return _stopped(lost, left, "")
            if spmd:
                raise WorkerLost(_start_again(lost, checkpoint)) from lost
            at = -1 if lost.saved is None else lost.saved
            furthest, vain = max(at, furthest), 1 if at > furthest else vain + 1
            if vain > checkpoint.restarts:
                return _stopped(lost, left, f" It began again {checkpoint.restarts} times and got no further.")
            if at >= 0 and checkpoint.resume is False:  # the checkpoint is now ours
                checkpoint = replace(checkpoint, resume=True)
            where = f" from iteration {furthest}" if furthest >= 0 else ""
            losses.append(f"{sentence(lost)} The run began again{where}.")


def _stopped(lost: WorkerLost, left: Result | None, more: str) -> Result:
    if left is None:
        raise lost
    return replace(left, message=left.message + more)


def _told(losses: list[str]) -> str:
    if not losses:
        return ""
    earlier = len(losses) - SHOWN
    before = "" if earlier <= 0 else f"Workers were lost {count(len(losses), 'time')}; of late: "
    return f" ({before}{' '.join(losses[-SHOWN:])})"


def _start_again(lost: WorkerLost, checkpoint: Checkpoint) -> str:
    again = f"{sentence(lost)} All processes have to be started again, as torchrun --max-restarts does"
    if lost.saved is None:
        return f"{again}."
    return f"{again}; the same call goes on from iteration {lost.saved}, saved in {Path(checkpoint.folder).absolute()}."
