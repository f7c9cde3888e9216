"""What local solvers learned is part of the state: a run that was interrupted goes on to the same bits."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import auqadmm as aq

SIZES = {"even": (200, 200), "uneven": (300, 4, 5, 3)}


def problem(loss, sizes, features=8):
    rng = np.random.default_rng(0)
    truth = rng.normal(size=(features, 3))
    blocks = []
    for n in sizes:
        X = rng.normal(size=(n, features)) * np.geomspace(1, 5, features)
        z = X @ truth + rng.normal(size=(n, 3))
        blocks.append((X, z.argmax(1) if isinstance(loss, aq.Multinomial) else np.where(z[:, 0] > 0, 1.0, -1.0)))
    return aq.Problem(loss, aq.L2(1.0), blocks)


@pytest.mark.thin(10)
@pytest.mark.parametrize("method", ["c-admm", "auq-admm"])
@pytest.mark.parametrize("local", ["auto", "lbfgs", "newton-cg"])
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize(
    "loss", [aq.Logistic(), aq.Multinomial(), aq.SmoothedHinge()], ids=lambda loss: type(loss).__name__
)
def test_solvers_go_on_to_the_same_bits(loss, sizes, local, method, tmp_path):
    posed = problem(loss, sizes)
    options = {"local": local, "abs_tol": 0.0, "rel_tol": 0.0, "stop": "residuals"}
    whole = aq.solve(posed, method, max_iter=10, **options)
    aq.solve(posed, method, max_iter=5, checkpoint=tmp_path, **options)
    again = aq.solve(posed, method, max_iter=10, checkpoint=tmp_path, **options)
    assert torch.equal(again.v, whole.v)
    assert again.history[-1].hvps == whole.history[-1].hvps
