"""Laws that hold for any data: equalities between methods, invariances, ranges."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import auqadmm as aq
from auqadmm.methods.uncertainty import affine, extremes
from tests.problems import class_blocks, least_squares, multinomial, regression_blocks, svm

METHODS = ["c-admm", "rb-admm", "ac-admm", "uq-admm", "auq-admm"]
TIGHT = aq.local.NewtonCG(tol=1e-13)
FIXED = {"abs_tol": 0.0, "rel_tol": 0.0, "certificate_tol": 0.0}


@pytest.mark.thin(3)
@pytest.mark.parametrize("rho", [0.1, 1.0, 0.3])
@pytest.mark.parametrize("model", [least_squares, multinomial, svm])
def test_uq_with_a_equal_b_is_c_admm_to_the_last_bit(model, rho):
    problem = model()
    uq = aq.solve(problem, aq.methods.UQ(interval=(rho, rho)), max_iter=25, **FIXED)
    auq = aq.solve(problem, aq.methods.AUQ(interval=(rho, rho)), max_iter=25, **FIXED)
    c = aq.solve(problem, aq.methods.C(rho=rho), max_iter=25, **FIXED)
    assert torch.equal(uq.v, c.v)
    assert torch.equal(uq.lam, c.lam)
    assert torch.equal(auq.v, c.v)


@pytest.mark.parametrize("method", METHODS)
def test_one_block_without_regularizer_solves_f(method):
    blocks = regression_blocks(sizes=(30,))
    problem = aq.Problem(aq.LeastSquares(), aq.Zero(), blocks)
    result = aq.solve(problem, method, max_iter=2000, certificate_tol=1e-16)
    X, y = blocks[0]
    np.testing.assert_allclose(result.coef, np.linalg.lstsq(X, y, rcond=None)[0], atol=1e-7)
    assert result.certificate.gap is None


@pytest.mark.parametrize("method", METHODS)
@given(seed=st.integers(0, 20))
@settings(max_examples=3)
def test_block_order_does_not_matter(method, seed):
    blocks = class_blocks(classes=4, per_block=8, seed=seed)
    order = np.random.default_rng(seed).permutation(len(blocks))
    options = {"max_iter": 8, "local": TIGHT, **FIXED}
    a = aq.solve(multinomial(blocks), method, **options)
    b = aq.solve(multinomial([blocks[j] for j in order]), method, **options)
    torch.testing.assert_close(a.v, b.v, atol=1e-9, rtol=0)
    torch.testing.assert_close(a.lam[torch.from_numpy(order)], b.lam, atol=1e-9, rtol=0)


@pytest.mark.parametrize("method", METHODS)
def test_padding_does_not_matter(method):
    """Uneven blocks in one problem equal the same blocks with their rows spelled out by weights."""
    blocks = regression_blocks(sizes=(9, 3, 14, 0, 1))
    options = {"max_iter": 10, "local": aq.local.NewtonCG(tol=1e-13), **FIXED}
    plain = aq.solve(least_squares(blocks), method, **options)
    height, padded = 20, []
    for X, y in blocks:
        missing = height - len(y)
        X2, y2 = np.vstack([X, np.ones((missing, X.shape[1]))]), np.concatenate([y, np.full(missing, 7.0)])
        padded.append((X2, y2, np.r_[np.ones(len(y)), np.zeros(missing)]))
    same = aq.solve(least_squares(padded), method, **options)
    torch.testing.assert_close(plain.v, same.v, atol=1e-9, rtol=0)


def test_sums_do_not_depend_on_how_rows_are_split():
    X, y = (np.concatenate(p) for p in zip(*regression_blocks(), strict=True))
    optima = []
    for cuts in ([], [10], [5, 6, 40]):
        parts = list(zip(np.split(X, cuts), np.split(y, cuts), strict=True))
        for reduction in ("sum", "pooled"):
            scale = len(y) if reduction == "pooled" else 1
            problem = least_squares(parts, reduction, aq.ElasticNet(0.5 / scale, 1.0 / scale))
            run = aq.solve(problem, "ac-admm", certificate_tol=1e-12, abs_tol=1e-8, rel_tol=1e-8, max_iter=2000)
            assert run.status == "converged"
            optima.append(run.coef)
    for u in optima[1:]:
        np.testing.assert_allclose(u, optima[0], atol=1e-5)


@given(
    seed=st.integers(0, 10**6),
    a=st.floats(0.01, 5),
    width=st.floats(0, 5),
    scale=st.sampled_from([1e-12, 1.0, 1e12]),
)
def test_weights_lie_in_the_interval_and_reach_its_ends(seed, a, width, scale):
    d = torch.from_numpy(np.random.default_rng(seed).exponential(size=(3, 4, 2))) * scale
    lo, hi = extremes(d, intercept=False)
    W = affine(d, lo, hi, (a, a + width))
    assert W.min() >= a
    assert W.max() <= a + width
    for j in range(3):
        assert W[j].max() == pytest.approx(a + width, rel=1e-12)
        assert W[j].min() == pytest.approx(a, rel=1e-12)
        order = d[j].flatten().argsort()
        assert (W[j].flatten()[order].diff() >= 0).all(), "more certain entries weigh more"


def test_no_information_gives_the_middle_of_the_interval():
    d = torch.stack([torch.full((4, 1), 3.0), torch.zeros(4, 1), torch.arange(4.0)[:, None]]).double()
    W = affine(d, *extremes(d, False), (0.1, 1.0))
    assert (W[:2] == 0.55).all()
    assert W[2].flatten().tolist() == pytest.approx([0.1, 0.4, 0.7, 1.0])


def test_an_intercept_is_left_out_of_the_range_and_clipped():
    d = torch.tensor([[[1.0], [3.0], [50.0]]], dtype=torch.float64)
    W = affine(d, *extremes(d, True), (0.1, 1.0))
    assert W.flatten().tolist() == pytest.approx([0.1, 1.0, 1.0])
    blocks = regression_blocks()
    problem = aq.Problem(aq.LeastSquares(reduction="mean"), aq.L2(0.1), blocks, intercept=True)
    run = aq.solve(problem, "uq-admm", max_iter=3)
    features = run.weights.diagonal()[:, :-1, 0]
    torch.testing.assert_close(features.amax(1), torch.ones(4).double())


@pytest.mark.parametrize("c", [1e-6, 1e6])
def test_normalised_balancing_ignores_the_scale_of_the_problem(c):
    """The objective times c, with ρ times c, makes the same decisions; the plain rule does not."""
    blocks = regression_blocks()
    scaled = [(X * np.sqrt(c), y * np.sqrt(c)) for X, y in blocks]
    for normalized in (True, False):
        method = aq.methods.RB(rho=50.0, normalized=normalized)
        other = aq.methods.RB(rho=50.0 * c, normalized=normalized)
        a = aq.solve(least_squares(blocks, regularizer=aq.L2(0.1)), method, max_iter=20, **FIXED)
        b = aq.solve(least_squares(scaled, regularizer=aq.L2(0.1 * c)), other, max_iter=20, **FIXED)
        same = a.weights.rho[0] * c == pytest.approx(float(b.weights.rho[0]), rel=1e-9)
        assert same == normalized


def test_residual_balancing_does_not_run_away():
    """A badly scaled start (a known bug elsewhere: penalties of 4e5) comes back to a sensible penalty."""
    for rho in (1e-6, 1e6):
        run = aq.solve(multinomial(), aq.methods.RB(rho=rho), max_iter=500, certificate_tol=1e-6)
        assert run.status == "converged"
        assert 1e-4 < float(run.weights.rho[0]) < 1e2


@pytest.mark.parametrize("alpha", [1.0, 1.5, 1.9])
def test_relaxation_keeps_the_answer(alpha):
    problem = multinomial()
    plain = aq.solve(problem, "c-admm", certificate_tol=1e-10, max_iter=2000)
    relaxed = aq.solve(problem, aq.methods.C(relaxation=alpha), certificate_tol=1e-10, max_iter=2000)
    assert relaxed.objective == pytest.approx(plain.objective, rel=1e-8)


def test_weights_at_v_and_other_estimators_reach_the_same_optimum():
    best = aq.solve(multinomial(), "ac-admm", certificate_tol=1e-10, max_iter=2000).objective
    for options in (
        {"at": "v"},
        {"curvature": "exact"},
        {"curvature": "hutchinson"},
        {"rank": 1},
        {"every": 7},
        {"normalize": "global"},
    ):
        run = aq.solve(multinomial(), aq.methods.AUQ(**options), certificate_tol=1e-9, max_iter=2000)
        assert run.status == "converged", options
        assert run.objective == pytest.approx(best, rel=1e-7), options


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: aq.methods.C(rho=0), "rho must be a finite number > 0"),
        (lambda: aq.methods.C(relaxation=2.0), r"relaxation must lie in \[1, 2\)"),
        (lambda: aq.methods.C(residuals="mine"), "residuals must be"),
        (lambda: aq.methods.RB(tau=1), "tau must be a finite number > 1"),
        (lambda: aq.methods.RB(mu=0.5), "mu must be a finite number > 1"),
        (lambda: aq.methods.AC(every=0), "every must be a whole number ≥ 1"),
        (lambda: aq.methods.AC(rho=-1), "rho must be"),
        (lambda: aq.methods.UQ(interval=(1.0, 0.1)), "interval must be"),
        (lambda: aq.methods.UQ(interval=(0.0, 1.0)), "interval must be"),
        (lambda: aq.methods.AUQ(rank=0), "rank must be a whole number ≥ 1"),
        (lambda: aq.methods.AUQ(at="w"), "at must be one of 'u', 'v'"),
        (lambda: aq.methods.AUQ(normalize="all"), "normalize must be one of"),
        (lambda: aq.methods.AUQ(curvature="guess"), "guess"),
        (lambda: aq.methods.AUQ(every=1.5), "every must be a whole number"),
    ],
)
def test_parameters_that_cannot_work_are_refused_at_once(make, words):
    with pytest.raises(ValueError, match=words):
        make()
