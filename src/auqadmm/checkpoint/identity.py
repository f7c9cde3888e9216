"""What a run is: everything that decides its iterates, as JSON, so that a checkpoint can tell whether it belongs to it.

Objects are described by the names of their classes and their parameters. Functions (a user-defined loss) have only a
name, so the problem is also probed: values at two points, which must agree to rounding.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from auqadmm.checkpoint.codec import CheckpointError


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
