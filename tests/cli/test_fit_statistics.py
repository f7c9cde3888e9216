"""`auqadmm fit --inference --cv`: numbers of raw columns, quality on the screen, in summary.json and on the page."""

from __future__ import annotations

import html
import warnings

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from sklearn import metrics
from sklearn.linear_model import LogisticRegression

from auqadmm.quality.rows import Folds
from tests.cli import files
from tests.cli.files import people, split, summary

aq = files.aq  # fixture
LOGISTIC = ("--model", "logistic", "--target", "sick", "--id", "id", "--drop", "days")
LINEAR = ("--model", "elastic-net", "--target", "days", "--id", "id", "--drop", "sick")
PLAIN = ("--l2", "0", "--drop-first", "--inference")
FAMILIES = {"logistic": (LOGISTIC, "sick", sm.families.Binomial()), "linear": (LINEAR, "days", sm.families.Gaussian())}


def raw(frame):
    """The raw columns as the command names them, the intercept last."""
    X = pd.DataFrame({"age": frame["age"], "dose": frame["dose"]}, dtype=float)
    for name, levels in (("colour", ["green", "red"]), ("ward", ["south"])):
        for level in levels:
            X[f"{name}={level}"] = (frame[name] == level).astype(float)
    return X.assign(intercept=1.0)


def target(frame, name):
    return (frame["sick"] == "yes").astype(float) if name == "sick" else frame["days"]


@pytest.mark.parametrize("model", FAMILIES)
@pytest.mark.parametrize("flags", [(), ("--no-standardize",), ("--weight", "w")])
@pytest.mark.parametrize("cov", ["model", "robust", "cluster"])
def test_coefficients_and_errors_are_those_of_raw_rows(aq, tmp_path, model, flags, cov):
    arguments, name, family = FAMILIES[model]
    frame = people(240)
    frame["age"] += 1000  # far from zero
    frame["w"] = np.arange(240) % 3 + 1.0
    weighted = "--weight" in flags
    parts = split(frame if weighted else frame.drop(columns="w"), tmp_path, ".csv")
    ran = aq("fit", *parts, *arguments, *PLAIN, "--cov", cov, "--level", "0.9", *flags, "--out", tmp_path / "out")
    assert ran.code == 0
    told = summary(tmp_path / "out")["inference"]
    X = raw(frame)
    more = {"freq_weights": frame["w"]} if weighted else {}
    oracle = sm.GLM(target(frame, name), X - [1000, 0, 0, 0, 0, 0], family=family, **more)  # well scaled
    kinds = {"model": {}, "robust": {"cov_type": "HC0"}}
    groups = {"groups": np.repeat([0, 1, 2], 80), "use_correction": False}
    kinds["cluster"] = {"cov_type": "cluster", "cov_kwds": groups}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="cov_type not fully supported")
        truth = oracle.fit(tol=1e-14, tol_criterion="params", **kinds[cov])
    back = np.eye(6)
    back[-1, 0] = -1000
    assert told["names"] == list(X.columns)
    np.testing.assert_allclose(told["table"]["coef"], back @ truth.params, rtol=1e-8)
    errors = np.sqrt(np.diag(back @ np.asarray(truth.cov_params()) @ back.T))
    np.testing.assert_allclose(told["table"]["se"], errors, rtol=1e-8)
    assert told["deviance"] == pytest.approx(truth.deviance, rel=1e-8)
    for line in ("Rows:", "Covariance:", *X.columns):
        assert line in ran.out


def test_sites_are_in_units_of_raw_columns(aq, tmp_path):
    frame = people(240)
    parts = split(frame, tmp_path, ".csv")
    assert aq("fit", *parts, *LINEAR, *PLAIN, "--quiet", "--out", tmp_path / "out").code == 0
    told = summary(tmp_path / "out")["inference"]["sites"]
    X = raw(frame)
    for j in range(3):
        rows = slice(80 * j, 80 * (j + 1))
        alone = sm.OLS(frame["days"].iloc[rows], X.iloc[rows]).fit()  # one Newton step from anywhere is exact
        np.testing.assert_allclose(told["coef"][j], alone.params, rtol=1e-8)
        far = np.array(told["high"][j]) - told["coef"][j]
        np.testing.assert_allclose(far / alone.bse, far[0] / alone.bse.iloc[0], rtol=1e-8)


def test_quality_is_always_told(aq, tmp_path):
    frame = people(240)
    ran = aq("fit", *split(frame, tmp_path, ".csv"), *LOGISTIC, "--l2", "0.01", "--out", tmp_path / "out")
    assert "Quality of 240 rows:" in ran.out
    assert "more rounds" in ran.out
    assert "part-1" in ran.out
    told = summary(tmp_path / "out")
    assert "inference" not in told
    found = told["quality"]
    assert set(found["figures"]) >= {"accuracy", "auc", "brier", "log_loss", "calibration_slope"}
    assert len(found["sites"]) == 3
    page = html.unescape((tmp_path / "out" / "report.html").read_text())
    assert page.index("How good is it?") < page.index("What left each site") < page.index("How it converged")
    assert "auqadmm.quality" not in page


def test_a_regression_is_calibrated_in_the_units_of_its_target(aq, tmp_path):
    frame = people(240)
    frame["days"] += 50
    told = _fit(aq, tmp_path, frame, LINEAR, "--l2", "0.5")["quality"]
    curve = told["calibration"]
    assert np.average(curve["observed"], weights=curve["weight"]) == pytest.approx(frame["days"].mean())
    a, b = told["figures"]["calibration_intercept"], told["figures"]["calibration_slope"]
    assert a + b * frame["days"].mean() == pytest.approx(frame["days"].mean())


def _fit(aq, tmp_path, frame, *arguments):
    flat = [a for part in arguments for a in ([part] if isinstance(part, str) else part)]
    out = tmp_path / "out"
    assert aq("fit", *split(frame, tmp_path, ".csv"), *flat, "--quiet", "--out", out).code == 0
    return summary(out)


@pytest.mark.parametrize("cv", ["4", "sites"])
def test_rows_that_were_held_out(aq, tmp_path, cv):
    frame = people(240)
    told = _fit(aq, tmp_path, frame, LOGISTIC, "--l2", "0.02", "--cv", cv, "--seed", "7")
    X = pd.get_dummies(frame[["age", "dose", "colour", "ward"]], dtype=float)
    X[["age", "dose"]] = (X[["age", "dose"]] - X[["age", "dose"]].mean()) / X[["age", "dose"]].std(ddof=0)
    y = target(frame, "sick")
    folds = np.repeat([0, 1, 2], 80)
    if cv != "sites":
        folds = np.concatenate([Folds(4, seed=7).of_block(j, 80) for j in range(3)])
    p = np.zeros(240)
    for k in np.unique(folds):
        train = folds != k
        model = LogisticRegression(C=1 / (0.02 * train.sum()), tol=1e-12, max_iter=1000, solver="newton-cholesky").fit(
            X[train], y[train]
        )
        p[~train] = model.predict_proba(X[~train])[:, 1]
    found = told["cross_validation"]
    assert found["figures"]["log_loss"] == pytest.approx(metrics.log_loss(y, p), rel=1e-8)
    assert found["figures"]["auc"] == pytest.approx(metrics.roc_auc_score(y, p), abs=5e-4)
    page = html.unescape((tmp_path / "out" / "report.html").read_text())
    assert "on rows that were held out" in page


def test_what_has_no_standard_errors_is_one_sentence_and_the_model_is_written(aq, tmp_path):
    parts = split(people(90), tmp_path, ".csv")
    ran = aq("fit", *parts, *LOGISTIC, "--l2", "0", "--inference", "--out", tmp_path / "a")
    assert "No standard errors: Column 'colour=blue', " in ran.out
    assert "--drop-first leaves out the first" in ran.out
    ran = aq("fit", *parts, *LOGISTIC, "--inference", "--out", tmp_path / "b")
    assert "--l1 0 --l2 0 fits without a penalty" in ran.out
    assert "z" not in summary(tmp_path / "b")["inference"]["table"]
    ran = aq("fit", *parts, *LINEAR, *PLAIN, "--exponentiate", "--out", tmp_path / "c")
    assert "exp(coef) of LeastSquares has no meaning" in ran.out
    assert (tmp_path / "c" / "model.json").exists()
    ran = aq("fit", parts[0], *LOGISTIC, "--cv", "sites", "--out", tmp_path / "d")
    assert "No cross-validation: cv='sites' leaves one site out after the other, and there is only one." in ran.out


@pytest.mark.parametrize(
    "wrong",
    [
        ("--inference", "--cov", "x"),
        ("--inference", "--level", "95"),
        ("--cv", "1"),
        ("--cv", "rows"),
        ("--level", ".9"),
    ],
)
def test_wrong_usage(aq, tmp_path, wrong):
    parts = split(people(30), tmp_path, ".csv")
    assert aq("fit", *parts, *LOGISTIC, *wrong, "--out", tmp_path / "out").code == 2


def test_the_page_opens_with_the_answer(aq, tmp_path):
    frame = people(240)
    _fit(aq, tmp_path, frame, LOGISTIC, PLAIN, "--exponentiate")
    page = html.unescape((tmp_path / "out" / "report.html").read_text())
    assert "A logistic model of sick from age, dose, colour, ward, on 240 rows at 3 sites. AUC 0." in page
    order = ["Effects, and how sure", "Do sites agree?", "How good is it?", "Site by site", "What left each site"]
    places = [page.index(f">{title}</h2>") for title in [*order, "How it converged"]]
    assert places == sorted(places)
    assert page.count('<figure class="forest">') == 6  # the table, and five coefficients by site
    assert "Q = " in page
    before = (tmp_path / "out" / "report.html").read_bytes()
    assert aq("report", tmp_path / "out").code == 0
    assert (tmp_path / "out" / "report.html").read_bytes() == before


def test_a_model_keeps_nothing_of_single_sites(aq, tmp_path):
    _fit(aq, tmp_path, people(90), LOGISTIC, "--cv", "2")
    text = (tmp_path / "out" / "model.json").read_text()
    assert "part-1" not in text
    assert '"quality"' not in text
