"""The fixed list of what a driver may ask of its workers, by name, and of what the arguments may be made.

A name stands for a place in this library; both ends have the same list, and nothing else is ever loaded because a
message says so. An argument is a frozen object of a listed class, whose fields are checked against their annotations,
or an array. What is not listed cannot be sent: a loss of your own, a function that reads a block. Ray and Dask take
those when asked to (`own_code=True`), since their workers run what they are sent anyway; sites never do.

    FUNCTIONS   maps over blocks: fn(shard, blocks, shared) or fn(shard, blocks)
    QUERIES     frozen objects that are called like such a function
    STEPS       methods of a frozen object: the steps of a consensus method
    CLASSES     what arguments and answers may be made of
    CONSTANTS   objects that both ends have

Names are part of the protocol: a place may move, its name stays.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping
from typing import Any

FUNCTIONS: Mapping[str, str] = {
    "score": "core.reduce:score",
    "start": "core.consensus:start_blocks",
    "holds": "core.reduce:_flag",
    "failed": "core.reduce:_failed_flags",
    "health": "core.record:_health",
    "weights": "core.solve:_weights",
    "multipliers": "core.solve:_lam",
    "itself": "core.processes:_itself",
    "shapes": "core.processes:_shapes",
    "padded": "core.processes:_padded",
    "digest": "states:contents",
    "why refused": "checkpoint.run:_why",
    "value and gradient": "baselines.objective:value_and_gradient",
    "value and next gradient": "baselines.fista:value_and_next_gradient",
    "scores and next gradient": "baselines.fista:_scores_and_next_gradient",
    "typical curvature": "curvature.posterior:typical_curvature",
    "auq-lr first parts": "methods.auq_lr.blocks:first_parts",
    "auq-lr next parts": "methods.auq_lr.blocks:next_parts",
    "moments": "verdict.queries:moments",
    "values along": "diagnosis.evidence:_values_along",
    "direct solves apply": "local:direct_suits",
    "rows left out": "estimators.ridge:left_out",
    "testing total": "testing.cases:total",
    "testing ends": "testing.cases:ends",
    "testing ragged": "testing.cases:ragged",
    "testing numbers": "testing.cases:numbers",
    "testing flags": "testing.cases:flags",
    "testing keep": "testing.cases:keep",
    "testing kept": "testing.cases:kept",
    "testing missing file": "testing.cases:missing_file",
}
QUERIES: Mapping[str, str] = {
    "auq-lr round": "methods.auq_lr.blocks:BlockRound",
    "newton": "methods.newton.method:NewtonQuery",
    "lbfgs-w visit": "baselines.preconditioned:WeightsQuery",
    "distance": "diagnosis.evidence:_Distance",
    "bad row": "verdict.point:_BadRow",
    "null": "verdict.queries:NullQuery",
    "triangle": "verdict.queries:TriangleQuery",
    "reach": "verdict.queries:ReachQuery",
    "diagonal reach": "verdict.queries:DiagonalReachQuery",
    "products": "verdict.queries:ProductsQuery",
    "slope sizes": "verdict.queries:SlopeSizesQuery",
    "conjugate": "verdict.queries:ConjugateQuery",
    "pack": "checkpoint.run:PackBlocks",
    "unpack": "checkpoint.run:UnpackBlocks",
    "enter columns": "columns:EnterFrame",
    "in columns": "columns:InFrame",
    "statistics": "inference.sums:StatisticsQuery",
    "site estimates": "inference.sums:SitesQuery",
    "null slopes": "inference.sums:NullSlopesQuery",
    "trend": "inference.survival:TrendQuery",
    "pairs": "inference.survival:PairsQuery",
    "baseline": "inference.survival:BaselineQuery",
    "series": "inference.sums:SeriesQuery",
    "class statistics": "inference.statistics:ClassesQuery",
    "column products": "inference.columns:InformationProducts",
    "quality first": "quality.evaluate:FirstQuery",
    "quality second": "quality.evaluate:SecondQuery",
    "quality line": "quality.evaluate:LineQuery",
    "quality by site": "quality.evaluate:SiteFigures",
    "quality of survival": "quality.evaluate:SurvivalQuery",
    "means": "estimators.moments:Means",
    "cell products": "estimators.moments:Products",
    "cell squares": "estimators.moments:Squares",
    "sides": "estimators.moments:Sides",
    "wider": "estimators.moments:Wider",
}
STEPS: Mapping[str, str] = {
    "dual": "core.consensus:ConsensusADMM.dual",
    "primal": "core.consensus:ConsensusADMM.primal",
    "dual and primal": "core.consensus:ConsensusADMM.dual_primal",
    "ranges": "methods.uncertainty:UQ.ranges",
}
# by module; a class is known by its name
_CLASSES = {
    "core.state": "Blocks Consensus Cost Residuals Setup WarmStart",
    "core.stopping": "Certificate",
    "blocks.shard": "Census RawBlock",
    "columns": "Frame FramedState",
    "metrics.weights": "Scalar Diagonal DiagonalMetric",
    "metrics.lowrank": "LowRank Kronecker",
    "metrics.coupled": "Coupled",
    "metrics.vstep": "LowRankMetric",
    "curvature.base": "Exact Hutchinson",
    "curvature.lanczos": "Lanczos",
    "curvature.posterior": "Posterior",
    "verdict.monitor": "Gate",
    "verdict.queries": "ColumnMoments",
    "local.base": "LocalStep Accurate Bounded",
    "local.direct": "Direct",
    "local.mixed": "Mixed",
    "local.newton_cg": "NewtonCG",
    "local.released": "Released",
    "methods.scalar": "C RB AC",
    "methods.uncertainty": "UQ AUQ",
    "methods.auq_lr.blocks": "Directive",
    "methods.auq_lr.server": "Anderson BestPoint RoundSums ServerState",
    "methods.newton.state": "NewtonState",
    "methods.newton.working_set": "DualBound",
    "methods.auto.method": "AutoPlan Change",
    "baselines.objective": "Elastic ObjectivePoint",
    "baselines.fista": "FISTAMemory",
    "baselines.quasi_newton": "QuasiNewtonMemory",
    "baselines.preconditioned": "PreconditionedMemory MetricInverse WeightedPoint",
    "local.lbfgs": "LBFGS Pairs",
    "problem.losses": "LeastSquares Multinomial Logistic SmoothedHinge Huber Poisson Times",
    "problem.families": "Gamma NegativeBinomial Tweedie Probit CLogLog NamedFamily",
    "problem.quantile": "Quantile",
    "problem.cox": "Cox",
    "problem.made_of_losses": "SiteIntercepts Trials OneAgainstRest",
    "problem.regularizers": "Zero L1 L2 ElasticNet Box NonNegative",
    "problem.group_lasso": "GroupLasso",
    "problem.wrappers": "FreeIntercept ScaledRegularizer",
    "problem.ingest": "Readers Whole",
    "files.tabular": "Roles",
    "files.preprocessing": "Settings Agreed",
    "files.encoding": "Encoding Column",
    "files.training": "Task",
    "sites.policy": "Plan",
    "sites.tables": "Wanted",
    "estimators.fitting": "WeightedElasticNet",
    "estimators.path": "SharedLeastSquares",
    "testing.cases": "Share OnFire",
    "quality.rows": "Folds Training Models",
    "quality.bins": "Grid",
    "quality.measures": "Binary Margins Classes Probabilities Numbers SquaredNumbers Quantiles LogMeans",
}
CLASSES: Mapping[str, str] = {name: f"{module}:{name}" for module, names in _CLASSES.items() for name in names.split()}
CONSTANTS: Mapping[str, str] = {"registry of states": "states:REGISTRY"}

# names in annotations that are no class of an argument
_ANNOTATED = {
    "Shard": "blocks.shard:Shard",
    "Loss": "blocks.rows:Loss",
    "RowLoss": "blocks.rows:RowLoss",
    "Regularizer": "problem.regularizers:Regularizer",
    "Curvature": "curvature.base:Curvature",
    "Weights": "metrics.weights:Weights",
    "Metric": "metrics.weights:Metric",
}
PACKAGE = "auqadmm."


@functools.cache
def thing(place: str) -> Any:
    """What stands at a place of the table, "module:name"."""
    module, name = place.split(":")
    value: Any = importlib.import_module(PACKAGE + module)
    for part in name.split("."):
        value = getattr(value, part)
    return value


def place_of(x: type | Callable[..., object]) -> str:
    """Where a class or a function is defined, as in the table."""
    return f"{x.__module__.removeprefix(PACKAGE)}:{x.__qualname__}"


def _names(table: Mapping[str, str]) -> dict[str, str]:
    return {place: name for name, place in table.items()}


ARGUMENTS: Mapping[str, str] = {**CLASSES, **QUERIES}
ARGUMENT_NAMES = _names(ARGUMENTS)
FUNCTION_NAMES = _names(FUNCTIONS)


class Annotated(dict[str, Any]):
    """The names that annotations of listed classes use; each is looked up when it is needed."""

    def __missing__(self, name: str) -> Any:
        place = CLASSES.get(name) or _ANNOTATED.get(name)
        if place is None:
            raise KeyError(name)
        return thing(place)


def name_of(operation: Any) -> str:
    """The name of what is asked; of a function in other columns, that of the function."""
    if isinstance(operation, functools.partial):
        operation = operation.func
    if (owner := getattr(operation, "__self__", None)) is not None:
        step = next((name for name, place in STEPS.items() if is_step(owner, operation.__name__, place)), None)
        return step or "own code"
    if not hasattr(operation, "__qualname__"):
        if (name := ARGUMENT_NAMES.get(place_of(type(operation)))) != "in columns":
            return name or "own code"
        return name_of(operation.fn)
    return FUNCTION_NAMES.get(place_of(operation), "own code")


def is_step(owner: object, called: str, place: str) -> bool:
    """Is this the named step of an object of the class that the table names, or of a listed class derived from it?"""
    base = thing(place.rsplit(".", 1)[0])
    return place.endswith(f".{called}") and isinstance(owner, base) and place_of(type(owner)) in ARGUMENT_NAMES
