"""What the torch engine promises besides the same answer: one all-reduce per round, no pickles, one sentence."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import ElasticNet, enet_path

import auqadmm as aq
from tests.engines.processes import ROOT, reports, together


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """Many runs in the same three processes: what each rank saw, by the name of the run."""
    folder = tmp_path_factory.mktemp("scenarios")
    code, out = together(3, "scenarios.py", folder, timeout=120)
    assert code == 0, out[-3000:]
    found = reports(folder, range(3))
    return {name: [rank[name] for rank in found] for name in found[0]}


def everywhere(ranks, status, *words, seconds=15.0):
    for saw in ranks:
        assert saw["status"] == status, saw
        assert all(word in saw["message"] for word in words), saw
        assert saw["seconds"] < seconds, saw
    if all(saw["status"] == status for saw in ranks):
        assert len({saw["message"] for saw in ranks}) == 1


def test_every_rank_gets_the_same_result_to_the_last_bit(seen):
    everywhere(seen["plain"], "max_iter")
    assert seen["plain"][0]["v"] == seen["plain"][1]["v"] == seen["plain"][2]["v"]


def test_classes_are_agreed_where_each_process_knows_one(seen):
    assert [saw["classes"] for saw in seen["part"]] == [["class 0", "class 1", "class 2"]] * 3


def test_nothing_is_pickled(seen):
    assert [saw["pickles"] for saw in seen["unpickled"]] == [0, 0, 0]


@pytest.mark.parametrize(("method", "per_iteration"), [("c-admm", 1), ("rb-admm", 2), ("auq-lr", 1)])
def test_one_all_reduce_per_round_and_as_many_rounds_as_the_documentation_says(seen, method, per_iteration):
    assert [saw["sums"] for saw in seen[f"sums {method}"]] == [5 * per_iteration] * 3


def test_a_callback_of_one_process_stops_all(seen):
    everywhere(seen["callback of rank 0"], "interrupted", "after 5 iterations")


def test_sigterm_to_one_process_stops_all_at_the_same_iterate(seen):
    everywhere(seen["sigterm to rank 1"], "interrupted", "Interrupted after 4 iterations")
    assert len({tuple(saw["v"]) for saw in seen["sigterm to rank 1"]}) == 1
    assert all(saw["restored"] for saw in seen["handler"])


def test_a_process_that_raises_is_heard_by_all(seen):
    everywhere(seen["raising callback"][:2], "ProcessError", "rank 2: RuntimeError: the callback has had enough")
    everywhere(seen["raising callback"][2:], "RuntimeError", "the callback has had enough")
    everywhere(seen["no file"], "ProcessError", "rank 1: FileNotFoundError", "/nowhere/rows.csv")


def test_bad_data_of_one_process_is_one_sentence_in_all(seen):
    everywhere(seen["nan"], "InputError", "rank 2: block 5: X[row 3, column 1] is nan")
    everywhere(seen["features"], "InputError", "block 2 has 3 features but block 0 has 4")
    everywhere(seen["nothing"], "InputError", "There are no blocks")


def test_nan_that_appears_in_mid_run_names_the_block(seen):
    everywhere(seen["nan later"], "diverged", "block 3 gave NaN")


def test_settings_that_differ_are_refused(seen):
    everywhere(seen["other regularizer"], "InputError", "rank 1 was given regularizer L2(strength=2.0)", "rank 0")
    everywhere(seen["other method"], "InputError", "rank 1 was given method C(")


def test_processes_whose_models_drift_apart_stop(seen):
    everywhere(seen["other model"], "ProcessError", "no longer compute the same model")


def test_processes_are_fit_for_the_next_run(seen):
    for before, after in zip(seen["plain"], seen["after all that"], strict=True):
        assert before["v"] == after["v"]


def test_a_process_group_that_exists_is_used_and_left_open(seen):
    for before, after in zip(seen["plain"], seen["group of the user"], strict=True):
        assert before["v"] == after["v"]
        assert after["open"]


def test_no_object_collective_is_named():
    """Only what users ask for is pickled, in one file of driver engines, which the torch engine does not use."""
    files = {path.stem: path.read_text() for path in (ROOT / "src" / "auqadmm" / "engines").glob("*.py")}
    files.pop("protocol")
    for name in ("torch_distributed", "world"):
        assert "protocol" not in "".join(line for line in files[name].splitlines() if "import" in line)
    source = "".join(files.values())
    for word in ("_object", "import pickle", "pickle."):
        assert word not in source


@pytest.mark.parametrize("timeout", [0, -1, float("inf"), "soon", None])
def test_a_timeout_must_be_seconds(timeout):
    with pytest.raises(ValueError, match="timeout must be a positive number"):
        aq.engines.Torch(timeout=timeout)


def test_squares_are_sums_of_processes(tmp_path):
    """Every process hands over rows of its own; means and strengths are those of all rows."""
    code, out = together(2, "squares.py", tmp_path)
    assert code == 0, out[-3000:]
    first, second = reports(tmp_path, range(2))
    assert first == second
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(120, 6)) + 5, rng.normal(size=120)
    reference = ElasticNet(0.05, tol=1e-14, max_iter=100_000).fit(X, y)
    assert first["coef"] == pytest.approx(reference.coef_, abs=1e-10)
    assert first["intercept"] == pytest.approx(reference.intercept_, abs=1e-10)
    assert first["rounds"] == 2
    alphas, coefs, _ = enet_path(X - X.mean(0), y - y.mean(), alphas=5, tol=1e-14, max_iter=100_000)
    assert first["alphas"] == pytest.approx(alphas)
    assert np.array(first["path"]) == pytest.approx(coefs.T, abs=1e-10)
