"""Families with targets of their own kind, and the same model in statsmodels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import statsmodels.api as sm
from numpy.random import Generator
from scipy.special import ndtr

import auqadmm as aq

FAMILY, LINK = sm.families, sm.families.links


@dataclass(frozen=True)
class FamilyCase:
    """A loss, its family in statsmodels, and targets for logits z."""

    loss: aq.losses.RowLoss
    family: Any
    draw: Callable[[np.ndarray, Generator], np.ndarray]

    @property
    def binary(self) -> bool:
        return self.loss.target_kind == "binary"


def _tweedie(z: np.ndarray, rng: Generator) -> np.ndarray:
    return np.array([rng.gamma(1.5, size=n).sum() for n in rng.poisson(np.exp(0.5 * z))])


CASES = {
    "gaussian": FamilyCase(aq.LeastSquares(), FAMILY.Gaussian(), lambda z, rng: z + 0.7 * rng.normal(size=len(z))),
    "logit": FamilyCase(aq.Logistic(), FAMILY.Binomial(), lambda z, rng: rng.binomial(1, 1 / (1 + np.exp(-z)))),
    "probit": FamilyCase(aq.Probit(), FAMILY.Binomial(LINK.Probit()), lambda z, rng: rng.binomial(1, ndtr(z))),
    "cloglog": FamilyCase(
        aq.CLogLog(), FAMILY.Binomial(LINK.CLogLog()), lambda z, rng: rng.binomial(1, 1 - np.exp(-np.exp(z)))
    ),
    "poisson": FamilyCase(aq.Poisson(), FAMILY.Poisson(), lambda z, rng: rng.poisson(np.exp(z)).astype(float)),
    "gamma": FamilyCase(aq.Gamma(), FAMILY.Gamma(LINK.Log()), lambda z, rng: rng.gamma(2.0, np.exp(z) / 2)),
    "negative-binomial": FamilyCase(
        aq.NegativeBinomial(1.7),
        FAMILY.NegativeBinomial(alpha=1 / 1.7),
        lambda z, rng: rng.poisson(rng.gamma(1.7, np.exp(z) / 1.7)).astype(float),
    ),
    "tweedie": FamilyCase(aq.Tweedie(1.6), FAMILY.Tweedie(LINK.Log(), var_power=1.6), _tweedie),
}


@dataclass(frozen=True)
class Study:
    """Rows of several sites: X (n, m), y (n,), weights, offsets, the site of every row."""

    X: np.ndarray
    y: np.ndarray
    weight: np.ndarray
    offset: np.ndarray
    site: np.ndarray

    def blocks(self, weights: bool = False, offset: bool = False) -> list[tuple[Any, ...]]:
        out = []
        for j in np.unique(self.site):
            rows = self.site == j
            out.append((self.X[rows], self.y[rows], self.weight[rows] if weights else None))
            out[-1] += (self.offset[rows],) if offset else ()
        return out

    @property
    def design(self) -> np.ndarray:
        """With the intercept's ones last."""
        return np.column_stack([self.X, np.ones(len(self.y))])


def study(case: FamilyCase, seed: int = 0, sizes: tuple[int, ...] = (90, 41, 7, 3, 120), scale: Any = 1.0) -> Study:
    """Unequal and tiny sites; the last column is a factor level that one site has alone."""
    rng = np.random.default_rng(seed)
    site = np.repeat(np.arange(len(sizes)), sizes)
    n = len(site)
    X = np.column_stack([rng.normal(size=n), rng.normal(size=n) + 0.3 * site, rng.random(n) < 0.4])
    X = np.column_stack([X, (site == 0) & (rng.random(n) < 0.5)]).astype(float)
    offset = 0.4 * rng.normal(size=n)
    z = X @ np.array([0.5, -0.4, 0.6, 0.3]) - 0.2 + offset
    weight = rng.integers(1, 4, size=n).astype(float)
    return Study(X * scale, case.draw(z, rng), weight, offset, site)


def oracle(case: FamilyCase, data: Study, weights: bool = False, offset: bool = False, **options: Any) -> Any:
    """statsmodels' fit of the pooled rows, converged to rounding."""
    return glm(case, data, data.design, weights, offset).fit(tol=1e-13, tol_criterion="params", maxiter=500, **options)


def glm(case: FamilyCase, data: Study, design: np.ndarray, weights: bool = False, offset: bool = False) -> Any:
    more: dict[str, Any] = {"freq_weights": data.weight} if weights else {}
    more |= {"offset": data.offset} if offset else {}
    return sm.GLM(data.y, design, family=case.family, **more)
