"""Centred and scaled columns: exact, and visible only to the method that works in them.

    x̃ = (x − μ)/s,    ũ = s∘u,    b̃ = b + μᵀu,    ∇_u = s∘∇̃_u + μ∇̃_b,    ∇_b = ∇̃_b      the same logits

μ are the weighted means where a free intercept takes up the difference (none without), and

    s² = (Σc(x − μ)² + l2/φ″)/n,    n the weight of the rows in which x is not zero, φ″ the curvature of the null model

for a column without zeros its variance, for a sparse one the mean square of its non-zeros, so that neither units nor
sparsity matter; where the prior dominates the data, its scale. s is rounded to a power of two:
then ũ ↔ u loses no digit, and columns in other such units give the same x̃ to the last bit.

    minimise Σ_j f̃_j(ũ) + g̃(ũ),   f̃_j(ũ) = f_j(u),  g̃(ũ) = g(u)         the same problem in other unknowns

Round 0 gives the columns; blocks store their data in them once (`Shard.enter`; messages only say to use them), and the
method runs on those, with g̃ in place of g (`ScaledRegularizer`). Outputs are transformed back: v, the gradient that a
verdict reads, multipliers; a warm start is transformed on input. Residuals and weights stay in inner columns. Where
columns are well scaled already (`is_needed`), or the loss is user-defined, so not a function of logits, the method runs
unchanged.

Shapes: N blocks, m features (the intercept's ones last), C columns; centre, scale, prior (m,), v, gradients (…, m, C),
multipliers (N, m, C).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic
from uuid import uuid4

import numpy as np
import torch
from torch import Tensor

from auqadmm.core.reduce import A, B, Engine, MapFn, Reduce, S, Sums, Traffic
from auqadmm.core.state import Consensus, Setup, State, WarmStart
from auqadmm.metrics import sums
from auqadmm.problem.wrappers import ScaledRegularizer
from auqadmm.verdict.queries import ColumnMoments, moments

if TYPE_CHECKING:
    from auqadmm.blocks.rows import RowLoss
    from auqadmm.blocks.shard import Shard
    from auqadmm.core.solve import Method

FAR_MEAN = 4.0  # how many spreads a mean may be away from zero: images have up to 3
WIDE = 64.0  # the ratio of scales: images have up to 6
RARE_ROWS = 1 / 16  # a column that is zero but for this share of the rows may have any scale
LEAST_EXPONENT, MOST_EXPONENT = -400, 400  # exponents of a scale: squares of it neither overflow nor vanish


@dataclass(frozen=True)
class Frame:
    """`centre` (None: zero) and `scale`, powers of two; 0 and 1 for the intercept. `prior` is l2/s²."""

    centre: Tensor | None
    scale: Tensor
    prior: Tensor

    @classmethod
    def of(cls, columns: ColumnMoments, nonzero: Tensor, l2: Tensor, curvature: float) -> Frame | None:
        """From round 0: `nonzero` (m,) is n, `l2` (m,), `curvature` φ″. None: leave columns as they are."""
        if not is_needed(columns, _column_sizes(columns, nonzero, torch.zeros_like(l2)), nonzero):
            return None
        size = _column_sizes(columns, nonzero, l2 / curvature)
        scale = _power_of_two(torch.where(size > 0, size, 1.0))
        return cls(columns.centre, scale, l2 / scale.square())

    # ------------------------------------------------------------------ models
    def inside(self, v: Tensor) -> Tensor:
        """v (m, C) in these columns; its intercept is summed in double-double precision."""
        scaled = v * self.scale[:, None]
        if self.centre is None:
            return scaled
        return torch.cat([scaled[:-1], sums.dot(self.centre[:-1], v[:-1], v[-1])[None]])

    def outside(self, v: Tensor) -> Tensor:
        """The inverse of `inside`."""
        raw = v / self.scale[:, None]
        if self.centre is None:
            return raw
        return torch.cat([raw[:-1], sums.dot(-self.centre[:-1], raw[:-1], v[-1])[None]])

    def models_outside(self, u: Tensor) -> Tensor:
        """`outside` for the models of blocks (B, m, C), in their own precision."""
        raw = u / self.scale[:, None].to(u)
        if self.centre is None:
            return raw
        moved = raw[:, -1:] - (self.centre[:-1, None].to(u) * raw[:, :-1]).sum(1, keepdim=True)
        return torch.cat([raw[:, :-1], moved], 1)

    # ------------------------------------------------------------------ gradients and multipliers
    def slopes_inside(self, G: Tensor) -> Tensor:
        if self.centre is not None:
            mu = self.centre[:-1, None].to(G)
            G = torch.cat([G[..., :-1, :] - mu * G[..., -1:, :], G[..., -1:, :]], -2)
        return G / self.scale[:, None].to(G)

    def slopes_outside(self, G: Tensor) -> Tensor:
        G = G * self.scale[:, None].to(G)
        if self.centre is None:
            return G
        mu = self.centre[:-1, None].to(G)
        return torch.cat([G[..., :-1, :] + mu * G[..., -1:, :], G[..., -1:, :]], -2)


def is_needed(columns: ColumnMoments, size: Tensor, nonzero: Tensor) -> bool:
    """Is a mean further than FAR spreads from zero, or a column WIDE times as large as another that is not rare?"""
    filled = size > 0
    if columns.centre is not None:
        spread = (columns.spread / columns.weight).sqrt()
        if bool((filled & (columns.centre.abs() > FAR_MEAN * spread)).any()):
            return True
    common = filled & (nonzero >= RARE_ROWS * columns.weight)
    if not bool(common.any()):
        common = filled
    return bool(filled.any()) and float(size[filled].max()) > WIDE * float(size[common].min())


def _column_sizes(columns: ColumnMoments, nonzero: Tensor, prior: Tensor) -> Tensor:
    """s before it is rounded; 0 where it is undefined: the intercept, columns of zeros, overflow."""
    known = ~columns.empty & (nonzero > 0) & columns.spread.isfinite()
    if columns.intercept:
        known[-1] = False
    size = ((columns.spread + prior) / torch.where(known, nonzero, 1.0)).sqrt()
    return torch.where(known & size.isfinite(), size, 0.0)


def _power_of_two(x: Tensor) -> Tensor:
    """The nearest to x > 0, by ratio: of 2x that of x, doubled, whatever the rounding of logarithms."""
    mantissa, exponent = np.frexp(x.cpu().numpy())  # ½ ≤ mantissa < 1
    exponent = np.clip(exponent - (mantissa < np.sqrt(0.5)), LEAST_EXPONENT, MOST_EXPONENT)
    return torch.from_numpy(np.ldexp(1.0, exponent)).to(x)


# ---------------------------------------------------------------------- maps over blocks in other columns
@dataclass(frozen=True)
class EnterFrame:
    """A map over blocks: store them in the columns of a frame, too, for this run; None: drop them."""

    frame: Frame | None
    run: str

    def __call__(self, shard: Shard, blocks: B, shared: object) -> tuple[B, Sums]:
        if self.frame is None:
            shard.leave()
        else:
            shard.enter(self.frame, self.run)
        return blocks, {}


@dataclass(frozen=True)
class InFrame(Generic[A]):
    """`fn` of the blocks in the columns that this run entered; else of the original blocks."""

    fn: Callable[..., A]
    run: str

    def __call__(self, shard: Shard, *rest: object) -> A:
        return self.fn(shard.inner(self.run), *rest)


class InnerEngine:
    """An engine whose functions work in inner columns."""

    def __init__(self, engine: Engine, run: str) -> None:
        self.engine, self.run = engine, run

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def map_sum(self, fn: MapFn[B, S, A], blocks: B, shared: S) -> tuple[A, Sums]:
        return self.engine.map_sum(InFrame(fn, self.run), blocks, shared)

    def map_minmax(self, fn: MapFn[B, S, A], blocks: B, shared: S) -> tuple[A, Sums]:
        return self.engine.map_minmax(InFrame(fn, self.run), blocks, shared)

    def map_concat(self, fn: Callable[[Shard, B], Sums], blocks: B) -> Sums:
        return self.engine.map_concat(InFrame(fn, self.run), blocks)

    def gather(self, fn: Callable[[Shard, B], Tensor], blocks: B) -> Tensor:
        return self.engine.gather(InFrame(fn, self.run), blocks)

    def peek(self, fn: Callable[[Shard, B], A], blocks: B) -> A:
        return self.engine.peek(InFrame(fn, self.run), blocks)


class InnerReduce(Reduce):
    """`reduce` with functions that work in inner columns; it counts the traffic."""

    def __init__(self, reduce: Reduce, run: str) -> None:
        self.outer, self.known, self.collects = reduce, {}, reduce.collects
        self.engine: Any = InnerEngine(reduce.engine, run)

    @property
    def traffic(self) -> Traffic:
        return self.outer.traffic

    @traffic.setter
    def traffic(self, traffic: Traffic) -> None:
        self.outer.traffic = traffic


# ---------------------------------------------------------------------- the method
@dataclass(frozen=True)
class FramedState:
    """Replicated: the frame, and the method's own memory; its setup is the outer one, from which the inner one is
    made."""

    frame: Frame
    shared: Consensus


@dataclass(frozen=True)
class InColumns:
    """`method`, in centred and scaled columns."""

    method: Method
    _run: str = field(default_factory=lambda: uuid4().hex, init=False, repr=False, compare=False)
    _made: list[tuple[Setup, Frame, Setup]] = field(default_factory=list, init=False, repr=False, compare=False)

    @property
    def name(self) -> str:
        return self.method.name

    def view(self, reduce: Reduce) -> Reduce:
        """The shard as block functions take it."""
        return InnerReduce(reduce, self._run)

    def init(self, setup: Setup, reduce: Reduce) -> State:
        frame = _frame(setup, reduce)
        if frame is None:
            return self.method.init(setup, reduce)
        reduce.place(EnterFrame(frame, self._run), None, None)
        reduce.traffic.down += 8 * setup.features * (2 if frame.centre is None else 3)  # sent with the first message
        return self._seen(self.method.init(self._inner(setup, frame), self.view(reduce)), setup, frame, None)

    def step(self, state: State, reduce: Reduce) -> State:
        outer = state.shared
        if not isinstance(outer.memory, FramedState):
            return self.method.step(state, reduce)
        setup, frame = outer.setup, outer.memory.frame
        inner = replace(outer.memory.shared, setup=self._inner(setup, frame))
        new = self.method.step(State(state.blocks, inner), self.view(reduce))
        return self._seen(new, setup, frame, outer.v)

    def resume(self, shared: Consensus, reduce: Reduce) -> None:
        """Before the blocks' half of a saved state is put in place."""
        if isinstance(shared.memory, FramedState):
            reduce.place(EnterFrame(shared.memory.frame, self._run), None, None)

    def leave(self, reduce: Reduce) -> None:
        """The end of a run: drop the data in inner columns."""
        if self._made:
            reduce.place(EnterFrame(None, self._run), None, None)

    def _seen(self, new: State, setup: Setup, frame: Frame, before: Tensor | None) -> State:
        """The state in the problem's columns."""
        inner = new.shared
        scored = inner.scored
        if scored is not None:
            scored = {**scored, "G": frame.slopes_outside(scored["G"])}
        shared = replace(
            inner,
            setup=setup,
            v=frame.outside(inner.v),
            v_prev=before,
            s=None,
            metric=None,
            memory=FramedState(frame, replace(inner, setup=setup)),
            scored=scored,
        )
        return State(new.blocks, shared)

    def _inner(self, setup: Setup, frame: Frame) -> Setup:
        """The setup in inner columns, the same object every time, so that it is sent to workers once."""
        if not (self._made and self._made[0][0] is setup and self._made[0][1] is frame):
            self._made[:] = [(setup, frame, _gradients_outside(setup, frame))]
        return self._made[0][2]


def in_columns(method: Method, run: str = "") -> Method:
    """The method in centred and scaled columns, unless "raw" was requested; `run`: of several that share blocks."""
    if getattr(method, "columns", "raw") != "auto":
        return method
    framed = InColumns(method)
    if run:
        object.__setattr__(framed, "_run", run)
    return framed


def _frame(setup: Setup, reduce: Reduce) -> Frame | None:
    if not hasattr(setup.loss, "row_value"):
        return None
    sums = reduce.once(moments)
    columns = ColumnMoments.of(sums, setup.intercept, setup.loss, setup.columns)
    l2 = setup.regularizer.convexity(setup.zeros()).amin(1)
    return Frame.of(columns, sums["nonzero"], l2, _curvature(setup.loss, columns.null))


def _curvature(loss: RowLoss, logits: Tensor) -> float:
    """φ″ of the null model, logits (1, C); 1 where it has none."""
    kind = torch.int64 if loss.target_kind == "classes" else logits.dtype
    bend = loss.row_curvature(loss.prepare(logits), torch.zeros(1, dtype=kind, device=logits.device)).diagonal()
    mean = float(bend.mean())
    return mean if 0 < mean < math.inf else 1.0


def _gradients_outside(setup: Setup, frame: Frame) -> Setup:
    warm = setup.warm
    if warm is not None:
        v = frame.inside(warm.v.to(frame.scale))
        lam = None if warm.lam is None else frame.slopes_inside(warm.lam.to(frame.scale))
        warm = WarmStart(v, lam, warm.weights, warm.method)
    # pixels scaled by different factors are no image any more
    return replace(setup, regularizer=ScaledRegularizer(setup.regularizer, frame.scale), warm=warm, image=None)
