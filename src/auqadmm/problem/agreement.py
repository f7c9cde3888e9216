"""What processes exchange before the first iteration, so that all of them have the same problem.

Each process reads its own blocks only. Three short messages (JSON text, one per process) settle the rest:

    settings   loss, regularizer, …: must be the same everywhere
    count      blocks of the process: blocks are numbered consecutively, process after process
    tally      features, rows, weights, labels and kind of its blocks; all tallies together give the census

An error in one process is one sentence in all of them: `together` never leaves the others waiting.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import numpy as np
import scipy.sparse

from auqadmm.blocks.loss import Loss
from auqadmm.blocks.shard import Census
from auqadmm.errors import AuqadmmError
from auqadmm.problem.ingest import InputError, RawBlock, agree_on_classes, labels_of, same_columns

T = TypeVar("T")
Exchange = Callable[[str], list[str]]
"""Sends a text to every process, and returns the texts of all of them in order of rank."""


class ProcessError(AuqadmmError, RuntimeError):
    """Another process failed, or does not do the same as this one; the message says which and why.

    Examples
    --------
    >>> import auqadmm as aq
    >>> try:
    ...     raise aq.ProcessError("process 1: its file is missing")
    ... except aq.ProcessError as error:
    ...     print(error)
    process 1: its file is missing
    """


def alone(text: str) -> list[str]:
    """The exchange of a process that has no others."""
    return [text]


def together(exchange: Exchange, work: Callable[[], tuple[T, Any]]) -> tuple[T, list[Any]]:
    """`work()` gives what this process keeps and what it sends: returns the first, and the messages of all.

    An exception in one process is raised in all of them, with the rank it came from.
    """
    kept, answer, failure = attempt(work)
    answers = [json.loads(text) for text in exchange(json.dumps(answer))]
    if len(answers) == 1 and failure is not None:
        raise failure
    return cast("T", kept), verdict(answers, failure)


def attempt(work: Callable[[], tuple[T, Any]]) -> tuple[T | None, dict[str, Any], Exception | None]:
    """What is kept, what is sent (the message, or an error) and the exception, if any."""
    try:
        kept, message = work()
    except Exception as error:
        return None, {"error": error_text(error), "input": isinstance(error, InputError)}, error
    return kept, {"message": message}, None


def verdict(
    answers: Sequence[Mapping[str, Any]], cause: Exception | None = None, who: Sequence[str] | None = None
) -> list[Any]:
    """The messages, or the error of the first process that has one; `who` they are, by default ranks."""
    bad = [rank for rank, a in enumerate(answers) if "error" in a]
    if not bad:
        return [a["message"] for a in answers]
    first = answers[bad[0]]
    others = "" if len(bad) == 1 else f" (Ranks {', '.join(map(str, bad[1:]))} failed as well.)"
    if who is not None:
        others = "" if len(bad) == 1 else f" ({', '.join(who[r] for r in bad[1:])} failed as well.)"
    kind = InputError if first["input"] else ProcessError
    raise kind(f"{f'rank {bad[0]}' if who is None else who[bad[0]]}: {first['error']}{others}") from cause


def error_text(error: BaseException) -> str:
    """An exception as reported to other processes: input errors by their message, others with their class name."""
    unsaid = error.shared if isinstance(error, InputError) else None  # values of rows stay where they are
    text = " ".join((unsaid or str(error)).split())
    return text if isinstance(error, InputError | ProcessError) else f"{type(error).__name__}: {text}".rstrip(": ")


def same(exchange: Exchange, settings: Mapping[str, Any]) -> None:
    """Refuse settings that differ between processes; functions are compared by their names."""
    own = {name: re.sub(r" at 0x[0-9a-f]+", "", repr(value)) for name, value in settings.items()}
    _, everyone = together(exchange, lambda: (None, own))
    for rank, theirs in enumerate(everyone):
        for name, value in everyone[0].items():
            if theirs.get(name) != value:
                raise InputError(
                    f"rank {rank} was given {name} {theirs.get(name)} but rank 0 {value}; every process must pass the "
                    "same, its own blocks excepted."
                )


@dataclass(frozen=True)
class Tally:
    """The blocks of one process, as sent to the others. `columns`: a block with named columns, and their names;
    `silent`: its rows say nothing."""

    names: tuple[str, ...]
    rows: tuple[int, ...]
    weights: tuple[float, ...]
    features: int | None
    columns: tuple[str, tuple[str, ...]] | None
    labels: tuple[np.ndarray, ...] | None
    dense: bool = True
    offset: bool = False
    silent: bool = False

    @staticmethod
    def of(blocks: Sequence[RawBlock], loss: Loss, targets: Sequence[np.ndarray] = ()) -> Tally:
        named = next((b for b in blocks if b.columns is not None), None)
        return Tally(
            names=tuple(b.name for b in blocks),
            rows=tuple(b.rows for b in blocks),
            weights=tuple(float(b.weight.sum()) for b in blocks),
            features=int(blocks[0].X.shape[1]) if blocks else None,
            columns=None if named is None else (named.name, named.columns or ()),
            labels=None if loss.target_kind == "real" else tuple(labels_of(b) for b in blocks),
            dense=not any(scipy.sparse.issparse(b.X) for b in blocks),
            offset=any(b.offset is not None for b in blocks),
            silent=all(loss.silent(y, b.weight) for y, b in zip(targets, blocks, strict=False)),
        )

    def message(self) -> dict[str, Any]:
        labels = None if self.labels is None else [[a.dtype.str, a.tobytes().hex()] for a in self.labels]
        return {**vars(self), "labels": labels}

    @staticmethod
    def read(message: Mapping[str, Any]) -> Tally:
        labels, columns = message["labels"], message["columns"]
        return Tally(
            names=tuple(message["names"]),
            rows=tuple(message["rows"]),
            weights=tuple(message["weights"]),
            features=message["features"],
            columns=None if columns is None else (columns[0], tuple(columns[1])),
            labels=None if labels is None else tuple(_labels(kind, data) for kind, data in labels),
            dense=bool(message["dense"]),
            offset=bool(message["offset"]),
            silent=bool(message["silent"]),
        )


def _labels(kind: str, data: str) -> np.ndarray:
    return np.frombuffer(bytes.fromhex(data), dtype=np.dtype(kind))


def census_of(tallies: Sequence[Tally], loss: Loss, intercept: bool) -> Census:
    """All blocks of all processes; checks everything that no process can check alone."""
    holders = [t for t in tallies if t.names]
    if not holders:
        raise InputError("There are no blocks: pass at least one (X, y) tuple.")
    _same_features(holders)
    rows = tuple(n for t in holders for n in t.rows)
    weights = [w for t in holders for w in t.weights]
    if not any(rows):
        raise InputError("Every block is empty: at least one block must hold rows.")
    if not any(weights):
        raise InputError("Every sample weight is zero: at least one row must count.")
    if loss.silence and all(t.silent for t in holders):
        raise InputError(loss.silence)
    labels = [a for t in holders for a in t.labels or ()]
    classes = None if loss.target_kind == "real" else _classes(labels, loss)
    features = holders[0].features
    assert features is not None
    offset = any(t.offset for t in holders)
    columns = loss.columns_for(0 if classes is None else len(classes))
    if offset and (columns > 1 or not loss.takes_offset):
        why = "has a logit for every class" if columns > 1 else "is not a function of one logit per row"
        raise InputError(f"Blocks have offsets, but {type(loss).__name__} {why}: leave the offsets out.")
    return Census(
        blocks=len(rows),
        features=features + int(intercept),
        columns=columns,
        intercept=intercept,
        rows=rows,
        weight_total=float(sum(weights)),
        classes=classes,
        names=tuple(name for t in holders for name in t.names),
        dense=all(t.dense for t in holders),
        offset=offset,
    )


def _same_features(holders: Sequence[Tally]) -> None:
    same_columns([t.columns for t in holders if t.columns is not None])
    first = holders[0]
    for t in holders:
        if t.features != first.features:
            raise InputError(
                f"{t.names[0]} has {t.features} features but {first.names[0]} has {first.features}; "
                "every block needs the same columns in the same order."
            )


def _classes(labels: Sequence[np.ndarray], loss: Loss) -> np.ndarray:
    classes = agree_on_classes(labels)
    if len(classes) < 2:
        raise InputError(
            f"All labels are {classes.tolist()[0]!r}: {type(loss).__name__} needs at least two classes over all blocks."
        )
    if loss.target_kind == "binary" and len(classes) > 2:
        shown = ", ".join(repr(c) for c in classes[:5].tolist())
        raise InputError(
            f"{type(loss).__name__} separates two classes but the blocks hold {len(classes)} ({shown}…); "
            "use Multinomial or select two of them."
        )
    return classes
