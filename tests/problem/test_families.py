"""Families: rows against mpmath, laws of curvature and conjugates, and whole fits against statsmodels."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
import torch

import auqadmm as aq
from tests.problem.family_cases import CASES, oracle, study

NEW = [aq.Gamma(), aq.NegativeBinomial(0.6), aq.NegativeBinomial(1e6), aq.Tweedie(1.2), aq.Tweedie(1.8)]
NEW += [aq.Probit(), aq.CLogLog()]
LOGITS = [-1000.0, -120.0, -99.0, -30.0, -16.0, -9.5, -7.0, -2.4, -2.2, -0.4, 0.0, 0.3, 1.0, 3.5, 8.0, 30.0, 600.0]


def exact(loss, z, y):
    """φ in as many digits as mpmath is told to take."""
    if isinstance(loss, aq.Gamma):
        return z + y * mpmath.exp(-z)
    if isinstance(loss, aq.NegativeBinomial):
        k, mu = mpmath.mpf(loss.k), mpmath.exp(z)
        return k * mpmath.log1p(mu / k) + y * mpmath.log1p(k / mu)
    if isinstance(loss, aq.Tweedie):
        p = mpmath.mpf(loss.power)
        return y * mpmath.exp((1 - p) * z) / (p - 1) + mpmath.exp((2 - p) * z) / (2 - p)
    if isinstance(loss, aq.Probit):
        return -mpmath.log(mpmath.erfc(-y * z / mpmath.sqrt(2)) / 2)
    return -mpmath.log(-mpmath.expm1(-mpmath.exp(z))) if y > 0 else mpmath.exp(z)


def targets(loss):
    if loss.target_kind == "binary":
        return [1.0, -1.0]
    return [0.3, 7.0] if isinstance(loss, aq.Gamma) else [0.0, 0.3, 7.0]


@pytest.mark.parametrize("loss", NEW, ids=repr)
def test_rows_are_exact_to_rounding_however_far_the_logit(loss):
    for y in targets(loss):
        for z in LOGITS:
            at = torch.full((1, 1), z, dtype=torch.float64)
            label = torch.full((1,), y, dtype=torch.float64)
            s = loss.prepare(at)
            found = loss.row_value(at, label), loss.row_slope(s, label), loss.row_curvature(s, label).diagonal()
            with mpmath.workdps(700):
                step = mpmath.mpf(10) ** -20
                if isinstance(loss, aq.CLogLog) and z > 7 and y > 0:
                    truth = [0.0, 0.0, 0.0]  # below exp(−1000)
                elif abs(z) > 500 and isinstance(loss, aq.Probit):
                    continue
                else:
                    low, mid, high = (exact(loss, mpmath.mpf(z) + k * step, mpmath.mpf(y)) for k in (-1, 0, 1))
                    truth = [mid, (high - low) / (2 * step), (high - 2 * mid + low) / step**2]
                truth = [min(float(x), 1e300) if x > 1e300 else max(float(x), -1e300) for x in truth]
            for k, (x, there) in enumerate(zip(found, truth, strict=True)):
                x = float(x)
                if abs(there) > 1e290:  # overflow: cut, and of the right sign
                    assert abs(x) > 1e280
                    assert x * there > 0
                else:
                    # a slope is a difference: to rounding of its terms
                    assert x == pytest.approx(there, rel=3e-12, abs=1e-13 if k == 1 else 1e-290), (y, z, k)


def test_a_probit_of_far_logits_follows_its_series():
    z = torch.tensor([[-1000.0], [-101.0], [-99.0]], dtype=torch.float64)
    y, m = torch.ones(3, dtype=torch.float64), -z[:, 0]
    loss = aq.Probit()
    assert torch.allclose(-loss.row_slope(z, y)[:, 0], m + 1 / m - 2 / m**3 + 10 / m**5, rtol=1e-12)
    bend = 1 - 1 / m**2 + 6 / m**4 - 50 / m**6
    assert torch.allclose(loss.row_curvature(z, y).diagonal()[:, 0], bend, rtol=1e-11)
    assert torch.allclose(loss.row_value(z, y), 0.5 * m**2 + torch.log(m) + 0.9189385332046727 + 1 / m**2, rtol=1e-9)


@pytest.mark.parametrize("loss", NEW, ids=repr)
def test_curvature_changes_no_faster_than_is_said(loss):
    z = torch.linspace(-25, 25, 2001, dtype=torch.float64)[:, None]
    for label in targets(loss):
        y = torch.full((len(z),), label, dtype=torch.float64)
        h = loss.row_curvature(loss.prepare(z), y).diagonal()[:, 0]
        rate = (h[1:].log() - h[:-1].log()).abs() / 0.025
        assert float(rate[rate.isfinite()].max()) <= loss.concordance * (1 + 1e-9)
        assert float(h.max()) <= loss.bend
    if not np.isfinite(loss.concordance):  # and where nothing is said, nothing could be
        assert float(rate[rate.isfinite()].max()) > 5 or isinstance(loss, aq.CLogLog)


@pytest.mark.parametrize("loss", NEW, ids=repr)
def test_conjugates_and_infima_against_a_search(loss):
    z = torch.linspace(-100, 100, 1000001, dtype=torch.float64)[:, None]
    for label in targets(loss):
        y = torch.full((len(z),), label, dtype=torch.float64)
        value = loss.row_value(z, y)
        least = float(loss.row_infimum(y[:1]))
        assert float(value.min()) == pytest.approx(least, abs=1e-7)
        for at in (-2.0, 0.1, 1.3):
            there = torch.full((1, 1), at, dtype=torch.float64)
            a = loss.row_slope(loss.prepare(there), y[:1])
            offered = float(loss.row_conjugate(a, y[:1]))
            if np.isfinite(offered):
                assert offered == pytest.approx(float((a * z)[:, 0].sub(value).max()), rel=1e-7, abs=1e-7)
            else:
                assert isinstance(loss, aq.Tweedie | aq.Probit | aq.CLogLog)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(("seed", "scale"), [(0, 1.0), (1, np.array([1e3, 1e-2, 1.0, 5.0]))])
def test_coefficients_are_those_of_statsmodels(name, seed, scale):
    case = CASES[name]
    data = study(case, seed, scale=scale)
    for weights in (False, True):
        problem = aq.Problem(case.loss, aq.Zero(), data.blocks(weights), intercept=True)
        result = aq.solve(problem, certificate_tol=1e-20)
        assert str(result.status) in ("converged", "rounding"), result.message
        truth = oracle(case, data, weights)
        assert np.allclose(np.append(result.coef, result.intercept), truth.params, rtol=1e-8, atol=0)
        least = float(sum(w.sum() for w in _infima(case, data, weights)))
        deviance = 2 * (result.objective - least)
        assert deviance == pytest.approx(truth.deviance, rel=1e-10)


def _infima(case, data, weights):
    y = 2.0 * data.y - 1 if case.binary else data.y
    yield case.loss.row_infimum(torch.from_numpy(y)).numpy() * (data.weight if weights else 1.0)


@pytest.mark.parametrize("method", ["newton", "auq-lr", "lbfgs", "rb-admm"])
@pytest.mark.parametrize("name", ["gamma", "negative-binomial", "tweedie", "probit", "cloglog"])
@pytest.mark.thin(6)
def test_every_method_converges_to_the_same(name, method):
    case = CASES[name]
    problem = aq.Problem(case.loss, aq.L2(0.3), study(case, 3).blocks(True), intercept=True)
    best = aq.solve(problem, "newton", certificate_tol=1e-13)
    result = aq.solve(problem, method, certificate_tol=1e-6, max_iter=3000)
    assert result.status == "converged", result.message
    assert result.objective == pytest.approx(best.objective, rel=1e-5)


def test_evidence_is_proved_where_the_constant_is_known():
    told = {}
    for name in ("gamma", "negative-binomial", "tweedie", "probit", "cloglog"):
        case = CASES[name]
        problem = aq.Problem(case.loss, aq.Zero(), study(case, 2).blocks(), intercept=True)
        told[name] = aq.solve(problem, "newton", certificate_tol=1e-9).certificate.evidence
    assert told == dict.fromkeys(("gamma", "negative-binomial", "tweedie"), "proved") | dict.fromkeys(
        ("probit", "cloglog"), "estimated"
    )


def test_a_large_size_is_poisson():
    case = CASES["poisson"]
    data = study(case, 4)
    near = aq.Problem(aq.NegativeBinomial(1e9), aq.Zero(), data.blocks(), intercept=True)
    there = aq.Problem(aq.Poisson(), aq.Zero(), data.blocks(), intercept=True)
    a, b = (aq.solve(p, certificate_tol=1e-13) for p in (near, there))
    assert np.allclose(a.coef, b.coef, rtol=1e-6)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: aq.Tweedie(2.0), r"Tweedie: power must be between 1 and 2, got 2\.0"),
        (lambda: aq.Tweedie(True), "Tweedie: power must be between 1 and 2, got True"),
        (lambda: aq.NegativeBinomial(0), "NegativeBinomial: k must be a positive finite number; got 0"),
        (lambda: _one(aq.Gamma(), 0.0), r"block 0: y\[1\] is 0.0; Gamma needs targets above zero"),
        (lambda: _one(aq.NegativeBinomial(), -1.0), r"block 0: y\[1\] is -1.0; NegativeBinomial needs counts"),
        (lambda: _one(aq.Tweedie(), -2.0), r"block 0: y\[1\] is -2.0; Tweedie needs amounts"),
    ],
)
def test_what_cannot_be_used_is_a_sentence(make, sentence):
    with pytest.raises(aq.InputError, match=sentence):
        make()


def _one(loss, y):
    return aq.Problem(loss, aq.Zero(), [(np.ones((2, 1)), np.array([1.0, y]))])
