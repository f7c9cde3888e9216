"""Frozen state as JSON and arrays, and back: nothing is pickled, and reading runs no code but registered constructors.

    None, bool, int, str, finite float      themselves
    other floats                            {"float": "nan"}
    tuple, list, mapping of strings         {"tuple": […]}, {"list": […]}, {"dict": {…}}
    a dataclass of the registry             {"is": name, "fields": {…}}
    what every run rebuilds               {"ref": name}: the setup, the regularizer, a shard
    a tensor                                {"tensor": name of the array, "shape": […], and its layout}

Layout is part of the state: a product of the same numbers in another memory layout, or at another alignment, may
round differently. So strides are kept, axes that are only expanded stay so, and a tensor starts as far from a multiple
of 64 bytes as it did. Arrays store every entry once, whatever the strides.

The identity of a run is written in the same way: everything that decides its iterates, so that a checkpoint can tell
whether it belongs to it. Objects are described by the names of their classes and their parameters. Functions (a
user-defined loss) have only a name, so the problem is also probed: values at two points, which must agree to rounding.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from numbers import Integral, Real
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from auqadmm.errors import AuqadmmError

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"

ALIGNMENT = 64  # bytes; what torch's allocator gives
STRIDE_WASTE = 8  # memory that strides with gaps may take, relative to the entries


class CheckpointError(AuqadmmError, ValueError):
    """A checkpoint cannot be used or written; the message says which one and why.

    Examples
    --------
    >>> import numpy as np
    >>> import auqadmm as aq
    >>> X, y = np.array([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0], [2.0, 1.0]]), np.array([1.0, 2.0, 3.0, 6.0])
    >>> problem = aq.Problem(aq.LeastSquares(), aq.L2(1.0), [(X[:2], y[:2]), (X[2:], y[2:])])
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = aq.solve(problem, "c-admm", max_iter=5, checkpoint=folder)
    ...     try:
    ...         aq.solve(problem, "rb-admm", checkpoint=folder)
    ...     except aq.CheckpointError as refused:
    ...         print("belongs to another run" in str(refused))
    True
    """


class Registry:
    """The classes that a state may contain, by the names that files use.

    `replicated`: fields and keys in the state of blocks that have no leading axis B. `renamed`: the names in files of
    fields that are called otherwise there, by class.
    """

    def __init__(
        self,
        classes: Mapping[str, type],
        replicated: frozenset[str] = frozenset(),
        renamed: Mapping[type, Mapping[str, str]] | None = None,
    ) -> None:
        self.classes, self.replicated, self._renamed = dict(classes), replicated, renamed or {}
        self._names = {cls: name for name, cls in classes.items()}

    def name_of(self, value: object) -> str | None:
        return self._names.get(type(value))

    def class_of(self, name: str) -> type | None:
        return self.classes.get(name)

    def hints_of(self, cls: type) -> Mapping[str, Any]:
        """The annotations of its fields."""
        return typing.get_type_hints(cls)

    def fields_of(self, cls: type) -> dict[str, Field[Any]]:
        """The fields of a class that files contain, by their names there."""
        renamed = self._renamed.get(cls, {})
        return {renamed.get(f.name, f.name): f for f in fields(cls) if f.init}


# ---------------------------------------------------------------------- writing
@dataclass
class Writer:
    """Turns values into JSON; arrays are collected in `arrays`."""

    registry: Registry
    refs: Mapping[str, object]
    device: torch.device
    arrays: dict[str, Tensor] = field(default_factory=dict)
    _seen: dict[int, tuple[Tensor, Json]] = field(default_factory=dict)

    def encode(self, value: object, path: str) -> Json:
        for name, thing in self.refs.items():
            if value is thing and thing is not None:
                return {"ref": name}
        if value is None or isinstance(value, bool | str):
            return value
        if isinstance(value, Tensor):
            return self._tensor(value, path)
        if isinstance(value, Integral):
            return int(value)
        if isinstance(value, Real):
            number = float(value)
            return number if math.isfinite(number) else {"float": repr(number)}
        if isinstance(value, tuple | list):
            kind = "tuple" if isinstance(value, tuple) else "list"
            return {kind: [self.encode(x, f"{path}.{i}") for i, x in enumerate(value)]}
        if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
            return {"dict": {key: self.encode(x, f"{path}.{key}") for key, x in value.items()}}
        known = self.registry.name_of(value)
        if known is None:
            raise CheckpointError(
                f"A {type(value).__name__} at {path} cannot be saved: it is not among the registered classes."
            )
        stored = self.registry.fields_of(type(value))
        parts = {name: self.encode(getattr(value, f.name), f"{path}.{name}") for name, f in stored.items()}
        return {"is": known, "fields": parts}

    def _tensor(self, x: Tensor, path: str) -> Json:
        if id(x) in self._seen:
            return self._seen[id(x)][1]
        given, x = x, x.detach()
        packed = x.as_strided(_once(x.shape, x.stride()), x.stride(), x.storage_offset())
        self.arrays[path] = packed.cpu().contiguous()
        entry: dict[str, Json] = {"tensor": path, "shape": list(x.shape)}
        if x.numel() and _sound(packed.shape, x.stride(), packed.numel()):
            if list(x.stride()) != _contiguous(x.shape):  # axes of length 1 too: they decide how a product is computed
                entry["stride"] = list(x.stride())
            if (lead := x.data_ptr() % ALIGNMENT // x.element_size()) > 0:
                entry["lead"] = lead
        else:  # empty, or a small view of a large array: stored contiguously
            self.arrays[path] = x.cpu().contiguous()
        if x.device.type != self.device.type:
            entry["host"] = True
        self._seen[id(given)] = (given, entry)  # keeps the tensor alive, so that its id is not reused
        return entry


def _once(shape: Sequence[int], stride: Sequence[int]) -> list[int]:
    """The shape without expanded axes."""
    return [1 if s == 0 and n > 1 else n for n, s in zip(shape, stride, strict=True)]


def _sound(shape: Sequence[int], stride: Sequence[int], count: int) -> bool:
    """Do these strides map every entry to its own address, without wasting memory? `shape` is without repeats."""
    end = 1
    for s, n in sorted((s, n) for n, s in zip(shape, stride, strict=True) if n > 1):
        if s < end:
            return False
        end = s * (n - 1) + end
    return end <= STRIDE_WASTE * count


# ---------------------------------------------------------------------- reading
@dataclass
class Reader:
    """Turns JSON back into values; anything unexpected is a CheckpointError."""

    registry: Registry
    refs: Mapping[str, object]
    device: torch.device
    arrays: Mapping[str, Tensor]
    _made: dict[str, Tensor] = field(default_factory=dict)

    def decode(self, tree: Json) -> Any:
        if tree is None or isinstance(tree, bool | str | int | float):
            return tree
        match tree:
            case {"float": "nan" | "inf" | "-inf" as text, **rest} if not rest:
                return float(text)
            case {"tuple": list(items), **rest} if not rest:
                return tuple(self.decode(x) for x in items)
            case {"list": list(items), **rest} if not rest:
                return [self.decode(x) for x in items]
            case {"dict": dict(items), **rest} if not rest:
                return {key: self.decode(x) for key, x in items.items()}
            case {"ref": str(name), **rest} if not rest and name in self.refs:
                return self.refs[name]
            case {"is": str(name), "fields": dict(parts), **rest} if not rest:
                return self._object(name, parts)
            case {"tensor": str(name), "shape": list(shape), **layout}:
                return self._tensor(name, shape, layout)  # type: ignore[arg-type]  # JSON
        raise CheckpointError(f"an entry is not understood ({str(tree)[:60]})")

    def _object(self, name: str, parts: Mapping[str, Json]) -> object:
        cls = self.registry.class_of(name)
        if cls is None:
            raise CheckpointError(f"it names the class {name[:60]!r}, which is not among the registered ones")
        hints = self.registry.hints_of(cls)
        stored = self.registry.fields_of(cls)
        expected = set(stored)
        optional = {key for key, f in stored.items() if f.default is not MISSING or f.default_factory is not MISSING}
        if not expected - optional <= set(parts) <= expected:  # fields that came later have defaults
            odd = ", ".join(sorted((expected - optional - set(parts)) | (set(parts) - expected)))[:80]
            raise CheckpointError(f"the fields of {name} are not those of this version ({odd})")
        values = {key: self.decode(x) for key, x in parts.items()}
        for key, value in values.items():
            hint = hints[stored[key].name]
            if not is_instance(value, hint):
                raise CheckpointError(f"{name}.{key} is a {type(value).__name__}, not a {hint}")
        return cls(**{stored[key].name: value for key, value in values.items()})

    def _tensor(self, name: str, shape: list[Json], layout: Mapping[str, Json]) -> Tensor:
        if not set(layout) <= {"stride", "lead", "host"} or name not in self.arrays:
            raise CheckpointError(f"the array {name[:60]!r} is missing or its layout unknown")
        key = f"{name}:{shape}:{layout}"
        if key not in self._made:
            self._made[key] = self._placed(name, shape, **layout)
        return self._made[key]

    def _placed(self, name: str, shape: list[Any], stride: Any = None, lead: Any = 0, host: Any = False) -> Tensor:
        packed = self.arrays[name]
        stride = _contiguous(shape) if stride is None else stride
        whole = all(isinstance(n, int) and 0 <= n < 2**40 for n in (*shape, *stride, lead))
        if not whole or len(shape) != len(stride) or lead >= ALIGNMENT or math.prod(shape) >= 2**40:
            raise CheckpointError(f"the layout of {name[:60]!r} is not one of an array")
        once = _once(shape, stride) if packed.numel() else list(shape)
        if list(packed.shape) != once:
            raise CheckpointError(f"the array {name[:60]!r} is {tuple(packed.shape)}, not {tuple(once)}")
        device = torch.device("cpu") if host else self.device
        if packed.numel() == 0:
            return packed.to(device).clone()
        if not _sound(once, stride, packed.numel()):
            raise CheckpointError(f"the strides of {name[:60]!r} overlap or leave too much room")
        extent = 1 + sum(s * (n - 1) for n, s in zip(once, stride, strict=True))
        memory = torch.zeros(lead + extent, dtype=packed.dtype, device=device)
        memory.as_strided(once, stride, lead).copy_(packed)
        return memory.as_strided(shape, stride, lead)


def _contiguous(shape: Sequence[Any]) -> list[int]:
    if not all(isinstance(n, int) and 0 <= n < 2**40 for n in shape) or len(shape) > 8:
        raise CheckpointError("a shape is not one of an array")
    return [math.prod(max(n, 1) for n in shape[i + 1 :]) for i in range(len(shape))]


def is_instance(value: object, hint: Any) -> bool:
    """Is the value of the annotated kind? A protocol, or a function, may be any dataclass of the registry."""
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return True
    if hint is None or hint is types.NoneType:
        return value is None
    if origin in (typing.Union, types.UnionType):
        return any(is_instance(value, h) for h in inside)
    if origin is tuple:
        if not isinstance(value, tuple):
            return False
        hints = inside[:1] * len(value) if inside[-1] is Ellipsis else inside
        return len(value) == len(hints) and all(is_instance(x, h) for x, h in zip(value, hints, strict=True))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return isinstance(value, dict) and all(is_instance(x, inside[1]) for x in value.values())
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return isinstance(value, tuple | list) and all(is_instance(x, inside[0]) for x in value)
    if origin is typing.Literal:
        return value in inside
    if origin is Callable:
        return callable(value)
    if getattr(hint, "_is_protocol", False):
        return is_dataclass(value)
    if isinstance(hint, typing.TypeVar):
        return True
    if hint is float:
        return isinstance(value, float | int) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, hint)


def leaves(value: object, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """Every tensor inside, with the name of the field or key that contains it."""
    if isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, Mapping):
        for key, x in value.items():
            yield from leaves(x, key)
    elif isinstance(value, tuple | list):
        for x in value:
            yield from leaves(x, name)
    elif dataclasses.is_dataclass(value):
        for f in fields(value):
            if f.init:
                yield from leaves(getattr(value, f.name), f.name)


# ---------------------------------------------------------------------- what a run is
@dataclass(frozen=True)
class Identity:
    """`settings` name → description, `blocks` one hash each, `probes` to agree within `tolerance`, `versions`."""

    settings: Mapping[str, str]
    blocks: Sequence[str]
    probes: Sequence[float]
    tolerance: float
    versions: Mapping[str, str]

    def about(self) -> dict[str, object]:
        return {
            "settings": dict(self.settings),
            "blocks": list(self.blocks),
            "probes": [x if math.isfinite(x) else repr(x) for x in self.probes],
            "versions": dict(self.versions),
        }

    def check(self, about: Mapping[str, Any]) -> None:
        """CheckpointError with what differs, the likeliest cause first."""
        match about:
            case {"run": str(), "settings": dict(settings), "blocks": list(blocks), "versions": {"auqadmm": str(made)}}:
                pass
            case _:
                raise CheckpointError("checkpoint.json does not say which run it belongs to")
        ours = self.versions["auqadmm"]
        if _release(made) > _release(ours):
            raise CheckpointError(f"it was written by auqadmm {made[:20]}, newer than this {ours}")
        for name in dict.fromkeys([*self.settings, *settings]):
            mine, theirs = self.settings.get(name), settings.get(name)
            if mine != theirs:
                raise CheckpointError(f"it belongs to another run: its {name} is {_short(theirs)}, here {_short(mine)}")
        if len(blocks) != len(self.blocks):
            raise CheckpointError(f"it belongs to other data: {len(blocks)} blocks, here {len(self.blocks)}")
        other = [str(j) for j, (a, b) in enumerate(zip(blocks, self.blocks, strict=True)) if a != b]
        if other:
            which = f"block {other[0]} holds" if len(other) == 1 else f"{len(other)} blocks ({other[0]}, …) hold"
            raise CheckpointError(f"it belongs to other data: {which} other rows here")
        probes = about.get("probes")
        if not isinstance(probes, list) or len(probes) != len(self.probes):
            raise CheckpointError("checkpoint.json does not say which problem it belongs to")
        least = self.tolerance * max((abs(x) for x in self.probes if math.isfinite(x)), default=0.0)
        if not all(_close(a, b, self.tolerance, least) for a, b in zip(probes, self.probes, strict=True)):
            raise CheckpointError("it belongs to another problem: loss or regularizer have other values here")


def _close(a: object, b: float, tolerance: float, least: float) -> bool:
    """Equal to rounding; values small against the other probes may be cancellation error."""
    if not math.isfinite(b):
        return a == repr(b)
    return isinstance(a, float | int) and abs(a - b) <= tolerance * max(abs(a), abs(b), least)


def _short(text: object) -> str:
    text = "not said" if text is None else str(text)
    return text if len(text) <= 100 else text[:97] + "…"


def _release(version: str) -> tuple[int, ...]:
    """The leading numbers of a version; a development version counts as its release."""
    numbers = []
    for part in version.split(".")[:4]:
        digits = "".join(c for c in part if c in "0123456789")[:9]
        if not digits:
            break
        numbers.append(int(digits))
    return tuple(numbers)


def describe(value: object) -> str:
    """An object by the name of its class and its parameters; arrays by a hash, functions by their names."""
    if isinstance(value, Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray):
        return f"array {value.shape} {_digest(value)}"
    if value is None or isinstance(value, bool | str | torch.dtype):
        return repr(value)
    if isinstance(value, Real):  # numpy's numbers are described as Python's
        return repr(int(value) if isinstance(value, Integral) else float(value))
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {describe(value[key])}" for key in value) + "}"
    if isinstance(value, tuple | list):
        return "(" + ", ".join(map(describe, value)) + ")"
    if isinstance(value, type) or (callable(value) and hasattr(value, "__qualname__")):
        return str(value.__qualname__)
    if is_dataclass(value):
        parameters = {f.name: getattr(value, f.name) for f in fields(value) if f.init}
    else:
        parameters = {name: x for name, x in sorted(getattr(value, "__dict__", {}).items()) if name[0] != "_"}
    inside = ", ".join(f"{name}={describe(x)}" for name, x in parameters.items())
    return f"{type(value).__name__}({inside})"


def _digest(array: np.ndarray) -> str:
    body = repr(array.tolist()).encode() if array.dtype == object else array.tobytes()
    return hashlib.sha256(str(array.dtype).encode() + b"\0" + body).hexdigest()
