"""Real data sets, small enough for every test, and what scikit-learn or scipy find on them."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from scipy.optimize import minimize
from sklearn import datasets
from sklearn.exceptions import ConvergenceWarning

LOADERS = {
    "diabetes": datasets.load_diabetes,
    "breast cancer": datasets.load_breast_cancer,
    "wine": datasets.load_wine,
    "digits": datasets.load_digits,
}


@pytest.fixture
def data():
    """name → (X, y)."""
    return lambda name: LOADERS[name](return_X_y=True)


def split(y: np.ndarray, how: str, seed: int = 0) -> np.ndarray:
    """Site labels: "iid", "by class" (or by quarters of a real target), "uneven" with single-row sites."""
    rng = np.random.default_rng(seed)
    if how == "iid":
        return rng.integers(0, 4, len(y))
    if how == "by class":
        return y if len(np.unique(y)) <= 10 else np.searchsorted(np.quantile(y, [0.25, 0.5, 0.75]), y)
    sites = np.where(rng.random(len(y)) < 0.8, "large", "small").astype(object)
    sites[:2] = ["one row", "another row"]
    return sites


def far(model_coef: np.ndarray, reference: np.ndarray) -> float:
    """The largest error of a coefficient, relative to the largest coefficient."""
    return float(np.abs(model_coef - reference).max() / np.abs(reference).max())


def quietly(model, *args, **kwargs):
    """Fit a reference to more digits than its own solver calls converged."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return model.fit(*args, **kwargs)


def smooth_hinge(X, y, C, eps, weight=None) -> np.ndarray:
    """c and b of the smoothed support vector machine by scipy, y = ±1, on standardised copies of the features."""
    weight = np.ones(len(y)) if weight is None else weight
    mean, scale = X.mean(0), X.std(0)
    Z = (X - mean) / scale

    def objective(w):
        c, b = w[:-1] / scale, w[-1]
        t = 1 - y * (Z @ w[:-1] + b)
        root = np.hypot(t, eps)
        slope = -C * weight * y * 0.5 * (1 + t / root)
        value = 0.5 * c @ c + C * weight @ ((t + root) / 2)
        return value, np.append(c / scale + Z.T @ slope, slope.sum())

    def hessian(w):
        t = 1 - y * (Z @ w[:-1] + w[-1])
        h = C * weight * eps**2 / (2 * np.hypot(t, eps) ** 3)
        A = np.hstack([Z, np.ones((len(y), 1))])
        return A.T @ (h[:, None] * A) + np.diag(np.append(1 / scale**2, 0.0))

    found = minimize(
        objective,
        np.zeros(X.shape[1] + 1),
        jac=True,
        hess=hessian,
        method="trust-exact",
        options={"gtol": 1e-9, "maxiter": 2000},
    )
    coef = found.x[:-1] / scale
    return np.append(coef, found.x[-1] - coef @ mean)
