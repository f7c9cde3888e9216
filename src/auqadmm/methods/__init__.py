"""How the weights W_j are chosen: `scalar`, `uncertainty`, `auq_lr`; Newton's method; `auto`.

A method of your own is a subclass of `ConsensusADMM` whose `first_weights` gives the W_j (`aq.weights`) of blocks,
as a `Chosen`; or any object with `init(setup, reduce)` and `step(state, reduce)`, which return a `State`.
`auqadmm.testing.MethodSuite` checks either.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from auqadmm.core.consensus import Chosen, ConsensusADMM
from auqadmm.core.reduce import Reduce
from auqadmm.core.solve import Method
from auqadmm.core.state import Blocks, Consensus, Cost, Setup, State
from auqadmm.errors import InputError, InputTypeError
from auqadmm.methods.auq_lr.method import AUQLR
from auqadmm.methods.auto import ROUND_COST, Auto
from auqadmm.methods.newton import Newton
from auqadmm.methods.scalar import AC, RB, C
from auqadmm.methods.uncertainty import AUQ, UQ

__all__ = [
    "AC",
    "AUQ",
    "AUQLR",
    "KNOWN",
    "RB",
    "ROUND_COST",
    "UQ",
    "Auto",
    "Blocks",
    "C",
    "Chosen",
    "Consensus",
    "ConsensusADMM",
    "Cost",
    "Method",
    "Newton",
    "Reduce",
    "Setup",
    "State",
    "resolve",
]

KNOWN: dict[str, Callable[[], Method]] = {method.name: method for method in (C, RB, AC, UQ, AUQ, AUQLR, Newton)}


def resolve(method: object, known: Mapping[str, Callable[[], Method]] = KNOWN) -> Any:
    """A method by name or as an object.

    Parameters
    ----------
    method
        A name, one of the classes, or an object with `init` and `step`.
    known
        Methods by name, besides "auto".

    Returns
    -------
    Method
        With its default parameters, or the object itself.

    Raises
    ------
    InputError
        There is no method of this name.
    InputTypeError
        The object has no `init` or no `step`.

    Examples
    --------
    >>> import auqadmm as aq
    >>> aq.methods.resolve("c-admm").name
    'c-admm'
    """
    if isinstance(method, str):
        name = method.lower()
        if name == "auto":
            return Auto()
        if name in known:
            return known[name]()
        names = ", ".join(repr(n) for n in ("auto", *known))
        raise InputError(f"Unknown method {method!r}; known methods are {names}.")
    if isinstance(method, type) and method in (Auto, *known.values()):
        return method()
    if not (hasattr(method, "init") and hasattr(method, "step")):
        raise InputTypeError(f"method must be a name or an object with init and step, got {type(method).__name__}.")
    return method


def __dir__() -> list[str]:
    return sorted(__all__)
