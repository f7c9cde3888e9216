"""What driver and workers send each other, as bytes: names and arrays, no code.

    8 bytes   length of the text, little endian
    text      JSON: structure, numbers, names of operations and classes            (operations.py)
    rest      safetensors: the arrays that the text names

Values are written as in checkpoints, with more kinds of them:

    an operation                    {"op": name}, with {"args": […]} in front of its own, or {"of": the object it is of}
    the settings of a run           {"ref": "setup"}: sent once in the envelope, known by a number afterwards
    numpy arrays, dtypes, sets, ranges, bytes, sparse matrices
    a user's own code               {"pickle": name}; only where both ends allow it (`own_code`)

Reading makes objects of listed classes only, with fields of the annotated kinds. Anything else is a `ProtocolError`.
"""

from __future__ import annotations

import functools
import io
import json
import pickle
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.sparse
import torch
from safetensors.numpy import load, save
from torch import Tensor

from auqadmm.checkpoint.codec import CheckpointError, Json, Reader, Registry, Writer
from auqadmm.checks import strict_json
from auqadmm.core.state import Setup
from auqadmm.engines.operations import (
    ARGUMENT_NAMES,
    ARGUMENTS,
    CONSTANTS,
    FUNCTION_NAMES,
    FUNCTIONS,
    STEPS,
    Annotated,
    is_step,
    place_of,
    thing,
)
from auqadmm.errors import InputError

Known = tuple[int, Setup | None]  # the setup that workers have, and its number

LARGEST = 1 << 32  # bytes of a message; sites set a lower limit of their own
DEEPEST = 60  # levels of nesting
ARRAYS = "fiub"  # kinds of numpy arrays that go as they are; others as bytes of their kind


class ProtocolError(InputError):
    """Something that the protocol has no word for."""


class ArgumentClasses(Registry):
    """The listed classes; each is loaded when a message names it."""

    def __init__(self) -> None:
        super().__init__({})

    def name_of(self, value: object) -> str | None:
        return ARGUMENT_NAMES.get(place_of(type(value)))

    def class_of(self, name: str) -> type | None:
        return thing(ARGUMENTS[name]) if name in ARGUMENTS else None

    def hints_of(self, cls: type) -> Mapping[str, Any]:
        return _hints(cls)


@functools.cache
def _hints(cls: type) -> Mapping[str, Any]:
    return typing.get_type_hints(cls, localns=Annotated())


ARGUMENT_CLASSES = ArgumentClasses()


# ---------------------------------------------------------------------- values to text and arrays
@dataclass
class Encoder(Writer):
    """`known`: the setup that the other end has; None: there is none to refer to."""

    known: Known | None = None
    own_code: bool = False
    setup: Known = (0, None)

    def __post_init__(self) -> None:
        self.setup = self.known or (0, None)

    def encode(self, value: object, path: str) -> Json:
        if value is None or isinstance(value, bool | int | float | str | Tensor):
            return super().encode(value, path)
        if isinstance(value, Setup) and self.known is not None and self._is_the_setup(value):
            return {"ref": "setup"}
        if (own := self._plain(value, path)) is not None:
            return own
        if (
            ARGUMENT_CLASSES.name_of(value) is None
            and callable(value)
            and (operation := self._operation(value, path)) is not None
        ):
            return operation
        try:
            return super().encode(value, path)
        except CheckpointError:
            if not self.own_code:
                raise ProtocolError(_unknown(value)) from None
        self.arrays[path] = torch.frombuffer(bytearray(_pickled(value)), dtype=torch.uint8)
        return {"pickle": path}

    def _is_the_setup(self, value: Setup) -> bool:
        """Is it the one that is known, or the first new one of this message? A second one is sent in full."""
        assert self.known is not None
        if value is not self.setup[1] and self.setup is self.known:
            self.setup = (self.known[0] + 1, value)
        return value is self.setup[1]

    def _plain(self, value: object, path: str) -> Json:
        """Kinds of values that checkpoints do not have; None for others."""
        for name, place in CONSTANTS.items():
            if isinstance(value, Registry) and value is thing(place):
                return {"constant": name}
        match value:
            case torch.device():
                return {"device": value.type}
            case torch.dtype():
                return {"dtype": str(value).removeprefix("torch.")}
            case np.bool_():
                return bool(value)
            case bytes():
                self.arrays[path] = torch.from_numpy(np.frombuffer(value, dtype=np.uint8).copy())
                return {"bytes": path}
            case range():
                return {"range": [value.start, value.stop, value.step]}
            case set() | frozenset():
                return {"set": [self.encode(x, f"{path}.{i}") for i, x in enumerate(sorted(value))]}
            case np.ndarray():
                return self._array(value, path)
            case dict() if not all(isinstance(key, str) for key in value):
                keys, items = (self.encode(list(x), f"{path}.{k}") for k, x in enumerate((value, value.values())))
                return {"keys": keys, "items": items}
        if scipy.sparse.issparse(value):
            rows = scipy.sparse.csr_matrix(value)
            parts = {name: self.encode(getattr(rows, name), f"{path}.{name}") for name in ("data", "indices", "indptr")}
            return {"sparse": parts, "shape": [int(n) for n in rows.shape]}
        return None

    def _array(self, value: np.ndarray, path: str) -> Json:
        if value.dtype == object:
            return {"objects": [self.encode(x, f"{path}.{i}") for i, x in enumerate(value.tolist())]}
        array = np.asarray(value, order="C")  # a copy where memory is not contiguous
        entry: dict[str, Json] = {"array": path, "shape": list(array.shape)}
        if array.dtype.kind not in ARRAYS or array.dtype.byteorder == ">" or array.dtype == np.longdouble:
            entry["kind"] = array.dtype.str
            array = np.frombuffer(array.tobytes(), dtype=np.uint8)
        self.arrays[path] = array  # type: ignore[assignment]  # numpy's go as they are
        return entry

    def _operation(self, fn: Any, path: str) -> Json:
        args: tuple[object, ...] = ()
        if isinstance(fn, functools.partial) and not fn.keywords:
            fn, args = fn.func, fn.args
        owner = getattr(fn, "__self__", None)
        if owner is not None:
            step = next((name for name, place in STEPS.items() if is_step(owner, fn.__name__, place)), None)
            return None if step is None else {"op": step, "of": self.encode(owner, f"{path}.of")}
        if not hasattr(fn, "__qualname__") or (name := FUNCTION_NAMES.get(place_of(fn))) is None:
            return None
        if not args:
            return {"op": name}
        return {"op": name, "args": [self.encode(x, f"{path}.a{i}") for i, x in enumerate(args)]}


def _unknown(value: object) -> str:
    what = getattr(value, "__qualname__", type(value).__name__)
    return (
        f"{what} is not among the things that workers know, and code of your own is sent to them only on request: "
        "engine=aq.engines.Ray(own_code=True), or Dask; never to sites."
    )


def _pickled(value: object) -> bytes:
    import cloudpickle

    file = io.BytesIO()
    cloudpickle.dump(value, file, protocol=pickle.HIGHEST_PROTOCOL)
    return file.getvalue()


# ---------------------------------------------------------------------- and back
@dataclass
class Decoder(Reader):
    """The inverse; `setup` is the one that is known here."""

    setup: Setup | None = None
    own_code: bool = False
    largest: int = LARGEST  # bytes of an array, whose axes may be repeated by a stride of zero
    depth: int = field(default=0, init=False)

    def decode(self, tree: Json) -> Any:
        if tree is None or isinstance(tree, bool | str | int | float):
            return tree
        self.depth += 1
        if self.depth > DEEPEST:
            raise ProtocolError("a message is nested too deeply")
        try:
            return self._decoded(tree)
        finally:
            self.depth -= 1

    def _decoded(self, tree: Json) -> Any:
        match tree:
            case {"op": str(name), **rest} if rest.keys() <= {"of", "args"}:
                return self._operation(name, rest)  # type: ignore[arg-type]  # JSON
            case {"ref": "setup", **rest} if not rest:
                if self.setup is None:
                    raise ProtocolError("the settings of this run are not known here")
                return self.setup
            case {"constant": str(name), **rest} if not rest and name in CONSTANTS:
                return thing(CONSTANTS[name])
            case {"device": str(), **rest} if not rest:
                return self.device  # where a worker computes is its own affair
            case {"dtype": "float64" | "float32" | "int64" | "bool" as name, **rest} if not rest:
                return getattr(torch, name)
            case {"bytes": str(name), **rest} if not rest:
                return self._numbers(name).tobytes()
            case {"range": [int(start), int(stop), int(step)], **rest} if not rest and step:
                return range(start, stop, step)
            case {"set": list(items), **rest} if not rest:
                return {self.decode(x) for x in items}
            case {"objects": list(items), **rest} if not rest:
                array = np.empty(len(items), dtype=object)
                array[:] = [self.decode(x) for x in items]
                return array
            case {"keys": keys, "items": items, **rest} if not rest:
                return dict(zip(self.decode(keys), self.decode(items), strict=True))
            case {"array": str(name), "shape": list(shape), **rest} if rest.keys() <= {"kind"}:
                return self._array(name, shape, rest.get("kind"))
            case {"sparse": dict(parts), "shape": [int(n), int(m)], **rest} if not rest:
                return self._sparse(parts, (n, m))
            case {"pickle": str(name), **rest} if not rest and self.own_code:
                return pickle.loads(self._numbers(name).tobytes())
        return super().decode(tree)

    def _placed(self, name: str, shape: list[Any], *layout: Any, **named: Any) -> Tensor:
        made = super()._placed(name, shape, *layout, **named)
        if made.numel() * made.element_size() > self.largest:
            raise ProtocolError(f"the array {name[:60]!r} of {made.numel()} numbers is not read")
        return made

    def _numbers(self, name: str) -> np.ndarray:
        if name not in self.arrays:
            raise ProtocolError(f"the array {name[:60]!r} is missing")
        return self.arrays[name].numpy()

    def _array(self, name: str, shape: list[Any], kind: object) -> np.ndarray:
        array = self._numbers(name)
        if kind is not None:
            if not isinstance(kind, str) or len(kind) > 20 or np.dtype(kind).kind not in ARRAYS + "USMm":
                raise ProtocolError(f"an array of the kind {str(kind)[:20]!r} is not read")
            array = np.frombuffer(array.tobytes(), dtype=np.dtype(kind))
        return array.reshape(shape)

    def _sparse(self, parts: Mapping[str, Json], shape: tuple[int, int]) -> scipy.sparse.csr_matrix:
        if set(parts) != {"data", "indices", "indptr"}:
            raise ProtocolError("a sparse matrix is not complete")
        made = {name: self.decode(x) for name, x in parts.items()}
        matrix = scipy.sparse.csr_matrix((made["data"], made["indices"], made["indptr"]), shape=shape)
        matrix.check_format(full_check=True)
        return matrix

    def _operation(self, name: str, rest: Mapping[str, Json]) -> Any:
        if name in FUNCTIONS and "of" not in rest:
            fn = thing(FUNCTIONS[name])
            args = rest.get("args")
            if args is None:
                return fn
            return functools.partial(fn, *[self.decode(x) for x in args])  # type: ignore[union-attr]  # a list
        if name in STEPS and set(rest) == {"of"}:
            owner = self.decode(rest["of"])
            called = STEPS[name].rsplit(".", 1)[1]
            if is_step(owner, called, STEPS[name]):
                return getattr(owner, called)
        raise ProtocolError(f"{name[:60]!r} is not an operation that is known here")


# ---------------------------------------------------------------------- messages
def message(tree: Json, arrays: Mapping[str, Any]) -> bytes:
    """Text and arrays as bytes."""
    text = json.dumps(tree, allow_nan=False, separators=(",", ":")).encode()
    plain = {name: np.asarray(x.numpy() if isinstance(x, Tensor) else x, order="C") for name, x in arrays.items()}
    return len(text).to_bytes(8, "little") + text + save(plain)


def parsed(data: bytes, largest: int = LARGEST) -> tuple[Any, dict[str, Tensor]]:
    """The inverse; sizes are checked before anything is read."""
    if not 8 <= len(data) <= largest:
        raise ProtocolError(f"a message of {len(data)} bytes is not read")
    length = int.from_bytes(data[:8], "little")
    if length > len(data) - 8:
        raise ProtocolError("a message is cut off")
    try:
        tree = strict_json(data[8 : 8 + length])
        arrays = load(data[8 + length :])
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # any error of a parser on hostile bytes; a Rust panic is no Exception
        raise ProtocolError(f"a message cannot be read ({type(error).__name__})") from None
    try:  # arrays of a message are not writable, which torch warns of; nothing writes into a state
        return tree, {name: torch.from_numpy(x if x.flags.writeable else x.copy()) for name, x in arrays.items()}
    except TypeError:
        raise ProtocolError("a message has arrays of a kind that is not read") from None


def dumps(value: object, own_code: bool = False) -> bytes:
    """The bytes of a value."""
    encoder = Encoder(ARGUMENT_CLASSES, {}, torch.device("cpu"), own_code=own_code)
    return message(encoder.encode(value, "x"), encoder.arrays)


def loads(data: bytes, own_code: bool = False, largest: int = LARGEST) -> Any:
    """The inverse."""
    tree, arrays = parsed(data, largest)
    return _read(tree, arrays, None, own_code, largest)


def _read(tree: Json, arrays: Mapping[str, Tensor], setup: Setup | None, own_code: bool, largest: int) -> Any:
    device = torch.device("cpu")
    decoder = Decoder(ARGUMENT_CLASSES, {}, device, arrays, setup=setup, own_code=own_code, largest=largest)
    try:
        return decoder.decode(tree)
    except ProtocolError:
        raise
    except Exception as error:  # of a constructor that was given what it cannot use
        raise ProtocolError(f"a message is refused: {' '.join(str(error).split())[:300]}") from None


@dataclass(frozen=True)
class Envelope:
    """A request: its `number`, the versions of state that are still `alive`, what to `do` and with what; and how many
    `bytes` it had."""

    number: int
    alive: frozenset[int]
    do: str
    args: tuple[Any, ...]
    size: int


def request(
    number: int, alive: set[int], do: str, args: tuple[object, ...], known: Known, own_code: bool = False
) -> tuple[bytes, Known]:
    """The bytes of a request, and the setup that its reader then has."""
    encoder = Encoder(ARGUMENT_CLASSES, {}, torch.device("cpu"), known=known, own_code=own_code)
    trees = [encoder.encode(x, f"x.{i}") for i, x in enumerate(args)]
    setup: Json = None
    if encoder.setup is not known:
        whole = Encoder(ARGUMENT_CLASSES, {}, torch.device("cpu"), arrays=encoder.arrays, own_code=own_code)
        setup = [encoder.setup[0], whole.encode(encoder.setup[1], "setup")]
    knows = None if encoder.setup[1] is None else encoder.setup[0]
    head: Json = {"number": number, "alive": [*sorted(alive)], "setup": setup, "knows": knows, "do": do, "with": trees}
    return message(head, encoder.arrays), encoder.setup


def opened(data: bytes, known: Known, own_code: bool = False, largest: int = LARGEST) -> tuple[Envelope, Known]:
    """The inverse: the request, and the setup that is known after it."""
    tree, arrays = parsed(data, largest)
    match tree:
        case {
            "number": int(number),
            "alive": list(alive),
            "setup": setup,
            "knows": knows,
            "do": str(do),
            "with": list(trees),
        }:
            pass
        case _:
            raise ProtocolError("a message is not a request")
    if setup is not None:
        known = (int(setup[0]), _read(setup[1], arrays, None, own_code, largest))
    current = known[1] if knows == known[0] else None
    args = tuple(_read(x, arrays, current, own_code, largest) for x in trees)
    return Envelope(number, frozenset(map(int, alive)), do, args, len(data)), known
