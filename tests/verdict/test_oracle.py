"""The oracle of the verdicts against 60 digits, against scikit-learn and scipy, and the cases against the library.

Nothing here asks for a verdict: if these tests fail, it is the oracle that cannot be believed.
"""

from __future__ import annotations

import math
from dataclasses import replace

import mpmath
import numpy as np
import pytest
import scipy.optimize
import torch
from mpmath import mp
from sklearn import linear_model

from tests.verdict.cases import CASES, QUANTILES, RANDOM, TABLE, TARGETS, TOL, UNBOUNDED, Case, points
from tests.verdict.optimum import L, Objective, Optimum, Penalty, total, triangle

ids = {"ids": lambda case: case.name}


@pytest.fixture(autouse=True)
def _digits():
    with mp.workdps(60):
        yield


# ---------------------------------------------------------------------- 60 digits
def exact(x) -> mpmath.mpf:
    """A long double, its 64 bits as two doubles."""
    high = float(x)
    return mp.mpf(high) + mp.mpf(float(L(x) - L(high)))


def row(o: Objective, z: list, y: float) -> tuple:
    """φ − inf φ, φ', φ'' of one row by the formulas as they are printed; C = 1, but for the value."""
    y, e = mp.mpf(y), mp.mpf(o.width)
    if o.loss == "multinomial":
        return mp.log(mp.fsum(mp.exp(k) for k in z)) - z[int(y)], None, None
    z = z[0]
    if o.loss == "squares":
        return (z - y) ** 2 / 2, z - y, mp.mpf(1)
    if o.loss == "huber":
        r = z - y
        far = abs(r) > e
        return (e * abs(r) - e * e / 2, e * mp.sign(r), mp.mpf(0)) if far else (r * r / 2, r, mp.mpf(1))
    if o.loss == "quantile":
        r, q = y - z, mp.mpf(o.q)
        root = mp.sqrt(r * r + e * e)
        value = (q - mp.mpf("0.5")) * r + root / 2 - e * mp.sqrt(q * (1 - q))
        return value, (1 - r / root) / 2 - q, e * e / root**3 / 2
    if o.loss == "poisson":
        least = y - y * mp.log(y) if y > 0 else mp.mpf(0)
        return mp.exp(z) - y * z - least, mp.exp(z) - y, mp.exp(z)
    if o.loss == "logistic":
        q = 1 / (1 + mp.exp(y * z))
        return mp.log(1 + mp.exp(-y * z)), -y * q, q * (1 - q)
    t = 1 - y * z
    root = mp.sqrt(t * t + e * e)
    return (t + root) / 2, -y * (1 + t / root) / 2, e * e / root**3 / 2


def logits(o: Objective, v: np.ndarray) -> list[list]:
    columns = [[exact(k) for k in column] for column in v.T]
    X = [[mp.mpf(x) for x in xs] + [mp.mpf(1)] * o.intercept for xs in o.X.tolist()]
    return [[mp.fdot(xs, column) + mp.mpf(o.offset) for column in columns] for xs in X]


def above(o: Objective, v: np.ndarray) -> mpmath.mpf:
    """F less the rows' infimum."""
    v = o.shaped(v)
    rows = zip(o.c, logits(o, v), o.y.tolist(), strict=True)
    f = mp.fsum(exact(c) * row(o, z, y)[0] for c, z, y in rows)
    p, u = o.penalty, [[exact(k) for k in line] for line in v[: o.X.shape[1]]]
    flat = [k for line in u for k in line]
    f += mp.mpf(p.l1) * mp.fsum(abs(k) for k in flat) + mp.mpf(p.l2) / 2 * mp.fsum(k * k for k in flat)
    for members in p.members(len(u)):
        entries = [k for j in members for k in u[j]]
        f += mp.mpf(p.strength) * mp.sqrt(len(entries)) * mp.sqrt(mp.fsum(k * k for k in entries))
    return f


@pytest.mark.thin(3)
@pytest.mark.parametrize("case", [*TABLE[::3], *RANDOM[::5], *UNBOUNDED, *QUANTILES[::4]], **ids)
def test_f_is_right_to_seventeen_digits(case, rng):
    for point in points(case, rng)[::4]:
        v = point.v.numpy()
        true = above(case.objective, v)
        assert abs(exact(case.objective.above(v)) - true) <= mp.mpf("1e-16") * true


def decrement(case: Case) -> tuple[float, float]:
    """½gᵀH⁻¹g on the face of the oracle's v, and the worst multiplier of the wrong sign, both over the scale of a gap.

    In the user's columns; C = 1, no groups. For squares the first is the error of F*, but for multipliers.
    """
    o, v, p = case.objective, case.oracle.v, case.penalty
    u, m = [exact(k) for k in v[:, 0]], o.X.shape[1]
    parts = [row(o, z, y) for z, y in zip(logits(o, v), o.y.tolist(), strict=True)]
    c = [exact(k) for k in o.c]
    columns = [[mp.mpf(x) for x in xs] for xs in o.X.T.tolist()] + [[mp.mpf(1)] * len(c)] * o.intercept
    slope = [a * s for a, (_, s, _) in zip(c, parts, strict=True)]
    curve = [a * h for a, (_, _, h) in zip(c, parts, strict=True)]
    g = [mp.fdot(column, slope) for column in columns]
    wrong, free = mp.mpf(0), []
    for j in range(len(u)):
        if j == m:
            free.append(j)
            continue
        g[j] += p.l2 * u[j]
        if u[j] == p.lower or u[j] == p.upper:
            wrong = max(wrong, -g[j] if u[j] == p.lower else g[j])
        elif p.l1 and u[j] == 0:
            wrong = max(wrong, (abs(g[j]) - p.l1) / p.l1)
        else:
            g[j] += p.l1 * mp.sign(u[j])
            free.append(j)
    scale = exact(o.scale(case.oracle.above))
    if not free:
        return 0.0, float(wrong / scale)
    bent = {j: [h * x for h, x in zip(curve, columns[j], strict=True)] for j in free}
    H = mp.matrix(len(free), len(free))
    for a, j in enumerate(free):
        for b, k in enumerate(free[: a + 1]):
            H[a, b] = H[b, a] = mp.fdot(bent[j], columns[k]) + (p.l2 if j == k < m else 0)
    rest = mp.matrix([g[j] for j in free])
    return float((rest.T * mp.lu_solve(H, rest))[0] / 2 / scale), float(wrong / scale)


SMALL = [
    case
    for case in (*TABLE, *RANDOM, *QUANTILES)
    if case.has_minimiser
    and case.classes == 1
    and not case.penalty.strength
    and not case.duplicate
    and math.prod(case.objective.X.shape) * case.objective.shape[0] <= 20_000
]


@pytest.mark.thin(3)
@pytest.mark.parametrize("case", SMALL, **ids)
def test_nothing_is_left_to_gain_in_sixty_digits(case):
    with mp.workdps(80):  # H itself, with columns of mean 1e6 not centred
        left, wrong = decrement(case)
    assert -1e-30 <= left <= 1e-14
    assert wrong <= 1e-12


# ---------------------------------------------------------------------- every optimum
@pytest.mark.parametrize("case", CASES, **ids)
@pytest.mark.thin(3)
def test_every_optimum_knows_its_error_and_obeys_the_conditions(case):
    assert case.oracle.relative_error <= 1e-12
    if case.has_minimiser:
        assert case.oracle.kkt() <= 1e-7  # weights of 1e8 and more: v itself has 64 bits only
        assert case.oracle.relative(case.oracle.v) == 0.0
    assert case.oracle.above <= case.objective.null * (1 + 1e-15) or case.penalty.lower > 0


@pytest.mark.parametrize("case", CASES, **ids)
@pytest.mark.thin(3)
def test_points_lie_where_they_say(case, rng):
    found = points(case, rng)
    m = case.objective.X.shape[1]
    for point in found:
        assert point.v.dtype == torch.float64
        assert point.v.shape == case.objective.shape
        assert point.relative > 0
        assert point.relative == case.oracle.relative(point.v)
        assert ((point.v[:m] >= case.penalty.lower) & (point.v[:m] <= case.penalty.upper)).all()
        assert 0.5 <= point.relative / point.target <= 2
    if case.has_minimiser:
        assert [p.target for p in found] == [TOL * factor for factor in TARGETS]


@pytest.mark.parametrize("case", CASES, **ids)
@pytest.mark.thin(3)
def test_the_library_means_the_same_function(case, rng):
    problem = case.problem()
    v = points(case, rng)[-1 if case.has_minimiser else 0].v
    shard = problem.shard(torch.float64, torch.device("cpu"))
    F = float(shard.linearize(shard.expand(v)).value.sum() + problem.g.value(v))
    assert pytest.approx(float(case.objective.value(v)), rel=1e-6) == F


@pytest.mark.parametrize("case", [c for c in CASES if c.start is not None], **ids)
def test_an_infinite_start_is_infinite_in_the_library_and_finite_in_truth(case):
    problem = case.problem()
    shard = problem.shard(torch.float64, torch.device("cpu"))
    assert float(shard.linearize(shard.expand(torch.from_numpy(case.start))).value.sum()) == math.inf
    assert np.isfinite(case.objective.above(case.start))


@pytest.mark.parametrize("case", [c for c in CASES if not c.has_minimiser], **ids)
def test_without_a_minimiser_f_falls_along_the_escape_towards_its_infimum(case):
    near, far, end = (case.oracle.gap(case.rest + L(t) * case.escape) for t in (1, 8, 4000))
    assert near > far > 0
    assert abs(end) <= 1e-2 * near


def test_there_are_enough_cases_of_every_kind():
    assert len(RANDOM) >= 60
    assert len({case.name for case in CASES}) == len(CASES)
    assert {(c.loss, type(c.problem().regularizer)) for c in RANDOM} >= {
        (loss, kind) for loss in {c.loss for c in RANDOM} for kind in {type(c.problem().regularizer) for c in RANDOM}
    }
    for words in ("collinear 1e-09", "collinear 0,", "mean 1e+06", "sparse", "separable", "an empty block", "target"):
        assert any(words in case.name for case in RANDOM), words
    assert {case.reduction for case in RANDOM} == {"sum", "mean", "pooled"}
    assert sum(case.singular for case in CASES) >= 10
    assert all(case.singular for case in CASES if case.duplicate and not case.penalty.l2)


# ---------------------------------------------------------------------- other people's solvers
def data(seed=3, n=80, m=5):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, m)) + 1
    return X, X @ np.array([1.0, -2.0, 0.5, 0.0, 0.1]) + 0.5 * rng.normal(size=n) + 3, rng.uniform(0.5, 2, size=n)


def solved(X, y, loss, penalty, **options) -> Optimum:
    return Optimum.of(Objective.of([(X, y)], loss, penalty, **options))


@pytest.mark.parametrize("intercept", [True, False])
def test_squares_against_scikit_learn(intercept):
    X, y, w = data()
    n = len(y)
    rivals = [
        (linear_model.LinearRegression(fit_intercept=intercept), Penalty(), "sum"),
        (linear_model.Ridge(2.0, fit_intercept=intercept, solver="svd"), Penalty(l2=2.0), "sum"),
        (linear_model.Lasso(0.3, fit_intercept=intercept, tol=1e-14, max_iter=10**5), Penalty(l1=0.3), "pooled"),
        (
            linear_model.ElasticNet(0.3, l1_ratio=0.5, fit_intercept=intercept, tol=1e-14, max_iter=10**5),
            Penalty(l1=0.15, l2=0.15),
            "pooled",
        ),
    ]
    for rival, penalty, reduction in rivals:
        objective = Objective.of([(X, y, w)], "squares", penalty, reduction=reduction, intercept=intercept)
        best = Optimum.of(objective)
        rival.fit(X, y, sample_weight=w)
        v = np.append(rival.coef_, [rival.intercept_] * intercept)
        assert v == pytest.approx(best.v[:, 0].astype(float), abs=1e-6)
        assert -1e-15 <= best.relative(v) <= 1e-10
    assert n == len(objective.X)


def test_logistic_and_poisson_against_scikit_learn():
    X, y, _ = data()
    label, count = np.where(y > np.median(y), 1.0, -1.0), np.round(np.exp(y / 4))
    model = linear_model.LogisticRegression(C=2.0, solver="newton-cholesky", tol=1e-12).fit(X, label)
    best = solved(X, label, "logistic", Penalty(l2=0.5), intercept=True)
    assert -1e-15 <= best.relative(np.append(model.coef_, model.intercept_)) <= 1e-10
    model = linear_model.PoissonRegressor(alpha=0.5, solver="newton-cholesky", tol=1e-10).fit(X, count)
    best = solved(X, count, "poisson", Penalty(l2=0.5), reduction="pooled", intercept=True)
    assert -1e-15 <= best.relative(np.append(model.coef_, model.intercept_)) <= 1e-10
    classes = np.digitize(y, np.quantile(y, [0.3, 0.6])).astype(float)
    model = linear_model.LogisticRegression(C=2.0, tol=1e-10, max_iter=10**4).fit(X, classes)
    best = solved(X, classes, "multinomial", Penalty(l2=0.5), intercept=True, classes=3)
    assert -1e-15 <= best.relative(np.vstack([model.coef_.T, model.intercept_])) <= 1e-9
    model = linear_model.LogisticRegression(
        C=0.2, l1_ratio=1.0, solver="saga", tol=1e-12, max_iter=10**5, fit_intercept=False
    ).fit(X, label)
    best = solved(X, label, "logistic", Penalty(l1=5.0))
    assert -1e-15 <= best.relative(model.coef_) <= 1e-9


def test_bounds_against_scipy():
    X, y, _ = data()
    u, rest = scipy.optimize.nnls(X, y)
    best = solved(X, y, "squares", Penalty(lower=0.0))
    assert float(best.value) == pytest.approx(rest**2 / 2, rel=1e-12)
    assert u == pytest.approx(best.v[:, 0].astype(float), abs=1e-10)
    found = scipy.optimize.lsq_linear(X, y, bounds=(-0.5, 0.8), method="bvls", tol=1e-15)
    best = solved(X, y, "squares", Penalty(lower=-0.5, upper=0.8))
    assert float(best.value) == pytest.approx(found.cost, rel=1e-12)


@pytest.mark.parametrize(
    ("loss", "width", "penalty"),
    [
        ("hinge", 0.1, Penalty(l2=0.3)),
        ("huber", 0.4, Penalty(l2=0.3)),
        ("quantile", 0.1, Penalty(l2=0.3)),
        ("hinge", 0.1, Penalty(lower=-0.2, upper=0.4)),
        ("multinomial", 1.0, Penalty(l2=0.2)),
        ("squares", 1.0, Penalty(l2=0.1, strength=3.0, groups=(0, 0, 1, 1, 2))),
        ("logistic", 1.0, Penalty(l2=0.1, strength=1.0, groups=(0, 0, 1, 1, 1))),
    ],
)
def test_the_rest_against_scipy(loss, width, penalty):
    """Plain L-BFGS-B on the value alone; group norms rounded by 1e-9, which costs at most 1e-9 times their weights."""
    X, y, _ = data()
    if loss in ("hinge", "logistic"):
        y = np.where(y > np.median(y), 1.0, -1.0)
    if loss == "multinomial":
        y = np.digitize(y, np.quantile(y, [0.3, 0.6])).astype(float)
    C = 3 if loss == "multinomial" else 1
    objective = Objective.of([(X, y)], loss, penalty, width=width, classes=C, intercept=True, q=0.8)
    best = Optimum.of(objective)
    T = torch.from_numpy(np.hstack([X, np.ones((len(X), 1))]))
    target = torch.from_numpy(y)

    def F(v):
        u = torch.from_numpy(v).reshape(6, C).requires_grad_()
        z = T @ u
        if loss == "multinomial":
            f = torch.nn.functional.cross_entropy(z, target.long(), reduction="sum")
        elif loss == "huber":
            f = torch.nn.functional.huber_loss(z[:, 0], target, reduction="sum", delta=width)
        elif loss == "quantile":
            r = target - z[:, 0]
            f = (0.3 * r + 0.5 * torch.sqrt(r * r + width**2)).sum()
        elif loss == "hinge":
            t = 1 - target * z[:, 0]
            f = 0.5 * (t + torch.sqrt(t * t + width**2)).sum()
        elif loss == "logistic":
            f = torch.nn.functional.softplus(-target * z[:, 0]).sum()
        else:
            f = 0.5 * (z[:, 0] - target).square().sum()
        f = f + penalty.l2 / 2 * u[:-1].square().sum()
        for rows in penalty.members(5):
            f = f + penalty.strength * math.sqrt(rows.size) * torch.sqrt(u[rows].square().sum() + 1e-18)
        return f.item(), torch.autograd.grad(f, u)[0].numpy().ravel()

    bounds = [(penalty.lower, penalty.upper)] * (5 * C) + [(None, None)] * C
    v, options = np.full(6 * C, 0.1), {"maxiter": 5000, "maxfun": 50000, "ftol": 1e-16, "gtol": 1e-11, "maxcor": 30}
    for _ in range(4):
        v = scipy.optimize.minimize(F, v, jac=True, method="L-BFGS-B", bounds=bounds, options=options).x
    assert -1e-15 <= best.relative(v) <= 1e-7
    assert float(best.value) == pytest.approx(F(v)[0], rel=1e-7)


# ---------------------------------------------------------------------- the parts
def test_the_sum_keeps_what_long_double_loses():
    terms = np.array([L(1), L(2) ** 70, L(1), -(L(2) ** 70)])[:, None]
    assert terms.sum(0)[0] != 2
    assert total(terms)[0] == 2


def test_the_triangle_is_one_and_sees_dependent_columns(rng):
    J = rng.normal(size=(30, 5)).astype(L)
    J[:, 3] = 2 * J[:, 1]
    R, perm, scale, rank = triangle(J)
    assert rank == 4
    S = (J / scale)[:, perm]
    assert np.abs(R.T @ R - S.T @ S).max() < 1e-17


def test_scale_and_null_model():
    X, y, w = data()
    o = Objective.of([(X, y, w)], "squares", Penalty(l2=1.0), intercept=True)
    mean = np.average(y, weights=w)
    null = 0.5 * float(w @ (y - mean) ** 2)
    assert float(o.null) == pytest.approx(null, rel=1e-14)
    assert float(replace(o, intercept=False).null) == pytest.approx(0.5 * float(w @ y**2), rel=1e-14)
    assert float(o.scale(L(null / 4))) == pytest.approx(null / 4)
    assert float(o.scale(L(null * 0.9))) == pytest.approx(null * 0.1)
    assert float(o.scale(L(null * 2))) == pytest.approx(null * 2e-4)
    count = np.round(np.exp(y / 4))
    p = Objective.of([(X, count)], "poisson", Penalty(), intercept=True)
    safe = np.where(count > 0, count, 1)
    assert float(p.infimum) == pytest.approx(float((count - count * np.log(safe)).sum()), rel=1e-13)
    b = math.log(count.mean())
    assert float(p.null + p.infimum) == pytest.approx(float((math.exp(b) - count * b).sum()), rel=1e-13)


def test_reductions_and_empty_blocks():
    X, y, w = data()
    blocks = [(X[:10], y[:10], w[:10]), (X[:0], y[:0], w[:0]), (X[10:], y[10:], w[10:])]
    v = np.arange(5.0)
    r = 0.5 * w * (X @ v - y) ** 2
    for reduction, expected in {
        "sum": r.sum(),
        "mean": r[:10].sum() / w[:10].sum() + r[10:].sum() / w[10:].sum(),
        "pooled": r.sum() / w.sum(),
    }.items():
        o = Objective.of(blocks, "squares", Penalty(), reduction=reduction)
        assert float(o.value(v)) == pytest.approx(expected, rel=1e-14)
