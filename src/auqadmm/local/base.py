"""The u-step of all blocks at once: what is minimised, and what a solver returns (when it is done: descent.py).

    minimise over u_j   F_j(u) = f_j(u) − ⟨λ_j, u − v⟩ + ½‖u − v‖²_{W_j}                             (S2)
    ∇F_j(u) = ∇f_j(u) + W_j(u − v) − λ_j

F_j differs by a constant from the paper's f_j(u) + ½‖v − u + W_j⁻¹λ_j‖²_{W_j}; no inverse is needed.
Solvers move every block together and mask the ones that are done, so that one product with X serves them all.

A solver never writes into what it is given: the loop may return to an older state at any time.

Shapes: B blocks, m features, C columns; u, v, λ, P are (B, m, C), one number per block is (B,).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from auqadmm.blocks import single_precision
from auqadmm.blocks.shard import Shard
from auqadmm.checks import check_count, is_number
from auqadmm.errors import InputError
from auqadmm.metrics.lowrank import LowRank
from auqadmm.metrics.weights import Weights, dot

if TYPE_CHECKING:
    from auqadmm.blocks.loss import Hessian, Point
    from auqadmm.blocks.parts import Part

# ∇F_j is a sum of terms that cancel at the solution, each known to a few units in the last place: a norm below this
# many ulps of their sizes is noise, which no step can reliably lower.
GRADIENT_ULPS = 32.0


@dataclass(frozen=True)
class Iterate:
    """F_j at u: `point` is f_j there, `pull` is W_j(u − v), `scale` (B,) the size of the terms of ∇F_j.

    Norms are those of `LocalProblem.norm`; `plain_scale` is the scale in the Euclidean norm.
    """

    u: Tensor
    point: Point
    pull: Tensor
    grad: Tensor
    grad_norm: Tensor
    pull_norm: Tensor
    scale: Tensor
    plain_scale: Tensor

    @property
    def floor(self) -> Tensor:
        """(B,): the gradient norm that rounding allows."""
        return GRADIENT_ULPS * torch.finfo(self.u.dtype).eps * self.scale

    @property
    def rounding_error(self) -> Tensor:
        """(B,): the gradient's error, an ulp of its terms and that of `blocks/single_precision.py`."""
        ulp, moved = torch.finfo(self.u.dtype).eps * self.plain_scale, single_precision.change(self.point)
        return ulp if moved is None else ulp + torch.finfo(torch.float32).eps * moved

    @property
    def finite(self) -> Tensor:
        """(B,): the blocks whose gradient is finite."""
        return self.grad_norm < torch.inf

    def take(self, some: Part) -> Iterate:
        """Restricted to some blocks; only for losses of rows."""
        point, numbers = self.point.take(some), {}  # type: ignore[attr-defined]
        for name in ("pull", "grad", "grad_norm", "pull_norm", "scale", "plain_scale"):
            numbers[name] = getattr(self, name)[some.blocks]
        return Iterate(point.u, point, **numbers)


@dataclass(frozen=True)
class LocalProblem:
    """The local problems of all blocks of a process.

    Parameters
    ----------
    shard
        The blocks, with f_j.
    W
        Their weights.
    v
        The consensus, (B, m, C); may be an expanded view.
    lam
        The multipliers λ_j, (B, m, C).

    Examples
    --------
    >>> import numpy as np
    >>> import torch
    >>> import auqadmm as aq
    >>> X, y = np.array([[0.0, 1.0], [1.0, 0.0]]), np.array([1.0, 3.0])
    >>> shard = aq.Problem(aq.LeastSquares(), aq.Zero(), [(X, y)]).shard(torch.float64, torch.device("cpu"))
    >>> W = aq.weights.Scalar(torch.ones(1, dtype=torch.float64), 2, 1)
    >>> F = aq.local.LocalProblem(shard, W, shard.zeros(), shard.zeros())
    >>> F.at(shard.zeros()).grad.flatten().tolist()
    [-3.0, -1.0]
    """

    shard: Shard
    W: Weights
    v: Tensor
    lam: Tensor

    def take(self, some: Part) -> LocalProblem:
        """Restricted to some blocks.

        Parameters
        ----------
        some
            Which, with their shard.

        Returns
        -------
        LocalProblem
            F_j of these alone.
        """
        return LocalProblem(some.shard, self.W.take(some.blocks), self.v[some.blocks], self.lam[some.blocks])

    def value(self, point: Point) -> Tensor:
        """F_j.

        Parameters
        ----------
        point
            f_j at some u.

        Returns
        -------
        Tensor
            (B,).
        """
        gap = point.u - self.v
        return point.value + dot(0.5 * self.W.apply(gap) - self.lam, gap)

    def grad(self, point: Point) -> Tensor:
        """∇F_j.

        Parameters
        ----------
        point
            f_j at some u.

        Returns
        -------
        Tensor
            (B, m, C).
        """
        return point.grad + self.W.apply(point.u - self.v) - self.lam

    def hvp(self, point: Hessian, P: Tensor) -> Tensor:
        """(∇²f_j + W_j) P.

        Parameters
        ----------
        point
            ∇²f_j at some u.
        P
            (B, m, C).

        Returns
        -------
        Tensor
            (B, m, C).
        """
        return point.hvp(P) + self.W.apply(P)

    def hessian_diagonal(self, point: Point) -> Tensor:
        """The diagonal of ∇²f_j + W_j.

        Parameters
        ----------
        point
            f_j at some u.

        Returns
        -------
        Tensor
            (B, m, C).
        """
        return point.hessian_diagonal() + self.W.diagonal()

    def norm(self, x: Tensor) -> Tensor:
        """The norm of gradients: Euclidean, or that of W_j⁻¹ where W_j models the curvature (S12).

        Parameters
        ----------
        x
            (B, m, C).

        Returns
        -------
        Tensor
            (B,).
        """
        return (x * self.W.solve(x)).flatten(1).sum(1).clamp(min=0).sqrt() if self.curved else norm(x)

    @property
    def curved(self) -> bool:
        """Is W_j a model of the curvature?"""
        return bool(getattr(self.W, "curved", False))

    def at(self, u: Tensor) -> Iterate:
        """F_j at u, with the quantities that solvers reuse.

        Parameters
        ----------
        u
            (B, m, C).

        Returns
        -------
        Iterate
            Point, gradient, and their norms.
        """
        return self.around(self.shard.linearize(u))

    def near(self, u: Tensor, anchor: Tensor | None) -> Iterate:
        """F_j at u in single precision, relative to an anchor (`blocks/single_precision.py`).

        Parameters
        ----------
        u
            (B, m, C).
        anchor
            A u where the gradient is computed in double precision; None: u itself.

        Returns
        -------
        Iterate
            As from `at`.
        """
        shard = self.shard
        return self.around(
            single_precision.anchored(shard, u) if anchor is None else single_precision.nearby(shard, u, anchor)
        )

    def around(self, point: Point) -> Iterate:
        """F_j where f_j is known already.

        Parameters
        ----------
        point
            f_j at some u.

        Returns
        -------
        Iterate
            As from `at`.
        """
        pull = self.W.apply(point.u - self.v)
        grad = point.grad + pull - self.lam
        if self.curved:
            terms = torch.stack([point.grad, pull, self.lam.expand_as(grad), grad], -1)
            plain = torch.linalg.vector_norm(terms, dim=(1, 2))[:, :3].sum(1)
            f, w, lam, F = (terms * self.W.solve(terms)).sum((1, 2)).clamp(min=0).sqrt().unbind(-1)
            return Iterate(point.u, point, pull, grad, F, w, f + w + lam, plain)
        f, w, lam, F = (norm(x) for x in (point.grad, pull, self.lam, grad))
        scale = f + w + lam
        return Iterate(point.u, point, pull, grad, F, w, scale, scale)


@dataclass(frozen=True)
class LocalSolution:
    """What a solver returns.

    Attributes
    ----------
    u
        The new local models; a block that met NaN or infinity keeps its last finite model.
    converged
        (B,): ‖∇F_j(u_j)‖ is at most the target, or the floor that rounding allows.
    grad_norm
        (B,): ‖∇F_j(u_j)‖ in the norm of `LocalProblem.norm`, NaN where it could not be computed.
    hvps, iterations
        (B,): Hessian-vector products and steps spent on each block; a step of L-BFGS reads X as often as a product, and
        counts as one.
    memory
        State for the solver's next call (factors of a matrix), or None.

    Examples
    --------
    >>> import numpy as np
    >>> import torch
    >>> import auqadmm as aq
    >>> X, y = np.array([[0.0, 1.0], [1.0, 0.0]]), np.array([1.0, 3.0])
    >>> shard = aq.Problem(aq.LeastSquares(), aq.Zero(), [(X, y)]).shard(torch.float64, torch.device("cpu"))
    >>> W = aq.weights.Scalar(torch.ones(1, dtype=torch.float64), 2, 1)
    >>> F = aq.local.LocalProblem(shard, W, shard.zeros(), shard.zeros())
    >>> solution = aq.local.NewtonCG(tol=1e-8).solve(F, shard.zeros(), None, None)
    >>> solution.u.flatten().tolist(), solution.converged.tolist()
    ([1.5, 0.5], [True])
    """

    u: Tensor
    converged: Tensor
    grad_norm: Tensor
    hvps: Tensor
    iterations: Tensor
    memory: Any

    def put(self, some: Part, rest: LocalSolution, memory: object) -> LocalSolution:
        """Updated with a later solution of some blocks.

        Parameters
        ----------
        some
            Which.
        rest
            Theirs; what it took is added.
        memory
            Of the whole.

        Returns
        -------
        LocalSolution
            Of all blocks.
        """
        index = some.blocks
        return LocalSolution(
            u=self.u.index_copy(0, index, rest.u),
            converged=self.converged.index_copy(0, index, rest.converged),
            grad_norm=self.grad_norm.index_copy(0, index, rest.grad_norm),
            hvps=self.hvps.index_add(0, index, rest.hvps),
            iterations=self.iterations.index_add(0, index, rest.iterations),
            memory=memory,
        )


class LocalSolver(Protocol):
    """Solves the u-step of every block, to the accuracy the outer loop needs."""

    def solve(self, problem: LocalProblem, u0: Tensor, reference: float | None, memory: object) -> LocalSolution:
        """Solve the local problems of all blocks of a process.

        Parameters
        ----------
        problem
            F_j of every block.
        u0
            Where to start, (B, m, C).
        reference
            The size of W_j(u_j − v) in the last iteration, to which the accuracy is relative; None at first.
        memory
            What the call before returned as `memory`; None at first, and after blocks were placed elsewhere.

        Returns
        -------
        LocalSolution
            Models, and how each block ended.
        """
        ...


@dataclass(frozen=True)
class Accurate:
    """A solver with a target for ‖∇F_j‖.

    Parameters
    ----------
    factor
        The target relative to the outer residual.
    tol
        An absolute target instead.

    Raises
    ------
    ValueError
        A target is no positive finite number.

    Examples
    --------
    >>> import auqadmm as aq
    >>> aq.local.Accurate(factor=0.001)
    Accurate(factor=0.001, tol=None)
    >>> isinstance(aq.local.NewtonCG(tol=1e-8), aq.local.Accurate)
    True
    """

    factor: float = 0.01
    tol: float | None = None

    def __post_init__(self) -> None:
        if not (is_number(self.factor) and 0 < self.factor < math.inf):
            raise InputError(f"factor must be a positive finite number; got {self.factor!r}.")
        if self.tol is not None and not (is_number(self.tol) and 0 <= self.tol < math.inf):
            raise InputError(f"tol must be None or a finite number that is not negative; got {self.tol!r}.")


@dataclass(frozen=True)
class Bounded(Accurate):
    """A solver whose work is bounded.

    Parameters
    ----------
    products
        Hessian-vector products that a solve may spend on a block; one that has spent them returns its last iterate and
        has not converged. None: no bound but that on steps.
    """

    products: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.products is not None:
            check_count("products", self.products)


def norm(x: Tensor) -> Tensor:
    """‖x_j‖ per block, (B,)."""
    return torch.linalg.vector_norm(x.flatten(1), dim=1)


def over(s: Tensor, x: Tensor) -> Tensor:
    """One number per block, shaped to multiply x."""
    return s.reshape(-1, *([1] * (x.ndim - 1)))


def select(mask: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Blocks of x where the mask holds, blocks of y elsewhere; what is not selected may be NaN."""
    return torch.where(over(mask, x), x, y)


def count(start: Iterate) -> Tensor:
    """A counter per block, at zero."""
    return torch.zeros_like(start.grad_norm, dtype=torch.int64)


# ---------------------------------------------------------------------- as the loop calls it


@dataclass(frozen=True)
class LocalStep:
    """A solver bound to the arguments that a consensus iteration has."""

    solver: LocalSolver

    def __call__(
        self,
        shard: Shard,
        W: Weights,
        v: Tensor,
        lam: Tensor,
        u: Tensor,
        reference: float | None,
        memory: object,
        accuracy: float = 1.0,
        products: int | None = None,
    ) -> LocalSolution:
        """`accuracy` < 1 tightens a tolerance that follows the outer residuals; a fixed one stays. `products`: of the
        Hessian, that a block may take, unless the solver has its own bound."""
        solver = self.solver
        if isinstance(W, LowRank):
            W.ready()
        if accuracy != 1.0 and isinstance(solver, Accurate):
            solver = replace(solver, factor=accuracy * solver.factor)
        if products is not None and isinstance(solver, Bounded) and solver.products is None:
            solver = replace(solver, products=products)
        return solver.solve(LocalProblem(shard, W, v, lam), u, reference, memory)
