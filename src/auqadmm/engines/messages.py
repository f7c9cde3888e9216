"""What driver and workers send each other, as bytes: pickled here, so that an engine only carries bytes.

cloudpickle, since losses and regularizers may be a user's functions. Anyone who can send such bytes can run code: see
docs/security.md. Arrays go as numpy arrays. The settings of a run, `Setup`, may have the multipliers of a warm start:
they are sent once and referred to by number afterwards.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import torch
from torch import Tensor

from auqadmm.core.state import Setup

Known = tuple[int, Setup | None]  # the setup that workers have, and its number


def dumps(value: object) -> bytes:
    """The bytes of a value, all of it."""
    return dumps_briefly(value, None)[0]


def dumps_briefly(value: object, known: Known | None) -> tuple[bytes, Known]:
    """The bytes of a value with a number in place of its setup; and the setup needed to read them."""
    import cloudpickle

    class Pickler(cloudpickle.Pickler):
        setup: Known = known or (0, None)

        def persistent_id(self, x: object) -> tuple[str, object] | None:
            if isinstance(x, Tensor):
                return "tensor", x.detach().cpu().numpy()
            if isinstance(x, Setup) and known is not None:
                if x is not self.setup[1]:
                    if self.setup is not known:  # a second setup in one message is pickled in full
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
