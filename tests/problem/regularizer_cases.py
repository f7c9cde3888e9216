"""One regularizer of every kind, and random points and metrics to try them on."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import Tensor

from auqadmm.problem.group_lasso import GroupLasso
from auqadmm.problem.regularizers import L1, L2, Box, ElasticNet, NonNegative, Regularizer, Zero
from auqadmm.problem.wrappers import CustomRegularizer, FreeIntercept

M, C = 5, 2
INF = math.inf
LABELS = [7, 2, 7, 2, 2]


def custom_l1(strength: float, with_distance: bool = False) -> CustomRegularizer:
    twin = L1(strength)
    distance = twin.subgradient_distance if with_distance else None
    return CustomRegularizer(lambda v: strength * v.abs().sum(), twin.prox, distance)


def label(reg: Regularizer) -> str:
    """A test id without the address of a function: parallel test workers must agree on it."""
    return "custom" if isinstance(reg, CustomRegularizer) else repr(reg)


PLAIN: dict[str, Regularizer] = {
    "zero": Zero(),
    "l1": L1(0.7),
    "l1-off": L1(0.0),
    "l2": L2(0.8),
    "l2-off": L2(0.0),
    "elastic": ElasticNet(0.5, 0.3),
    "elastic-l1": ElasticNet(0.5, 0.0),
    "elastic-off": ElasticNet(0.0, 0.0),
    "rows": GroupLasso(0.6),
    "groups": GroupLasso(0.4, LABELS),
    "weights": GroupLasso(0.6, LABELS, [1.3, 0.4]),
    "free-group": GroupLasso(0.6, LABELS, [1.3, 0.0]),
    "groups-off": GroupLasso(0.0, LABELS),
    "nonnegative": NonNegative(),
    "box": Box(-0.5, 0.8),
    "box-rows": Box([-1.0, 0.0, 0.3, -INF, -INF], [-0.5, 0.0, INF, 0.1, INF]),
    "custom": custom_l1(0.7),
    "custom-distance": custom_l1(0.7, with_distance=True),
}
INTERCEPT: dict[str, Regularizer] = {
    "intercept-elastic": FreeIntercept(ElasticNet(0.5, 0.3)),
    "intercept-groups": FreeIntercept(GroupLasso(0.6, [1, 0, 0, 1])),
    "intercept-box": FreeIntercept(Box(-0.5, [0.1, 0.2, 0.3, INF])),
}
CASES = PLAIN | INTERCEPT
# The largest c with c·w in the domain of g*: a number for these, None for all others.
WITH_DUAL = {"l1", "l2", "elastic", "elastic-l1", "rows", "groups", "weights", "box"}

FIXED_SIZE = {"groups", "weights", "free-group", "groups-off", "box-rows"}  # they fit M rows only

law = settings(derandomize=True, max_examples=12, deadline=None)
every_case = pytest.mark.parametrize("name", CASES)


def matrices(bound: float = 5.0) -> st.SearchStrategy[Tensor]:
    elements = st.floats(-bound, bound, allow_subnormal=False)
    return arrays(np.float64, (M, C), elements=elements).map(torch.from_numpy)


metrics = matrices(2.0).map(lambda power: 10.0**power)  # K in [1e-2, 1e2], different in every entry


def inner(a: Tensor, b: Tensor) -> float:
    return float((a * b).sum())
