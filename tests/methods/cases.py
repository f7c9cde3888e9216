"""Problems for the tests of AUQ-LR: every loss with every regularizer, on uneven blocks."""

from __future__ import annotations

import numpy as np
import torch

import auqadmm as aq
from tests.problems import class_blocks

LR = aq.methods.AUQLR
TIGHT = {"certificate_tol": 1e-14, "max_iter": 400}

LOSSES = {
    "least-squares": (aq.LeastSquares(), "real"),
    "huber": (aq.Huber(0.5), "real"),
    "quantile": (aq.Quantile(0.7, eps=0.2), "real"),
    "poisson": (aq.Poisson(), "count"),
    "logistic": (aq.Logistic(), "class"),
    "hinge": (aq.SmoothedHinge(0.05), "class"),
    "multinomial": (aq.Multinomial(), "class"),
    "custom": (aq.CustomLoss(lambda u, X, y: torch.nn.functional.softplus(y - X @ u) + 0.1 * (X @ u - y) ** 2), "real"),
}
PENALTIES = {
    "l2": aq.L2(0.5),
    "elastic-net": aq.ElasticNet(0.5, 0.3),
    "l1": aq.L1(0.5),
    "group": aq.GroupLasso(0.5, groups=[0, 0, 1, 1, 2]),
    "non-negative": aq.NonNegative(),
    "box": aq.Box(-0.2, 0.3),
}


def make(loss, penalty, intercept=False):
    loss, kind = LOSSES[loss]
    blocks = class_blocks(classes=3 if isinstance(loss, aq.Multinomial) else 2, per_block=14)
    X, y = blocks[0]
    blocks.append((X[:3] + 0.1, y[:3]))  # uneven, and too few rows for a direction
    blocks.append((X[:0], y[:0]))
    if kind != "class":
        blocks = [(X, np.floor(2 * np.abs(X[:, 0])) if kind == "count" else X[:, 0] - X[:, 1] + y) for X, y in blocks]
    return aq.Problem(loss, PENALTIES[penalty], blocks, intercept=intercept)
