"""`auqadmm fit --model cox`: the numbers of R's survival on files; what is kept, predicted, shown and refused."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import auqadmm
from tests.cli import files

aq = files.aq  # fixture
FIXTURES = Path(__file__).parents[1] / "cox" / "fixtures"
ROWS = pd.read_csv(FIXTURES / "rows.csv")
LINES = [line.split() for line in (FIXTURES / "survival.txt").read_text().splitlines()]
KNOWN = {name: np.array(values, dtype=float) for name, *values in LINES}
FEATURES = ["age", "dose", "marker"]
COX = ("--model", "cox", "--time", "time", "--event", "event", "--site", "site", "--features", ",".join(FEATURES))


@pytest.fixture
def rows(tmp_path):
    return files.write(ROWS, tmp_path / "rows.csv")


def fitted(aq, folder, path, *arguments):
    ran = aq("fit", path, *COX, *arguments, "--out", folder)
    assert ran.code == 0, ran.err
    return auqadmm.load(folder), files.summary(folder), ran


@pytest.mark.parametrize("ties", ["efron", "breslow"])
@pytest.mark.parametrize(
    ("case", "more"),
    [("plain", ()), ("entry", ("--entry", "entry")), ("weights", ("--weights", "weight"))],
)
def test_the_numbers_of_r(aq, tmp_path, rows, case, ties, more):
    model, kept, ran = fitted(aq, tmp_path / "out", rows, "--ties", ties, "--inference", *more)
    known = {key: KNOWN[f"{case}.{ties}.{key}"] for key in ("coef", "vcov", "aic_bic", "events", "concordance")}
    np.testing.assert_allclose(model.coef_, known["coef"], rtol=1e-8)
    found = kept["inference"]
    np.testing.assert_allclose(found["table"]["coef"], known["coef"], rtol=1e-8)
    np.testing.assert_allclose(found["table"]["se"], np.sqrt(known["vcov"].reshape(3, 3).diagonal()), rtol=1e-8)
    assert found["aic"] == pytest.approx(known["aic_bic"][0], rel=1e-8)
    figures = kept["quality"]["figures"]
    assert figures["concordance"] == pytest.approx(known["concordance"][0], rel=1e-12)
    assert figures["events"] == known["events"][0]
    assert f"concordance {figures['concordance']:.4f}, events {figures['events']:g}" in ran.out
    page = (tmp_path / "out" / "report.html").read_text()
    assert "proportional hazards model" in page
    assert f"Concordance {figures['concordance']:.4f} on the rows of the fit" in page


def test_the_model_file_predicts_log_hazards(aq, tmp_path, rows):
    model, kept, _ = fitted(aq, tmp_path / "out", rows, "--quiet")
    score = ROWS[FEATURES].to_numpy() @ KNOWN["plain.efron.coef"]
    np.testing.assert_allclose(model.predict(ROWS), score, rtol=1e-8)
    ran = aq(
        "predict", tmp_path / "out", files.write(ROWS[FEATURES], tmp_path / "new.csv"), "--out", tmp_path / "z.csv"
    )
    assert ran.code == 0, ran.err
    np.testing.assert_allclose(pd.read_csv(tmp_path / "z.csv")["prediction"], score, rtol=1e-8)
    assert (kept["target"], kept["event"], kept["settings"]["ties"]) == ("time", "event", "efron")


def test_an_estimator_is_kept_and_measured(tmp_path):
    y = ROWS[["time", "event"]].to_numpy()
    made = auqadmm.ConsensusCox().fit(ROWS[FEATURES], y, sites=ROWS["site"])
    auqadmm.save(made, tmp_path / "kept")
    np.testing.assert_allclose(auqadmm.load(tmp_path / "kept").predict(ROWS), made.predict(ROWS[FEATURES]), rtol=1e-12)
    found = made.quality(ROWS[FEATURES], y, sites=ROWS["site"])
    assert found.figures["concordance"] == pytest.approx(KNOWN["plain.efron.concordance"][0], rel=1e-12)
    np.testing.assert_allclose(found.sites["concordance"], list(made.site_concordance_.values()), rtol=1e-12)


def test_penalties_are_those_of_the_estimator(aq, tmp_path, rows):
    y = ROWS[["time", "event"]].to_numpy()
    made = auqadmm.ConsensusCox(l1=0.5, l2=2.0).fit(ROWS[FEATURES], y, sites=ROWS["site"])
    model, _, _ = fitted(aq, tmp_path / "out", rows, "--l1", "0.5", "--l2", "2", "--quiet")
    np.testing.assert_allclose(model.coef_, made.coef_, rtol=1e-8)


def test_a_formula_has_the_time_on_its_left_side(aq, tmp_path):
    frame = ROWS.assign(arm=np.where(ROWS["dose"] > 0, "drug", "none"))
    frame.loc[3, "age"] = np.nan
    frame.loc[5, "time"] = np.nan
    path = files.write(frame, tmp_path / "rows.csv")
    text = "time ~ age + C(arm) + marker"
    common = ("--model", "cox", "--event", "event", "--site", "site", "--out", tmp_path / "out", "--quiet")
    ran = aq("fit", path, "--formula", text, *common)
    assert ran.code == 0, ran.err
    whole = frame.drop(index=[3, 5])
    made = auqadmm.ConsensusCox().fit(
        whole[["age", "dose", "marker"]], whole[["time", "event"]].to_numpy(), sites=whole["site"]
    )
    model = auqadmm.load(tmp_path / "out")
    found = dict(zip(model.get_feature_names_out(), model.coef_, strict=True))
    expected = {"age": made.coef_[0], "C(arm)[none]": -made.coef_[1], "marker": made.coef_[2]}
    np.testing.assert_allclose(sorted(found.values()), sorted(expected.values()), rtol=1e-8)


def test_rows_held_out_and_what_would_be_sent(aq, tmp_path, rows):
    _, kept, _ = fitted(aq, tmp_path / "out", rows, "--cv", "3", "--quiet")
    assert 0.5 < kept["cross_validation"]["figures"]["concordance"] < 0.8
    ran = aq("fit", rows, *COX, "--dry-run")
    assert ran.code == 0, ran.err
    assert ran.out.startswith("Proportional hazards of 'time' until 'event', a baseline for every worker, ties efron")


BAD = [
    ({"time": 0}, "row 3, column 'time' is 0; times are numbers above zero"),
    ({"time": "soon"}, "row 3, column 'time' is 'soon'; times are numbers above zero"),
    ({"time": None}, "row 3, column 'time' is missing; times are numbers above zero"),
    ({"event": 2}, "row 3, column 'event' is 2; an event is 1 or true, a censored row 0 or false"),
    ({"event": "yes"}, "row 3, column 'event' is 'yes'; an event is 1 or true"),
    ({"entry": 500}, "row 3, column 'entry' is 500 and the time"),
]


@pytest.mark.parametrize(("values", "told"), BAD)
def test_a_row_that_no_model_can_have(aq, tmp_path, values, told):
    frame = ROWS.astype(dict.fromkeys(values, object))
    for name, value in values.items():
        frame.loc[2, name] = value
    path = files.write(frame, tmp_path / "rows.csv")
    text = aq("fit", path, *COX, "--entry", "entry", "--out", tmp_path / "out").sentence
    assert "rows.csv: " in text
    assert told in text


def test_events_may_be_true_and_false_and_must_occur(aq, tmp_path):
    said = files.write(ROWS.assign(event=ROWS["event"] > 0), tmp_path / "said.csv")
    model, _, _ = fitted(aq, tmp_path / "out", said, "--quiet")
    np.testing.assert_allclose(model.coef_, KNOWN["plain.efron.coef"], rtol=1e-8)
    none = files.write(ROWS.assign(event=0), tmp_path / "none.csv")
    told = aq("fit", none, *COX, "--quiet", "--out", tmp_path / "no").sentence
    assert told.startswith("No row of positive weight has an event")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--model", "logistic", "--target", "event", "--time", "time"), "--time goes with --model cox"),
        (("--model", "cox", "--event", "event"), "--time is missing"),
        (("--model", "cox", "--time", "time"), "--event is missing"),
        (("--model", "cox", "--time", "time", "--event", "event", "--target", "age"), "--target has no place"),
        (("--model", "cox", "--time", "time", "--event", "event", "--ties", "exact"), "there is no 'exact'"),
        (("--model", "cox", "--time", "time", "--event", "event", "--family", "gamma"), "--family has no place"),
    ],
)
def test_wrong_usage(aq, tmp_path, rows, arguments, told):
    ran = aq("fit", rows, *arguments, "--out", tmp_path / "out")
    assert ran.code == 2
    assert told in " ".join(ran.err.replace("│", " ").split())
