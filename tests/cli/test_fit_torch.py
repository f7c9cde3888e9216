"""`torchrun … -m auqadmm fit … --engine torch`: every process reads its own files, one of them speaks and writes."""

import json
from pathlib import Path

import numpy as np
import pytest

import auqadmm
from tests.cli import files
from tests.cli.files import people, split, summary
from tests.engines.processes import ended, ranks, together, torchrun

aq = files.aq  # fixture
PROGRAM = Path(__file__).parent / "torch_fit.py"
MODEL = ("--model", "logistic", "--target", "sick", "--id", "id", "--drop", "days", "--impute", "mean")


def test_the_same_model_with_two_processes_that_read_their_own_files(aq, tmp_path):
    frame = people(90).sort_values(["sick", "colour"], kind="stable")  # the files hold different classes and categories
    frame.loc[frame.index[::11], "dose"] = np.nan
    parts = split(frame, tmp_path, ".csv", "unequal")
    assert aq("fit", *parts, *MODEL, "--quiet", "--out", tmp_path / "one").code == 0
    out = tmp_path / "two"
    code, told = torchrun(2, PROGRAM, tmp_path, "fit", *parts, *MODEL, "--engine", "torch", "--out", out)
    assert code == 0, told
    assert told.count("Converged: within ") == 1
    opened = [set(json.loads((tmp_path / f"opened-{rank}.json").read_text())) for rank in range(2)]
    assert opened == [{"part-0.csv"}, {"part-1.csv", "part-2.csv"}]
    one, two = summary(tmp_path / "one"), summary(out)
    for name in ("iterations", "rounds", "bytes", "blocks", "classes", "rows"):
        assert one[name] == two[name], name
    models = [auqadmm.load(tmp_path / name) for name in ("one", "two")]
    np.testing.assert_allclose(models[0].coef_, models[1].coef_, atol=1e-9)
    assert (models[0].get_feature_names_out() == models[1].get_feature_names_out()).all()


@pytest.mark.campaign
def test_a_formula_has_one_design_in_two_processes(aq, tmp_path):
    parts = split(people(90).sort_values("colour", kind="stable"), tmp_path, ".csv", "unequal")
    study = ("--family", "binomial", "--formula", "sick ~ bs(age, df=4) + colour + scale(dose)")
    assert aq("fit", *parts, *study, "--quiet", "--out", tmp_path / "one").code == 0
    code, told = torchrun(2, PROGRAM, tmp_path, "fit", *parts, *study, "--engine", "torch", "--out", tmp_path / "two")
    assert code == 0, told
    one, two = (auqadmm.load(tmp_path / name) for name in ("one", "two"))
    assert one.encoding_.design.states["bs(age, df=4)"] == two.encoding_.design.states["bs(age, df=4)"]
    np.testing.assert_allclose(one.coef_, two.coef_, atol=1e-8)


def test_what_one_process_cannot_read_all_of_them_hear_and_one_tells(tmp_path):
    parts = split(people(30), tmp_path, ".csv")
    parts[2].write_text("")
    arguments = (tmp_path, "fit", *parts, *MODEL, "--engine", "torch", "--out", tmp_path / "out")
    with ranks(2, PROGRAM, *arguments) as processes:
        told = [ended(process, 100) for process in processes]
    assert told == [f"auqadmm: rank 1: {parts[2]} is empty; leave it out.\n", ""]
    assert [process.returncode for process in processes] == [1, 1]
    assert not (tmp_path / "out" / "summary.json").exists()


@pytest.mark.campaign
def test_a_run_of_two_processes_goes_on_in_one(aq, tmp_path):
    parts = split(people(60), tmp_path, ".csv")
    out = tmp_path / "out"
    fit = ("fit", *parts, *MODEL, "--tol", "1e-12")
    _, told = together(2, PROGRAM, tmp_path, *fit, "--engine", "torch", "--max-iter", "2", "--out", out)
    assert summary(out)["status"] == "max_iter", told
    assert aq(*fit, "--quiet", "--resume", "--out", out).code == 0
    assert aq(*fit, "--quiet", "--out", tmp_path / "whole").code == 0
    assert summary(out)["iterations"] == summary(tmp_path / "whole")["iterations"]
    models = [auqadmm.load(folder).coef_ for folder in (out, tmp_path / "whole")]
    np.testing.assert_allclose(*models, atol=1e-9)
