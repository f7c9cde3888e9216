"""What a model would take without complaint: ids as features, dates as categories, one label in two spellings."""

import json
import os
import unicodedata
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import auqadmm
from auqadmm.files.preprocessing import Settings, summarize
from auqadmm.files.suspects import folded, names_rows
from auqadmm.files.tabular import Roles, read
from tests.cli import files
from tests.cli.files import people, split, summary
from tests.engines.processes import ended, ranks

aq = files.aq  # fixture
PROGRAM = Path(__file__).parent / "torch_fit.py"
SICK = ("--model", "logistic", "--target", "sick", "--drop", "days")


@pytest.fixture
def told(aq, tmp_path):
    """Fits frames by the names of their files: the sentence of the refusal, or the features."""

    def run(frames, *arguments, target="y", model=("--model", "logistic")):
        paths = [files.write(frame, tmp_path / name) for name, frame in frames.items()]
        out = tmp_path / "out"
        aim = () if target is None else ("--target", target)
        ran = aq("fit", *paths, *model, *aim, *arguments, "--quiet", "--overwrite", "--out", out)
        if ran.code == 1:
            return ran.sentence.replace(f"{tmp_path}{os.sep}", "")
        return set(auqadmm.load(out).get_feature_names_out().tolist())

    return run


def rows(count, **columns):
    rng = np.random.default_rng(count)
    return pd.DataFrame({**columns, "x": rng.normal(size=count), "y": np.arange(count) % 2})


def texts(count, name="patient", first=0):
    return rows(count, **{name: [f"p{first + k:04d}" for k in range(count)]})


REMEDY = "--id patient if it names the rows, --drop patient to leave it out, --categorical patient to encode it all the"


# ---------------------------------------------------------------------- ids
def test_a_forgotten_id_is_refused_and_each_way_out_works(told):
    frame = {"a.csv": texts(143)}
    sentence = f"Column 'patient' of a.csv has 143 different texts in 143 rows: is this an id? {REMEDY} same."
    assert told(frame) == sentence
    assert told(frame, "--features", "x,patient") == sentence
    assert told(frame, "--id", "patient") == {"x"}
    assert told(frame, "--drop", "patient") == {"x"}
    assert len(told(frame, "--categorical", "patient")) == 144


def test_ids_spread_over_small_files_are_refused_when_all_are_counted(told):
    frames = {f"{k}.csv": texts(8, first=8 * k) for k in range(4)}
    assert told(frames) == (
        "Column 'patient' of 0.csv, 1.csv, 2.csv and 1 more has 32 different texts in 32 rows: is this an id? "
        f"{REMEDY} same."
    )
    assert len(told(frames, "--categorical", "patient")) == 33


def test_ids_in_one_file_with_sites(told):
    frame = texts(30).assign(hospital=["north", "south", "west"] * 10)
    assert told({"a.parquet": frame}, "--site", "hospital").startswith(
        "Column 'patient' of a.parquet has 30 different texts in 30 rows: is this an id? --id patient"
    )


def test_a_category_with_few_rows_at_a_small_site_is_one(told):
    wards = [f"w{k:02d}" for k in range(30)]
    large = rows(300, ward=wards * 10)
    small = rows(30, ward=wards)
    assert len(told({"a.csv": large, "b.csv": small})) == 31
    assert len(told({"a.csv": rows(6, ward=list("abcdef"))})) == 7  # few of anything are categories


def test_a_name_that_says_id_is_believed_in_small_files(told):
    assert told({"a.csv": texts(5, "Patient ID")}) == (
        "Column 'Patient ID' of a.csv has 5 different texts in 5 rows: is this an id? --id 'Patient ID' if it names "
        "the rows, --drop 'Patient ID' to leave it out, --categorical 'Patient ID' to encode it all the same."
    )
    assert len(told({"a.csv": rows(6, patient_id=list("aabbcc"))})) == 4  # rows share values: not the name of one


@pytest.mark.parametrize("name", ["id", "ID", "patient_id", "PatientID", "patientid", "MRN", "study id", "subject.id"])
def test_names_of_ids(name):
    assert names_rows(name)


@pytest.mark.parametrize("name", ["age", "idle", "paid", "width", "covid", "acid", "fluid_mid", "steroid", "index"])
def test_names_of_other_columns(name):
    assert not names_rows(name)


NUMBERS = {
    "counted": ("patient", np.arange(1001, 1061), True),
    "counted from 0, unnamed": ("Unnamed: 0", np.arange(60), True),
    "an id in any order": ("mrn", np.random.default_rng(0).permutation(9000)[:60], True),
    "an id at a small site": ("patient_id", np.array([907, 12, 55]), True),
    "an id that repeats": ("patient_id", np.arange(60) // 2, False),
    "whole numbers in any order": ("platelets", np.random.default_rng(0).permutation(9000)[:60], False),
    "years": ("year", np.arange(1960, 2020), False),
    "a few in a row": ("dose", np.arange(1, 11), False),
    "fractions": ("patient_id", np.arange(60) / 7, False),
    "truth values": ("id_checked", np.arange(60) % 2 == 0, False),
}


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.parametrize("case", NUMBERS)
def test_ids_that_are_whole_numbers(told, case, suffix):
    name, values, refused = NUMBERS[case]
    frame = {f"a{suffix}": rows(len(values), **{name: values})}
    if not refused:
        assert told(frame) == {name, "x"}
        return
    text = told(frame)
    count = len(values)
    start = f"Column '{name}' of a{suffix} has {count} different whole numbers in {count} rows: is this an id? --id "
    assert text.startswith(start)
    assert text.endswith("or choose the columns with --features, this one among them, to use it as a number.")
    assert told(frame, "--features", f"x,{name}") == {name, "x"}


RNG = np.random.default_rng(5)
WRITTEN = {  # as they stand in a csv file
    "zeros in front": ("code", [f"{k:06d}" for k in RNG.permutation(4000)[:60]], True),
    "zeros in front, one twice": ("code", [f"{k:06d}" for k in (*range(7, 420, 7), 7)], True),
    "steps of ten": ("sample", [str(k) for k in RNG.permutation(60) * 10 + 40], True),
    "steps of a hundred": ("sample", [str(100 * k) for k in range(60)], True),
    "shortened by a spreadsheet": ("phone", [f"4.{k:05d}E+10" for k in RNG.permutation(99999)[:60]], True),
    "as long, written out": ("phone", [str(40_000_000_017 + 977 * k) for k in range(60)], True),
    "without zeros in front": ("platelets", [str(k) for k in RNG.permutation(np.arange(1000, 9999))[:60]], False),
    "zeros in front of few values": ("ward", [f"{k % 12:03d}" for k in range(60)], False),
    "a zero": ("score", [str(k) for k in RNG.permutation(np.arange(0, 300, 3))[:60]], False),
    "large and of any size": ("load", [f"{1 + k / 100:.2f}E+{5 + k % 6}" for k in range(60)], False),
    "steps of a dose": ("dose", [str(25 * k) for k in range(60)], False),
    "ranks": ("rank", [str(k) for k in RNG.permutation(60)], False),
}


@pytest.mark.parametrize("case", WRITTEN)
def test_ids_that_are_seen_in_how_numbers_are_written(told, case):
    name, values, refused = WRITTEN[case]
    frame = {"a.csv": rows(len(values), **{name: values})}
    if refused:
        assert f"different whole numbers in {len(values)} rows: is this an id? --id {name}" in told(frame)
    else:
        assert told(frame) == {name, "x"}
    assert told(frame, "--features", f"x,{name}") == {name, "x"}


def test_a_model_still_predicts_rows_with_numbers_in_order(aq, told, tmp_path):
    assert told({"a.csv": rows(30, step=np.arange(30))}, "--features", "x,step") == {"step", "x"}
    assert aq("predict", tmp_path / "out", tmp_path / "a.csv").code == 0


def test_ids_in_formulas(told):
    family = ("--family", "binomial")
    for column in ([f"p{k}" for k in range(60)], np.random.default_rng(0).permutation(900)[:60]):
        frame = {"a.csv": rows(60, patient=column)}
        text = told(frame, "--formula", "y ~ x + C(patient)", target=None, model=family)
        assert "60 different" in text
        assert text.endswith(
            "is this an id? Leave it out of the formula; --categorical patient encodes it all the same."
        )
        with pytest.raises(auqadmm.InputError, match=r"is this an id\? Leave it out of the formula; C\(…, levels="):
            auqadmm.fit_formula("y ~ x + C(patient)", frame["a.csv"], family="binomial")


# ---------------------------------------------------------------------- dates
DATES = ["{:02d}.03.2021", "{:02d}/03/21", "03/{:02d}/2021", "2021-03-{:02d}", "{:02d}.03.2021 10:15", "10:{:02d} am"]


@pytest.mark.parametrize("form", DATES)
def test_dates_as_text(told, tmp_path, form):
    frame = rows(12, seen=[form.format(k + 1) for k in range(12)])
    pq.write_table(pa.Table.from_pandas(frame), tmp_path / "a.parquet")  # as text, whatever it looks like
    sentence = (
        "a.parquet: column 'seen' holds dates or times, which no linear model takes; turn them into numbers, or leave "
        "the column out (--drop)."
    )
    assert told({"a.parquet": frame}) == sentence
    assert told({"a.parquet": frame}, "--drop", "seen") == {"x"}
    assert len(told({"a.parquet": frame}, "--categorical", "seen")) == 13


def test_what_only_looks_like_a_date(told):
    bands = ["10-19", "20-29", "30-39", "1.2.3", "4/5", "ab-cd"] * 2
    assert len(told({"a.csv": rows(12, band=bands)})) == 7


# ---------------------------------------------------------------------- spellings
def test_one_label_in_two_spellings(told):
    one, two = rows(6), rows(6)
    one["y"], two["y"] = ["benign", "malignant"] * 3, ["benign", "Malignant"] * 3
    sentence = (
        "Label 'malignant' (a.csv) and 'Malignant' (b.csv) differ only by case or blanks: mend one of them, or "
        "--labels-as-written."
    )
    assert told({"a.csv": one, "b.csv": two}) == sentence
    assert told({"a.csv": one, "b.csv": two}, "--labels-as-written") == {"x"}


SPELLINGS = {
    "case": ("Straße", "STRASSE", "'Straße' (a.csv) and 'STRASSE' (a.csv) differ only by case or blanks"),
    "a blank at the end": ("yes", "yes ", "'yes' (a.csv) and 'yes ' (a.csv) differ only by case or blanks"),
    "blanks inside": ("stage  2", "stage 2", "'stage␣␣2' (a.csv) and 'stage␣2' (a.csv) differ only by case or blanks"),
    "a blank that does not break": ("a b", "a\u00a0b", "'a b' (a.csv) and 'a\\xa0b' (a.csv) differ only by case"),
    "an accent on its own": (
        "caf\u00e9",
        unicodedata.normalize("NFD", "caf\u00e9"),
        "'caf\\xe9' (a.csv) and 'cafe\\u0301' (a.csv) differ only in how their characters are written",
    ),
    "wide letters": ("A1", "\uff21\uff11", "differ only in how their characters are written"),
    "a mark that is not seen": ("no", "\ufeffno", "differ only in how their characters are written"),
    "a number with a point": ("1", "1.0", "'1' (a.csv) and '1.0' (a.csv) differ only in how a number is written"),
}


@pytest.mark.parametrize("what", ["label", "category"])
@pytest.mark.parametrize("case", SPELLINGS)
def test_spellings(told, case, what):
    one, two, words = SPELLINGS[case]
    frame = rows(12, g=["other", "none", one, two] * 3)
    more = ("--categorical", "g")
    if what == "label":
        frame, more = frame.assign(y=frame["g"]).drop(columns="g"), ()
    text = told({"a.csv": frame}, *more)
    assert text.startswith("Label " if what == "label" else "Column 'g': category ")
    assert words in text
    assert text.endswith(": mend one of them, or --labels-as-written.")
    assert isinstance(told({"a.csv": frame}, *more, "--labels-as-written"), set)


@pytest.mark.parametrize(
    ("one", "two"), [("a b", "ab"), ("1.10", "1.1"), ("01", "1"), ("I", "ı"), ("e", "é"), ("A+", "A")]
)
def test_other_texts_are_different(one, two):
    assert folded(one) != folded(two)


def test_labels_that_are_numbers(told, tmp_path):
    one, two = rows(6), rows(6)
    two["y"] = two["y"].astype(float)
    assert told({"a.csv": one, "b.csv": two}) == {"x"}  # 0 and 0.0 are one number
    assert summary(tmp_path / "out")["classes"] == [0, 1]
    three = two.assign(y=two["y"].astype(int).astype(str))
    assert told({"a.parquet": one, "c.parquet": three}) == (
        "The target holds text in c.parquet but numbers in a.parquet; use one kind of label."
    )
    four = two.assign(y=two["y"].astype(str))
    assert "Label '0' (c.parquet) and '0.0' (d.parquet) differ only in how a number is written" in told(
        {"c.parquet": three, "d.parquet": four}
    )


def test_truth_values(told, tmp_path):
    frame = rows(6, smoker=[True, False, True, True, False, False])
    frame["y"] = frame["y"] == 1
    assert told({"a.csv": frame, "b.parquet": frame}) == {"smoker", "x"}
    assert summary(tmp_path / "out")["classes"] == [False, True]
    other = frame.assign(y=["TRUE", "true", "False", "yes", "yes", "no"])  # text, as not all are truth values
    assert "Label 'TRUE' (c.csv) and 'true' (c.csv) differ only by case" in told({"c.csv": other})


def test_spellings_in_frames():
    frame = rows(12, g=["a", "b", "A "] * 4)
    with pytest.raises(auqadmm.InputError, match=r"'A ' \(data\) differ only by case or blanks: mend one of them\.$"):
        auqadmm.fit_formula("y ~ x + g", frame, family="binomial")


def test_sites_with_other_spellings_in_one_file(told):
    frame = rows(12, hospital=["north", "south"] * 6)
    frame["y"] = ["no", "yes", "no", "Yes"] * 3
    assert told({"a.csv": frame}, "--site", "hospital").startswith("Label 'yes' (a.csv) and 'Yes' (a.csv) differ only")


# ---------------------------------------------------------------------- what is sent
def test_no_value_of_a_row_is_in_a_summary_beside_categories(tmp_path):
    frame = rows(4, g=["secret", "secret", "open", "open"])
    sheet = read(files.write(frame, tmp_path / "a.csv"), Roles(target="y"))
    told = summarize(sheet, Settings()).message()
    assert told["texts_at"] == {"g": 1}
    assert told["levels"] == {"g": {"secret": 0.0, "open": 0.0}}  # which categories there are, not how often
    assert json.dumps({**told, "levels": {}}).count("secret") == 0


@pytest.mark.parametrize("case", ["value", "spelling"])
def test_two_processes_hear_where_and_not_what(tmp_path, case):
    frame = people(60)
    parts = split(frame, tmp_path, ".csv")
    weighted = pd.read_csv(parts[2]).assign(w=1.0)
    for path in parts[:2]:
        files.write(pd.read_csv(path).assign(w=1.0), path)
    if case == "value":
        weighted.loc[3, "w"] = -77.25
        words = "row 4, column 'w' holds a value that cannot be used; weights must be finite and not negative."
        expected = f"auqadmm: rank 1: {parts[2]}: {words}\n"
    else:
        weighted.loc[3, "colour"] = "Red "
        words = "differ only by case or blanks: mend one of them, or --labels-as-written."
        expected = f"auqadmm: Column 'colour': category 'red' ({parts[0]}) and 'Red ' ({parts[2]}) {words}\n"
    files.write(weighted, parts[2])
    out = tmp_path / "out"
    arguments = ("fit", *parts, *SICK, "--id", "id", "--weight", "w", "--engine", "torch", "--out", out)
    with ranks(2, PROGRAM, tmp_path, *arguments) as processes:
        heard = [ended(process, 100) for process in processes]
    assert heard == [expected, ""]
    assert [process.returncode for process in processes] == [1, 1]


# ---------------------------------------------------------------------- numbers
def columns(seed, count):
    """Columns of whole numbers that name rows or days, and others that all the same differ in every row."""
    rng = np.random.default_rng(seed)
    days = pd.Timestamp("2019-03-01") + pd.to_timedelta(rng.integers(0, 2000, count), unit="D")
    refused = {
        "shuffled": rng.permutation(count) + 1000 * seed,
        "descending": np.arange(count)[::-1] * 1.0,
        "account": 4_000_000_000 + rng.permutation(10**6)[:count],
        "phone": rng.permutation(10**6)[:count] + 491_512_000_000,
        "mrn": rng.permutation(9 * count)[:count],
        "PatientNumber": rng.permutation(10**5)[:count],
        "admitted": days.strftime("%Y%m%d").astype(int),
        "discharged": days.strftime("%d %B %Y"),
        "born": days.strftime("%Y-%m"),
    }
    taken = {
        "income": rng.lognormal(10, 1, count).round(2),
        "salary": rng.permutation(np.arange(20_000, 90_000, 7))[:count],
        "won": rng.permutation(np.arange(20_000, 90_000))[:count] * 1000,
        "row_count": rng.permutation(50 * count)[:count],
        "year": 1800 + np.arange(count),
        "platelets": rng.permutation(np.arange(100, 100 + 3 * count))[:count],
        "age": np.arange(count),
        "marker": rng.normal(size=count),
        "population": 10 ** rng.uniform(4, 9, count) // 1,
    }
    return refused, taken


@pytest.mark.parametrize(("seed", "count"), [(1, 40), (2, 75), (3, 140)])
def test_numbers_that_name_rows_or_days_are_refused_and_measurements_are_not(tmp_path, seed, count):
    refused, taken = columns(seed, count)
    for name, values in refused.items():
        path = files.write(rows(count, **{name: values}), tmp_path / "a.csv")
        with pytest.raises(auqadmm.InputError, match=r"is this an id\?|holds dates or times"):
            summarize(read(path, Roles(target="y")), Settings())
        read(path, Roles(target="y", features=("x", name)))  # chosen by name
    path = files.write(rows(count, **taken), tmp_path / "b.csv")
    assert summarize(read(path, Roles(target="y")), Settings()).rows == count
