"""Ours: rows in `blocks` workers of one process."""

import warnings

from benchopt import BaseSolver
from sklearn.exceptions import ConvergenceWarning

from auqadmm import ConsensusElasticNet


class Solver(BaseSolver):
    name = "auqadmm"
    requirements = ["auqadmm"]
    parameters = {"blocks": [4], "method": ["auto"]}
    sampling_strategy = "tolerance"

    def set_objective(self, X, y, alpha, l1_ratio):
        self.X, self.y = X, y
        self.model = ConsensusElasticNet(
            alpha, l1_ratio=l1_ratio, fit_intercept=False, n_blocks=self.blocks, method=self.method
        )

    def warm_up(self):
        self.run_once(1e-2)

    def run(self, tolerance):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            self.model.set_params(tol=max(tolerance, 1e-18)).fit(self.X, self.y)

    def get_result(self):
        return {"w": self.model.coef_}
