"""What the page of a fit says left each site, against what was sent."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from auqadmm.files.preprocessing import Settings
from auqadmm.files.tabular import Roles
from auqadmm.files.training import Task, prepare
from auqadmm.report import answer

CASES = {
    "number": (Task("elastic-net", 0.01, 0.1), Roles(target="y", labels=False)),
    "label": (Task("logistic", 0.0, 0.1), Roles(target="sick")),
}


@pytest.mark.parametrize("case", CASES)
def test_numbers_before_the_run_are_those_that_were_sent(tmp_path, case):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(40, 3)), columns=["a", "b", "y"]).assign(
        arm=rng.choice(["x", "z"], 40), sick=rng.choice(["no", "yes"], 40)
    )
    frame.to_csv(tmp_path / "one.csv", index=False)
    task, roles = CASES[case]
    roles = Roles(**{**vars(roles), "features": ("a", "b", "arm")})
    sent = []

    def exchange(text):
        sent.append(json.loads(text))
        return [text]

    agreed = prepare([tmp_path / "one.csv"], roles, Settings(), task, exchange).agreed
    told = next(m for x in sent for m in np.ravel(x["message"]) if isinstance(m, dict) and "moments" in m)
    numbers = np.size(told["moments"]) + len(told["target"] or ()) + len([told["rows"], told["weight"]])
    summary = {"classes": agreed.classes, "model": task.kind, "method": "newton", "rounds": 3}
    rows = answer.left(summary, [{"bytes_up": 80}], agreed.encoding)[0].table.rows
    assert rows[0][2] == str(numbers)
    assert rows[1][2] == "10"
