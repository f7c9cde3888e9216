"""Fit one convex model on data that is stored in many places.

    minimise over u   Σ_j f_j(u) + g(u)        worker j has its own rows and f_j, g is proximable

>>> import auqadmm as aq
>>> X1, y1, X2, y2 = [[0.0], [1.0]], ["no", "no"], [[2.0], [3.0]], ["yes", "yes"]
>>> problem = aq.Problem(aq.Multinomial(), aq.L2(1.0), blocks=[(X1, y1), (X2, y2)])
>>> result = aq.solve(problem)
>>> result.coef.shape, str(result.status), result.certificate.evidence
((1, 2), 'converged', 'proved')
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from auqadmm import (
        baselines,
        callbacks,
        curvature,
        engines,
        local,
        losses,
        methods,
        regularizers,
        weights,
    )
    from auqadmm.api import solve
    from auqadmm.checkpoint.codec import CheckpointError
    from auqadmm.checkpoint.settings import Checkpoint
    from auqadmm.core.history import History
    from auqadmm.core.reduce import WorkerLost
    from auqadmm.core.result import Result
    from auqadmm.core.solve import Iteration
    from auqadmm.core.state import Status, WarmStart
    from auqadmm.core.stopping import Certificate
    from auqadmm.diagnosis.diagnosis import Diagnosis, Finding
    from auqadmm.errors import AuqadmmError, InputError, InputTypeError
    from auqadmm.estimators import (
        ConsensusCox,
        ConsensusElasticNet,
        ConsensusElasticNetCV,
        ConsensusGLM,
        ConsensusHuberRegressor,
        ConsensusLasso,
        ConsensusLassoCV,
        ConsensusLinearSVC,
        ConsensusLogisticRegression,
        ConsensusLogisticRegressionCV,
        ConsensusPoissonRegressor,
        ConsensusQuantileRegressor,
        ConsensusRidge,
        ConsensusRidgeCV,
        enet_path,
    )
    from auqadmm.files.model import ModelError, load, save
    from auqadmm.frames import FormulaModel, fit_formula
    from auqadmm.inference import Inference
    from auqadmm.problem import (
        L1,
        L2,
        Box,
        CLogLog,
        Cox,
        CustomLoss,
        CustomRegularizer,
        ElasticNet,
        Gamma,
        GroupLasso,
        Huber,
        LeastSquares,
        Logistic,
        Multinomial,
        NegativeBinomial,
        NonNegative,
        Poisson,
        Probit,
        Problem,
        ProcessError,
        Quantile,
        SmoothedHinge,
        Tweedie,
        Zero,
    )
    from auqadmm.quality import Quality
    from auqadmm.sites.engine import Sites
    from auqadmm.sites.study import SiteData

__version__ = "0.1.0"  # the only place; pyproject.toml reads it from here

# The module of each public name, imported when the name is first used: the version and the
# command line need no torch, and only estimators and saved models need scikit-learn.
_PLACES = {
    "auqadmm.api": ["solve"],
    "auqadmm.core.stopping": ["Certificate"],
    "auqadmm.checkpoint.settings": ["Checkpoint"],
    "auqadmm.checkpoint.codec": ["CheckpointError"],
    "auqadmm.diagnosis.diagnosis": ["Diagnosis", "Finding"],
    "auqadmm.core.history": ["History"],
    "auqadmm.core.reduce": ["WorkerLost"],
    "auqadmm.core.result": ["Result"],
    "auqadmm.core.solve": ["Iteration"],
    "auqadmm.core.state": ["Status", "WarmStart"],
    "auqadmm.errors": ["AuqadmmError", "InputError", "InputTypeError"],
    "auqadmm.estimators": [
        "ConsensusCox",
        "ConsensusElasticNet",
        "ConsensusElasticNetCV",
        "ConsensusGLM",
        "ConsensusHuberRegressor",
        "ConsensusLasso",
        "ConsensusLassoCV",
        "ConsensusLinearSVC",
        "ConsensusLogisticRegression",
        "ConsensusLogisticRegressionCV",
        "ConsensusPoissonRegressor",
        "ConsensusQuantileRegressor",
        "ConsensusRidge",
        "ConsensusRidgeCV",
        "enet_path",
    ],
    "auqadmm.files.model": ["ModelError", "load", "save"],
    "auqadmm.frames": ["FormulaModel", "fit_formula"],
    "auqadmm.sites.engine": ["Sites"],
    "auqadmm.sites.study": ["SiteData"],
    "auqadmm.inference": ["Inference"],
    "auqadmm.problem": [
        "L1",
        "L2",
        "Box",
        "CLogLog",
        "Cox",
        "CustomLoss",
        "CustomRegularizer",
        "ElasticNet",
        "Gamma",
        "GroupLasso",
        "Huber",
        "LeastSquares",
        "Logistic",
        "Multinomial",
        "NegativeBinomial",
        "NonNegative",
        "Poisson",
        "Probit",
        "Problem",
        "ProcessError",
        "Quantile",
        "SmoothedHinge",
        "Tweedie",
        "Zero",
    ],
    "auqadmm.quality": ["Quality"],
}
_HOME = {name: place for place, names in _PLACES.items() for name in names}

__all__ = [
    "L1",
    "L2",
    "AuqadmmError",
    "Box",
    "CLogLog",
    "Certificate",
    "Checkpoint",
    "CheckpointError",
    "ConsensusCox",
    "ConsensusElasticNet",
    "ConsensusElasticNetCV",
    "ConsensusGLM",
    "ConsensusHuberRegressor",
    "ConsensusLasso",
    "ConsensusLassoCV",
    "ConsensusLinearSVC",
    "ConsensusLogisticRegression",
    "ConsensusLogisticRegressionCV",
    "ConsensusPoissonRegressor",
    "ConsensusQuantileRegressor",
    "ConsensusRidge",
    "ConsensusRidgeCV",
    "Cox",
    "CustomLoss",
    "CustomRegularizer",
    "Diagnosis",
    "ElasticNet",
    "Finding",
    "FormulaModel",
    "Gamma",
    "GroupLasso",
    "History",
    "Huber",
    "Inference",
    "InputError",
    "InputTypeError",
    "Iteration",
    "LeastSquares",
    "Logistic",
    "ModelError",
    "Multinomial",
    "NegativeBinomial",
    "NonNegative",
    "Poisson",
    "Probit",
    "Problem",
    "ProcessError",
    "Quality",
    "Quantile",
    "Result",
    "SiteData",
    "Sites",
    "SmoothedHinge",
    "Status",
    "Tweedie",
    "WarmStart",
    "WorkerLost",
    "Zero",
    "baselines",
    "callbacks",
    "curvature",
    "enet_path",
    "engines",
    "fit_formula",
    "load",
    "local",
    "losses",
    "methods",
    "regularizers",
    "save",
    "solve",
    "weights",
]


def __getattr__(name: str) -> Any:
    """A public name, imported now."""
    if name in _HOME:
        globals()[name] = getattr(import_module(_HOME[name]), name)  # cached for the next access
        return globals()[name]
    module = f"auqadmm.{name}"
    try:
        if not name.startswith("_"):
            return import_module(module)
    except ModuleNotFoundError as missing:
        if missing.name != module:  # a dependency of the module is missing
            raise
    raise AttributeError(f"module 'auqadmm' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
