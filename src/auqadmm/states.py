"""For checkpoints: the classes that a state may contain, and the identity of a run."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from auqadmm.baselines import fista, objective, preconditioned, quasi_newton
from auqadmm.blocks.design import DensePiece, SparsePiece
from auqadmm.blocks.shard import Census, Shard
from auqadmm.checkpoint.codec import Identity, Registry, describe
from auqadmm.columns import Frame, FramedState
from auqadmm.core import state
from auqadmm.core.reduce import Reduce, score
from auqadmm.core.stopping import Certificate
from auqadmm.curvature.posterior import Posterior
from auqadmm.local import (
    cg,
    descent,
    direct,
    lbfgs,
    mixed,
    newton_cg,
)
from auqadmm.methods.auq_lr.blocks import Directive
from auqadmm.methods.auq_lr.server import Anderson, BestPoint, RoundSums, ServerState
from auqadmm.methods.auto.method import AutoPlan, Change
from auqadmm.methods.newton.state import NewtonState
from auqadmm.methods.newton.working_set import DualBound
from auqadmm.metrics import lowrank, vstep, weights
from auqadmm.metrics.coupled import Coupled
from auqadmm.problem.wrappers import ScaledRegularizer
from auqadmm.verdict.monitor import Gate
from auqadmm.verdict.queries import ColumnMoments

if TYPE_CHECKING:
    from auqadmm.blocks.loss import Loss
    from auqadmm.blocks.shard import Shard

# A new class in a method's or a solver's memory is added here; names are part of the format.
REGISTRY = Registry(
    {
        "Blocks": state.Blocks,
        "Consensus": state.Consensus,
        "Certificate": Certificate,
        "Gate": Gate,
        "Columns": ColumnMoments,
        "newton.Here": NewtonState,
        "newton.Dual": DualBound,
        "auto.Plan": AutoPlan,
        "auto.Change": Change,
        "Cost": state.Cost,
        "Residuals": state.Residuals,
        "Scalar": weights.Scalar,
        "Diagonal": weights.Diagonal,
        "DiagonalMetric": weights.DiagonalMetric,
        "LowRank": lowrank.LowRank,
        "Coupled": Coupled,
        "LowRankMetric": vstep.LowRankMetric,
        "Kronecker": lowrank.Kronecker,
        "Anderson": Anderson,
        "Posterior": Posterior,
        "auq-lr.Server": ServerState,
        "auq-lr.Best": BestPoint,
        "auq-lr.Heard": RoundSums,
        "auq-lr.Directive": Directive,
        "direct.Factors": direct.BlockFactors,
        "direct.Tall": direct.TallFactor,
        "direct.Wide": direct.WideFactor,
        "local.lbfgs.Memory": lbfgs.LBFGSMemory,
        "local.lbfgs.Curve": lbfgs.InverseHessian,
        "local.mixed.Both": mixed.MixedMemory,
        "local.newton-cg.Memory": newton_cg.NewtonMemory,
        "local.newton-cg.Nearby": newton_cg.AnchorMemory,
        "local.newton-cg.Factored": cg.KeptFactor,
        "local.Trail": descent.Extrapolation,
        "Pairs": lbfgs.Pairs,
        "Elastic": objective.Elastic,
        "Point": objective.ObjectivePoint,
        "Frame": Frame,
        "Framed": FramedState,
        "Scaled": ScaledRegularizer,
        "fista.Memory": fista.FISTAMemory,
        "lbfgs.Memory": quasi_newton.QuasiNewtonMemory,
        "lbfgs-w.Informed": preconditioned.PreconditionedMemory,
        "lbfgs-w.Inverse": preconditioned.MetricInverse,
        "lbfgs-w.Seen": preconditioned.WeightedPoint,
        "lbfgs-w.Visit": preconditioned.WeightsQuery,
    },
    # the bases of low-rank weights; the v that AC-ADMM stored; UQ-ADMM's cost of a block's curvature
    replicated=frozenset({"F", "factors", "v0", "d_hvps"}),
    renamed={
        ColumnMoments: {"values": "held"},
        ServerState: {"sums": "heard"},
        lbfgs.LBFGSMemory: {"inverse": "curve", "path": "trail"},
        newton_cg.NewtonMemory: {"path": "trail", "has_D": "held"},
        quasi_newton.QuasiNewtonMemory: {"point": "here"},
        preconditioned.PreconditionedMemory: {"point": "here"},
        preconditioned.WeightsQuery: {"look_ahead": "look"},
    },
)


def identify(reduce: Reduce, census: Census, loss: Loss, settings: Mapping[str, Any], setup: state.Setup) -> Identity:
    """All that determines the iterates of a run. Reads the data twice, on the workers; not counted."""
    whole = {
        "features": census.features,
        "columns": census.columns,
        "intercept": census.intercept,
        "classes": census.classes,
        "loss": loss,
        "regularizer": setup.regularizer,
        **settings,
        "image": setup.image,
        "seed": setup.seed,
        "start": setup.start,
        "warm_start": setup.warm,
    }
    blocks = [row.tobytes().hex() for row in reduce.gather(contents, None).cpu().numpy()]
    described = {name: describe(value) for name, value in whole.items()}
    return Identity(described, blocks, _probes(reduce, setup), setup.precision**0.5, _versions())


def contents(shard: Shard, blocks: object) -> Tensor:
    """SHA-256 of the rows, targets, weights and offsets of every block, (B, 32); the same wherever it is placed."""
    design = shard.design
    digests: dict[int, np.ndarray] = {}
    offsets = [()] * len(design.pieces) if shard.offset is None else [(o,) for o in design.split(shard.offset)]
    parts = zip(design.pieces, design.split(shard.target), design.split(shard.row_weight), offsets, strict=True)
    for piece, target, weight, offset in parts:
        if isinstance(piece, DensePiece):
            heights, matrix = [piece.X.shape[1]] * len(piece.blocks), partial(_dense, piece)
        else:
            heights, matrix = piece.heights.tolist(), partial(_sparse, piece)
        first = 0
        for slot, (j, height) in enumerate(zip(piece.blocks.tolist(), heights, strict=True)):
            rows = slice(first, first + shard.census.rows[shard.index[j]])  # without padding
            digests[j] = _digest(*matrix(slot, rows), target[rows], weight[rows], *(o[rows] for o in offset))
            first += height
    return torch.from_numpy(np.stack([digests[j] for j in range(shard.blocks)]))


def _dense(piece: DensePiece, slot: int, rows: slice) -> tuple[Tensor, ...]:
    return (piece.X[slot, : rows.stop - rows.start],)


def _sparse(piece: SparsePiece, slot: int, rows: slice) -> tuple[Tensor, ...]:
    ends = piece.A.crow_indices()[rows.start : rows.stop + 1]
    inside = slice(int(ends[0]), int(ends[-1]))
    return ends - ends[0], piece.A.col_indices()[inside] - slot * piece.features, piece.A.values()[inside]


def _digest(*arrays: Tensor) -> np.ndarray:
    whole = hashlib.sha256()
    for x in arrays:
        array = np.ascontiguousarray(x.detach().cpu().numpy())
        whole.update(f"{array.dtype} {array.shape}\0".encode())
        whole.update(array.reshape(-1).view(np.uint8).data)
    return np.frombuffer(whole.digest(), dtype=np.uint8)


def _probes(reduce: Reduce, setup: state.Setup) -> list[float]:
    """Σf_j, ‖Σ∇f_j‖, g and its prox at zero and at one more point: a function cannot be described otherwise."""
    shape = (setup.features, setup.columns)
    coins = torch.Generator().manual_seed(0)
    draw = torch.rand(shape, generator=coins, dtype=torch.float64) - 0.3
    probes: list[float] = []
    zero = torch.zeros_like(draw)
    # sites look at rows only where a fit goes, and have no losses of a user's own
    for v in (zero,) if getattr(reduce.engine, "guarded", False) else (zero, draw / setup.features):
        v = v.to(setup.device)
        sums, g = reduce.free(score, None, v), setup.regularizer
        probes += [float(x) for x in (sums["f"], sums["G"].norm(), g.value(v), g.prox(v, 1.0).norm())]
    return probes


def _versions() -> dict[str, str]:
    from auqadmm import __version__  # not at the top: the package imports this module

    others = {name: version(name) for name in ("numpy", "torch", "safetensors")}
    return {"auqadmm": __version__, "python": platform.python_version(), **others}
