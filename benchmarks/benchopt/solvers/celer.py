"""celer: working sets and extrapolated dual points."""

import warnings

from benchopt import BaseSolver
from celer import ElasticNet
from sklearn.exceptions import ConvergenceWarning


class Solver(BaseSolver):
    name = "celer"
    requirements = ["celer"]
    sampling_strategy = "tolerance"

    def set_objective(self, X, y, alpha, l1_ratio):
        self.X, self.y = X, y
        self.model = ElasticNet(alpha, l1_ratio=l1_ratio, fit_intercept=False, max_iter=100_000)

    def warm_up(self):
        self.run_once(1e-2)

    def run(self, tolerance):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            self.model.set_params(tol=max(tolerance, 1e-14)).fit(self.X, self.y)

    def get_result(self):
        return {"w": self.model.coef_}
