"""Messages as bytes: what driver and workers send each other, and what processes sum.

Between driver and workers values are pickled here, so that an engine carries bytes and nothing else: by cloudpickle,
since losses and regularizers may be a user's own functions. Whoever can send such bytes can run code: see
docs/security.md. Arrays go as numpy arrays. The settings of a run, `Setup`, may hold the multipliers of a warm start:
they are sent once and known by number afterwards.

Between processes that run the same loop many arrays go in one message: summands in float64 behind a head of a few
numbers, other arrays as their bytes.
"""

from __future__ import annotations

import io
import math
import pickle
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from auqadmm.core.state import Setup

Known = tuple[int, Setup | None]  # the setup that workers know, and its number


def dumps(value: object) -> bytes:
    """The bytes of a value, all of it."""
    return dumps_briefly(value, None)[0]


def dumps_briefly(value: object, known: Known | None) -> tuple[bytes, Known]:
    """The bytes of a value with a number in the place of its setup; and what must be known to read them."""
    import cloudpickle

    class Pickler(cloudpickle.Pickler):
        setup: Known = known or (0, None)

        def persistent_id(self, x: object) -> tuple[str, object] | None:
            if isinstance(x, Tensor):
                return "tensor", x.detach().cpu().numpy()
            if isinstance(x, Setup) and known is not None:
                if x is not self.setup[1]:
                    if self.setup is not known:  # a second one in one message goes as it is
                        return None
                    self.setup = (known[0] + 1, x)
                return "setup", self.setup[0]
            return None

    file = io.BytesIO()
    pickler = Pickler(file, protocol=pickle.HIGHEST_PROTOCOL)
    pickler.dump(value)
    return file.getvalue(), pickler.setup


def loads(data: bytes, known: Known = (0, None)) -> Any:
    """The inverse of both."""

    class Unpickler(pickle.Unpickler):
        def persistent_load(self, stored: tuple[str, Any]) -> Tensor | Setup | None:
            kind, value = stored
            if kind == "tensor":
                # arrays in a pickle are not writable, which torch warns of; nothing writes into a state
                return torch.from_numpy(value if value.flags.writeable else value.copy())
            if value != known[0]:
                raise RuntimeError("the settings of this run are not known here")
            return known[1]

    return Unpickler(io.BytesIO(data)).load()


HEAD = 3  # numbers in front of the summands


def packed(device: torch.device, head: tuple[int, ...], arrays: Mapping[str, Tensor]) -> Tensor:
    """The head, and then the arrays one after the other."""
    parts = [torch.tensor(head, dtype=torch.float64), *arrays.values()]
    return torch.cat([x.to(device, torch.float64).reshape(-1) for x in parts])


def unpacked(flat: Tensor, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What is behind the head, under the names and in the shapes of `like`."""
    parts = flat.split([x.numel() for x in like.values()])
    return {name: part.reshape(x.shape) for (name, x), part in zip(like.items(), parts, strict=True)}


def digest(summands: Mapping[str, Tensor], shared: object, below: int) -> int:
    """A number from the names and shapes of summands and the bits of the replicated models."""
    layout = ";".join(f"{name}{tuple(x.shape)}" for name, x in summands.items())
    model = sum(int(v.contiguous().view(torch.int64).sum()) for v in _models(shared))
    return (zlib.crc32(layout.encode()) + model) % below


def _models(shared: object) -> Iterator[Tensor]:
    """The replicated models that a round is told."""
    if isinstance(shared, Tensor):
        if shared.dtype == torch.float64:
            yield shared
    elif isinstance(shared, tuple):
        for x in shared:
            yield from _models(x)
    elif hasattr(shared, "v"):
        yield from _models(shared.v)


def raw(x: Tensor) -> Tensor:
    """The bytes of an array of any dtype."""
    return x.contiguous().reshape(-1).view(torch.uint8)


def entry_size(x: Tensor) -> int:
    """Bytes of one entry along the first axis."""
    return math.prod(x.shape[1:]) * x.element_size()


def from_bytes(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)


def to_bytes(x: Tensor) -> bytes:
    return x.numpy().tobytes()


def span(names: tuple[str, ...]) -> str:
    """Names of consecutive blocks, in words."""
    return "" if not names else names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
