"""The state of a run as files, and back: the blocks' half, packed by the workers, and the replicated half.

A *part* is the state of the blocks of one process: arrays with the leading axis B in the order of its blocks, their
numbers, and the memory of its local solver. A process with the same blocks again restores its part unchanged, to
the last bit. Otherwise parts are split into blocks and reassembled: every array but the registry's `replicated`
names has one entry per block, trailing axes that differ (low-rank factors of different rank) are zero-padded,
and the solver's memory, which may belong to several blocks at once, is left out; solvers rebuild it.

Engines only carry bytes: `PackBlocks` is for `map_concat`, `UnpackBlocks` for `map_sum`. Neither raises:
an error on a worker is sent as a sentence, so that all processes report the same.

The replicated half is what every process that runs the loop knows:

    history.json                          the rows so far
    shared.json, shared.safetensors       v, s, K, residuals, the method's memory, counters, the clock

Shapes: B blocks of this process, N in all.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, get_type_hints

import torch
from torch import Tensor

from auqadmm.checkpoint.codec import CheckpointError, Json, Reader, Registry, Writer, is_instance, leaves
from auqadmm.checkpoint.files import parse
from auqadmm.core.history import Row
from auqadmm.core.reduce import Engine, Traffic, byte_array
from auqadmm.core.state import Blocks, Consensus, Setup, State
from auqadmm.core.stopping import Certificate
from auqadmm.verdict.monitor import Gate

if TYPE_CHECKING:
    from auqadmm.blocks.shard import Shard

# ---------------------------------------------------------------------- the blocks' half
Part = tuple[bytes, bytes]  # structure as JSON, arrays as safetensors


def to_bytes(arrays: Mapping[str, Tensor]) -> bytes:
    from safetensors.torch import save

    return save(dict(arrays))


def from_bytes(name: str, data: bytes) -> dict[str, Tensor]:
    from safetensors.torch import load

    try:
        return load(data)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # any error of the parser on hostile bytes; a Rust panic is no Exception
        raise CheckpointError(f"{name} does not hold arrays ({type(error).__name__})") from None


# ---------------------------------------------------------------------- saving
@dataclass(frozen=True)
class PackBlocks:
    """A map over blocks: one part per process, as bytes; `sizes` (1, 2) are its lengths; −1: the text is an error."""

    registry: Registry

    def __call__(self, shard: Shard, blocks: object) -> dict[str, Tensor]:
        try:
            text, arrays = self._part(shard, blocks)
        except (CheckpointError, MemoryError) as error:
            text, arrays = (str(error) or type(error).__name__).encode(), b""
            return {"sizes": torch.tensor([[len(text), -1]]), "text": byte_array(text), "arrays": byte_array(arrays)}
        return {
            "sizes": torch.tensor([[len(text), len(arrays)]]),
            "text": byte_array(text),
            "arrays": byte_array(arrays),
        }

    def _part(self, shard: Shard, blocks: object) -> Part:
        solver = None
        writer = Writer(self.registry, {}, shard.device)
        if isinstance(blocks, Blocks):
            solver, blocks = blocks.solver_memory, replace(blocks, solver_memory=None)
            self._check(shard, blocks)
        tree = {"index": list(shard.index), "blocks": writer.encode(blocks, "blocks")}
        # the solver recognises its data and its weights by identity
        writer.refs = {"shard": shard, "W": getattr(blocks, "W", None)}
        tree["solver"] = writer.encode(solver, "solver")
        return json.dumps(tree, allow_nan=False).encode(), to_bytes(writer.arrays)

    def _check(self, shard: Shard, blocks: Blocks) -> None:
        for name, x in leaves(blocks):
            if name not in self.registry.replicated and (x.ndim == 0 or x.shape[0] != shard.blocks):
                raise CheckpointError(f"The state of blocks holds {name!r} {tuple(x.shape)}, which is not per block.")


def split(packed: Mapping[str, Tensor]) -> list[Part]:
    """The parts of all processes, from what `map_concat` returns."""
    sizes = packed["sizes"].tolist()
    texts = _as_bytes(packed["text"], [a for a, _ in sizes])
    for text, (_, size) in zip(texts, sizes, strict=True):
        if size < 0:
            raise CheckpointError(text.decode())
    arrays = _as_bytes(packed["arrays"], [b for _, b in sizes])
    return list(zip(texts, arrays, strict=True))


def _as_bytes(x: Tensor, sizes: Sequence[int]) -> list[bytes]:
    return [part.cpu().numpy().tobytes() for part in x.split(list(sizes))]


# ---------------------------------------------------------------------- restoring
@dataclass(frozen=True)
class RefusedState:
    """In place of the state of blocks: an error."""

    why: str


def reasons(engine: Engine, blocks: object) -> str:
    """The errors of the processes, each sentence once."""
    sentences = engine.map_concat(_why, blocks)
    texts = _as_bytes(sentences["text"], sentences["sizes"].flatten().tolist())
    return "; ".join(dict.fromkeys(text.decode() for text in texts if text))


def _why(shard: Shard, blocks: object) -> dict[str, Tensor]:
    text = blocks.why.encode() if isinstance(blocks, RefusedState) else b""
    return {"sizes": torch.tensor([[len(text)]]), "text": byte_array(text)}


@dataclass(frozen=True)
class UnpackBlocks:
    """A map over blocks: the state of the local blocks, from the parts of all processes; counts refusals."""

    registry: Registry
    parts: tuple[Part, ...]

    def __call__(self, shard: Shard, blocks: object, shared: object) -> tuple[Any, dict[str, Tensor]]:
        try:
            restored: Blocks | RefusedState | None = self._restored(shard)
        except CheckpointError as error:
            restored = RefusedState(str(error))
        except Exception as error:  # untrusted bytes: any error is a refusal
            restored = RefusedState(f"it cannot be restored ({type(error).__name__}: {error})")
        return restored, {"refused": torch.tensor(float(isinstance(restored, RefusedState)), dtype=torch.float64)}

    def _restored(self, shard: Shard) -> Blocks | None:
        trees = [self._tree(i, text) for i, (text, _) in enumerate(self.parts)]
        numbers = [j for tree in trees for j in tree["index"]]
        if sorted(numbers) != list(range(shard.census.blocks)):
            raise CheckpointError(f"the blocks files hold {len(numbers)} blocks, not {shard.census.blocks} once each")
        for i, tree in enumerate(trees):
            if tree["index"] == list(shard.index):
                return self._part(i, tree, shard, exact=True)
        return self._regrouped(trees, shard)

    def _tree(self, i: int, text: bytes) -> dict[str, Any]:
        tree = parse(f"blocks-{i:05d}.json", text)
        match tree:
            case {"index": list(index), "blocks": _, "solver": _} if all(type(j) is int for j in index):
                return tree
        raise CheckpointError(f"blocks-{i:05d}.json does not describe blocks")

    def _part(self, i: int, tree: dict[str, Any], shard: Shard, exact: bool) -> Blocks | None:
        arrays = from_bytes(f"blocks-{i:05d}.safetensors", self.parts[i][1])
        reader = Reader(self.registry, {}, shard.device, arrays)
        blocks = reader.decode(tree["blocks"])
        if blocks is None:
            return None
        if not isinstance(blocks, Blocks):
            raise CheckpointError(f"blocks-{i:05d}.json does not describe blocks")
        for name, x in leaves(blocks):
            if name not in self.registry.replicated and (x.ndim == 0 or x.shape[0] != len(tree["index"])):
                raise CheckpointError(f"blocks-{i:05d}.json: {name[:60]!r} is not per block")
        for x in (blocks.u, blocks.lam):
            if tuple(x.shape[1:]) != tuple(shard.shape[1:]) or x.dtype != shard.dtype:
                raise CheckpointError(f"blocks-{i:05d}.json: models of {tuple(x.shape[1:])}, not {shard.shape[1:]}")
        if not exact:
            return blocks
        reader.refs = {"shard": shard, "W": blocks.W}
        return replace(blocks, solver_memory=reader.decode(tree["solver"]))

    def _regrouped(self, trees: list[dict[str, Any]], shard: Shard) -> Blocks | None:
        wanted = {j: k for k, j in enumerate(shard.index)}
        values, rows, order = [], [], []
        for i, tree in enumerate(trees):
            own = [k for k, j in enumerate(tree["index"]) if j in wanted]
            if own:
                values.append(self._part(i, tree, shard, exact=False))
                rows.append(torch.tensor(own, device=shard.device))
                order += [wanted[tree["index"][k]] for k in own]
        place = torch.tensor(order, device=shard.device).argsort()
        return self._joined(values, rows, place, "")

    def _joined(self, values: list[Any], rows: list[Tensor], place: Tensor, name: str) -> Any:
        first = values[0]
        if any(type(x) is not type(first) for x in values):
            raise CheckpointError(f"the blocks of different processes do not agree on {name[:60]!r}")
        if isinstance(first, Tensor):
            if name in self.registry.replicated:
                return first
            return torch.cat(_pad([x[r] for x, r in zip(values, rows, strict=True)]))[place]
        if isinstance(first, Mapping):
            return {key: self._joined([x[key] for x in values], rows, place, key) for key in first}
        if isinstance(first, tuple):
            return tuple(self._joined(list(x), rows, place, name) for x in zip(*values, strict=True))
        if is_dataclass(first) and not isinstance(first, type):
            names = [f.name for f in fields(first) if f.init]
            parts = {n: self._joined([getattr(x, n) for x in values], rows, place, n) for n in names}
            return type(first)(**parts)
        return first


def _pad(tensors: list[Tensor]) -> list[Tensor]:
    """Zero-padded to equal trailing axes."""
    shape = [max(x.shape[k] for x in tensors) for k in range(1, tensors[0].ndim)]
    out = []
    for x in tensors:
        wide = x.new_zeros(len(x), *shape)
        wide[tuple(slice(n) for n in x.shape)] = x
        out.append(wide)
    return out


# ---------------------------------------------------------------------- the replicated half
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
