"""Correlated Gaussian columns, a tenth of them with a say, and noise."""

import numpy as np
from benchopt import BaseDataset


class Dataset(BaseDataset):
    name = "simulated"
    requirements = ["numpy"]
    parameters = {"n_samples, n_features": [(2000, 100), (300, 1000)], "correlation": [0.3]}
    test_parameters = {"n_samples, n_features": [(40, 10)]}

    def get_data(self):
        rng = np.random.default_rng(self.get_seed())
        common = rng.standard_normal((self.n_samples, 1))
        own = rng.standard_normal((self.n_samples, self.n_features))
        X = np.sqrt(1 - self.correlation) * own + np.sqrt(self.correlation) * common
        w = np.zeros(self.n_features)
        w[::10] = rng.standard_normal(len(w[::10]))
        return {"X": X, "y": X @ w + rng.standard_normal(self.n_samples)}
