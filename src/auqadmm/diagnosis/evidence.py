"""What a run that did not converge leaves behind, so that `Result.diagnose` can say why.

Taken once, when the run is over, off the clock: the distance of every block from the consensus, and the objective
further out along v. The data stay where they are.

Shapes: B blocks here, N in all, m features, C columns; v (m, C).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from auqadmm.core.reduce import Reduce
from auqadmm.core.state import Blocks, Residuals, Setup, State
from auqadmm.core.stopping import Stopping
from auqadmm.metrics.weights import sum_blocks
from auqadmm.verdict.moments import ColumnMoments

if TYPE_CHECKING:
    from auqadmm.blocks.shard import Shard
    from auqadmm.core.solve import Method

NEAR, FAR = 3.0, 1e6


@dataclass(frozen=True)
class ObjectiveRay:
    """The objective F and its smooth part f along v: F(v), F(3v), f(v), f(10⁶v)."""

    here: float
    near: float
    smooth: float
    far: float

    @property
    def falling(self) -> bool:
        """v is a direction in which the loss never rises again, and the minimum is much further out."""
        return self.far <= self.smooth and self.near < self.here


@dataclass(frozen=True)
class Evidence:
    """`distance` (N,) is ‖u_j − v‖; `residuals` are those of the last iteration. None for a gradient method. `framed`:
    the method had columns of its own, centred and scaled."""

    names: tuple[str, ...]
    stopping: Stopping
    method: Method
    solver: object
    precision: float
    norm: float
    ray: ObjectiveRay
    residuals: Residuals | None = None
    distance: Tensor | None = None
    columns: ColumnMoments | None = None
    features: tuple[str, ...] | None = None
    v: Tensor | None = None
    framed: bool = False


def collect(
    reduce: Reduce,
    setup: Setup,
    stopping: Stopping,
    method: Method,
    state: State,
    columns: ColumnMoments | None,
    near: Reduce,
) -> Evidence:
    """One round of three numbers and, where blocks have models of their own, one number per block, asked of `near`."""
    v, g = state.shared.v, setup.regularizer
    f = reduce.judging(_values_along, v, (v,))["f"].tolist()
    ray = ObjectiveRay(f[0] + float(g.value(v)), f[1] + float(g.value(NEAR * v)), f[0], f[2])
    residuals = state.shared.residuals
    own = residuals is not None and math.isfinite(residuals.primal)
    return Evidence(
        names=tuple(reduce.engine.names),
        stopping=stopping,
        method=method,
        solver=getattr(setup.solve, "solver", None),
        precision=setup.precision,
        norm=float(v.norm()),
        ray=ray,
        residuals=residuals if own else None,
        distance=near.gather(_Distance(v), state.blocks) if own else None,
        columns=columns,
        features=setup.names,
        v=v,
        framed=hasattr(state.shared.memory, "frame"),
    )


def _values_along(shard: Shard, blocks: None, v: Tensor) -> tuple[None, dict[str, Tensor]]:
    """Σf_j at v, 3v and 10⁶v."""
    values = [sum_blocks(shard.linearize(shard.expand(t * v)).value) for t in (1.0, NEAR, FAR)]
    return blocks, {"f": torch.stack(values)}


@dataclass(frozen=True)
class _Distance:
    v: Tensor

    def __call__(self, shard: Shard, blocks: Blocks) -> Tensor:
        return (shard.models(blocks.u) - shard.expand(self.v)).flatten(1).double().norm(dim=1)
