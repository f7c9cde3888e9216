"""Formulas and quality on workers of Ray and Dask, and after a run that went on: the same as in one process."""

import json

import numpy as np
import pandas as pd
import pytest

import auqadmm as aq_library
from tests.cli import files
from tests.engines.test_dask import client  # noqa: F401
from tests.engines.test_ray import instance, workers  # noqa: F401

aq = files.aq  # fixture
FORMULA = "falls ~ age + C(ward) + bs(bmi, df=4)"


def rows():
    rng = np.random.default_rng(4)
    table = pd.DataFrame(
        {"site": np.repeat(list("abc"), 60), "age": rng.normal(50, 9, 180), "bmi": rng.normal(26, 3, 180)}
    )
    table["ward"] = rng.choice(["x", "y", "z"], 180)
    return table.assign(falls=rng.poisson(np.exp(0.03 * (table["age"] - 50))))


def same(engine):
    here, there = (
        aq_library.fit_formula(FORMULA, rows(), "poisson", "site", engine=where) for where in ("local", engine)
    )
    np.testing.assert_allclose(there.coef_, here.coef_, rtol=1e-9)
    np.testing.assert_allclose(there.inference_.se, here.inference_.se, rtol=1e-9)


@pytest.mark.campaign
def test_formulas_and_quality_on_ray(workers):  # noqa: F811
    same(workers)
    table = rows()
    blocks = [(part[["age", "bmi"]].to_numpy(), part["falls"].to_numpy()) for _, part in table.groupby("site")]
    here, there = (
        aq_library.solve(aq_library.Problem(aq_library.Poisson(), aq_library.Zero(), blocks, intercept=True),
                         engine=engine, certificate_tol=1e-16, quality=True)
        for engine in ("local", workers)
    )  # fmt: skip
    for name, value in here.quality().figures.items():
        assert there.quality().figures[name] == pytest.approx(value, rel=1e-8), name
    held = [result.quality(cv=3).figures["deviance_explained"] for result in (here, there)]
    assert held[1] == pytest.approx(held[0], rel=1e-8)


@pytest.mark.campaign
def test_formulas_on_dask(client):  # noqa: F811
    same("dask")


def test_a_formula_goes_on(aq, tmp_path):
    path = files.write(rows(), tmp_path / "rows.csv")
    asked = ("fit", path, "--site", "site", "--family", "poisson", "--formula", FORMULA, "--method", "auq-lr")
    once, twice = tmp_path / "once", tmp_path / "twice"
    assert aq(*asked, "--out", once).code == 0
    assert aq(*asked, "--max-iter", "2", "--checkpoint-every", "1", "--out", twice).code == 3
    assert aq(*asked, "--resume", "--out", twice).code == 0
    first, second = (json.loads((folder / "summary.json").read_text()) for folder in (once, twice))
    assert first["iterations"] == second["iterations"]
    np.testing.assert_array_equal(aq_library.load(once).coef_, aq_library.load(twice).coef_)
