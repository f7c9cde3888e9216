"""Models of formulas are those that statsmodels fits on the rows of all sites in one place."""

import numpy as np
import pytest
import statsmodels.api as sm
import statsmodels.formula.api as smf

import auqadmm as aq
from tests.formula.study import study, ways

FRAME = study()
CLOSE = {"rtol": 1e-8, "atol": 1e-9}
FAMILIES = {
    "gaussian": sm.families.Gaussian(),
    "binomial": sm.families.Binomial(),
    "probit": sm.families.Binomial(sm.families.links.Probit()),
    "cloglog": sm.families.Binomial(sm.families.links.CLogLog()),
    "poisson": sm.families.Poisson(),
    "gamma": sm.families.Gamma(sm.families.links.Log()),
    "negative-binomial": sm.families.NegativeBinomial(alpha=0.5),
    "tweedie": sm.families.Tweedie(sm.families.links.Log(), var_power=1.6),
}
PARAMETER = {"negative-binomial": 2.0, "tweedie": 1.6}
CASES = [
    ("binomial", "sick ~ age + C(stage) + age:C(stage) + offset(log_days)", {"offset": "log_days"}),
    ("probit", "sick ~ center(age) + stage", {}),
    ("cloglog", "sick ~ age + stage", {}),
    ("poisson", "falls ~ age * C(stage) + C(grade)", {"exposure": "days"}),
    ("poisson", "falls ~ age + stage + np.log(bmi) + offset(np.log(days))", {"exposure": "days"}),
    ("gamma", "cost ~ standardize(age) + I(bmi ** 2) + C(stage, Treatment('b'))", {}),
    ("negative-binomial", "falls ~ age + stage", {"exposure": "days"}),
    ("tweedie", "cost ~ age + stage", {}),
    ("gaussian", "score ~ 0 + stage + age", {}),
    ("gaussian", "score ~ stage:age - 1", {}),
    ("gaussian", "score ~ C(grade, Sum) + I(age > 50) + stage", {}),
]


def oracle(family, formula, frame, weights=None, **columns):
    given = {name: frame[column] for name, column in columns.items()}
    text = formula.split(" + offset(")[0]
    model = smf.glm(text, frame, family=FAMILIES[family], freq_weights=weights, **given)
    return model.fit(tol=1e-15, maxiter=200)


def ours(family, formula, data, sites, **columns):
    named, link = ("binomial", family) if family in ("probit", "cloglog") else (family, None)
    if " + offset(" in formula:
        columns = {}
    return aq.fit_formula(formula, data, named, sites, link=link, parameter=PARAMETER.get(family), **columns)


def by_name(params):
    """Names of patsy as formulaic has them: whole numbers of truth values, first."""
    return {name.replace("I(age > 50)[T.True]", "I(age > 50)"): value for name, value in params.items()}


@pytest.mark.parametrize(("family", "formula", "columns"), CASES)
def test_coefficients_errors_and_fit(family, formula, columns):
    model = ours(family, formula, FRAME, "hospital", **columns)
    known = oracle(family, formula, FRAME, **columns)
    params, errors = by_name(known.params), by_name(known.bse)
    assert set(model.names_) | ({"Intercept"} if "Intercept" in params else set()) == set(params)
    np.testing.assert_allclose(model.coef_, [params[name] for name in model.names_], **CLOSE)
    assert model.intercept_ == pytest.approx(params.get("Intercept", 0.0), rel=1e-8, abs=1e-9)
    found = model.inference("expected", dispersion=1.0 if known.scale == 1 else None)
    np.testing.assert_allclose(found.se, [errors[name] for name in found.names], rtol=1e-8)
    assert found.deviance == pytest.approx(known.deviance, rel=1e-9)
    means = model.predict(FRAME)
    np.testing.assert_allclose(means, known.fittedvalues, rtol=1e-8)


@pytest.mark.parametrize("way", ways(FRAME))
def test_who_holds_which_rows_does_not_matter(way):
    data, sites = ways(FRAME)[way]
    formula = "sick ~ scale(days) + C(stage) + bs(bmi, df=5) + cr(age, df=3, constraints='center')"
    model = aq.fit_formula(formula, data, "binomial", sites)
    alone = aq.fit_formula(formula, FRAME, "binomial")
    assert model.names_ == alone.names_
    np.testing.assert_allclose(model.coef_, alone.coef_, rtol=1e-8, atol=1e-9)
    knots, same = (m.encoding_.design.states["bs(bmi, df=5)"] for m in (model, alone))
    assert knots == same  # to the last bit


def test_splines_with_the_knots_that_were_found():
    model = aq.fit_formula("sick ~ bs(bmi, df=5) + C(stage)", FRAME, "binomial", "hospital")
    state = model.encoding_.design.states["bs(bmi, df=5)"]
    low, high, inner = state["lower_bound"], state["upper_bound"], state["knots"][4:-4]
    known = oracle("binomial", f"sick ~ bs(bmi, knots={inner}, lower_bound={low}, upper_bound={high}) + stage", FRAME)
    splines = [value for name, value in known.params.items() if name.startswith("bs(")]
    np.testing.assert_allclose(model.coef_[:5], splines, **CLOSE)
    assert np.abs(np.array(inner) - np.quantile(FRAME["bmi"], [1 / 3, 2 / 3])).max() <= FRAME["bmi"].std() / 128
    assert low <= FRAME["bmi"].min() <= low + FRAME["bmi"].std() / 64
    assert high - FRAME["bmi"].std() / 64 <= FRAME["bmi"].max() <= high


def test_weights_are_frequencies():
    model = aq.fit_formula("falls ~ age + stage", FRAME, "poisson", "hospital", weights="weight", exposure="days")
    known = oracle("poisson", "falls ~ age + stage", FRAME, FRAME["weight"], exposure="days")
    np.testing.assert_allclose(model.inference_.coef, known.params[[*model.names_, "Intercept"]], **CLOSE)
    np.testing.assert_allclose(model.inference_.se, known.bse[[*model.names_, "Intercept"]], rtol=1e-8)


def test_a_level_at_one_site_only_and_a_level_of_no_site():
    frame = FRAME.copy()
    frame.loc[(frame["hospital"] != "west") & (frame["stage"] == "c"), "stage"] = "a"
    frame["stage"] = frame["stage"].astype("category").cat.add_categories(["d"])
    model = aq.fit_formula("score ~ age + stage", dict(iter(frame.groupby("hospital"))))
    known = oracle("gaussian", "score ~ age + stage", frame.astype({"stage": str}))
    assert model.levels_ == {"stage": ("a", "b", "c")}
    assert model.reference_ == {"stage": "a"}
    np.testing.assert_allclose(model.coef_, known.params[list(model.names_)], **CLOSE)


def test_site_intercepts_are_those_of_a_factor():
    model = aq.fit_formula("sick ~ age + stage", FRAME, "binomial", "hospital", site_intercepts=True)
    known = oracle("binomial", "sick ~ age + stage + hospital", FRAME)
    np.testing.assert_allclose(model.coef_, known.params[list(model.names_)], **CLOSE)
    np.testing.assert_allclose(model.inference_.se, known.bse[list(model.names_)], rtol=1e-8)
    assert model.intercept_ == 0.0
    with pytest.raises(aq.InputError, match="known at the sites alone"):
        model.predict(FRAME)


def test_rows_that_lack_a_value_are_left_out_at_every_site():
    frame = FRAME.copy()
    frame.loc[[1, 5], "age"] = np.nan
    frame.loc[[7], "stage"] = None
    frame.loc[[9], "days"] = np.nan
    frame.loc[[11], "bmi"] = np.nan  # is not used
    frame["falls"] = frame["falls"].astype(float)
    frame.loc[13, "falls"] = np.nan
    model = aq.fit_formula("falls ~ age + stage", frame, "poisson", "hospital", exposure="days")
    kept = frame.drop(index=[1, 5, 7, 9, 13])
    known = oracle("poisson", "falls ~ age + stage", kept, exposure="days")
    np.testing.assert_allclose(model.coef_, known.params[list(model.names_)], **CLOSE)
    assert model.dropped_ == {"data": 5}
    parts = aq.fit_formula("falls ~ age + stage", dict(iter(frame.groupby("hospital"))), "poisson")
    assert sum(parts.dropped_.values()) == 4
    assert set(parts.dropped_) <= {"north", "south", "west"}


def test_labels_may_be_text_or_truth_values():
    numbers = aq.fit_formula("sick ~ age", FRAME, "binomial", "hospital")
    for values in (FRAME["sick"].map({0: "no", 1: "yes"}), FRAME["sick"].astype(bool)):
        model = aq.fit_formula("sick ~ age", FRAME.assign(sick=values), "binomial", "hospital")
        np.testing.assert_array_equal(model.coef_, numbers.coef_)
    assert model.classes_.tolist() == [False, True]
