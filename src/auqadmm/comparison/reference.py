"""A reference optimum from other software, to compare methods at equal distance from it.

    g smooth (Zero, L2)                         scipy's L-BFGS-B, then Newton steps on the pooled problem
    g = l1‖v‖₁ + l2/2‖v‖², least squares        scikit-learn's coordinate descent on the pooled rows

Both solve the pooled problem, without consensus. The solution is certified (S10) before it is returned.

Shapes: N blocks, m features (the intercept's row is the last), C columns; v (m, C), x = v flat.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import scipy.optimize
import scipy.sparse
import torch
from scipy.sparse.linalg import LinearOperator, cg
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import ElasticNet as PooledElasticNet
from torch import Tensor

from auqadmm.blocks.shard import Shard
from auqadmm.core.reduce import Reduce
from auqadmm.engines import LocalEngine
from auqadmm.problem import L1, L2, ElasticNet, InputError, LeastSquares, Problem, Zero
from auqadmm.problem.ingest import read_reals
from auqadmm.verdict.certifier import Certifier

KKT_TOL = 1e-8  # relative residual at which a solution counts as the optimum


@dataclass(frozen=True, eq=False)
class Reference:
    """A certified optimum: v (m, C), its objective, its relative KKT residual."""

    v: Tensor
    objective: float
    kkt: float


def reference(problem: Problem) -> Reference:
    """The optimum of a problem, from scipy or scikit-learn.

    Parameters
    ----------
    problem
        Any loss with `Zero` or `L2`, or `LeastSquares` with `L1` or `ElasticNet`.

    Returns
    -------
    Reference
        With a relative KKT residual of at most 1e-8.
    """
    strengths = _strengths(problem)
    shard = problem.shard(torch.float64, torch.device("cpu"))
    if strengths[0] == 0:
        v = _smooth(problem, shard, strengths[1])
    elif isinstance(problem.loss, LeastSquares):
        v = _coordinate_descent(problem, *strengths)
    else:
        raise InputError(
            f"No reference solver for {type(problem.loss).__name__} with {type(problem.regularizer).__name__}: "
            "with an l1 term the loss must be LeastSquares."
        )
    certificate = Certifier(Reduce(LocalEngine(shard)), problem.g, torch.zeros_like(v)).certify(v)
    if not certificate.kkt <= KKT_TOL:  # also refuses NaN
        raise RuntimeError(
            f"The reference solver stopped at a KKT residual of {certificate.kkt:.1e}, above {KKT_TOL:.0e}: "
            "the problem is too badly conditioned or has no minimum; rescale the features or regularise more."
        )
    return Reference(v, certificate.objective, certificate.kkt)


def _strengths(problem: Problem) -> tuple[float, float]:
    """(l1, l2) of g = l1‖v‖₁ + l2/2‖v‖²."""
    match problem.regularizer:
        case Zero():
            return 0.0, 0.0
        case L1(strength):
            return strength, 0.0
        case L2(strength):
            return 0.0, strength
        case ElasticNet(l1, l2):
            return l1, l2
        case other:
            raise InputError(f"No reference solver for {type(other).__name__}; known are Zero, L1, L2 and ElasticNet.")


# ---------------------------------------------------------------------- smooth g
class _Pooled:
    """F(x) = Σ_j f_j(x) + l2/2‖x‖² and its derivatives in scipy's form; an intercept is not penalised."""

    def __init__(self, problem: Problem, shard: Shard, l2: float) -> None:
        census = problem.census
        self.shard, self.shape, self.size = shard, (census.features, census.columns), census.unknowns
        penalty = np.full(self.shape, l2)
        if census.intercept:
            penalty[-1] = 0.0
        self.penalty = penalty.ravel()

    def everywhere(self, x: np.ndarray) -> Tensor:
        return self.shard.expand(torch.from_numpy(x.reshape(self.shape)))

    def value_and_grad(self, x: np.ndarray) -> tuple[float, np.ndarray]:
        point = self.shard.linearize(self.everywhere(x))
        value = float(point.value.sum()) + 0.5 * float(self.penalty @ x**2)
        return value, point.grad.sum(0).numpy().ravel() + self.penalty * x

    def newton_step(self, x: np.ndarray, grad: np.ndarray) -> np.ndarray:
        point = self.shard.linearize(self.everywhere(x))

        def product(p: np.ndarray) -> np.ndarray:
            return point.hvp(self.everywhere(p)).sum(0).numpy().ravel() + self.penalty * p.ravel()

        H = LinearOperator((self.size, self.size), matvec=product, dtype=np.float64)
        return cg(H, -grad, rtol=1e-10, maxiter=10 * self.size)[0]


def _smooth(problem: Problem, shard: Shard, l2: float) -> Tensor:
    F = _Pooled(problem, shard, l2)
    options = {"maxiter": 5000, "maxfun": 10000, "maxcor": 30, "ftol": 1e-12, "gtol": 1e-6}
    start = np.zeros(F.size)
    x = scipy.optimize.minimize(F.value_and_grad, start, jac=True, method="L-BFGS-B", options=options).x
    # L-BFGS-B compares function values, which are accurate to half the digits only; Newton steps, taken
    # as long as they shorten the gradient, find the other half
    grad = F.value_and_grad(x)[1]
    for _ in range(10):
        tried = x + F.newton_step(x, grad)
        new = F.value_and_grad(tried)[1]
        if not np.linalg.norm(new) < 0.5 * np.linalg.norm(grad):
            break
        x, grad = tried, new
    return torch.from_numpy(x.reshape(F.shape))


# ---------------------------------------------------------------------- least squares with an l1 term
def _coordinate_descent(problem: Problem, l1: float, l2: float) -> Tensor:
    X, y, c = _pooled_rows(problem)
    # scikit-learn minimises Σ c_i r_i² / (2 Σ c_i) + alpha·(l1_ratio‖v‖₁ + (1 − l1_ratio)/2‖v‖²)
    model = PooledElasticNet(
        alpha=(l1 + l2) / c.sum(),
        l1_ratio=l1 / (l1 + l2),
        fit_intercept=problem.intercept,
        tol=1e-14,
        max_iter=200_000,
    )
    with warnings.catch_warnings():
        # its own gap test can fall short by rounding alone; the certificate is what decides
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(X, y, sample_weight=c)
    coef = np.append(model.coef_, model.intercept_) if problem.intercept else model.coef_
    return torch.from_numpy(np.asarray(coef, dtype=float)).reshape(-1, 1)


def _pooled_rows(problem: Problem) -> tuple[np.ndarray | scipy.sparse.csr_matrix, np.ndarray, np.ndarray]:
    """All rows with their targets and their weights c_i in Σ_i c_i ½(x_iᵀv − y_i)²."""
    blocks, reduction = problem.blocks, problem.loss.reduction
    scale = {
        "sum": lambda b: 1.0,
        "mean": lambda b: b.weight.sum(),
        "pooled": lambda b: problem.census.weight_total,
    }
    # a block of weight 0 adds nothing
    c = [b.weight / (scale[reduction](b) or 1.0) for b in blocks]
    mixed = any(scipy.sparse.issparse(b.X) for b in blocks)
    X = scipy.sparse.vstack([b.X for b in blocks], format="csc") if mixed else np.vstack([b.X for b in blocks])
    y = np.concatenate([read_reals(b.name, b.y) for b in blocks])
    return X, y, np.concatenate(c)
