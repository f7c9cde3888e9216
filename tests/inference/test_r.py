"""Against R: glm, MASS and glmnet (fixtures/models.R)."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import auqadmm as aq

FIXTURES = Path(__file__).parent / "fixtures"
MODELS = json.loads((FIXTURES / "models.json").read_text())
TABLE = np.genfromtxt(FIXTURES / "study.csv", delimiter=",", names=True)
ASKED = {
    "logit": (("binomial",), "sick", {}),
    "probit": (("binomial", "probit"), "sick", {}),
    "cloglog": (("binomial", "cloglog"), "sick", {}),
    "poisson": (("poisson",), "falls", {"exposure": TABLE["days"] / 100}),
    "gamma": (("gamma",), "cost", {}),
    "grouped": (("binomial",), "won", {"trials": TABLE["trials"]}),
    "quasi": (("binomial",), "won", {"trials": TABLE["trials"]}),
    "negative-binomial": (("negative-binomial",), "visits", {}),
    "negative-binomial-offset": (("negative-binomial",), "visits", {"exposure": TABLE["days"]}),
}


@pytest.mark.parametrize("name", ASKED)
def test_tables_are_those_of_r(name):
    truth, (model, target, options) = MODELS[name], ASKED[name]
    columns = ["age", "dose"] if name.endswith("offset") else ["age", "dose", "bmi"]
    X = np.column_stack([TABLE[c] for c in columns])
    fitted = aq.ConsensusGLM(*model).fit(X, TABLE[target], sites=TABLE["site"], **options)
    found = fitted.inference("expected", dispersion="pearson" if name == "quasi" else None)
    order = np.r_[1 : len(columns) + 1, 0]  # R has the intercept first
    for key in ("coef", "se"):
        np.testing.assert_allclose(getattr(found, key), np.array(truth[key])[order], rtol=1e-8)
    if name != "quasi":  # R then has Student's distribution
        np.testing.assert_allclose(found.p, np.array(truth["p"])[order], rtol=1e-8)
    for key in ("deviance", "null_deviance", "dispersion", "aic", "k", "k_se", "llf"):
        if (
            key in truth and truth[key][0] is not None and (name, key) != ("gamma", "aic")
        ):  # R has another dispersion there
            assert getattr(found, key) == pytest.approx(truth[key][0], rel=1e-8), key
