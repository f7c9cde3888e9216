"""Checkpoints: the whole state of a run in a folder, written while it runs, and the way back.

    begin     lock the folder; the newest checkpoint that is whole and belongs to this run is where it goes on
    during    the state before the first iteration, then every `every` iterations; the last `keep` stay
    end       however the run ends (converged, out of budget, Ctrl-C, SIGTERM): its last complete iteration

What must agree for a run to go on: the data (a hash of every block), loss, regularizer, method, local solver, and all
else that decides iterates (`identity`). Budgets and tolerances may differ: they decide only where it stops.

A checkpoint that is refused is never removed or replaced. New ones get higher numbers, and what is taken away to keep
`keep` of them was written by the same run and is whole.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, get_type_hints
from uuid import uuid4

import torch

from auqadmm.core import checkpoint_files as files
from auqadmm.core.checkpoint_blocks import Pack, Unpack, from_bytes, split, to_bytes
from auqadmm.core.checkpoint_codec import CheckpointError, Reader, Registry, Writer, fits
from auqadmm.core.checkpoint_identity import Identity
from auqadmm.core.history import Row
from auqadmm.core.reduce import Reduce, Traffic
from auqadmm.core.state import Consensus, Setup, State
from auqadmm.core.stopping import whole_number


@dataclass(frozen=True)
class Checkpoint:
    """Where a run saves itself, and whether it goes on from what is there.

    Parameters
    ----------
    folder
        Made if it is not there. One run per folder.
    every
        Iterations between checkpoints. Besides, the start and the end of a run are saved.
    keep
        Checkpoints that stay.
    resume
        "auto": go on where the folder holds checkpoints of this very run, begin where it holds none. True: there must
        be one. False: there must be none. A folder whose checkpoints cannot be used is refused before anything is
        computed, whatever is said here.
    """

    folder: str | os.PathLike[str]
    every: int = 10
    keep: int = 2
    resume: bool | str = "auto"

    def __post_init__(self) -> None:
        if not isinstance(self.folder, str | os.PathLike) or not os.fspath(self.folder):
            raise ValueError(f"checkpoint must be a folder's path or a Checkpoint, got {self.folder!r}.")
        object.__setattr__(self, "every", whole_number("every", self.every, least=1))
        object.__setattr__(self, "keep", whole_number("keep", self.keep, least=1))
        if not (isinstance(self.resume, bool) or self.resume == "auto"):
            raise ValueError(f"resume must be True, False or 'auto', got {self.resume!r}.")


@dataclass(frozen=True)
class Saved:
    """A run after `done` complete iterations, whose rows come first in `rows` (a list that grows).

    `ended` is (status, message) where the run stopped, judged by the tolerances `stop`.
    """

    state: State
    rows: Sequence[Row]
    done: int
    traffic: Traffic
    seconds: float
    ended: tuple[str, str] | None
    stop: Mapping[str, float]


class Keeper:
    """The folder of one run, from `begin` to `close`."""

    def __init__(self, checkpoint: Checkpoint, registry: Registry, identity: Identity) -> None:
        self.settings, self.registry, self.identity = checkpoint, registry, identity
        self.folder = Path(os.fspath(checkpoint.folder)).absolute()
        self.run = uuid4().hex
        self._note = self._failure = ""
        self._lock: files.Lock | None = None
        self._own: list[Path] = []  # oldest first

    # ------------------------------------------------------------------ begin
    def begin(self, setup: Setup, reduce: Reduce) -> Saved | None:
        """Where the run goes on; None: at its beginning."""
        resume = self.settings.resume
        try:
            if resume is True and not self.folder.is_dir():
                raise CheckpointError(f"There is no checkpoint to resume from: {self.folder} is not a folder.")
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = files.Lock(self.folder)
            files.sweep(self.folder)
            found = files.numbers(self.folder)
        except OSError as error:
            raise CheckpointError(f"The folder {self.folder} cannot be used: {error.strerror or error}.") from None
        if not found:
            if resume is True:
                raise CheckpointError(f"There is no checkpoint to resume from in {self.folder}.")
            return None
        if resume is False:
            raise CheckpointError(
                f"The folder {self.folder} holds checkpoints already and resume is False; choose another folder."
            )
        return self._newest(found, setup, reduce)

    def _newest(self, found: list[int], setup: Setup, reduce: Reduce) -> Saved:
        saved, chosen = None, self.folder
        refused: dict[str, str] = {}
        for number in found:
            path = self.folder / f"checkpoint-{number:06d}"
            try:
                about, contents = files.read(path)
                if saved is None:
                    self.identity.check(about)
                    saved = self._restored(contents, setup, reduce)
                    self.run, chosen = about["run"], path
                if about["run"] == self.run:
                    self._own.insert(0, path)
            except CheckpointError as error:
                refused[path.name] = str(error)
            except Exception as error:  # the bytes come from anywhere: whatever goes wrong with them, they are refused
                refused[path.name] = f"it cannot be restored ({type(error).__name__}: {error})"
        if saved is None:
            raise CheckpointError(
                f"The folder {self.folder} holds no checkpoint that this run can go on from, and nothing in it is "
                f"overwritten: {_reasons(refused)}."
            )
        skipped = {name: why for name, why in refused.items() if name > chosen.name}
        if skipped:
            self._note = f" (Resumed from {chosen}: {_reasons(skipped)}.)"
        return saved

    def _restored(self, contents: Mapping[str, bytes], setup: Setup, reduce: Reduce) -> Saved:
        reader = Reader(self.registry, _refs(setup), torch.device(setup.device), {})
        reader.arrays = from_bytes("shared.safetensors", contents["shared.safetensors"])
        held = reader.decode(files.parse("shared.json", contents["shared.json"]))
        for name, hint in _SHARED.items():
            if not isinstance(held, dict) or name not in held or not fits(held[name], hint):
                raise CheckpointError(f"shared.json does not hold the {name} of a run")
        shared, rows = held["shared"], _rows(files.parse("history.json", contents["history.json"]))
        if tuple(shared.v.shape) != (setup.features, setup.columns) or shared.v.dtype != torch.float64:
            raise CheckpointError(f"the model in shared.json is {tuple(shared.v.shape)}")
        if len(rows) != shared.iteration or [row.iteration for row in rows] != list(range(1, len(rows) + 1)):
            raise CheckpointError(f"history.json has {len(rows)} rows, not {shared.iteration}")
        names = sorted(name for name in contents if name.startswith("blocks-"))
        count = len(names) // 2
        if names != sorted(f"blocks-{i:05d}.{kind}" for i in range(count) for kind in ("json", "safetensors")):
            raise CheckpointError("the files of blocks are not complete")
        parts = tuple((contents[names[2 * i]], contents[names[2 * i + 1]]) for i in range(count))
        blocks = reduce.place(Unpack(self.registry, parts), None, None)
        rest = {name: held[name] for name in ("seconds", "ended", "stop")}
        return Saved(State(blocks, shared), rows, len(rows), Traffic(*held["traffic"]), **rest)

    # ------------------------------------------------------------------ during
    def due(self, iteration: int) -> bool:
        return iteration % self.settings.every == 0

    def save(self, saved: Saved, setup: Setup, reduce: Reduce) -> None:
        """Write a checkpoint. The first must succeed; later the run goes on without, and its message says so."""
        try:
            self._write(saved, setup, reduce)
        except (OSError, CheckpointError, MemoryError) as error:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            reason = reason.rstrip(".")
            if not self._own:
                raise CheckpointError(f"No checkpoint can be written to {self.folder}: {reason}.") from error
            self._failure = (
                f" (The checkpoint of iteration {saved.done} could not be written to {self.folder}: {reason}; "
                f"the last one there is {self._own[-1].name}.)"
            )
        else:
            self._failure = ""

    def _write(self, saved: Saved, setup: Setup, reduce: Reduce) -> None:
        writer = Writer(self.registry, _refs(setup), torch.device(setup.device))
        traffic = saved.traffic
        held = {
            "shared": saved.state.shared,
            "traffic": (traffic.rounds, traffic.up, traffic.down),
            "seconds": saved.seconds,
            "ended": saved.ended,
            "stop": saved.stop,
        }
        contents = {
            "history.json": _json(_table(saved.rows[: saved.done])),
            "shared.json": _json(writer.encode(held, "run")),
            "shared.safetensors": to_bytes(writer.arrays),
        }
        for i, (text, arrays) in enumerate(split(reduce.engine.map_concat(Pack(self.registry), saved.state.blocks))):
            contents |= {f"blocks-{i:05d}.json": text, f"blocks-{i:05d}.safetensors": arrays}
        status = None if saved.ended is None else saved.ended[0]
        about = {"run": self.run, "iteration": saved.done, "status": status, **self.identity.about()}
        number = 1 + max(files.numbers(self.folder), default=0)
        self._own.append(files.write(self.folder, number, contents, about))
        while len(self._own) > self.settings.keep:
            files.remove(self._own.pop(0))

    # ------------------------------------------------------------------ end
    @property
    def warning(self) -> str:
        """What the user should know: checkpoints that were refused, one that could not be written."""
        return self._note + self._failure

    @property
    def last(self) -> Path | None:
        return self._own[-1] if self._own else None

    def close(self) -> None:
        if self._lock is not None:
            self._lock.release()


def _reasons(refused: Mapping[str, str]) -> str:
    """Which were refused and why, every reason once."""
    by_reason: dict[str, list[str]] = {}
    for name, why in refused.items():
        by_reason.setdefault(why, []).append(name)
    return "; ".join(f"{', '.join(found)} refused: {why}" for why, found in by_reason.items())


def _refs(setup: Setup) -> dict[str, Any]:
    return {"setup": setup, "regularizer": setup.regularizer}


_SHARED: dict[str, Any] = {
    "shared": Consensus,
    "traffic": tuple[int, int, int],
    "seconds": float,
    "ended": tuple[str, str] | None,
    "stop": Mapping[str, float],
}


# ---------------------------------------------------------------------- history
_COLUMNS = get_type_hints(Row)


def _table(rows: Sequence[Row]) -> dict[str, Any]:
    plain = Writer(Registry({}), {}, torch.device("cpu"))
    columns = {f.name: [plain.encode(getattr(row, f.name), f.name) for row in rows] for f in fields(Row)}
    return {"columns": columns}


def _rows(tree: Any) -> tuple[Row, ...]:
    columns = tree.get("columns") if isinstance(tree, dict) else None
    if not isinstance(columns, dict) or set(columns) != set(_COLUMNS):
        raise CheckpointError("history.json does not have the columns of a history")
    plain = Reader(Registry({}), {}, torch.device("cpu"), {})
    values = {name: [plain.decode(x) for x in column] for name, column in columns.items() if isinstance(column, list)}
    if len(values) != len(columns) or len({len(column) for column in values.values()}) != 1:
        raise CheckpointError("the columns of history.json are not equally long")
    for name, column in values.items():
        if not all(fits(x, _COLUMNS[name]) for x in column):
            raise CheckpointError(f"the column {name!r} of history.json holds something else")
    return tuple(Row(**dict(zip(values, row, strict=True))) for row in zip(*values.values(), strict=True))


def _json(tree: Any) -> bytes:
    return json.dumps(tree, allow_nan=False).encode()
