"""The elastic net: minimise over w   1/(2n)‖Xw − y‖² + α·ρ‖w‖₁ + α(1 − ρ)/2 ‖w‖², ρ = l1_ratio, α = reg·α_max.

α_max is the smallest strength that leaves all of w at zero. `duality_gap` is proved by the scaled residual.
"""

import numpy as np
from benchopt import BaseObjective


class Objective(BaseObjective):
    name = "Elastic net"
    min_benchopt_version = "1.7"
    requirements = ["numpy"]
    parameters = {"reg": [0.1, 0.01], "l1_ratio": [1.0, 0.5]}

    def set_data(self, X, y):
        self.X, self.y = X, y
        self.alpha = self.reg * np.max(np.abs(X.T @ y)) / (len(y) * self.l1_ratio)

    def get_objective(self):
        return {"X": self.X, "y": self.y, "alpha": self.alpha, "l1_ratio": self.l1_ratio}

    def evaluate_result(self, w):
        n = len(self.y)
        l1, l2 = self.alpha * self.l1_ratio, self.alpha * (1 - self.l1_ratio)
        residual = self.y - self.X @ w
        value = residual @ residual / (2 * n) + l1 * np.abs(w).sum() + 0.5 * l2 * w @ w
        # with l2 the penalty's conjugate is finite everywhere; without, the residual is scaled into its domain
        slopes = np.abs(self.X.T @ residual) / n
        scale = 1.0 if l2 > 0 else min(1.0, l1 / max(slopes.max(), 1e-300))
        over = np.maximum(scale * slopes - l1, 0.0)
        dual = scale * (residual @ self.y) / n - 0.5 * scale**2 * (residual @ residual) / n
        dual -= (over @ over) / (2 * l2) if l2 > 0 else 0.0
        return {"value": float(value), "duality_gap": float(value - dual), "nonzeros": int(np.count_nonzero(w))}

    def get_one_result(self):
        return {"w": np.zeros(self.X.shape[1])}
