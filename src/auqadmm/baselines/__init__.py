"""What people use instead of ADMM: gradient methods on the sum over all workers, in the same loop.

lbfgs       smooth g
lbfgs-w     smooth g; preconditioned with the weights of auq-lr
owl-qn      g = l1‖v‖₁ + l2/2‖v‖²
fista       any g with a proximal map

A value with its gradient is one reduction, trial points of a line search included. None of them has ADMM's
residuals, so a run stops by its certificate.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from auqadmm.baselines.fista import FISTA
from auqadmm.baselines.preconditioned import PreconditionedLBFGS
from auqadmm.baselines.quasi_newton import LBFGS, OWLQN
from auqadmm.errors import InputError

if TYPE_CHECKING:
    from auqadmm.core.solve import Method

__all__ = ["FISTA", "KNOWN", "LBFGS", "OWLQN", "PreconditionedLBFGS", "resolve"]

KNOWN: dict[str, Callable[[], Method]] = {method.name: method for method in (LBFGS, PreconditionedLBFGS, OWLQN, FISTA)}


def resolve(name: str) -> Method:
    """A baseline by name.

    Parameters
    ----------
    name
        One of `KNOWN`, in any case.

    Returns
    -------
    Method
        With its default parameters.

    Raises
    ------
    InputError
        There is none of this name.

    Examples
    --------
    >>> import auqadmm as aq
    >>> aq.baselines.resolve("fista").name
    'fista'
    """
    baseline = KNOWN.get(name.lower())
    if baseline is None:
        raise InputError(f"Unknown baseline {name!r}; known baselines are {', '.join(map(repr, KNOWN))}.")
    return baseline()


def __dir__() -> list[str]:
    return sorted(__all__)
