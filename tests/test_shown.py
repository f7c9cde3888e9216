"""What a session shows: the public names, and reprs of one to four lines that say what matters."""

from __future__ import annotations

import importlib
from functools import partial

import numpy as np
import pytest
import torch
from sklearn import config_context
from sklearn.base import clone

import auqadmm as aq
from auqadmm.problem.agreement import same

X, Y = np.random.default_rng(0).normal(size=(30, 4)), np.arange(30) % 2
BLOCKS = [(X[:12], Y[:12]), (X[12:], Y[12:])]


def slack(u, X, y):
    return (X @ u - y).square()


def some(v, K=None):
    return v


def test_dir_is_all():
    assert dir(aq) == sorted(aq.__all__)
    names = "baselines callbacks curvature engines local losses methods regularizers testing weights"
    for module in (importlib.import_module(f"auqadmm.{name}") for name in names.split()):
        assert {name for name in dir(module) if not name.startswith("__")} == set(module.__all__), module
    assert len(set(aq.__all__)) == len(aq.__all__)
    for name in aq.__all__:
        assert getattr(aq, name) is not None
    with pytest.raises(AttributeError, match="module 'auqadmm' has no attribute 'nonsense'"):
        _ = aq.nonsense


@pytest.mark.parametrize("module", ["methods", "losses", "regularizers", "weights", "engines", "local", "baselines"])
def test_all_of_a_module_is_there(module):
    found = getattr(aq, module)
    assert all(hasattr(found, name) for name in found.__all__)


def test_a_result():
    found = aq.solve(aq.Problem(aq.Logistic(), aq.L2(1.0), BLOCKS, intercept=True), "c-admm", certificate_tol=1e-4)
    first, sentence, numbers = repr(found).split("\n")
    rounds = found.history[-1].rounds
    assert first == f"Result: converged by c-admm after {found.n_iter} iterations, {rounds} rounds"
    assert sentence.strip() == found.message
    assert numbers == f"  objective {found.objective:.9g}, coef (4,), intercept {found.intercept:.6g}"


def test_a_result_of_many_columns_and_no_iteration():
    problem = aq.Problem(aq.Multinomial(), aq.L2(1.0), [(X, np.arange(30) % 3)], intercept=True)
    found = aq.solve(problem, "c-admm", max_iter=0)
    assert "max_iter by c-admm after 0 iterations" in repr(found)
    assert repr(found).endswith("coef (4, 3), intercept (3,)")
    assert len(repr(found).split("\n")) == 3


def test_a_problem():
    problem = aq.Problem(aq.Logistic(), aq.L1(0.5), BLOCKS, intercept=True, image=(2, 2))
    assert repr(problem) == (
        "Problem(Logistic(reduction='sum'), L1(strength=0.5), 2 blocks × 30 rows × 4 columns, intercept, image (2, 2))"
    )
    assert "1 block × 30 rows × 4 columns)" in repr(aq.Problem(aq.LeastSquares(), aq.Zero(), [(X, Y)]))
    elsewhere = aq.Problem(aq.Logistic(), aq.L1(0.5), lambda rank, world: BLOCKS)
    assert repr(elsewhere).endswith("L1(strength=0.5), blocks that are read where they live)")


def test_own_functions_are_told_by_name():
    assert repr(aq.CustomLoss(slack)) == "CustomLoss(fn=slack, columns=1, reduction='sum')"
    assert "infimum=-1.0" in repr(aq.CustomLoss(slack, infimum=-1.0))
    assert repr(aq.CustomRegularizer(some, some)) == "CustomRegularizer(value=some, prox=some)"
    assert repr(aq.CustomRegularizer(some, some, separable=True)).endswith("separable=True)")
    assert " at 0x" not in repr(aq.CustomLoss(partial(slack)))


@pytest.mark.parametrize("make", [lambda x: aq.GroupLasso(1.0, x), lambda x: aq.Box(-1, np.array(x) + 1.0)])
def test_long_lists_are_told_in_brief(make):
    groups = list(range(1000))
    one, other = repr(make(groups)), repr(make([*groups[:500], 3, *groups[501:]]))
    assert len(one) < 120
    assert one != other  # a digest tells them apart: processes compare what they were given by repr


def test_processes_notice_other_groups():
    mine, theirs = aq.GroupLasso(1.0, range(20)), aq.GroupLasso(1.0, [*range(19), 3])
    texts = []
    same(lambda text: texts.append(text) or [text], {"g": theirs})
    with pytest.raises(aq.InputError, match="rank 1 was given g GroupLasso"):
        same(lambda text: [text, *texts], {"g": mine})


def test_short_lists_are_told_whole():
    assert repr(aq.GroupLasso(1.0, [0, 0, 1])) == "GroupLasso(strength=1.0, groups=(0, 0, 1), weights=None)"
    assert repr(aq.Box(0, [1, 2])) == "Box(lower=0.0, upper=(1.0, 2.0))"
    assert repr(aq.NonNegative()) == "NonNegative()"


def test_estimators():
    busy = aq.ConsensusElasticNet(alpha=0.1, engine=aq.engines.Dask(), method=aq.methods.AUQLR(rank=3))
    assert all(part in repr(busy) for part in ("alpha=0.1", "engine=Dask(", "method=AUQLR(rank=3,"))
    for name in (n for n in aq.__all__ if n.startswith("Consensus")):
        made = getattr(aq, name)()
        assert repr(made) == f"{name}()"
        assert repr(clone(made)) == repr(made)
        with config_context(print_changed_only=False):
            assert "engine=" in repr(made)
    assert len(repr(busy).split("\n")) <= 4


@pytest.mark.parametrize("name", aq.losses.__all__ + aq.regularizers.__all__)
def test_parts_are_short(name):
    room = aq.losses if name in aq.losses.__all__ else aq.regularizers
    made = {
        "L1": (1.0,),
        "L2": (1.0,),
        "ElasticNet": (1.0, 2.0),
        "GroupLasso": (1.0,),
        "Box": (0, 1),
        "CustomLoss": (slack,),
        "CustomRegularizer": (some, some),
        "FreeIntercept": (aq.L2(1.0),),
        "OneAgainstRest": (aq.Logistic(),),
        "SiteIntercepts": (aq.Logistic(),),
    }
    bases = (
        "Loss",
        "RowLoss",
        "Regularizer",
        "RowCurvature",
        "DiagonalCurvature",
        "SoftmaxCurvature",
        "Line",
    )
    if name in (*bases, "Point"):
        return
    text = repr(getattr(room, name)(*made.get(name, ())))
    assert text.startswith(f"{name}(")
    assert len(text) < 120
    assert "\n" not in text


def test_weights_are_still_tensors():
    assert isinstance(aq.weights.Scalar(torch.ones(2), 3, 1).dense(), torch.Tensor)
