"""Heuristics are switched off from outside: what is replaced must be there, be reached, and be as before afterwards."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import pytest

from auqadmm.methods.auq_lr import blocks

FOLDER = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(FOLDER))
import ablation  # noqa: E402
from ablation_patch import NotReached, Patch, Switch, instead, switched  # noqa: E402
from ablation_switches import SWITCHES  # noqa: E402
from ablation_table import table  # noqa: E402
from rounds import Budget  # noqa: E402

sys.path.remove(str(FOLDER))

NAME = "digits-multinomial-mean"
ACCURACY = "auqadmm.methods.auq_lr.blocks:ACCURACY"


def measured(switch: str, name: str = NAME, prior: str = ""):
    method = "c-admm" if switch.startswith("c:") else "auq-lr"
    return ablation.measured((method, switch, name, prior), Budget(100, 60.0, "cpu"))


# ---------------------------------------------------------------------- switches
@pytest.mark.parametrize("switch", SWITCHES, ids=lambda switch: switch.name)
def test_everything_that_a_switch_replaces_is_there(switch):
    switch.check()


def test_names_are_unique():
    assert len({switch.name for switch in SWITCHES}) == len(SWITCHES)


@pytest.mark.parametrize(
    ("patch", "error"),
    [
        (Patch("auqadmm.methods.auq_lr.blocks:ACURACY", instead(1.0)), "is not there"),
        (Patch(ACCURACY, instead(blocks.ACCURACY)), "would stay as it is"),
        (Patch(ACCURACY, instead(1.0)), "nobody would see"),
    ],
)
def test_a_switch_that_does_nothing_is_refused(patch, error):
    with pytest.raises(LookupError, match=error):
        Switch("s", "", "", 0, patches=(patch,)).check()
    with pytest.raises(LookupError, match="changes nothing"):
        Switch("s", "", "", 0).check()


def test_a_switch_that_no_run_came_by_says_so():
    probe = "auqadmm.methods.auq_lr.blocks:BlockRound._solve"
    with (
        pytest.raises(NotReached, match="_solve"),
        switched(Switch("s", "", "", 0, patches=(Patch(ACCURACY, instead(1.0)),), probes=(probe,))),
    ):
        assert blocks.ACCURACY == 1.0
    assert blocks.ACCURACY == 7.0
    row = measured("image-always")  # no image here
    assert (row["status"], row["reached"]) == ("not reached", False)
    assert ablation.wrongs([row]) == ["image-always: no run came by what it switches off"]


@pytest.mark.parametrize(
    ("switch", "counter", "more"),
    [("alpha-1", "rounds", True), ("start-at-u", "hvps", True), ("accuracy-0.1", "hvps", True)],
)
def test_a_heuristic_that_is_off_is_missed(switch, counter, more):
    before, after = measured("baseline"), measured(switch)
    assert before["reached"]
    assert after["reached"]
    assert (after["at"]["1e-06"][counter] > before["at"]["1e-06"][counter]) == more


# ---------------------------------------------------------------------- plans and tables
def test_baselines_come_first_then_main_workloads_then_the_others():
    names = ["digits-svm", "mnist-svm", "mnist-multinomial-mean"]
    jobs = ablation.jobs(names, ablation.chosen(["alpha-1", "no-secant", "image-*", "no-graphs"]), "cpu")
    plain = [job[1:3] for job in jobs if not job[3]]
    assert set(plain[:3]) == {("baseline", name) for name in names}
    assert plain[3:] == [
        ("alpha-1", "mnist-svm"),
        ("alpha-1", "mnist-multinomial-mean"),
        ("no-secant", "mnist-svm"),
        ("alpha-1", "digits-svm"),
        ("no-secant", "digits-svm"),
    ]
    assert ("auq-lr", "baseline", "mnist-svm", "image") in jobs
    assert not any(job[1] == "no-graphs" for job in jobs)
    with pytest.raises(ValueError, match="No switch matches"):
        ablation.chosen(["alpha-7"])


def test_a_table_by_hand(tmp_path):
    def row(switch, workload, rounds, status="reached"):
        counts = {"rounds": rounds, "seconds": 2.0 * (rounds or 0), "numbers": 10, "hvps": 20}
        at = {} if rounds is None else {"0.01": counts, "1e-06": counts}
        same = {"workload": workload, "prior": "", "method": "auq-lr", "switch": switch, "status": status}
        return same | {"reached": bool(at), "gap": 1e-7 if at else 0.5, "rounds_done": rounds, "at": at, "message": ""}

    rows = [row("baseline", name, 10) for name in ("a", "b", "c", "d")]
    rows += [row("alpha-1", "a", 40), row("alpha-1", "b", 10), row("alpha-1", "c", None, "time_limit")]
    rows += [row("alpha-1", "d", None, "not reached")]
    file = tmp_path / "ablation.json"
    file.write_text(json.dumps({"about": {}, "rows": rows}))
    *_, last = table([file], SWITCHES).splitlines()
    cells = [cell.strip() for cell in last.strip("|").split("|")]
    assert cells[:6] == ["alpha-1", "3 (1 not met)", "2.00", "2.00", "1.00", "1.00"]
    assert cells[6:10] == ["a 4.00", "b 1.00", "c (time limit, 5e-01)", "1"]
    assert math.isclose(float(cells[2]), math.sqrt(4.0))
