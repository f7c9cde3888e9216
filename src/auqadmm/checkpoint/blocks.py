"""The blocks' half of a state, packed by the workers.

A *part* is the state of the blocks of one process: arrays with the leading axis B in the order of its blocks, their
numbers, and the memory of its local solver. A process with the same blocks again restores its part unchanged, to
the last bit. Otherwise parts are split into blocks and reassembled: every array but the registry's `replicated`
names has one entry per block, trailing axes that differ (low-rank factors of different rank) are zero-padded,
and the solver's memory, which may belong to several blocks at once, is left out; solvers rebuild it.

Engines only carry bytes: `PackBlocks` is for `map_concat`, `UnpackBlocks` for `map_sum`. Neither raises:
an error on a worker is sent as a sentence, so that all processes report the same.

Shapes: B blocks of this process, N in all.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from auqadmm.checkpoint.codec import CheckpointError, Reader, Registry, Writer, leaves
from auqadmm.checkpoint.files import parse
from auqadmm.core.reduce import Engine
from auqadmm.core.state import Blocks

if TYPE_CHECKING:
    from auqadmm.blocks.shard import Shard

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
            return {"sizes": torch.tensor([[len(text), -1]]), "text": _as_tensor(text), "arrays": _as_tensor(arrays)}
        return {
            "sizes": torch.tensor([[len(text), len(arrays)]]),
            "text": _as_tensor(text),
            "arrays": _as_tensor(arrays),
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


def _as_tensor(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)


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
    return {"sizes": torch.tensor([[len(text)]]), "text": _as_tensor(text)}


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
