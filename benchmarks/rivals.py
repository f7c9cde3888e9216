"""Second-order rivals of the benchmark, run by the library's own loop: what rounds cost where numbers cost nothing.

newton-plain
            exact Newton, nothing more, on Σ_j f_j(v) + l1‖v‖₁ + l2/2‖v‖². Up in every round: f, ∇f and the upper
            triangle of ∇²f at the trial point, n(n+1)/2 + n + 1 numbers, and f at shorter steps of a fan. The server
            minimises

                ⟨∇f(v), d⟩ + ½⟨d, ∇²f(v) d⟩ + g(v + d)

            exactly, l1 included. Where the full step is refused, the best of the fan is evaluated: one round more.
            The corner of a smoothed hinge is 1 wide at first and half as wide after each step of ½ or more, down to
            its own width: with that from the start most of our hinges take two to four times the rounds.
gram        least squares: Σ_i c_i x_ix_iᵀ and Σ_i c_i y_i x_i go up once, m(m+1)/2 + m numbers, and the server solves
            any elastic net exactly.

Both hold n × n matrices and refuse problems beyond `LARGEST` unknowns. Bytes count as everywhere: 8 per number that
one worker sends or receives.

Shapes: R flat rows, m features, C columns, n = m·C; v, ∇f (m, C), Hessians (n, n) in the order of v.flatten().
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from auqadmm.baselines.objective import Elastic, advance, dot, elastic, unchanged
from auqadmm.blocks.design import DensePiece
from auqadmm.blocks.rows import RowLoss
from auqadmm.core.reduce import Reduce
from auqadmm.core.state import Consensus, Setup, State
from auqadmm.metrics.weights import sum_blocks
from auqadmm.problem import SmoothedHinge

LARGEST = 16_000
FAN = (0.5, 0.25, 0.125, 1 / 16, 1 / 64)  # beside the full step
FINER = 4  # fans that a step may take, each 64 times finer than the one before
WIDEST = 1.0
SHARPER = 0.5
DECREASE = 1e-4
NOISE = 16 * 2.3e-16  # differences of F below this share of it are rounding
PIVOTS = 1000

Sums = dict[str, Tensor]


# ---------------------------------------------------------------------- maps over blocks
def second_order(shard: Any, blocks: Any, at: tuple[Tensor, float]) -> tuple[Any, Sums]:
    """Σ f_j(v), Σ ∇f_j(v) and the upper triangle of Σ ∇²f_j(v), with corners of the given width."""
    v, width = at
    shard = _wider(shard, width)
    point = shard.linearize(shard.expand(v))
    H = _hessian(shard, point.curvature.weighted(shard.row_weight), v.shape[1])
    return blocks, {"f": sum_blocks(point.value), "G": sum_blocks(point.grad), "H": triangle(H)}


def second_order_and_fan(shard: Any, blocks: Any, step: tuple[Ray, float]) -> tuple[Any, Sums]:
    """The same at v + d, and Σ f_j at steps of the fan."""
    ray, width = step
    return blocks, second_order(shard, blocks, (ray.v + ray.d, width))[1] | values(shard, blocks, ray)[1]


def values(shard: Any, blocks: Any, ray: Ray) -> tuple[Any, Sums]:
    """Σ f_j(v + td) for every t."""
    shard = _wider(shard, ray.width)
    line = shard.linearize(shard.expand(ray.v)).line(shard.expand(ray.d))
    found = [sum_blocks(line.at(shard.zeros()[:, 0, 0] + t).value) for t in ray.lengths]
    return blocks, {"fan": torch.stack(found)}


@dataclass(frozen=True)
class Ray:
    """v + td for some t, with corners of one width."""

    v: Tensor
    d: Tensor
    lengths: tuple[float, ...]
    width: float


def _wider(shard: Any, width: float) -> Any:
    """The shard itself where its loss has no corner, or one that is wide enough."""
    own = _width(shard)
    return shard if width <= own else replace(shard, loss=replace(shard.loss, eps=width))


def _width(shard: Any) -> float:
    return shard.loss.eps if isinstance(shard.loss, SmoothedHinge) else math.inf


def _widths(shard: Any, blocks: Any) -> Tensor:
    return torch.full((shard.blocks,), _width(shard), dtype=torch.float64, device=shard.device)


def normal_equations(shard: Any, blocks: Any, shared: Any) -> tuple[Any, Sums]:
    """The upper triangle of Σ c_i x_ix_iᵀ, and Σ c_i y_i x_i."""
    c = shard.row_weight
    gram = _gram(shard, c)
    b = sum(X.T @ y for X, y in _rows(shard, c * shard.target))
    return blocks, {"H": triangle(gram), "b": b}


def _hessian(shard: Any, curvature: Any, C: int) -> Tensor:
    """Σ_i x_ix_iᵀ ⊗ c_iφ''(z_i): blocks of columns (k, l) are Gram matrices, weighted by an entry of φ''."""
    m, R = shard.design.features, len(shard.row_weight)
    unit = torch.eye(C, dtype=shard.dtype, device=shard.device).expand(R, C, C)
    S = curvature.apply(unit)
    H = torch.empty(m, C, m, C, dtype=torch.float64, device=shard.device)
    for k in range(C):
        for l in range(k, C):
            H[:, k, :, l] = H[:, l, :, k] = _gram(shard, S[:, k, l])
    return H.reshape(m * C, m * C)


def _gram(shard: Any, c: Tensor) -> Tensor:
    return sum(X.T @ (w[:, None] * X) for X, w in _rows(shard, c))


def _rows(shard: Any, c: Tensor) -> list[tuple[Tensor, Tensor]]:
    """The rows of every piece, with their part of c (R,)."""
    parts = shard.design.split(c)
    return [(piece.X.flatten(0, 1), part) for piece, part in zip(shard.design.pieces, parts, strict=True)]


def triangle(H: Tensor) -> Tensor:
    return H[_upper(H)]


def symmetric(upper: Tensor, n: int) -> Tensor:
    """The matrix of which `upper` is the triangle."""
    H = upper.new_zeros(n, n)
    H[_upper(H)] = upper
    return H + H.triu(1).T


def _upper(H: Tensor) -> Tensor:
    return torch.ones(H.shape, dtype=torch.bool, device=H.device).triu()


# ---------------------------------------------------------------------- the server
def minimiser(H: Tensor, b: Tensor, l1: Tensor, start: Tensor) -> Tensor:
    """argmin ½wᵀHw − bᵀw + Σ_i l1_i|w_i|, exactly: pivoting on the signs of w, from those of `start`.

    H must be positive definite on what is active, or a ValueError says that it is not.
    """
    if not bool((l1 > 0).any()):
        return _solved(H, b, torch.arange(len(b), device=b.device))
    signs = start.sign()
    signs = torch.where(signs == 0, torch.where(b.abs() > l1, b.sign(), 0.0), signs)
    fewest, patience = math.inf, 3
    slack = 1e-13 * float(b.abs().max())
    for _ in range(PIVOTS):
        w = _solved(H, b - l1 * signs, signs.nonzero()[:, 0])
        slope = H @ w - b
        wrong = torch.where(signs != 0, w * signs < 0, slope.abs() > l1 + slack)
        count = int(wrong.sum())
        if count == 0:
            return w
        if count < fewest:
            fewest, patience = count, 3
        elif patience > 0:
            patience -= 1
        else:  # all at once may cycle; the last alone cannot
            last = int(wrong.nonzero()[-1])
            wrong = torch.zeros_like(wrong)
            wrong[last] = True
        signs = torch.where(wrong, torch.where(signs != 0, 0.0, -slope.sign()), signs)
    raise RuntimeError(f"The signs of the model's minimiser were not settled in {PIVOTS} steps.")


def _solved(H: Tensor, b: Tensor, active: Tensor) -> Tensor:
    """H w = b on the active coordinates, zero elsewhere; refined once."""
    w = torch.zeros_like(b)
    if len(active) == 0:
        return w
    every = len(active) == len(b)
    part = H if every else H[active][:, active]
    factor, failed = torch.linalg.cholesky_ex(part)
    if int(failed):
        raise ValueError("The Hessian is singular: a second-order rival needs l2 > 0 or independent features.")
    rest = b[active]
    for _ in range(2):
        w[active] += torch.cholesky_solve(rest[:, None], factor)[:, 0]
        rest = b[active] - part @ w[active]
    return w


# ---------------------------------------------------------------------- methods
@dataclass(frozen=True)
class Known:
    """Replicated: the value of F, ∇f and ∇²f at v, with corners of this width; `own`: the width that they have."""

    value: float
    G: Tensor
    H: Tensor
    penalty: Elastic
    width: float = math.inf
    own: float = math.inf
    stalled: bool = False

    @property
    def sharper(self) -> float:
        return max(self.own, SHARPER * self.width)


@dataclass(frozen=True)
class Newton:
    """Exact Newton on the sum over all workers, proximal where there is l1."""

    name: ClassVar[str] = "newton-plain"

    def init(self, setup: Setup, reduce: Reduce) -> State:
        v, penalty = _first(self.name, setup, reduce, _dense_rows, "is written for dense blocks and losses of rows")
        own = float(reduce.gather(_widths, None).max())  # one number of each block
        width = max(own, WIDEST)
        cost = reduce.cost(hvps=0)
        _, sums = reduce(second_order, None, (v, width), down=(v,))
        known = _known(setup, v, sums, Known(math.nan, v, v, penalty, width, own), width)
        return State(None, Consensus(setup=setup, iteration=0, v=v, cost=cost, memory=known))

    def step(self, state: State, reduce: Reduce) -> State:
        old, now = state.shared, state.shared.memory
        g, v = old.setup.regularizer, old.v
        d = torch.zeros_like(v) if now.stalled else _direction(v, now)
        predicted = dot(now.G, d) + float(g.value(v + d)) - float(g.value(v))
        if not predicted < 0:  # the model's minimum is here, to rounding; corners that are too wide are not the end
            stalled = now.width == now.own
            if stalled:
                return unchanged(state, reduce.cost(hvps=0), replace(now, stalled=True))
            return self._arrive(state, reduce, v, now.sharper)
        cost = reduce.cost(hvps=0)
        same = now.sharper == now.width  # else the full step is judged by a value of its own
        fan = FAN if same else (1.0, *FAN)
        ray = Ray(v, d, fan, now.width)
        _, sums = reduce(second_order_and_fan, None, (ray, now.sharper), down=(v + d,))
        there = _known(old.setup, v + d, sums, now, now.sharper)
        full = there.value if same else float(sums["fan"][0]) + float(g.value(v + d))
        if full <= now.value + DECREASE * predicted + NOISE * abs(now.value):
            return advance(state, v + d, cost, there, None)
        t = _shorter(g, ray, now.value, predicted, sums["fan"], reduce)
        if t is None:
            return unchanged(state, reduce.cost(hvps=0), replace(now, stalled=True))
        return self._arrive(state, reduce, v + t * d, now.sharper if t >= SHARPER else now.width)

    def _arrive(self, state: State, reduce: Reduce, v: Tensor, width: float) -> State:
        """A point that is known before its derivatives: a round for them. Workers know v from one number."""
        cost = reduce.cost(hvps=0)
        _, sums = reduce(second_order, None, (v, width), down=(torch.tensor(width),))
        return advance(state, v, cost, _known(state.shared.setup, v, sums, state.shared.memory, width), None)


def _known(setup: Setup, v: Tensor, sums: Sums, before: Known, width: float) -> Known:
    value = float(sums["f"]) + float(setup.regularizer.value(v))
    return replace(before, value=value, G=sums["G"], H=symmetric(sums["H"], v.numel()), width=width)


def _direction(v: Tensor, now: Known) -> Tensor:
    """To the minimiser of the quadratic model with g, w = v + d."""
    l1, l2 = (x.expand_as(v).flatten() for x in (now.penalty.l1, now.penalty.l2))
    at = v.flatten()
    b = now.H @ at - now.G.flatten()
    H = now.H.clone()
    H.diagonal().add_(l2)
    return (minimiser(H, b, l1, at) - at).reshape(v.shape)


def _shorter(g: Any, ray: Ray, value: float, predicted: float, fan: Tensor, reduce: Reduce) -> float | None:
    """The best step of the fan, if it descends; else of a finer one, which takes a round of its own."""
    for _ in range(FINER):
        found = [(float(f) + float(g.value(ray.v + t * ray.d)), t) for f, t in zip(fan, ray.lengths, strict=True)]
        lowest, t = min(((F, t) for F, t in found if math.isfinite(F)), default=(math.inf, 0.0))
        if lowest <= value + DECREASE * t * predicted:
            return t
        ray = replace(ray, lengths=tuple(t / 64 for t in FAN))
        fan = reduce(values, None, ray)[1]["fan"]
    return None


@dataclass(frozen=True)
class Gram:
    """One round of Gram matrices for least squares, everything else at the server."""

    name: ClassVar[str] = "gram"

    def init(self, setup: Setup, reduce: Reduce) -> State:
        v, penalty = _first(self.name, setup, reduce, _squares, "needs least squares on dense blocks")
        cost = reduce.cost(hvps=0)
        _, sums = reduce(normal_equations, None, None)
        known = Known(0.0, -sums["b"][:, None], symmetric(sums["H"], v.numel()), penalty)
        return State(None, Consensus(setup=setup, iteration=0, v=v, cost=cost, memory=known))

    def step(self, state: State, reduce: Reduce) -> State:
        now = state.shared.memory
        if now.stalled:
            return unchanged(state, reduce.cost(hvps=0), now)
        w = _direction(torch.zeros_like(state.shared.v), now)
        return advance(state, w, reduce.cost(hvps=0), replace(now, stalled=True), None)


def _first(name: str, setup: Setup, reduce: Reduce, suits: Callable[[Any], bool], why: str) -> tuple[Tensor, Elastic]:
    """Where to begin, and the penalty; refuses what the method is not made for."""
    v = setup.first_v()
    penalty = _penalty(name, setup, v)
    if not reduce.every(suits):
        raise ValueError(f"{name!r} {why}.")
    return v, penalty


def _penalty(name: str, setup: Setup, v: Tensor) -> Elastic:
    if setup.unknowns > LARGEST:
        size = 8 * setup.unknowns**2 / 2**30
        raise ValueError(
            f"{name!r} holds Hessians of all unknowns: {setup.unknowns} of them, {size:.1f} GiB each; "
            f"at most {LARGEST} are allowed."
        )
    found = elastic(setup.regularizer, v)
    if found is None:
        raise ValueError(f"{name!r} needs Zero, L1, L2 or ElasticNet; got {type(setup.regularizer).__name__}.")
    return found


def _dense_rows(shard: Any) -> bool:
    return isinstance(shard.loss, RowLoss) and all(isinstance(piece, DensePiece) for piece in shard.design.pieces)


def _squares(shard: Any) -> bool:
    return _dense_rows(shard) and shard.loss.quadratic and shard.census.columns == 1


KNOWN: dict[str, Any] = {method.name: method for method in (Newton, Gram)}
