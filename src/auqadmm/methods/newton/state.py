"""What Newton's method knows at v: all that a step and a verdict need.

Shapes: m features, C columns; inside, G (m, C); index flat; gram (p, p).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from auqadmm.core.state import Setup
from auqadmm.methods.newton.dual import DualBound
from auqadmm.methods.newton.model import GroupedHessian, NewtonStep, newton_step
from auqadmm.methods.newton.working_set import Movers
from auqadmm.metrics.triangles import pack
from auqadmm.verdict.moments import ColumnMoments

STEP_SHARE = 1e-4  # of the last step's decrease: the error allowed in the next step
MISS = 1e-2  # of its own decrease: the error allowed in a first step on a working set


@dataclass(frozen=True)
class NewtonState:
    """Replicated. `inside`: v in centred columns; f, F, G and the Hessian there are those of the loss eased by `ease`
    (next time by `tighter` times that), `plain` are value and gradient of the loss itself. `index`: unknowns whose
    Hessian is known, `upper` as it was sent, or `gram`, the products of squares; `aside`: products of all columns with
    the intercept. `least` unknowns that a working set has; `scale` of the diagonal of H to the spread of columns;
    `fell`: decrease of F in the last step. `dual`: a bound of the gap, `out`: unknowns proved to be zero;
    `scales` of slopes whose conjugates are sent. `turned`: how much the last step changed G.
    """

    columns: ColumnMoments
    inside: Tensor
    f: float
    F: float
    G: Tensor
    plain: Mapping[str, Tensor]
    noise: Tensor
    floor: Tensor
    index: Tensor
    upper: Tensor | None = None
    gram: Tensor | None = None
    reach: Tensor | None = None
    aside: Tensor | None = None
    null: Tensor | None = None
    ease: float = 1.0
    tighter: float = 1.0
    eased: bool = False
    stretch: float = 1.0
    shrink: float = 1.0
    least: int = 0
    scale: float = 1.0
    fell: float = 0.0
    apart: bool = True
    complete: bool = True
    stalled: bool = False
    scales: tuple[float, ...] = ()
    dual: DualBound | None = None
    out: Tensor | None = None
    turned: Tensor | None = None

    @property
    def finite(self) -> bool:
        return math.isfinite(self.F) and bool(self.G.isfinite().all())

    @cached_property
    def hessian(self) -> GroupedHessian:
        if not len(self.index):
            return GroupedHessian(())
        if self.gram is not None:
            return GroupedHessian(((self.index, self.gram),))
        assert self.upper is not None
        return GroupedHessian.of(self.upper, self.index, self.inside.shape[1], self.apart)

    @cached_property
    def free(self) -> Tensor:
        """Unknowns that F depends on and that may be nonzero, (m, C)."""
        there = ~self.columns.empty.to(self.inside.device)[:, None].expand(self.inside.shape)
        if self.out is not None:
            there = there & ~self.out
        size = self.hessian.diagonal(self.inside)
        if self.columns.centre is None or not bool(size[-1].isfinite().all()):
            return there
        return there & ~(size.isfinite() & self.columns.constant(size))

    @cached_property
    def diagonal(self) -> Tensor:
        """The diagonal of H, (m, C): exact where known, else estimated."""
        about = self.scale * self.columns.spread.to(self.inside)[:, None].expand(self.inside.shape)
        size = self.hessian.diagonal(self.inside)
        return torch.where(size.isfinite() & (size > 0), size, about)

    def movers(self, setup: Setup) -> Movers:
        """Computed once."""
        if "_movers" not in vars(self):
            vars(self)["_movers"] = Movers.at(
                setup.regularizer, self.inside, self.G, self.diagonal, self.free, self.turned
            )
        return vars(self)["_movers"]

    def move(self, setup: Setup) -> NewtonStep:
        """The step from this point; computed once."""
        if "_move" not in vars(self):
            enough = max(STEP_SHARE * self.fell, 1e-3 * float(self.noise), 1e-300)
            if self.dual is not None:  # shrinks with the root of δ
                share = 0.0 if setup.loss.quadratic else self.fell / max(abs(self.F), 1e-300)
                enough *= min(1.0, max(share, 1e-6)) ** 2
            miss = None if self.complete else self._miss(setup)
            kept, flat = self.hessian, self.free.reshape(-1)
            if not bool(flat[self.index].all()):
                kept = kept.where(flat)
            vars(self)["_move"] = newton_step(setup.regularizer, self.inside, self.G, kept, enough, miss)
        return vars(self)["_move"]

    def _miss(self, setup: Setup) -> float:
        """The share of its decrease that a step may miss: less, the closer v is to the optimum; none for squares."""
        return 0.0 if setup.loss.quadratic else min(MISS, self.fell / max(abs(self.F), 1e-300))

    def expected(self, setup: Setup) -> float:
        """How much F may fall: by the model, and by each unknown outside of it; by all of them, where
        the working set grows before the next step."""
        if self.ease > 1:
            return math.inf
        outside = 0.0
        if not self.complete:
            movers = self.movers(setup)
            rest = movers.far.reshape(-1).clone()
            if movers.outside(self.index):
                return 0.5 * float(rest.square().sum())
            rest[self.index] = 0.0
            outside = 0.5 * float(rest.square().sum())
        return self.move(setup).delta + outside

    @property
    def scored(self) -> dict[str, Tensor]:
        """Value and gradient of the loss itself in the user's columns, for a certificate."""
        f, G = self.plain["f"], self.columns.slopes_outside(self.plain["G"])
        sums = {"f": f, "G": G, "norms": torch.zeros_like(f)}
        if self.dual is not None:
            sums["gap"] = torch.as_tensor(self.dual.gap, dtype=f.dtype, device=f.device)
        if self.null is not None:
            sums["null"] = self.null
        return sums

    @property
    def exactly(self) -> dict[str, Any] | None:
        """The sums of a verdict: with the whole Hessian of the loss itself where it is known (H), else with what the
        intercept's duality gap needs of it (HP)."""
        if self.ease > 1:
            return None
        if "_exactly" not in vars(self):
            sums = {"f": self.plain["f"], "G": self.G, "noise": self.noise, "floor": self.floor}
            more = {"reach": self.reach, "null": self.null}
            more |= {"H": self._triangles()} if self.complete else {"HP": self.aside}
            vars(self)["_exactly"] = sums | {name: x for name, x in more.items() if x is not None}
        return vars(self)["_exactly"]

    @property
    def still(self) -> bool:
        return self.stalled

    @property
    def screened(self) -> int:
        """How many unknowns are proved to be zero."""
        return 0 if self.out is None else int(self.out.sum())

    def _triangles(self) -> Tensor:
        """The Hessian of all unknowns as a verdict takes it, (g, p(p + 1)/2); zero where F does not depend on any."""
        m, C = self.inside.shape
        like = self.inside
        if not self.apart and C > 1:
            H = torch.zeros(m * C, m * C, dtype=like.dtype, device=like.device)
            for index, known in self.hessian.groups:
                H[index[:, None], index] = known.to(like)
            return pack(H[None])
        H = torch.zeros(C, m, m, dtype=like.dtype, device=like.device)
        for index, known in self.hessian.groups:
            c, rows = int(index[0]) % C, index // C
            H[c][rows[:, None], rows] = known.to(like)
        return pack(H)

    def rest(self) -> NewtonState:
        """No further decrease beyond rounding."""
        return replace(self, stalled=True)
