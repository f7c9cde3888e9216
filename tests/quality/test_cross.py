"""Rows and sites that were held out: the same predictions as scikit-learn's with the same folds."""

from __future__ import annotations

import numpy as np
import pytest
import statsmodels.api as sm
from sklearn import metrics
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import LeaveOneGroupOut, PredefinedSplit, cross_val_predict

import auqadmm as aq
from auqadmm.quality.rows import Folds

SIZES = (40, 31, 3, 60)


def study(seed=0, classes=2):
    rng = np.random.default_rng(seed)
    site = np.repeat(np.arange(len(SIZES)), SIZES)
    X = rng.normal(size=(len(site), 3))
    z = X @ rng.normal(size=(3, classes)) + 0.3 * rng.gumbel(size=(len(site), classes))
    return X, z.argmax(1), site


def blocks(site, *columns):
    return [tuple(c[site == j] for c in columns) for j in np.unique(site)]


def fold_of_rows(site, count, seed):
    folds = Folds(count, seed=seed)
    out = np.zeros(len(site), dtype=int)
    for j in np.unique(site):
        out[site == j] = folds.of_block(j, int((site == j).sum()))
    return out


def test_folds_are_even_within_every_site_and_follow_the_seed():
    for j, rows in enumerate(SIZES):
        one = Folds(5, seed=1).of_block(j, rows)
        counts = np.bincount(one, minlength=5)
        assert counts.max() - counts.min() <= 1
        assert np.array_equal(one, Folds(5, seed=1).of_block(j, rows))
    assert not np.array_equal(Folds(5, seed=1).of_block(0, 40), Folds(5, seed=2).of_block(0, 40))
    assert not np.array_equal(Folds(5, seed=1).of_block(0, 40), Folds(5, seed=1).of_block(1, 40))


@pytest.mark.parametrize("cv", [4, "sites"])
@pytest.mark.parametrize("classes", [2, 3])
def test_classes_as_cross_val_predict(cv, classes):
    X, y, site = study(classes=classes)
    loss = aq.Logistic() if classes == 2 else aq.Multinomial()
    problem = aq.Problem(loss, aq.L2(2.0), blocks(site, X, y), intercept=True)
    found = aq.solve(problem, certificate_tol=1e-20).quality(cv, seed=3)
    split = LeaveOneGroupOut() if cv == "sites" else PredefinedSplit(fold_of_rows(site, cv, 3))
    model = LogisticRegression(C=0.5, tol=1e-12, max_iter=1000)
    groups = site if cv == "sites" else None
    p = cross_val_predict(model, X, y, groups=groups, cv=split, method="predict_proba")
    assert found.figures["accuracy"] == pytest.approx(metrics.accuracy_score(y, p.argmax(1)))
    assert found.figures["log_loss"] == pytest.approx(metrics.log_loss(y, p), rel=1e-6)
    auc = [metrics.roc_auc_score(y == k, p[:, k]) for k in range(classes)]
    assert found.figures["auc"] == pytest.approx(np.mean(auc), abs=5e-4)
    for j, told in enumerate(found.site_figures):
        rows = site == j
        assert told["log_loss"] == pytest.approx(metrics.log_loss(y[rows], p[rows], labels=range(classes)), rel=1e-6)
    assert found.by == ("leaving one site out" if cv == "sites" else "4 folds of the rows of each site")


@pytest.mark.parametrize("reduction", ["sum", "pooled"])
def test_numbers_as_cross_val_predict(reduction):
    X, _, site = study()
    y = X @ [1.0, -2.0, 0.5] + np.random.default_rng(1).normal(size=len(site))
    problem = aq.Problem(aq.LeastSquares(reduction=reduction), aq.L2(0.4), blocks(site, X, y), intercept=True)
    found = aq.solve(problem).quality(5, seed=2)
    folds = fold_of_rows(site, 5, 2)
    z = np.zeros(len(y))
    for k in range(5):
        train = folds != k
        alpha = 0.4 if reduction == "sum" else 0.4 * train.sum()  # a mean over the rows that are left
        z[~train] = Ridge(alpha=alpha).fit(X[train], y[train]).predict(X[~train])
    assert found.figures["r2"] == pytest.approx(metrics.r2_score(y, z), rel=1e-8)
    assert found.figures["mae"] == pytest.approx(metrics.mean_absolute_error(y, z), rel=1e-8)
    slope = sm.OLS(y, sm.add_constant(z)).fit().params
    ab = found.figures["calibration_intercept"], found.figures["calibration_slope"]
    assert ab == pytest.approx(tuple(slope), rel=1e-6)


def test_site_intercepts_come_from_the_rows_that_are_left():
    X, _, site = study()
    rng = np.random.default_rng(1)
    big = site != 2  # a site of three rows
    X, site = X[big], site[big]
    y = rng.poisson(np.exp(0.4 * X[:, 0] + 0.3 * site))
    time = rng.uniform(0.5, 2.0, size=len(y))
    parts = [(a, b, None, c) for a, b, c in blocks(site, X, y, np.log(time))]
    result = aq.solve(aq.Problem(aq.Poisson(), aq.Zero(), parts, site_intercepts=True), certificate_tol=1e-20)
    found = result.quality(3, seed=5)
    folds = np.zeros(len(y), dtype=int)
    for j, name in enumerate(np.unique(site)):
        folds[site == name] = Folds(3, seed=5).of_block(j, int((site == name).sum()))
    wide = np.hstack([X, site[:, None] == np.unique(site)])
    mu = np.zeros(len(y))
    for k in range(3):
        train = folds != k
        fitted = sm.GLM(y[train], wide[train], sm.families.Poisson(), exposure=time[train]).fit(tol=1e-13)
        mu[~train] = fitted.predict(wide[~train], exposure=time[~train])
    assert found.figures["mae"] == pytest.approx(metrics.mean_absolute_error(y, mu), rel=1e-6)
    with pytest.raises(aq.InputError, match="its own intercept is not known there"):
        result.quality("sites")


def test_a_class_that_a_fold_lacks_stays_a_class():
    X, y, site = study(classes=3)
    y = np.where(np.arange(len(y)) == 7, 3, np.minimum(y, 2))  # one row alone
    result = aq.solve(aq.Problem(aq.Multinomial(), aq.L2(1.0), blocks(site, X, y), intercept=True))
    assert 0 < result.quality(4).figures["log_loss"] < 2


def test_other_engines_give_the_same_folds_and_figures():
    X, y, site = study()
    parts = blocks(site, X, y)
    here = aq.solve(aq.Problem(aq.Logistic(), aq.L2(1.0), parts, intercept=True))
    there = aq.solve(aq.Problem.part(aq.Logistic(), aq.L2(1.0), parts, intercept=True))
    read = aq.solve(aq.Problem(aq.Logistic(), aq.L2(1.0), [lambda part=part: part for part in parts], intercept=True))
    for other in (there, read):
        for cv in (3, "sites"):
            ours, theirs = here.quality(cv).figures, other.quality(cv).figures
            assert theirs == pytest.approx(ours, rel=1e-6)


@pytest.mark.parametrize("cv", [1, 2.5, True, "rows", 0])
def test_folds_that_are_none(cv):
    X, y, site = study()
    result = aq.solve(aq.Problem(aq.Logistic(), aq.L2(1.0), blocks(site, X, y)))
    with pytest.raises(aq.InputError, match="cv must be 'sites' or a number of folds"):
        result.quality(cv)


def test_one_site_cannot_be_left_out():
    X, y, _ = study()
    result = aq.solve(aq.Problem(aq.Logistic(), aq.L2(1.0), [(X, y)]))
    with pytest.raises(aq.InputError, match="there is only one"):
        result.quality("sites")
    with pytest.raises(aq.InputError, match="seed must be a whole number"):
        result.quality(2, seed=-1)


def test_fits_that_do_not_converge_are_told():
    X, y, site = study()
    problem = aq.Problem(aq.Logistic(), aq.L2(1e-3), blocks(site, X, y), intercept=True)
    found = aq.solve(problem, "c-admm", max_iter=2).quality(2)
    assert found.notes[0].startswith("Fits that did not converge: 2 folds")
