"""Standard errors of chosen coefficients, by products with the information, against those of the whole."""

from __future__ import annotations

import numpy as np
import pytest

import auqadmm as aq
from auqadmm.inference import statistics
from auqadmm.testing import Shards


def wide(rows, columns, seed=0, factors=20, noise=1.0):
    """Correlated columns of very different scales and places."""
    rng = np.random.default_rng(seed)
    X = noise * rng.normal(size=(rows, columns)) + 0.3 * rng.normal(size=(rows, factors)) @ rng.normal(
        size=(factors, columns)
    )
    z = 0.3 * X[:, :8] @ rng.normal(size=min(columns, 8))
    X = X * 10.0 ** rng.uniform(-2, 2, size=columns) + rng.normal(size=columns)
    return X, z, rng


def solved(loss, X, y, **options):
    blocks = [(X[i], y[i]) for i in np.array_split(np.arange(len(y)), 4)]
    return aq.solve(aq.Problem(loss, aq.Zero(), blocks, **({"intercept": True} | options)), certificate_tol=1e-20)


def agree(result, which, cov="model", rel=3e-7):
    whole, found = result.inference(cov), result.inference(cov, columns=which)
    k = [whole.names.index(name) for name in found.names]
    error = np.abs(found.se / whole.se[k] - 1)
    assert (error <= found.accuracy + 1e-12).all()
    assert (found.accuracy <= 1e-7).all()
    np.testing.assert_allclose(found.coef, whole.coef[k], rtol=1e-12)
    np.testing.assert_allclose(found.p, whole.p[k], rtol=1e-4)
    np.testing.assert_allclose(found.vcov, whole.vcov[np.ix_(k, k)], rtol=1e-4, atol=1e-6 * np.abs(whole.vcov).min())
    assert found.dispersion == pytest.approx(whole.dispersion, rel=1e-12)
    assert (found.aic, found.deviance, found.df_resid) == pytest.approx((whole.aic, whole.deviance, whole.df_resid))
    return found


@pytest.mark.parametrize("which", [["x3"], list(range(20)), [200, "x5", -2]], ids=["one", "twenty", "intercept"])
def test_two_hundred_unknowns(which):
    X, z, rng = wide(1500, 200)
    result = solved(aq.Logistic(), X, rng.binomial(1, 1 / (1 + np.exp(-z))))
    found = agree(result, which)
    assert len(found.names) == len(which)
    assert found.rounds < 20


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(3))
def test_a_thousand_unknowns(seed):
    X, z, rng = wide(6000, 1000, seed)
    assert agree(solved(aq.Poisson(), X, rng.poisson(np.exp(0.3 * z))), list(range(0, 1000, 50))).rounds < 40


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("noise", [1.0, 1e-2])
def test_the_stated_accuracy_holds_also_for_nearly_collinear_columns(seed, noise):
    X, z, rng = wide(600, 60, seed, 10, noise)
    agree(solved(aq.LeastSquares(), X, z + rng.normal(size=600)), [0, 7, 30])


def test_the_expected_information_and_intercepts_of_sites():
    X, z, rng = wide(900, 40, 5)
    result = solved(aq.Probit(), X, rng.binomial(1, 1 / (1 + np.exp(-z))), intercept=False, site_intercepts=True)
    agree(result, [0, 3], "expected")
    agree(result, ["x39"], "model")


def test_beyond_the_whole(monkeypatch):
    X, z, rng = wide(600, 40, 6)
    result = solved(aq.Logistic(), X, rng.binomial(1, 1 / (1 + np.exp(-z))))
    whole = result.inference()
    again = solved(aq.Logistic(), X, rng.binomial(1, 1 / (1 + np.exp(-z))))
    monkeypatch.setattr(statistics, "MOST", 30)
    with pytest.raises(aq.InputError, match=r"at most 30 unknowns; this model has 41. Name the coefficients that you"):
        again.inference()
    np.testing.assert_allclose(result.inference(columns=["x2"]).se, whole.se[2], rtol=1e-7)


def test_what_has_no_numbers():
    X, z, rng = wide(300, 12, 7)
    y = rng.binomial(1, 1 / (1 + np.exp(-z)))
    twice = np.column_stack([X, X[:, 0] - 3 * X[:, 4]])
    with pytest.raises(aq.InputError, match=r"olumn 'x12' cannot be told apart.*the information is singular"):
        solved(aq.Logistic(), twice, y).inference(columns=["x1"])
    constant = np.column_stack([X, np.full(300, 2.0)])
    with pytest.raises(aq.InputError, match="Column 'x12' is constant"):
        solved(aq.Logistic(), constant, y).inference(columns=["x1"])
    level = np.column_stack([X, np.arange(300) < 30])
    with pytest.raises(aq.InputError, match=r"'x12' separates|singular|away from the optimum"):
        solved(aq.Logistic(), level, np.where(np.arange(300) < 30, 1, y)).inference(columns=["x12"])


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"columns": ["age"]}, "There is no coefficient 'age'; there are x0, x1, intercept"),
        ({"columns": [3]}, "There is no coefficient 3; there are 3"),
        ({"columns": [True]}, "There is no coefficient True"),
        ({"columns": []}, r"columns must be a list of names or numbers of coefficients, got \[\]"),
        ({"columns": [0], "sites": True}, "columns has no place beside sites=True"),
        ({"columns": [0], "cov": "robust"}, "columns has no place beside sites=True, or cov other than"),
    ],
)
def test_what_cannot_be_asked(options, sentence):
    X, z, _ = wide(50, 2)
    with pytest.raises(aq.InputError, match=sentence):
        solved(aq.LeastSquares(), X, z).inference(**options)


def test_penalised_models_have_none():
    X, z, _ = wide(50, 2)
    result = aq.solve(aq.Problem(aq.LeastSquares(), aq.L2(1.0), [(X, z)], intercept=True))
    with pytest.raises(aq.InputError, match="columns is for models without a penalty"):
        result.inference(columns=[0])


def test_the_same_wherever_blocks_are():
    X, z, rng = wide(400, 10, 8)
    y = rng.poisson(np.exp(0.3 * z))
    blocks = [(X[i], y[i]) for i in np.array_split(np.arange(400), 4)]
    problem = aq.Problem(aq.Poisson(), aq.Zero(), blocks, intercept=True)
    found = [aq.solve(problem, engine=e, certificate_tol=1e-12).inference(columns=[0, 3]) for e in ("local", Shards(3))]
    np.testing.assert_allclose(found[0].se, found[1].se, rtol=1e-7)
    classes = aq.Problem(aq.Multinomial(), aq.Zero(), [(a, np.minimum(b, 2)) for a, b in blocks], intercept=True)
    both = [aq.solve(classes, "newton", e, certificate_tol=1e-14).inference("cluster").se for e in ("local", Shards(3))]
    np.testing.assert_allclose(*both, rtol=1e-6)
