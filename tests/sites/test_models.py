"""Models at sites as the command asks for them: families, survival, numbers; with what sites refuse of them."""

from __future__ import annotations

import json
import threading

import numpy as np
import pandas as pd
import pytest

import auqadmm as aq
from auqadmm.cli import sites as at_sites
from auqadmm.files.preprocessing import Settings
from auqadmm.files.tabular import Roles
from auqadmm.files.training import Task, prepare
from auqadmm.problem.families import NamedFamily
from auqadmm.sites.policy import Plan, Policy, PolicyError
from auqadmm.sites.serving import decide, decided, waiting
from tests.sites.inside import NAMES, InsideSites, same_model

MASKED = Policy(masks="required")


def people(seed, rows=150):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({"age": rng.normal(60, 9, rows), "dose": rng.gamma(2.0, 1.0, rows)})
    frame["arm"] = rng.choice(["a", "b", "c"], rows)
    eta = 0.03 * (frame.age - 60) + 0.4 * (frame.arm == "b") - 0.1 * frame.dose
    frame["visits"] = rng.poisson(np.exp(eta + 0.5))
    frame["years"] = rng.uniform(0.5, 3.0, rows)
    frame["cost"] = 3 + eta + rng.normal(0, 0.4, rows)
    frame["time"] = rng.exponential(np.exp(-eta)) + 0.01
    frame["died"] = (rng.random(rows) < 0.6).astype(int)
    return frame


COUNTS = NamedFamily("poisson", "log", None)
CASES = {
    "rates": (Task("poisson", 0.0, 0.0, family=COUNTS), Roles(target="visits", labels=False, exposure="years")),
    "cost": (Task("elastic-net", 0.01, 0.1), Roles(target="cost", labels=False)),
    "survival": (Task("cox", 0.0, 0.0, intercept=False, ties="efron"), Roles(time="time", event="died", labels=False)),
}
FEATURES = ("age", "dose", "arm")


@pytest.mark.parametrize("policy", [Policy(), MASKED], ids=["plain", "masked"])
@pytest.mark.parametrize("case", CASES)
def test_it_is_the_fit_of_all_files(tmp_path, case, policy):
    task, roles = CASES[case]
    roles = Roles(**{**vars(roles), "features": FEATURES})
    frames = {name: people(k) for k, name in enumerate(NAMES)}
    settings = Settings(standardize=True, drop_first=task.l2 == 0)
    with InsideSites(tmp_path, policy, frames=frames) as sites:
        ready, method = at_sites.prepared(sites, "heart", case, "auto", roles, settings, task)
        found = aq.solve(ready.problem(task), method, sites, certificate_tol=1e-12, inference=task.l2 == 0)
        paths = [tmp_path / f"{name}.csv" for name in NAMES]
        pooled = prepare(paths, roles, settings, task)
        same = aq.solve(pooled.problem(task), "newton", certificate_tol=1e-12, inference=task.l2 == 0)
        assert ready.agreed.encoding.features == pooled.agreed.encoding.features
        np.testing.assert_allclose(ready.agreed.encoding.mean, pooled.agreed.encoding.mean, rtol=1e-13)
        same_model(found.v, same.v, 1e-12 if found.method == "newton" else 1e-9)
        if task.l2 == 0:
            np.testing.assert_allclose(found.inference().vcov, same.inference().vcov, rtol=1e-9)


def test_a_site_with_few_events_is_refused(tmp_path):
    task, roles = CASES["survival"]
    roles = Roles(**{**vars(roles), "features": FEATURES})
    frames = {name: people(k) for k, name in enumerate(NAMES)}
    frames["lyon"]["died"] = 0
    frames["lyon"].loc[:3, "died"] = 1
    with (
        InsideSites(tmp_path, frames=frames) as sites,
        pytest.raises(aq.InputError, match="lyon: the data set 'heart' has fewer than 5 events"),
    ):
        at_sites.prepared(sites, "heart", "cox", "auto", roles, Settings(), task)


def test_auto_says_that_it_chose_among_sums(tmp_path):
    from tests.sites.inside import DATA, posed

    found = aq.solve(posed(DATA), "auto", InsideSites(tmp_path, MASKED))
    assert "The sites allow sums only" in found.message
    assert "sums only" not in aq.solve(posed(DATA), "newton", InsideSites(tmp_path, MASKED)).message


# ---------------------------------------------------------------------- a person decides
class Settled:
    """As much of the settings of a site as decisions need."""

    def __init__(self, folder):
        self.audit, self.name = folder / "sent.jsonl", "lyon"


@pytest.mark.parametrize("yes", [True, False])
def test_a_plan_waits_for_a_person(tmp_path, yes):
    settings, run, said = Settled(tmp_path), "ab" * 16, []
    plan = Plan("heart", "Logistic", "newton", NAMES, True, ("age",), "sick")
    outcome = []

    def wait():
        try:
            decided(tmp_path / "lyon.state", run, "coordinator", plan, threading.Event(), said.append)
            outcome.append("approved")
        except PolicyError as error:
            outcome.append(str(error))

    thread = threading.Thread(target=wait)
    thread.start()
    while not waiting(settings):
        pass
    assert waiting(settings)[run]["columns"] == ["age"]
    with pytest.raises(aq.InputError, match="No plan of a run"):
        decide(settings, "cd" * 8, yes)
    decide(settings, run[:8], yes)
    thread.join(10)
    assert outcome == ["approved" if yes else "a person at this site has refused the plan"]
    assert waiting(settings) == {}
    assert "auqadmm site approve abababab" in said[0]


def test_a_plan_that_waits_ends_with_its_site(tmp_path):
    stop = threading.Event()
    stop.set()
    plan = Plan("heart", "Logistic", "newton", NAMES, True)
    with pytest.raises(PolicyError, match="this site leaves"):
        decided(tmp_path, "ab" * 16, "coordinator", plan, stop, lambda text: None)


# ---------------------------------------------------------------------- usage
SITES = ["--sites", "s.toml", "--data", "d"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--sites", "sites.toml", "--model", "logistic", "--target", "y"], "--sites needs --data NAME"),
        (["a.csv", "--sites", "sites.toml", "--data", "d", "--target", "y", "--model", "logistic"], "name no files"),
        (
            ["--sites", "s.toml", "--data", "d", "--engine", "ray", "--target", "y", "--model", "svm"],
            "leave --engine out",
        ),
        ([*SITES, "--site", "ward", "--target", "y", "--model", "svm"], "--site is not served by sites"),
        ([*SITES, "--baseline", "3", "--target", "y", "--model", "svm"], "--baseline goes with --model cox"),
        ([*SITES, "--baseline", "3,x", "--time", "t", "--event", "e", "--model", "cox"], "takes times above zero"),
        (["--data", "d", "a.csv", "--target", "y", "--model", "svm"], "--data and --watch belong to --sites"),
        (["--target", "y", "--model", "svm"], "There are no files"),
    ],
)
def test_wrong_usage_is_one_sentence(words, told, tmp_path, capsys):
    from auqadmm.cli import main

    with pytest.raises(SystemExit) as ended:
        main(["fit", *words, "--out", str(tmp_path / "out")])
    assert ended.value.code == 2
    shown = " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert told in shown
    assert not (tmp_path / "out").exists()


def test_a_missing_settings_file_is_one_sentence(tmp_path, capsys):
    from auqadmm.cli import main

    words = ["fit", "--sites", str(tmp_path / "none.toml"), "--data", "d", "--model", "logistic", "--target", "y"]
    with pytest.raises(SystemExit) as ended:
        main([*words, "--out", str(tmp_path / "out")])
    assert ended.value.code == 1
    assert "none.toml" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_json_of_a_plan_is_plain(tmp_path):
    plan = Plan("heart", "Logistic", "newton", NAMES, True, ("age",), "sick")
    assert json.dumps(vars(plan))
