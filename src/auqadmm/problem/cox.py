"""Cox's proportional hazards: minus the log partial likelihood of every block, each block a stratum of its own.

    f_j(u) = Σ_s ω_s log S_s − Σ_{events} c_i z_i,     S_s = Σ_{at risk} c_k e^{z_k} − l/d Σ_{with an event} c_k e^{z_k}

over the slots s of the event times of block j (`risk_sets`). With p_ks the share of row k in S_s, x̄_s = Σ_k p_ks x_k:

    ∇f_j  = Σ_s ω_s x̄_s − Σ_{events} c_i x_i,        ∇²f_j = Σ_s ω_s Σ_k p_ks (x_k − x̄_s)(x_k − x̄_s)ᵀ

Only the order of times matters, and only within a block: no time is ever sent, nor a sum of times.

Shapes: B blocks, R flat rows, n rows of positive weight, m features, k right-hand sides; u, ∇f (B, m, 1), z (R, 1).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from torch import Tensor

from auqadmm.blocks.loss import Line, Loss, Point
from auqadmm.errors import InputError
from auqadmm.problem.risk_sets import ENTRY, EVENT, TIME, AtRisk, RiskSets

if TYPE_CHECKING:
    from auqadmm.blocks.shard import Shard

TIES = ("efron", "breslow")
PRODUCT_NUMBERS = 2**23  # logits of directions that are held at a time


@dataclass(frozen=True)
class Cox(Loss):
    """Cox's proportional hazards model, every block a stratum: baseline hazards, and all times, stay where they are.

    The target of a block is an array (n, 2), (n, 3) or (n, 4): time above zero, event (1) or censoring (0), entry
    (left truncation: at risk after it; before time), and a stratum within the block, any number.

    Parameters
    ----------
    ties
        "efron" or "breslow": how events at the same time share a risk set. Times are equal where all digits are.
    reduction
        As in `Loss`. Weights of rows count as in R's coxph: a row of weight w adds w times e^z to risk sets, and its
        event counts w times.

    Raises
    ------
    InputError
        `ties` is neither of the two.

    Examples
    --------
    >>> import numpy as np
    >>> import auqadmm as aq
    >>> X = np.array([[0.0], [1.0], [1.0], [0.0], [1.0], [0.0]])
    >>> y = np.array([[5, 1], [2, 1], [4, 0], [6, 1], [1, 1], [3, 1]])  # time, event
    >>> problem = aq.Problem(aq.Cox(), aq.L2(1.0), [(X[:3], y[:3]), (X[3:], y[3:])])
    >>> aq.solve(problem).coef.round(3)
    array([0.698])
    """

    ties: str = field(default="efron", kw_only=False)

    target_columns: ClassVar[int] = 4
    takes_offset: ClassVar[bool] = True
    takes_intercept: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.ties not in TIES:
            raise InputError(f"ties must be 'efron' or 'breslow', got {self.ties!r}.")
        super().__post_init__()

    @property
    def concordance(self) -> float:
        # third central moments are at most the spread of logits in a risk set times their variance
        return 2.0

    def arranged(self, name: str, y: np.ndarray) -> np.ndarray:
        if y.ndim != 2 or y.shape[1] not in (2, 3, 4):
            raise InputError(
                f"{name}: y must have the columns time, event and, where they are needed, entry and stratum; got an "
                f"array of shape {y.shape}."
            )
        whole = np.zeros((len(y), 4))
        whole[:, : y.shape[1]] = y
        time, event, entry = whole[:, TIME], whole[:, EVENT], whole[:, ENTRY]
        for bad, text in (
            (time <= 0, "time is {time:g}; times must be above zero, measured from where a row begins"),
            ((event != 0) & (event != 1), "event is {event:g}; it must be 1 (an event) or 0 (censored)"),
            (entry >= time, "entry is {entry:g} and time {time:g}; a row must enter before its time"),
        ):
            if bad.any():
                i = int(np.flatnonzero(bad)[0])
                told = text.format(time=time[i], event=event[i], entry=entry[i])
                raise InputError(f"{name}, row {i}: {told}.")
        return whole

    def silent(self, y: np.ndarray, weight: np.ndarray) -> bool:
        return not bool(((y[:, EVENT] > 0) & (weight > 0)).any())

    silence: ClassVar[str] = "No row of positive weight has an event: there is nothing to be learnt about hazards."

    def linearize(self, shard: Shard, u: Tensor) -> CoxPoint:
        return CoxPoint(self, shard, u, shard.logits(u))

    def risk_sets(self, shard: Shard) -> RiskSets:
        """Who is at risk when, sorted once and kept with the data.

        Parameters
        ----------
        shard
            The blocks.

        Returns
        -------
        RiskSets
            Of all blocks.
        """
        cache = shard.design.cache
        if "risk_sets" not in cache or cache["risk_sets"][0] != self:
            block, c = shard.design.block_of_row, shard.row_weight
            scale: Tensor | float = 1.0
            if self.reduction == "pooled":
                scale = shard.census.weight_total
            elif self.reduction == "mean":
                scale = shard.design.sum_rows((c > 0).to(c))[block]
            sets = RiskSets.of(shard.target, c, block, scale, self.ties == "efron", shard.dtype)
            cache["risk_sets"] = self, sets
        return cache["risk_sets"][1]


@dataclass(frozen=True, eq=False)
class CoxPoint(Point):
    """f_j at u; z (R, 1) are the logits there."""

    loss: Cox
    shard: Shard
    u: Tensor
    z: Tensor

    @cached_property
    def value(self) -> Tensor:
        s, z = self._sets, self.z[self._sets.rows, 0]
        total = self.z.new_zeros(self.shard.blocks).index_add(0, s.slot_block, s.mass * self._at.log_sums)
        return total.index_add(0, s.block, s.event * z, alpha=-1)

    @cached_property
    def grad(self) -> Tensor:
        return self.shard.design.adjoint(self._flat(self._at.residual[:, None]))

    def hvp(self, P: Tensor) -> Tensor:
        B, m = P.shape[:2]
        flat = P.reshape(B, m, -1)
        width = max(1, PRODUCT_NUMBERS // max(self.shard.design.rows, 1))
        parts = [self._hvp(part) for part in flat.split(width, dim=2)]
        return (parts[0] if len(parts) == 1 else torch.cat(parts, 2)).reshape(P.shape)

    def _hvp(self, P: Tensor) -> Tensor:
        s, at = self._sets, self._at
        x = s.centred(self.shard.design.forward(P)[s.rows])
        slopes = at.expected[:, None] * x - at.spread(s.mass[:, None] * at.means(x))
        return self.shard.design.adjoint(self._flat(slopes))

    def line(self, P: Tensor) -> CoxLine:
        return CoxLine(self, P, self.shard.design.forward(P))

    @cached_property
    def _sets(self) -> RiskSets:
        return self.loss.risk_sets(self.shard)

    @cached_property
    def _at(self) -> AtRisk:
        return self._sets.at(self.z[self._sets.rows, 0])

    def _flat(self, x: Tensor) -> Tensor:
        """(n, k) among all flat rows."""
        return x.new_zeros(self.shard.design.rows, x.shape[1]).index_copy(0, self._sets.rows, x)


@dataclass(frozen=True, eq=False)
class CoxLine(Line):
    """z + t·XP: stepping along the ray needs no product with X."""

    start: CoxPoint
    P: Tensor
    XP: Tensor

    def at(self, t: Tensor) -> CoxPoint:
        start, shard = self.start, self.start.shard
        z = start.z + t[shard.design.block_of_row, None] * self.XP
        return CoxPoint(start.loss, shard, start.u + t[:, None, None] * self.P, z)
