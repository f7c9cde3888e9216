"""The elastic net on rows that belong to workers, and the lasso, whose penalty is l1 alone (ρ = 1).

minimise over c, b   1/(2Σs) Σ_i s_i (x_iᵀc + b − y_i)² + α·ρ‖c‖₁ + α(1 − ρ)/2 ‖c‖²          ρ = l1_ratio
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import RegressorMixin

from auqadmm.estimators import checks, squares
from auqadmm.estimators.base import ConsensusEstimator
from auqadmm.estimators.blocks import Rows
from auqadmm.estimators.checks import EngineChoice, MatrixLike, MethodChoice, PerRow
from auqadmm.estimators.fitting import FitSettings, FitTask, fit
from auqadmm.problem import LeastSquares


class ConsensusElasticNet(RegressorMixin, ConsensusEstimator):
    """Linear regression with an elastic net penalty, each worker keeping its own rows.

    The model is that of `sklearn.linear_model.ElasticNet`, whatever the split of the rows.

    Parameters
    ----------
    alpha : float, default=1.0
        Strength of the penalty, ≥ 0.
    l1_ratio : float, default=0.5
        Share of the l1 part: 0 is ridge regression (of strength alpha per row), 1 the lasso.
    penalty_factors : array (n_features,), optional
        Multiples of the strengths, one ≥ 0 per feature: 0 leaves it without a penalty. glmnet's `penalty.factor`, but
        not rescaled.
    fit_intercept : bool, default=True
        Add a constant term, which is never penalised.
    n_blocks : int, default=1
        Without `sites`, the rows are split among so many workers, neighbouring rows together.
    max_iter : int, default=500
        Limit of iterations; a `ConvergenceWarning` says when it was reached.
    tol : float, default=1e-18
        The fit ends when the objective is proved (or estimated) to be within this of its optimum, relatively;
        coefficients are then right to about its root.
    method, engine
        As in `auqadmm.solve`. "lbfgs" and "owl-qn" run on unscaled features.
    warm_start : bool, default=False
        Start from the coefficients of the last fit if they have the right shape.
    verbose : int, default=0
        Every `verbose` iterations a line on standard error; on a terminal a display that is rewritten in place.

    Attributes
    ----------
    coef_ : ndarray of shape (n_features,)
    intercept_ : float
    n_iter_ : int
    status_ : Status
        How the fit ended.
    message_ : str
        A sentence that says what to do.
    certificate_ : Certificate
        Objective of the solution, how far it is from the optimum, and how that is known.
    history_ : History
        One row per iteration: objective, residuals, rounds, bytes, seconds.
    n_features_in_, feature_names_in_
        As in scikit-learn.

    Examples
    --------
    >>> import numpy as np
    >>> import auqadmm as aq
    >>> X = np.array([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0], [2.0, 1.0], [2.0, 0.0], [0.0, 0.0]])
    >>> y = np.array([1.0, 2.0, 3.0, 5.0, 4.0, 0.5])
    >>> sites = [0, 0, 0, 1, 1, 1]
    >>> model = aq.ConsensusElasticNet(alpha=0.1).fit(X, y, sites=sites)
    >>> model.coef_.round(3), round(model.intercept_, 3)
    (array([1.674, 0.528]), 0.645)
    >>> model.status_ == "converged"
    True
    """

    _chunks_stay = True

    def __init__(
        self,
        alpha: float = 1.0,
        *,
        l1_ratio: float = 0.5,
        penalty_factors: ArrayLike | None = None,
        fit_intercept: bool = True,
        n_blocks: int = 1,
        max_iter: int = 500,
        tol: float = 1e-18,
        method: MethodChoice = "auto",
        engine: EngineChoice = "local",
        warm_start: bool = False,
        verbose: int = 0,
    ) -> None:
        self.alpha = alpha
        self.l1_ratio = l1_ratio
        self.penalty_factors = penalty_factors
        self.fit_intercept = fit_intercept
        self.n_blocks = n_blocks
        self.max_iter = max_iter
        self.tol = tol
        self.method = method
        self.engine = engine
        self.warm_start = warm_start
        self.verbose = verbose

    def fit(
        self, X: MatrixLike, y: ArrayLike, sites: PerRow = None, sample_weight: PerRow = None
    ) -> ConsensusElasticNet:
        """Fit the model.

        Parameters
        ----------
        X : array, sparse matrix or data frame (n_samples, n_features); a list of these, one per worker; a dask array
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
            Rows, labels, weights or sites cannot be used; the message says where and what to do.
        ValueError
            A parameter of the estimator has a value that it cannot have.

        Examples
        --------
        >>> import numpy as np
        >>> import auqadmm as aq
        >>> X = np.array([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0], [2.0, 1.0], [2.0, 0.0], [0.0, 0.0]])
        >>> y = np.array([1.0, 2.0, 3.0, 5.0, 4.0, 0.5])
        >>> sites = [0, 0, 0, 1, 1, 1]
        >>> aq.ConsensusElasticNet(alpha=0.1).fit([X[:3], X[3:]], [y[:3], y[3:]]).coef_.round(3)
        array([1.674, 0.528])
        """
        checks.at_least_zero("alpha", self.alpha)
        checks.share("l1_ratio", getattr(self, "l1_ratio", 0.0))
        settings = FitSettings.of(self)
        rows = self._read(X, y, sites, sample_weight, numeric=True)
        alpha, ratio = self._penalty(rows)
        start = self._warm()
        factors = checks.penalty_factors(self.penalty_factors, rows.features)
        gram = None if factors is not None else squares.fit(rows, alpha, ratio, bool(self.fit_intercept), settings)
        if gram is not None:
            self.coef_, self.intercept_ = np.asarray(gram.coef), float(gram.intercept)
            self._keep([gram])
            return self
        rows, mean = centred(rows, self.fit_intercept)
        if start is not None:
            start = start[0], start[1] - mean
        loss = LeastSquares(reduction="pooled")
        each = 1.0 if factors is None else factors[:, None]
        task = FitTask(loss, alpha * ratio * each, alpha * (1 - ratio) * each, bool(self.fit_intercept))
        fitted = fit(rows, task, settings, start)
        self.coef_ = fitted.coef[0]
        self.intercept_ = float(fitted.intercept[0]) + mean
        self._keep([fitted.result])
        return self

    def _penalty(self, rows: Rows) -> tuple[float, float]:
        """α and ρ, for the mean over rows."""
        return float(self.alpha), checks.share("l1_ratio", self.l1_ratio)

    def predict(self, X: MatrixLike) -> np.ndarray:
        """The predictions xᵀc + b.

        Parameters
        ----------
        X : array, sparse matrix or data frame (n_samples, n_features)
            Rows to predict.

        Returns
        -------
        ndarray of shape (n_samples,)

        Examples
        --------
        >>> import numpy as np
        >>> import auqadmm as aq
        >>> X = np.array([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0], [2.0, 1.0], [2.0, 0.0], [0.0, 0.0]])
        >>> y = np.array([1.0, 2.0, 3.0, 5.0, 4.0, 0.5])
        >>> sites = [0, 0, 0, 1, 1, 1]
        >>> aq.ConsensusElasticNet(alpha=0.1).fit(X, y, sites=sites).predict(X[:2]).round(2)
        array([1.17, 2.32])
        """
        return self._logits(X)[:, 0]


def centred(rows: Rows, intercept: bool) -> tuple[Rows, float]:
    """The target less its mean, which the intercept absorbs: an offset must not set the scale of the tolerance."""
    y = np.concatenate(rows.y).astype(np.float64)
    mean = float(np.average(y, weights=np.concatenate(rows.weight))) if intercept else 0.0
    return rows.with_target(y - mean), mean


class ConsensusLasso(ConsensusElasticNet):
    """Linear regression with an l1 penalty, each worker keeping its own rows.

    The model is that of `sklearn.linear_model.Lasso`, whatever the split of the rows.

    Parameters
    ----------
    alpha : float, default=1.0
        Strength of the penalty, ≥ 0.
    penalty_factors, fit_intercept, n_blocks, max_iter, tol, method, engine, warm_start, verbose
        As in `ConsensusElasticNet`, and so are the attributes.

    Examples
    --------
    >>> import numpy as np
    >>> import auqadmm as aq
    >>> X = np.array([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0], [2.0, 1.0], [2.0, 0.0], [0.0, 0.0]])
    >>> y = np.array([1.0, 2.0, 3.0, 5.0, 4.0, 0.5])
    >>> sites = [0, 0, 0, 1, 1, 1]
    >>> aq.ConsensusLasso(alpha=0.5).fit(X, y, sites=sites).coef_.round(3)
    array([1.125, 0.   ])
    """

    l1_ratio = 1.0

    def __init__(
        self,
        alpha: float = 1.0,
        *,
        penalty_factors: ArrayLike | None = None,
        fit_intercept: bool = True,
        n_blocks: int = 1,
        max_iter: int = 500,
        tol: float = 1e-18,
        method: MethodChoice = "auto",
        engine: EngineChoice = "local",
        warm_start: bool = False,
        verbose: int = 0,
    ) -> None:
        self.alpha = alpha
        self.penalty_factors = penalty_factors
        self.fit_intercept = fit_intercept
        self.n_blocks = n_blocks
        self.max_iter = max_iter
        self.tol = tol
        self.method = method
        self.engine = engine
        self.warm_start = warm_start
        self.verbose = verbose
