"""The replicated half of a checkpoint: what every process that runs the loop knows, as files, and back.

    history.json                          the rows so far
    shared.json, shared.safetensors       v, s, K, residuals, the method's memory, counters, the clock

The blocks' half is sent separately as bytes (blocks.py).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import get_type_hints

import torch

from auqadmm.checkpoint.blocks import Part, from_bytes, to_bytes
from auqadmm.checkpoint.codec import CheckpointError, Json, Reader, Registry, Writer, is_instance
from auqadmm.checkpoint.files import parse
from auqadmm.core.certificate import Certificate
from auqadmm.core.history import Row
from auqadmm.core.reduce import Traffic
from auqadmm.core.state import Consensus, Setup, State
from auqadmm.verdict.gate import Gate


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
    gate: Gate = field(default_factory=Gate)
    certificate: Certificate | None = None


_SHARED: dict[str, object] = {
    "shared": Consensus,
    "traffic": tuple[int, int, int, int, int],
    "seconds": float,
    "ended": tuple[str, str] | None,
    "stop": Mapping[str, float],
    "gate": Gate,
    "certificate": Certificate | None,
}


def to_files(saved: Saved, parts: Sequence[Part], setup: Setup, registry: Registry) -> dict[str, bytes]:
    """All files of a checkpoint but its manifest."""
    writer = Writer(registry, _refs(setup), torch.device(setup.device))
    traffic = saved.traffic
    content = {
        "shared": saved.state.shared,
        "traffic": (traffic.rounds, traffic.up, traffic.down, traffic.verdict, traffic.reductions),
        "seconds": saved.seconds,
        "ended": saved.ended,
        "stop": saved.stop,
        "gate": saved.gate,
        "certificate": saved.certificate,
    }
    contents = {
        "history.json": _json(_table(saved.rows[: saved.done])),
        "shared.json": _json(writer.encode(content, "run")),
        "shared.safetensors": to_bytes(writer.arrays),
    }
    for i, (text, arrays) in enumerate(parts):
        contents |= {f"blocks-{i:05d}.json": text, f"blocks-{i:05d}.safetensors": arrays}
    return contents


def from_files(contents: Mapping[str, bytes], setup: Setup, registry: Registry) -> tuple[Saved, tuple[Part, ...]]:
    """The run without the state of its blocks, and the parts of that state."""
    reader = Reader(registry, _refs(setup), torch.device(setup.device), {})
    reader.arrays = from_bytes("shared.safetensors", contents["shared.safetensors"])
    content = reader.decode(parse("shared.json", contents["shared.json"]))
    for name, hint in _SHARED.items():
        if not isinstance(content, dict) or name not in content or not is_instance(content[name], hint):
            raise CheckpointError(f"shared.json does not hold the {name} of a run")
    shared, rows = content["shared"], _rows(parse("history.json", contents["history.json"]))
    if tuple(shared.v.shape) != (setup.features, setup.columns) or shared.v.dtype != torch.float64:
        raise CheckpointError(f"the model in shared.json is {tuple(shared.v.shape)}")
    if len(rows) != shared.iteration or [row.iteration for row in rows] != list(range(1, len(rows) + 1)):
        raise CheckpointError(f"history.json has {len(rows)} rows, not {shared.iteration}")
    names = sorted(name for name in contents if name.startswith("blocks-"))
    count = len(names) // 2
    if names != sorted(f"blocks-{i:05d}.{kind}" for i in range(count) for kind in ("json", "safetensors")):
        raise CheckpointError("the files of blocks are not complete")
    parts = tuple((contents[names[2 * i]], contents[names[2 * i + 1]]) for i in range(count))
    rest = {name: content[name] for name in ("seconds", "ended", "stop", "gate", "certificate")}
    return Saved(State(None, shared), rows, len(rows), Traffic(*content["traffic"]), **rest), parts


def _refs(setup: Setup) -> dict[str, object]:
    return {"setup": setup, "regularizer": setup.regularizer}


# ---------------------------------------------------------------------- history
_COLUMNS = get_type_hints(Row)


def _table(rows: Sequence[Row]) -> dict[str, object]:
    plain = Writer(Registry({}), {}, torch.device("cpu"))
    columns = {f.name: [plain.encode(getattr(row, f.name), f.name) for row in rows] for f in fields(Row)}
    return {"columns": columns}


def _rows(tree: Json) -> tuple[Row, ...]:
    columns = tree.get("columns") if isinstance(tree, dict) else None
    if not isinstance(columns, dict) or set(columns) != set(_COLUMNS):
        raise CheckpointError("history.json does not have the columns of a history")
    plain = Reader(Registry({}), {}, torch.device("cpu"), {})
    values = {name: [plain.decode(x) for x in column] for name, column in columns.items() if isinstance(column, list)}
    if len(values) != len(columns) or len({len(column) for column in values.values()}) != 1:
        raise CheckpointError("the columns of history.json are not equally long")
    for name, column in values.items():
        if not all(is_instance(x, _COLUMNS[name]) for x in column):
            raise CheckpointError(f"the column {name!r} of history.json holds something else")
    return tuple(Row(**dict(zip(values, row, strict=True))) for row in zip(*values.values(), strict=True))


def _json(tree: object) -> bytes:
    return json.dumps(tree, allow_nan=False).encode()
