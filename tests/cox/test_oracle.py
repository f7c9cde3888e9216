"""Cox's model against R's survival on pooled rows: strata(site), ties, entry times, strata, weights."""

from __future__ import annotations

import warnings
from functools import cache

import lifelines
import numpy as np
import pandas as pd
import pytest

import auqadmm as aq
from tests.cox.rows import study, truth

CASES = ["plain", "entry", "strata", "weights", "all"]
TIES = ["efron", "breslow"]
GRID = [1, 2.5, 5, 10, 20]


def options(case):
    return {"entry": case in ("entry", "all"), "strata": case in ("strata", "all")}, case in ("weights", "all")


@cache
def fitted(case, ties):
    data = study()
    kind, weighted = options(case)
    return aq.ConsensusCox(ties).fit(
        data.X,
        data.y(entry=kind["entry"]),
        sites=data.site,
        sample_weight=data.weight if weighted else None,
        strata=data.stratum if kind["strata"] else None,
    )


def of(case, ties, what):
    return truth()[f"{case}.{ties}.{what}"]


def same(ours, theirs, rel=1e-8, small=0.0):
    np.testing.assert_allclose(np.ravel(ours), np.ravel(theirs), rtol=rel, atol=small)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("ties", TIES)
def test_everything_is_that_of_coxph(case, ties):
    model = fitted(case, ties)
    found = model.inference_
    same(model.coef_, of(case, ties, "coef"))
    same(found.vcov, of(case, ties, "vcov"))
    same([found.llnull, found.llf], of(case, ties, "loglik"))
    same([found.aic, found.bic], of(case, ties, "aic_bic"))
    same(found.events, of(case, ties, "events"))
    null, best = of(case, ties, "loglik")
    assert found.lr_test[:2] == pytest.approx((2 * (best - null), 3.0), rel=1e-8)
    same(model.inference("robust").vcov, of(case, ties, "robust"))
    same(model.inference("cluster").vcov, of(case, ties, "cluster"))
    same(model.concordance_, of(case, ties, "concordance"))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("ties", TIES)
def test_trends_in_time_are_those_of_cox_zph(case, ties):
    model = fitted(case, ties)
    for transform in ("identity", "log", "km", "rank"):
        same(model.ph_test(transform).statistic, of(case, ties, f"zph.{transform}"))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("ties", TIES)
def test_baseline_hazards_are_those_of_basehaz(case, ties):
    found = fitted(case, ties).baseline_hazard(GRID)
    for site, *stratum in found.columns.map(lambda c: c if isinstance(c, tuple) else (c,)):
        name = ".".join([site.removesuffix(".0"), *(f"{x:g}" for x in stratum)])
        column = found[(site, *stratum) if stratum else site]
        if f"{case}.{ties}.basehaz.{name}" in truth():
            same(column, of(case, ties, f"basehaz.{name}"))
        else:
            assert np.isnan(column).all()


def test_one_stratum_has_the_transforms_of_r():
    data = study()
    model = aq.ConsensusCox().fit(data.X, data.y())
    same(model.coef_, truth()["one.coef"])
    for transform in ("identity", "log", "km", "rank"):
        same(model.ph_test(transform).statistic, truth()[f"one.zph.{transform}"])


@pytest.mark.parametrize("case", ["plain", "entry", "weights"])
def test_concordance_of_every_site(case):
    found = list(fitted(case, "efron").site_concordance_.values())
    agree, disagree, tied = of(case, "efron", "pairs").reshape(-1, 3).T
    with np.errstate(invalid="ignore"):
        same(found, (agree + tied / 2) / (agree + disagree + tied))
    assert np.isnan(found[3:]).all()


@pytest.mark.parametrize("entry", [False, True])
def test_lifelines_agrees(entry):
    data = study()
    table = pd.DataFrame(data.X, columns=["age", "dose", "marker"])
    table = table.assign(time=data.time, event=data.event, site=data.site, entry=np.maximum(data.entry, 0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = lifelines.CoxPHFitter().fit(
            table if entry else table.drop(columns="entry"),
            "time",
            "event",
            strata=["site"],
            entry_col="entry" if entry else None,
            fit_options={"precision": 1e-13},
        )
    model = fitted("entry" if entry else "plain", "efron")
    same(model.coef_, theirs.params_)
    same(model.inference_.se, theirs.standard_errors_)
    same(model.inference_.llf, theirs.log_likelihood_)
