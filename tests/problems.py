"""Small, well-scaled problems and plain numpy oracles that share no code with the library."""

from __future__ import annotations

import numpy as np

import auqadmm as aq


def regression_blocks(sizes=(12, 9, 15, 7), features=6, seed=0, noise=0.1):
    """iid Gaussian rows, a linear target."""
    rng = np.random.default_rng(seed)
    truth = rng.normal(size=features)
    blocks = []
    for n in sizes:
        X = rng.normal(size=(n, features))
        blocks.append((X, X @ truth + noise * rng.normal(size=n)))
    return blocks


def class_blocks(classes=3, per_block=20, features=5, seed=0, one_class=True):
    """Gaussian clouds; one class per worker, or the same rows dealt out at random."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(classes, features))
    X = np.concatenate([centres[c] + rng.normal(size=(per_block, features)) for c in range(classes)])
    y = np.repeat(np.arange(classes), per_block)
    if not one_class:
        order = rng.permutation(len(y))
        X, y = X[order], y[order]
    return [(X[i : i + per_block], y[i : i + per_block]) for i in range(0, len(y), per_block)]


def pooled(blocks):
    """All rows as one block."""
    return np.concatenate([np.asarray(b[0]) for b in blocks]), np.concatenate([np.asarray(b[1]) for b in blocks])


def least_squares(blocks=None, reduction="mean", regularizer=None):
    blocks = regression_blocks() if blocks is None else blocks
    return aq.Problem(aq.LeastSquares(reduction=reduction), regularizer or aq.ElasticNet(0.05, 0.1), blocks)


def multinomial(blocks=None, reduction="mean", regularizer=None):
    blocks = class_blocks() if blocks is None else blocks
    return aq.Problem(aq.Multinomial(reduction=reduction), regularizer or aq.L2(0.1), blocks)


def svm(blocks=None, reduction="mean", regularizer=None, eps=0.1):
    blocks = class_blocks(classes=2, per_block=30) if blocks is None else blocks
    return aq.Problem(aq.SmoothedHinge(eps, reduction=reduction), regularizer or aq.L2(0.5), blocks)
