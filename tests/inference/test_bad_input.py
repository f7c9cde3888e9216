"""One sentence for each kind of bad input: from the estimators, from formulas, from the command."""

import numpy as np
import pandas as pd
import pytest

import auqadmm as aq_library
from tests.cli import files

aq = files.aq  # fixture
RNG = np.random.default_rng(0)
X = RNG.normal(size=(30, 1))
SITE = np.repeat(["a", "b", "c"], 10)
COUNTS = RNG.poisson(1.0, 30).astype(float)
TIME, EVENT = RNG.exponential(size=30) + 0.1, RNG.integers(2, size=30).astype(float)
FRAME = pd.DataFrame({"x": X[:, 0], "site": SITE, "y": COUNTS, "days": 5.0, "time": TIME, "event": EVENT})


def changed(values, value, where=1):
    out = np.array(values, dtype=float)
    out[where] = value
    return out


def glm(family, y, **more):
    return aq_library.ConsensusGLM(family).fit(X, y, sites=SITE, **more).inference_


def cox(time, event):
    return aq_library.ConsensusCox().fit(X, (time, event), sites=SITE).inference_


SEPARATED = (X[:, 0] > 0).astype(float)
CASES = {
    "negative counts": (lambda: glm("poisson", changed(COUNTS, -1)), r"y\[1\] is -1"),
    "exposure 0": (lambda: glm("poisson", COUNTS, exposure=changed(np.ones(30), 0)), r"exposure\[1\] is 0; exposures"),
    "offset of wrong length": (
        lambda: glm("poisson", COUNTS, offset=np.ones(7)),
        "offset has 7 values but X has 30 rows",
    ),
    "unknown family": (lambda: glm("cauchy", COUNTS), "Unknown family 'cauchy'; use gaussian"),
    "complete separation": (lambda: glm("binomial", SEPARATED), "separate"),
    "time 0": (lambda: cox(changed(TIME, 0), EVENT), "time"),
    "no event anywhere": (lambda: cox(TIME, 0 * EVENT), "event"),
}


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")  # separated rows have no optimum
@pytest.mark.parametrize("case", CASES)
def test_the_estimator_says_it(case):
    run, told = CASES[case]
    with pytest.raises(aq_library.InputError, match=told) as caught:
        run()
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith(".")


COMMANDS = {
    "negative counts": ({"y": -1}, ["--family", "poisson"], "y ~ x", "row 2, column 'y' is -1; family 'poisson' needs"),
    "exposure 0": ({"days": 0}, ["--family", "poisson", "--exposure", "days"], "y ~ x", "row 2, column 'days' is 0"),
    "time 0": ({"time": 0}, ["--model", "cox", "--event", "event"], "time ~ x", "row 2, column 'time' is 0; times are"),
}


@pytest.mark.parametrize("case", COMMANDS)
@pytest.mark.parametrize("by", ["formula", "columns"])
def test_the_command_says_it(aq, tmp_path, case, by):
    change, asked, formula, told = COMMANDS[case]
    frame = FRAME.copy()
    for column, value in change.items():
        frame.loc[1, column] = value
    path = files.write(frame, tmp_path / "rows.csv")
    target = "--time" if "cox" in asked else "--target"
    how = ["--formula", formula] if by == "formula" else [target, formula.split()[0], "--features", "x"]
    said = aq("fit", path, "--site", "site", *asked, *how, "--out", tmp_path / "out").sentence
    assert told in said
    assert "rows.csv" in said
    if "cox" not in asked:
        more = {"exposure": "days"} if "days" in change else {}
        with pytest.raises(aq_library.InputError, match=told.split(";")[0]):
            aq_library.fit_formula(formula, frame, "poisson", "site", **more)


@pytest.mark.parametrize("by", ["formula", "columns"])
def test_the_command_on_separated_rows_and_without_events(aq, tmp_path, by):
    path = files.write(FRAME.assign(won=SEPARATED.astype(int), event=0), tmp_path / "rows.csv")
    how = ["--formula", "won ~ x"] if by == "formula" else ["--target", "won", "--features", "x"]
    ran = aq("fit", path, "--site", "site", "--family", "binomial", *how, "--inference", "--out", tmp_path / "out")
    assert "separate" in ran.out + ran.err
    how = ["--formula", "time ~ x"] if by == "formula" else ["--time", "time", "--features", "x"]
    ran = aq("fit", path, "--site", "site", "--model", "cox", "--event", "event", *how, "--out", tmp_path / "cox")
    assert ran.code == 1
    assert ran.err.splitlines()[-1].startswith("auqadmm: No row of positive weight has an event")


def test_small_and_silent_sites_take_part():
    """A level at one site only, a site without events, a site of one row: the fit is that of all rows."""
    site = np.array(["a"] * 14 + ["b"] * 15 + ["c"])
    frame = FRAME.assign(site=site, ward=np.where(np.arange(30) % 28 < 4, "only", "other"))
    frame.loc[14:, "ward"] = "other"
    model = aq_library.fit_formula("y ~ x + C(ward)", frame, "poisson", "site")
    whole = aq_library.fit_formula("y ~ x + C(ward)", frame.assign(site="all"), "poisson", "site")
    np.testing.assert_allclose(model.coef_, whole.coef_, rtol=1e-8)
    event = np.where(site == "b", 0.0, np.maximum(EVENT, np.arange(30) < 3))
    some = site == "a"
    fits = [aq_library.ConsensusCox().fit(X[rows], (TIME[rows], event[rows]), sites=site[rows])
            for rows in (np.arange(30), np.flatnonzero(some))]  # fmt: skip
    np.testing.assert_allclose(fits[0].coef_, fits[1].coef_, rtol=1e-8)  # the others have no risk set of two


def test_numbers_of_many_values_are_no_factor():
    frame = pd.DataFrame({"id": np.arange(2500), "y": np.arange(2500) % 3, "site": np.arange(2500) % 2})
    with pytest.raises(aq_library.InputError, match=r"Column 'id' .* 2500 different numbers .*: is this an id\?"):
        aq_library.fit_formula("y ~ C(id)", frame, "poisson", "site")
