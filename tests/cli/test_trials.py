"""`--trials`: successes of trials on files, as statsmodels' binomial of two columns has them."""

import json

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm

import auqadmm as aq_library
from tests.cli import files

aq = files.aq  # fixture
ASKED = ("--family", "binomial", "--trials", "n", "--target", "won", "--features", "age,dose")


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(5)
    table = pd.DataFrame(
        {"site": np.repeat(["a", "b", "c"], 40), "age": rng.normal(size=120), "dose": rng.normal(size=120)}
    )
    table["n"] = rng.integers(1, 30, size=120)
    table["won"] = rng.binomial(table["n"], 1 / (1 + np.exp(-0.4 * table["age"] + 0.2)))
    return table


def oracle(rows):
    both = np.column_stack([rows["won"], rows["n"] - rows["won"]])
    return sm.GLM(both, sm.add_constant(rows[["age", "dose"]], prepend=False), sm.families.Binomial()).fit(tol=1e-14)


@pytest.mark.parametrize("formula", [False, True])
def test_successes_of_trials(aq, tmp_path, rows, formula):
    path = files.write(rows, tmp_path / "rows.csv")
    asked = ("--family", "binomial", "--trials", "n", "--formula", "won ~ age + dose") if formula else ASKED
    ran = aq("fit", path, "--site", "site", *asked, "--inference", "--out", tmp_path / "out")
    assert ran.code == 0, ran.err
    found, known = json.loads((tmp_path / "out" / "summary.json").read_text()), oracle(rows)
    table = found["inference"]
    columns = table["table"]
    named = dict(zip(table["names"], zip(columns["coef"], columns["se"], strict=True), strict=True))
    for ours, theirs in {"age": "age", "dose": "dose", "intercept": "const"}.items():
        assert named[ours] == pytest.approx((known.params[theirs], known.bse[theirs]), rel=1e-8)
    assert table["deviance"] == pytest.approx(known.deviance, rel=1e-8)
    assert table["aic"] == pytest.approx(known.aic, rel=1e-8)
    model = aq_library.load(tmp_path / "out")
    np.testing.assert_allclose(model.predict(rows[["age", "dose"]]), known.fittedvalues, rtol=1e-8)
    ran = aq("predict", tmp_path / "out", path)
    told = [float(line.split(",")[1]) for line in ran.out.strip().splitlines()[1:]]
    np.testing.assert_allclose(told, known.fittedvalues, rtol=1e-8)


def test_sites_alone(aq, tmp_path, rows):
    path = files.write(rows, tmp_path / "rows.csv")
    ran = aq("meta", path, "--site", "site", *ASKED, "--out", tmp_path / "out")
    assert ran.code == 0, ran.err
    for site in json.loads((tmp_path / "out" / "meta.json").read_text())["sites"]:
        known = oracle(rows[rows["site"] == site["name"].split("'")[1]])
        assert site["coef"]["age"] == pytest.approx(known.params["age"], rel=1e-8)
        assert site["se"]["age"] == pytest.approx(known.bse["age"], rel=1e-8)


@pytest.mark.parametrize(
    ("column", "value", "sentence"),
    [
        ("won", 31, "row 3, column 'won' is 31, of 12 trials in column 'n'; there are no more successes than trials."),
        ("n", 0, "row 3, column 'n' is 0; trials are whole numbers, at least 1."),
        ("n", 12.5, "row 3, column 'n' is 12.5; trials are whole numbers, at least 1."),
        ("won", -1, "row 3, column 'won' is -1; successes are counted from 0 on."),
    ],
)
def test_what_cannot_be_counted(aq, tmp_path, rows, column, value, sentence):
    bad = rows.astype({"n": float, "won": float})
    bad.loc[2, ["won", "n"]] = 5.0, 12.0
    bad.loc[2, column] = value
    path = files.write(bad, tmp_path / "rows.csv")
    for command in ("fit", "meta"):
        said = aq(command, path, "--site", "site", *ASKED, "--out", tmp_path / command).sentence
        assert said.endswith(sentence)
        assert "rows.csv" in said


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (["--family", "poisson"], "--trials is for --family binomial"),
        (["--family", "binomial", "--weight", "age"], "--weight has no place beside --trials"),
        (["--model", "logistic"], "--trials goes with --family"),
        (["--model", "cox"], "--trials has no place beside --model cox"),
    ],
)
def test_where_trials_have_no_place(aq, tmp_path, rows, more, told):
    path = files.write(rows, tmp_path / "rows.csv")
    target = [] if "cox" in more else ["--target", "won"]
    ran = aq("fit", path, "--trials", "n", *target, *more, "--out", tmp_path / "out")
    assert ran.code == 2
    assert told in " ".join(ran.err.replace("│", " ").split())
