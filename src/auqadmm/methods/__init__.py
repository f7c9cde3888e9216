"""How the weights W_j are chosen, one file per idea."""

from __future__ import annotations

from typing import Any

from auqadmm.methods.balanced import RB
from auqadmm.methods.constant import C
from auqadmm.methods.spectral import AC
from auqadmm.methods.uncertainty import AUQ, UQ

__all__ = ["AC", "AUQ", "KNOWN", "RB", "UQ", "C", "resolve"]

KNOWN: dict[str, Any] = {method.name: method for method in (C, RB, AC, UQ, AUQ)}


def resolve(method: Any) -> Any:
    """A method by name or as an object; "auto" is the one we recommend."""
    if isinstance(method, str):
        name = method.lower()
        if name == "auto":
            return RB(normalized=True)
        if name in KNOWN:
            return KNOWN[name]()
        known = ", ".join(repr(n) for n in ("auto", *KNOWN))
        raise ValueError(f"Unknown method {method!r}; known methods are {known}.")
    if isinstance(method, type) and issubclass(method, tuple(KNOWN.values())):
        return method()
    if not (hasattr(method, "init") and hasattr(method, "step")):
        raise ValueError(f"method must be a name or an object with init and step, got {type(method).__name__}.")
    return method
