"""Fit one convex model on data that lives in many places.

    minimise over u   Σ_j f_j(u) + g(u)        worker j holds its own rows and f_j, g is proximable

>>> import auqadmm as aq
>>> problem = aq.Problem(aq.Multinomial(), aq.L2(1.0), blocks=[(X1, y1), (X2, y2)])
>>> result = aq.solve(problem)
>>> result.coef, result.status, result.certificate
"""

from auqadmm import baselines, curvature, engines, local, methods
from auqadmm.api import solve
from auqadmm.core.certificate import Certificate
from auqadmm.core.history import History
from auqadmm.core.reduce import WorkerLost
from auqadmm.core.result import Result
from auqadmm.core.solve import Iteration
from auqadmm.core.state import Status, WarmStart
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
    SmoothedHinge,
    Zero,
)

__version__ = "0.1.0"

__all__ = [
    "L1",
    "L2",
    "Box",
    "Certificate",
    "CustomLoss",
    "CustomRegularizer",
    "ElasticNet",
    "GroupLasso",
    "History",
    "Huber",
    "InputError",
    "Iteration",
    "LeastSquares",
    "Logistic",
    "Multinomial",
    "NonNegative",
    "Poisson",
    "Problem",
    "ProcessError",
    "Result",
    "SmoothedHinge",
    "Status",
    "WarmStart",
    "WorkerLost",
    "Zero",
    "baselines",
    "curvature",
    "engines",
    "local",
    "methods",
    "solve",
]
