"""`auqadmm fit`: what it writes, how it ends, how it goes on, and what it says."""

import html
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import auqadmm
from auqadmm.cli import fit as fit_module
from tests.cli import files
from tests.cli.files import people, split, summary

aq = files.aq  # fixture
WRITTEN = {"summary.json", "history.parquet", "model.safetensors", "model.json", "report.html"}
MODEL = ("--model", "logistic", "--target", "sick", "--id", "id", "--drop", "days")


@pytest.fixture
def parts(tmp_path):
    return split(people(90), tmp_path, ".csv")


def test_everything_is_written_and_told(aq, parts, tmp_path):
    out = tmp_path / "made" / "on the way"
    ran = aq("fit", *parts, *MODEL, "--seed", "3", "--out", out)
    assert ran.code == 0
    assert {p.name for p in out.iterdir()} == WRITTEN
    assert ran.err.splitlines()[0] == "90 rows, 7 features, 2 classes, 3 workers."
    assert ran.out.splitlines()[0].startswith("Converged: within ")
    assert all(str(out / name) in ran.out for name in WRITTEN)
    assert [p.name for p in out.parent.iterdir()] == [out.name]
    told = summary(out)
    assert (told["status"], told["seed"], told["rows"], told["features"]) == ("converged", 3, 90, 7)
    assert told["certificate"]["evidence"] == "proved"
    assert told["certificate"]["relative"] <= 1e-16
    assert told["certificate"]["kkt"] <= 1e-8
    assert 0 < told["rounds_verdict"] < told["rounds"] <= told["reductions"]
    assert told["versions"]["auqadmm"] == auqadmm.__version__
    assert [b["rows"] for b in told["blocks"]] == [30, 30, 30]
    assert min(told[name] for name in ("iterations", "rounds", "bytes", "seconds", "objective")) > 0
    history = pq.read_table(out / "history.parquet").to_pylist()
    assert len(history) == told["iterations"]
    assert history[-1]["rounds"] == told["rounds"]
    assert history[-1]["objective"] == pytest.approx(told["objective"])


def test_json_lines_are_the_only_output(aq, parts, tmp_path):
    ran = aq("fit", *parts, *MODEL, "--json", "--out", tmp_path / "out")
    assert ran.code == 0
    assert ran.err == ""
    rows = [json.loads(line) for line in ran.out.splitlines()]
    assert [row["iteration"] for row in rows] == list(range(1, summary(tmp_path / "out")["iterations"] + 1))
    assert rows[-1]["kkt"] <= 1e-8
    assert rows[-1]["relative"] <= 1e-16


def test_quiet_says_nothing(aq, parts, tmp_path):
    ran = aq("fit", *parts, *MODEL, "--quiet", "--out", tmp_path / "out")
    assert (ran.code, ran.out, ran.err) == (0, "", "")


def test_progress_goes_to_standard_error(aq, parts, tmp_path, monkeypatch):
    class Eager(fit_module.Progress):
        def __init__(self, console, *, title):
            super().__init__(console, title=title, interval=0.0)

    monkeypatch.setattr(fit_module, "Progress", Eager)
    ran = aq("fit", *parts, *MODEL, "--out", tmp_path / "out")
    assert "logistic: iteration 1/1000" in ran.err
    assert "it/s" not in ran.out


@pytest.mark.parametrize("limit", [("--max-iter", "3"), ("--max-iter", "0"), ("--time-limit", "1e-9")])
def test_stopped_before_convergence_is_3_and_keeps_the_model(aq, parts, tmp_path, limit):
    ran = aq("fit", *parts, *MODEL, *limit, "--out", tmp_path / "out")
    assert ran.code == 3
    assert "with --resume" in ran.out
    assert summary(tmp_path / "out")["status"] in ("max_iter", "time_limit")
    assert {p.name for p in (tmp_path / "out").iterdir()} == WRITTEN
    assert auqadmm.load(tmp_path / "out").predict(people(5)).shape == (5,)


def test_what_a_round_costs_is_told(aq, parts, tmp_path):
    assert aq("fit", *parts, *MODEL, "--quiet", "--round-cost", "4000", "--out", tmp_path / "out").code == 0
    assert summary(tmp_path / "out")["settings"]["round_cost"] == 4000
    assert aq("fit", *parts, *MODEL, "--round-cost", "-1", "--out", tmp_path / "new").code == 2


def test_resume_goes_on_to_the_same_bits(aq, parts, tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    assert aq("fit", *parts, *MODEL, "--out", one).code == 0
    assert aq("fit", *parts, *MODEL, "--max-iter", "4", "--out", two).code == 3
    assert "holds an earlier fit; --resume" in aq("fit", *parts, *MODEL, "--out", two).sentence
    ran = aq("fit", *parts, *MODEL, "--json", "--resume", "--out", two)
    assert ran.code == 0
    assert json.loads(ran.out.splitlines()[0])["iteration"] == 5
    assert (one / "model.safetensors").read_bytes() == (two / "model.safetensors").read_bytes()
    again = aq("fit", *parts, *MODEL, "--json", "--resume", "--out", two)
    assert (again.code, again.out) == (0, "")  # nothing left to do


def test_resume_in_an_empty_folder_begins(aq, parts, tmp_path):
    assert aq("fit", *parts, *MODEL, "--resume", "--out", tmp_path / "out").code == 0


def test_resume_with_other_data_is_refused(aq, parts, tmp_path):
    assert aq("fit", *parts, *MODEL, "--quiet", "--max-iter", "3", "--out", tmp_path / "out").code == 3
    before = (tmp_path / "out" / "model.json").read_bytes()
    ran = aq("fit", *parts[:2], *MODEL, "--resume", "--out", tmp_path / "out")
    assert (ran.code, ran.out) == (1, "")
    assert "checkpoint" in ran.err.splitlines()[-1]
    assert (tmp_path / "out" / "model.json").read_bytes() == before


def test_overwrite_replaces_and_no_checkpoints_on_request(aq, parts, tmp_path):
    assert aq("fit", *parts, *MODEL, "--quiet", "--out", tmp_path / "out").code == 0
    before = (tmp_path / "out" / "model.json").read_bytes()
    assert aq("fit", tmp_path / "no.csv", *MODEL, "--overwrite", "--out", tmp_path / "out").code == 1
    assert (tmp_path / "out" / "model.json").read_bytes() == before
    more = ("--overwrite", "--l2", "0.5", "--checkpoint-every", "0")
    assert aq("fit", *parts, *MODEL, *more, "--out", tmp_path / "out").code == 0
    assert summary(tmp_path / "out")["settings"]["l2"] == 0.5
    assert {p.name for p in (tmp_path / "out").iterdir()} == WRITTEN


def test_the_split_does_not_matter(aq, tmp_path):
    frame = people(90)
    found = []
    for name, arguments in {"files": (), "site": ("--site", "ward"), "method": ("--method", "lbfgs")}.items():
        (tmp_path / name).mkdir()
        how = "unequal" if name == "files" else "thirds"
        paths = split(frame, tmp_path / name, ".parquet", how)
        more = () if "--site" in arguments else ("--features", "age,dose,colour")
        assert aq("fit", *paths, *MODEL, *more, *arguments, "--quiet", "--out", tmp_path / name / "out").code == 0
        found.append(auqadmm.load(tmp_path / name / "out").coef_)
    np.testing.assert_allclose(found[0], found[1], atol=1e-6)
    np.testing.assert_allclose(found[0], found[2], atol=1e-6)
    assert len(summary(tmp_path / "site" / "out")["blocks"]) == 6  # two sites in each of three files


def test_columns_may_come_in_another_order(aq, tmp_path):
    frame = people(60)
    one = files.write(frame.iloc[:30], tmp_path / "a.csv")
    two = files.write(frame.iloc[30:, ::-1], tmp_path / "b.csv")
    assert aq("fit", one, two, *MODEL, "--quiet", "--out", tmp_path / "out").code == 0
    assert set(auqadmm.load(tmp_path / "out").feature_names_in_) == {"age", "dose", "colour", "ward"}


@pytest.mark.parametrize(
    "arguments",
    [
        ("--model", "forest", "--target", "sick"),
        ("--model", "logistic"),
        ("--target", "sick"),
        (*MODEL, "--method", "magic"),
        (*MODEL, "--engine", "steam"),
        (*MODEL, "--impute", "hope"),
        (*MODEL, "--l1", "-1"),
        (*MODEL, "--smoothing", "0"),
        (*MODEL, "--time-limit", "0"),
        (*MODEL, "--resume", "--overwrite"),
        (*MODEL, "--wrong"),
    ],
)
def test_wrong_usage_is_2(aq, parts, tmp_path, arguments):
    assert aq("fit", *parts, *arguments, "--out", tmp_path / "out").code == 2
    assert not (tmp_path / "out").exists()


def test_a_file_named_twice_is_wrong_usage(aq, parts, tmp_path):
    assert aq("fit", parts[0], parts[0], *MODEL, "--out", tmp_path / "out").code == 2


def test_a_device_that_is_not_there_is_told_in_one_line(aq, parts, tmp_path):
    ran = aq("fit", *parts, *MODEL, "--device", "abacus", "--out", tmp_path / "out")
    assert ran.code == 1
    assert ran.err.splitlines()[-1] == "auqadmm: Unknown device 'abacus'; use 'cpu' or 'cuda'."


def test_a_full_disk_at_the_end_is_one_sentence(aq, parts, tmp_path, monkeypatch):
    def full(*_args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("auqadmm.files.model.write", full)
    ran = aq("fit", *parts, *MODEL, "--out", tmp_path / "out")
    assert ran.code == 1
    assert ran.err.splitlines()[-1].endswith("No space left on device; make room, and go on with --resume.")


def test_debug_shows_where(parts, tmp_path, capsys):
    with pytest.raises(auqadmm.InputError):
        files.command(capsys, "fit", tmp_path / "no.csv", *MODEL, "--debug", "--out", tmp_path / "out")


def test_ctrl_c_keeps_the_last_iterate_and_the_run_goes_on(aq, tmp_path):
    """A real process, interrupted in the middle."""
    parts = split(people(600), tmp_path, ".csv")
    slow = ("--method", "c-admm", "--max-iter", "1000000", "--tol", "0", "--json", "--out", tmp_path / "out")
    command = [sys.executable, "-m", "auqadmm", "fit", *map(str, (*parts, *MODEL, *slow))]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src"), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        for _ in range(5):
            assert process.stdout.readline().startswith("{")
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 3, told
    assert re.fullmatch(
        r"auqadmm: Interrupted after \d+ iterations; .* The run is saved in .* Go on with --resume\.\n",
        told,
    )
    done = summary(tmp_path / "out")
    assert done["status"] == "interrupted"
    ran = aq("fit", *parts, *MODEL, *slow, "--resume", "--max-iter", done["iterations"] + 2)
    assert json.loads(ran.out.splitlines()[0])["iteration"] == done["iterations"] + 1


def test_a_run_that_was_too_slow_says_why_on_screen_and_page(aq, parts, tmp_path):
    out = tmp_path / "out"
    slow = ("--method", "c-admm", "--max-iter", "30", "--tol", "1e-12")
    told = aq("fit", *parts, *MODEL, *slow, "--out", out)
    assert told.code == 3
    found = summary(out)["diagnosis"]
    assert found
    page = html.unescape((out / "report.html").read_text())
    for finding in found:
        assert finding["sentence"] in told.out
        assert finding["setting"] in page
    assert "Why it did not converge" in page
    assert aq("fit", *parts, *MODEL, "--out", tmp_path / "good").code == 0
    assert summary(tmp_path / "good")["diagnosis"] == []


def test_reasons_name_the_columns_as_encoded(aq, tmp_path):
    frame = people(90).assign(grams=lambda f: 1000 * f["dose"])
    parts = split(frame, tmp_path, ".csv")
    columns = ("--features", "age,dose,grams,colour", "--l2", "0", "--max-iter", "20")
    ran = aq("fit", *parts, *MODEL, *columns, "--out", tmp_path / "out")
    assert ran.code == 3
    assert summary(tmp_path / "out")["status"] == "undecided"
    assert "olumn 'dose'" in ran.out + ran.err
    assert "olumn 'grams'" in ran.out + ran.err
    assert "are collinear to rounding" in ran.out + ran.err
