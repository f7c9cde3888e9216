"""The elastic net, and the lasso, whose strength is chosen by cross-validation along a path."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from numbers import Integral

import numpy as np
from numpy.typing import ArrayLike
from sklearn.model_selection import check_cv

from auqadmm.core.result import Result
from auqadmm.estimators import checks, squares, wide
from auqadmm.estimators.blocks import Rows
from auqadmm.estimators.checks import EngineChoice, Fold, Folds, Grid, MatrixLike, MethodChoice, PerRow
from auqadmm.estimators.elastic_net import ConsensusElasticNet, centred
from auqadmm.estimators.fitting import FitSettings, FitTask, fit, report
from auqadmm.estimators.path import check_grid, grid_of, path, strengths
from auqadmm.problem import InputError, LeastSquares


class ConsensusElasticNetCV(ConsensusElasticNet):
    """Elastic net with strength and l1 share chosen by cross-validation, each worker keeping its own rows.

    Up to 4096 features all folds and strengths take two reductions: workers send the Gram matrix of each fold, and the
    rest happens at the server. Beyond, they send it for the columns that are or may become active, determined
    along the path, some tens of reductions for all folds and strengths. With a `method` of your choice, and where more
    than 4096 columns are active, all strengths of a fold are solved together (see `enet_path`).

    Parameters
    ----------
    l1_ratio : float or list of float, default=0.5
        Share of the l1 part, or those to choose from.
    eps : float, default=1e-3
        The weakest strength, relative to the strongest, where `alphas` is a number.
    alphas : int or array, default=100
        The strengths, or how many.
    cv : int, splitter or iterable of (train, test), optional
        A number k (5 without): every worker sets aside each k-th part of its own rows in turn, so that all sites are
        in every fold. A splitter is called with the sites as groups, e.g. `LeaveOneGroupOut()`: new sites.
    together : int, default=100
        Strengths per run.
    fit_intercept, n_blocks, max_iter, tol, method, engine, verbose
        As in `ConsensusElasticNet`.

    Attributes
    ----------
    alpha_, l1_ratio_ : float
        The choice.
    alphas_ : ndarray of shape (n_alphas,), or (n_l1_ratio, n_alphas) for a list of shares
    mse_path_ : ndarray of shape (n_alphas, n_folds), or (n_l1_ratio, n_alphas, n_folds)
    n_rounds_ : int
        Reductions over all workers, of all folds and the last fit.
    coef_, intercept_, n_iter_, status_, message_, certificate_, history_
        Of the last fit, on all rows.

    Examples
    --------
    >>> import numpy as np
    >>> import auqadmm as aq
    >>> X = np.array([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0], [2.0, 1.0], [2.0, 0.0], [0.0, 0.0]])
    >>> y = np.array([1.0, 2.0, 3.0, 5.0, 4.0, 0.5])
    >>> sites = [0, 0, 0, 1, 1, 1]
    >>> model = aq.ConsensusElasticNetCV(alphas=[0.01, 1.0], cv=2).fit(X, y, sites=sites)
    >>> float(model.alpha_), model.mse_path_.shape
    (0.01, (2, 2))
    """

    _chunks_stay = False  # folds split the chunks

    def __init__(
        self,
        *,
        l1_ratio: float | Sequence[float] = 0.5,
        eps: float = 1e-3,
        alphas: Grid = 100,
        cv: Folds = None,
        together: int = 100,
        fit_intercept: bool = True,
        n_blocks: int = 1,
        max_iter: int = 500,
        tol: float = 1e-18,
        method: MethodChoice = "auto",
        engine: EngineChoice = "local",
        verbose: int = 0,
    ) -> None:
        self.l1_ratio = l1_ratio  # type: ignore[assignment]  # one share in the base class
        self.eps = eps
        self.alphas = alphas
        self.cv = cv
        self.together = together
        self.fit_intercept = fit_intercept
        self.n_blocks = n_blocks
        self.max_iter = max_iter
        self.tol = tol
        self.method = method
        self.engine = engine
        self.verbose = verbose

    def fit(
        self, X: MatrixLike, y: ArrayLike, sites: PerRow = None, sample_weight: PerRow = None
    ) -> ConsensusElasticNetCV:
        """Choose strength and share, then fit all rows.

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
        >>> aq.ConsensusElasticNetCV(alphas=[0.01, 1.0], cv=2).fit(X, y, sites=sites).coef_.round(2)
        array([1.85, 0.8 ])
        """
        settings = FitSettings.of(self)
        ratios = [checks.share("l1_ratio", r) for r in np.atleast_1d(self.l1_ratio).tolist()]
        for ratio in ratios:
            check_grid(self.alphas, self.eps, ratio)
        rows = self._read(X, y, sites, sample_weight, numeric=True)
        folds = folds_of(rows, self.cv)
        # folds are weighted by their rows, as if rows were scored one by one
        weight = np.concatenate(rows.weight)
        mass = np.array([max(float(weight[test].sum()), 0.0) for _, test in folds])
        split = squares.Split.of(folds)
        if self._from_sums(rows, split, ratios, mass, settings):
            return self
        spent = self._from_sets(rows, split, ratios, mass, settings)
        if spent is not None:
            self._by_runs(rows, folds, mass, ratios, settings)
            self.n_rounds_ += spent
        return self

    def _from_sums(
        self, rows: Rows, split: squares.Split, ratios: list[float], mass: np.ndarray, settings: FitSettings
    ) -> bool:
        """The choice and the last fit from the sums of every fold; False where that is not possible."""
        intercept = bool(self.fit_intercept)
        if not squares.is_applicable(rows, settings, split):
            return False
        with squares.split_blocks(rows, split, settings) as data:
            parts = data.moments(intercept)
            if not parts.finite:
                return False
            whole, trained = parts.merged(split.whole[None]), parts.merged(split.train)
            grids = np.array([grid_of(self.alphas, self.eps, partial(squares.largest, whole, r)) for r in ratios])
            coef, reached = squares.nets(trained, grids, ratios)
            f, R, K, m = coef.shape
            error = squares.errors(data, parts, split, trained, coef.reshape(f, R * K, m)).reshape(f, R, K)
            self._choose(np.moveaxis(error, 0, 2), grids, ratios, mass)
            v = squares.single(whole, self.alpha_, self.l1_ratio_)
            result = squares.concluded(data, whole, v, self.alpha_, self.l1_ratio_, intercept, settings)
            self.n_rounds_ = data.reduce.traffic.rounds
        if result is None or not reached.all():
            return False
        self._set_model(result)
        return True

    def _from_sets(
        self, rows: Rows, split: squares.Split, ratios: list[float], mass: np.ndarray, settings: FitSettings
    ) -> int | None:
        """The same from working sets of columns (`wide.py`); the rounds spent where that is not possible."""
        intercept, f = bool(self.fit_intercept), len(split.train)
        if not wide.is_applicable(rows, settings, split, ratios, self.alphas):
            return 0
        with squares.split_blocks(rows, split, settings) as data:
            with suppress(wide.GaveUp):
                nobody = np.zeros_like(split.whole)
                masks = np.vstack([split.train, split.whole]), np.vstack([split.test, nobody])
                groups = wide.Groups(data, *masks, intercept)
                whole = groups.all[-1]
                grids = np.array([grid_of(self.alphas, self.eps, partial(whole.largest, r)) for r in ratios])
                error = groups.errors(f, grids, ratios, mass)
                r, j = self._choose(np.moveaxis(error, 0, 2), grids, ratios, mass)
                track = whole.follow(grids[r, j : j + 1], ratios[r], alone=True)
                whole.missing = groups.active(r, j)
                groups.run()
                certificate, coef = whole.certified(track), whole.whole(track)
                if squares.enough(certificate, settings.tol):
                    offset = whole.middle - coef @ whole.mean if intercept else None
                    self.n_rounds_ = data.reduce.traffic.rounds
                    self._set_model(squares.result(data, certificate, coef, offset, settings))
                    return None
            return data.reduce.traffic.rounds

    def _set_model(self, result: Result) -> None:
        self.coef_, self.intercept_ = np.asarray(result.coef), float(result.intercept)
        self._keep([result])

    def _by_runs(
        self, rows: Rows, folds: list[Fold], mass: np.ndarray, ratios: list[float], settings: FitSettings
    ) -> None:
        """All strengths of a fold in one run, fold after fold."""
        whole, mean = centred(rows, self.fit_intercept)
        grids = np.array([strengths(whole, r, self.alphas, self.eps) for r in ratios])
        errors = np.empty((*grids.shape, len(folds)))
        runs: list[Result] = []
        for k, (train, test) in enumerate(folds):
            kept, offset = centred(rows.take(train), self.fit_intercept)
            for i, ratio in enumerate(ratios):
                models = path(kept, grids[i], ratio, self.fit_intercept, settings, self.together)
                errors[i, :, k] = mse(rows.take(test), models.coef, models.intercept + offset)
                runs += models.results
        self._choose(errors, grids, ratios, mass)
        l1, l2 = self.alpha_ * self.l1_ratio_, self.alpha_ * (1 - self.l1_ratio_)
        final = fit(whole, FitTask(LeastSquares(reduction="pooled"), l1, l2, bool(self.fit_intercept)), settings)
        self.coef_, self.intercept_ = final.coef[0], float(final.intercept[0]) + mean
        self.n_rounds_ = sum(r.history[-1].rounds for r in [*runs, final.result])
        report(self, runs)
        self._keep([final.result])

    def _choose(self, errors: np.ndarray, grids: np.ndarray, ratios: list[float], mass: np.ndarray) -> tuple[int, int]:
        """Share and strength of the least error, from errors (R, K, f), and their indices."""
        mean_error = np.average(errors, axis=2, weights=mass)
        best, place = divmod(int(mean_error.argmin()), grids.shape[1])
        self.alpha_, self.l1_ratio_ = float(grids[best, place]), ratios[best]
        one = np.ndim(self.l1_ratio) == 0
        self.alphas_: np.ndarray = grids[0] if one else grids
        self.mse_path_: np.ndarray = errors[0] if one else errors
        return best, place


def folds_of(rows: Rows, cv: Folds) -> list[Fold]:
    """Masks (train, test) over the rows, blocks one after another."""
    n = len(rows.order)
    if cv is None or (isinstance(cv, Integral) and not isinstance(cv, bool)):
        fold = site_folds(rows.sizes, 5 if cv is None else int(cv))
        tests = [fold == k for k in np.unique(fold)]
        pairs = [(~test, test) for test in tests]
    else:
        original = np.argsort(rows.order)  # splitters get the rows in the user's order
        y, groups = np.concatenate(rows.y)[original], rows.site[original]
        with warnings.catch_warnings():  # splitters warn of unused groups
            warnings.filterwarnings("ignore", "The groups parameter is ignored")
            splits = list(check_cv(cv).split(np.zeros((n, 1)), y, groups))
        pairs = [(_mask(train, n)[rows.order], _mask(test, n)[rows.order]) for train, test in splits]
    weight = np.concatenate(rows.weight)
    for train, test in pairs:
        if weight[train].sum() == 0 or not test.any():
            raise InputError("cv leaves a fold without rows to fit or to score; choose fewer folds.")
    return pairs


def site_folds(sizes: list[int], k: int) -> np.ndarray:
    """The fold of each row: every block is cut into k parts of neighbouring rows, block j beginning at fold j mod k."""
    if k < 2:
        raise InputError(f"cv must be at least 2, got {k}.")
    if sum(sizes) < k:
        raise InputError(
            f"n_samples={sum(sizes)} rows cannot be split into cv={k} folds; give more rows or fewer folds."
        )
    parts = []
    for j, n in enumerate(sizes):
        parts.append((np.arange(n) * k // max(n, k) + j) % k)
    return np.concatenate(parts).astype(int)


def _mask(index: np.ndarray, n: int) -> np.ndarray:
    mask = np.zeros(n, dtype=bool)
    mask[index] = True
    return mask


def mse(rows: Rows, coef: np.ndarray, intercept: np.ndarray) -> np.ndarray:
    """The weighted mean squared error of every model, (K,): sums over workers. A fold of weight 0 adds nothing."""
    squares = sum(
        w @ np.square(X @ coef.T + intercept - y[:, None]) for X, y, w in zip(rows.X, rows.y, rows.weight, strict=True)
    )
    return np.asarray(squares) / max(rows.total, np.finfo(np.float64).tiny)


class ConsensusLassoCV(ConsensusElasticNetCV):
    """Lasso with the strength chosen by cross-validation, each worker keeping its own rows.

    Parameters
    ----------
    eps, alphas, cv, together, fit_intercept, n_blocks, max_iter, tol, method, engine, verbose
        As in `ConsensusElasticNetCV`, and so are the attributes, but for `l1_ratio_`.

    Examples
    --------
    >>> import numpy as np
    >>> import auqadmm as aq
    >>> X = np.array([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0], [2.0, 1.0], [2.0, 0.0], [0.0, 0.0]])
    >>> y = np.array([1.0, 2.0, 3.0, 5.0, 4.0, 0.5])
    >>> sites = [0, 0, 0, 1, 1, 1]
    >>> float(aq.ConsensusLassoCV(alphas=[0.01, 1.0], cv=2).fit(X, y, sites=sites).alpha_)
    0.01
    """

    l1_ratio = 1.0

    def __init__(
        self,
        *,
        eps: float = 1e-3,
        alphas: Grid = 100,
        cv: Folds = None,
        together: int = 100,
        fit_intercept: bool = True,
        n_blocks: int = 1,
        max_iter: int = 500,
        tol: float = 1e-18,
        method: MethodChoice = "auto",
        engine: EngineChoice = "local",
        verbose: int = 0,
    ) -> None:
        self.eps = eps
        self.alphas = alphas
        self.cv = cv
        self.together = together
        self.fit_intercept = fit_intercept
        self.n_blocks = n_blocks
        self.max_iter = max_iter
        self.tol = tol
        self.method = method
        self.engine = engine
        self.verbose = verbose
