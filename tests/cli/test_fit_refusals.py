"""Input that cannot be used: exit code 1 and one sentence with file, column, row and value."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.cli import files
from tests.cli.files import people

aq = files.aq  # fixture
GOOD = "x,g,y\n1,a,0\n2,b,1\n3,a,1\n4,b,0\n"


@pytest.fixture
def refused(aq, tmp_path):
    """Writes files by name, fits them, and returns the sentence; nothing may be left behind."""

    def run(held, *arguments, model="logistic", target=("--target", "y")):
        paths = []
        for name, content in held.items():
            path = tmp_path / name
            if isinstance(content, str | bytes):
                path.write_bytes(content.encode() if isinstance(content, str) else content)
            paths.append(path)
        out = tmp_path / "out"
        ran = aq("fit", *paths, "--model", model, *target, *arguments, "--out", out)
        assert not (out / "summary.json").exists()
        return ran.sentence.replace(f"{tmp_path}{os.sep}", "")

    return run


CASES = {
    "missing file": ({"a.csv": None}, (), r"^a\.csv does not exist\.$"),
    "empty file": ({"a.csv": ""}, (), r"^a\.csv is empty; leave it out\.$"),
    "blank lines": ({"a.csv": "\n\n\n"}, (), r"^a\.csv has no rows below its header; leave it out\.$"),
    "header only": ({"a.csv": "x,y\n"}, (), r"^a\.csv has no rows; leave it out\.$"),
    "header without an end": ({"a.csv": "x,y"}, (), r"^a\.csv has no rows below its header; leave it out\.$"),
    "header mismatch": (
        {"a.csv": GOOD, "b.csv": GOOD.replace("x,", "z,")},
        (),
        r"^b\.csv lacks column 'x', which a\.csv has; give all files the same columns, or choose",
    ),
    "more columns": (
        {"a.csv": GOOD, "b.csv": "x,g,h,y\n1,a,2,0\n"},
        (),
        r"^a\.csv lacks column 'h', which b\.csv has",
    ),
    "text and number": (
        {"a.csv": GOOD, "b.csv": GOOD.replace("3,a", "three,a").replace("1,a", "one,a")},
        (),
        r"^Column 'x' holds text in b\.csv \(row 1\) but numbers in a\.csv; mend the value, or list",
    ),
    "target absent": (
        {"a.csv": GOOD},
        ("--target", "z"),
        r"^a\.csv: there is no target column 'z'; it has 'x', 'g', 'y'\.$",
    ),
    "site absent": ({"a.csv": GOOD}, ("--site", "z"), r"^a\.csv: there is no site column 'z'; it has"),
    "feature absent": (
        {"a.csv": GOOD},
        ("--features", "x,q"),
        r"^a\.csv: there is no column 'q', which --features names",
    ),
    "drop absent": ({"a.csv": GOOD}, ("--drop", "q"), r"^a\.csv: there is no column 'q', which --drop names"),
    "no feature": ({"a.csv": GOOD}, ("--drop", "x,g"), r"^a\.csv: no column is left as a feature"),
    "one class": (
        {"a.csv": "x,y\n1,7\n", "b.csv": "x,y\n2,7\n"},
        (),
        r"^All rows of a\.csv, b\.csv have the label 7; at least two classes are needed\.$",
    ),
    "labels of two kinds": (
        {"a.csv": GOOD, "b.csv": "x,g,y\n1,a,yes\n2,b,no\n"},
        (),
        r"^The target holds text in b\.csv but numbers in a\.csv; use one kind of label\.$",
    ),
    "a measurement as the label": (
        {"a.csv": "x,y\n" + "".join(f"{k / 2},{k % 40 + 0.5}\n" for k in range(60))},
        (),
        r"^The target has 40 different values \(0\.5, 1\.5, .*\), too many for classes; .* --model elastic-net\.$",
    ),
    "too many classes": (
        {"a.csv": "x,y\n" + "".join(f"{k / 2},{k + 0.5}\n" for k in range(1500))},
        (),
        r"^a\.csv: the target has 1500 different values, too many for classes; .* --model elastic-net\.$",
    ),
    "nan": ({"a.csv": GOOD.replace("2,b", "NaN,b")}, (), r"^a\.csv: row 2, column 'x' is missing; .*--impute mean"),
    "missing category": ({"a.csv": GOOD.replace("3,a", "3,")}, (), r"^a\.csv: row 3, column 'g' is missing; "),
    "missing target": ({"a.csv": GOOD.replace("3,a,1", "3,a,")}, (), r"^a\.csv: row 3, column 'y' has no target; "),
    "missing site": (
        {"a.csv": GOOD.replace("3,a", "3,")},
        ("--site", "g"),
        r"^a\.csv: row 3, column 'g' is missing; say which",
    ),
    "infinite": ({"a.csv": GOOD.replace("3,a", "-inf,a")}, (), r"^a\.csv: row 3, column 'x' is -inf; "),
    "infinite, imputed": (
        {"a.csv": GOOD.replace("3,a", "inf,a")},
        ("--impute", "mean"),
        r"^a\.csv: row 3, column 'x' is inf; ",
    ),
    "too large": (
        {"a.csv": GOOD.replace("3,a", "1e300,a")},
        (),
        r"^Column 'x' holds numbers too large to be squared; ",
    ),
    "negative weight": (
        {"a.csv": GOOD.replace("2,b", "-2,b")},
        ("--weight", "x"),
        r"^a\.csv: row 2, column 'x' is -2; weights",
    ),
    "no weight at all": ({"a.csv": "x,w,y\n1,0,1\n2,0,0\n"}, ("--weight", "w"), r"^a\.csv: every weight is zero; "),
    "duplicate ids": (
        {"a.csv": GOOD},
        ("--id", "g"),
        r"^a\.csv: row 3, column 'g' repeats the id 'a' of row 1; every id may occur once\.$",
    ),
    "duplicate ids in two files": (
        {"a.csv": "i,x,y\n01,1,0\n02,2,1\n", "b.csv": "i,x,y\n1,1,0\n01,2,1\n"},
        ("--id", "i"),
        r"^b\.csv: row 2 repeats the id '01' of row 1 of a\.csv; every id may occur once\.$",
    ),
    "two columns of one name": (
        {"a.csv": "x,x,y\n1,2,0\n"},
        (),
        r"^a\.csv: two columns are named 'x'; rename one of them\.$",
    ),
    "a column without a name": ({"a.csv": ",x,y\n0,1,0\n"}, (), r"^a\.csv: column 1 has no name; "),
    "a short row": ({"a.csv": GOOD + "5,a\n"}, (), r"^a\.csv: row 5 has 2 fields but the header 3; mend the row\.$"),
    "a binary file": (
        {"a.csv": b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + bytes(range(256))},
        (),
        r"^a\.csv is not a text file; ",
    ),
    "latin-1": (
        {"a.csv": "x,g,y\n1,é,0\n2,b,1\n".encode("latin-1")},
        (),
        r"^a\.csv: column 'g' holds bytes that are not UTF-8",
    ),
    "a latin-1 header": ({"a.csv": "é,y\n1,0\n".encode("latin-1")}, (), r"^a\.csv is not UTF-8 text; convert it\.$"),
    "dates": (
        {"a.csv": "x,y\n2020-01-01,0\n2020-01-02,1\n"},
        (),
        r"^a\.csv: column 'x' holds dates or times, .*--drop",
    ),
    "text without one-hot": ({"a.csv": GOOD}, ("--no-one-hot",), r"^a\.csv: row 1, column 'g' is 'a', a text; "),
    "too many categories": (
        {"a.csv": "x,y\n" + "".join(f"name {k},{k % 2}\n" for k in range(1200))},
        (),
        r"^Column 'x' of a\.csv has 1200 different texts in 1200 rows: is this an id\?",
    ),
    "a column without a value": (
        {"a.csv": "x,e,y\n1,,0\n2,,1\n"},
        ("--impute", "mean"),
        r"column 'e' has no value in any row",
    ),
    "no parquet": ({"a.parquet": GOOD}, (), r"^a\.parquet cannot be read as parquet: "),
    "another ending": ({"a.xlsx": GOOD}, ("--features", "x"), r"^a\.xlsx has no known ending; auqadmm reads \.csv, "),
}


@pytest.mark.parametrize("case", CASES)
def test_one_sentence(refused, case):
    held, arguments, told = CASES[case]
    assert re.search(told, refused(held, *arguments)), refused(held, *arguments)


def test_a_text_as_the_target_of_a_regression(refused):
    text = refused({"a.csv": "x,y\n1,2.5\n2,many\n"}, model="elastic-net")
    told = "this model needs a number as target; for labels use --model logistic or svm."
    assert text == f"a.csv: row 2, column 'y' is 'many'; {told}"


def test_nested_parquet_columns(refused, tmp_path):
    pq.write_table(pa.table({"x": [[1, 2], [3]], "y": [0, 1]}), tmp_path / "a.parquet")
    assert refused({"a.parquet": None}).startswith("a.parquet: column 'x' holds values of type list<")


ARRAYS = {
    "no X": ({"y": [0, 1]}, "a.npz has no X; it has 'y'."),
    "pickled": ({"X": np.array([[{}]], dtype=object), "y": [0]}, "a.npz cannot be read as npz: "),
    "text": (
        {"X": np.array([["a"], ["b"]]), "y": [0, 1]},
        "a.npz: X must be a matrix of numbers, one row per sample; ",
    ),
    "lengths": ({"X": np.ones((3, 2)), "y": [0, 1]}, "a.npz: y must have 3 values, one per row of X; "),
    "names": ({"X": np.ones((2, 2)), "y": [0, 1], "feature_names": ["a"]}, "a.npz: feature_names must have 2 names; "),
    "no y": ({"X": np.ones((2, 2))}, "a.npz has no target."),
    "nan": ({"X": np.array([[1, 2], [3, np.nan]]), "y": [0, 1]}, "a.npz: row 2, column 'x1' is missing; "),
}


@pytest.mark.parametrize("case", ARRAYS)
def test_npz(refused, tmp_path, case):
    held, told = ARRAYS[case]
    np.savez(tmp_path / "a.npz", **held)
    assert refused({"a.npz": None}, target=()).startswith(told)


SVMLIGHT = {
    "1 1:0.5\n0 1:x\n": "a.svm: line 2 is not svmlight (label index:value …): ",
    "1 1:0.5\n0 4000000000:1\n": "a.svm",
    "1 1:0.5\n0 20000000:1\n": "a.svm names feature 20000000; at most 10000000 are read.",
    "1 1:nan\n0 1:2\n": "a.svm: row 1, column '1' is nan; remove the row or the value.",
    "1 1:2\n1 1:3\n": "All rows of a.svm have the label 1; at least two classes are needed.",
    "1\n0\n": "a.svm: there is not a single feature; a model needs at least one.",
}


@pytest.mark.parametrize("content", SVMLIGHT)
def test_svmlight(refused, content):
    assert refused({"a.svm": content}, target=()).startswith(SVMLIGHT[content])


def test_sparse_and_dense_files_together(refused, tmp_path):
    np.savez(tmp_path / "b.npz", X=np.eye(2), y=[0, 1])
    assert "use one format for all" in refused({"a.svm": "1 1:2\n0 1:3\n", "b.npz": None}, target=())


# ---------------------------------------------------------------------- sizes
PROGRAM = """
import resource, sys, time
from auqadmm.files.tabular import Roles, read
before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
for path in sys.argv[1:]:
    try:
        read(path, Roles(target="y" if path.endswith("csv") else None))
    except ValueError as error:
        print(error)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024, time.perf_counter() - began)
"""


@pytest.mark.campaign
def test_a_line_of_two_gigabytes_is_refused_quickly_and_in_little_memory(tmp_path):
    paths = []
    for name, start in {"rows.csv": "x,y\n1,2\n", "header.csv": "", "a.svm": "1 1:2\n"}.items():
        paths.append(tmp_path / name)
        with paths[-1].open("wb") as file:  # one line; all but its beginning is a hole that takes no disk
            file.write(start.encode() + b"7" * (1 << 20))
            file.truncate(1 << 31)
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    command = [sys.executable, "-c", PROGRAM, *map(str, paths)]
    ran = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=True)
    *told, numbers = ran.stdout.splitlines()
    quoted = ", or a quote that is never closed; it is not read."
    assert told == [
        f"{paths[0]} has a row longer than 16 MiB{quoted}",
        f"{paths[1]} has a row longer than 16 MiB{quoted}",
        f"{paths[2]} is not a text file; svmlight files are text.",
    ]
    grown, took = map(float, numbers.split())
    assert grown < 250
    assert took < 10


def test_a_long_line_of_svmlight(tmp_path, refused):
    assert refused({"a.svm": "1 1:2\n" + "0 " + "1:1 " * (1 << 23)}, target=()) == (
        "a.svm has a line longer than 16 MiB; it is not read."
    )


# ---------------------------------------------------------------------- the folder
def test_a_folder_that_cannot_be_written(aq, tmp_path):
    data = files.write(people(20), tmp_path / "a.csv")
    taken = tmp_path / "file"
    taken.write_text("")
    for out in (taken, taken / "inside", Path("/proc/nothing")):
        text = aq("fit", data, "--model", "logistic", "--target", "sick", "--out", out).sentence
        assert text.startswith(f"Cannot write to {out}: ")


def test_a_folder_that_holds_something_else(aq, tmp_path):
    data = files.write(people(20), tmp_path / "a.csv")
    common = ("fit", data, "--model", "logistic", "--target", "sick", "--out")
    thesis = tmp_path / "home"
    thesis.mkdir()
    (thesis / "thesis.tex").write_text("years of work")
    for more in ((), ("--resume",), ("--overwrite",)):
        text = aq(*common, thesis, *more).sentence
        assert text == f"{thesis} holds something else ('thesis.tex'); choose an empty folder for --out."
    assert (thesis / "thesis.tex").read_text() == "years of work"
    for name in ("report.html", "checkpoints/epoch-1.pt", "model.json"):
        other = tmp_path / name.replace("/", "-")
        (other / name).parent.mkdir(parents=True)
        (other / name).write_text("of another program")
        assert "holds something else" in aq(*common, other, "--overwrite").sentence
        assert (other / name).read_text() == "of another program"
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "summary.json").write_text('{"total": 3}')
    text = aq(*common, tmp_path / "foreign", "--overwrite").sentence
    assert text.endswith("summary.json was not written by auqadmm fit; choose another folder.")


@pytest.mark.parametrize("twice", [["--drop", "x", "--drop", "g"], ["--features=x", "--features", "g"]])
def test_a_list_of_columns_that_is_given_twice(aq, tmp_path, twice):
    (tmp_path / "part.csv").write_text(GOOD)
    ran = aq("fit", tmp_path / "part.csv", "--model", "logistic", "--target", "y", *twice, "--out", tmp_path / "out")
    assert ran.code == 2
    told = " ".join(ran.err.replace("│", " ").split())
    assert f"{twice[-2]} is given more than once; write the names in one: a,b,c" in told
