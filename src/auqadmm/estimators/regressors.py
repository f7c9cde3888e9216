"""Poisson, Huber's and quantile regression on rows that belong to workers, with scikit-learn's strengths.

Poisson     1/Σs Σ s_i φ(x_iᵀc + b, y_i) + α/2 ‖c‖²           φ half the deviance, up to a constant
Huber       Σ s_i (σ + σ·H((x_iᵀc + b − y_i)/σ)) + α‖c‖²      over σ > 0 too; H(z) = z², and 2ε|z| − ε² beyond ε
quantile    1/Σs Σ s_i φ(x_iᵀc + b, y_i) + α‖c‖₁              φ the pinball loss, its corner rounded

For a given σ, Huber's objective is 2/σ times Σ s_i φ(x_iᵀc + b, y_i) + ασ/2 ‖c‖², φ the loss `Huber(εσ)`. The best σ
has Σ s_i min(r_i², (εσ)²) = σ² Σ s_i: one number per step of a search.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import RegressorMixin

from auqadmm.estimators import checks
from auqadmm.estimators.base import ConsensusEstimator, deviance_explained
from auqadmm.estimators.blocks import Rows
from auqadmm.estimators.checks import EngineChoice, MatrixLike, MethodChoice, PerRow
from auqadmm.estimators.elastic_net import centred
from auqadmm.estimators.fitting import FitSettings, FitTask, Fitted, fit
from auqadmm.problem import Huber, InputError, Poisson, Quantile

if TYPE_CHECKING:
    from sklearn.utils import Tags

SCALE_STEPS = 60
SCALE_ENOUGH = 1e-11  # of log σ, by which the equation changes ten to a hundred times less
SCALE_FAR = 2.0  # the longest step in log σ
PERFECT = 1e-7  # of the target's spread: a smaller σ is that of rows that are fitted perfectly
CORNER = 1e-3  # of the target's spread: how wide the corner of the pinball loss is


class ConsensusRegressor(RegressorMixin, ConsensusEstimator):
    """What the regressors of this file share."""

    def __init__(
        self,
        alpha: float = 1.0,
        *,
        fit_intercept: bool = True,
        n_blocks: int = 1,
        max_iter: int = 500,
        tol: float = 1e-18,
        method: MethodChoice = "auto",
        engine: EngineChoice = "local",
        verbose: int = 0,
    ) -> None:
        self.alpha = alpha
        self.fit_intercept = fit_intercept
        self.n_blocks = n_blocks
        self.max_iter = max_iter
        self.tol = tol
        self.method = method
        self.engine = engine
        self.verbose = verbose

    def _fit(self, rows: Rows, settings: FitSettings) -> Fitted:
        raise NotImplementedError

    def fit(
        self, X: MatrixLike, y: ArrayLike, sites: PerRow = None, sample_weight: PerRow = None
    ) -> ConsensusRegressor:
        """Fit the model.

        Parameters
        ----------
        X : array, sparse matrix or data frame (n_samples, n_features); a list of these, one per worker
        y : array (n_samples,), or a list of arrays where X is a list
        sites : array (n_samples,), optional
            Which worker owns a row: labels of any kind.
        sample_weight : array (n_samples,), optional
            A row of weight w counts w times.

        Returns
        -------
        self
            Fitted.

        Raises
        ------
        InputError
            Rows, targets, weights or sites cannot be used, or a parameter has a value that it cannot have; the message
            says where and what to do.

        Examples
        --------
        >>> import numpy as np
        >>> import auqadmm as aq
        >>> X, y = np.array([[0.0], [1.0], [1.0], [2.0], [3.0], [4.0]]), np.array([0, 1, 2, 3, 4, 9])
        >>> aq.ConsensusHuberRegressor().fit([X[:3], X[3:]], [y[:3], y[3:]]).coef_.round(1)
        array([1.9])
        """
        checks.at_least_zero("alpha", self.alpha)
        settings = FitSettings.of(self)
        fitted = self._fit(self._read(X, y, sites, sample_weight, numeric=True), settings)
        self.coef_, self.intercept_ = fitted.coef[0], float(fitted.intercept[0])
        self._keep([fitted.result])
        return self

    def predict(self, X: MatrixLike) -> np.ndarray:
        """The predictions: xᵀc + b, of Poisson its exponential.

        Parameters
        ----------
        X : array, sparse matrix or data frame (n_samples, n_features)
            Rows to predict.

        Returns
        -------
        ndarray of shape (n_samples,)
            One number per row.

        Examples
        --------
        >>> import numpy as np
        >>> import auqadmm as aq
        >>> X, y = np.array([[0.0], [1.0], [1.0], [2.0], [3.0], [4.0]]), np.array([0, 1, 2, 3, 4, 9])
        >>> aq.ConsensusQuantileRegressor(alpha=0.0).fit(X, y).predict(X[1:3]).round(1)
        array([1.5, 1.5])
        """
        return self._logits(X)[:, 0]


class ConsensusPoissonRegressor(ConsensusRegressor):
    """Counts with a logarithmic link and a ridge penalty, each worker keeping its own rows.

    The model is that of `sklearn.linear_model.PoissonRegressor`, whatever the split of the rows. For exposure, offsets
    and standard errors use `ConsensusGLM("poisson")`.

    Parameters
    ----------
    alpha : float, default=1.0
        Strength of the l2 penalty, beside the mean over rows of half the deviance.
    fit_intercept, n_blocks, max_iter, tol, method, engine, verbose
        As in `ConsensusElasticNet`, and so are the attributes.

    Examples
    --------
    >>> import numpy as np
    >>> import auqadmm as aq
    >>> X, y = np.array([[0.0], [1.0], [1.0], [2.0], [3.0], [4.0]]), np.array([0, 1, 2, 3, 4, 9])
    >>> aq.ConsensusPoissonRegressor(alpha=0.1).fit(X, y, sites=[0, 0, 0, 1, 1, 1]).predict(X[:2]).round(2)
    array([0.64, 1.24])
    """

    def _fit(self, rows: Rows, settings: FitSettings) -> Fitted:
        loss = Poisson(reduction="pooled")
        return fit(rows, FitTask(loss, 0.0, float(self.alpha), bool(self.fit_intercept)), settings)

    def predict(self, X: MatrixLike) -> np.ndarray:
        """The expected counts.

        Parameters
        ----------
        X : array, sparse matrix or data frame (n_samples, n_features)
            Rows to predict.

        Returns
        -------
        ndarray of shape (n_samples,)
            Means.

        Examples
        --------
        >>> import numpy as np
        >>> import auqadmm as aq
        >>> X, y = np.array([[0.0], [1.0], [1.0], [2.0], [3.0], [4.0]]), np.array([0, 1, 2, 3, 4, 9])
        >>> aq.ConsensusPoissonRegressor(alpha=0.1).fit(X, y).predict(X[:2]).round(2)
        array([0.64, 1.24])
        """
        return np.exp(self._logits(X)[:, 0])

    def score(self, X: MatrixLike, y: ArrayLike, sample_weight: PerRow = None) -> float:
        """D², the share of the deviance that the model explains.

        Parameters
        ----------
        X : array, sparse matrix or data frame (n_samples, n_features)
            Rows.
        y : array (n_samples,)
            Their counts.
        sample_weight : array (n_samples,), optional
            Weights of rows.

        Returns
        -------
        float
            1 at best, 0 for the best constant.

        Examples
        --------
        >>> import numpy as np
        >>> import auqadmm as aq
        >>> X, y = np.array([[0.0], [1.0], [1.0], [2.0], [3.0], [4.0]]), np.array([0, 1, 2, 3, 4, 9])
        >>> round(aq.ConsensusPoissonRegressor(alpha=0.1).fit(X, y).score(X, y), 2)
        0.88
        """
        return deviance_explained(Poisson(), self._logits(X), y, sample_weight)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = True
        return tags


class ConsensusHuberRegressor(ConsensusRegressor):
    """Robust regression whose scale σ is found with the coefficients, each worker keeping its own rows.

    The model is that of `sklearn.linear_model.HuberRegressor`, whatever the split of the rows: residuals beyond εσ
    count by their size, not its square. A given threshold, in units of the target, is `ConsensusGLM(Huber(delta))`.

    Parameters
    ----------
    epsilon : float, default=1.35
        ε, above 1: 1.35 is 95 % as efficient as squares where errors are normal.
    alpha : float, default=0.0001
        Strength of the l2 penalty, beside the sum over rows, in units of σ as in scikit-learn.
    fit_intercept, n_blocks, max_iter, tol, method, engine, verbose
        As in `ConsensusElasticNet`, and so are the attributes, but for:

    Attributes
    ----------
    scale_ : float
        σ.

    Examples
    --------
    >>> import numpy as np
    >>> import auqadmm as aq
    >>> X, y = np.arange(7.0)[:, None], np.array([0.1, 1.0, 1.9, 3.1, 4.0, 5.1, 60.0])
    >>> aq.ConsensusHuberRegressor().fit(X, y, sites=[0, 0, 0, 1, 1, 1, 1]).coef_.round(1)
    array([1.])
    """

    def __init__(
        self,
        epsilon: float = 1.35,
        alpha: float = 0.0001,
        *,
        fit_intercept: bool = True,
        n_blocks: int = 1,
        max_iter: int = 500,
        tol: float = 1e-18,
        method: MethodChoice = "auto",
        engine: EngineChoice = "local",
        verbose: int = 0,
    ) -> None:
        super().__init__(
            alpha,
            fit_intercept=fit_intercept,
            n_blocks=n_blocks,
            max_iter=max_iter,
            tol=tol,
            method=method,
            engine=engine,
            verbose=verbose,
        )
        self.epsilon = epsilon

    def _fit(self, rows: Rows, settings: FitSettings) -> Fitted:
        epsilon = checks.above_zero("epsilon", self.epsilon)
        if not epsilon > 1:
            raise InputError(f"epsilon must be above 1, got {epsilon:g}: with less, no scale is the best.")
        rows, mean = centred(rows, bool(self.fit_intercept))
        found = _ScaleSearch(rows, epsilon, float(self.alpha), bool(self.fit_intercept), settings)()
        fitted, self.scale_ = found
        return Fitted(fitted.coef, fitted.intercept + mean, fitted.result)


class ConsensusQuantileRegressor(ConsensusRegressor):
    """A quantile of the target, linear in the columns, with an l1 penalty, each worker keeping its own rows.

    The objective is that of `sklearn.linear_model.QuantileRegressor`, but for the corner of the pinball loss, which is
    rounded: a row's loss is larger by at most eps/2.

    Parameters
    ----------
    quantile : float, default=0.5
        Which quantile, between 0 and 1.
    alpha : float, default=1.0
        Strength of the l1 penalty, beside the mean over rows.
    eps : float, optional
        Width of the rounded corner, in units of the target; None: a thousandth of its standard deviation.
    fit_intercept, n_blocks, max_iter, tol, method, engine, verbose
        As in `ConsensusElasticNet`, and so are the attributes.

    Examples
    --------
    >>> import numpy as np
    >>> import auqadmm as aq
    >>> X, y = np.arange(7.0)[:, None], np.array([0.1, 1.0, 1.9, 3.1, 4.0, 5.1, 60.0])
    >>> aq.ConsensusQuantileRegressor(alpha=0.0).fit(X, y, sites=[0, 0, 0, 1, 1, 1, 1]).coef_.round(1)
    array([1.])
    """

    def __init__(
        self,
        quantile: float = 0.5,
        alpha: float = 1.0,
        *,
        eps: float | None = None,
        fit_intercept: bool = True,
        n_blocks: int = 1,
        max_iter: int = 500,
        tol: float = 1e-12,
        method: MethodChoice = "auto",
        engine: EngineChoice = "local",
        verbose: int = 0,
    ) -> None:
        super().__init__(
            alpha,
            fit_intercept=fit_intercept,
            n_blocks=n_blocks,
            max_iter=max_iter,
            tol=tol,
            method=method,
            engine=engine,
            verbose=verbose,
        )
        self.quantile = quantile
        self.eps = eps

    def _fit(self, rows: Rows, settings: FitSettings) -> Fitted:
        rows, mean = centred(rows, bool(self.fit_intercept))
        eps = checks.above_zero("eps", self.eps) if self.eps is not None else CORNER * (_spread(rows) or 1.0)
        loss = Quantile(self.quantile, eps=eps, reduction="pooled")
        fitted = fit(rows, FitTask(loss, float(self.alpha), 0.0, bool(self.fit_intercept)), settings)
        return Fitted(fitted.coef, fitted.intercept + mean, fitted.result)


@dataclass(frozen=True, eq=False)
class _ScaleSearch:
    """σ with Σ s min(r², (εσ)²) = σ² Σs at the best coefficients for it: the objective is convex in both."""

    rows: Rows
    epsilon: float
    alpha: float
    intercept: bool
    settings: FitSettings

    def __call__(self) -> tuple[Fitted, float]:
        spread = _spread(self.rows) or 1.0
        t, low, high = math.log(spread), -math.inf, math.inf
        last: tuple[float, float] | None = None
        fitted = None
        for _ in range(SCALE_STEPS):
            fitted, excess = self._at(math.exp(t), fitted)
            low, high = (t, high) if excess > 0 else (low, t)
            if abs(excess) <= SCALE_ENOUGH:
                return fitted, math.exp(t)
            if math.exp(t + excess) <= PERFECT * spread:  # where residuals end
                return fitted, math.exp(t + excess)
            there = t + excess
            if last is not None and last[1] != excess:
                there = t - excess * (t - last[0]) / (excess - last[1])
            last, there = (t, excess), max(t - SCALE_FAR, min(t + SCALE_FAR, there))
            if not low < there < high:
                there = 0.5 * (low + high) if math.isfinite(low + high) else t + max(-SCALE_FAR, min(SCALE_FAR, excess))
            t = there
        assert fitted is not None
        return fitted, math.exp(t)

    def _at(self, scale: float, start: Fitted | None) -> tuple[Fitted, float]:
        """The fit for a given σ, and ½log of the ratio of both sides."""
        delta, total = self.epsilon * scale, self.rows.total
        task = FitTask(Huber(delta, reduction="pooled"), 0.0, self.alpha * scale / total, self.intercept)
        fitted = fit(self.rows, task, self.settings, None if start is None else (start.coef, start.intercept))
        square = 0.0
        for X, y, w in zip(self.rows.X, self.rows.y, self.rows.weight, strict=True):
            r = X @ fitted.coef[0] + fitted.intercept[0] - y
            square += float(w @ np.minimum(r * r, delta * delta))
        return fitted, 0.5 * math.log(max(square / total, 1e-300)) - math.log(scale)


def _spread(rows: Rows) -> float:
    """The standard deviation of the target."""
    y, w = np.concatenate(rows.y).astype(np.float64), np.concatenate(rows.weight)
    return float(np.sqrt(np.average((y - np.average(y, weights=w)) ** 2, weights=w)))
