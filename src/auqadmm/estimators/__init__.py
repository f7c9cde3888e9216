"""scikit-learn estimators: `fit(X, y, sites=...)`, each worker keeping its own rows.

ConsensusElasticNet             linear regression, elastic net
ConsensusElasticNetCV           the same, strength chosen by cross-validation along a path
ConsensusLogisticRegression     two or more classes, l1, l2 or elastic net
ConsensusLinearSVC              support vector machine with a smoothed hinge
enet_path                       elastic nets for many strengths, in one run
"""

from auqadmm.estimators.elastic_net import ConsensusElasticNet
from auqadmm.estimators.elastic_net_cv import ConsensusElasticNetCV
from auqadmm.estimators.logistic import ConsensusLogisticRegression
from auqadmm.estimators.path import Path, enet_path
from auqadmm.estimators.svc import ConsensusLinearSVC

__all__ = [
    "ConsensusElasticNet",
    "ConsensusElasticNetCV",
    "ConsensusLinearSVC",
    "ConsensusLogisticRegression",
    "Path",
    "enet_path",
]
