"""`auqadmm fit --formula`: on files, as statsmodels on all rows; predictions, missing values, refusals."""

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
import statsmodels.formula.api as smf

import auqadmm
from tests.cli import files
from tests.formula.study import study

aq = files.aq  # fixture
FRAME = study(160).round(4)
FORMULA = "falls ~ age + C(stage) + age:C(stage) + C(grade)"


@pytest.fixture
def paths(tmp_path):
    return [files.write(part, tmp_path / f"{name}.csv") for name, part in FRAME.groupby("hospital")]


def test_files_are_fitted_as_all_rows_in_one_place(aq, tmp_path, paths):
    ran = aq(
        "fit", *paths, "--family", "poisson", "--exposure", "days", "--formula", FORMULA, "--out", tmp_path / "out"
    )
    assert ran.code == 0, ran.err
    model = auqadmm.load(tmp_path / "out")
    known = smf.glm(FORMULA, FRAME, family=sm.families.Poisson(), exposure=FRAME["days"]).fit(tol=1e-15, maxiter=100)
    np.testing.assert_allclose(model.coef_, known.params[list(model.get_feature_names_out())], rtol=1e-8, atol=1e-10)
    ran = aq("predict", tmp_path / "out", *paths, "--out", tmp_path / "means.parquet")
    assert ran.code == 0, ran.err
    together = pd.concat([pd.read_csv(path) for path in paths])
    np.testing.assert_allclose(pd.read_parquet(tmp_path / "means.parquet")["prediction"], model.predict(together))
    kept = files.summary(tmp_path / "out")
    assert kept["settings"]["formula"] == FORMULA
    assert kept["target"] == "falls"
    assert kept["features"] == 7
    assert aq("report", tmp_path / "out").code == 0


def test_the_same_knots_from_files_and_from_frames(aq, tmp_path, paths):
    formula = "sick ~ bs(bmi, df=5) + scale(age) + poly(days, 2) + offset(log_days)"
    assert (
        aq("fit", *paths, "--family", "binomial", "--formula", formula, "--quiet", "--out", tmp_path / "out").code == 0
    )
    model, known = auqadmm.load(tmp_path / "out"), auqadmm.fit_formula(formula, FRAME, "binomial", "hospital")
    states, same = (m.encoding_.design.states["bs(bmi, df=5)"] for m in (model, known))
    assert states == same
    np.testing.assert_allclose(model.coef_, known.coef_, rtol=1e-8)


def test_rows_that_lack_a_value_are_told(aq, tmp_path):
    frame = FRAME.copy()
    frame.loc[[1, 3, 8], "age"] = np.nan
    path = files.write(frame, tmp_path / "all.csv")
    arguments = ("--family", "gaussian", "--formula", "score ~ age + stage", "--site", "hospital")
    ran = aq("fit", path, *arguments, "--out", tmp_path / "out")
    assert ran.code == 0
    assert "3 rows with missing values were left out." in ran.err
    assert files.summary(tmp_path / "out")["dropped"] == {str(path): 3}
    assert "3 rows left out, with missing values" in aq("fit", path, *arguments, "--dry-run").out
    assert "row 2, column 'age' is missing" in aq("predict", tmp_path / "out", path).sentence


def test_a_dry_run_tells_levels_references_and_knots(aq, paths):
    formula = "sick ~ age + C(stage, Treatment('b')) + bs(bmi, df=4)"
    told = aq("fit", *paths, "--family", "binomial", "--formula", formula, "--dry-run").out
    assert "Binomial model, link logit, of 'sick' being 1 (not 0): the largest likelihood." in told
    assert "levels of stage: a, b, c; compared with 'b'" in told
    assert "knots of bs(bmi, df=4): " in told
    assert "counts of rounded values" in told


def test_a_level_unseen_at_the_fit_is_named_with_its_row(aq, tmp_path, paths):
    assert aq("fit", *paths, "--family", "gaussian", "--formula", "score ~ stage", "--quiet", "--out",
              tmp_path / "out").code == 0  # fmt: skip
    frame = FRAME.head(5).copy()
    frame.loc[3, "stage"] = "z"
    new = files.write(frame, tmp_path / "new.csv")
    sentence = aq("predict", tmp_path / "out", new).sentence
    assert "new.csv: row 4, column 'stage' is 'z', a level that no row of the fit had ('a', 'b', 'c')" in sentence
    assert aq("predict", tmp_path / "out", new, "--unseen", "ignore").code == 0


@pytest.mark.parametrize(
    ("formula", "told"),
    [
        ("falls ~ agee", "there is no column 'agee', which the formula names; it has"),
        ("fals ~ age", "there is no target column 'fals'"),
        ("falls ~ age +", "an operator lacks a term"),
        ("falls ~ age + falls", "the target 'falls' is on both sides"),
        ("falls ~ lag(age)", "'lag' depends on the order of rows"),
        ("falls ~ __import__('os')", "'__import__' is not offered"),
        ("falls ~ log(age - 100)", "log(age - 100) is nan; mend it"),
        ("falls ~ C(age, levels=[1])", "which C(age, levels=…) does not list"),
    ],
)
def test_formulas_that_are_refused(aq, tmp_path, paths, formula, told):
    sentence = aq("fit", *paths, "--family", "poisson", "--formula", formula, "--out", tmp_path / "out").sentence
    assert told in sentence


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--features", "age"], "--features has no place beside --formula"),
        (["--impute", "mean"], "--impute has no place beside --formula"),
        (["--no-intercept"], "--no-intercept (write - 1) has no place"),
        (["--target", "cost"], "--target 'cost' is not the target of the formula"),
    ],
)
def test_what_a_formula_says_is_not_said_twice(aq, tmp_path, paths, arguments, told):
    common = ("--family", "poisson", "--formula", "falls ~ age")
    ran = aq("fit", *paths, *common, *arguments, "--out", tmp_path / "out")
    assert ran.code == 2
    assert told in " ".join(ran.err.replace("│", " ").split())
    assert aq("fit", *paths, "--model", "logistic", "--formula", "sick ~ age", "--out", tmp_path / "out").code == 2
