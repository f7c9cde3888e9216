"""A site that lies once: from a chosen answer on, the next one that can be turned into a lie is."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from auqadmm.engines import protocol
from auqadmm.sites import serving
from tests.sites.rig import LARGEST

LIES = ("shapes", "nan", "huge", "replay", "garbage", "large")


def lying(how: str, at: int) -> Callable[[], None]:
    """Patches the process that it is called in; `at`: the answer that is a lie."""

    def patch() -> None:
        honest = serving.Run.__call__
        count, last = 0, b""

        def answer(self: serving.Run, number: int, body: bytes) -> bytes:
            nonlocal count, last
            data = honest(self, number, body)
            count += 1
            if count == at:
                print(f"lies: {how}, message {number}", flush=True)
                data, last = told(how, data, last), data
            else:
                last = data
            return data

        serving.Run.__call__ = answer  # type: ignore[method-assign]

    return patch


def told(how: str, data: bytes, last: bytes) -> bytes:
    if how == "garbage" or (how == "replay" and not last):
        return os.urandom(len(data))
    if how == "replay":
        return last
    if how == "large":
        return data + bytes(LARGEST)
    answer = protocol.loads(data)
    seen: list[bool] = []
    changed = _changed(answer.get("message"), how, seen)
    if not seen:  # no array to change
        changed = {"nan": float("inf"), "huge": 1e300}.get(how, [answer.get("message")])
    answer["message"] = changed
    return _written(answer)


def _written(answer: Any) -> bytes:
    if isinstance(answer["message"], float) and np.isinf(answer["message"]):
        answer["message"] = torch.tensor(float("nan"))
    return protocol.dumps(answer)


def _changed(value: Any, how: str, seen: list[bool]) -> Any:
    """The first array is changed."""
    if seen:
        return value
    if isinstance(value, dict):
        return {k: _changed(x, how, seen) for k, x in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_changed(x, how, seen) for x in value)
    if not isinstance(value, Tensor | np.ndarray) or 0 in value.shape:
        return value
    if how == "shapes":
        seen.append(True)
        return torch.cat([value.reshape(-1)] * 2) if isinstance(value, Tensor) else np.concatenate([value] * 2)
    if isinstance(value, np.ndarray):  # masked: nobody sees more than noise
        seen.append(True)
        return np.frombuffer(os.urandom(value.nbytes), dtype=value.dtype).reshape(value.shape)
    if not value.is_floating_point():
        return value
    seen.append(True)
    out = value.clone()
    out.view(-1)[0] = float("nan") if how == "nan" else 1e300
    return out
