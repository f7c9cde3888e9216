"""What is known about the Hessians H_j = ∇²f_j: estimates of their diagonals (S7).

"exact"        the diagonal itself, from the loss
"lanczos"      the diagonal of a rank-r approximation, the paper's choice
"hutchinson"   unbiased, from random signs
"""

from __future__ import annotations

from auqadmm.curvature.base import Curvature, Estimate, Exact, HessianPoint, Hutchinson
from auqadmm.curvature.lanczos import Lanczos, Ritz
from auqadmm.errors import InputError

__all__ = [
    "Curvature",
    "Estimate",
    "Exact",
    "HessianPoint",
    "Hutchinson",
    "Lanczos",
    "Ritz",
    "resolve",
]


def resolve(curvature: str | Curvature, rank: int = 5, seed: int = 0) -> Curvature:
    """The estimator of a name, or the object itself.

    Parameters
    ----------
    curvature
        `"exact"`, `"lanczos"`, `"hutchinson"`, or an object with a method `diagonal(point) -> Estimate`.
    rank
        Rank of `"lanczos"`; the others, and an object, do not use it.
    seed
        Seed of `"lanczos"` and `"hutchinson"`; an object keeps its own.

    Returns
    -------
    Curvature
        An estimator.

    Raises
    ------
    InputError
        It is none of these.

    Examples
    --------
    >>> import auqadmm as aq
    >>> aq.curvature.resolve("lanczos", rank=3)
    Lanczos(rank=3, seed=0, start='gaussian')
    """
    if curvature == "lanczos":
        return Lanczos(rank=rank, seed=seed)
    if curvature == "exact":
        return Exact()
    if curvature == "hutchinson":
        return Hutchinson(seed=seed)
    # a class has the method too, but is not yet an estimator
    if isinstance(curvature, (str, type)) or not callable(getattr(curvature, "diagonal", None)):
        raise InputError(
            f"Unknown curvature {curvature!r}: use 'exact', 'lanczos', 'hutchinson', "
            "or an object with a method diagonal(point)."
        )
    return curvature


def __dir__() -> list[str]:
    return sorted(__all__)
