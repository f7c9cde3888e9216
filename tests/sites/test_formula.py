"""Formulas at sites: the fit of all rows in one place, and nothing of few rows on the way to it."""

from __future__ import annotations

import re

import numpy as np
import pytest

import auqadmm as aq
from auqadmm.cli import sites as at_sites
from auqadmm.files.preprocessing import Settings
from auqadmm.files.tabular import Roles
from auqadmm.files.training import Task, prepare
from auqadmm.formula.parsing import parse
from auqadmm.problem.families import NamedFamily
from auqadmm.sites.policy import Policy
from tests.sites.inside import NAMES, InsideSites, same_model
from tests.sites.test_models import people

POLICIES = {"plain": Policy(), "masked": Policy(masks="required", sums_only=True)}
POISSON, BINOMIAL = NamedFamily.of("poisson", None, None), NamedFamily.of("binomial", None, None)
TIGHT = {"certificate_tol": 1e-14, "max_iter": 100}


def frames(seed=0, rows=150):
    out = {
        name: people(seed + k, rows).assign(grade=lambda f: (f.age > 60) * 1 + (f.dose > 2))
        for k, name in enumerate(NAMES)
    }
    for frame in out.values():
        frame["log_years"] = np.log(frame["years"])
        frame["sick"] = np.where(frame["visits"] > 1, "yes", "no")
        frame["patient"] = np.arange(len(frame)) + 1
    return out


def asked(text, family=POISSON):
    formula = parse(text)
    if family is None:
        task = Task("cox", 0.0, 0.0, intercept=False, ties="efron")
        roles = Roles(time=formula.target, event="died", labels=False)
    else:
        task = Task("glm", 0.0, 0.0, formula.intercept, family=family)
        roles = Roles(target=formula.target, labels=family.labels)
    return formula, task, Roles(**{**vars(roles), "features": formula.columns, "asker": "the formula", "gaps": True})


def begun(sites, text, family=POISSON):
    formula, task, roles = asked(text, family)
    settings = Settings(standardize=False, drop_first=True)
    ready, method = at_sites.prepared(sites, "heart", task.kind, "newton", roles, settings, task, formula)
    return ready, method, task


def pooled(folder, text, family=POISSON):
    formula, task, roles = asked(text, family)
    paths = [folder / f"{name}.csv" for name in NAMES]
    return prepare(paths, roles, Settings(standardize=False, drop_first=True), task, formula=formula)


FORMULAS = {
    "factors": ("visits ~ age + C(arm) + C(grade) + age:arm + offset(log_years)", POISSON),
    "coding": ("visits ~ C(arm, Treatment('b')) + C(arm, Sum):dose", POISSON),
    "numbers": ("visits ~ log1p(dose) + I((age - 60) ** 2 / 100) + I(age > 55)", POISSON),
    "sums": ("sick ~ scale(age) + center(dose) + poly(years, 2)", BINOMIAL),
    "knots": ("visits ~ bs(age, knots=[55, 65], lower_bound=10, upper_bound=110) + arm", POISSON),
    "centred": ("visits ~ cr(age, knots=[55, 65], lower_bound=20, upper_bound=100, constraints='center')", POISSON),
    "survival": ("time ~ age + arm", None),
}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("case", FORMULAS)
def test_it_is_the_fit_of_all_files(tmp_path, case, policy):
    text, family = FORMULAS[case]
    with InsideSites(tmp_path, POLICIES[policy], frames=frames()) as sites:
        ready, method, task = begun(sites, text, family)
        found = aq.solve(ready.problem(task), method, sites, **TIGHT)
    one = pooled(tmp_path, text, family)
    same = aq.solve(one.problem(task), "newton", **TIGHT)
    assert ready.agreed.encoding.features == one.agreed.encoding.features
    assert ready.agreed.encoding.design.levels == one.agreed.encoding.design.levels
    same_model(found.v, same.v)


@pytest.mark.thin(3)
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("call", ["bs(age, df=5)", "cr(age, df=4, constraints='center')", "bs(sqrt(dose), df=4)"])
def test_knots_are_of_all_rows(tmp_path, call, policy):
    """Near the quantiles of all rows, and with the same knots written out it is the same fit."""
    from auqadmm.sites import designs

    with InsideSites(tmp_path, POLICIES[policy], frames=frames()) as sites:
        ready, method, task = begun(sites, f"visits ~ {call} + arm")
        found = aq.solve(ready.problem(task), method, sites, **TIGHT)
    (state,) = ready.agreed.encoding.design.states.values()
    one = pooled(tmp_path, f"visits ~ {call} + arm")
    (near,) = one.agreed.encoding.design.states.values()
    x = np.concatenate([f["age"] if "age" in call else np.sqrt(f["dose"]) for f in frames().values()])
    inner = np.setdiff1d(state["knots"], [state["lower_bound"], state["upper_bound"]])
    known = np.setdiff1d(near["knots"], [near["lower_bound"], near["upper_bound"]])
    np.testing.assert_allclose(inner, known, atol=x.std() * (1 if call.startswith("cr") else 0.1))
    assert state["lower_bound"] <= x.min()
    assert state["upper_bound"] >= x.max()
    wide = designs.CELLS_PER_BOUND * 2.0**-designs.CELL_BITS * x.std()
    assert state["upper_bound"] - x.max() <= wide
    given = f"knots={inner.tolist()}, lower_bound={state['lower_bound']}, upper_bound={state['upper_bound']}"
    written = re.sub(r"df=\d", given, call)
    same = aq.solve(pooled(tmp_path, f"visits ~ {written} + arm").problem(task), "newton", **TIGHT)
    same_model(found.v, same.v)


def test_no_count_of_few_rows_leaves_a_site(tmp_path):
    from auqadmm.engines import protocol

    with InsideSites(tmp_path, frames=frames()) as sites:
        begun(sites, "visits ~ bs(age, df=5)")
        heard = [protocol.loads(a)["message"] for a in sites.link.heard["lyon"]]
    (cells,) = [m["counts"] for m in heard if isinstance(m, dict) and "counts" in m]
    assert float(cells.sum()) == 150
    assert float(cells[cells > 0].min()) >= Policy().min_cell


@pytest.mark.parametrize("seed", range(8))
def test_rows_are_moved_inwards_until_there_are_enough(seed):
    from auqadmm.sites.designs import _gathered

    rng = np.random.default_rng(seed)
    counts = rng.poisson(rng.choice([0.1, 1.0, 4.0]), 60)
    counts[rng.integers(60)] += 3
    middle = int(np.searchsorted(np.cumsum(counts), counts.sum() / 2))
    out = _gathered(counts, middle, 3)
    assert out.sum() == counts.sum()
    assert out[out > 0].min() >= 3


# ---------------------------------------------------------------------- refusals
def told(folder, text, policy=None, family=POISSON, **more):
    sites = InsideSites(folder, policy, frames=more.get("frames") or frames())
    with pytest.raises(aq.InputError) as error:
        begun(sites, text, family)
    return str(error.value), sites


@pytest.mark.parametrize(
    "text",
    [
        "visits ~ age + patient",
        "visits ~ age + log(patient)",
        "visits ~ bs(patient, df=4)",
        "visits ~ age + I(age * (patient > 3))",
        "visits ~ age + C(patient)",
        "visits ~ age + offset(patient)",
        "patient ~ age",
    ],
)
def test_columns_that_are_never_used_are_refused_inside_functions(tmp_path, text):
    said, _ = told(tmp_path, text)
    assert "has no column 'patient' for others to use" in said


def test_a_rare_level_is_refused_without_its_count(tmp_path):
    some = frames()
    some["lyon"]["grade"] = [7, 7, *some["lyon"]["grade"][2:]]
    said, sites = told(tmp_path, "visits ~ age + C(grade)", frames=some)
    assert "refused by the policy of lyon: column 'grade' has 1 value with fewer than 3 rows" in said
    assert "7" not in said
    assert any("column 'grade'" in line for line in sites.link.logs["lyon"])
    some["oslo"]["arm"] = ["z", *some["oslo"]["arm"][1:]]
    said, _ = told(tmp_path, "visits ~ age + arm", frames=some)
    assert "column 'arm' has 1 value with fewer than 3 rows" in said


ATTACKS = [
    "visits ~ arm + I(age > {second})",  # an indicator of two rows
    "visits ~ arm + I((age > {second}) * dose)",  # their doses
    "visits ~ arm + I(age > {at}) + I(age > {near})",  # the difference is one row
    "visits ~ arm + I((age / {most}) ** 64 * 1e3)",  # the oldest outweighs the others
    "visits ~ arm + exp(8 * (age - {most}))",
    "visits ~ arm + scale(exp(8 * (age - {most})))",
    "visits ~ arm + center((age / {most}) ** 64)",
    "visits ~ arm + bs(age, knots=[{second}, {most}], lower_bound=0, upper_bound=200, degree=0)",
    "visits ~ arm + maximum(age - {second}, 0)",
]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("text", ATTACKS)
def test_functions_that_single_out_rows_are_refused(tmp_path, text, policy):
    ages = np.sort(frames()["lyon"]["age"])
    text = text.format(second=ages[-3] + 1e-6, at=ages[70] - 1e-9, near=ages[70] + 1e-9, most=ages[-1])
    said, sites = told(tmp_path, text, POLICIES[policy])
    assert "refused by the policy of" in said
    for name in NAMES:
        assert not hasattr(sites.link.sessions[name], "shard")


def test_polynomials_of_others_do_not_single_out_rows(tmp_path):
    """Roots at all but a few values, in place of those of the recurrence."""
    with InsideSites(tmp_path, frames=frames()) as sites:
        begun(sites, "visits ~ poly(age, 2)")
        ages = np.sort(frames()["lyon"]["age"])
        roots = (*np.linspace(ages[0], ages[-2], 8), *([1.0] * 8))
        with pytest.raises(aq.InputError, match=r"refused by the policy.*one row makes up"):
            sites.study.ask("design", "poly", "poly(age, 2)", roots)


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (("design", "eval", "poly(age, 2)", ()), "not a sum of a formula"),
        (("design", "mean", "poly(dose, 2)", ()), "not a sum of a formula"),
        (("design", "square", "poly(age, 2)", (float("nan"),)), "not a sum of a formula"),
        (("design", "cells", "poly(age, 2)", (-9.0, 0.0)), "too narrow"),
        (("features", {"formula": "visits ~ dose"}), "another formula than was declared"),
    ],
)
def test_what_is_asked_of_a_formula_is_checked(tmp_path, request_, words):
    with InsideSites(tmp_path, frames=frames()) as sites:
        begun(sites, "visits ~ poly(age, 2)")
        with pytest.raises(aq.InputError, match=words):
            sites.study.ask(*request_)


def test_fits_whose_rows_differ_by_few_are_refused(tmp_path):
    some = frames()
    some["lyon"].loc[:3, "dose"] = np.nan
    said, _ = told(tmp_path, "visits ~ age + dose", frames=some)
    assert "refused by the policy of lyon: the rows that have all values differ" in said
    some["lyon"].loc[:29, "dose"] = np.nan
    with InsideSites(tmp_path, frames=some) as sites:
        begun(sites, "visits ~ age + dose")
        assert sites.study.agreed.rows == 420
    some["lyon"].loc[30:33, "years"] = np.nan
    said, _ = told(tmp_path, "visits ~ age + dose + years", frames=some)
    assert "the rows that have all values differ" in said


def test_columns_beyond_the_plan_are_refused(tmp_path):
    from dataclasses import replace

    with InsideSites(tmp_path, frames=frames()) as sites:
        sites.study = sites.connect("heart")
        sites.study.open("heart")
        formula, task, roles = asked("visits ~ age")
        wanted = sites.study.plan("glm", "newton", at_sites_wanted(roles, task, formula.text))
        other = replace(wanted, formula="visits ~ dose", roles=replace(wanted.roles, features=("dose",)))
        with pytest.raises(aq.InputError, match="other columns are asked for than the plan declared"):
            sites.study.ask("columns", other)


def at_sites_wanted(roles, task, text):
    from auqadmm.sites.tables import Wanted

    return Wanted(roles, Settings(standardize=False), task, text)


def test_code_is_not_evaluated(tmp_path):
    for text in ("visits ~ age + __import__('os').getpid()", "visits ~ I(age.__class__)"):
        with pytest.raises(aq.InputError, match=r"not offered|not understood"):
            asked(text)
    with InsideSites(tmp_path, frames=frames()) as sites:
        begun(sites, "visits ~ age")
        with pytest.raises(aq.InputError, match="another formula than was declared"):
            sites.study.ask(
                "features", {"formula": "visits ~ __import__('os')", "texts": [], "levels": {}, "states": {}}
            )
