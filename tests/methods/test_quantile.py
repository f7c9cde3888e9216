"""Quantile regression against scikit-learn's linear program (the sharp loss) and an optimum of 18 digits (ours)."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
import scipy.sparse
import torch
from sklearn.linear_model import QuantileRegressor

import auqadmm as aq
from auqadmm.problem.quantile import Quantile
from tests.verdict.asking import judge_of
from tests.verdict.optimum import Objective, Optimum, Penalty

REGULARIZERS = {
    "zero": (Penalty(), aq.Zero()),
    "l1": (Penalty(l1=0.03), aq.L1(0.03)),
    "l2": (Penalty(l2=0.02), aq.L2(0.02)),
}


def table(rows=240, columns=5, seed=0, level=3.0, sparse=False):
    """Errors of heavy tails, wider at one end."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, columns))
    if sparse:
        X[rng.random(X.shape) < 0.6] = 0.0
    y = X @ rng.normal(size=columns) + (1 + 0.5 * np.abs(X[:, 0])) * rng.standard_t(3, size=rows) + level
    return X, y, rng.uniform(0.2, 3, size=rows)


def split(X, y, weight=None, parts=4, sparse=False):
    columns = [scipy.sparse.csr_matrix(X) if sparse else X, y, weight]
    return [tuple(c[j::parts] for c in columns if c is not None) for j in range(parts)]


def pose(q, width, penalty="zero", intercept=True, parts=4, weighted=False, sparse=False):
    """The problem, its optimum by the oracle, and the rows."""
    X, y, weight = table(sparse=sparse, level=3.0 if intercept else 0.0)
    eps = width * float(y.std())
    known, g = REGULARIZERS[penalty]
    blocks = split(X, y, weight if weighted else None, parts, sparse)
    problem = aq.Problem(aq.Quantile(q, eps=eps, reduction="pooled"), g, blocks, intercept=intercept)
    objective = Objective.of(blocks, "quantile", known, reduction="pooled", intercept=intercept, width=eps, q=q)
    return problem, Optimum.of(objective), (X, y, weight if weighted else None)


def sharp(q, rows, l1, intercept):
    """The least mean pinball loss plus l1, by linear programming."""
    X, y, weight = rows
    model = QuantileRegressor(quantile=q, alpha=l1, fit_intercept=intercept).fit(X, y, sample_weight=weight)
    r = y - model.predict(X)
    return np.average(np.maximum(q * r, (q - 1) * r), weights=weight) + l1 * np.abs(model.coef_).sum()


@pytest.mark.thin(2)
@pytest.mark.parametrize(
    ("penalty", "intercept", "parts", "weighted", "sparse"),
    [
        ("zero", True, 1, False, False),
        ("zero", False, 20, True, False),
        ("l1", True, 20, False, True),
        ("l1", False, 1, True, False),
        ("l2", True, 20, True, True),
        ("l2", False, 1, False, False),
    ],
)
@pytest.mark.parametrize(("q", "width"), [(0.5, 1e-1), (0.1, 1e-2), (0.95, 1e-2), (0.5, 1e-3), (0.95, 1e-3)])
def test_newton_finds_the_optimum(q, width, penalty, intercept, parts, weighted, sparse):
    problem, best, rows = pose(q, width, penalty, intercept, parts, weighted, sparse)
    run = aq.solve(problem, "newton", certificate_tol=1e-10, max_iter=60)
    found = run.certificate
    assert run.status == "converged", run.message
    assert best.relative(run.v) <= 1e-10
    if found.evidence == "proved":
        assert best.gap(run.v) <= found.gap_bound + 4e-16 * abs(found.objective)
    if penalty != "l2":
        least = sharp(q, rows, REGULARIZERS[penalty][0].l1, intercept)
        eps = problem.loss.eps
        assert -1e-9 * least <= found.objective - least <= 0.5 * eps + 1e-9 * least


@pytest.mark.parametrize("penalty", ["l2", "l1"])
@pytest.mark.parametrize("method", ["auq-lr", "auq-admm", "c-admm", "fista", "lbfgs", "owl-qn", "lbfgs-w", "auto"])
@pytest.mark.thin(2)
def test_every_method_arrives_and_does_not_flatter(method, penalty):
    if penalty == "l1" and method.startswith("lbfgs"):
        pytest.skip("needs a smooth regularizer")
    problem, best, _ = pose(0.8, 0.1, penalty)
    run = aq.solve(problem, method, certificate_tol=1e-6, max_iter=2000)
    found = run.certificate
    assert run.status == "converged", run.message
    assert best.relative(run.v) <= 1e-6
    assert found.evidence != "proved" or best.gap(run.v) <= found.gap_bound + 4e-16 * abs(found.objective)


def test_wide_corners_first_save_most_rounds(monkeypatch):
    problem, _, _ = pose(0.9, 1e-4)
    eased = aq.solve(problem, "newton", max_iter=300)
    monkeypatch.setattr(Quantile, "easing", lambda self, spread: 1.0)
    plain = aq.solve(problem, "newton", max_iter=300)
    assert eased.status == "converged"
    assert 2 * eased.n_iter <= plain.n_iter


@pytest.mark.parametrize("method", ["newton", "auto", "auq-lr"])
def test_units_of_the_target_do_not_matter(method):
    X, y, _ = table()
    runs = []
    for unit in (1.0, 1024.0):
        loss = aq.Quantile(0.3, eps=0.01 * unit, reduction="pooled")
        problem = aq.Problem(loss, aq.L2(1e-3 / unit), split(X, unit * y), intercept=True)
        runs.append(aq.solve(problem, method))
    assert abs(runs[0].n_iter - runs[1].n_iter) <= (2 if method == "auq-lr" else 0)
    torch.testing.assert_close(1024 * runs[0].v, runs[1].v, rtol=1e-2 if method == "auq-lr" else 1e-9, atol=0)
    if method == "auto":
        estimates = [[(e.method, e.rounds) for e in run.choice.estimates] for run in runs]
        for one, other in zip(*estimates, strict=True):
            assert one[0] == other[0]
            assert one[1] == pytest.approx(other[1])


def test_auq_lr_needs_few_rounds_whatever_the_reduction():
    """With a variance in units of the loss, 43 iterations for means and 74 pooled."""
    X, y, _ = table()
    for reduction in ("sum", "mean", "pooled"):
        loss = aq.Quantile(0.5, eps=0.01, reduction=reduction)
        run = aq.solve(aq.Problem(loss, aq.Zero(), split(X, y), intercept=True), "auq-lr", certificate_tol=1e-6)
        assert run.status == "converged"
        assert run.n_iter <= 30


@pytest.mark.parametrize(
    ("q", "eps", "y"),
    [
        (0.5, 0.01, np.random.default_rng(0).lognormal(0, 2, size=400)),
        (0.999, 0.01, np.random.default_rng(0).lognormal(0, 2, size=4000)),
        (0.02, 50.0, np.random.default_rng(1).normal(size=60)),
        (1 - 1e-6, 0.01, np.append(np.zeros(9999), 1.0)),
    ],
    ids=["median", "far out", "wide corner", "very far out"],
)
def test_the_best_constant_is_found(q, eps, y):
    problem = aq.Problem(aq.Quantile(q, eps=eps), aq.Zero(), [(np.zeros((len(y), 1)), y)], intercept=True)
    judge = judge_of(problem)
    judge.begin()
    judge.ask_null()
    objective = Objective("quantile", np.zeros((len(y), 0)), y, np.ones(len(y)), intercept=True, width=eps, q=q)
    assert judge.null == pytest.approx(float(Optimum.of(objective).value), rel=1e-8)


# ---------------------------------------------------------------------- constants of the proofs
@pytest.mark.parametrize("q", [0.5, 0.03])
@pytest.mark.parametrize("eps", [1.0, 0.02])
def test_curvature_changes_as_fast_as_is_said_and_no_faster(q, eps):
    """φ‴ by differentiating the printed formula: 3/(2ε) bounds |φ‴|/φ″ and is attained at |r| = ε."""

    def phi(r):
        return (mpmath.mpf(q) - 0.5) * r + mpmath.sqrt(r * r + mpmath.mpf(eps) ** 2) / 2

    loss = aq.Quantile(q, eps=eps)
    with mpmath.workdps(40):
        ratios = {}
        for r in (-100, -3, -1, -0.9, -0.3, 0.1, 0.7, 1, 1.1, 2, 50):
            second, third = (mpmath.diff(phi, r * eps, n) for n in (2, 3))
            ratios[r] = float(abs(third) / second)
            z, y = torch.tensor([[-r * eps]], dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
            assert float(loss.row_curvature(z, y).diagonal()) == pytest.approx(float(second), rel=1e-9)
            assert float(second) <= loss.bend
    assert max(ratios.values()) <= loss.concordance * (1 + 1e-9)
    assert ratios[1] == pytest.approx(loss.concordance)
    assert ratios[-1] == pytest.approx(loss.concordance)


@pytest.mark.parametrize("q", [0.5, 0.2, 0.99])
def test_it_lies_above_the_pinball_loss_by_half_a_width_at_most(q):
    loss, r = aq.Quantile(q, eps=0.1), torch.linspace(-3, 3, 601, dtype=torch.float64)
    excess = loss.row_value(-r[:, None], torch.zeros_like(r)) - torch.maximum(q * r, (q - 1) * r)
    assert float(excess.min()) >= 0
    assert float(excess.max()) == pytest.approx(0.05)
    assert int(excess.argmax()) == 300
    least = loss.row_value(-r[:, None], torch.zeros_like(r)).min()
    assert float(least) == pytest.approx(0.1 * math.sqrt(q * (1 - q)), rel=5e-3)
    assert float(least) >= float(loss.row_infimum(r)[0])
