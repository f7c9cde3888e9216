"""A method that works in centred and scaled columns, wrapped in the problem's own (columns/frame.py).

    minimise Σ_j f̃_j(ũ) + g̃(ũ),   f̃_j(ũ) = f_j(u),  g̃(ũ) = g(u)         the same problem in other unknowns

Round 0 gives the columns; blocks store their data in them once, and the method runs on those, with g̃ in place of g
(`problem/scaled.py`). Outputs are transformed back: v, the gradient that a verdict reads, multipliers; a warm
start is transformed on input. Residuals and weights stay in inner columns. Where columns are well scaled already, or
the loss is user-defined, so not a function of logits, the method runs unchanged.

Shapes: N blocks, m features, C columns; v, gradients (m, C), multipliers (N, m, C).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING
from uuid import uuid4

import torch
from torch import Tensor

from auqadmm.columns.frame import Frame
from auqadmm.columns.reduce import EnterFrame, InnerReduce
from auqadmm.core.reduce import Reduce
from auqadmm.core.state import Consensus, Setup, State, WarmStart
from auqadmm.problem.scaled import ScaledRegularizer
from auqadmm.verdict.moments import ColumnMoments
from auqadmm.verdict.queries import moments

if TYPE_CHECKING:
    from auqadmm.blocks.rows import RowLoss
    from auqadmm.core.solve import Method


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
    zero = torch.zeros(setup.features, setup.columns, dtype=torch.float64, device=setup.device)
    l2 = setup.regularizer.convexity(zero).amin(1)
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
