"""`auqadmm demo --quick`, end to end, and the ways to use it wrongly."""

import csv
import json
import subprocess
import sys

import matplotlib.image
import pytest
import torch
from typer.testing import CliRunner

import auqadmm
from auqadmm.cli import app, main
from auqadmm.cli import compare as demo_module
from auqadmm.methods import KNOWN

FIGURES = ("convergence.png", "weights-elastic-net.png", "weights-multinomial.png")


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo") / "made" / "on the way"
    return CliRunner().invoke(app, ["demo", "--quick", "--out", str(folder), "--seed", "3"]), folder


def test_it_ends_well_and_says_what_it_does(quick):
    result, folder = quick
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0].startswith(f"Fitting 2 models with {len(KNOWN)} methods")
    assert "about ten seconds" in " ".join(lines[:2])
    assert lines[-1].startswith("Look at ")
    for name in ("report.html", *FIGURES, "summary.json", "history.csv"):
        assert str(folder / name) in result.stdout


def test_the_tables_fit_80_columns_without_control_characters(quick):
    result, _ = quick
    table = [line for line in result.stdout.splitlines() if line.startswith(("method", "C-ADMM", "AUQ-ADMM"))]
    assert len(table) == 6
    assert all(len(line) <= 80 and "…" not in line for line in table)
    assert all(character.isprintable() or character == "\n" for character in result.output)


def test_progress_goes_to_standard_error(quick):
    result, _ = quick
    finished = [line for line in result.stderr.splitlines() if " after " in line]
    assert len(finished) == 2 * len(KNOWN)
    assert "iterations, " not in result.stdout


@pytest.mark.parametrize("name", FIGURES)
def test_figures_are_there_and_not_blank(quick, name):
    _, folder = quick
    pixels = matplotlib.image.imread(folder / name)
    assert pixels.shape[1] >= 1000
    assert pixels[..., :3].std() > 0.05


def test_summary(quick):
    _, folder = quick
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["seed"] == 3
    assert summary["versions"]["auqadmm"] == auqadmm.__version__
    assert [run["method"] for run in summary["runs"]] == 2 * list(KNOWN)
    for run in summary["runs"]:
        assert run["status"] in ("converged", "max_iter")
        assert run["objective"] >= run["optimum"] * (1 - 1e-12)
        assert 0 < run["kkt"] < 0.1
        assert run["evidence"] == "proved"
        # a bound, on both models, of a scale that is at most the objective
        assert run["gap"] >= (run["objective"] - run["optimum"]) / run["objective"] - 1e-9
        assert run["rounds"] >= run["iterations"] > 0
        assert run["bytes"] > 0
        assert run["reached"]["1e-2"] is not None


def test_history(quick):
    _, folder = quick
    summary = json.loads((folder / "summary.json").read_text())
    with (folder / "history.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == sum(run["iterations"] for run in summary["runs"])


def test_the_number_of_threads_is_given_back():
    before = torch.get_num_threads()
    with demo_module.one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before


# ---------------------------------------------------------------------- wrong usage and errors
@pytest.mark.parametrize("arguments", [["demo", "--wrong"], ["nothing"], ["demo", "--seed", "-1"], []])
def test_wrong_usage_is_2(arguments):
    assert CliRunner().invoke(app, arguments).exit_code == 2


@pytest.fixture
def no_computing(monkeypatch):
    def fail(*_args, **_options):
        raise AssertionError("computed something")

    monkeypatch.setattr(demo_module, "fit_all", fail)


def test_a_folder_that_cannot_be_written_is_told_before_computing(tmp_path, capsys, no_computing):
    taken = tmp_path / "file"
    taken.write_text("")
    for out in (taken, taken / "inside"):
        with pytest.raises(SystemExit) as ended:
            main(["demo", "--out", str(out)])
        assert ended.value.code == 1
        told = capsys.readouterr()
        assert told.out == ""
        assert told.err.splitlines() == [
            f"auqadmm: Cannot write to {out}: it is a file, or lies inside one; choose another --out."
        ]


def test_an_error_is_one_line_and_a_traceback_with_debug(tmp_path, capsys, no_computing):
    with pytest.raises(SystemExit) as ended:
        main(["demo", "--quiet", "--out", str(tmp_path)])
    assert ended.value.code == 1
    told = capsys.readouterr().err
    assert told.startswith("auqadmm: AssertionError: computed something")
    assert told.count("\n") == 1
    for arguments in (["--debug", "demo"], ["demo", "--debug"]):
        with pytest.raises(AssertionError, match="computed something"):
            main([*arguments, "--quiet", "--out", str(tmp_path)])


def test_an_interrupt_is_told_in_one_line(tmp_path, capsys, monkeypatch):
    def interrupted(*_args, **_options):
        raise KeyboardInterrupt

    monkeypatch.setattr("auqadmm.core.consensus.ConsensusADMM.step", interrupted)
    with pytest.raises(SystemExit) as ended:
        main(["demo", "--quick", "--quiet", "--out", str(tmp_path)])
    assert ended.value.code == 1
    assert capsys.readouterr().err == "auqadmm: Interrupted; nothing was written.\n"


def test_version_and_help(capsys):
    for arguments in (["--version"], ["--help"], ["demo", "-h"]):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 0
    text = capsys.readouterr().out
    assert text.startswith(f"auqadmm {auqadmm.__version__}\n")
    assert "--quick" in text


def test_python_m_auqadmm_is_the_command():
    ran = subprocess.run([sys.executable, "-m", "auqadmm", "--version"], capture_output=True, text=True, check=True)
    assert ran.stdout == f"auqadmm {auqadmm.__version__}\n"
