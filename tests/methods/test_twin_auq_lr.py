"""AUQ-LR against its twin in plain numpy (twin_auq_lr.py), iteration by iteration."""

from __future__ import annotations

import numpy as np
import pytest

import auqadmm as aq
from auqadmm.local import Direct, NewtonCG
from tests.methods.twin_auq_lr import Softmax, Squares, Twin, TwoClasses
from tests.problems import class_blocks, regression_blocks

STEPS = 9


def trajectory(problem, method, local):
    seen = []

    def record(event):
        shared, blocks = event.state.shared, event.state.blocks
        seen.append((shared.v.numpy().ravel().copy(), blocks.lam.numpy().reshape(len(blocks.lam), -1).copy()))

    options = {"abs_tol": 0, "rel_tol": 0, "certificate_tol": 0, "callbacks": [record]}
    aq.solve(problem, method, max_iter=STEPS, local=local, **options)
    assert len(seen) == STEPS
    return seen


def compare(seen, twin, tol):
    scale = max(np.linalg.norm(v) for v, _ in seen)
    slopes = max(np.linalg.norm(lam) for _, lam in seen)
    for v, lam in seen:
        twin.step()
        np.testing.assert_allclose(v, twin.v, rtol=0, atol=tol * scale)
        np.testing.assert_allclose(lam, np.array(twin.lam), rtol=0, atol=tol * slopes)
    return {what for _, what in twin.events}


def weights_of_rows(blocks, reduction):
    return [np.full(len(y), 1 / len(y) if reduction == "mean" else 1.0) for _, y in blocks]


@pytest.mark.parametrize("l1", [0.0, 0.3])
@pytest.mark.parametrize("memory", [0, 2, 16])
@pytest.mark.parametrize("alpha", [None, 1.3])
def test_least_squares(l1, memory, alpha):
    blocks = regression_blocks(noise=1.0)
    g = aq.ElasticNet(l1, 0.1) if l1 else aq.L2(0.1)
    problem = aq.Problem(aq.LeastSquares(reduction="sum"), g, blocks)
    method = aq.methods.AUQLR(rank=2, memory=memory, relaxation=alpha, columns="raw")
    seen = trajectory(problem, method, Direct(tol=1e-15))
    c = weights_of_rows(blocks, "sum")
    parts = [Squares(X, y, w) for (X, y), w in zip(blocks, c, strict=True)]
    happened = compare(seen, Twin(parts, l1, 0.1, 2, alpha or 1.8, memory), 1e-12)
    assert ("accelerated" in happened) == (memory > 0)


@pytest.mark.parametrize(("l2", "reduction"), [(0.5, "sum"), (0.01, "mean"), (0.02, "sum")])
@pytest.mark.parametrize("rank", [0, 2])
def test_logistic(l2, reduction, rank):
    blocks = [(X, np.where(y > 0, 1.0, -1.0)) for X, y in regression_blocks(sizes=(20, 14, 24), noise=2.0)]
    problem = aq.Problem(aq.Logistic(reduction=reduction), aq.L2(l2), blocks)
    method = aq.methods.AUQLR(rank=rank, columns="raw", products=None)
    seen = trajectory(problem, method, NewtonCG(tol=1e-14))
    parts = [TwoClasses(X, y, w) for (X, y), w in zip(blocks, weights_of_rows(blocks, reduction), strict=True)]
    happened = compare(seen, Twin(parts, 0.0, l2, rank), 1e-11)
    assert happened >= {"accelerated", "renewed"}


@pytest.mark.parametrize("one_class", [True, False])
def test_multinomial(one_class):
    blocks = class_blocks(one_class=one_class)
    problem = aq.Problem(aq.Multinomial(), aq.L2(1.0), blocks)
    method = aq.methods.AUQLR(rank=2, columns="raw", products=None)
    seen = trajectory(problem, method, NewtonCG(tol=1e-14))
    parts = [Softmax(X, y, w, 3) for (X, y), w in zip(blocks, weights_of_rows(blocks, "sum"), strict=True)]
    happened = compare(seen, Twin(parts, 0.0, 1.0, 2), 1e-8)  # conjugate gradients in the v-step
    assert happened >= {"accelerated", "renewed"}
