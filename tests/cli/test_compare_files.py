"""`auqadmm compare` on files: the problem that `auqadmm fit` solves, and how it ends."""

import csv
import json

import pytest

from tests.cli import files
from tests.cli.files import people, split, summary

aq = files.aq  # fixture
MODEL = ("--model", "logistic", "--target", "sick", "--id", "id", "--drop", "days", "--l2", "0.01")


@pytest.fixture
def parts(tmp_path):
    return split(people(90), tmp_path, ".csv")


def compared(folder):
    return json.loads((folder / "compare.json").read_text())


def test_the_problem_is_that_of_fit(aq, parts, tmp_path):
    assert aq("fit", *parts, *MODEL, "--quiet", "--out", tmp_path / "fit").code == 0
    ran = aq("compare", *parts, *MODEL, "--methods", "auto,lbfgs", "--gap", "1e-6", "--out", tmp_path / "new" / "cmp")
    assert ran.code == 0, ran.err
    found = compared(tmp_path / "new" / "cmp")
    assert found["optimum"] == pytest.approx(summary(tmp_path / "fit")["objective"], rel=1e-9)
    assert found["title"] == "logistic, 90 rows, 7 features, 3 workers"
    assert "Newton ◀" in ran.out
    assert "within 1e-6" in ran.out
    for name in ("compare.png", "compare.csv", "compare.json"):
        assert str(tmp_path / "new" / "cmp" / name) in ran.out.replace("\n", "")
    with (tmp_path / "new" / "cmp" / "compare.csv").open(newline="") as file:
        assert [row["status"] for row in csv.DictReader(file)] == ["reached", "reached"]


@pytest.mark.parametrize(
    "model",
    [
        ("--model", "elastic-net", "--target", "days", "--drop", "sick", "--l1", "0.01"),
        ("--model", "svm", "--target", "sick", "--drop", "days"),
        ("--model", "svm", "--target", "colour", "--drop", "days,sick"),
        ("--model", "logistic", "--target", "colour", "--drop", "days,sick", "--l1", "0.01"),
    ],
    ids=["elastic net", "svm", "svm, three classes", "lasso, three classes"],
)
def test_every_model(aq, parts, tmp_path, model):
    ran = aq("compare", *parts, *model, "--id", "id", "--methods", "auto,fista", "-q", "--out", tmp_path / "cmp")
    assert ran.code == 0, ran.err
    assert ran.err == ""
    assert [method["status"] for method in compared(tmp_path / "cmp")["methods"]] == ["reached", "reached"]


def test_no_method_reaching_the_gap_is_an_exit_code(aq, parts, tmp_path):
    ran = aq("compare", *parts, *MODEL, "--methods", "c-admm", "--max-iter", "2", "--out", tmp_path / "cmp")
    assert ran.code == 3
    assert "No method came within 1e-4 of the optimum" in ran.out
    assert compared(tmp_path / "cmp")["winner"] is None


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--methods", "sgd"), "there is no 'sgd'"),
        (("--gap", "2"), "--gap must lie between 0 and 1, got 2"),
        (("--smoothing", "0"), "--smoothing must be > 0"),
    ],
)
def test_wrong_usage_is_told_before_any_file_is_opened(aq, tmp_path, more, words):
    ran = aq("compare", tmp_path / "nowhere.csv", *MODEL, *more, "--out", tmp_path / "cmp")
    assert ran.code == 2
    assert words in " ".join(ran.err.replace("│", " ").split())
    assert not (tmp_path / "cmp").exists()


def test_a_file_that_is_not_there_is_one_sentence(aq, tmp_path):
    ran = aq("compare", tmp_path / "nowhere.csv", *MODEL, "--out", tmp_path / "cmp")
    assert "nowhere.csv" in ran.sentence


def test_a_folder_that_is_a_file_is_one_sentence(aq, parts, tmp_path):
    (tmp_path / "file").write_text("")
    ran = aq("compare", *parts, *MODEL, "--out", tmp_path / "file")
    assert ran.sentence.startswith(f"Cannot write to {tmp_path / 'file'}")
