"""What is solved: losses, regularizers, blocks."""

from auqadmm.problem.agreement import ProcessError
from auqadmm.problem.cox import Cox
from auqadmm.problem.custom_loss import CustomLoss
from auqadmm.problem.families import CLogLog, Gamma, NegativeBinomial, Probit, Tweedie
from auqadmm.problem.group_lasso import GroupLasso
from auqadmm.problem.ingest import InputError
from auqadmm.problem.losses import Huber, LeastSquares, Logistic, Multinomial, Poisson, SmoothedHinge
from auqadmm.problem.problem import Problem
from auqadmm.problem.quantile import Quantile
from auqadmm.problem.regularizers import (
    L1,
    L2,
    Box,
    ElasticNet,
    NonNegative,
    Zero,
)
from auqadmm.problem.wrappers import CustomRegularizer

__all__ = [
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
    "InputError",
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
]
