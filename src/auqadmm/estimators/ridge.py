"""Ridge regression on rows that belong to workers, and the choice of its strength.

    minimise over c, b   Σ_i s_i (x_iᵀc + b − y_i)² + α‖c‖²

Leaving out one row after another needs no fit per row: with the leverage h_i = s_i(x̃_iᵀ(G + α)⁻¹x̃_i + 1/Σs), the
model without row i misses it by (y_i − x_iᵀc − b)/(1 − h_i). With G = VΛVᵀ the leverages for every strength are
Σ_j (x̃_iᵀV)_j²/(Λ_j + α): one more reduction, of one number per strength.

Shapes: n rows, m features, K strengths, f folds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from auqadmm.blocks.shard import Shard

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from auqadmm.core.result import Result
from auqadmm.estimators import checks, squares
from auqadmm.estimators.blocks import Rows
from auqadmm.estimators.checks import EngineChoice, Fold, Folds, MatrixLike, MethodChoice, PerRow, Start, is_sparse
from auqadmm.estimators.elastic_net import ConsensusElasticNet, centred
from auqadmm.estimators.elastic_net_cv import folds_of, mse
from auqadmm.estimators.fitting import FitSettings, FitTask, Fitted, fit, report
from auqadmm.estimators.moments import NUMBERS_AT_ONCE, Moments, cell_rows
from auqadmm.estimators.quadratic import ridges
from auqadmm.problem import InputError, LeastSquares

SCORES = (None, "r2", "neg_mean_squared_error")


class ConsensusRidge(ConsensusElasticNet):
    """Linear regression with an l2 penalty, each worker keeping its own rows.

    The model is that of `sklearn.linear_model.Ridge`, whatever the split of the rows.

    Parameters
    ----------
    alpha : float, default=1.0
        Strength of the penalty beside the SUM of squares, ≥ 0.
    penalty_factors, fit_intercept, n_blocks, max_iter, tol, method, engine, warm_start, verbose
        As in `ConsensusElasticNet`, and so are the attributes. The certificate's objective is that of scikit-learn
        divided by twice the weight of all rows.

    Examples
    --------
    >>> import numpy as np
    >>> import auqadmm as aq
    >>> X = np.array([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0], [2.0, 1.0], [2.0, 0.0], [0.0, 0.0]])
    >>> y = np.array([1.0, 2.0, 3.0, 5.0, 4.0, 0.5])
    >>> sites = [0, 0, 0, 1, 1, 1]
    >>> aq.ConsensusRidge(alpha=1.0).fit(X, y, sites=sites).coef_.round(3)
    array([1.5, 0.5])
    """

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

    def _penalty(self, rows: Rows) -> tuple[float, float]:
        return checks.at_least_zero("alpha", self.alpha) / rows.total, 0.0


class ConsensusRidgeCV(ConsensusElasticNet):
    """Ridge regression with the strength chosen by cross-validation, each worker keeping its own rows.

    The choice is that of `sklearn.linear_model.RidgeCV`: from three reductions over the workers for all strengths.
    Beyond 4096 features there is no Gram matrix: with `cv` every fold and strength is a fit of its own, and `message_`
    says so; without `cv` that is refused.

    Parameters
    ----------
    alphas : array, default=(0.1, 1.0, 10.0)
        The strengths to choose from, > 0 (≥ 0 with `cv`).
    fit_intercept : bool, default=True
        Add a constant term, which is never penalised.
    scoring : None, "r2" or "neg_mean_squared_error", default=None
        The score to maximise. None: minus the squared errors of rows that were left out, or "r2" with `cv`.
    cv : None, int, splitter or iterable of (train, test), default=None
        None: every row is left out once, exactly. Else as in `ConsensusElasticNetCV`, with folds of equal weight, as in
        scikit-learn.
    n_blocks, tol, engine
        As in `ConsensusElasticNet`.

    Attributes
    ----------
    alpha_ : float
        The choice.
    best_score_ : float
        Its score.
    scores_ : ndarray of shape (n_alphas,), or (n_alphas, n_folds) with `cv`
    n_rounds_ : int
        Reductions over all workers.
    coef_, intercept_, n_iter_, status_, message_, certificate_, history_
        Of the last fit, on all rows.

    Examples
    --------
    >>> import numpy as np
    >>> import auqadmm as aq
    >>> X = np.array([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0], [2.0, 1.0], [2.0, 0.0], [0.0, 0.0]])
    >>> y = np.array([1.0, 2.0, 3.0, 5.0, 4.0, 0.5])
    >>> sites = [0, 0, 0, 1, 1, 1]
    >>> model = aq.ConsensusRidgeCV(alphas=[0.1, 10.0]).fit(X, y, sites=sites)
    >>> float(model.alpha_), model.scores_.shape
    (0.1, (2,))
    """

    _chunks_stay = False  # folds split the chunks

    def __init__(
        self,
        alphas: ArrayLike = (0.1, 1.0, 10.0),
        *,
        fit_intercept: bool = True,
        scoring: str | None = None,
        cv: Folds = None,
        n_blocks: int = 1,
        tol: float = 1e-18,
        engine: EngineChoice = "local",
    ) -> None:
        self.alphas = alphas
        self.fit_intercept = fit_intercept
        self.scoring = scoring
        self.cv = cv
        self.n_blocks = n_blocks
        self.tol = tol
        self.engine = engine

    max_iter, method, verbose, warm_start = 500, "auto", 0, False

    def fit(self, X: MatrixLike, y: ArrayLike, sites: PerRow = None, sample_weight: PerRow = None) -> ConsensusRidgeCV:
        """Choose the strength, then fit all rows.

        Parameters
        ----------
        X, y, sites, sample_weight
            As in `ConsensusElasticNet.fit`.

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
        >>> aq.ConsensusRidgeCV(alphas=[0.1, 10.0]).fit(X, y, sites=sites).coef_.round(2)
        array([1.83, 0.78])
        """
        settings = FitSettings.of(self)
        allowed = checks.above_zero if self.cv is None else checks.at_least_zero
        alphas = np.array([allowed("alphas", a) for a in np.atleast_1d(np.asarray(self.alphas)).ravel().tolist()])
        if not len(alphas):
            raise InputError("alphas is empty: give at least one strength.")
        if self.scoring not in SCORES:
            raise InputError(f"scoring must be one of {', '.join(map(repr, SCORES))}, got {self.scoring!r}.")
        if squares.several(settings.engine):
            raise InputError(f"{type(self).__name__} needs all targets in one process: use 'local', 'ray' or 'dask'.")
        rows = self._read(X, y, sites, sample_weight, numeric=True)
        wide = rows.features > squares.MOST_FEATURES
        if wide and self.cv is None:
            raise InputError(
                f"X has {rows.features} features, and leaving out one row after another takes a Gram matrix, of at "
                f"most {squares.MOST_FEATURES}; pass cv, e.g. cv=5, for one fit per fold and strength."
            )
        find = self._left_out if self.cv is None else self._by_runs if wide else self._by_folds
        result = find(rows, alphas, settings)
        if result is None:
            raise InputError("Squares of X or y exceed the range of double precision; rescale them.")
        if find != self._by_runs:
            self.n_rounds_ = int(result.history[-1].rounds)
            self.coef_, self.intercept_ = np.asarray(result.coef), float(result.intercept)
        self._keep([result])
        return self

    def _left_out(self, rows: Rows, alphas: np.ndarray, settings: FitSettings) -> Result | None:
        """Every row is left out once."""
        with squares.split_blocks(rows, squares.Split.none(len(rows.order)), settings) as data:
            whole = data.moments(bool(self.fit_intercept))
            if not whole.finite:
                return None
            coef = ridges(whole.G[0], whole.p[0], alphas)
            values, V = np.linalg.eigh(whole.G[0])
            inverse = 1 / (np.maximum(values, 0.0)[:, None] + alphas)
            one = 1 / whole.S if self.fit_intercept else np.zeros(1)
            shared = (whole.mean[0], whole.middle, V, inverse, coef.T, one)
            sent = tuple(torch.from_numpy(np.ascontiguousarray(x)) for x in shared)
            errors = data.reduce(left_out, None, sent, sent)[1]["squares"].numpy()
            if self.scoring == "r2":
                scores = 1 - errors / _spread(np.concatenate(rows.y), np.concatenate(rows.weight))
            else:
                scores = -errors / (len(rows.order) if self.scoring is None else whole.S[0])
            return self._chosen(data, whole, alphas, scores, coef, settings)

    def _by_folds(self, rows: Rows, alphas: np.ndarray, settings: FitSettings) -> Result | None:
        """Every fold is left out once."""
        folds = folds_of(rows, self.cv)
        split, intercept = squares.Split.of(folds), bool(self.fit_intercept)
        with squares.split_blocks(rows, split, settings) as data:
            parts = data.moments(intercept)
            if not parts.finite:
                return None
            whole, trained = parts.merged(split.whole[None]), parts.merged(split.train)
            coef = np.array([ridges(G, p, alphas) for G, p in zip(trained.G, trained.p, strict=True)])
            scores = self._scores(squares.errors(data, parts, split, trained, coef), rows, folds)
            return self._chosen(data, whole, alphas, scores, ridges(whole.G[0], whole.p[0], alphas), settings)

    def _by_runs(self, rows: Rows, alphas: np.ndarray, settings: FitSettings) -> Result:
        """The same without a Gram matrix: an ordinary fit for every fold and strength, and one of all rows.

        With fewer rows than features their inner products would be enough, but those belong to pairs of rows: sums
        over rows are all that a worker sends.
        """
        folds = folds_of(rows, self.cv)
        errors = np.empty((len(folds), len(alphas)))
        runs: list[Result] = []
        for k, (train, test) in enumerate(folds):
            start = None
            for i in np.argsort(-alphas):
                fitted, mean = self._one(rows.take(train), float(alphas[i]), settings, start)
                start = fitted.coef, fitted.intercept
                errors[k, i] = mse(rows.take(test), fitted.coef, fitted.intercept + mean)[0]
                runs.append(fitted.result)
        self._choose(alphas, self._scores(errors, rows, folds))
        report(self, runs)
        fitted, mean = self._one(rows, self.alpha_, settings, None)
        last = fitted.result
        count = sum(r.history[-1].rounds for r in [*runs, last])
        self.n_rounds_ = count
        self.coef_, self.intercept_ = fitted.coef[0], float(fitted.intercept[0]) + mean
        words = (
            f"{last.message} More than {squares.MOST_FEATURES} features: {len(runs) + 1} ordinary fits, {count} rounds "
            "in all."
        )
        return replace(last, message=words)

    def _one(self, rows: Rows, alpha: float, settings: FitSettings, start: Start | None) -> tuple[Fitted, float]:
        """One fit, with the mean that its target was centred at."""
        kept, mean = centred(rows, bool(self.fit_intercept))
        loss = LeastSquares(reduction="pooled")
        return fit(kept, FitTask(loss, 0.0, alpha / rows.total, bool(self.fit_intercept)), settings, start), mean

    def _scores(self, errors: np.ndarray, rows: Rows, folds: list[Fold]) -> np.ndarray:
        """(K, f) from mean squared errors (f, K)."""
        if self.scoring == "neg_mean_squared_error":
            return -errors.T
        y, weight = np.concatenate(rows.y), np.concatenate(rows.weight)
        left = errors * np.array([[weight[test].sum()] for _, test in folds])
        spread = np.array([[_spread(y[test], weight[test])] for _, test in folds])
        # R² of a constant target: 1 if predicted exactly, else 0
        return (1 - np.where(spread > 0, left / np.where(spread > 0, spread, 1.0), (left > 0).astype(float))).T

    def _chosen(
        self,
        data: squares.SplitBlocks,
        whole: Moments,
        alphas: np.ndarray,
        scores: np.ndarray,
        coef: np.ndarray,
        settings: FitSettings,
    ) -> Result | None:
        """The strength of the best score, and its model among coef (K, m)."""
        best = self._choose(alphas, scores)
        certificate = squares.certified(whole, coef[[best]], np.zeros(1), alphas[[best]] / whole.S)
        offset = whole.middle - whole.mean @ coef[best] if self.fit_intercept else None
        return squares.result(data, certificate, coef[[best]], offset, settings)

    def _choose(self, alphas: np.ndarray, scores: np.ndarray) -> int:
        mean = scores if scores.ndim == 1 else scores.mean(1)
        best = int(mean.argmax())
        self.scores_, self.alpha_, self.best_score_ = scores, float(alphas[best]), float(mean[best])
        return best


def left_out(shard: Shard, blocks: None, shared: tuple[Tensor, ...]) -> tuple[None, dict[str, Tensor]]:
    """Σs e² of local rows, e the error of the model without the row: μ (m,), ȳ (1,), V (m, m), 1/(Λ + α) (m, K),
    models (m, K), and what an intercept adds to a leverage, (1,)."""
    mean, middle, V, inverse, models, one = (t.cpu().numpy() for t in shared)
    total = np.zeros(inverse.shape[1])
    step = max(1, NUMBERS_AT_ONCE // max(len(mean), 1))
    for _, X, y, s in cell_rows(shard, (0,) * shard.census.blocks):
        for i in range(0, len(y), step):
            some = slice(i, i + step)
            A = (X[some].toarray() if is_sparse(X) else X[some]) - mean
            leverage = s[some, None] * ((A @ V) ** 2 @ inverse + one)
            error = (y[some, None] - middle - A @ models) / (1 - leverage)
            total += s[some] @ error**2
    return blocks, {"squares": torch.from_numpy(total)}


def _spread(y: np.ndarray, weight: np.ndarray) -> float:
    total = weight.sum()
    return float(weight @ (y - weight @ y / total) ** 2) if total > 0 else 0.0
