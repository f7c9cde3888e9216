"""`auqadmm predict`: what it says of files, and what it refuses."""

import io

import numpy as np
import pandas as pd
import pytest

import auqadmm
from tests.cli import files
from tests.cli.files import people, split

aq = files.aq  # fixture


@pytest.fixture(scope="module")
def logistic(tmp_path_factory):
    """A fitted model, its rows, and the folder that holds both."""
    folder = tmp_path_factory.mktemp("logistic")
    frame = people(90)
    paths = split(frame, folder, ".csv")
    _fit(folder / "fitted", paths, "--model", "logistic", "--target", "sick", "--id", "id", "--drop", "days")
    return folder / "fitted", frame


def _fit(out, paths, *arguments):
    from auqadmm.cli import main

    with pytest.raises(SystemExit) as ended:
        main(["fit", *map(str, (*paths, *arguments)), "--quiet", "--out", str(out)])
    assert not ended.value.code


def read(text):
    return pd.read_csv(io.StringIO(text))


def test_labels_and_probabilities_beside_the_ids(aq, logistic, tmp_path):
    folder, frame = logistic
    ran = aq("predict", folder, files.write(frame.drop(columns="sick"), tmp_path / "new.csv"))
    assert ran.code == 0
    found = read(ran.out)
    assert list(found.columns) == ["id", "prediction", "probability_no", "probability_yes"]
    model = auqadmm.load(folder)
    assert (found["id"] == frame["id"]).all()
    assert (found["prediction"] == model.predict(frame)).all()
    np.testing.assert_allclose(found.iloc[:, 2:], model.predict_proba(frame))


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_several_files_into_one(aq, logistic, tmp_path, suffix):
    folder, frame = logistic
    paths = [files.write(frame[:50], tmp_path / "a.csv"), files.write(frame[50:], tmp_path / "b.parquet")]
    out = tmp_path / f"predicted{suffix}"
    ran = aq("predict", folder, *paths, "--id", "", "--out", out)
    assert (ran.code, ran.out) == (0, "")
    found = pd.read_csv(out) if suffix == ".csv" else pd.read_parquet(out)
    assert list(found.columns[:3]) == ["file", "row", "prediction"]
    assert found["row"].tolist() == [*range(1, 51), *range(1, 41)]
    assert found["file"].unique().tolist() == [str(p) for p in paths]


def test_numbers_of_a_regression_and_values_that_were_filled(aq, tmp_path):
    frame = people(60)
    common = ("--model", "elastic-net", "--target", "days", "--features", "age,dose,ward", "--impute", "mean")
    _fit(tmp_path / "out", split(frame, tmp_path, ".parquet"), *common)
    frame.loc[3, "dose"], frame.loc[4, "ward"] = np.nan, None
    found = read(aq("predict", tmp_path / "out", files.write(frame, tmp_path / "new.csv")).out)
    assert list(found.columns) == ["row", "prediction"]
    model = auqadmm.load(tmp_path / "out")
    np.testing.assert_allclose(found["prediction"], model.predict(frame))
    filled = frame.fillna({"dose": people(60)["dose"].mean(), "ward": people(60)["ward"].mode()[0]})
    np.testing.assert_allclose(found["prediction"], model.predict(filled))


@pytest.mark.parametrize("suffix", [".svm", ".npz"])
def test_decision_values_of_an_svm_on_arrays(aq, tmp_path, suffix):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(60, 4)) * (rng.random((60, 4)) < 0.7), columns=list("abcd"))
    frame["y"] = np.digitize(frame["a"] + frame["b"], [-0.5, 0.5])
    _fit(tmp_path / "out", split(frame, tmp_path, suffix), "--model", "svm", "--l2", "0.1")
    new = files.write(frame[:10].assign(d=0.0), tmp_path / f"new{suffix}")  # the last feature is in no row
    found = read(aq("predict", tmp_path / "out", new).out)
    assert list(found.columns) == ["row", "prediction", "decision_0", "decision_1", "decision_2"]
    model = auqadmm.load(tmp_path / "out")
    X = frame[:10].assign(d=0.0).drop(columns="y").to_numpy()
    np.testing.assert_allclose(found.iloc[:, 2:], model.decision_function(X), atol=1e-12)
    assert (found["prediction"] == model.predict(X)).all()


def test_categories_that_look_like_numbers(aq, tmp_path):
    frame = people(60).assign(zip=[["01", "1", "2"][k % 3] for k in range(60)])
    common = ("--model", "logistic", "--target", "sick", "--features", "age,zip", "--categorical", "zip")
    _fit(tmp_path / "out", split(frame, tmp_path, ".csv"), *common)
    model = auqadmm.load(tmp_path / "out")
    assert model.get_feature_names_out().tolist() == ["age", "zip=01", "zip=1", "zip=2"]
    found = read(aq("predict", tmp_path / "out", files.write(frame, tmp_path / "new.csv")).out)
    assert (found["prediction"] == model.predict(frame)).all()


# ---------------------------------------------------------------------- refusals
def test_a_missing_column(aq, logistic, tmp_path):
    folder, frame = logistic
    path = files.write(frame.drop(columns="dose"), tmp_path / "new.csv")
    text = aq("predict", folder, path).sentence
    assert text.startswith(f"{path}: there is no column 'dose', which the model names; it has 'id', 'age'")


def test_an_unseen_category(aq, logistic, tmp_path):
    folder, frame = logistic
    frame = frame.copy()
    frame.loc[6, "colour"] = "mauve"
    path = files.write(frame, tmp_path / "new.csv")
    assert aq("predict", folder, path).sentence == (
        f"{path}: row 7, column 'colour' is 'mauve', a category that no training file had; mend it, or let such values "
        "count as none (--unseen ignore)."
    )
    found = read(aq("predict", folder, path, "--unseen", "ignore").out)
    model = auqadmm.load(folder)
    logit = model.decision_function(people(90)[6:7])[0] - model.coef_[0][_place(model, frame, people(90))]
    assert found["probability_yes"][6] == pytest.approx(1 / (1 + np.exp(-logit)))


def _place(model, frame, original):
    return model.get_feature_names_out().tolist().index(f"colour={original['colour'][6]}")


@pytest.mark.parametrize(
    ("column", "value", "told"),
    [
        ("dose", "much", "row 3, column 'dose' is 'much'; the model needs a number there."),
        ("dose", None, "row 3, column 'dose' is missing; the model needs a number there."),
        ("dose", np.inf, "row 3, column 'dose' is inf; the model needs a number there."),
        ("ward", None, "row 3, column 'ward' is missing; the model needs a category."),
        ("id", None, "row 3, column 'id' is missing; every row needs an id."),
    ],
)
def test_values_that_the_model_cannot_use(aq, logistic, tmp_path, column, value, told):
    folder, frame = logistic
    frame = frame.astype({column: object}).copy()
    frame.loc[2, column] = value
    path = files.write(frame, tmp_path / "new.csv")
    assert aq("predict", folder, path).sentence == f"{path}: {told}"


def test_a_file_of_another_kind(aq, logistic, tmp_path):
    folder, _ = logistic
    (tmp_path / "a.svm").write_text("1 1:2\n")
    assert "of another kind" in aq("predict", folder, tmp_path / "a.svm").sentence


def test_no_model(aq, tmp_path, logistic):
    path = files.write(people(5), tmp_path / "new.csv")
    assert "is not a folder" in aq("predict", tmp_path / "nowhere", path).sentence
    assert "There is no model in" in aq("predict", tmp_path, path).sentence


def test_where_it_cannot_write(aq, logistic, tmp_path):
    path = files.write(people(5), tmp_path / "new.csv")
    text = aq("predict", logistic[0], path, "--out", tmp_path / "no" / "folder.csv").sentence
    assert text.startswith(f"Cannot write {tmp_path / 'no' / 'folder.csv'}: ")
    assert aq("predict", logistic[0], path, "--out", tmp_path / "x.xlsx").code == 2
    assert aq("predict", logistic[0], path, "--unseen", "what").code == 2
