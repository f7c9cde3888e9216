"""`auqadmm doctor`, `auqadmm report`, help, and completion in a shell."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import auqadmm
from auqadmm import engines, methods
from auqadmm.cli import doctor
from tests.cli import files
from tests.cli.files import people, split, summary

aq = files.aq  # fixture
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}


def test_doctor_names_versions_devices_and_engines(aq):
    ran = aq("doctor")
    assert (ran.code, ran.err) == (0, "")
    for word in (auqadmm.__version__, "torch", "pyarrow", "cpu", "cuda", "gloo", "nccl", "ray", "dask", *engines.KNOWN):
        assert word in ran.out
    assert all(character.isprintable() or character == "\n" for character in ran.out)


def test_doctor_says_what_is_missing_and_how_to_get_it(aq, monkeypatch):
    monkeypatch.setattr(doctor, "OPTIONAL", {"no-such-package": "nothing"})
    ran = aq("doctor")
    assert ran.code == 0
    assert "pip install no-such-package" in " ".join(ran.out.split())


def test_report_draws_the_page_again(aq, tmp_path):
    common = ("--model", "elastic-net", "--target", "days", "--drop", "sick,id", "--quiet", "--out", tmp_path / "out")
    assert aq("fit", *split(people(60), tmp_path, ".csv"), *common).code == 0
    page = tmp_path / "out" / "report.html"
    before = page.read_bytes()
    page.unlink()
    ran = aq("report", tmp_path / "out")
    assert (ran.code, ran.out) == (0, f"{page}\n")
    assert page.read_bytes() == before
    for word in ("Elastic net of days", "Site by site", "part-1.csv", "colour=red", "of the column"):
        assert word in before.decode()


@pytest.mark.parametrize("damage", ["summary.json", "history.parquet", "model.json"])
def test_report_of_a_damaged_fit_is_one_sentence(aq, tmp_path, damage):
    common = ("--model", "elastic-net", "--target", "days", "--features", "age", "--quiet", "--out", tmp_path / "out")
    assert aq("fit", files.write(people(20), tmp_path / "a.csv"), *common).code == 0
    (tmp_path / "out" / damage).write_text("{")
    assert damage in aq("report", tmp_path / "out").sentence
    (tmp_path / "out" / damage).unlink()
    assert damage in aq("report", tmp_path / "out").sentence


def test_a_summary_without_its_parts(aq, tmp_path):
    common = ("--model", "elastic-net", "--target", "days", "--features", "age", "--quiet", "--out", tmp_path / "out")
    assert aq("fit", files.write(people(20), tmp_path / "a.csv"), *common).code == 0
    held = summary(tmp_path / "out")
    del held["blocks"]
    (tmp_path / "out" / "summary.json").write_text(json.dumps(held))
    assert aq("report", tmp_path / "out").sentence.endswith("is damaged ('blocks'); fit again.")
    assert "is not a folder" in aq("report", tmp_path / "nowhere").sentence


def test_help_is_grouped_and_complete(aq, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    text = aq("fit", "--help").out
    for panel in ("Model", "Columns", "Run", "Output", "Examples", "Exit codes: 0 converged"):
        assert panel in text
    for option in ("--model", "--target", "--site", "--method", "--engine", "--l1", "--l2", "--out", "--resume"):
        assert option in text
    assert all(name in text for name in methods.KNOWN)
    assert "MEAN loss over all rows" in text
    for command in ("fit", "predict", "report", "doctor", "demo", "reproduce"):
        assert command in aq("--help").out


@pytest.mark.campaign
def test_completion_in_a_shell(aq, monkeypatch):
    command = ["bash", "-c", f"{sys.executable} -m auqadmm --show-completion bash; true"]
    shown = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=120)
    assert "_auqadmm_completion" in shown.stdout, shown
    words = {"_AUQADMM_COMPLETE": "complete_bash", "COMP_WORDS": "auqadmm fit --model ", "COMP_CWORD": "3"}
    for name, value in words.items():  # what the script above calls when a user presses Tab
        monkeypatch.setenv(name, value)
    assert aq().out.split() == ["logistic", "elastic-net", "svm", "glm", "cox"]
