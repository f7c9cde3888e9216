"""Methods at equal distance from the optimum: numbers, table, picture, files."""

import csv
import json
import re

import numpy as np
import pytest
from PIL import Image
from scipy.optimize import minimize

import auqadmm as aq
from auqadmm.cli.compare import contest
from auqadmm.cli.outputs import CommandError
from auqadmm.comparison import compare, digits_elastic_net, optimum
from tests.problems import class_blocks, least_squares, multinomial, pooled

FEW = ["auto", "c-admm", "lbfgs", "fista"]


@pytest.fixture(scope="module")
def found():
    return compare(multinomial(), FEW, gap=1e-5)


def test_every_run_ends_at_the_first_iteration_within_the_gap(found):
    assert [entry.method for entry in found.entries] == ["newton", "c-admm", "lbfgs", "fista"]
    for entry in found.entries:
        gaps = (np.array(entry.run.result.history.column("objective")) - found.best.objective) / found.best.objective
        assert gaps[-1] <= 1e-5 < gaps[-2]
        assert entry.at is entry.run.result.history[-1]


def test_the_optimum_is_that_of_scipy(found):
    blocks = class_blocks()
    X, y = pooled(blocks)
    onehot = np.eye(3)[y]

    def F(v):
        Z = X @ v.reshape(5, 3)
        top = Z.max(1, keepdims=True)
        loss = (top[:, 0] + np.log(np.exp(Z - top).sum(1)) - (Z * onehot).sum(1)) / 20  # means over blocks of 20 rows
        return loss.sum() + 0.05 * (v**2).sum()

    best = minimize(F, np.zeros(15), method="BFGS", options={"gtol": 1e-6}).fun
    assert found.best.objective == pytest.approx(best, rel=1e-8)


@pytest.mark.parametrize("method", FEW)
def test_counters_are_those_of_a_run_that_pays_for_no_certificate(found, method):
    """Rounds of ADMM are its iterations; a gradient method's are its evaluations, n + 1 numbers up and n down."""
    entry = found.entries[FEW.index(method)]
    if method == "c-admm":
        assert entry.at.rounds == entry.at.iteration
    if method == "lbfgs":
        assert entry.at.bytes == 8 * entry.at.rounds * (2 * 15 + 1)
    if method == "fista":
        assert entry.at.bytes == 8 * (2 * 31 + (entry.at.rounds - 2) * 33)


def test_who_wins(found):
    rounds = {entry.method: entry.at.rounds for entry in found.entries}
    assert found.winner.method == min(rounds, key=rounds.get)
    assert found.least("rounds") == min(rounds.values())


def test_methods_that_do_not_apply_are_left_out_or_named():
    problem = least_squares()  # an elastic net
    named = compare(problem, ["lbfgs", "owl-qn"])
    assert [entry.status for entry in named.entries] == ["not applicable", "reached"]
    assert "owl-qn" in named.entries[0].note
    free = {entry.method for entry in compare(problem).entries}
    assert free == {"newton", "auq-admm", "c-admm", "rb-admm", "ac-admm", "owl-qn", "fista"}
    assert "owl-qn" not in {entry.method for entry in compare(multinomial(), max_iter=2).entries}


def test_an_optimum_that_no_library_knows_is_found_and_proved():
    X, y = pooled(class_blocks(classes=2))
    problem = aq.Problem(aq.Logistic(), aq.L1(0.5), [(X[::2], y[::2]), (X[1::2], y[1::2])])
    best = optimum(problem, 1e-4)
    assert best.how.startswith("newton, ")
    exact = aq.solve(problem, "owl-qn", stop="certificate", certificate_tol=1e-10, max_iter=2000).objective
    assert best.objective == pytest.approx(exact, rel=1e-6)
    assert compare(problem, ["auto", "owl-qn"]).winner is not None


def test_a_budget_that_ends_first_is_told():
    found = compare(multinomial(), ["auto", "c-admm"], gap=1e-8, max_iter=5)
    assert found.winner is None
    assert [entry.status for entry in found.entries] == ["max_iter", "max_iter"]


def test_a_method_by_two_names_runs_once():
    assert len(compare(multinomial(), ["auto", "newton"], max_iter=3).entries) == 1


@pytest.mark.parametrize("gap", [0, 1, -1e-3, float("nan")])
def test_a_gap_that_makes_no_sense(gap):
    with pytest.raises(aq.InputError, match="gap must lie between 0 and 1"):
        compare(multinomial(), gap=gap)


def test_an_unknown_method_is_refused_before_any_work():
    with pytest.raises(ValueError, match="Unknown method 'sgd'; known methods are 'auto', 'c-admm'"):
        compare(multinomial(), ["sgd"])


# ---------------------------------------------------------------------- the command's output
def test_table_files_and_picture_agree(tmp_path, capsys):
    found = contest(digits_elastic_net(), "digits [red]$x_", tmp_path, ["auq-lr", "ac-admm", "lbfgs"], max_iter=300)
    shown = capsys.readouterr()
    assert "digits [red]$x_" in shown.out
    assert re.search(r"AUQ-LR ◀ +2 +2 \* +33 196 \* .* within 1e-4", shown.out)
    assert re.search(r"AC-ADMM +243 +243 +265 320 ", shown.out)
    assert re.search(r"L-BFGS +– .* not applicable", shown.out)
    assert "Fewest rounds to a gap of 1e-4: AUQ-LR (2); fewest bytes: AUQ-LR; " in shown.out
    assert "\x1b" not in shown.out + shown.err
    with (tmp_path / "compare.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["method"] for row in rows] == ["auq-lr", "ac-admm", "lbfgs"]
    assert (rows[0]["rounds"], rows[0]["bytes"], rows[2]["rounds"]) == ("2", "33196", "")
    about = json.loads((tmp_path / "compare.json").read_text(), parse_constant=pytest.fail)
    assert (about["winner"], about["gap"]) == ("auq-lr", 1e-4)
    assert about["optimum"] == found.best.objective
    assert about["methods"][1]["curve"]["rounds"][-1] == 243
    assert about["methods"][1]["curve"]["gap"][-1] <= 1e-4
    with Image.open(tmp_path / "compare.png") as picture:
        assert picture.width > 1000
        colours = {colour for _, colour in picture.convert("RGB").getcolors(1 << 20)}
    assert (0xCC, 0x79, 0xA7) in colours  # AUQ-LR's everywhere
    assert (0x00, 0x9E, 0x73) in colours  # AC-ADMM's


def test_quiet_still_prints_the_table(tmp_path, capsys):
    contest(multinomial(), "small", tmp_path, ["auto"], quiet=True)
    shown = capsys.readouterr()
    assert shown.err == ""
    assert "Newton ◀" in shown.out


def test_ctrl_c_writes_nothing(tmp_path, monkeypatch):
    def interrupting(event):
        raise KeyboardInterrupt

    monkeypatch.setattr("auqadmm.callbacks.progress.Progress.__call__", lambda self, event: interrupting(event))
    with pytest.raises(CommandError, match="Interrupted; nothing was written"):
        contest(multinomial(), "small", tmp_path, ["c-admm"])
    assert not list(tmp_path.iterdir())
