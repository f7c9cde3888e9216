"""The digits that come with scikit-learn, one class per worker: the hardest split, and nothing to download.

1797 images of 8×8 pixels; worker j has the images of digit j only, so no worker can fit anything
useful alone. Two models of S11, with means over each worker's rows:

    multinomial    Σ_j mean log-loss + ½‖v‖²                            640 unknowns
    elastic net    Σ_j mean ½(xᵀv − digit)² + 0.01‖v‖₁ + 0.005‖v‖²       64 unknowns
"""

from __future__ import annotations

import numpy as np
from sklearn.datasets import load_digits

from auqadmm.problem import L2, ElasticNet, LeastSquares, Multinomial, Problem

IMAGE = (8, 8)
TEN_DIGITS = 10  # workers, one per digit


def digits_blocks() -> list[tuple[np.ndarray, np.ndarray]]:
    """Ten blocks (X, y), block j all images of digit j: X (n_j, 64) with pixels in [0, 1], y the digit."""
    X, y = load_digits(return_X_y=True)
    return [(X[y == digit] / 16.0, y[y == digit]) for digit in range(TEN_DIGITS)]


def digits_multinomial() -> Problem:
    """Softmax regression of the digit, g = ½‖v‖²."""
    return Problem(Multinomial(reduction="mean"), L2(1.0), digits_blocks())


def digits_elastic_net() -> Problem:
    """Linear regression of the digit as a number, g = 0.01‖v‖₁ + 0.005‖v‖²."""
    blocks = [(X, y.astype(float)) for X, y in digits_blocks()]
    return Problem(LeastSquares(reduction="mean"), ElasticNet(1e-2, 1e-2), blocks)
