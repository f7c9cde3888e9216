"""Predictions on new rows, files, refusals, and what is missing without formulaic."""

import hashlib
import json
import sys

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from sklearn.base import clone

import auqadmm as aq
from tests.formula.study import study

FRAME = study()
FORMULA = "falls ~ center(age) + C(stage) + bs(bmi, df=4) + C(grade) + offset(log_days)"


@pytest.fixture(scope="module")
def model():
    return aq.fit_formula(FORMULA, FRAME, "poisson", "hospital", exposure="days")


def test_new_rows_are_predicted_with_the_state_of_the_fit(model):
    new = study(50, seed=5)
    new = new[(new["bmi"] > 17) & (new["bmi"] < 37)]
    means = model.predict(new)
    np.testing.assert_array_equal(means[::-1], model.predict(new.iloc[::-1]))
    np.testing.assert_array_equal(means[:1], model.predict(new.head(1)))  # one row, one level
    np.testing.assert_allclose(model.predict(new.assign(days=2 * new["days"])), 2 * means)
    np.testing.assert_allclose(model.predict(new.drop(columns="days"), exposure=new["days"]), means)
    np.testing.assert_array_equal(model.predict(pa.Table.from_pandas(new)), means)


def test_a_model_is_kept_without_pickle_and_read_again(model, tmp_path):
    aq.save(model, tmp_path / "model")
    loaded = aq.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict(FRAME), model.predict(FRAME))
    assert loaded.get_feature_names_out().tolist() == list(model.names_)
    np.testing.assert_array_equal(loaded.coef_, model.coef_)
    assert loaded.family_.name == "poisson"
    aq.save(loaded, tmp_path / "again")
    assert (tmp_path / "again" / "model.json").read_bytes() == (tmp_path / "model" / "model.json").read_bytes()
    assert (clone(loaded).predict(FRAME) == loaded.predict(FRAME)).all()


def test_a_forged_formula_runs_no_code(model, tmp_path):
    aq.save(model, tmp_path)
    path = tmp_path / "model.json"
    for forged in ("falls ~ I(__import__('os').getcwd())", "falls ~ np.load('x')", "falls ~ age.__class__.mro()"):
        content = json.loads(path.read_text())["content"]
        content["preprocessing"]["formula"]["formula"] = forged
        text = json.dumps(content, sort_keys=True, separators=(",", ":"))
        path.write_text(json.dumps({"checksum": hashlib.sha256(text.encode()).hexdigest(), "content": content}))
        with pytest.raises(aq.ModelError, match="its parts do not fit together"):
            aq.load(tmp_path)


def test_what_the_fit_tells(model):
    assert model.formula_ == FORMULA
    assert model.names_[:3] == ("center(age)", "C(stage)[T.b]", "C(stage)[T.c]")
    assert model.levels_ == {"stage": ("a", "b", "c"), "grade": (1, 2, 3)}
    assert model.reference_ == {"stage": "a", "grade": 1}
    assert "Poisson model, link log, 3 sites" in model.summary()
    assert model.inference_.names[-1] == "Intercept"
    sites = model.inference(sites=True)
    assert sites.site_names == ("north", "south", "west")
    assert str(model.status_) in ("converged", "rounding")
    other = aq.fit_formula("sick ~ C(stage, Treatment('b'))", FRAME, "binomial")
    assert other.reference_ == {"stage": "b"}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"stage": "d"}, r"X: row 3, column 'stage' is 'd', a level that no row of the fit had \('a', 'b', 'c'\)"),
        ({"grade": 7}, "X: row 3, column 'grade' is 7, a level that no row of the fit had"),
        ({"bmi": 99.0}, "X: row 3: bmi is 99, beyond the ends of 'bs\\(bmi, df=4\\)'"),
        ({"age": np.nan}, "X: row 3, column 'age' is missing; the model needs a value there"),
        ({"stage": None}, "X: row 3, column 'stage' is missing"),
        ({"days": 0.0}, "X: row 3, column 'days' is 0; exposures are numbers above zero"),
        ({"days": np.nan}, "X: row 3, column 'days' is missing; exposures are numbers above zero"),
    ],
)
def test_new_rows_that_cannot_be_used(model, change, told):
    new = FRAME.head(6).astype({"grade": float})
    for column, value in change.items():
        new.loc[2, column] = value
    with pytest.raises(aq.InputError, match=told):
        model.predict(new)


def test_columns_that_are_missing_at_prediction(model):
    with pytest.raises(aq.InputError, match="X lacks column 'bmi'"):
        model.predict(FRAME.drop(columns="bmi"))
    with pytest.raises(aq.InputError, match="X lacks column 'days', the exposure of the fit"):
        model.predict(FRAME.drop(columns="days"))
    with pytest.raises(aq.InputError, match="exposure has 1 values but X has 240 rows"):
        model.predict(FRAME, exposure=[1.0])
    with pytest.raises(aq.InputError, match="column 'age' is 'old'"):
        model.predict(FRAME.assign(age="old"))


@pytest.mark.parametrize(
    ("formula", "told"),
    [
        ("falls ~ agee", "data: there is no column 'agee', which the formula names; .* perhaps 'age' is meant"),
        ("fals ~ age", "data: there is no target column 'fals'; .* perhaps 'falls' is meant"),
        ("falls ~ age + hospital", "column 'hospital', which the formula names, is no feature"),
        ("falls ~ falls + age", "the target 'falls' is on both sides"),
        ("falls ~ log(falls)", "the target 'falls' is on both sides"),
        ("falls ~ age +", "an operator lacks a term"),
        ("falls ~ (age", "a bracket is not closed"),
        ("falls age", "cannot be used"),
        ("falls ~ .", "columns are named one by one"),
        ("age + falls ~ bmi", "its left side must be one column, the target"),
        ("falls ~ 1", "there is no column on its right side"),
        ("falls ~ age + lag(age)", "'lag' depends on the order of rows"),
        ("falls ~ bs(center(age), df=4)", r"center\(…\) cannot be inside bs\(…\)"),
        ("falls ~ f(age)", "'f' is not offered; there are"),
        ("falls ~ I(age.sum())", "'age.sum' is not offered"),
        ("falls ~ I(2 ** age)", "exponents are numbers up to 64"),
        ("falls ~ age:offset(days)", r"offset\(…\) is a term of its own"),
        ("falls ~ age + offset(log(days - 20))", r"row \d+: offset\(log\(days - 20\)\) is -inf; offsets are finite"),
        ("stage ~ age", "column 'stage' is '.'; this model needs a number as target"),
        ("score ~ age", "row 1, column 'score' is -.*; family 'poisson' needs counts or rates, which are not negative"),
        (3, "A formula is a text"),
    ],
)
def test_formulas_that_are_refused(formula, told):
    frame = FRAME.copy()
    frame.loc[0, "score"] = -1.0
    frame.loc[0, "days"] = 20.0
    with pytest.raises(aq.InputError, match=told) as refused:
        aq.fit_formula(formula, frame, "poisson", "hospital")
    assert str(refused.value).count("\n") == 0


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"family": "posson"}, "Unknown family 'posson'; use gaussian"),
        ({"link": "probit"}, "link 'probit' is not offered for family 'poisson'; use log"),
        ({"parameter": 2.0}, "Family 'poisson' has no parameter"),
        ({"family": "tweedie", "parameter": 3.0}, "power must be between 1 and 2"),
        ({"family": "binomial", "exposure": "days"}, "exposure is for families with a logarithmic link"),
        ({"exposure": "nights"}, "there is no exposure column 'nights'"),
        ({"exposure": "stage"}, "column 'stage' is '.'; exposures must be numbers"),
        ({"offset": "stage"}, "column 'stage' is '.'; offsets must be numbers"),
        ({"exposure": "zero"}, "row 1, column 'zero' is 0; exposures are numbers above zero"),
        ({"weights": "below"}, "row 1, column 'below' is -1; weights must be finite and not negative"),
        ({"sites": "ward"}, "there is no site column 'ward'"),
        ({"sites": [1, 2]}, r"sites has shape \(2,\) but data has 240 rows"),
        ({"data": []}, "There are no data frames"),
        ({"data": 3}, "data must be a data frame, or a list or dictionary of them, got int"),
        ({"data": [np.ones((3, 3))]}, "block 0: data must be a data frame, got ndarray"),
        ({"data": [FRAME.head(0)]}, "block 0 has no rows"),
        ({"data": [FRAME, FRAME], "sites": "hospital"}, "sites has no place where data is a list"),
        ({"data": [FRAME, FRAME.drop(columns="age")]}, "block 1: there is no column 'age'"),
        ({"data": {"n": FRAME, "s": FRAME.assign(age="x")}}, "Column 'age' holds text in s .* but numbers in n"),
        ({"l1": -1}, "l1 must be a number from 0 on, got -1"),
        ({"formula": "falls ~ age - 1", "site_intercepts": True}, "Site intercepts are in place of the common one"),
        ({"family": "binomial", "formula": "grade ~ age"}, "The target has 3 labels .*; family 'binomial' needs two"),
        ({"formula": "falls ~ one"}, "Column 'one' has one level in all rows"),
        ({"formula": "falls ~ gap + age"}, "every row lacks a value that the formula needs"),
    ],
)
def test_data_and_options_that_are_refused(changes, told):
    frame = FRAME.assign(zero=0.0, below=-1.0, one="a", gap=np.nan)
    options = {"formula": "falls ~ age", "data": frame, "family": "poisson", "sites": "hospital"} | changes
    if isinstance(options["data"], list | dict | int) and "sites" not in changes:
        options["sites"] = None
    with pytest.raises(aq.InputError, match=told):
        aq.fit_formula(**options)


def test_without_formulaic_a_sentence_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "formulaic", None)
    with pytest.raises(aq.AuqadmmError, match=r'pip install "auqadmm\[formula\]"'):
        aq.fit_formula("falls ~ age", FRAME, "poisson")


def test_a_fit_that_stops_early_warns():
    with pytest.warns(UserWarning, match="fit_formula: .*"):
        aq.fit_formula("falls ~ age", FRAME, "poisson", max_iter=1)


def test_names_that_are_no_identifiers():
    frame = FRAME.rename(columns={"age": "age at entry", "bmi": "body-mass"})
    model = aq.fit_formula("sick ~ `age at entry` + log(`body-mass`) + scale(`body-mass`)", frame, "binomial")
    assert model.names_ == ("age at entry", "log(`body-mass`)", "scale(`body-mass`)")
    plain = aq.fit_formula("sick ~ age + log(bmi) + scale(bmi)", FRAME, "binomial")
    np.testing.assert_allclose(model.coef_, plain.coef_)
    np.testing.assert_allclose(model.predict(frame), plain.predict(FRAME))
    assert isinstance(model.inference_.table, pd.DataFrame)


def test_the_size_of_a_negative_binomial_is_searched_unless_it_is_given():
    rng = np.random.default_rng(4)
    data = pd.DataFrame({"x": rng.normal(size=300), "site": rng.choice(["a", "b"], size=300)})
    data["n"] = rng.poisson(rng.gamma(2.0, np.exp(0.4 * data["x"]) / 2))
    found = aq.fit_formula("n ~ x", data, "negative-binomial", sites="site")
    theirs = aq.ConsensusGLM("negative-binomial").fit(data[["x"]], data["n"], sites=data["site"])
    ours, other = found.inference(), theirs.inference_
    np.testing.assert_allclose(ours.coef, other.coef, rtol=1e-8)
    np.testing.assert_allclose([ours.k_se, ours.aic], [other.k_se, other.aic], rtol=1e-8)
    given = aq.fit_formula("n ~ x", data, "negative-binomial", sites="site", parameter=1.0)
    assert given.inference().k_se is None
    assert abs(given.inference().llf) > abs(ours.llf)
