"""The lasso on rows that belong to workers: the elastic net whose penalty is l1 alone.

minimise over c, b   1/(2Σs) Σ_i s_i (x_iᵀc + b − y_i)² + α‖c‖₁
"""

from __future__ import annotations

from typing import Any

from auqadmm.estimators.elastic_net import ConsensusElasticNet
from auqadmm.estimators.elastic_net_cv import ConsensusElasticNetCV


class ConsensusLasso(ConsensusElasticNet):
    """Linear regression with an l1 penalty, each worker keeping its own rows.

    The model is that of `sklearn.linear_model.Lasso`, whatever the split of the rows.

    Parameters
    ----------
    alpha : float, default=1.0
        Strength of the penalty, ≥ 0.
    fit_intercept, n_blocks, max_iter, tol, method, engine, warm_start, verbose
        As in `ConsensusElasticNet`, and so are the attributes.
    """

    l1_ratio = 1.0

    def __init__(
        self,
        alpha: float = 1.0,
        *,
        fit_intercept: bool = True,
        n_blocks: int = 1,
        max_iter: int = 500,
        tol: float = 1e-18,
        method: Any = "auto",
        engine: Any = "local",
        warm_start: bool = False,
        verbose: int = 0,
    ) -> None:
        self.alpha = alpha
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
    """

    l1_ratio = 1.0

    def __init__(
        self,
        *,
        eps: float = 1e-3,
        alphas: Any = 100,
        cv: Any = None,
        together: int = 100,
        fit_intercept: bool = True,
        n_blocks: int = 1,
        max_iter: int = 500,
        tol: float = 1e-18,
        method: Any = "auto",
        engine: Any = "local",
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
