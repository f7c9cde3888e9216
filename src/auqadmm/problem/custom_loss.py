"""A loss written by the user as one function of PyTorch: `fn(u, X, y)` returns one number per row (S1).

    f_j(u) = Σ_i c_i fn(u, X_j, y_j)_i        c_i = sample weight × scale of the reduction, 0 for padding

Value and gradient share one pass (reverse mode), Hessian-vector products are forward over reverse, and blocks
of equal height go through `torch.func.vmap` together. Nothing is known of fn beyond its derivatives: there is
no conjugate (S10), and X must be dense.

Shapes: B blocks, b blocks of one stack, n rows of each, m features (the intercept's ones last), C columns,
k right-hand sides; u (B, m, C).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from numbers import Real
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.func import grad, jvp, vjp, vmap

from auqadmm.blocks.design import DensePiece
from auqadmm.blocks.loss import Line, Loss, Point
from auqadmm.errors import InputError, InputTypeError
from auqadmm.problem.regularizers import name_of

if TYPE_CHECKING:
    from auqadmm.blocks.shard import Shard

# Numbers that one chunk of unit vectors may occupy while the Hessian's diagonal is computed.
UNIT_CHUNK = 2**22


@dataclass(frozen=True)
class CustomLoss(Loss):
    """Any twice differentiable convex loss of the rows.

    Parameters
    ----------
    fn
        `fn(u, X, y)` with u (m,), or (m, columns) when columns > 1; X (n, m), whose last column is ones when
        the problem has an intercept; y (n,) floats. It returns one loss per row, (n,): the library applies
        weights, hides padding and reduces. A function that returns one number, the sum over the rows, is
        accepted when no block is weighted or padded. It must be made of torch operations, none of them in
        place, with `torch.where` instead of `if` on values.
    columns
        Columns C of the unknown.
    reduction
        `"sum"`, `"mean"` or `"pooled"`.
    self_concordance
        M with |φ‴| ≤ Mφ″ where fn is a function φ of the logits x_iᵀu (1 for a logistic loss, 0 for squares): with it
        a verdict can be proved, without it only estimated.
    infimum
        A lower bound of every row's loss; gaps are relative to the loss above it.

    Raises
    ------
    InputError
        `fn` is no function, `columns` no positive integer, or `reduction` none of the three.

    Examples
    --------
    >>> import numpy as np
    >>> import torch
    >>> import auqadmm as aq
    >>> X = np.array([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0], [2.0, 1.0]])
    >>> y = np.array([1.0, 2.0, 3.0, 5.0])
    >>> steep = aq.CustomLoss(lambda u, X, y: torch.nn.functional.softplus(10 * (y - X @ u)) / 10)
    >>> problem = aq.Problem(steep, aq.L2(0.1), [(X[:2], y[:2]), (X[2:], y[2:])])
    >>> aq.solve(problem).coef.round(2)
    array([2.15, 1.23])
    """

    fn: Callable[[Tensor, Tensor, Tensor], Tensor]
    columns: int = 1
    self_concordance: float | None = None
    infimum: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        M = self.self_concordance
        if M is not None and not (isinstance(M, Real) and not isinstance(M, bool) and 0 <= M < math.inf):
            raise InputError(f"CustomLoss: self_concordance must be a finite number ≥ 0 or None; got {M!r}.")
        if not isinstance(self.infimum, Real) or not math.isfinite(self.infimum):
            raise InputError(f"CustomLoss: infimum must be a finite number; got {self.infimum!r}.")
        if not callable(self.fn):
            raise InputTypeError(f"CustomLoss: fn must be a function fn(u, X, y); got {type(self.fn).__name__}.")
        if not isinstance(self.columns, int) or isinstance(self.columns, bool) or self.columns < 1:
            raise InputError(f"CustomLoss: columns must be a positive integer; got {self.columns!r}.")

    def __repr__(self) -> str:
        more = {"self_concordance": (self.self_concordance, None), "infimum": (self.infimum, 0.0)}
        options = "".join(f", {name}={value!r}" for name, (value, default) in more.items() if value != default)
        return f"CustomLoss(fn={name_of(self.fn)}, columns={self.columns}, reduction={self.reduction!r}{options})"

    def columns_for(self, classes: int) -> int:
        return self.columns

    @property
    def concordance(self) -> float:
        return math.inf if self.self_concordance is None else float(self.self_concordance)

    def row_infimum(self, y: Tensor) -> Tensor:
        return torch.full((len(y),), float(self.infimum), dtype=torch.float64, device=y.device)

    def linearize(self, shard: Shard, u: Tensor) -> CustomPoint:
        return CustomPoint(self, _stacks(shard), u)

    def row_values(self, u: Tensor, X: Tensor, y: Tensor) -> Tensor:
        """What `fn` returns for one block, checked.

        Parameters
        ----------
        u
            (m, C); fn gets (m,) if C = 1.
        X, y
            The block's rows, (n, m) and (n,).

        Returns
        -------
        Tensor
            (n,) or, where fn sums by itself, ().

        Raises
        ------
        InputError
            fn returned no tensor, or one of another shape.
        """
        out: Any = self.fn(u[:, 0] if self.columns == 1 else u, X, y)
        if not isinstance(out, Tensor):
            raise InputError(
                f"CustomLoss: fn returned {type(out).__name__}; it must return a tensor, one loss per row."
            )
        if out.ndim > 0 and out.shape != y.shape:
            raise InputError(
                f"CustomLoss: fn returned shape {tuple(out.shape)} but one loss per row has shape "
                f"{tuple(y.shape)}; a common cause is an (n, 1) prediction minus the (n,) target."
            )
        return out


@dataclass(frozen=True, eq=False)
class _Stack:
    """Blocks of equal height: X (b, n, m), y (b, n), weights c (b, n), blocks (b,) positions among the B.

    `plain` says that the shard has no sample weights and no padding: fn may then return the sum over all rows.
    """

    X: Tensor
    y: Tensor
    c: Tensor
    blocks: Tensor
    plain: bool

    def totals(self, loss: CustomLoss, u: Tensor) -> Tensor:
        """f_j(u_j) of the stacked blocks, u (b, m, C): (b,)."""

        def total(u: Tensor, X: Tensor, y: Tensor, c: Tensor) -> Tensor:
            rows = loss.row_values(u, X, y)
            if rows.ndim > 0:
                return torch.where(c == 0, 0.0, c * rows).sum().to(u.dtype)
            if not self.plain:
                raise InputError(
                    "CustomLoss: fn returned a single number, but some blocks have sample weights or are "
                    "padded to a common height; return one loss per row (leave out the final sum)."
                )
            return (c[0] * rows).to(u.dtype)  # every row of an unweighted block has the same c

        return vmap(total)(u, self.X, self.y, self.c)

    @contextmanager
    def explained(self, columns: int) -> Iterator[None]:
        """Add to torch's message what fn is given and what it may do."""
        try:
            yield
        except (RuntimeError, TypeError, IndexError) as error:
            (_, n, m), reason = self.X.shape, str(error).strip().split("\n")[0].rstrip(".")
            u = (m,) if columns == 1 else (m, columns)
            raise InputError(
                f"CustomLoss: fn failed on u {u}, X {(n, m)}, y {(n,)} under torch.func ({reason}); make it of "
                "torch operations, none of them in place, with torch.where instead of `if` on values."
            ) from error


@dataclass(frozen=True, eq=False)
class CustomPoint(Point):
    """A point of a custom loss. fn is run, and its result checked, when the point is made."""

    loss: CustomLoss
    stacks: tuple[_Stack, ...]
    u: Tensor
    _passes: tuple[Any, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        passes = []
        for stack in self.stacks:
            with stack.explained(self.loss.columns):
                passes.append(vjp(partial(stack.totals, self.loss), self.u[stack.blocks]))
        object.__setattr__(self, "_passes", tuple(passes))

    @cached_property
    def value(self) -> Tensor:
        return self._gather([value for value, _ in self._passes], self.u.shape[:1])

    @cached_property
    def grad(self) -> Tensor:
        parts = []
        for stack, (value, pullback) in zip(self.stacks, self._passes, strict=True):
            # blocks are independent: a 1 for each of them pulls back to the gradient of each
            with stack.explained(self.loss.columns):
                parts.append(pullback(torch.ones_like(value))[0])
        return self._gather(parts, self.u.shape)

    def hvp(self, P: Tensor) -> Tensor:
        _load_forward_mode()
        parts = []
        for stack in self.stacks:
            product = partial(self._product, stack)
            with stack.explained(self.loss.columns):
                p = P[stack.blocks]
                parts.append(product(p) if P.ndim == 3 else vmap(product, in_dims=3)(p).movedim(0, 3))
        return self._gather(parts, P.shape)

    def hessian_diagonal(self) -> Tensor:
        B, m, C = self.u.shape
        n = m * C
        rows = sum(stack.y.numel() for stack in self.stacks)
        width = max(1, UNIT_CHUNK // (rows * C + B * n))
        out = self.u.new_zeros(B, n)
        for start in range(0, n, width):
            stop = min(start + width, n)
            unit = self.u.new_zeros(n, stop - start)
            unit[start:stop].fill_diagonal_(1.0)
            HE = self.hvp(unit.reshape(m, C, -1).expand(B, m, C, -1)).reshape(B, n, -1)
            out[:, start:stop] = HE[:, start:stop].diagonal(dim1=1, dim2=2)
        return out.reshape(B, m, C)

    def line(self, P: Tensor) -> CustomLine:
        return CustomLine(self, P)

    def conjugate(self, scale: float) -> None:
        return None

    def _product(self, stack: _Stack, p: Tensor) -> Tensor:
        """∇²f_j[p_j] of the stacked blocks: forward mode along p through the gradient."""
        slope = grad(lambda u: stack.totals(self.loss, u).sum())
        return jvp(slope, (self.u[stack.blocks],), (p,))[1]

    def _gather(self, parts: Sequence[Tensor], shape: Sequence[int]) -> Tensor:
        """One array over all B blocks; blocks in no stack (without rows of positive weight) keep 0."""
        out = self.u.new_zeros(shape)
        for stack, part in zip(self.stacks, parts, strict=True):
            out[stack.blocks] = part
        return out


@dataclass(frozen=True, eq=False)
class CustomLine(Line):
    """u + tP; nothing can be reused between step lengths but the data."""

    start: CustomPoint
    P: Tensor

    def at(self, t: Tensor) -> CustomPoint:
        return CustomPoint(self.start.loss, self.start.stacks, self.start.u + t[:, None, None] * self.P)


@cache
def _load_forward_mode() -> None:
    """Load torch's forward-mode rules: its first `jvp` warns of its own deprecated `torch.jit`."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*torch.jit", category=DeprecationWarning)
        jvp(torch.sin, (torch.zeros(()),), (torch.ones(()),))


def _stacks(shard: Shard) -> tuple[_Stack, ...]:
    """The shard's pieces as fn takes them, without blocks of zero weight."""
    design = shard.design
    plain = not shard.weighted and not bool((shard.row_weight == 0).any())
    stacks = []
    parts = zip(design.pieces, design.split(shard.target), design.split(shard.row_weight), strict=True)
    for piece, y, c in parts:
        if not isinstance(piece, DensePiece):
            name = shard.names[int(piece.blocks[0])]
            raise InputError(f"{name}: CustomLoss needs dense data but X is sparse; pass X.toarray().")
        if piece.rows > 0:
            shape = piece.X.shape[:2]
            stack = _Stack(piece.X, y.reshape(shape), c.reshape(shape), piece.blocks, plain)
            heights = [shard.census.rows[shard.index[j]] for j in piece.blocks.tolist()]
            stacks.append(_hide_idle_rows(stack, heights) if shard.weighted else stack)
    return tuple(s for s in stacks if len(s.blocks))


def _hide_idle_rows(stack: _Stack, heights: Sequence[int]) -> _Stack:
    """Put a row of positive weight in place of every row of weight 0, if the user gave any such weight.

    Masking the loss is not enough: where fn overflows on such a row, reverse mode multiplies 0 by infinity.
    Padding alone is harmless, it repeats such a row.
    """
    c = stack.c
    own = torch.arange(c.shape[1], device=c.device)
    if not bool(((c == 0) & (own < torch.tensor(heights, device=c.device)[:, None])).any()):
        return stack
    keep = (c > 0).any(1).nonzero()  # (kept, 1)
    row = torch.where(c > 0, own, c.argmax(1, keepdim=True))[keep[:, 0]]
    return _Stack(stack.X[keep, row], stack.y[keep, row], c[keep[:, 0]], stack.blocks[keep[:, 0]], stack.plain)
