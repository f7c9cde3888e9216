"""Classifiers on rows that belong to workers: logistic regression, and the support vector machine with a smooth hinge.

    minimise over c, b   C Σ_i s_i φ(x_i, y_i) + ρ‖c‖₁ + (1 − ρ)/2 ‖c‖²          ρ = l1_ratio

φ is log(1 + exp(−yz)) for two classes and the cross-entropy of the softmax, one column of c per class, for more.

    minimise over c, b   ½‖c‖² + C Σ_i s_i h(1 − y_i(x_iᵀc + b)),   h(t) = (t + √(t² + ε²))/2,   y = ±1

One such problem for two classes, one per class (it against the rest) for more. h exceeds the hinge by at most ε/2. Both
are solved divided by C Σs: certificate and history show that objective.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit, softmax

from auqadmm.blocks.rows import RowLoss
from auqadmm.estimators import checks
from auqadmm.estimators.base import ConsensusClassifier
from auqadmm.estimators.checks import ClassWeight, EngineChoice, MatrixLike, MethodChoice, PerRow
from auqadmm.estimators.fitting import FitSettings, FitTask, Fitted, fit
from auqadmm.problem import Logistic, Multinomial, SmoothedHinge
from auqadmm.problem.made_of_losses import OneAgainstRest


class ConsensusLogisticRegression(ConsensusClassifier):
    """Logistic regression, binary or multinomial, each worker keeping its own rows.

    The model is that of `sklearn.linear_model.LogisticRegression`, whatever the split of the rows; a worker may have
    one class only.

    Parameters
    ----------
    C : float, default=1.0
        Inverse strength of the penalty, > 0; infinity for none.
    l1_ratio : float, default=0.0
        Share of the l1 part: 0 for l2, 1 for l1, between them the elastic net.
    class_weight : dict or "balanced", optional
        Factors of the row weights by label. "balanced": every class weighs the same.
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
    classes_ : ndarray of shape (n_classes,)
    coef_ : ndarray of shape (1, n_features) for two classes, else (n_classes, n_features)
    intercept_ : ndarray of shape (1,) or (n_classes,)
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
    >>> y = np.array(["a", "a", "b", "b", "b", "a"])
    >>> sites = [0, 0, 0, 1, 1, 1]
    >>> model = aq.ConsensusLogisticRegression(C=1.0).fit(X, y, sites=sites)
    >>> model.predict(X)
    array(['a', 'a', 'b', 'b', 'b', 'a'], dtype='<U1')
    >>> model.predict_proba(X[:2]).round(2)
    array([[0.7 , 0.3 ],
           [0.55, 0.45]])
    """

    _chunks_stay = True

    def __init__(
        self,
        C: float = 1.0,
        *,
        l1_ratio: float = 0.0,
        class_weight: ClassWeight = None,
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
        self.C = C
        self.l1_ratio = l1_ratio
        self.class_weight = class_weight
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
    ) -> ConsensusLogisticRegression:
        """Fit the model.

        Parameters
        ----------
        X : array, sparse matrix or data frame (n_samples, n_features); a list of these, one per worker; a dask array
        y : array (n_samples,) of labels, or a list of arrays where X is a list
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
        >>> y = np.array(["a", "a", "b", "b", "b", "a"])
        >>> sites = [0, 0, 0, 1, 1, 1]
        >>> aq.ConsensusLogisticRegression().fit(X, y, sites=sites).coef_.round(2)
        array([[1.05, 0.38]])
        """
        C, ratio = checks.above_zero("C", self.C, infinite=True), checks.share("l1_ratio", self.l1_ratio)
        settings = FitSettings.of(self)
        start = self._warm()
        rows, _ = self._read_classes(X, y, sites, sample_weight)
        binary = len(self.classes_) == 2
        strength = 1 / (C * rows.total)
        loss = Logistic(reduction="pooled") if binary else Multinomial(reduction="pooled")
        factors = checks.penalty_factors(self.penalty_factors, rows.features)
        each = 1.0 if factors is None else factors[:, None]
        l1, l2 = strength * ratio * each, strength * (1 - ratio) * each
        fitted = fit(rows, FitTask(loss, l1, l2, bool(self.fit_intercept), curvature=0.25), settings, start)
        self.coef_, self.intercept_ = settled(fitted.coef, fitted.intercept, penalised=strength * np.ravel(each) > 0)
        self._keep([fitted.result])
        return self

    def _row_loss(self) -> RowLoss:
        return Logistic() if len(np.atleast_2d(self.coef_)) == 1 else Multinomial()

    def predict_proba(self, X: MatrixLike) -> np.ndarray:
        """The probability of every class.

        Parameters
        ----------
        X : array, sparse matrix or data frame (n_samples, n_features)
            Rows to predict.

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
            In the order of `classes_`.

        Examples
        --------
        >>> import numpy as np
        >>> import auqadmm as aq
        >>> X = np.array([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0], [2.0, 1.0], [2.0, 0.0], [0.0, 0.0]])
        >>> y = np.array(["a", "a", "b", "b", "b", "a"])
        >>> sites = [0, 0, 0, 1, 1, 1]
        >>> model = aq.ConsensusLogisticRegression().fit(X, y, sites=sites)
        >>> model.predict_proba(X[:2]).sum(axis=1)
        array([1., 1.])
        """
        logits = self._logits(X)
        if logits.shape[1] == 1:
            return np.hstack([expit(-logits), expit(logits)])
        return softmax(logits, axis=1)

    def predict_log_proba(self, X: MatrixLike) -> np.ndarray:
        """The logarithm of the probability of every class.

        Parameters
        ----------
        X : array, sparse matrix or data frame (n_samples, n_features)
            Rows to predict.

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
            In the order of `classes_`; −inf where a probability underflows.

        Examples
        --------
        >>> import numpy as np
        >>> import auqadmm as aq
        >>> X = np.array([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0], [2.0, 1.0], [2.0, 0.0], [0.0, 0.0]])
        >>> y = np.array(["a", "a", "b", "b", "b", "a"])
        >>> sites = [0, 0, 0, 1, 1, 1]
        >>> model = aq.ConsensusLogisticRegression().fit(X, y, sites=sites)
        >>> np.exp(model.predict_log_proba(X[:2])).sum(axis=1)
        array([1., 1.])
        """
        with np.errstate(divide="ignore"):  # log of a probability that underflowed
            return np.log(self.predict_proba(X))


def settled(coef: np.ndarray, intercept: np.ndarray, penalised: bool | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """One number added to all intercepts changes nothing, nor does a vector added to all unpenalised rows: both sum to
    zero. `penalised`: which features are, (m,), or all alike."""
    if len(coef) == 1:
        return coef, intercept
    return np.where(penalised, coef, coef - coef.mean(0)), intercept - intercept.mean()


class ConsensusLinearSVC(ConsensusClassifier):
    """Linear support vector machine with a smoothed hinge, each worker keeping its own rows.

    Parameters
    ----------
    C : float, default=1.0
        Inverse strength of the l2 penalty, > 0.
    smoothing : float, default=0.1
        Width ε of the rounded corner of the hinge. Smaller is closer to the hinge itself and takes more rounds.
    class_weight : dict or "balanced", optional
        Factors of the row weights by label. "balanced": every class weighs the same.
    fit_intercept : bool, default=True
        Add a constant term, which is never penalised (`sklearn.svm.LinearSVC` penalises it).
    n_blocks : int, default=1
        Without `sites`, the rows are split among so many workers, neighbouring rows together.
    max_iter : int, default=1000
        Limit of iterations; a `ConvergenceWarning` says when it was reached.
    tol : float, default=1e-18
        The fit ends when the objective is proved (or estimated) to be within this of its optimum, relatively;
        coefficients are then right to about its root.
    method, engine
        As in `auqadmm.solve`. "lbfgs" runs on unscaled features.
    warm_start : bool, default=False
        Start from the coefficients of the last fit if they have the right shape.
    verbose : int, default=0
        Every `verbose` iterations a line on standard error; on a terminal a display that is rewritten in place.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
    coef_ : ndarray of shape (1, n_features) for two classes, else (n_classes, n_features)
    intercept_ : ndarray of shape (1,) or (n_classes,)
    n_iter_ : int, or ndarray of shape (n_classes,)
        A number for two classes, else one entry per class.
    status_ : Status
        How the fit ended (the first run that did not converge, if any).
    message_ : str
        A sentence that says what to do.
    certificate_, history_
        Of the run for two classes, else lists with one entry per class.
    n_features_in_, feature_names_in_
        As in scikit-learn.

    Examples
    --------
    >>> import numpy as np
    >>> import auqadmm as aq
    >>> X = np.array([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0], [2.0, 1.0], [2.0, 0.0], [0.0, 0.0]])
    >>> y = np.array(["a", "a", "b", "b", "b", "a"])
    >>> sites = [0, 0, 0, 1, 1, 1]
    >>> aq.ConsensusLinearSVC(C=1.0).fit(X, y, sites=sites).predict(X)
    array(['a', 'a', 'b', 'b', 'b', 'a'], dtype='<U1')
    """

    _chunks_stay = True

    def __init__(
        self,
        C: float = 1.0,
        *,
        smoothing: float = 0.1,
        class_weight: ClassWeight = None,
        fit_intercept: bool = True,
        n_blocks: int = 1,
        max_iter: int = 1000,
        tol: float = 1e-18,
        method: MethodChoice = "auto",
        engine: EngineChoice = "local",
        warm_start: bool = False,
        verbose: int = 0,
    ) -> None:
        self.C = C
        self.smoothing = smoothing
        self.class_weight = class_weight
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
    ) -> ConsensusLinearSVC:
        """Fit the model.

        Parameters
        ----------
        X : array, sparse matrix or data frame (n_samples, n_features); a list of these, one per worker; a dask array
        y : array (n_samples,) of labels, or a list of arrays where X is a list
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
        >>> y = np.array(["a", "a", "b", "b", "b", "a"])
        >>> sites = [0, 0, 0, 1, 1, 1]
        >>> aq.ConsensusLinearSVC().fit(X, y, sites=sites).coef_.round(2)
        array([[1.2 , 0.43]])
        """
        C, eps = checks.above_zero("C", self.C), checks.above_zero("smoothing", self.smoothing)
        settings = FitSettings.of(self)
        start = self._warm()
        rows, counting = self._read_classes(X, y, sites, sample_weight)
        codes = np.concatenate(rows.y)
        task = FitTask(SmoothedHinge(eps, reduction="pooled"), 0.0, 1 / (C * rows.total), bool(self.fit_intercept))
        positives = [1] if len(self.classes_) == 2 else counting.tolist()
        columns = 1 if len(self.classes_) == 2 else len(self.classes_)
        coef, intercept = np.zeros((columns, rows.features)), np.full(columns, -1.0)
        results = []
        for k, place in zip(positives, [0] if columns == 1 else positives, strict=True):
            own = None
            if start is not None and len(start[0]) == columns:
                own = start[0][[place]], start[1][[place]]
            fitted: Fitted = fit(rows.with_target(np.where(codes == k, 1.0, -1.0)), task, settings, own)
            coef[place], intercept[place] = fitted.coef[0], fitted.intercept[0]
            results.append(fitted.result)
        self.coef_, self.intercept_ = coef, intercept
        self._keep(results)
        return self

    def _row_loss(self) -> RowLoss:
        hinge = SmoothedHinge(self.smoothing)
        return hinge if len(self.coef_) == 1 else OneAgainstRest(hinge)
