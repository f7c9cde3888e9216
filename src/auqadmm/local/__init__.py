"""Local solvers: the u-step of all blocks at once (S2).

Direct      quadratic losses, dense blocks: a factorisation kept while the weights stay the same
NewtonCG    any loss, any blocks: truncated Newton
LBFGS       any loss, any blocks: keeps its memory from one u-step to the next
Mixed       LBFGS where it pays, NewtonCG elsewhere
Released    what the paper's released code does: a fixed amount of L-BFGS with a tiny step
"""

from __future__ import annotations

from collections.abc import Callable

from auqadmm.blocks.design import DensePiece
from auqadmm.blocks.shard import Shard
from auqadmm.errors import InputError, InputTypeError
from auqadmm.local.base import Accurate, LocalProblem, LocalSolution, LocalSolver
from auqadmm.local.direct import Direct
from auqadmm.local.lbfgs import LBFGS
from auqadmm.local.mixed import Mixed
from auqadmm.local.newton_cg import NewtonCG
from auqadmm.local.released import Released

__all__ = [
    "LBFGS",
    "Accurate",
    "Direct",
    "LocalProblem",
    "LocalSolution",
    "LocalSolver",
    "Mixed",
    "NewtonCG",
    "Released",
    "direct_suits",
    "resolve",
]

# A factorisation of this size takes seconds and 128 MiB per block; beyond it products with X are the better deal.
LARGEST_FACTOR = 4096

SOLVERS: dict[str, Callable[[], LocalSolver]] = {
    "direct": Direct,
    "newton-cg": NewtonCG,
    "lbfgs": LBFGS,
    "mixed": Mixed,
    "released": Released,
}


def resolve(solver: str | LocalSolver, shard: Shard | None = None) -> LocalSolver:
    """A local solver from its name.

    Parameters
    ----------
    solver
        A name, `"auto"`, one of the classes, or an object with `solve`.
    shard
        The blocks; `"auto"` takes `Direct` where it is applicable to them, else `Mixed`.

    Returns
    -------
    LocalSolver
        With its default settings, or the object itself.

    Raises
    ------
    InputError
        There is no solver of this name.
    InputTypeError
        The object has no method `solve`.

    Examples
    --------
    >>> import auqadmm as aq
    >>> type(aq.local.resolve("auto")).__name__
    'Mixed'
    """
    if isinstance(solver, type) and solver in SOLVERS.values():
        return solver()
    if not isinstance(solver, str):
        if not callable(getattr(solver, "solve", None)):
            raise InputTypeError(f"local must be {_known()} or a local solver object; got {type(solver).__name__}.")
        return solver
    if solver == "auto":
        return Direct() if shard is not None and direct_suits(shard) else Mixed()
    if solver not in SOLVERS:
        raise InputError(f"There is no local solver {solver!r}; use {_known()}.")
    return SOLVERS[solver]()


def _known() -> str:
    return ", ".join(repr(name) for name in ("auto", *SOLVERS))


def direct_suits(shard: Shard) -> bool:
    """Does `Direct` apply, and is it affordable?

    Parameters
    ----------
    shard
        The blocks of a process.

    Returns
    -------
    bool
        Squares of one column, dense blocks, and matrices that are not too large.
    """
    if not (shard.loss.unit_curvature and shard.design.dense and shard.shape[2] == 1):
        return False
    sizes = (min(piece.X.shape[1:]) for piece in shard.design.pieces if isinstance(piece, DensePiece))
    return max(sizes) <= LARGEST_FACTOR


def __dir__() -> list[str]:
    return sorted(__all__)
