"""A user on a bad day: full disks, closed pipes, killed runs, files of other programs. One sentence, nothing lost."""

import dataclasses
import errno
import os
import resource
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from auqadmm.cli import compare
from auqadmm.cli.outputs import reason
from tests.cli import files
from tests.cli.files import people, split

aq = files.aq  # fixture
ENV = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
SICK = ("--model", "logistic", "--target", "sick", "--id", "id", "--drop", "days")
GOOD = "x,g,y\n1,a,0\n2,b,1\n3,a,1\n4,b,0\n"


@contextmanager
def little_room(size):
    """No file may become larger than this, as on a disk that fills up."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture
def fitted(aq, tmp_path):
    parts = split(people(60), tmp_path, ".csv")
    assert aq("fit", *parts, *SICK, "--quiet", "--out", tmp_path / "good").code == 0
    return tmp_path / "good", parts


# ---------------------------------------------------------------------- full disks
def test_compare_on_a_full_disk_still_tells_its_result(aq, tmp_path):
    parts, out = split(people(60), tmp_path, ".csv"), tmp_path / "out"
    with little_room(20_000):
        ran = aq("compare", *parts, *SICK, "--methods", "lbfgs", "--quiet", "--out", out)
    assert ran.code == 1
    assert ran.err == f"auqadmm: Cannot write to {out}: File too large; make room, or choose another --out.\n"
    assert "L-BFGS" in ran.out
    assert list(out.iterdir()) == []


def test_demo_on_a_full_disk_leaves_no_half_of_a_picture(aq, tmp_path, monkeypatch):
    monkeypatch.setattr(compare, "MODELS", (dataclasses.replace(compare.MODELS[0], quick=2),))
    with little_room(20_000):
        ran = aq("demo", "--quick", "--quiet", "--out", tmp_path / "out")
    assert ran.code == 1
    assert ran.err.startswith(f"auqadmm: Cannot write to {tmp_path / 'out'}: File too large; make room")
    assert list((tmp_path / "out").iterdir()) == []


def test_report_on_a_full_disk_keeps_the_page_of_before(aq, fitted):
    folder, _ = fitted
    before = (folder / "report.html").read_bytes()
    with little_room(10_000):
        assert aq("report", folder).sentence == f"Cannot write to {folder}: File too large; make room."
    assert (folder / "report.html").read_bytes() == before


@pytest.mark.parametrize(
    ("every", "remedy"), [("1", "go on with --resume"), ("0", "fit again with --overwrite")], ids=["kept", "none"]
)
def test_fit_on_a_full_disk_offers_what_works(aq, tmp_path, every, remedy):
    parts, out = split(people(60), tmp_path, ".csv"), tmp_path / "out"
    arguments = ("fit", *parts, *SICK, "--quiet", "--checkpoint-every", every, "--out", out)
    with little_room(20_000):  # enough for all but the page
        assert aq(*arguments).sentence == f"Cannot write to {out}: File too large; make room, and {remedy}."
    assert aq(*arguments, remedy.split()[-1]).code == 0


def test_a_run_without_room_for_its_first_checkpoint_is_no_earlier_fit(aq, tmp_path):
    data, out = files.write(people(20), tmp_path / "a.csv"), tmp_path / "out"
    with little_room(0):
        assert "File too large" in aq("fit", data, *SICK, "--quiet", "--out", out).sentence
    assert aq("fit", data, *SICK, "--quiet", "--out", out).code == 0


def test_the_system_is_quoted_and_not_the_library_that_asked_it():
    wrapped = OSError(errno.ENOSPC, "Error writing bytes to file. Detail: [errno 28] No space left on device")
    assert reason(wrapped) == "No space left on device"
    assert reason(OSError("Stale handle")) == "Stale handle"


@pytest.mark.campaign
def test_a_full_disk_behind_standard_output(fitted):
    folder, parts = fitted
    command = [sys.executable, "-m", "auqadmm", "predict", str(folder), *map(str, parts)]
    with open("/dev/full", "w") as full:
        ran = subprocess.run(command, env=ENV, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert ran.returncode == 1
    assert ran.stderr == "auqadmm: Cannot write to standard output: No space left on device; make room.\n"


# ---------------------------------------------------------------------- predict
def test_predictions_replace_no_file_that_is_read(aq, fitted):
    folder, parts = fitted
    for out in (parts[1], folder / "history.parquet"):
        before = out.read_bytes()
        text = aq("predict", folder, *parts, "--out", out).sentence
        assert text == f"--out {out} would replace a file that is needed; choose another --out."
        assert out.read_bytes() == before


def test_predictions_into_a_folder_that_is_not_there(aq, fitted, tmp_path):
    folder, parts = fitted
    text = aq("predict", folder, parts[0], "--out", tmp_path / "no" / "p.csv").sentence
    assert text == f"Cannot write {tmp_path / 'no' / 'p.csv'}: there is no folder {tmp_path / 'no'}; make it."


def test_predictions_on_a_full_disk(aq, fitted, tmp_path):
    folder, parts = fitted
    out = tmp_path / "p.csv"
    with little_room(10):
        assert aq("predict", folder, parts[0], "--out", out).sentence == (
            f"Cannot write {out}: File too large; choose another --out."
        )
    assert not list(tmp_path.glob("*p.csv*"))


def test_names_that_are_not_utf8(aq, fitted, tmp_path):
    folder, parts = fitted
    odd = tmp_path / os.fsdecode(b"odd\xff.csv")
    odd.write_bytes(parts[0].read_bytes())
    ran = aq("predict", folder, odd, parts[1])
    assert ran.code == 0
    assert "odd\\xff.csv" in ran.out
    out = tmp_path / os.fsdecode(b"out\xff")
    assert aq("fit", odd, *SICK, "--out", out).sentence.endswith("its name is not UTF-8; choose another --out.")
    assert not out.exists()


def test_a_run_that_was_killed(aq, fitted):
    folder, parts = fitted
    again = ("fit", *parts, *SICK, "--quiet", "--overwrite", "--max-iter", "2", "--out", folder)
    assert aq(*again).code == 3
    for path in folder.iterdir():  # checkpoints are all that a killed run has
        path.unlink()
    told = f"The fit in {folder} has not finished; go on with it: the same auqadmm fit with --resume."
    assert aq("report", folder).sentence == told
    assert aq("predict", folder, parts[0]).sentence == told


def test_ctrl_c_while_files_are_read(tmp_path):
    program = """
import os, signal, sys
from auqadmm.cli import main
def hit(*_): os.kill(os.getpid(), signal.SIGINT)
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.addaudithook(lambda event, held: hit() if event == "open" and held[0] == sys.argv[1] else None)
main(["fit", sys.argv[1], "--model", "logistic", "--target", "y", "--out", sys.argv[2]])
"""
    (tmp_path / "a.csv").write_text(GOOD)
    command = [sys.executable, "-c", program, str(tmp_path / "a.csv"), str(tmp_path / "out")]
    ran = subprocess.run(command, env=ENV, capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stdout) == (130, "")
    assert ran.stderr == "auqadmm: Interrupted before there was a result.\n"


# ---------------------------------------------------------------------- csv of other programs
OTHERS = {
    "semicolons": (GOOD.replace(",", ";"), "a.csv: the header has ';' between the names; separate columns by commas."),
    "decimal commas": (
        "x;y\n1,5;0\n2,5;1\n",
        "a.csv: the header has ';' between the names; separate columns by commas.",
    ),
    "tabs": (GOOD.replace(",", "\t"), "a.csv: the header has '\\t' between the names; separate columns by commas."),
    "utf-16": (GOOD.encode("utf-16"), "a.csv is UTF-16 text; save it as UTF-8."),
    "gzip": (b"\x1f\x8b\x08\0cut in half", "a.csv is compressed; unpack it first."),
    "spreadsheet": (b"PK\x03\x04\x14\0", "a.csv is a zip archive or a spreadsheet; save it as csv."),
    "a comma for a point": (
        'x,y\n"1,5",0\n"2,5",1\n4,0\n',
        "a.csv: row 1, column 'x' is '1,5' in a column of numbers; write numbers with a point, or list the column in "
        "--categorical.",
    ),
    "digits in groups": (
        "x,y\n1_000,0\n2_000,1\n",
        "a.csv: row 1, column 'x' is '1_000' in a column of numbers; mend the value, or write NA, or list the column "
        "in --categorical.",
    ),
    "one slip": (
        GOOD.replace("3,a", "n.a.,a"),
        "a.csv: row 3, column 'x' is 'n.a.' in a column of numbers; mend the value, or write NA, or list the column in "
        "--categorical.",
    ),
    "a name of last year": (
        "age,dose,sick,ward,site,yy\n1,2,3,4,5,0\n",
        "a.csv: there is no target column 'y'; it has 'age', 'dose', 'sick', 'ward', 'site', …; perhaps 'yy' is meant.",
    ),
}


@pytest.mark.parametrize("case", OTHERS)
def test_csv_of_other_programs(aq, tmp_path, case):
    content, told = OTHERS[case]
    path = tmp_path / "a.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    text = aq("fit", path, "--model", "logistic", "--target", "y", "--out", tmp_path / "out").sentence
    assert text.replace(f"{tmp_path}{os.sep}", "") == told


def test_packed_files(aq, tmp_path):
    (tmp_path / "a.csv.gz").write_bytes(b"\x1f\x8b")
    text = aq("fit", tmp_path / "a.csv.gz", *SICK, "--out", tmp_path / "out").sentence
    assert text.endswith("a.csv.gz is compressed; unpack it first.")


def test_numbers_with_a_slip_may_be_categories(aq, tmp_path):
    (tmp_path / "a.csv").write_text("x,y\n0,0\n1,1\n2,0\n3+,1\n0,1\n")
    arguments = ("fit", tmp_path / "a.csv", "--model", "logistic", "--target", "y", "--categorical", "x", "--quiet")
    assert aq(*arguments, "--out", tmp_path / "out").code == 0
    assert aq("predict", tmp_path / "out", tmp_path / "a.csv").code == 0
