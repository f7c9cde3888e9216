"""Logistic regression whose strength is chosen by cross-validation along a path."""

from __future__ import annotations

import warnings
from dataclasses import replace
from numbers import Integral

import numpy as np
import scipy.sparse
from numpy.typing import ArrayLike
from sklearn.metrics import get_scorer
from sklearn.model_selection import check_cv
from torch import Tensor

from auqadmm.core.result import Result
from auqadmm.estimators import checks
from auqadmm.estimators.blocks import Rows
from auqadmm.estimators.checks import (
    ClassWeight,
    EngineChoice,
    Fold,
    Folds,
    Grid,
    Matrix,
    MatrixLike,
    MethodChoice,
    PerRow,
    Scorer,
)
from auqadmm.estimators.classifiers import ConsensusLogisticRegression, settled
from auqadmm.estimators.elastic_net_cv import site_folds
from auqadmm.estimators.fitting import FitSettings, FitTask, ScaledFit, fit, report
from auqadmm.problem import InputError, Logistic, Multinomial


class ConsensusLogisticRegressionCV(ConsensusLogisticRegression):
    """Logistic regression with strength and l1 share chosen by cross-validation, each worker keeping its own rows.

    The choice is that of `sklearn.linear_model.LogisticRegressionCV(use_legacy_attributes=False)` for the same folds.

    Parameters
    ----------
    Cs : int or array, default=10
        Inverse strengths to choose from, or how many between 1e-4 and 1e4. Each starts from the solution before it.
    l1_ratios : array, default=(0.0,)
        Shares of the l1 part to choose from: 0 for l2, 1 for l1, between them the elastic net.
    cv : int, splitter or iterable of (train, test), optional
        A number k (5 without): every worker sets aside each k-th part of its own rows of each class in turn. A splitter
        is called with the sites as groups.
    scoring : str or callable, default=None
        The score to maximise, as in scikit-learn; None is accuracy. With row weights, without class weights.
    refit : bool, default=True
        Fit all rows with the best C and share; False: the mean of the best models of all folds.
    class_weight, fit_intercept, n_blocks, max_iter, tol, method, engine, verbose
        As in `ConsensusLogisticRegression`; "balanced" refers to all rows.

    Attributes
    ----------
    C_, l1_ratio_ : float
        The choice.
    Cs_ : ndarray of shape (n_cs,)
    l1_ratios_ : ndarray of shape (n_l1_ratios,)
    scores_ : ndarray of shape (n_folds, n_l1_ratios, n_cs)
    coefs_paths_ : ndarray of shape (n_folds, n_l1_ratios, n_cs, n_classes or 1, n_features [+ 1])
    n_rounds_ : int
        Reductions over all workers, of all folds and the last fit.
    classes_, coef_, intercept_, n_iter_, status_, message_, certificate_, history_
        Of the last fit, on all rows; with `refit=False` the run of the last fold.

    Examples
    --------
    >>> import auqadmm as aq
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> model = aq.ConsensusLogisticRegressionCV(Cs=[0.1, 10.0], cv=3).fit(X, y, sites=y)
    >>> float(model.C_), model.scores_.shape
    (10.0, (3, 1, 2))
    """

    _chunks_stay = False  # folds split the chunks

    def __init__(
        self,
        *,
        Cs: Grid = 10,
        l1_ratios: ArrayLike = (0.0,),
        cv: Folds = None,
        scoring: str | Scorer | None = None,
        refit: bool = True,
        class_weight: ClassWeight = None,
        fit_intercept: bool = True,
        n_blocks: int = 1,
        max_iter: int = 500,
        tol: float = 1e-18,
        method: MethodChoice = "auto",
        engine: EngineChoice = "local",
        verbose: int = 0,
    ) -> None:
        self.Cs = Cs
        self.l1_ratios = l1_ratios
        self.cv = cv
        self.scoring = scoring
        self.refit = refit
        self.class_weight = class_weight
        self.fit_intercept = fit_intercept
        self.n_blocks = n_blocks
        self.max_iter = max_iter
        self.tol = tol
        self.method = method
        self.engine = engine
        self.verbose = verbose

    def fit(
        self, X: MatrixLike, y: ArrayLike, sites: PerRow = None, sample_weight: PerRow = None
    ) -> ConsensusLogisticRegressionCV:
        """Choose strength and share, then fit all rows.

        Parameters
        ----------
        X, y, sites, sample_weight
            As in `ConsensusLogisticRegression.fit`.

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
        >>> import auqadmm as aq
        >>> from sklearn.datasets import load_iris
        >>> X, y = load_iris(return_X_y=True)
        >>> round(aq.ConsensusLogisticRegressionCV(Cs=[10.0], cv=3).fit(X, y, sites=y).score(X, y), 2) > 0.9
        True
        """
        settings, Cs, ratios = FitSettings.of(self), self._strengths(), self._shares()
        checks.truth("refit", self.refit)
        scorer = get_scorer(self.scoring or "accuracy")
        rows, weight, _ = self._read_labels(X, y, sites, sample_weight)
        folds = self._folds(rows, weight)
        columns = 1 if len(self.classes_) == 2 else len(self.classes_)
        size = rows.features + int(self.fit_intercept)
        paths = np.empty((len(folds), len(ratios), len(Cs), columns, size))
        scores = np.empty(paths.shape[:3])
        runs: list[Result] = []
        for f, (train, test) in enumerate(folds):
            test_rows = _stacked(rows.take(test))
            for r, ratio in enumerate(ratios):
                paths[f, r], more = self._path(rows.with_weight(weight * train), Cs, ratio, settings)
                runs += more
                for c in range(len(Cs)):
                    scores[f, r, c] = self._score(scorer, paths[f, r, c], *test_rows)
        self.Cs_, self.l1_ratios_ = Cs, np.array(ratios)
        self.scores_, self.coefs_paths_ = scores, paths
        if self.refit:
            # the first of the best, strengths before shares: as in scikit-learn
            c, r = divmod(int(scores.sum(0).T.argmax()), len(ratios))
            self.C_, self.l1_ratio_ = float(Cs[c]), ratios[r]
            task = self._task(float(Cs[c]), ratios[r], float(weight.sum()))
            mean = paths[:, r, c].mean(0)
            start = mean[:, : rows.features], mean[:, -1] if self.fit_intercept else np.zeros(columns)
            last = fit(rows.with_weight(weight), task, settings, start)
            self.coef_, self.intercept_ = settled(last.coef, last.intercept, penalised=np.isfinite(self.C_))
            report(self, runs)
            runs.append(last.result)
        else:
            best = scores.transpose(0, 2, 1).reshape(len(folds), -1).argmax(1)
            which, share = np.unravel_index(best, (len(Cs), len(ratios)))
            self.C_, self.l1_ratio_ = float(Cs[which].mean()), float(np.array(ratios)[share].mean())
            mean = paths[np.arange(len(folds)), share, which].mean(0)
            self.coef_ = mean[:, : rows.features]
            self.intercept_ = mean[:, -1] if self.fit_intercept else np.zeros(columns)
            report(self, runs[:-1])
        self.n_rounds_ = sum(run.history[-1].rounds for run in runs)
        self._keep(runs[-1:])
        return self

    # ------------------------------------------------------------------ the grid and the folds
    def _strengths(self) -> np.ndarray:
        if np.ndim(self.Cs) == 0:
            return np.logspace(-4, 4, checks.count("Cs", self.Cs))
        Cs = np.array([checks.above_zero("Cs", C, infinite=True) for C in np.asarray(self.Cs).ravel().tolist()])
        if not len(Cs):
            raise InputError("Cs is empty: give at least one inverse strength, or how many to choose.")
        return Cs

    def _shares(self) -> list[float]:
        ratios = [checks.share("l1_ratios", r) for r in np.atleast_1d(self.l1_ratios).tolist()]
        if not ratios:
            raise InputError("l1_ratios is empty: give at least one share, e.g. (0.0,) for l2.")
        return ratios

    def _folds(self, rows: Rows, weight: np.ndarray) -> list[Fold]:
        """Masks (train, test) over the rows, blocks one after another."""
        n, codes = len(rows.order), np.concatenate(rows.y)
        if self.cv is None or (isinstance(self.cv, Integral) and not isinstance(self.cv, bool)):
            k = 5 if self.cv is None else int(self.cv)
            group = rows.site * len(self.classes_) + codes
            order = np.argsort(group, kind="stable")
            fold = np.empty(n, dtype=int)
            fold[order] = site_folds(np.bincount(group)[np.unique(group)].tolist(), k)
            pairs = [(fold != j, fold == j) for j in np.unique(fold)]
        else:
            original = np.argsort(rows.order)  # splitters get the rows in the user's order
            labels, groups = self.classes_[codes[original]], rows.site[original]
            with warnings.catch_warnings():  # splitters warn of unused groups
                warnings.filterwarnings("ignore", "The groups parameter is ignored")
                splits = list(check_cv(self.cv, labels, classifier=True).split(np.zeros((n, 1)), labels, groups))
            pairs = [tuple(np.isin(np.arange(n), part)[rows.order] for part in pair) for pair in splits]
        counting = np.unique(codes[weight > 0])
        for train, test in pairs:
            if not test.any():
                raise InputError("cv leaves a fold without rows to score; choose fewer folds.")
            missing = np.setdiff1d(counting, codes[(weight > 0) & train])
            if len(missing):
                label = self.classes_.tolist()[missing[0]]
                raise InputError(f"cv leaves a fold without rows of the label {label!r} to fit; choose other folds.")
        return pairs

    # ------------------------------------------------------------------ one fold
    def _task(self, C: float, ratio: float, total: float) -> FitTask:
        loss = Logistic(reduction="pooled") if len(self.classes_) == 2 else Multinomial(reduction="pooled")
        strength = 1 / (C * total)
        return FitTask(loss, strength * ratio, strength * (1 - ratio), bool(self.fit_intercept), curvature=0.25)

    def _path(self, rows: Rows, Cs: np.ndarray, ratio: float, settings: FitSettings) -> tuple[np.ndarray, list[Result]]:
        """Models (n_cs, columns, features [+ 1]), each from the one before, and the runs behind them."""
        tasks = [self._task(C, ratio, rows.total) for C in Cs.tolist()]
        scaled = ScaledFit.of(rows, replace(tasks[0], l2=np.array([t.l2 for t in tasks])), settings)
        models, runs = [], []
        v: Tensor | None = None
        for C, task in zip(Cs, tasks, strict=True):
            result = replace(scaled, task=task).solve(settings, v)
            v = result.v
            coef, intercept = settled(*scaled.scaling.outside(v), penalised=bool(np.isfinite(C)))
            models.append(np.hstack([coef, intercept[:, None]]) if self.fit_intercept else coef)
            runs.append(result)
        return np.array(models), runs

    def _score(self, scorer: Scorer, model: np.ndarray, X: Matrix, codes: np.ndarray, weight: np.ndarray) -> float:
        fitted = ConsensusLogisticRegression()
        fitted.classes_, fitted.n_features_in_ = self.classes_, X.shape[1]
        fitted.coef_ = model[:, : X.shape[1]]
        fitted.intercept_ = model[:, -1] if self.fit_intercept else np.zeros(len(model))
        return float(scorer(fitted, X, self.classes_[codes], sample_weight=weight))


def _stacked(rows: Rows) -> tuple[Matrix, np.ndarray, np.ndarray]:
    """X, y and weights of all blocks as one."""
    stack = scipy.sparse.vstack if rows.sparse else np.vstack
    return stack(list(rows.X)), np.concatenate(rows.y), np.concatenate(rows.weight)
