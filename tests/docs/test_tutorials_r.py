"""The studies of the tutorials are those of R on the pooled rows (fixtures/tutorials.R made the numbers)."""

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import auqadmm as aq

FIXTURES = Path(__file__).parent / "fixtures"
PAGES = Path(__file__).parents[2] / "docs" / "tutorials"
KNOWN = json.loads((FIXTURES / "tutorials.json").read_text())
FORMULA = "y ~ age + C(ward, Treatment('medicine')) + bs(bmi, df=4)"


def study(name, rows):
    if name == "hospital-study":
        return aq.fit_formula(FORMULA, rows, family="binomial", sites="site").inference_
    if name == "rates":
        model = aq.ConsensusGLM("poisson", site_intercepts=True)
        model.fit(rows[["age", "drug"]], rows["falls"], sites=rows["clinic"], exposure=rows["days"] / 365)
        return model.inference_
    model = aq.ConsensusCox().fit(rows[["age", "sex", "ph.ecog"]], rows[["time", "status"]], sites=rows["inst"])
    return model.inference_


@pytest.mark.parametrize("name", KNOWN)
def test_every_number_is_that_of_r(name):
    found, known = study(name, pd.read_csv(FIXTURES / f"{name}.csv")), KNOWN[name]
    for part in ("coef", "se", "p"):
        np.testing.assert_allclose(getattr(found, part), known[part], rtol=1e-8)
    for part in ("deviance", "aic", "null_deviance"):
        if part in known:
            assert getattr(found, part) == pytest.approx(known[part], rel=1e-8), part


@pytest.mark.parametrize("name", KNOWN)
def test_rows_are_those_of_the_page(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code = re.search(r"```python\n(.*?)```", (PAGES / f"{name}.md").read_text(encoding="utf-8"), re.S)
    made: dict = {}
    exec(code[1], made)
    kept = pd.read_csv(FIXTURES / f"{name}.csv")
    if name == "hospital-study":
        made["rows"] = pd.concat(made["frames"].values()).dropna()
    rows = made["lung"] if name == "survival" else made["rows"]
    same = [column for column in kept if column in rows]
    assert len(same) >= 2
    for column in same:
        np.testing.assert_array_equal(kept[column], rows[column])
