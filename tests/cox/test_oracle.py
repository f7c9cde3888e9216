"""Cox's model against R's survival on pooled rows: strata(site), ties, entry times, strata, weights."""

from __future__ import annotations

import numpy as np
import pytest

import auqadmm as aq
from tests.cox.rows import study, truth

CASES = ["plain", "entry", "strata", "weights", "all"]
TIES = ["efron", "breslow"]
GRID = [1, 2.5, 5, 10, 20]


def options(case):
    return {"entry": case in ("entry", "all"), "strata": case in ("strata", "all")}, case in ("weights", "all")


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
    same(model.inference("cluster").vcov, of(case, ties, "cluster"), 1e-7)
    same(model.concordance_, of(case, ties, "concordance"))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("ties", TIES)
def test_trends_in_time_are_those_of_cox_zph(case, ties):
    model = fitted(case, ties)
    for transform in ("identity", "log", "km", "rank"):
        same(model.ph_test(transform).statistic, of(case, ties, f"zph.{transform}"), 1e-7)


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
