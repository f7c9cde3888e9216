"""What a regularizer says of bad values, bad types, misfits and what a user's function returns."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from auqadmm.problem.group_lasso import GroupLasso
from auqadmm.problem.regularizers import L1, L2, Box, ElasticNet, Regularizer
from auqadmm.problem.wrappers import CustomRegularizer, FreeIntercept
from tests.problem.regularizer_cases import CASES, INF, C, M, every_case, label

ORDER = "Box: lower ≤ upper must hold, lower < inf and upper > -inf, "


def identity(x: Tensor, K: Tensor | None = None) -> Tensor:
    return x


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: L2(-1.0), "L2: strength must be a finite number ≥ 0, got -1.0"),
        (lambda: L1(math.nan), "L1: strength must be a finite number ≥ 0, got nan"),
        (lambda: L1("much"), "L1: strength must be a finite number ≥ 0, got 'much'"),
        (lambda: L2(None), "L2: strength must be a finite number ≥ 0, got None"),
        (lambda: ElasticNet(INF, 0.0), "ElasticNet: l1 must be a finite number ≥ 0, got inf"),
        (lambda: ElasticNet(0.0, -2), "ElasticNet: l2 must be a finite number ≥ 0, got -2.0"),
        (lambda: GroupLasso(-0.5), "GroupLasso: strength must be a finite number ≥ 0, got -0.5"),
        (
            lambda: GroupLasso(1, [0, 1], [1, -3]),
            "GroupLasso: weights[1] must be a finite number ≥ 0, got -3.0",
        ),
        (
            lambda: GroupLasso(1, [0, 1, 1], [1, 2, 3]),
            "GroupLasso: weights must have one entry per group, got 3 for 2 groups",
        ),
        (
            lambda: GroupLasso(1, [0.5, 1.0]),
            "GroupLasso: groups must be integer labels, one per feature, got float64 of shape (2,)",
        ),
        (
            lambda: GroupLasso(1, [[0, 1]]),
            "GroupLasso: groups must be integer labels, one per feature, got int64 of shape (1, 2)",
        ),
        (
            lambda: Box([0, 3], [1, 2]),
            ORDER + "got lower 3.0 and upper 2.0 at entry 1",
        ),
        (
            lambda: Box(1, 0),
            ORDER + "got lower 1.0 and upper 0.0 at entry 0",
        ),
        (lambda: Box(math.nan, 0), ORDER + "got lower nan and upper 0.0 at entry 0"),
        (lambda: Box(INF, INF), ORDER + "got lower inf and upper inf at entry 0"),
        (lambda: Box(-INF, -INF), ORDER + "got lower -inf and upper -inf at entry 0"),
        (
            lambda: Box([0, 0], [1, 1, 1]),
            "Box: lower and upper must be equally long, got 2 and 3 entries",
        ),
        (
            lambda: Box("low", 1),
            "Box: lower must be a number or a sequence of one number per feature, got 'low'",
        ),
        (
            lambda: Box(0, [[1, 2]]),
            "Box: upper must be a number or a sequence of one number per feature, got [[1, 2]]",
        ),
    ],
)
def test_bad_values_are_named(make: Callable[[], Regularizer], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message) + "$"):
        make()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CustomRegularizer(3, identity), "CustomRegularizer: value must be a function, got 3"),
        (lambda: CustomRegularizer(identity, None), "CustomRegularizer: prox must be a function, got None"),
        (
            lambda: CustomRegularizer(identity, identity, 1),
            "CustomRegularizer: subgradient_distance must be a function, got 1",
        ),
        (lambda: FreeIntercept("l1"), "FreeIntercept: inner must be a Regularizer, got 'l1'"),
    ],
)
def test_bad_types_are_named(make: Callable[[], Regularizer], message: str) -> None:
    with pytest.raises(TypeError, match=re.escape(message) + "$"):
        make()


@pytest.mark.parametrize(
    ("reg", "message"),
    [
        (
            GroupLasso(1, [0, 1, 1]),
            "GroupLasso: groups must have one entry per feature, got 3 for 5 features",
        ),
        (
            GroupLasso(1, None, [1, 2]),
            "GroupLasso: weights must have one entry per feature, got 2 for 5 features",
        ),
        (Box([0, 0], 1), "Box: lower must have one entry per feature, got 2 for 5 features"),
        (Box(0, [1]), "Box: upper must have one entry per feature, got 1 for 5 features"),
        (FreeIntercept(Box(0, [1] * 5)), "Box: upper must have one entry per feature, got 5 for 4 features"),
    ],
    ids=label,
)
def test_misfits_are_named_by_check_and_at_use(reg: Regularizer, message: str) -> None:
    v = torch.ones(M, C)
    for use in (
        lambda: reg.check(M),
        lambda: reg.value(v),
        lambda: reg.prox(v, 1.0),
        lambda: reg.subgradient_distance(v, v),
        lambda: reg.conjugate(v),
    ):
        with pytest.raises(ValueError, match=re.escape(message) + "$"):
            use()


@every_case
def test_what_fits_passes_the_check(name: str) -> None:
    CASES[name].check(M)


def test_what_a_users_function_returns_is_checked() -> None:
    v = torch.ones(M, C)
    reg = CustomRegularizer(identity, lambda s, K: s[:1])
    with pytest.raises(ValueError, match=re.escape("value must return a tensor of shape (), got (5, 2)")):
        reg.value(v)
    with pytest.raises(ValueError, match=re.escape("prox must return a tensor of shape (5, 2), got (1, 2)")):
        reg.prox(v, 1.0)
    plain = CustomRegularizer(lambda v: 1, lambda s, K: s.numpy(), lambda v, grad: 0.5)  # numbers and arrays pass
    assert plain.value(v) == 1
    assert plain.value(v).dtype == torch.float32
    assert torch.equal(plain.prox(v, 1.0), v)
    assert plain.subgradient_distance(v, v) == 0.5
