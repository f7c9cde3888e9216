"""The lasso on rows that belong to workers: the elastic net whose penalty is l1 alone.

minimise over c, b   1/(2Σs) Σ_i s_i (x_iᵀc + b − y_i)² + α‖c‖₁
"""

from __future__ import annotations

from numpy.typing import ArrayLike

from auqadmm.estimators.elastic_net import ConsensusElasticNet
from auqadmm.estimators.elastic_net_cv import ConsensusElasticNetCV
from auqadmm.estimators.types import EngineChoice, Folds, Grid, MethodChoice


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
