"""Cox's proportional hazards on rows that belong to workers, each worker a stratum with a baseline hazard of its own.

    minimise over c   −log partial likelihood + l1‖c‖₁ + l2/2‖c‖²

No time leaves a worker but through sums; baseline hazards are told on request, on a grid.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils.validation import check_is_fitted

from auqadmm.core.reduce import Reduce
from auqadmm.errors import AuqadmmError
from auqadmm.estimators import checks
from auqadmm.estimators.base import ConsensusEstimator, quality_of
from auqadmm.estimators.blocks import is_block_list
from auqadmm.estimators.checks import EngineChoice, MatrixLike, MethodChoice, PerRow
from auqadmm.estimators.fitting import INFERENCE_UNKNOWNS, FitSettings, elastic_net, named_blocks, solved
from auqadmm.estimators.targets import codes_of, finite_numbers, joined, listed_times, numbered, times_of
from auqadmm.inference.inference import Inference
from auqadmm.inference.survival import (
    BaselineQuery,
    PairCounts,
    PairsQuery,
    ProportionalHazards,
    pairs,
    proportional_hazards,
)
from auqadmm.problem import Cox, InputError, Problem
from auqadmm.problem.ingest import is_dask
from auqadmm.quality.quality import Quality

if TYPE_CHECKING:
    import pandas as pd
    from torch import Tensor

T = TypeVar("T")


class ConsensusCox(ConsensusEstimator):
    """Cox's proportional hazards model, stratified by site; `inference_` has standard errors and tests.

    Parameters
    ----------
    ties : str, default="efron"
        "efron" or "breslow": how events at the same time share a risk set.
    l1, l2 : float, default=0.0
        Strengths of the penalties, beside minus the log partial likelihood. Penalised fits have no p-values.
    penalty_factors : array (n_features,), optional
        Multiples of the strengths, one ≥ 0 per feature: 0 leaves it without a penalty. glmnet's `penalty.factor`, but
        not rescaled.
    n_blocks : int, default=1
        Without `sites`, the rows are split among so many workers, neighbouring rows together: so many strata.
    max_iter : int, default=1000
        Limit of iterations; a `ConvergenceWarning` says when it was reached.
    tol : float, default=1e-18
        The fit ends when the objective is proved (or estimated) to be within this of its optimum, relatively;
        coefficients are then right to about its root.
    method, engine
        As in `auqadmm.solve`.
    verbose : int, default=0
        Every `verbose` iterations a line on standard error; on a terminal a display that is rewritten in place.

    Attributes
    ----------
    coef_ : ndarray of shape (n_features,)
        Logarithms of hazard ratios.
    n_iter_ : int
    status_ : Status
        How the fit ended.
    message_ : str
        A sentence that says what to do.
    certificate_, history_
        Of the run.
    n_features_in_, feature_names_in_
        As in scikit-learn.

    Examples
    --------
    >>> import numpy as np
    >>> import auqadmm as aq
    >>> rng = np.random.default_rng(0)
    >>> X, site = rng.normal(size=(300, 2)), np.repeat(["north", "south", "west"], 100)
    >>> time, limit = rng.exponential(np.exp(-0.7 * X[:, 0])), rng.exponential(2.0, size=300)
    >>> y = np.column_stack([np.minimum(time, limit), time <= limit])  # time, event
    >>> model = aq.ConsensusCox().fit(X, y, sites=site)
    >>> model.inference(exponentiate=True).table[["ratio", "low", "high"]].round(2)
        ratio   low  high
    x0   2.27  1.91   2.7
    x1   0.95  0.82   1.1
    >>> round(model.concordance_, 2)
    0.7
    """

    fit_intercept = False  # the baseline hazard takes it up

    def __init__(
        self,
        ties: str = "efron",
        l1: float = 0.0,
        l2: float = 0.0,
        *,
        penalty_factors: ArrayLike | None = None,
        n_blocks: int = 1,
        max_iter: int = 1000,
        tol: float = 1e-18,
        method: MethodChoice = "auto",
        engine: EngineChoice = "local",
        verbose: int = 0,
    ) -> None:
        self.ties = ties
        self.l1 = l1
        self.l2 = l2
        self.penalty_factors = penalty_factors
        self.n_blocks = n_blocks
        self.max_iter = max_iter
        self.tol = tol
        self.method = method
        self.engine = engine
        self.verbose = verbose

    def fit(
        self,
        X: MatrixLike,
        y: Any,
        sites: PerRow = None,
        sample_weight: PerRow = None,
        strata: PerRow = None,
        offset: PerRow = None,
    ) -> ConsensusCox:
        """Fit the model.

        Parameters
        ----------
        X : array, sparse matrix or data frame (n_samples, n_features); a list of these, one per worker
        y : array (n_samples, 2) or (n_samples, 3), tuple of arrays, or structured array
            Time above zero, event (1, or 0 for censored) and, where rows are not at risk from the beginning, entry: the
            columns of an array or a data frame, a tuple `(time, event)` or `(time, event, entry)`, or a structured
            array with one field of truth values and one or two of numbers, as in scikit-survival. A list of these where
            X is a list.
        sites : array (n_samples,), optional
            Which worker owns a row: labels of any kind. Each has its own baseline hazard.
        sample_weight : array (n_samples,), optional
            Case weights, as in R's coxph.
        strata : array (n_samples,), optional
            Labels of any kind: rows of a site with another label have another baseline hazard. A list where X is one.
        offset : array (n_samples,), optional
            Added to x·c. A list where X is one.

        Returns
        -------
        self
            Fitted.

        Raises
        ------
        InputError
            Rows, times, events, weights, sites or strata cannot be used, or a parameter has a value that it cannot
            have; the message says where and what to do.

        Examples
        --------
        >>> import numpy as np
        >>> import auqadmm as aq
        >>> X, time, event = np.array([[0.0], [1.0], [1.0], [0.0], [1.0]]), [5.0, 2.0, 6.0, 4.0, 1.0], [1, 1, 0, 1, 1]
        >>> aq.ConsensusCox("breslow", l2=1.0).fit(X, (time, event)).coef_.round(2)
        array([0.03])
        """
        loss, settings = Cox(self.ties), FitSettings.of(self)
        l1, l2 = checks.at_least_zero("l1", self.l1), checks.at_least_zero("l2", self.l2)
        if is_dask(X):
            raise InputError("ConsensusCox takes rows of this process; for chunks of dask use Problem(Cox(), …).")
        listed = is_block_list(X)
        parts = listed_times(y, len(X)) if is_block_list(X) else [times_of(y)]
        time = [part[:, 0] for part in parts]
        rows = self._read(X, time if listed else time[0], sites, sample_weight, numeric=True)
        n = sum(rows.sizes)
        self.strata_, codes = codes_of(joined(strata, listed), n)
        target = np.column_stack([np.concatenate(parts), codes])[rows.order]
        o = finite_numbers("offset", joined(offset, listed), n)
        cuts = np.cumsum(rows.sizes)[:-1]
        read = named_blocks(rows, np.split(target, cuts), None if o is None else np.split(o[rows.order], cuts), sites)
        problem = Problem(loss, elastic_net(l1, l2, checks.penalty_factors(self.penalty_factors, rows.features)), read)
        result = solved(problem, settings, rows.features < INFERENCE_UNKNOWNS)
        self.coef_, self.intercept_ = result.coef, 0.0
        self._keep([result])
        self._fitted = replace(result, lam=None, weights=None, evidence=None)
        self._sites = tuple(block.name for block in read)
        self.__dict__.pop("_site_pairs", None)
        return self

    # ------------------------------------------------------------------ what it is worth
    @property
    def inference_(self) -> Inference:
        """Standard errors, tests and fit, with the defaults of `Result.inference`."""
        return self.inference()

    def inference(self, cov: str = "model", level: float = 0.95, **options: object) -> Inference:
        """Standard errors, hazard ratios, tests and fit, from sums that the fit has kept.

        Parameters
        ----------
        cov, level
            As in `Result.inference`. "robust" is made of the scores of rows, "cluster" of those of sites, both with
            weights squared, as in R's coxph.
        options
            Others of `Result.inference`: exponentiate (hazard ratios), correction; `sites=True` asks the sites once
            more.

        Returns
        -------
        Inference
            With `table`, `summary()`, `llf`, `llnull`, `lr_test`, `aic`, `heterogeneity` and more.

        Examples
        --------
        >>> import numpy as np
        >>> import auqadmm as aq
        >>> rng = np.random.default_rng(0)
        >>> X, time = rng.normal(size=(80, 1)), rng.exponential(size=80)
        >>> model = aq.ConsensusCox().fit(X, (time, np.ones(80)), sites=np.arange(80) % 2)
        >>> model.inference("robust").se.round(2)
        array([0.12])
        """
        check_is_fitted(self)
        return self._fitted.inference(cov, level, **options)  # type: ignore[arg-type]

    @property
    def concordance_(self) -> float:
        """Of pairs of rows that can be compared, within sites and strata: the share in which the larger risk score has
        the earlier event, ties by half."""
        check_is_fitted(self)
        known = self._fitted.statistics
        if known is not None:
            return PairCounts(*(known.number(name) for name in ("concordant", "discordant", "tied"))).index
        return PairCounts(*self._pairs().sum(0)).index

    @property
    def site_concordance_(self) -> dict[str, float]:
        """The same of every site, NaN where no pair can be compared. Sites are asked at the first call."""
        return {name: PairCounts(*counts).index for name, counts in zip(self._sites, self._pairs(), strict=True)}

    def _pairs(self) -> np.ndarray:
        check_is_fitted(self)
        if "_site_pairs" not in vars(self):
            self._site_pairs = self._ask(lambda reduce, v: reduce.gather(PairsQuery(v), None).cpu().numpy())
        return self._site_pairs

    def ph_test(self, transform: str = "km") -> ProportionalHazards:
        """Are hazards proportional? Score tests of a trend of every coefficient in time, as cox.zph of R's survival
        (since 3.0).

        Parameters
        ----------
        transform
            The function of time that the trend is linear in: "identity", "log", and within every site and stratum "km"
            (1 − Kaplan–Meier) and "rank". Those of R are of all rows together, and the same only for one stratum.

        Returns
        -------
        ProportionalHazards
            With `table`: chisq, df and p of every coefficient, and of all together. Takes one round, in which sites add
            up three triangles of m(m + 1)/2 numbers and m more.

        Raises
        ------
        InputError
            The fit is penalised, was loaded, or there are too few event times; or there is no such transform.

        Examples
        --------
        >>> import numpy as np
        >>> import auqadmm as aq
        >>> rng = np.random.default_rng(0)
        >>> X, time = rng.normal(size=(80, 1)), rng.exponential(size=80)
        >>> model = aq.ConsensusCox().fit(X, (time, np.ones(80)), sites=np.arange(80) % 2)
        >>> model.ph_test("log").table.round(2)
                chisq   df     p
        x0       1.34  1.0  0.25
        GLOBAL   1.34  1.0  0.25
        """
        check_is_fitted(self)
        if self.l1 or self.l2:
            raise InputError("ph_test is for fits without a penalty: fit once with l1=0 and l2=0.")
        names = getattr(self, "feature_names_in_", [f"x{k}" for k in range(self.n_features_in_)])
        ask = partial(proportional_hazards, transform=transform, names=tuple(map(str, names)))
        return self._ask(ask)

    def baseline_hazard(self, grid: ArrayLike) -> pd.DataFrame:
        """The cumulative baseline hazard of every site and stratum at chosen times: what a row with x = 0 accumulates.

        Breslow's estimate, or with ties="efron" Efron's. Sites send these numbers only, one per time and stratum; a
        fine grid tells where events were.

        Parameters
        ----------
        grid : array
            Times.

        Returns
        -------
        DataFrame
            One row per time, one column per site, or per site and stratum; NaN where a site has no row of a stratum.

        Raises
        ------
        InputError
            Times are not finite numbers, or the model was loaded.

        Examples
        --------
        >>> import numpy as np
        >>> import auqadmm as aq
        >>> X, time = np.array([[0.0], [1.0], [1.0], [0.0], [1.0], [0.0]]), np.array([3.0, 1.0, 2.0, 2.0, 1.0, 3.0])
        >>> model = aq.ConsensusCox(l2=1.0).fit(X, (time, np.ones(6)), sites=["a", "a", "a", "b", "b", "b"])
        >>> model.baseline_hazard([1, 2, 3]).to_numpy().round(2)
        array([[0.17, 0.22],
               [0.46, 0.72],
               [1.46, 1.72]])
        """
        try:
            import pandas
        except ModuleNotFoundError:
            raise AuqadmmError("Tables need pandas: pip install pandas.") from None
        check_is_fitted(self)
        times = finite_numbers("grid", grid, None)
        assert times is not None
        strata = np.arange(float(len(self.strata_)))
        found = self._ask(lambda reduce, v: reduce.gather(BaselineQuery(v, times, strata), None).cpu().numpy())
        names = pandas.Index(self._sites)
        if len(strata) > 1:
            names = pandas.MultiIndex.from_product([self._sites, self.strata_], names=["site", "stratum"])
        return pandas.DataFrame(found.reshape(-1, len(times)).T, index=pandas.Index(times, name="time"), columns=names)

    def _ask(self, question: Callable[[Reduce, Tensor], T]) -> T:
        if self._fitted.source is None:
            raise InputError("This model was loaded: its rows are elsewhere. Fit it once more to ask for this.")
        return self._fitted.source.ask(self._fitted.v, question)

    def quality(
        self, X: MatrixLike, y: Any, sites: PerRow = None, sample_weight: PerRow = None, strata: PerRow = None
    ) -> Quality:
        """How good the model is on these rows: concordance and events, of all together and of each site.

        Parameters
        ----------
        X, y, sites, sample_weight, strata
            As in `fit`, X not a list: rows of the fit or new ones.

        Returns
        -------
        Quality
            With `figures` and `sites`; pairs are of rows of the same site and stratum.

        Raises
        ------
        InputError
            Rows, times, events, sites or strata cannot be used.

        Examples
        --------
        >>> import numpy as np
        >>> import auqadmm as aq
        >>> X, time, event = np.array([[0.0], [1.0], [1.0], [0.0], [1.0]]), [5.0, 2.0, 6.0, 4.0, 1.0], [1, 1, 0, 1, 1]
        >>> aq.ConsensusCox("breslow", l2=1.0).fit(X, (time, event)).quality(X, (time, event)).figures
        {'concordance': 0.6, 'events': 4.0}
        """
        check_is_fitted(self)
        if is_block_list(X):
            raise InputError("quality takes all rows in one matrix; say with sites which site owns a row.")
        times = times_of(y)
        target = np.column_stack([times, codes_of(strata, len(times))[1]])
        return quality_of(self, Cox(self.ties), X, target, sites, sample_weight)

    # ------------------------------------------------------------------ predictions
    def predict(self, X: MatrixLike) -> np.ndarray:
        """Risk scores x·c: the logarithm of the hazard, relative to a row with x = 0 of the same site.

        Parameters
        ----------
        X : array, sparse matrix or data frame (n_samples, n_features)
            Rows to predict.

        Returns
        -------
        ndarray of shape (n_samples,)
            Larger for those who are expected to have their event earlier.

        Examples
        --------
        >>> import numpy as np
        >>> import auqadmm as aq
        >>> X, time, event = np.array([[0.0], [1.0], [1.0], [0.0], [1.0]]), [5.0, 2.0, 6.0, 4.0, 1.0], [1, 1, 0, 1, 1]
        >>> aq.ConsensusCox("breslow", l2=1.0).fit(X, (time, event)).predict(X[:2]).round(2)
        array([0.  , 0.03])
        """
        return self._logits(X)[:, 0]

    def score(
        self, X: MatrixLike, y: Any, sample_weight: PerRow = None, sites: PerRow = None, strata: PerRow = None
    ) -> float:
        """The concordance of risk scores and times: 0.5 for scores that say nothing, 1 at best.

        Parameters
        ----------
        X : array, sparse matrix or data frame (n_samples, n_features)
            Rows.
        y
            Times and events, as in `fit`.
        sample_weight : array (n_samples,), optional
            A pair has the product of its rows' weights.
        sites, strata : array (n_samples,), optional
            Compare only rows of the same site, and of the same stratum.

        Returns
        -------
        float
            The share of pairs in which the larger score has the earlier event, ties by half; NaN without any pair.

        Raises
        ------
        InputError
            Times, events, sites or strata cannot be used, or are not as many as rows.

        Examples
        --------
        >>> import numpy as np
        >>> import auqadmm as aq
        >>> X, time, event = np.array([[0.0], [1.0], [1.0], [0.0], [1.0]]), [5.0, 2.0, 6.0, 4.0, 1.0], [1, 1, 0, 1, 1]
        >>> round(aq.ConsensusCox("breslow", l2=1.0).fit(X, (time, event)).score(X, (time, event)), 3)
        0.6
        """
        z, target = self.predict(X), Cox().arranged("y", times_of(y))
        if len(target) != len(z):
            raise InputError(f"X has {len(z)} rows but y has {len(target)}.")
        site = np.zeros(len(z)) if sites is None else numbered(sites, len(z), "sites")
        labels, stratum = codes_of(strata, len(z))
        group = site * len(labels) + stratum
        weight = checks.weights_of(sample_weight, len(z))
        time, event, entry = target[:, :3].T
        return pairs(z, time, event, entry, group, weight).index
