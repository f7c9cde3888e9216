"""The duality gap that comes with every round of Newton's method, and what it screens, against scikit-learn and tight
runs: a bound at every iterate, and no column ever screened that the optimum has."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.sparse
import scipy.special
import torch
from sklearn.linear_model import ElasticNet, Lasso

import auqadmm as aq
from auqadmm.methods.newton import state as newton_state
from auqadmm.methods.newton import working_set as duals
from tests.verdict.asking import judge_of

SMALL = 60.0  # a round cost that makes working sets of ten unknowns


def table(kind, rows=120, columns=240, seed=0, offset=0.0):
    rng = np.random.default_rng(seed)
    X = scipy.sparse.random(rows, columns, density=0.15, format="csr", random_state=seed, data_rvs=rng.standard_normal)
    X = X.toarray() * 10.0 ** rng.uniform(-1, 1, columns) + offset
    w = np.zeros(columns)
    w[rng.choice(columns, 8, replace=False)] = rng.normal(0, 2, 8)
    z = X @ (w / np.maximum(X.std(0), 1e-9))
    z = (z - z.mean()) / z.std() + 0.3 * rng.normal(size=rows)
    if kind == "classes":
        return X, np.digitize(z, [-0.5, 0.5])
    if kind == "counts":
        return X, rng.poisson(np.exp(0.5 * z)).astype(float)
    return X, z if kind == "real" else np.sign(z + 0.3)


def blocks(X, y, parts=3, weighted=False):
    if not weighted:
        return [(X[j::parts], y[j::parts]) for j in range(parts)]
    weight = np.random.default_rng(5).uniform(0.2, 3, len(y))
    return [(X[j::parts], y[j::parts], weight[j::parts]) for j in range(parts)]


GROUPS = np.arange(240) // 4
CASES = {
    "lasso": (aq.LeastSquares(), "real", aq.L1(4.0), False),
    "lasso, intercept": (aq.LeastSquares(), "real", aq.L1(4.0), True),
    "lasso, pooled": (aq.LeastSquares(reduction="pooled"), "real", aq.L1(4.0 / 120), True),
    "lasso, means": (aq.LeastSquares(reduction="mean"), "real", aq.L1(0.08), False),
    "logistic": (aq.Logistic(), "signs", aq.L1(2.0), False),
    "logistic, intercept": (aq.Logistic(), "signs", aq.L1(2.0), True),
    "logistic, pooled": (aq.Logistic(reduction="pooled"), "signs", aq.L1(2.0 / 120), True),
    "elastic net": (aq.Logistic(), "signs", aq.ElasticNet(2.0, 0.5), False),
    "elastic net, intercept": (aq.LeastSquares(), "real", aq.ElasticNet(3.0, 0.5), True),
    "groups": (aq.LeastSquares(), "real", aq.GroupLasso(6.0, GROUPS), False),
    "groups, intercept": (aq.Logistic(), "signs", aq.GroupLasso(2.0, GROUPS), True),
    "classes": (aq.Multinomial(), "classes", aq.L1(2.0), False),
    "classes, intercept": (aq.Multinomial(), "classes", aq.L1(2.0), True),
    "classes, rows": (aq.Multinomial(), "classes", aq.GroupLasso(1.5), False),
    "counts": (aq.Poisson(), "counts", aq.L1(4.0), True),
    "knee": (aq.Huber(0.5), "real", aq.L1(2.0), False),
    "quantile": (aq.Quantile(0.7, eps=0.1), "real", aq.L1(2.0), False),
    "quantile, intercept": (aq.Quantile(0.7, eps=0.1), "real", aq.L1(2.0), True),
}


def looked(problem, **options):
    """(F, gap, unknowns that are out) of every iterate, and the run."""
    seen = []

    def look(event):
        here = event.state.shared.memory
        gap = None if here.dual is None else here.dual.gap
        seen.append((here.F, gap, None if here.out is None else here.out.clone(), here))

    options = {"certificate_tol": 1e-7, "max_iter": 100} | options
    run = aq.solve(problem, aq.methods.Newton(SMALL), callbacks=[look], **options)
    return seen, run


@pytest.mark.thin(3)
@pytest.mark.parametrize("weighted", [False, True], ids=["", "weighted"])
@pytest.mark.parametrize("name", CASES)
def test_every_round_tells_a_bound_and_screens_nothing_that_the_optimum_has(name, weighted):
    loss, kind, g, intercept = CASES[name]
    X, y = table(kind, offset=3.0 if intercept else 0.0)
    problem = aq.Problem(loss, g, blocks(X, y, weighted=weighted), intercept=intercept)
    seen, run = looked(problem)
    assert run.status == "converged", run.message
    best = aq.solve(problem, aq.methods.Newton(SMALL), certificate_tol=1e-12, max_iter=200)
    told = [s for s in seen if s[1] is not None]
    assert told
    for F, gap, _, _ in told:
        assert F - best.certificate.objective <= gap + 1e-12 * abs(F)
    last = told[-1]
    assert last[1] <= 1e-7 * abs(last[0])
    if math.isinf(loss.bend):
        assert all(s[2] is None for s in seen)
        return
    active = best.v.abs() > 1e-9 * best.v.abs().max()
    for _, _, out, _ in seen:
        if out is not None:
            assert not bool((out & active).any())
    zeros = int((best.v == 0).sum())
    assert zeros > 80
    assert seen[-1][3].screened >= 0.9 * zeros  # all but those at the edge


@pytest.mark.parametrize("name", ["lasso, intercept", "logistic", "elastic net", "groups, intercept", "classes"])
@pytest.mark.thin(2)
def test_the_answer_is_the_one_without_screening(name, monkeypatch):
    loss, kind, g, intercept = CASES[name]
    X, y = table(kind)
    problem = aq.Problem(loss, g, blocks(X, y), intercept=intercept)
    ours = aq.solve(problem, aq.methods.Newton(SMALL), certificate_tol=1e-13, max_iter=200)
    rounds = aq.solve(problem, aq.methods.Newton(SMALL), certificate_tol=1e-8).history[-1].rounds
    monkeypatch.setattr(duals.DualBound, "zero", lambda *_: None)
    plain = aq.solve(problem, aq.methods.Newton(SMALL), certificate_tol=1e-13, max_iter=200)
    np.testing.assert_allclose(ours.v.numpy(), plain.v.numpy(), atol=1e-7 * float(plain.v.abs().max()))
    assert rounds <= aq.solve(problem, aq.methods.Newton(SMALL), certificate_tol=1e-8).history[-1].rounds


def wrongly_screened(problem, active):
    return any(bool((out & active).any()) for _, _, out, _ in looked(problem)[0] if out is not None)


def test_a_radius_that_is_too_small_would_be_noticed(monkeypatch):
    """A tenth of the radius screens columns that the optimum has: the tests above can fail."""
    found = []
    for seed in range(3, 9):
        X, y = table("real", seed=seed)
        problem = aq.Problem(aq.LeastSquares(), aq.L1(2.0), blocks(X, y))
        active = aq.solve(problem, "newton", certificate_tol=1e-12).v != 0
        assert not wrongly_screened(problem, active)
        with monkeypatch.context() as wrong:
            wrong.setattr(aq.LeastSquares, "bend", 0.01)
            found.append(wrongly_screened(problem, active))
    assert any(found)


def test_sparse_tables_against_scikit_learn():
    rng = np.random.default_rng(1)
    X = scipy.sparse.random(400, 4000, density=0.01, format="csr", random_state=1, data_rvs=rng.standard_normal)
    z = X[:, :30] @ rng.normal(0, 3, 30) + 0.1 * rng.normal(size=400)
    y = np.sign(z + 1e-9)
    n, parts = 400, [slice(j, None, 4) for j in range(4)]

    def solved(loss, g, target, intercept):
        problem = aq.Problem(loss, g, [(X[p], target[p]) for p in parts], intercept=intercept)
        run = aq.solve(problem, "newton", certificate_tol=1e-11, max_iter=100)
        assert run.status == "converged"
        assert run.history[-1].rounds_verdict == 1  # round 0: no gap had to be asked for
        assert sum(row.relative is not None for row in run.history) == run.n_iter
        return run

    for intercept in (False, True):
        run = solved(aq.LeastSquares(reduction="pooled"), aq.L1(0.01), z, intercept)
        oracle = Lasso(alpha=0.01, fit_intercept=intercept, tol=1e-12, max_iter=100_000).fit(X.toarray(), z)
        np.testing.assert_allclose(run.coef, oracle.coef_, atol=1e-6)
        run = solved(aq.LeastSquares(reduction="pooled"), aq.ElasticNet(0.01, 0.01), z, intercept)
        oracle = ElasticNet(alpha=0.02, l1_ratio=0.5, fit_intercept=intercept, tol=1e-12, max_iter=100_000)
        np.testing.assert_allclose(run.coef, oracle.fit(X.toarray(), z).coef_, atol=1e-6)
    run = solved(aq.Logistic(reduction="pooled"), aq.L1(0.004), y, False)
    slopes = X.T @ (-y / (1 + np.exp(y * (X @ run.coef)))) / n  # the conditions of an optimum, column by column
    some = run.coef != 0
    assert 5 < some.sum() < 200
    np.testing.assert_allclose(slopes[some], -0.004 * np.sign(run.coef[some]), rtol=1e-5)
    assert np.abs(slopes[~some]).max() <= 0.004


def conjugates(name, theta, y):
    """Σφ*(θ) by the formulas of textbooks."""
    if name == "squares":
        return float((theta * (0.5 * theta + y)).sum())
    q = -y * theta if name == "logistic" else theta + y
    if name == "counts":
        return float((scipy.special.xlogy(q, q) - q).sum())
    return float((scipy.special.xlogy(q, q) + scipy.special.xlogy(1 - q, 1 - q)).sum())


@pytest.mark.parametrize("far", [0.0, 1e-3, 0.05, 0.3])
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize(
    ("name", "loss", "kind"),
    [("squares", aq.LeastSquares(), "real"), ("logistic", aq.Logistic(), "signs"), ("counts", aq.Poisson(), "counts")],
)
def test_the_bound_is_above_the_gap_with_conjugates_and_near_it(name, loss, kind, intercept, far):
    """Near the optimum and farther away: conjugates that are added up row by row, against the bound that knows sums."""
    X, y = table(kind, columns=20)
    problem = aq.Problem(loss, aq.L1(3.0), blocks(X, y, 1), intercept=intercept)
    judge = judge_of(problem)
    judge.begin()
    columns = judge.columns
    v = aq.solve(problem, "newton", certificate_tol=1e-10).v
    noise = np.random.default_rng(0).normal(size=v.shape) * np.asarray(v != 0)
    v = columns.inside(v + far * float(v.abs().mean()) * torch.from_numpy(noise))
    shard = problem.shard(torch.float64, torch.device("cpu"))
    sums = shard.exact(columns.centre).step(v, None, (), torch.arange(0), None, duals.SCALES)
    A = np.hstack([X, np.ones((len(y), 1))]) if intercept else X
    A = A if columns.centre is None else A - columns.centre.numpy()
    z = (A @ v.numpy())[:, 0]
    slope, bend = {
        "squares": (z - y, np.ones_like(z)),
        "logistic": (-y / (1 + np.exp(y * z)), 1 / (2 + np.exp(z) + np.exp(-z))),
        "counts": (np.exp(z) - y, np.exp(z)),
    }[name]
    B = torch.from_numpy(A.T @ bend) if intercept else None
    found = duals.dual_bound(problem.g, loss, columns, v, sums, B)
    theta = slope - bend * (slope.sum() / bend.sum()) if intercept else slope
    inner, last = (problem.g.inner, -1) if intercept else (problem.g, None)
    w = torch.from_numpy(A.T @ theta)[:last, None]
    s = inner.dual_scale(-w)
    exact = float(sums["f"]) + float(inner.value(v[:last])) + conjugates(name, s * theta, y)
    assert found.gap >= exact - 1e-11 * abs(float(sums["f"]))
    assert found.gap <= (3.0 if far > 0.01 else 1.6) * exact + 1e-9 * abs(float(sums["f"]))
    np.testing.assert_allclose(found.w[:last].numpy(), -s * w.numpy(), rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("far", [1e-3, 0.05])
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize(
    ("name", "loss", "kind"), [("logistic", aq.Logistic(), "signs"), ("counts", aq.Poisson(), "counts")]
)
def test_slopes_that_a_step_foresaw_are_a_dual_point(name, loss, kind, intercept, far):
    """Any step near the optimum whose slopes add up to zero, against conjugates that are added up row by row."""
    X, y = table(kind, columns=20)
    problem = aq.Problem(loss, aq.L1(3.0), blocks(X, y, 1), intercept=intercept)
    judge = judge_of(problem)
    judge.begin()
    columns = judge.columns
    v = columns.inside(aq.solve(problem, "newton", certificate_tol=1e-10).v)
    rng = np.random.default_rng(1)
    d = far * float(v.abs().mean()) * torch.from_numpy(rng.normal(size=v.shape))
    A = np.hstack([X, np.ones((len(y), 1))]) if intercept else X
    A = A if columns.centre is None else A - columns.centre.numpy()
    z = (A @ (v - d).numpy())[:, 0]
    slope, bend = {
        "logistic": (-y / (1 + np.exp(y * z)), 1 / (2 + np.exp(z) + np.exp(-z))),
        "counts": (np.exp(z) - y, np.exp(z)),
    }[name]
    for _ in range(2 if intercept else 0):  # twice, for the digits
        change = float((slope + bend * (A @ d.numpy())[:, 0]).sum() / bend.sum())
        v[-1], d[-1] = v[-1] - change, d[-1] - change
    theta = slope + bend * (A @ d.numpy())[:, 0]
    shard = problem.shard(torch.float64, torch.device("cpu"))
    sums = shard.exact(columns.centre).step(v, d, (), torch.arange(0), None, duals.SCALES, False, True)
    np.testing.assert_allclose(sums["foreseen_G"][:, 0].numpy(), A.T @ theta, atol=1e-10)
    found = duals.predicted_bound(problem.g, loss, columns, v, sums)
    inner, last = (problem.g.inner, -1) if intercept else (problem.g, None)
    s = inner.dual_scale(-torch.from_numpy(A.T @ theta)[:last, None])
    exact = float(sums["f"]) + float(inner.value(v[:last])) + conjugates(name, s * theta, y)
    assert found.gap >= exact - 1e-11 * abs(float(sums["f"]))
    assert found.gap <= 1.6 * exact + 1e-9 * abs(float(sums["f"]))


def test_foreseen_slopes_that_do_not_add_up_to_zero_are_none():
    X, y = table("signs", columns=20)
    problem = aq.Problem(aq.Logistic(), aq.L1(3.0), blocks(X, y, 1), intercept=True)
    judge = judge_of(problem)
    judge.begin()
    v = judge.columns.inside(aq.solve(problem, "newton", certificate_tol=1e-10).v)
    shard = problem.shard(torch.float64, torch.device("cpu"))
    sums = shard.exact(judge.columns.centre).step(v, 0.01 * v, (), torch.arange(0), None, duals.SCALES, False, True)
    assert duals.predicted_bound(problem.g, aq.Logistic(), judge.columns, v, sums) is None
    assert duals.predicted_bound(problem.g, aq.Logistic(), judge.columns, v, {}) is None


def test_foreseen_slopes_end_runs_earlier_and_with_a_smaller_gap(monkeypatch):
    def rounds():
        found = []
        for seed in range(6):
            X, y = table("signs", seed=seed)
            problem = aq.Problem(aq.Logistic(), aq.L1(2.0), blocks(X, y), intercept=True)
            run = aq.solve(problem, aq.methods.Newton(SMALL), certificate_tol=1e-5)
            assert run.status == "converged"
            found.append(run.history[-1].rounds)
        return np.array(found)

    with_them = rounds()
    monkeypatch.setattr(newton_state, "predicted_bound", lambda *_: None)
    without = rounds()
    assert (with_them <= without).all()
    assert (with_them < without).any()
