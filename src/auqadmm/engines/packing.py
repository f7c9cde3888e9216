"""Many arrays in one message: summands in float64 after a header of a few numbers, other arrays as their bytes."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

HEAD = 3  # numbers in front of the summands


def packed(device: torch.device, head: tuple[int, ...], arrays: Mapping[str, Tensor]) -> Tensor:
    """The header, and then the arrays one after the other."""
    parts = [torch.tensor(head, dtype=torch.float64), *arrays.values()]
    return torch.cat([x.to(device, torch.float64).reshape(-1) for x in parts])


def unpacked(flat: Tensor, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The arrays after the header, with the names and shapes of `like`."""
    parts = flat.split([x.numel() for x in like.values()])
    return {name: part.reshape(x.shape) for (name, x), part in zip(like.items(), parts, strict=True)}


def digest(summands: Mapping[str, Tensor], shared: object, below: int) -> int:
    """A number from the names and shapes of summands and the bits of the replicated models."""
    layout = ";".join(f"{name}{tuple(x.shape)}" for name, x in summands.items())
    model = sum(int(v.contiguous().view(torch.int64).sum()) for v in _models(shared))
    return (zlib.crc32(layout.encode()) + model) % below


def _models(shared: object) -> Iterator[Tensor]:
    """The replicated models that a round sends."""
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
