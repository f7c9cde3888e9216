"""Figures against scikit-learn's metrics and statsmodels, on the pooled rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse
import statsmodels.api as sm
from sklearn import metrics
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_wine
from sklearn.preprocessing import StandardScaler

import auqadmm as aq
from tests.problem.family_cases import CASES, Study, study

EXACT = {"rel": 1e-10, "abs": 1e-12}


def solved(loss, blocks, penalty=None, **options):
    problem = aq.Problem(loss, penalty or aq.L2(0.3), blocks, intercept=options.pop("intercept", True), **options)
    return aq.solve(problem, certificate_tol=1e-14)


def deal(X, y, sites, weight=None):
    """Blocks of unequal sizes, one of them empty."""
    rng = np.random.default_rng(0)
    site = rng.choice(sites, p=np.arange(1, sites + 1) / (sites * (sites + 1) / 2), size=len(y))
    rows = [np.flatnonzero(site == j) for j in range(sites)] + [np.zeros(0, dtype=int)]
    return [(X[r], y[r], None if weight is None else weight[r]) for r in rows], rows


def means(name, z):
    if name in ("gaussian",):
        return z
    if name == "logit":
        return 1 / (1 + np.exp(-z))
    return CASES[name].family.link.inverse(z)


def two_classes(y, p, w):
    predicted = (p > 0.5).astype(float)
    return {
        "accuracy": metrics.accuracy_score(y, predicted, sample_weight=w),
        "brier": metrics.brier_score_loss(y, p, sample_weight=w),
        "log_loss": metrics.log_loss(y, p, sample_weight=w, labels=[0, 1]),
        "base_rate": np.average(y, weights=w),
    }


def slope(case, y, linear, offset, w):
    model = sm.GLM(y, sm.add_constant(linear), family=case.family, offset=offset, freq_weights=w)
    return model.fit(tol=1e-14, tol_criterion="params", maxiter=500).params


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(("weights", "offset"), [(False, False), (True, False), (True, True)])
def test_families(name, weights, offset):
    case = CASES[name]
    data = study(case, 4, (90, 60, 40, 70))
    result = solved(case.loss, data.blocks(weights, offset), aq.L2(5.0))
    found = result.quality()
    w = data.weight if weights else np.ones(len(data.y))
    o = data.offset if offset else np.zeros(len(data.y))
    linear = data.X @ result.coef + result.intercept
    z = linear + o
    mu = means(name, z)
    if case.binary:
        expected = two_classes(data.y, mu, w)
        exact = metrics.roc_auc_score(data.y, z, sample_weight=w)
        assert found.auc_bounds[0] <= exact <= found.auc_bounds[1]
        assert found.figures["auc"] == pytest.approx(exact, abs=1e-3)  # of so few rows
    else:
        expected = {
            "rmse": metrics.mean_squared_error(data.y, mu, sample_weight=w) ** 0.5,
            "mae": metrics.mean_absolute_error(data.y, mu, sample_weight=w),
        }
        if name == "gaussian":
            expected["r2"] = metrics.r2_score(data.y, mu, sample_weight=w)
        else:
            expected["observed_expected"] = (w @ data.y) / (w @ mu)
    if name != "gaussian":
        null = sm.GLM(data.y, np.ones(len(data.y)), family=case.family, offset=o, freq_weights=w)
        worst = null.fit(tol=1e-14, tol_criterion="params").deviance
        left = case.family.deviance(data.y, mu, freq_weights=w)
        expected["deviance_explained"] = 1 - left / worst
        if not case.binary:
            expected["deviance"] = left / w.sum()
    for key, value in expected.items():
        assert found.figures[key] == pytest.approx(value, **EXACT), key
    ab = found.figures["calibration_intercept"], found.figures["calibration_slope"]
    assert ab == pytest.approx(tuple(slope(case, data.y, linear, o, w)), rel=1e-8, abs=1e-9)
    assert (found.rows, found.weight) == (len(data.y), pytest.approx(w.sum()))


@pytest.mark.parametrize("name", ["logit", "poisson", "gaussian", "cloglog"])
def test_sites_are_the_same_figures_of_their_rows(name):
    case = CASES[name]
    data = study(case, 4, (90, 60, 40))
    result = solved(case.loss, data.blocks(True, True), aq.L2(5.0))
    found = result.quality()
    for j, site in enumerate(found.site_figures):
        rows = data.site == j
        part = Study(**{key: x[rows] for key, x in vars(data).items()})
        alone = aq.Problem(case.loss, aq.Zero(), [*part.blocks(True, True)], intercept=True)
        theirs = replace(result, source=replace(result.source, problem=alone, blocks=1), figures=None).quality()
        assert site["rows"] == rows.sum()
        for key, value in theirs.figures.items():
            assert site[key] == pytest.approx(value, rel=1e-8, abs=1e-3 if key == "auc" else 1e-9), key
    if name == "logit":
        z = data.X @ result.coef + result.intercept + data.offset
        exact = [
            metrics.roc_auc_score(data.y[s], z[s], sample_weight=data.weight[s])
            for s in (data.site == j for j in range(3))
        ]
        assert [site["auc"] for site in found.site_figures] == pytest.approx(exact, rel=1e-12)
    assert found.sites.shape == (3, 2 + len(found.figures))


REAL = {
    "breast cancer": (load_breast_cancer, aq.Logistic()),
    "breast cancer, svm": (load_breast_cancer, aq.SmoothedHinge(0.1)),
    "digits": (load_digits, aq.Multinomial()),
    "wine": (load_wine, aq.Multinomial()),
    "wine, svm": (load_wine, aq.losses.OneAgainstRest(loss=aq.SmoothedHinge(0.1))),
}


@pytest.mark.parametrize("name", REAL)
@pytest.mark.parametrize("weights", [False, True])
def test_auc_of_real_data(name, weights):
    load, loss = REAL[name]
    X, y = load(return_X_y=True)
    X = StandardScaler().fit_transform(X) + 0.8 * np.random.default_rng(1).normal(size=X.shape)  # overlapping classes
    w = np.random.default_rng(2).integers(1, 4, len(y)).astype(float) if weights else np.ones(len(y))
    blocks, _ = deal(X, y, 4, w if weights else None)
    result = solved(loss, blocks, aq.L2(20.0))
    found = result.quality()
    z = X @ result.coef + result.intercept
    if z.ndim == 1:
        exact, predicted = metrics.roc_auc_score(y, z, sample_weight=w), z > 0
    else:
        exact = np.mean([metrics.roc_auc_score(y == k, score(loss, z, k), sample_weight=w) for k in range(z.shape[1])])
        predicted = z.argmax(1)
    assert found.auc_bounds[0] - 1e-15 <= exact <= found.auc_bounds[1] + 1e-15  # the oracle rounds too
    assert found.figures["auc"] == pytest.approx(exact, abs=1e-4)
    assert found.figures["accuracy"] == pytest.approx(metrics.accuracy_score(y, predicted, sample_weight=w), **EXACT)
    if isinstance(loss, aq.Multinomial):
        p = np.exp(z - z.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        assert found.figures["log_loss"] == pytest.approx(metrics.log_loss(y, p, sample_weight=w), **EXACT)
        brier = np.average(np.square(p - np.eye(z.shape[1])[y]).sum(1), weights=w)
        assert found.figures["brier"] == pytest.approx(brier, **EXACT)
        shares = np.bincount(y, w) / w.sum()
        explained = 1 - found.figures["log_loss"] / -(shares * np.log(shares)).sum()
        assert found.figures["deviance_explained"] == pytest.approx(explained, **EXACT)
    assert found.site_figures[-1]["rows"] == 0  # the empty site
    assert found.site_figures[-1]["accuracy"] is None


def score(loss, z, k):
    if not isinstance(loss, aq.Multinomial):
        return z[:, k]
    p = np.exp(z - z.max(1, keepdims=True))
    return (p / p.sum(1, keepdims=True))[:, k]


def test_auc_is_exact_where_scores_are_few():
    rng = np.random.default_rng(0)
    X = rng.integers(2, size=(400, 3)).astype(float)
    y = (rng.random(400) < 1 / (1 + np.exp(1 - X @ [1.0, 2.0, -1.0]))).astype(int)
    result = solved(aq.Logistic(), [(X[:150], y[:150]), (X[150:], y[150:])])
    exact = metrics.roc_auc_score(y, X @ result.coef)
    assert result.quality().figures["auc"] == pytest.approx(exact, rel=1e-12)


def test_scores_far_from_zero_and_of_any_spread():
    """A rare outcome, weak effects, and one extreme row: bins follow the scores."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(20000, 1))
    y = rng.random(20000) < 0.005 * np.exp(0.1 * X[:, 0])
    X[0] = 80.0
    result = solved(aq.Logistic(), [(X[:15000], y[:15000]), (X[15000:], y[15000:])])
    found = result.quality()
    assert found.figures["auc"] == pytest.approx(metrics.roc_auc_score(y, X[:, 0] * result.coef[0]), abs=1e-4)


def test_losses_without_a_likelihood():
    X, y = load_diabetes(return_X_y=True)
    blocks, _ = deal(X, y, 3)
    for loss in (aq.Huber(20.0), aq.Quantile(0.8, eps=0.1)):
        result = solved(loss, blocks, aq.L2(1e-3))
        found, z = result.quality().figures, X @ result.coef + result.intercept
        assert found["mae"] == pytest.approx(metrics.mean_absolute_error(y, z), **EXACT)
        if isinstance(loss, aq.Quantile):
            assert found["below"] == pytest.approx(np.mean(y <= z), **EXACT)
            assert found["below"] == pytest.approx(0.8, abs=0.02)
        else:
            assert found["r2"] == pytest.approx(metrics.r2_score(y, z), **EXACT)


def test_targets_and_columns_far_from_zero_keep_their_digits():
    rng = np.random.default_rng(0)
    X = np.array([1e6, 0.0]) + rng.normal(size=(300, 2))
    y = 1e8 + (X - [1e6, 0.0]) @ [1.0, 2.0] + rng.normal(size=300)
    problem = aq.Problem(aq.LeastSquares(), aq.Zero(), [(X[:100], y[:100]), (X[100:], y[100:])], intercept=True)
    found = aq.solve(problem, certificate_tol=1e-14).quality().figures
    assert found["r2"] == pytest.approx(sm.OLS(y - 1e8, sm.add_constant(X - [1e6, 0.0])).fit().rsquared, rel=1e-6)
    assert found["calibration_slope"] == pytest.approx(1.0, abs=1e-5)


def test_calibration_curve():
    case = CASES["logit"]
    data = study(case, 4, (900, 600, 400))
    result = solved(case.loss, data.blocks(True), aq.L2(5.0))
    found = result.quality()
    p = means("logit", data.X @ result.coef + result.intercept)
    curve = found.calibration
    assert len(curve.weight) == 10
    assert curve.weight.sum() == pytest.approx(data.weight.sum())
    assert curve.weight @ curve.predicted == pytest.approx(data.weight @ p)
    assert curve.weight @ curve.observed == pytest.approx(data.weight @ data.y)
    edges = np.cumsum(curve.weight[:-1])
    order = np.argsort(p, kind="stable")
    group = np.searchsorted(edges, np.cumsum(data.weight[order]) - 0.5)
    for k in range(10):
        rows = order[group == k]
        assert curve.predicted[k] == pytest.approx(np.average(p[rows], weights=data.weight[rows]), rel=1e-2)


def test_rates_are_per_unit_of_exposure():
    rng = np.random.default_rng(0)
    X, days = rng.normal(size=(2000, 1)), rng.uniform(0.1, 50, size=2000)
    y = rng.poisson(days * np.exp(0.5 * X[:, 0] - 2))
    blocks = [(X[i], y[i], None, np.log(days[i])) for i in np.array_split(np.arange(2000), 3)]
    curve = solved(aq.Poisson(), blocks, aq.Zero()).quality().calibration
    assert curve.predicted == pytest.approx(curve.observed, rel=0.15)
    assert curve.weight.sum() == pytest.approx(days.sum())
    assert curve.predicted[0] < 0.1 < 0.25 < curve.predicted[-1]


def test_site_intercepts_are_those_of_indicator_columns():
    for name in ("logit", "poisson", "gaussian"):
        case = CASES[name]
        data = study(case, 6, (90, 41, 30, 60))
        data = replace(data, X=data.X[:, :3])
        problem = aq.Problem(case.loss, aq.Zero(), data.blocks(True, True), site_intercepts=True)
        found = aq.solve(problem, certificate_tol=1e-16).quality()
        wide = np.hstack([data.X, data.site[:, None] == np.arange(4)])
        model = sm.GLM(data.y, wide, family=case.family, freq_weights=data.weight, offset=data.offset)
        mu = model.fit(tol=1e-14, tol_criterion="params").fittedvalues
        if name == "logit":
            expected = two_classes(data.y, mu, data.weight)
            exact = metrics.roc_auc_score(data.y, mu, sample_weight=data.weight)
            assert found.figures["auc"] == pytest.approx(exact, abs=1e-4)
        else:
            expected = {"mae": metrics.mean_absolute_error(data.y, mu, sample_weight=data.weight)}
        for key, value in expected.items():
            assert found.figures[key] == pytest.approx(value, rel=1e-7), key
        assert found.figures["calibration_slope"] == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("reduction", ["sum", "pooled", "mean"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_reductions_precisions_and_sparse_rows_are_the_same(reduction, dtype):
    X, y = load_breast_cancer(return_X_y=True)
    X = StandardScaler().fit_transform(X).astype(np.float32)
    X[np.abs(X) < 0.5] = 0.0
    blocks, _ = deal(X, y, 3)
    dense = aq.Problem(aq.Logistic(reduction=reduction), aq.L2(0.1), blocks[:3], intercept=True)
    result = aq.solve(dense, dtype=dtype, certificate_tol=1e-6)
    sparse = aq.Problem(
        aq.Logistic(reduction=reduction), aq.L2(0.1), [(scipy.sparse.csr_matrix(b[0]), b[1]) for b in blocks[:3]],
        intercept=True,
    )  # fmt: skip
    again = replace(result, source=replace(result.source, problem=sparse))
    z = X.astype(float) @ result.coef + result.intercept
    for found in (result.quality(), again.quality()):
        assert found.figures["auc"] == pytest.approx(metrics.roc_auc_score(y, z), abs=1e-4)
        for key, value in two_classes(y, 1 / (1 + np.exp(-z)), None).items():
            assert found.figures[key] == pytest.approx(value, rel=1e-6), key
