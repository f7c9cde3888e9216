"""The verdict at points whose true gap is known: it never flatters, and says yes where it should."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import auqadmm as aq
from auqadmm.verdict import delta
from tests.verdict.asking import judge_of, verdict
from tests.verdict.cases import CASES, TOL, draw, points

EPS = np.finfo(float).eps
CONVERGED = 0.011 * TOL


def true_gap(case, v):
    """Above the optimum, or above what no model reaches."""
    return float(case.oracle.gap(v))


def check(case, seed):
    """(points at a hundredth of the tolerance, how many of them were called converged)."""
    problem, good, yes = case.problem(), 0, 0
    judge = judge_of(problem)
    for point in points(case, np.random.default_rng(seed)):
        found = verdict(problem, point.v, TOL, judge)
        gap, where = true_gap(case, point.v), (case.name, point.target, found)
        if found.passes(TOL):
            assert float(point.relative) <= 10 * found.relative, where
        if found.evidence == "proved":
            assert gap <= found.gap_bound + 4 * EPS * abs(found.objective), where
        if point.target is not None and point.target <= CONVERGED and not case.singular:
            good, yes = good + 1, yes + found.passes(TOL)
    return good, yes


@pytest.mark.thin(3)
@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_no_verdict_flatters(case):
    check(case, seed=1)


def test_a_hundredth_of_the_tolerance_is_enough_for_a_yes():
    counts = [check(case, seed=2) for case in CASES[::2]]
    good, yes = (sum(column) for column in zip(*counts, strict=True))
    assert good > 40
    assert yes >= 0.95 * good


@pytest.mark.parametrize(("kind", "seed"), [("nonnegative", 700077), ("l1", 3), ("box", 5), ("group", 7)])
@pytest.mark.thin(2)
def test_proved_bounds_hold_to_the_last_digits(kind, seed):
    """Seed 700077: columns of mean 1e5 without an intercept, targets of 1e6: subgradients are small differences."""
    case = draw("squares", kind, seed)
    problem, rng = case.problem(), np.random.default_rng(seed)
    judge = judge_of(problem)
    for tol in (1e-9, 1e-10, 1e-11, 1e-12, 1e-13, 1e-14):
        for point in points(case, rng, tol):
            found = verdict(problem, point.v, tol, judge)
            if found.evidence == "proved":
                rounding = 4 * EPS * abs(found.objective)
                assert true_gap(case, point.v) <= found.gap_bound + rounding, (case.name, tol, point.target, found)


@pytest.mark.thin(3)
@pytest.mark.parametrize("seed", [101, 202])
@pytest.mark.parametrize("kind", ["zero", "l1", "l2", "elastic", "box", "nonnegative", "group"])
@pytest.mark.parametrize("loss", ["squares", "logistic", "multinomial", "poisson", "quantile"])
def test_no_verdict_flatters_on_other_draws(loss, kind, seed):
    case = draw(loss, kind, seed)
    try:
        assert case.oracle is not None
    except AssertionError as error:
        pytest.skip(f"the oracle found no optimum: {error}")
    check(case, seed)


@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    loss=st.sampled_from(["squares", "logistic", "multinomial", "poisson", "hinge"]),
    kind=st.sampled_from(["zero", "l1", "l2", "elastic", "box", "nonnegative", "group"]),
    seed=st.integers(1000, 10**6),
)
def test_no_verdict_flatters_on_any_draw(loss, kind, seed):
    case = draw(loss, kind, seed)
    try:
        assert case.oracle is not None
    except AssertionError:  # the oracle found no optimum
        assume(False)
    check(case, seed)


# ---------------------------------------------------------------------- affine invariance
def table(seed=0, rows=120, columns=5):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((rows, columns))
    z = X @ rng.standard_normal(columns) + 0.5
    return X, z, rng


def split(X, y, parts=3):
    return [(X[i], y[i]) for i in np.array_split(np.arange(len(y)), parts)]


LOSSES = {
    "squares": (aq.LeastSquares(), lambda z, rng: z + 0.3 * rng.standard_normal(len(z))),
    "logistic": (aq.Logistic(), lambda z, rng: np.where(z + rng.logistic(size=len(z)) > 0, 1.0, -1.0)),
    "poisson": (aq.Poisson(), lambda z, rng: rng.poisson(np.exp(0.3 * z)).astype(float)),
    "multinomial": (aq.Multinomial(), lambda z, rng: np.digitize(z + rng.standard_normal(len(z)), [-1, 1])),
    "gamma": (aq.Gamma(), lambda z, rng: rng.gamma(2.0, np.exp(0.3 * z))),
    "negative-binomial": (aq.NegativeBinomial(2.0), lambda z, rng: rng.poisson(np.exp(0.3 * z)).astype(float)),
    "tweedie": (aq.Tweedie(1.4), lambda z, rng: rng.poisson(np.exp(0.3 * z)) * rng.gamma(2.0, size=len(z))),
    "probit": (aq.Probit(), lambda z, rng: np.where(z + rng.standard_normal(len(z)) > 0, 1.0, -1.0)),
    "cloglog": (aq.CLogLog(), lambda z, rng: np.where(z + rng.gumbel(size=len(z)) > 0, 1.0, -1.0)),
}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("off", [1e-4, 1e-2, 1.0])
def test_scaling_shifting_and_mixing_columns_change_no_verdict(name, off):
    loss, draw_target = LOSSES[name]
    X, z, rng = table(3)
    y = draw_target(z, rng)
    C = 3 if name == "multinomial" else 1
    w, b = rng.standard_normal((5, C)) * off, np.full((1, C), 0.2)

    def found(X, w, b):
        problem = aq.Problem(loss, aq.Zero(), split(X, y), intercept=True)
        return verdict(problem, np.vstack([w, b]))

    plain = found(X, w, b)
    scale, shift = 10.0 ** rng.uniform(-5, 5, 5), rng.uniform(-100, 100, 5) * 10.0
    A = np.linalg.qr(rng.standard_normal((5, 5)))[0] * rng.uniform(0.5, 2, 5)
    others = {
        "scaled": found(X * scale, w / scale[:, None], b),
        "shifted": found(X + shift, w, b - shift @ w),
        "mixed": found(X @ A, np.linalg.solve(A, w), b),
        "all": found(
            X @ A * scale + shift * scale, np.linalg.solve(A, w) / scale[:, None], b - shift @ np.linalg.solve(A, w)
        ),
    }
    for how, other in others.items():
        assert other.evidence == plain.evidence, how
        assert other.passes(TOL) == plain.passes(TOL), how
        assert math.isclose(other.delta, plain.delta, rel_tol=1e-5), how
        assert math.isclose(other.scale, plain.scale, rel_tol=1e-8), how


def test_penalties_that_move_with_the_columns_change_no_verdict():
    X, z, rng = table(4)
    y = z + 0.3 * rng.standard_normal(len(z))
    v = rng.standard_normal((5, 1))
    one = verdict(aq.Problem(aq.LeastSquares(), aq.ElasticNet(0.7, 0.3), split(X, y)), v)
    ten = verdict(aq.Problem(aq.LeastSquares(), aq.ElasticNet(7.0, 30.0), split(10 * X, y)), v / 10)
    assert math.isclose(one.delta, ten.delta, rel_tol=1e-9)
    assert math.isclose(one.relative, ten.relative, rel_tol=1e-9)


# ---------------------------------------------------------------------- parts of the rule
def dense(problem, v, tol=TOL):
    return verdict(problem, v, tol)


def large(problem, v, tol=TOL):
    judge = judge_of(problem)
    type(judge).fits_triangle, kept = property(lambda self: False), type(judge).__dict__["fits_triangle"]
    try:
        return verdict(problem, v, tol, judge)
    finally:
        type(judge).fits_triangle = kept


BOUNDED = [name for name, (loss, _) in LOSSES.items() if loss.concordance < math.inf]  # a rough δ needs a proof


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("name", BOUNDED)
@pytest.mark.parametrize("share", [1e-3, 3.0])
def test_products_bound_what_the_triangle_knows(name, intercept, share):
    """Without the triangle: the bound of δ from above, and no yes that the triangle would not say."""
    loss, draw_target = LOSSES[name]
    X, z, rng = table(5, 300, 40)
    y = draw_target(z, rng)
    problem = aq.Problem(loss, aq.L2(0.5), split(X, y), intercept=intercept)
    best = aq.solve(problem, "lbfgs", max_iter=3000, certificate_tol=1e-13)
    d = torch.as_tensor(rng.standard_normal(best.v.shape))
    exact = dense(problem, best.v + 1e-3 * d)
    v = best.v + 1e-3 * math.sqrt(share * TOL * exact.scale / exact.delta) * d
    exact, bounded = dense(problem, v), large(problem, v)
    assert bounded.passes(TOL) == exact.passes(TOL)
    assert not bounded.delta < exact.delta * (1 - 1e-9)  # NaN: the duality gap was enough
    assert float(bounded.objective - best.objective) <= bounded.gap_bound * (1 + 1e-9) + EPS * abs(best.objective)


@pytest.mark.parametrize("weak", [1.0, 1e-3])
def test_quadrature_bounds_delta_from_both_sides(weak):
    """Gauss from below, Gauss–Radau from above, after every product; both close in."""
    rng = np.random.default_rng(0)
    n = 60
    Q = np.linalg.qr(rng.standard_normal((n, n)))[0]
    H = torch.as_tensor((Q * 10.0 ** -np.linspace(0, 6, n) * 1e4) @ Q.T)
    l2, r = torch.full((n, 1), weak, dtype=torch.float64), torch.as_tensor(rng.standard_normal((n, 1)))
    kept = torch.ones(n, 1, dtype=torch.bool)
    O = delta.orthonormal_basis((H @ torch.as_tensor(rng.standard_normal((n, 10))))[:, None, :])
    HO = (H @ O[:, 0, :])[:, None, :]
    P = delta.Preconditioner.of(HO, O, H.diagonal()[:, None].clone(), l2, kept)
    K = P.U @ P.U.mT + torch.diag(P.delta)
    S = H + weak * torch.eye(n, dtype=torch.float64)
    assert float(torch.linalg.eigvalsh(S - P.mu * K)[0]) >= -1e-8 * float(S.diagonal().max())
    exact = 0.5 * float((r * torch.linalg.solve(S, r)).sum())
    seen = [delta.bounds(lambda p: S @ p, P, r, 0.0, math.nan, most=k) for k in range(26)]
    for found in seen:
        assert found.lower <= exact * (1 + 1e-9)
        assert found.upper >= exact * (1 - 1e-9)
    assert [found.upper for found in seen] == sorted((found.upper for found in seen), reverse=True)
    if weak < 1:  # a spread of seven powers of ten takes more products than these
        return
    assert seen[25].upper <= 2 * exact
    assert torch.allclose(seen[25].d, -torch.linalg.solve(S, r), atol=0.5 * float(torch.linalg.solve(S, r).norm()))


def test_l1_beyond_the_triangle_is_judged_by_its_duality_gap():
    X, z, _ = table(6, 80, 30)
    y = np.where(z > 0, 1.0, -1.0)
    problem = aq.Problem(aq.Logistic(), aq.L1(2.0), split(X, y), intercept=True)
    best = aq.solve(problem, "fista", max_iter=20000, certificate_tol=1e-12)
    found = large(problem, best.v)
    assert found.passes(TOL)
    assert found.duality_gap is not None
    off = large(problem, best.v + 0.05)
    assert not off.passes(TOL)
    assert float(off.objective - best.objective) <= off.gap_bound


def test_an_own_loss_is_proved_only_with_its_constant():
    X, z, rng = table(7)
    y = np.where(z + rng.logistic(size=len(z)) > 0, 1.0, -1.0)

    def logistic(u, X, y):
        return torch.nn.functional.softplus(-y * (X @ u))

    plain = aq.solve(aq.Problem(aq.Logistic(), aq.L2(0.1), split(X, y), intercept=True), certificate_tol=1e-10)
    for M, evidence in ((None, "estimated"), (1.0, "proved")):
        loss = aq.CustomLoss(logistic, self_concordance=M)
        found = verdict(aq.Problem(loss, aq.L2(0.1), split(X, y), intercept=True), plain.v)
        assert found.evidence == evidence
        assert found.passes(TOL)
    with pytest.raises(aq.InputError, match="self_concordance"):
        aq.CustomLoss(logistic, self_concordance=-1.0)


def test_single_precision_is_judged_in_double():
    X, z, rng = table(8)
    y = z + 0.1 * rng.standard_normal(len(z))
    problem = aq.Problem(aq.LeastSquares(), aq.L2(0.1), split(X.astype(np.float32), y.astype(np.float32)))
    result = aq.solve(problem, dtype="float32")
    assert result.status == "converged"
    best = aq.solve(problem, dtype="float64", certificate_tol=1e-14)
    assert result.objective - best.objective <= 1.01e-5 * best.objective
