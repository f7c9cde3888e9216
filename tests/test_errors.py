"""One base class of errors: the same mistake raises the same class everywhere, and the kind that it always was."""

from __future__ import annotations

import inspect
import math
import pickle

import numpy as np
import pytest
import torch

import auqadmm as aq
from auqadmm.cli.outputs import CommandError
from auqadmm.core.processes import CallbackError
from auqadmm.paper.data import DataError

X, Y = np.eye(3), np.arange(3.0)


class Thing:
    """No number; its name is the same in every process."""

    def __repr__(self) -> str:
        return "a thing"


NOT_A_NUMBER = ["much", None, math.nan, Thing()]

# class, a good call, and for each argument what it cannot be
NUMBERS = [
    (aq.L1, {"strength": 1.0}, ["strength"]),
    (aq.L2, {"strength": 1.0}, ["strength"]),
    (aq.ElasticNet, {"l1": 1.0, "l2": 1.0}, ["l1", "l2"]),
    (aq.GroupLasso, {"strength": 1.0}, ["strength"]),
    (aq.Huber, {"delta": 1.0}, ["delta"]),
    (aq.SmoothedHinge, {"eps": 0.1}, ["eps"]),
    (aq.Quantile, {"q": 0.5, "eps": 0.1}, ["q", "eps"]),
    (aq.methods.C, {"rho": 1.0}, ["rho", "relaxation"]),
    (aq.methods.RB, {}, ["rho", "tau", "mu", "relaxation"]),
    (aq.methods.AC, {}, ["rho", "correlation"]),
    (aq.methods.AUQLR, {}, ["skip", "round_cost"]),
    (aq.methods.Newton, {}, ["round_cost"]),
    (aq.methods.Auto, {}, ["round_cost"]),
    (aq.baselines.PreconditionedLBFGS, {}, ["skip", "refresh"]),
    (aq.local.NewtonCG, {}, ["factor"]),
    (aq.local.LBFGS, {}, ["factor"]),
    (aq.local.Direct, {}, ["factor"]),
    (aq.local.Mixed, {}, ["factor"]),
    (aq.local.Released, {}, ["lr", "calls", "max_iter", "history"]),
    (aq.curvature.Lanczos, {}, ["rank"]),
    (aq.curvature.Hutchinson, {}, ["probes"]),
    (aq.engines.Torch, {}, ["timeout"]),
    (aq.engines.Ray, {}, ["timeout"]),
    (aq.engines.Dask, {}, ["timeout"]),
    (aq.Checkpoint, {"folder": "runs"}, ["every", "keep"]),
]
BAD = [
    *((make, {**good, name: bad}) for make, good, names in NUMBERS for name in names for bad in [*NOT_A_NUMBER, -1]),
    *((loss, {"reduction": "median"}) for loss in (aq.LeastSquares, aq.Logistic, aq.Multinomial, aq.Poisson)),
    (aq.Box, {"lower": 1, "upper": 0}),
    (aq.Box, {"lower": "low", "upper": 1}),
    (aq.GroupLasso, {"strength": 1, "groups": [0.5, 1.0]}),
    (aq.GroupLasso, {"strength": 1, "groups": [0, 1], "weights": [1]}),
    (aq.CustomLoss, {"fn": abs, "columns": 0}),
    (aq.CustomLoss, {"fn": abs, "infimum": math.inf}),
    (aq.CustomLoss, {"fn": abs, "self_concordance": -1}),
    (aq.CustomRegularizer, {"value": abs, "prox": abs, "separable": 1}),
    (aq.methods.C, {"residuals": "other"}),
    (aq.methods.AUQ, {"interval": (1.0, 0.1)}),
    (aq.methods.AUQ, {"normalize": "never"}),
    (aq.curvature.Lanczos, {"start": "nowhere"}),
    (aq.engines.Dask, {"address": "tcp://a:1", "client": Thing()}),
    (aq.Checkpoint, {"folder": 7}),
    (aq.Checkpoint, {"folder": "runs", "resume": "perhaps"}),
    (aq.callbacks.EarlyStop, {}),
    (aq.callbacks.EarlyStop, {"objective": "low"}),
    (aq.callbacks.Progress, {"mode": "loud"}),
    (aq.Problem, {"loss": aq.LeastSquares(), "regularizer": aq.L2(1.0), "blocks": []}),
    (aq.Problem, {"loss": aq.LeastSquares(), "regularizer": aq.L2(1.0), "blocks": [(X, Y)], "intercept": "yes"}),
    (aq.Problem, {"loss": aq.LeastSquares(), "regularizer": aq.L2(1.0), "blocks": [(X, Y)], "image": (2, 2)}),
    (aq.Problem, {"loss": aq.LeastSquares(), "regularizer": aq.Box([0, 0], 1), "blocks": [(X, Y)]}),
    (
        aq.weights.LowRank,
        {"U": torch.ones(1, 3, 1), "M": torch.ones(2), "d": torch.ones(3), "S": torch.ones(1, 1, 1), "phi": Y},
    ),
]
KINDS = [
    (aq.CustomLoss, {"fn": 1}),
    (aq.CustomRegularizer, {"value": 1, "prox": 2}),
    (aq.CustomRegularizer, {"value": abs, "prox": abs, "subgradient_distance": 3}),
    (aq.CustomRegularizer, {"value": abs, "prox": abs, "separable": True, "prox_slope": 3}),
    (aq.regularizers.FreeIntercept, {"inner": 1}),
    (aq.callbacks.EarlyStop, {"when": 1}),
    (aq.callbacks.Progress, {"to": 1}),
    (aq.callbacks.Progress, {"title": 1}),
    (aq.Problem, {"loss": "squares", "regularizer": aq.L2(1.0), "blocks": [(X, Y)]}),
    (aq.Problem, {"loss": aq.LeastSquares(), "regularizer": "ridge", "blocks": [(X, Y)]}),
    (aq.solve, {"problem": 1}),
    (aq.solve, {"problem": aq.Problem(aq.LeastSquares(), aq.L2(1.0), [(X, Y)]), "callbacks": 1}),
    (aq.solve, {"problem": aq.Problem(aq.LeastSquares(), aq.L2(1.0), [(X, Y)]), "method": 1}),
    (aq.solve, {"problem": aq.Problem(aq.LeastSquares(), aq.L2(1.0), [(X, Y)]), "method": "c-admm", "local": 1}),
]
SETTINGS = {
    "method": "unknown",
    "engine": "unknown",
    "local": "unknown",
    "max_iter": -1,
    "abs_tol": -1.0,
    "certificate_tol": "small",
    "time_limit": 0,
    "stop": "never",
    "dtype": "float16",
    "device": "tpu",
    "seed": -1,
    "start": "ones",
    "warm_start": np.ones(7),
    "evaluate_every": -1,
    "on_loss": "cry",
    "checkpoint": 5,
    "round_cost": -1,
}


def named(case):
    make, arguments = case
    return f"{make.__name__} {arguments}"[:70]


@pytest.mark.parametrize("case", BAD, ids=named)
def test_an_argument_that_cannot_be_is_an_input_error(case):
    make, arguments = case
    with pytest.raises(aq.InputError) as raised:
        make(**arguments)
    assert type(raised.value) is aq.InputError
    assert isinstance(raised.value, ValueError)
    assert len(str(raised.value)) > 15


@pytest.mark.parametrize("case", KINDS, ids=named)
def test_another_kind_of_object_is_an_input_type_error(case):
    make, arguments = case
    with pytest.raises(aq.InputTypeError) as raised:
        make(**arguments)
    assert isinstance(raised.value, ValueError)
    assert isinstance(raised.value, TypeError)


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_of_a_run_that_cannot_be_is_an_input_error(name):
    problem = aq.Problem(aq.LeastSquares(), aq.L2(1.0), [(X, Y)])
    with pytest.raises(aq.InputError) as raised:
        aq.solve(problem, **{"method": "newton" if name == "round_cost" else "c-admm", name: SETTINGS[name]})
    assert type(raised.value) is aq.InputError


def test_estimators():
    for make, arguments in (
        (aq.ConsensusElasticNet, {"alpha": -1}),
        (aq.ConsensusElasticNet, {"l1_ratio": 2}),
        (aq.ConsensusLogisticRegression, {"C": 0}),
        (aq.ConsensusLinearSVC, {"C": "much"}),
        (aq.ConsensusRidge, {"alpha": math.nan}),
        (aq.ConsensusRidgeCV, {"alphas": []}),
        (aq.ConsensusLasso, {"alpha": None}),
    ):
        with pytest.raises(aq.InputError):
            make(**arguments).fit(np.random.default_rng(0).normal(size=(12, 3)), np.arange(12) % 2)


# ---------------------------------------------------------------------- the family
def test_every_error_has_the_base_and_the_kind_that_it_had():
    kinds = {
        aq.InputError: ValueError,
        aq.InputTypeError: TypeError,
        aq.CheckpointError: ValueError,
        aq.ModelError: ValueError,
        DataError: ValueError,
        aq.WorkerLost: RuntimeError,
        aq.ProcessError: RuntimeError,
        CallbackError: RuntimeError,
        CommandError: Exception,
    }
    for error, kind in kinds.items():
        assert issubclass(error, aq.AuqadmmError)
        assert issubclass(error, kind)
        again = pickle.loads(pickle.dumps(error("a sentence")))
        assert type(again) is error
        assert str(again) == "a sentence"
    public = [x for x in (getattr(aq, name) for name in aq.__all__) if inspect.isclass(x)]
    assert all(issubclass(x, aq.AuqadmmError) for x in public if issubclass(x, BaseException))


def test_the_old_place_has_the_same_class():
    from auqadmm.problem.ingest import InputError

    assert InputError is aq.InputError
