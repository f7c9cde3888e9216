"""ConsensusCox: what it takes, gives and refuses."""

from __future__ import annotations

import pickle

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from scipy.optimize import minimize
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV

import auqadmm as aq
from auqadmm.inference.survival import pairs
from tests.cox.rows import COLUMNS, study, truth


def forms(data):
    """The same times, events and entries in every form."""
    flags = data.event == 1
    structured = np.array(
        list(zip(flags, data.time, data.entry, strict=True)),
        dtype=[("died", bool), ("days", float), ("entry", float)],
    )
    frame = pd.DataFrame({"time": data.time, "event": flags, "entry": data.entry})
    return [data.y(entry=True), (data.time, flags, data.entry), structured, frame, data.y(entry=True).tolist()]


@pytest.mark.parametrize("form", range(5))
def test_targets_in_every_form(form):
    data = study()
    model = aq.ConsensusCox().fit(data.X, forms(data)[form], sites=data.site)
    np.testing.assert_allclose(model.coef_, truth()["entry.efron.coef"], rtol=1e-8)


def test_rows_in_any_order_names_sparse_and_lists():
    data = study()
    order = np.random.default_rng(0).permutation(len(data.time))
    X = pd.DataFrame(data.X, columns=list(COLUMNS)).iloc[order]
    names = np.array(["north", "south", "east", "west", "sea", "hill"])[data.site.astype(int)]
    one = {"sites": names[order], "strata": np.array(["low", "high"])[data.stratum.astype(int)][order]}
    model = aq.ConsensusCox().fit(X, data.y(entry=True)[order], sample_weight=data.weight[order], **one)
    np.testing.assert_allclose(model.coef_, truth()["all.efron.coef"], rtol=1e-8)
    assert model.inference_.names == COLUMNS
    assert set(model.site_concordance_) == set(names)
    assert list(model.baseline_hazard([1.0]).columns.levels[1]) == ["high", "low"]
    parts = [np.flatnonzero(data.site == s) for s in range(6)]
    y = data.y(entry=True)
    again = aq.ConsensusCox().fit(
        [scipy.sparse.csr_matrix(data.X[i]) for i in parts],
        [y[i] for i in parts],
        sample_weight=[data.weight[i] for i in parts],
        strata=[data.stratum[i] for i in parts],
    )
    np.testing.assert_allclose(again.coef_, model.coef_, rtol=1e-8)
    np.testing.assert_allclose(again.inference("robust").vcov, model.inference("robust").vcov, rtol=1e-7)


def test_predictions_scores_and_a_copy():
    data = study()
    model = aq.ConsensusCox().fit(data.X, data.y(), sites=data.site)
    np.testing.assert_allclose(model.predict(data.X), data.X @ model.coef_)
    assert model.score(data.X, data.y(), sites=data.site) == pytest.approx(model.concordance_, rel=1e-12)
    table = model.inference(exponentiate=True, sites=True)
    np.testing.assert_allclose(table.table["ratio"], np.exp(model.coef_))
    assert table.sites.shape == (18, 4)
    assert table.sites.loc[[(name, c) for name in ("3.0", "4.0", "5.0") for c in table.names], "se"].isna().all()
    assert table.heterogeneity.df == 6
    text = table.summary()
    assert all(word in text for word in ("Cox model", "Events:", "hazard ratio"))
    copy = pickle.loads(pickle.dumps(model))
    assert copy.concordance_ == model.concordance_
    assert copy.inference_.aic == model.inference_.aic
    with pytest.raises(aq.InputError, match="This model was loaded"):
        copy.ph_test()
    assert clone(model).get_params()["ties"] == "efron"
    with pytest.raises(NotFittedError):
        clone(model).predict(data.X)
    search = GridSearchCV(aq.ConsensusCox(), {"l2": [0.1, 10.0]}, cv=3).fit(data.X, data.y())
    assert search.best_score_ > 0.5


@pytest.mark.parametrize(("l1", "l2", "label"), [(0.0, 2.0, "biased mean"), (3.0, 0.0, "Penalised with kinks")])
def test_penalised_fits_have_no_tests(l1, l2, label):
    data = study()
    model = aq.ConsensusCox(l1=l1, l2=l2).fit(data.X, data.y(), sites=data.site)
    found = model.inference_
    assert found.p is None
    assert found.lr_test is None
    assert label in found.label
    with pytest.raises(aq.InputError, match="ph_test is for fits without a penalty"):
        model.ph_test()


def test_a_ridge_has_the_spread_around_its_mean():
    data = study()
    model = aq.ConsensusCox(l2=2.0).fit(data.X, data.y(), sites=data.site)
    H = np.linalg.inv(aq.ConsensusCox().fit(data.X, data.y(), sites=data.site).inference_.vcov)
    assert model.inference_.df_model < 3
    assert (model.inference_.se < np.sqrt(np.diag(np.linalg.inv(H))) * 1.2).all()


@pytest.mark.parametrize("seed", range(4))
def test_pairs_one_by_one(seed):
    rng = np.random.default_rng(seed)
    n = 70
    time, event, group = rng.integers(2, 12, size=n), rng.integers(2, size=n), rng.integers(3, size=n)
    entry = np.where(rng.random(n) < 0.4, time - rng.integers(1, 6, size=n), 0)
    score, weight = rng.integers(6, size=n).astype(float), rng.uniform(0, 2, size=n)
    counts = np.zeros(3)
    for i in np.flatnonzero(event):
        for k in range(n):
            later = time[k] > time[i] or (time[k] == time[i] and not event[k])
            if group[k] == group[i] and later and entry[k] < time[i]:
                counts[0 if score[k] < score[i] else 1 if score[k] > score[i] else 2] += weight[i] * weight[k]
    found = pairs(score, time.astype(float), event, entry.astype(float), group, weight)
    np.testing.assert_allclose([found.concordant, found.discordant, found.tied], counts, rtol=1e-12)


def test_no_pair_no_concordance():
    found = aq.ConsensusCox(l2=1.0).fit([[1.0], [2.0]], [[1, 1], [1, 1]])
    assert np.isnan(found.concordance_)
    assert found.coef_[0] == 0


X, TIME, EVENT = np.arange(6.0)[:, None], np.array([4.0, 2, 6, 1, 5, 3]), np.array([1, 0, 1, 1, 0, 1])


def y(**changed):
    parts = {"time": TIME, "event": EVENT, **changed}
    return tuple(parts.values())


@pytest.mark.parametrize(
    ("model", "target", "options", "sentence"),
    [
        (aq.ConsensusCox(), y(time=TIME - 1), {}, "y, row 3: time is 0; times must be above zero"),
        (aq.ConsensusCox(), y(time=TIME * np.nan), {}, r"y\[0, 0\] is nan"),
        (aq.ConsensusCox(), y(event=EVENT + 1), {}, "y, row 0: event is 2; it must be 1"),
        (aq.ConsensusCox(), y(entry=TIME), {}, "y, row 0: entry is 4 and time 4; a row must enter before its time"),
        (aq.ConsensusCox(), y(event=EVENT * 0), {}, "No row of positive weight has an event"),
        (aq.ConsensusCox(), y(), {"sample_weight": 1 - EVENT}, "No row of positive weight has an event"),
        (aq.ConsensusCox(), y(event=EVENT[:3]), {}, r"tuple \(time, event\).* got \(6,\), \(3,\)"),
        (aq.ConsensusCox(), TIME, {}, r"y must hold time and event.* got an array of shape \(6,\)"),
        (aq.ConsensusCox(), np.ones((6, 5)), {}, r"y must hold time and event.* got an array of shape \(6, 5\)"),
        (aq.ConsensusCox(), None, {}, "y is missing: pass time and event"),
        (aq.ConsensusCox(), np.ones(6, dtype=[("a", float), ("b", float)]), {}, "one field of truth values"),
        (aq.ConsensusCox(), y(time=TIME[:4], event=EVENT[:4]), {}, "X has 6 rows but y has 4 values"),
        (aq.ConsensusCox(), y(), {"strata": [1, 2]}, "strata has 2 labels but X has 6 rows"),
        (aq.ConsensusCox(), y(), {"strata": [1, 2, None, 1, 1, 1]}, r"strata\[2\] is missing; give every row a label"),
        (aq.ConsensusCox(), y(), {"offset": [1, 2]}, "offset has 2 values but X has 6 rows"),
        (aq.ConsensusCox("exact"), y(), {}, "ties must be 'efron' or 'breslow', got 'exact'"),
        (aq.ConsensusCox(l1=-1.0), y(), {}, "l1 must be a finite number ≥ 0"),
    ],
)
def test_what_cannot_be_used_is_a_sentence(model, target, options, sentence):
    with pytest.raises(ValueError, match=sentence):
        model.fit(X, target, **options)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_no_standard_errors_where_there_are_none():
    rng = np.random.default_rng(1)
    time, event, site = rng.exponential(size=60), np.ones(60), np.repeat([0, 1, 2], 20)
    Z = rng.normal(size=(60, 2))
    for column, sentence in ((site, "do(es)? not vary among the rows at risk"), (Z[:, 0] * 2, "are collinear")):
        model = aq.ConsensusCox(max_iter=30).fit(np.column_stack([Z, column]), (time, event), sites=site)
        with pytest.raises(aq.InputError, match=sentence):
            model.inference()
    fitted = aq.ConsensusCox().fit(Z, (time, event), sites=site)
    with pytest.raises(aq.InputError, match="no Pearson residuals"):
        fitted.inference(dispersion="pearson")
    with pytest.raises(aq.InputError, match="transform must be 'km', 'rank', 'identity' or 'log', got 'sqrt'"):
        fitted.ph_test("sqrt")
    with pytest.raises(aq.InputError, match=r"grid\[1\] is nan"):
        fitted.baseline_hazard([1.0, np.nan])
    with pytest.raises(aq.InputError, match="too few event times"):
        aq.ConsensusCox().fit(Z, (np.ceil(time * 0.01), event), sites=site).ph_test("identity")


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_hazard_without_end_has_no_standard_error():
    time = np.arange(1.0, 31.0)
    model = aq.ConsensusCox(max_iter=40).fit((time < 11)[:, None] * 1.0, (time, np.ones(30)))
    with pytest.raises(aq.InputError, match=r"Column 'x0' (separates|hardly bends)"):
        model.inference()


def negative_log_likelihood(beta, X, time, event, site):
    """Breslow's, one event after the other."""
    total = 0.0
    for k in np.flatnonzero(event):
        at_risk = (site == site[k]) & (time >= time[k])
        total += np.log(np.exp(X[at_risk] @ beta).sum()) - X[k] @ beta
    return total


def test_penalty_factors():
    data, factors = study(), np.array([0.0, 1.0, 3.0])
    X, y = data.X[:, :3], data.y()
    ridge = aq.ConsensusCox("breslow", l2=2.0, penalty_factors=factors).fit(X, y, sites=data.site)

    def f(b):
        return negative_log_likelihood(b, X, data.time, data.event, data.site)

    known = minimize(lambda b: f(b) + (factors * b**2).sum(), np.zeros(3), method="BFGS", options={"gtol": 1e-7})
    np.testing.assert_allclose(ridge.coef_, known.x, atol=1e-6)
    for l1 in (4.0, 30.0):
        lasso = aq.ConsensusCox("breslow", l1=l1, penalty_factors=factors).fit(X, y, sites=data.site)
        b, at = lasso.coef_, lasso.coef_ != 0
        slope = np.array([(f(b + e) - f(b - e)) / 2e-5 for e in 1e-5 * np.eye(3)])
        assert at[0]
        np.testing.assert_allclose(slope[at], -l1 * (factors * np.sign(b))[at], atol=1e-4)
        assert (np.abs(slope[~at]) <= l1 * factors[~at] + 1e-4).all()
    assert not at.all()
    same = aq.ConsensusCox(l2=2.0, penalty_factors=np.ones(3)).fit(X, y, sites=data.site)
    np.testing.assert_allclose(same.coef_, aq.ConsensusCox(l2=2.0).fit(X, y, sites=data.site).coef_, rtol=1e-8)
    with pytest.raises(aq.InputError, match=r"penalty_factors has the shape \(2,\); 3 features"):
        aq.ConsensusCox(l2=1.0, penalty_factors=[1.0, 2.0]).fit(X, y)
    with pytest.raises(aq.InputError, match=r"penalty_factors\[1\] is -1"):
        aq.ConsensusCox(l2=1.0, penalty_factors=[1.0, -1.0, 0.0]).fit(X, y)
