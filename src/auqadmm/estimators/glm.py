"""Generalised linear models on rows that belong to workers, with standard errors.

    minimise over c, b   Σ_i s_i φ(x_iᵀc + o_i + b, y_i) + l1‖c‖₁ + l2/2‖c‖²          b never penalised

φ is −log-likelihood of a row, up to its dispersion. Sums, not means: l1 and l2 are in units of the log-likelihood.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import RegressorMixin
from sklearn.utils.validation import check_is_fitted

from auqadmm.blocks.rows import RowLoss
from auqadmm.core.result import Result
from auqadmm.estimators import checks
from auqadmm.estimators.base import ConsensusEstimator, deviance_explained, joined, quality_of
from auqadmm.estimators.blocks import is_block_list
from auqadmm.estimators.checks import EngineChoice, MatrixLike, MethodChoice, PerRow
from auqadmm.estimators.fitting import INFERENCE_UNKNOWNS, FitSettings, elastic_net, named_blocks, solved
from auqadmm.estimators.own_intercepts import intercepts_of, of_rows
from auqadmm.estimators.targets import EXPOSURE, check_binary, offset_of, offsets_of, refuse_negative, shares
from auqadmm.inference.inference import Inference
from auqadmm.inference.size import SizeSearch
from auqadmm.inference.statistics import WITHOUT_NULL
from auqadmm.inference.undetermined import shortest
from auqadmm.problem import InputError, NegativeBinomial, Problem
from auqadmm.problem.families import LOGARITHMIC, NamedFamily, mean_of
from auqadmm.problem.ingest import is_dask
from auqadmm.problem.made_of_losses import SiteIntercepts, Trials
from auqadmm.quality.quality import Quality

if TYPE_CHECKING:
    from sklearn.utils import Tags


class ConsensusGLM(RegressorMixin, ConsensusEstimator):
    """A generalised linear model, each worker keeping its own rows; `inference_` has standard errors and tests.

    Parameters
    ----------
    family : str or RowLoss, default="gaussian"
        "gaussian", "binomial" (y is 0 or 1), "poisson", "gamma", "negative-binomial" (its k is searched), "tweedie",
        "huber" or "quantile"; or a loss with settings of its own, such as `NegativeBinomial(2.0)` or `Tweedie(1.7)`.
    link : str, optional
        "logit" (the default), "probit" or "cloglog" for "binomial"; other families have one link each.
    l1, l2 : float, default=0.0
        Strengths of the penalties, beside the sum of the losses of all rows. Penalised fits have no p-values.
    penalty_factors : array (n_features,), optional
        Multiples of the strengths, one ≥ 0 per feature: 0 leaves it without a penalty. glmnet's `penalty.factor`, but
        not rescaled.
    site_intercepts : bool, default=False
        An intercept of its own for every site, found and kept there, in place of a common one.
    fit_intercept : bool, default=True
        Add a constant term, which is never penalised.
    n_blocks : int, default=1
        Without `sites`, the rows are split among so many workers, neighbouring rows together.
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
    intercept_ : float
        0 with site intercepts.
    site_intercepts_ : dict
        With site intercepts, and rows of this process: those of the sites, by name; NaN where none is finite. Saved
        models do not have them.
    k_ : float or None
        The size of the negative binomial: given, or the most likely one, with its error in `inference_.k_se`.
    rounds_ : int
        Of all fits: the search of k makes several.
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
    >>> X, days = rng.normal(size=(300, 2)), rng.uniform(1, 10, size=300)
    >>> y = rng.poisson(days * np.exp(0.5 * X[:, 0] - 1))
    >>> model = aq.ConsensusGLM("poisson").fit(X, y, sites=np.arange(300) % 4, exposure=days)
    >>> model.coef_.round(1)
    array([0.5, 0. ])
    >>> model.inference_.table[["coef", "p"]].round(2)
               coef     p
    x0         0.48  0.00
    x1         0.01  0.78
    intercept -1.05  0.00
    """

    def __init__(
        self,
        family: str | RowLoss = "gaussian",
        link: str | None = None,
        l1: float = 0.0,
        l2: float = 0.0,
        site_intercepts: bool = False,
        *,
        penalty_factors: ArrayLike | None = None,
        fit_intercept: bool = True,
        n_blocks: int = 1,
        max_iter: int = 1000,
        tol: float = 1e-18,
        method: MethodChoice = "auto",
        engine: EngineChoice = "local",
        verbose: int = 0,
    ) -> None:
        self.family = family
        self.link = link
        self.l1 = l1
        self.l2 = l2
        self.site_intercepts = site_intercepts
        self.penalty_factors = penalty_factors
        self.fit_intercept = fit_intercept
        self.n_blocks = n_blocks
        self.max_iter = max_iter
        self.tol = tol
        self.method = method
        self.engine = engine
        self.verbose = verbose

    def fit(
        self,
        X: MatrixLike,
        y: ArrayLike,
        sites: PerRow = None,
        sample_weight: PerRow = None,
        offset: PerRow = None,
        exposure: PerRow = None,
        trials: PerRow = None,
    ) -> ConsensusGLM:
        """Fit the model.

        Parameters
        ----------
        X : array, sparse matrix or data frame (n_samples, n_features); a list of these, one per worker
        y : array (n_samples,) of numbers, or a list of arrays where X is a list
        sites : array (n_samples,), optional
            Which worker owns a row: labels of any kind.
        sample_weight : array (n_samples,), optional
            A row of weight w counts w times.
        offset : array (n_samples,), optional
            Added to x·c + b.
        exposure : array (n_samples,), optional
            Time or size at risk, above zero, for families with a logarithmic link: its logarithm is an offset.
        trials : array (n_samples,), optional
            For "binomial": y holds numbers of successes, of so many trials each; a row is one observation.

        Returns
        -------
        self
            Fitted.

        Raises
        ------
        InputError
            Rows, targets, weights, offsets or sites cannot be used, or a parameter has a value that it cannot have; the
            message says where and what to do.

        Examples
        --------
        >>> import numpy as np
        >>> import auqadmm as aq
        >>> X, y = np.array([[0.0], [1.0], [1.0], [2.0], [3.0], [4.0]]), np.array([0, 0, 1, 1, 0, 1])
        >>> aq.ConsensusGLM("binomial", "probit").fit(X, y, sites=[0, 0, 0, 1, 1, 1]).coef_.round(2)
        array([0.39])
        """
        loss, settings = self._loss(), FitSettings.of(self)
        l1, l2 = checks.at_least_zero("l1", self.l1), checks.at_least_zero("l2", self.l2)
        own = checks.truth("site_intercepts", self.site_intercepts)
        if trials is not None:
            if loss.target_kind != "binary":
                raise InputError("trials is for family 'binomial': y is then the number of successes among them.")
            if sample_weight is not None:
                raise InputError(
                    "sample_weight has no place beside trials, which are weights: multiply successes and trials by it."
                )
            refuse_negative("trials", trials)
        rows = self._read(X, y, sites, trials if sample_weight is None else sample_weight, numeric=True)
        if trials is not None:
            loss, rows = Trials(loss), shares(rows)
        elif loss.target_kind == "binary":
            check_binary(rows)
        offsets = offsets_of(rows, is_block_list(X), offset, exposure, isinstance(loss, LOGARITHMIC))
        given = offset is not None or exposure is not None
        read = named_blocks(rows, rows.y, offsets if given else None, sites)
        factors = checks.penalty_factors(self.penalty_factors, rows.features)
        penalty = elastic_net(l1, l2, factors)
        common = bool(self.fit_intercept) and not own
        small = rows.features < INFERENCE_UNKNOWNS

        def fitted(loss: RowLoss, start: Result | None = None, whole: bool = True) -> Result:
            problem = Problem(loss, penalty, read, intercept=common, site_intercepts=own)
            return solved(problem, settings, small and (whole or WITHOUT_NULL), start)

        if self._searches:
            if not small:
                raise InputError(
                    f"k is searched for at most {INFERENCE_UNKNOWNS - 1} features; give it, NegativeBinomial(k)."
                )
            search = SizeSearch(lambda k, *last: fitted(NegativeBinomial(k), *last), penalty.quadratic)
            size, result, self.rounds_ = search()
            self.k_: float | None = size
        else:
            result = fitted(loss)
            self.k_, self.rounds_ = getattr(loss, "k", None), result.history[-1].rounds
        result = shortest(result)
        self.__dict__.pop("site_intercepts_", None)
        if own and not is_dask(rows.X[0]):
            found = NegativeBinomial(size) if self._searches else loss
            self.site_intercepts_ = intercepts_of(found, read, result)
        self.coef_, self.intercept_ = result.coef, result.intercept
        self._keep([result])
        self._fitted = replace(result, source=None, lam=None, weights=None, evidence=None)
        return self

    @property
    def inference_(self) -> Inference:
        """Standard errors, tests and fit, with the defaults of `Result.inference`."""
        return self.inference()

    def inference(self, cov: str = "model", level: float = 0.95, **options: object) -> Inference:
        """Standard errors, tests and fit, from sums that the fit has kept.

        Parameters
        ----------
        cov, level
            As in `Result.inference`.
        options
            Others of `Result.inference` but `weights` and `sites`: dispersion, use_t, correction, exponentiate.

        Returns
        -------
        Inference
            With `table`, `summary()` and more.

        Examples
        --------
        >>> import numpy as np
        >>> import auqadmm as aq
        >>> X, y = np.array([[0.0], [1.0], [1.0], [2.0], [3.0], [4.0]]), np.array([1.0, 2.0, 3.0, 6.0, 7.0, 8.0])
        >>> model = aq.ConsensusGLM().fit(X, y, sites=["a", "a", "a", "b", "b", "b"])
        >>> model.inference("robust").se.round(3)
        array([0.144, 0.35 ])
        """
        check_is_fitted(self)
        return self._fitted.inference(cov, level, **options)  # type: ignore[arg-type]

    def predict(
        self, X: MatrixLike, offset: PerRow = None, exposure: PerRow = None, sites: PerRow = None
    ) -> np.ndarray:
        """The expected target: the inverse link of x·c + b + offset.

        Parameters
        ----------
        X : array, sparse matrix or data frame (n_samples, n_features)
            Rows to predict.
        offset, exposure : array (n_samples,), optional
            As in `fit`.
        sites : array (n_samples,), optional
            For models with site intercepts: the site of every row, one of those of the fit.

        Returns
        -------
        ndarray of shape (n_samples,)
            Means; probabilities of 1 for "binomial".

        Raises
        ------
        InputError
            The rows cannot be used; or the model has site intercepts, and a site is not named or not known.

        Examples
        --------
        >>> import numpy as np
        >>> import auqadmm as aq
        >>> X, y = np.array([[0.0], [1.0], [1.0], [2.0], [3.0], [4.0]]), np.array([1.0, 2.0, 3.0, 6.0, 7.0, 9.0])
        >>> aq.ConsensusGLM("gamma").fit(X, y).predict(X[:2]).round(1)
        array([1.4, 2.4])
        """
        check_is_fitted(self)
        z = self._logits(X)[:, 0]
        z = z + self._own(sites, len(z))
        loss = self._loss()
        more = offset_of("offset", offset, len(z), False)
        more = more + offset_of("exposure", exposure, len(z), True) if exposure is not None else more
        return mean_of(loss, torch.from_numpy(z + more)).numpy()

    def score(self, X: MatrixLike, y: ArrayLike, sample_weight: PerRow = None, sites: PerRow = None) -> float:
        """The share of the deviance that the model explains; of squares, R².

        Parameters
        ----------
        X : array, sparse matrix or data frame (n_samples, n_features)
            Rows.
        y : array (n_samples,)
            Their targets.
        sample_weight : array (n_samples,), optional
            Weights of rows.
        sites : array (n_samples,), optional
            As in `predict`.

        Returns
        -------
        float
            1 at best, 0 for the best constant.

        Examples
        --------
        >>> import numpy as np
        >>> import auqadmm as aq
        >>> X, y = np.array([[0.0], [1.0], [1.0], [2.0], [3.0], [4.0]]), np.array([1.0, 2.0, 3.0, 6.0, 7.0, 8.0])
        >>> round(aq.ConsensusGLM().fit(X, y).score(X, y), 3)
        0.935
        """
        check_is_fitted(self)
        searched = self._searches and self.k_ is not None
        loss = NegativeBinomial(self.k_) if searched else self._loss()  # type: ignore[arg-type]
        logits = self._logits(X)
        return deviance_explained(loss, logits + self._own(sites, len(logits))[:, None], y, sample_weight)

    def _own(self, sites: PerRow, rows: int) -> np.ndarray:
        """The site intercepts of rows, (n,); zeros for a model without them."""
        if self.site_intercepts:
            return of_rows(getattr(self, "site_intercepts_", None), sites, rows)
        if sites is not None:
            raise InputError("sites has no place here: the model has one intercept for all sites.")
        return np.zeros(rows)

    @property
    def _searches(self) -> bool:
        """Is k found from the rows?"""
        return not isinstance(self.family, RowLoss) and isinstance(self._loss(), NegativeBinomial)

    def quality(
        self,
        X: MatrixLike,
        y: ArrayLike,
        sites: PerRow = None,
        sample_weight: PerRow = None,
        offset: PerRow = None,
        exposure: PerRow = None,
    ) -> Quality:
        """How good the model is on these rows: of all together, and of each site.

        Parameters
        ----------
        X, y, sites, sample_weight, offset, exposure
            As in `fit`: rows of the fit or new ones. Site intercepts are found from these rows.

        Returns
        -------
        Quality
            Accuracy, AUC, calibration, errors, explained deviance: what suits the family.

        Raises
        ------
        InputError
            Rows cannot be used.

        Examples
        --------
        >>> import numpy as np
        >>> import auqadmm as aq
        >>> X, y = np.array([[0.0], [1.0], [1.0], [2.0], [3.0], [4.0]]), np.array([1, 2, 3, 6, 7, 19])
        >>> found = aq.ConsensusGLM("poisson").fit(X, y).quality(X, y)
        >>> round(found.figures["deviance_explained"], 2), round(found.figures["calibration_slope"], 6)
        (0.96, 1.0)
        """
        check_is_fitted(self)
        X, (target, weight, o, time), numbers = joined(X, y, sample_weight, offset, exposure)
        loss, count = self._loss(), len(np.asarray(target).ravel())
        if time is not None and not isinstance(loss, LOGARITHMIC):
            raise InputError(EXPOSURE)
        more = None
        if o is not None or time is not None:
            more = offset_of("offset", o, count, False) + offset_of("exposure", time, count, True)
        full = SiteIntercepts(loss) if self.site_intercepts else loss
        return quality_of(self, full, X, target, sites if numbers is None else numbers, weight, more)

    def _loss(self) -> RowLoss:
        family, link = self.family, self.link
        if isinstance(family, RowLoss):
            if link is not None:
                raise InputError(f"link has no place beside {family!r}, which has its own.")
            return replace(family, reduction="sum")
        return NamedFamily.of(family, link).loss()

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = str(self.family) in ("poisson", "gamma", "negative-binomial", "tweedie")
        return tags
