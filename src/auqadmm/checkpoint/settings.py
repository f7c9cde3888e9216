"""Checkpoints: the whole state of a run in a folder, written while it runs, and restored.

    begin     lock the folder; the newest checkpoint that is complete and of this run is resumed
    during    the state before the first iteration, then every `every` iterations; the last `keep` stay
    end       however the run ends (converged, out of budget, Ctrl-C, SIGTERM): its last complete iteration

What must agree for a run to resume: the data (a hash of every block), loss, regularizer, method, local solver, and all
else that decides iterates (`codec.Identity`). Budgets and tolerances may differ: they decide only where it stops.

Where several processes run the loop, each has a `RunCheckpoints` and they do the same in step. Files are touched by
the first of them only (`files.Folder`); its result, or its error, is broadcast. So all resume from the same
iteration, all refuse with the same sentence, and all learn of a full disk.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from auqadmm.checkpoint.codec import CheckpointError, Identity, Registry
from auqadmm.checkpoint.files import Folder, as_message, from_message, name_of
from auqadmm.checkpoint.run import PackBlocks, Saved, UnpackBlocks, from_files, reasons, split, to_files
from auqadmm.checks import whole_number
from auqadmm.core.reduce import Reduce
from auqadmm.core.state import Consensus, Setup, State
from auqadmm.errors import InputError

__all__ = ["Checkpoint", "RunCheckpoints", "Saved"]


@dataclass(frozen=True)
class Checkpoint:
    """Where a run saves itself, and whether it resumes from there.

    Parameters
    ----------
    folder
        Made if it is not there. One run per folder. With several processes that of the first, and no other needs it.
    every
        Iterations between checkpoints. Besides, the start and the end of a run are saved.
    keep
        Checkpoints that stay.
    resume
        "auto": resume where the folder has checkpoints of this run, else start. True: there must
        be one. False: there must be none. A folder whose checkpoints cannot be used is refused before anything is
        computed, whatever `resume` is. Processes that torchrun starts again need "auto".
    restarts
        With `on_loss="restart"`: how often in a row a run restarts from the same checkpoint before it gives up.

    Raises
    ------
    ValueError
        `every`, `keep`, `resume` or `restarts` has a value that it cannot have.

    Examples
    --------
    >>> import numpy as np
    >>> import auqadmm as aq
    >>> X, y = np.array([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0], [2.0, 1.0]]), np.array([1.0, 2.0, 3.0, 6.0])
    >>> problem = aq.Problem(aq.LeastSquares(), aq.L2(1.0), [(X[:2], y[:2]), (X[2:], y[2:])])
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     first = aq.solve(problem, "c-admm", max_iter=5, checkpoint=aq.Checkpoint(folder, every=5))
    ...     whole = aq.solve(problem, "c-admm", max_iter=500, checkpoint=aq.Checkpoint(folder, every=5))
    ...     first.n_iter, whole.status == "converged"
    (5, True)
    """

    folder: str | os.PathLike[str]
    every: int = 10
    keep: int = 2
    resume: bool | str = "auto"
    restarts: int = 3

    def __post_init__(self) -> None:
        if not isinstance(self.folder, str | os.PathLike) or not os.fspath(self.folder):
            raise InputError(f"checkpoint must be a folder's path or a Checkpoint, got {self.folder!r}.")
        object.__setattr__(self, "every", whole_number("every", self.every, least=1))
        object.__setattr__(self, "keep", whole_number("keep", self.keep, least=1))
        object.__setattr__(self, "restarts", whole_number("restarts", self.restarts, least=1))
        if not (isinstance(self.resume, bool) or self.resume == "auto"):
            raise InputError(f"resume must be True, False or 'auto', got {self.resume!r}.")


class RunCheckpoints:
    """The folder of one run, from `begin` to `close`."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        registry: Registry,
        identity: Identity,
        reduce: Reduce,
        resume: Callable[[Consensus], None] | None = None,
    ) -> None:
        """`resume`: called with the replicated half of a state before the blocks' half is put in place."""
        self.settings, self.registry, self.reduce, self.resume = checkpoint, registry, reduce, resume
        self.files = Folder(checkpoint.folder, identity)  # for the first process alone to use
        self.folder = Path(os.fsdecode(self._by_first(lambda: os.fsencode(self.files.path))))
        self.iteration: int | None = None  # of the last checkpoint
        self._note = self._failure = ""
        self._own: list[int] = []  # oldest first

    def _by_first(self, work: Callable[[], bytes]) -> bytes:
        """The result of `work()` in the first process, or its error in all of them."""

        def tried() -> bytes:
            try:
                return b"+" + work()
            except (OSError, CheckpointError, MemoryError) as error:
                return b"-" + _reason(error).encode(errors="surrogateescape")

        answer = self.reduce.engine.first(tried)
        if answer[:1] == b"-":
            raise CheckpointError(answer[1:].decode(errors="surrogateescape"))
        return answer[1:]

    # ------------------------------------------------------------------ begin
    def begin(self, setup: Setup) -> Saved | None:
        """The state to resume from; None: start anew."""
        known = json.loads(self._by_first(lambda: json.dumps(self.files.open(self.settings.resume)).encode()))
        return self._newest(known, setup) if known else None

    def _newest(self, known: list[int], setup: Setup) -> Saved:
        refused: dict[str, str] = {}
        for number in known:
            try:
                saved = self._restored(number, setup)
            except CheckpointError as error:
                refused[name_of(number)] = str(error)
            else:
                break
        else:
            raise CheckpointError(
                f"The folder {self.folder} holds no checkpoint that this run can go on from, and nothing in it is "
                f"overwritten: {_listed(refused)}."
            )
        self._own = json.loads(self._by_first(lambda: json.dumps(self.files.adopt(number, known)).encode()))
        self.iteration = saved.done
        if refused:
            self._note = f" (Resumed from {self.folder / name_of(number)}: {_listed(refused)}.)"
        return saved

    def _restored(self, number: int, setup: Setup) -> Saved:
        """One checkpoint, in all processes, or the same refusal in all of them."""

        def read() -> bytes:
            contents = self.files.read(number)
            try:
                from_files(contents, setup, self.registry)
            except (CheckpointError, MemoryError):
                raise
            except Exception as error:  # untrusted bytes: any error is a refusal
                raise CheckpointError(f"it cannot be restored ({type(error).__name__}: {error})") from None
            return as_message(contents)

        saved, parts = from_files(from_message(self._by_first(read)), setup, self.registry)
        if self.resume is not None:
            self.resume(saved.state.shared)
        blocks, sums = self.reduce.engine.map_sum(UnpackBlocks(self.registry, parts), None, None)
        if float(sums["refused"]) > 0:
            raise CheckpointError(reasons(self.reduce.engine, blocks))
        return replace(saved, state=State(blocks, saved.state.shared))

    # ------------------------------------------------------------------ during
    def due(self, iteration: int) -> bool:
        return iteration % self.settings.every == 0

    def save(self, saved: Saved, setup: Setup) -> None:
        """Write a checkpoint. The first must succeed; later failures do not stop the run, and its message says so."""
        packed = self.reduce.engine.map_concat(PackBlocks(self.registry), saved.state.blocks)
        status = None if saved.ended is None else saved.ended[0]

        def write() -> bytes:
            contents = to_files(saved, split(packed), setup, self.registry)
            return json.dumps(self.files.write(contents, saved.done, status)).encode()

        try:
            self._own.append(json.loads(self._by_first(write)))
        except CheckpointError as error:
            reason = str(error).rstrip(".")
            if not self._own:
                raise CheckpointError(
                    f"No checkpoint can be written to {self.folder}: {reason}; "
                    "make room or get the right to write there, or name another folder."
                ) from error
            self._failure = (
                f" (The checkpoint of iteration {saved.done} could not be written to {self.folder}: {reason}; "
                f"the last one there is {name_of(self._own[-1])}.)"
            )
            return
        self.iteration, self._failure = saved.done, ""
        while len(self._own) > self.settings.keep:
            self.files.remove(self._own.pop(0))

    # ------------------------------------------------------------------ end
    @property
    def warning(self) -> str:
        """Notes for the user: checkpoints that were refused, one that could not be written."""
        return self._note + self._failure

    @property
    def last(self) -> Path | None:
        return self.folder / name_of(self._own[-1]) if self._own else None

    @property
    def how_to_resume(self) -> str:
        """Where the same call would resume if the run is cut off."""
        if self.iteration is None:
            return self.warning
        return (
            f" The same call goes on from the checkpoint of iteration {self.iteration} in {self.folder}.{self.warning}"
        )

    def close(self) -> None:
        self.files.close()


def _reason(error: BaseException) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _listed(refused: Mapping[str, str]) -> str:
    """Which were refused and why, every reason once."""
    by_reason: dict[str, list[str]] = {}
    for name, why in refused.items():
        by_reason.setdefault(why, []).append(name)
    return "; ".join(f"{', '.join(names)} refused: {why}" for why, names in by_reason.items())
