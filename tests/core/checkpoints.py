"""Runs for the tests of checkpoints: problems of every kind, and what it means for two results to be the same."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
import torch

import auqadmm as aq
from tests.problems import class_blocks, least_squares, multinomial, regression_blocks, svm


@pytest.fixture(scope="module", autouse=True)
def no_waiting():
    """Flushing to a real disk takes most of the time, and no test here cuts the power."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda handle: None)
        yield


TIGHT = {"abs_tol": 1e-9, "rel_tol": 1e-9, "certificate_tol": 1e-18}


def soft(u, X, y):
    """A loss of two columns without rows that the library could see."""
    z = X @ u
    return torch.log1p(torch.exp(-y * (z[:, 0] - z[:, 1]))) + 0.05 * z.square().sum(1)


def custom():
    blocks = [(X, np.sign(y)) for X, y in regression_blocks(sizes=(12, 12, 12))]
    return aq.Problem(aq.CustomLoss(soft, columns=2), aq.L2(0.3), blocks)


def image():
    """Smooth pictures, 6 × 6 pixels: what the directions leave over is diagonal in cosines."""
    rng = np.random.default_rng(0)
    k = np.arange(6)
    F = np.cos(np.pi * (k[:, None] + 0.5) * k[None] / 6)
    blocks = []
    for _ in range(3):
        scale = 1 / (1 + k[:, None] ** 2 + k[None] ** 2)
        X = (F @ (rng.normal(size=(40, 6, 6)) * scale) @ F.T).reshape(40, 36)
        blocks.append((X, np.sign(X[:, 0] + 0.1 * rng.normal(size=40))))
    return aq.Problem(aq.Logistic(), aq.L2(0.1), blocks, image=(6, 6))


def sparse():
    blocks = [(scipy.sparse.csr_matrix(X * (abs(X) > 0.7)), y) for X, y in class_blocks(one_class=False)]
    return aq.Problem(aq.Multinomial(), aq.L2(0.5), blocks, intercept=True)


def weighted():
    rng = np.random.default_rng(1)
    blocks = [(X, y, rng.uniform(size=len(y))) for X, y in regression_blocks(sizes=(3, 20, 8, 0))]
    return aq.Problem(aq.LeastSquares(), aq.L2(0.1), blocks, intercept=True)


PROBLEMS = {
    "least squares": lambda: least_squares(regularizer=aq.L2(0.1)),
    "multinomial": multinomial,
    "svm": svm,
    "huber": lambda: aq.Problem(aq.Huber(0.5), aq.L2(0.1), regression_blocks()),
    "quantile": lambda: aq.Problem(aq.Quantile(0.7, eps=0.2), aq.L2(0.1), regression_blocks()),
    "custom": custom,
    "image": image,
    "sparse": sparse,
    "weighted": weighted,
}


def rows(result):
    """The history without seconds."""
    return [{name: value for name, value in asdict(row).items() if name != "seconds"} for row in result.history]


TOTALS = ("rounds", "bytes", "bytes_up", "bytes_down", "rounds_verdict", "reductions")  # of the last row


def assert_same(one, other):
    """Bit by bit."""
    assert one.status == other.status, (one.message, other.message)
    assert torch.equal(one.v, other.v)
    assert rows(one) == rows(other)
    assert repr(one.certificate) == repr(other.certificate)  # NaN is not equal to itself
    if one.lam is not None:
        assert torch.equal(one.lam, other.lam)


def names(folder):
    return sorted(path.name for path in Path(folder).iterdir() if path.name != ".lock")
