"""Small local problems, weights of every kind, and a naive solver: one block at a time, numpy and scipy only."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import scipy.optimize
import scipy.sparse
import scipy.special
import torch
from torch import Tensor

import auqadmm as aq
from auqadmm.blocks.shard import build_shard
from auqadmm.local import LocalProblem
from auqadmm.metrics.weights import Diagonal, Scalar

CPU = torch.device("cpu")
FEATURES = 5
EVEN, UNEVEN = (8, 8, 8), (11, 3, 0, 7, 10)
LOSSES = ("LeastSquares", "Multinomial", "Logistic", "SmoothedHinge", "Huber", "Poisson", "Quantile")
WEIGHTS = ("scalar", "diagonal", "dense", "curved")


@dataclass(frozen=True)
class Dense:
    """A test double: W_j any positive definite matrix. M (B, n, n), n = m·C."""

    M: Tensor
    features: int
    columns: int

    def apply(self, x: Tensor) -> Tensor:
        return (self.M @ x.reshape(*self.M.shape[:2], -1)).reshape(x.shape)

    def solve(self, x: Tensor) -> Tensor:
        return torch.linalg.solve(self.M, x.reshape(*self.M.shape[:2], -1)).reshape(x.shape)

    def diagonal(self) -> Tensor:
        return self.M.diagonal(dim1=1, dim2=2).reshape(-1, self.features, self.columns)

    def dense(self) -> Tensor:
        return self.M

    def take(self, index) -> Dense:
        return replace(self, M=self.M[index])


class Curved(Dense):
    """The same, said to be a model of the curvature: it preconditions, and its inverse measures gradients."""

    curved = True


def data(loss: str, sizes, features=FEATURES, seed=0, weighted=False):
    """One (X, y[, weight]) per size; for the multinomial loss each block holds one class only."""
    rng = np.random.default_rng(seed)
    truth = rng.normal(size=features)
    blocks = []
    for j, n in enumerate(sizes):
        X = rng.normal(size=(n, features)) / np.sqrt(features)
        z = X @ truth
        y = {
            "Multinomial": lambda n=n, j=j: np.full(n, j % 3),
            "Poisson": lambda z=z: rng.poisson(np.exp(z)).astype(float),
            "Logistic": lambda z=z: np.where(z + rng.normal(size=len(z)) > 0, 1, -1),
            "SmoothedHinge": lambda z=z: np.where(z + rng.normal(size=len(z)) > 0, 1, -1),
        }.get(loss, lambda z=z: 2 * z + rng.normal(size=len(z)))()
        blocks.append((X, y, rng.uniform(0.5, 2, size=n)) if weighted else (X, y))
    return blocks


def problem_of(loss: str, sizes=EVEN, **options):
    """Even blocks: sums. Other sizes: means, with sample weights, which differ from row to row."""
    even = len(set(sizes)) == 1
    model = getattr(aq, loss)(reduction="sum" if even else "mean")
    return aq.Problem(model, aq.Zero(), data(loss, sizes, weighted=not even, **options))


def shard_of(loss: str, sizes=EVEN, dtype=torch.float64, **options):
    return problem_of(loss, sizes, **options).shard(dtype, CPU)


def sparse(problem):
    """The same problem with its blocks stored sparse."""
    blocks = [(scipy.sparse.csr_matrix(b.X), b.y, b.weight) for b in problem.blocks]
    return aq.Problem(problem.loss, problem.regularizer, blocks)


def alone(problem, j, dtype=torch.float64):
    """Block j as a shard of its own, in the same census."""
    return build_shard([problem.blocks[j]], [problem._targets[j]], problem.loss, problem.census, [j], dtype, CPU)


def weights_of(kind: str, shape, seed=1, dtype=torch.float64):
    B, m, C = shape
    coins = torch.Generator().manual_seed(seed)
    if kind == "scalar":
        return Scalar((0.5 + torch.rand(B, generator=coins, dtype=torch.float64)).to(dtype), m, C)
    if kind == "diagonal":
        return Diagonal((0.2 + 2 * torch.rand(shape, generator=coins, dtype=torch.float64)).to(dtype))
    root = torch.randn(B, m * C, m * C, generator=coins, dtype=torch.float64)
    double = Curved if kind == "curved" else Dense
    return double((root @ root.mT / (m * C) + 0.3 * torch.eye(m * C, dtype=torch.float64)).to(dtype), m, C)


def local_problem(shard, kind="scalar", seed=2):
    coins = torch.Generator().manual_seed(seed)
    v = torch.randn(shard.shape[1:], generator=coins, dtype=torch.float64)
    lam = 0.3 * torch.randn(shard.shape, generator=coins, dtype=torch.float64)
    W = weights_of(kind, shard.shape, dtype=shard.dtype)
    return LocalProblem(shard, W, shard.expand(v), lam.to(shard.dtype))


def start_of(shard, seed=3):
    coins = torch.Generator().manual_seed(seed)
    return torch.randn(shard.shape, generator=coins, dtype=torch.float64).to(shard.dtype)


def gradient(local, u) -> Tensor:
    """‖∇F_j(u)‖ of every block, evaluated afresh."""
    return local.norm(local.grad(local.shard.linearize(u)))


# ------------------------------------------------------------------ the naive twin
def rows(loss: str, z: np.ndarray, y: np.ndarray):
    """φ, φ' and φ'' of one-column losses, as printed in textbooks."""
    match loss:
        case "LeastSquares":
            return 0.5 * (z - y) ** 2, z - y, np.ones_like(z)
        case "Logistic":
            s = scipy.special.expit(-y * z)
            return np.logaddexp(0, -y * z), -y * s, s * (1 - s)
        case "SmoothedHinge":
            t, e = 1 - y * z, 1 / 5000
            root = np.sqrt(t**2 + e**2)
            return (t + root) / 2, -y * (1 + t / root) / 2, e**2 / (2 * root**3)
        case "Huber":
            r = z - y
            near = np.abs(r) <= 1
            return np.where(near, r**2 / 2, np.abs(r) - 0.5), np.clip(r, -1, 1), near.astype(float)
        case "Quantile":
            r, e = y - z, 0.01
            root = np.sqrt(r**2 + e**2)
            return root / 2, -r / root / 2, e**2 / (2 * root**3)
        case "Poisson":
            return np.exp(z) - y * z, np.exp(z) - y, np.exp(z)
    raise AssertionError(loss)


def naive_f(loss: str, x, X, y, c, columns):
    """f, ∇f and ∇²f of one block at x (m·C,)."""
    if loss != "Multinomial":
        value, slope, curvature = rows(loss, X @ x, y)
        return c @ value, X.T @ (c * slope), X.T @ ((c * curvature)[:, None] * X)
    Z = X @ x.reshape(-1, columns)
    P = scipy.special.softmax(Z, axis=1)
    value = scipy.special.logsumexp(Z, axis=1) - Z[np.arange(len(y)), y]
    grad = X.T @ (c[:, None] * (P - np.eye(columns)[y]))
    hess = sum(
        (ci * np.kron(np.outer(xi, xi), np.diag(p) - np.outer(p, p)) for xi, ci, p in zip(X, c, P, strict=True)),
        np.zeros((x.size, x.size)),
    )
    return c @ value, grad.ravel(), hess


def naive_minimiser(loss: str, block, y, reduction, W, v, lam, columns):
    """argmin f(u) − ⟨λ, u − v⟩ + ½‖u − v‖²_W for one block, by a linear solve or by scipy's trust region."""
    X, c = block.X, block.weight
    if reduction == "mean" and len(c):
        c = c / c.sum()
    if loss == "LeastSquares":
        return np.linalg.solve(X.T @ (c[:, None] * X) + W, X.T @ (c * y) + W @ v + lam)

    def F(x):
        value, grad, hess = naive_f(loss, x, X, y, c, columns)
        d = x - v
        return value - lam @ d + 0.5 * d @ W @ d, grad + W @ d - lam, hess + W

    found = scipy.optimize.minimize(
        lambda x: F(x)[0],
        v + np.linalg.solve(W, lam),
        jac=lambda x: F(x)[1],
        hess=lambda x: F(x)[2],
        method="trust-exact",
        options={"gtol": 1e-10, "maxiter": 5000},
    )
    x = found.x
    for _ in range(3):  # the trust region works on values, which are flat to rounding before the gradient is
        _, grad, hess = F(x)
        trial = x - np.linalg.solve(hess, grad)
        x = trial if np.linalg.norm(F(trial)[1]) < np.linalg.norm(grad) else x
    assert np.linalg.norm(F(x)[1]) < 1e-8
    return x


@cache
def oracle(loss: str, sizes, kind: str) -> Tensor:
    """The minimisers of `local_problem(shard_of(loss, sizes), kind)`, (B, m, C)."""
    problem = problem_of(loss, sizes)
    shard = problem.shard(torch.float64, CPU)
    local = local_problem(shard, kind)
    found = [
        naive_minimiser(
            loss,
            problem.blocks[j],
            problem._targets[j],
            problem.loss.reduction,
            local.W.dense()[j].numpy(),
            local.v[j].flatten().numpy(),
            local.lam[j].flatten().numpy(),
            shard.shape[2],
        )
        for j in range(shard.blocks)
    ]
    return torch.from_numpy(np.stack(found)).reshape(shard.shape)
