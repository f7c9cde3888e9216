"""scikit-learn estimators: `fit(X, y, sites=...)`, each worker keeping its own rows.

ConsensusElasticNet             linear regression, elastic net
ConsensusElasticNetCV           the same, strength chosen by cross-validation along a path
ConsensusLasso, ConsensusLassoCV                l1 alone
ConsensusRidge, ConsensusRidgeCV                l2 alone
ConsensusLogisticRegression     two or more classes, l1, l2 or elastic net
ConsensusLogisticRegressionCV   the same, strength and share of l1 chosen by cross-validation
ConsensusLinearSVC              support vector machine with a smoothed hinge
ConsensusPoissonRegressor, ConsensusHuberRegressor, ConsensusQuantileRegressor
ConsensusGLM                    families of generalised linear models, with standard errors
ConsensusCox                    proportional hazards, stratified by site, with standard errors
enet_path                       elastic nets for many strengths, in one run
"""

from auqadmm.estimators.classifiers import ConsensusLinearSVC, ConsensusLogisticRegression
from auqadmm.estimators.cox import ConsensusCox
from auqadmm.estimators.elastic_net import ConsensusElasticNet, ConsensusLasso
from auqadmm.estimators.elastic_net_cv import ConsensusElasticNetCV, ConsensusLassoCV
from auqadmm.estimators.glm import ConsensusGLM
from auqadmm.estimators.logistic_cv import ConsensusLogisticRegressionCV
from auqadmm.estimators.path import Path, enet_path
from auqadmm.estimators.regressors import (
    ConsensusHuberRegressor,
    ConsensusPoissonRegressor,
    ConsensusQuantileRegressor,
)
from auqadmm.estimators.ridge import ConsensusRidge, ConsensusRidgeCV

__all__ = [
    "ConsensusCox",
    "ConsensusElasticNet",
    "ConsensusElasticNetCV",
    "ConsensusGLM",
    "ConsensusHuberRegressor",
    "ConsensusLasso",
    "ConsensusLassoCV",
    "ConsensusLinearSVC",
    "ConsensusLogisticRegression",
    "ConsensusLogisticRegressionCV",
    "ConsensusPoissonRegressor",
    "ConsensusQuantileRegressor",
    "ConsensusRidge",
    "ConsensusRidgeCV",
    "Path",
    "enet_path",
]
