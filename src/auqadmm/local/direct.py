"""The u-step of a quadratic loss, solved with a factorisation that is kept while the weights stay the same.

    (X_jᵀ diag(c) X_j + W_j) u_j = X_jᵀ(c y) + W_j v + λ_j

written as a Newton step, which is exact for a quadratic, and repeated once or twice as iterative refinement:

    u ← u − H⁻¹∇F(u),   H = AᵀA + W,   A = √c X

rows ≥ features: Cholesky of the m×m matrix H. Fewer rows (Woodbury), with the n×n matrix S = I + AW⁻¹Aᵀ:

    H⁻¹g = W⁻¹g − W⁻¹Aᵀ S⁻¹ AW⁻¹g

Reference: G. H. Golub, C. F. Van Loan, Matrix Computations, 4th ed., sections 2.1.4, 3.5.3 and 4.2.

Shapes: B blocks, b blocks of a piece with n rows each, m features; C = 1.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from torch import Tensor

from auqadmm.blocks.shard import Shard
from auqadmm.errors import InputError
from auqadmm.local.base import Accurate, Iterate, LocalProblem, LocalSolution, count, select
from auqadmm.local.direct_factors import BlockFactors, factors
from auqadmm.local.tolerance import Tolerance, final_status

# One solve and a few steps of refinement: each gains the digits that the conditioning of H leaves, in
# double precision all of them at once.
REFINEMENTS = 10


class Direct(Accurate):
    """Cholesky or Woodbury, exact to rounding whatever the target.

    Forming a matrix counts as one Hessian-vector product per column multiplied with X; using it again is free.

    The target only decides the `converged` flags; parameters as in `Accurate`.

    Parameters
    ----------
    factor, tol
        As in `Accurate`.

    Raises
    ------
    ValueError
        A parameter has a value that it cannot have; the message names it.

    Examples
    --------
    >>> import numpy as np
    >>> import auqadmm as aq
    >>> X, y = np.array([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0], [2.0, 1.0]]), np.array([1.0, 2.0, 3.0, 6.0])
    >>> problem = aq.Problem(aq.LeastSquares(), aq.L2(1.0), [(X[:2], y[:2]), (X[2:], y[2:])])
    >>> aq.solve(problem, "c-admm", local=aq.local.Direct()).coef.round(1)
    array([2., 1.])
    """

    def solve(self, problem: LocalProblem, u0: Tensor, reference: float | None, memory: object) -> LocalSolution:
        _check(problem.shard)
        run = problem.shard.programs
        known, hvps = factors(problem, memory)
        iterate = run(_iterate_at, problem, known, u0)
        tolerance = Tolerance.known(problem, reference, self.factor, self.tol) or Tolerance.of(iterate, self.factor)
        iterations, active = count(iterate), iterate.finite
        at_once = 2 if run.active else 1  # on a GPU an extra step costs less than a synchronisation
        for _ in range(0, REFINEMENTS, at_once):
            iterate, iterations, active, left = run(_refine, problem, known, iterate, iterations, active, at_once)
            if not left:
                break
        converged, hvps = final_status(tolerance, problem, iterate, hvps)
        return LocalSolution(iterate.u, converged, iterate.grad_norm, hvps, iterations, known)


def _refine(
    problem: LocalProblem, factors: BlockFactors, iterate: Iterate, iterations: Tensor, active: Tensor, steps: int
) -> tuple[Iterate, Tensor, Tensor, Tensor]:
    """Steps u ← u − H⁻¹∇F(u) of the active blocks; is any still active?"""
    for _ in range(steps):
        active = active & (iterate.grad_norm > iterate.floor)
        trial = _iterate_at(problem, factors, select(active, iterate.u - factors.solve(iterate.grad), iterate.u))
        # Not better (rounding, or a factorisation that broke down): stay. Hardly better: stop after this step.
        better = active & (trial.grad_norm < iterate.grad_norm)
        active = active & (trial.grad_norm < 0.5 * iterate.grad_norm)
        iterations = iterations + better
        iterate = _select_iterates(better, trial, iterate)
    return iterate, iterations, active, (active & (iterate.grad_norm > iterate.floor)).any()


def _iterate_at(problem: LocalProblem, factors: BlockFactors, u: Tensor) -> Iterate:
    """F_j at u, by Gram matrices where they exist: smaller than X, and in float64 as accurate."""
    if factors.moment is None:
        return problem.at(u)
    return problem.around(GramPoint(u, factors.product(u) - factors.moment, factors))  # type: ignore[arg-type]


def _select_iterates(mask: Tensor, a: Iterate, b: Iterate) -> Iterate:
    """Blocks of a where the mask holds, of b elsewhere. The point serves for its Hessian, the same everywhere."""
    names = [f.name for f in fields(Iterate) if f.name != "point"]
    parts: dict[str, Any] = {name: select(mask, getattr(a, name), getattr(b, name)) for name in names}
    return replace(a, **parts)


@dataclass(frozen=True)
class GramPoint:
    """f_j at u, as far as a solve needs it: the gradient, and products with the Hessian."""

    u: Tensor
    grad: Tensor
    factors: BlockFactors

    def hvp(self, P: Tensor) -> Tensor:
        return self.factors.product(P)


def _check(shard: Shard) -> None:
    name = type(shard.loss).__name__
    if not shard.loss.quadratic:
        raise InputError(
            f"The direct local solver needs a quadratic loss and {name} is not one; use local='newton-cg'."
        )
    if not shard.loss.unit_curvature:
        raise InputError(
            f"The direct local solver needs squares with curvature 1 in every row and {name} does not say that it is "
            "made of them (unit_curvature); use local='newton-cg'."
        )
    if not shard.design.dense:
        raise InputError(
            "The direct local solver needs dense blocks and some are sparse; use local='newton-cg', "
            "which only multiplies with X."
        )
    if shard.shape[2] != 1:
        raise InputError(
            f"The direct local solver needs an unknown with one column and {name} has {shard.shape[2]}; "
            "use local='newton-cg'."
        )
