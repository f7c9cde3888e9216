"""Fit one convex model on data that lives in many places.

    minimise over u   Σ_j f_j(u) + g(u)        worker j holds its own rows and f_j, g is proximable

>>> import auqadmm as aq
>>> X1, y1, X2, y2 = [[0.0], [1.0]], ["no", "no"], [[2.0], [3.0]], ["yes", "yes"]
>>> problem = aq.Problem(aq.Multinomial(), aq.L2(1.0), blocks=[(X1, y1), (X2, y2)])
>>> result = aq.solve(problem)
>>> result.coef.shape, str(result.status), result.certificate.evidence
((1, 2), 'converged', 'proved')
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from auqadmm import baselines, callbacks, curvature, engines, local, methods
from auqadmm.api import solve
from auqadmm.checkpoint.codec import CheckpointError
from auqadmm.checkpoint.settings import Checkpoint
from auqadmm.core.certificate import Certificate
from auqadmm.core.history import History
from auqadmm.core.reduce import WorkerLost
from auqadmm.core.result import Result
from auqadmm.core.solve import Iteration
from auqadmm.core.state import Status, WarmStart
from auqadmm.diagnosis.diagnosis import Diagnosis, Finding
from auqadmm.problem import (
    L1,
    L2,
    Box,
    CustomLoss,
    CustomRegularizer,
    ElasticNet,
    GroupLasso,
    Huber,
    InputError,
    LeastSquares,
    Logistic,
    Multinomial,
    NonNegative,
    Poisson,
    Problem,
    ProcessError,
    Quantile,
    SmoothedHinge,
    Zero,
)

if TYPE_CHECKING:
    from auqadmm.estimators import (
        ConsensusElasticNet,
        ConsensusElasticNetCV,
        ConsensusLasso,
        ConsensusLassoCV,
        ConsensusLinearSVC,
        ConsensusLogisticRegression,
        ConsensusLogisticRegressionCV,
        ConsensusRidge,
        ConsensusRidgeCV,
        enet_path,
    )
    from auqadmm.files.model_files import ModelError, load, save

__version__ = "0.1.0"  # the only place; pyproject.toml reads it from here

__all__ = [
    "L1",
    "L2",
    "Box",
    "Certificate",
    "Checkpoint",
    "CheckpointError",
    "ConsensusElasticNet",
    "ConsensusElasticNetCV",
    "ConsensusLasso",
    "ConsensusLassoCV",
    "ConsensusLinearSVC",
    "ConsensusLogisticRegression",
    "ConsensusLogisticRegressionCV",
    "ConsensusRidge",
    "ConsensusRidgeCV",
    "CustomLoss",
    "CustomRegularizer",
    "Diagnosis",
    "ElasticNet",
    "Finding",
    "GroupLasso",
    "History",
    "Huber",
    "InputError",
    "Iteration",
    "LeastSquares",
    "Logistic",
    "ModelError",
    "Multinomial",
    "NonNegative",
    "Poisson",
    "Problem",
    "ProcessError",
    "Quantile",
    "Result",
    "SmoothedHinge",
    "Status",
    "WarmStart",
    "WorkerLost",
    "Zero",
    "baselines",
    "callbacks",
    "curvature",
    "enet_path",
    "engines",
    "load",
    "local",
    "methods",
    "save",
    "solve",
]

_ESTIMATORS = frozenset([name for name in __all__ if name.startswith("Consensus")] + ["enet_path"])
_MODEL_FILES = frozenset(["ModelError", "load", "save"])


def __getattr__(name: str) -> Any:
    """Estimators and models need scikit-learn, which is imported when one of them is first asked for."""
    if name in _ESTIMATORS:
        return getattr(import_module("auqadmm.estimators"), name)
    if name in _MODEL_FILES:
        return getattr(import_module("auqadmm.files.model_files"), name)
    raise AttributeError(f"module 'auqadmm' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_ESTIMATORS, *_MODEL_FILES})
