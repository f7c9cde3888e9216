"""Checkpoints of `auqadmm fit`: beside the model, for their owner alone, gone when they have served."""

import json
import os
import shutil
import stat

import pytest

import auqadmm
from auqadmm.cli import checkpoints
from tests.cli import files
from tests.cli.files import people, split, summary

aq = files.aq  # fixture
MODEL = ("--model", "logistic", "--target", "sick", "--id", "id", "--drop", "days")
SHORT = ("--max-iter", "4")


@pytest.fixture
def fit(aq, tmp_path):
    parts = split(people(90), tmp_path, ".csv")
    return lambda *more: aq("fit", *parts, *MODEL, *more)


def names(folder):
    return sorted(p.name for p in folder.iterdir())


def test_a_run_that_converged_keeps_none_unless_asked(fit, tmp_path):
    out, saved = tmp_path / "out", tmp_path / "out.checkpoint"
    ran = fit("--out", out)
    assert ran.code == 0
    assert "checkpoint" not in ran.out
    assert not saved.exists()
    assert not any("checkpoint" in name for name in names(out))
    ran = fit("--keep-checkpoint", "--overwrite", "--out", out)
    assert f"  {saved}: checkpoints, as private as rows" in ran.out.splitlines()
    assert checkpoints.begun(saved)
    again = fit("--json", "--resume", "--keep-checkpoint", "--out", out)
    assert (again.code, again.out) == (0, "")
    assert checkpoints.begun(saved)


def test_a_run_that_stopped_names_them_and_nobody_else_may_look(fit, tmp_path):
    out, saved = tmp_path / "out", tmp_path / "out.checkpoint"
    ran = fit(*SHORT, "--out", out)
    assert ran.code == 3
    assert ran.out.split("Written:\n")[1].splitlines()[-3] == f"  {saved}: checkpoints, as private as rows"
    assert stat.S_IMODE(saved.stat().st_mode) == 0o700
    assert fit("--quiet", "--resume", "--out", out).code == 0
    assert summary(out)["status"] == "converged"
    assert not saved.exists()


def test_a_place_of_ones_own(fit, tmp_path):
    out, saved = tmp_path / "out", tmp_path / "private" / "here"
    assert fit(*SHORT, "--quiet", "--checkpoint", saved, "--out", out).code == 3
    assert checkpoints.begun(saved)
    assert stat.S_IMODE(saved.stat().st_mode) == 0o700
    assert not (tmp_path / "out.checkpoint").exists()
    assert fit("--resume", "--out", out).sentence == (
        f"The fit in {out} has no checkpoint in {tmp_path / 'out.checkpoint'}: there is nothing to go on from; "
        "--overwrite fits again, another --out keeps it."
    )
    assert not (tmp_path / "out.checkpoint").exists()
    ran = fit("--json", "--resume", "--checkpoint", saved, "--out", out)
    assert json.loads(ran.out.splitlines()[0])["iteration"] == 5
    assert not saved.exists()


def test_a_place_that_will_not_do(fit, tmp_path):
    out = tmp_path / "out"
    for inside in (out, out / "checkpoints"):
        assert fit("--checkpoint", inside, "--out", out).sentence == (
            f"Checkpoints are as private as rows, and {inside} lies in --out, which is handed on; choose another "
            "--checkpoint."
        )
    home = tmp_path / "home"
    home.mkdir()
    (home / "thesis.tex").write_text("years of work")
    for more in ((), ("--overwrite",), ("--resume",)):
        assert fit("--checkpoint", home, "--out", out, *more).sentence == (
            f"{home} holds something else ('home/thesis.tex'); choose another --checkpoint."
        )
    assert names(home) == ["thesis.tex"]
    link = tmp_path / "link"
    link.symlink_to(home)
    assert "holds something else ('link')" in fit("--checkpoint", link, "--out", out).sentence
    assert fit("--checkpoint", "/proc/nothing", "--out", out).sentence.endswith(
        "; choose another place with --checkpoint, or none with --checkpoint-every 0."
    )
    assert not out.exists()


def test_checkpoints_without_a_model_are_an_unfinished_fit(fit, tmp_path):
    out, saved = tmp_path / "out", tmp_path / "out.checkpoint"
    assert fit(*SHORT, "--quiet", "--out", out).code == 3
    shutil.rmtree(out)
    assert fit("--out", out).sentence == (
        f"{saved} holds the checkpoints of an unfinished fit; --resume goes on with it, --overwrite replaces it, "
        "another --out keeps it."
    )
    assert not out.exists()
    assert checkpoints.begun(saved)
    ran = fit("--json", "--resume", "--out", out)
    assert json.loads(ran.out.splitlines()[0])["iteration"] == 5


def test_a_run_of_the_earlier_layout_goes_on(fit, tmp_path):
    whole, out, saved = tmp_path / "whole", tmp_path / "out", tmp_path / "out.checkpoint"
    assert fit("--quiet", "--out", whole).code == 0
    assert fit(*SHORT, "--quiet", "--out", out).code == 3
    saved.rename(out / "checkpoints")
    assert "holds an earlier fit; --resume" in fit("--out", out).sentence
    assert fit("--max-iter", "5", "--quiet", "--resume", "--out", out).code == 3
    assert not (out / "checkpoints").exists()  # moved out of the folder of the model
    assert stat.S_IMODE(saved.stat().st_mode) == 0o700
    ran = fit("--json", "--resume", "--out", out)
    assert json.loads(ran.out.splitlines()[0])["iteration"] == 6
    assert (out / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    assert not saved.exists()


def test_the_earlier_layout_where_it_cannot_be_moved(fit, tmp_path, monkeypatch):
    out, saved = tmp_path / "out", tmp_path / "out.checkpoint"
    assert fit(*SHORT, "--quiet", "--out", out).code == 3
    saved.rename(out / "checkpoints")
    rename = os.rename

    def across(one, two):
        if os.fspath(two) == os.fspath(saved):
            raise OSError(18, "Invalid cross-device link")
        rename(one, two)

    monkeypatch.setattr("os.rename", across)
    ran = fit("--json", "--resume", "--out", out)
    assert json.loads(ran.out.splitlines()[0])["iteration"] == 5
    assert not (out / "checkpoints").exists()
    assert not saved.exists()


def test_a_finished_fit_has_nothing_left_to_do(fit, tmp_path):
    out = tmp_path / "out"
    assert fit("--quiet", "--out", out).code == 0
    before = {path: path.read_bytes() for path in out.iterdir()}
    ran = fit("--resume", "--max-iter", "2000", "--out", out)
    assert ran.code == 0
    assert ran.out == f"The fit in {out} has converged, of these files and settings: nothing is left to do.\n"
    assert fit("--resume", "--l2", "0.5", "--out", out).sentence == (
        f"The fit in {out} has converged, of other files or settings: there is nothing to go on from; --overwrite fits "
        "again, another --out keeps it."
    )
    assert {path: path.read_bytes() for path in out.iterdir()} == before
    assert not (tmp_path / "out.checkpoint").exists()


def test_a_full_disk_at_the_end_loses_nothing(fit, tmp_path, monkeypatch):
    out, saved = tmp_path / "out", tmp_path / "out.checkpoint"

    def full(*_args):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as filled:
        filled.setattr("auqadmm.files.model.write", full)
        assert "go on with --resume" in fit("--quiet", "--out", out).sentence
    assert checkpoints.begun(saved)
    ran = fit("--json", "--resume", "--out", out)
    assert (ran.code, ran.out) == (0, "")  # from the last iterate
    assert auqadmm.load(out).predict(people(5)).shape == (5,)
    assert not saved.exists()


def test_a_command_that_fails_leaves_no_empty_folder(aq, fit, tmp_path):
    missing = ("fit", tmp_path / "no.csv", *MODEL, "--out")
    assert "does not exist" in aq(*missing, tmp_path / "made" / "here").sentence
    assert not (tmp_path / "made").exists()
    own = tmp_path / "own"
    own.mkdir()
    assert "does not exist" in aq(*missing, own).sentence
    assert names(own) == []  # not ours to remove
    assert [p.name for p in tmp_path.iterdir() if p.is_dir()] == ["own"]
    ran = fit("--device", "abacus", "--out", tmp_path / "new")
    assert ran.code == 1
    assert [p.name for p in tmp_path.iterdir() if p.is_dir()] == ["own"]


def test_the_folder_of_this_place(fit, tmp_path, monkeypatch):
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    assert fit(*SHORT, "--quiet", "--out", ".").code == 3
    assert checkpoints.begun(tmp_path / "here.checkpoint")
    assert fit("--quiet", "--resume", "--out", ".").code == 0
    assert not (tmp_path / "here.checkpoint").exists()
