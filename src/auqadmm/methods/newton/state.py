"""What Newton's method knows at v: all that a step and a verdict need, from the sums of a round.

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

from auqadmm.blocks.curvature import Visited
from auqadmm.core.state import Setup
from auqadmm.methods.newton.model import GroupedHessian, NewtonStep, newton_step
from auqadmm.methods.newton.working_set import DualBound, Movers, dual_bound, predicted_bound
from auqadmm.metrics.sums import pack, unpack
from auqadmm.verdict.queries import ColumnMoments

# Chosen, not measured (see method.py).
STEP_SHARE = 1e-4  # of the last step's decrease: the error allowed in the next step
PATH = 40  # points that rows at corners are followed through
NEAR_MINIMUM = 1e-5  # of F: steps that predict no larger decrease end where the Hessian itself is summed, for a verdict
MISS = 1e-2  # of its own decrease: the error allowed in a first step on a working set


@dataclass(frozen=True)
class NewtonState:
    """Replicated. `inside`: v in centred columns; f, F, G and the Hessian there are those of the loss eased by `ease`
    (next time by `tighter` times that), `plain` are value and gradient of the loss itself. `index`: unknowns whose
    Hessian is known, `upper` as it was sent, or `gram`, the products of squares; `aside`: products of all columns with
    the intercept. `least` unknowns that a working set has; `scale` of the diagonal of H to the spread of columns;
    `fell`: decrease of F in the last step. `dual`: a bound of the gap, `out`: unknowns proved to be zero;
    `scales` of slopes whose conjugates are sent. `turned`: how much the last step changed G. Where the loss has
    corners: `path` (K, m, C), the points before this one, `widths` of the corners there and `lengths` of the steps (the
    part of d taken), whether the Hessian is that of the loss (`exact`) or made smooth by the path, how often corners
    were `widened` again, the decrease that the last step `promised`, and the share of F that such a promise must be
    below for an exact Hessian (`near`).
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
    path: Tensor | None = None
    widths: tuple[float, ...] = ()
    lengths: tuple[float, ...] = ()
    exact: bool = True
    widened: int = 0
    promised: float = math.inf
    near: float = NEAR_MINIMUM

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
        if self.ease > 1 or not self.exact:
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

    def visited(self) -> Visited:
        """The path to this point."""
        path = self.inside[None][:0] if self.path is None else self.path
        return Visited(path, self.widths, self.lengths)

    def kept_widths(self, steps: int) -> bool:
        """Were corners as wide as they are now for so many steps?"""
        return self.widths[-steps:] == (self.ease,) * steps

    def vanished(self, share: float) -> bool:
        """Is the loss itself no more than this share of the null model's?"""
        return self.null is not None and float(self.plain["f"]) <= share * float(self.null.min())

    def ahead(self, t: float, exact: bool, promised: float) -> NewtonState:
        """With the path to the point a step td ahead, whether its Hessian is that of the loss, and δ of this step."""
        path = torch.cat([self.visited().points, self.inside[None]])[-PATH:]
        widths, lengths = (*self.widths, self.ease)[-PATH:], (*self.lengths, t)[-PATH:]
        return replace(self, path=path, widths=widths, lengths=lengths, exact=exact, promised=promised)

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
        if self.ease > 1 or not self.exact:
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


# ---------------------------------------------------------------------- from the sums of a round


def state_from_sums(
    current: NewtonState, setup: Setup, inside: Tensor, sums: dict[str, Tensor], index: Tensor
) -> NewtonState:
    """The state at `inside` from the sums of a round."""
    f, g = float(sums["f"]), setup.regularizer
    plain = {"f": sums.get("plain_f", sums["f"]), "G": sums.get("plain_G", sums["G"])}
    F = f + float(g.value(inside))
    upper, gram = sums.get("H"), None
    if setup.loss.quadratic and setup.columns == 1:
        index, gram = grow_gram(current, sums, index)
        upper = None
    new = replace(
        current,
        inside=inside,
        f=f,
        F=F,
        G=sums["G"],
        plain=plain,
        noise=sums["noise"],
        floor=sums["floor"],
        index=index,
        upper=upper if upper is not None or gram is not None else inside.new_zeros(0),
        gram=gram,
        reach=sums.get("reach", current.reach),  # does not depend on v
        aside=sums.get("aside"),
        dual=None,
        turned=current.turned if inside is current.inside else sums["G"] - current.G,
    )
    known, size = new.hessian, scale(new)
    new = replace(new, scale=size)
    new = new if new.complete or new.ease > 1 else screen(new, setup, sums)
    vars(new)["hessian"] = known  # cached: unchanged by this update
    return new


def screen(current: NewtonState, setup: Setup, sums: Mapping[str, Tensor]) -> NewtonState:
    """With a duality gap, if available; unknowns that it proves to be zero are screened for good."""
    g, loss, columns = setup.regularizer, setup.loss, current.columns
    bounds = (
        dual_bound(g, loss, columns, current.inside, sums, current.aside),
        predicted_bound(g, loss, columns, current.inside, sums),
    )
    bound = min((x for x in bounds if x is not None), key=lambda x: x.gap, default=None)
    zero = None if bound is None else bound.zero(g, loss.bend, columns)
    if bound is None or zero is None:
        return replace(current, dual=bound)
    out = zero & (current.inside == 0)
    return replace(current, dual=bound, out=out if current.out is None else current.out | out)


def grow_gram(current: NewtonState, sums: dict[str, Tensor], index: Tensor) -> tuple[Tensor, Tensor]:
    """The products of squares known so far, with the new ones."""
    H = sums.get("H")
    if current.gram is None:
        return index, sums["G"].new_zeros(0, 0) if H is None else unpack(H[None])[0]
    new = drop_screened(index, current.index)
    if H is None or not len(new):
        return current.index, current.gram
    k, p = len(new), len(current.index)
    H = H.reshape(k, p + k)
    top = torch.cat([current.gram, H[:, :p].mT], 1)
    corner = 0.5 * (H[:, p:] + H[:, p:].mT)
    return torch.cat([current.index, new]), torch.cat([top, torch.cat([H[:, :p], corner], 1)])


def scale(current: NewtonState) -> float:
    """The diagonal of H over the spread of its columns, on average."""
    size = current.hessian.diagonal(current.inside)
    known = size.isfinite()
    spread = current.columns.spread.to(size)[:, None].expand(size.shape)
    total = float(spread[known].sum())
    ratio = float(size[known].sum()) / total if total > 0 else 0.0
    return ratio if math.isfinite(ratio) and ratio > 0 else current.scale


def drop_screened(index: Tensor, known: Tensor) -> Tensor:
    return index[~torch.isin(index, known)]
