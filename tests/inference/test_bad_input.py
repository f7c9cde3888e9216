"""One sentence for each kind of bad input: from the estimators, from formulas, from the command."""

import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import ConvergenceWarning

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


def glm(family, y, X=X, link=None, own=False, sites=SITE, cov="model", level=0.95, **more):
    model = aq_library.ConsensusGLM(family, link, site_intercepts=own)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # no optimum: the fit warns, inference refuses
        return model.fit(X, y, sites=sites, **more).inference(cov, level)


def cox(time, event, *entry, X=X):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return aq_library.ConsensusCox().fit(X, (time, event, *entry), sites=SITE).inference_


ONES, BINARY = np.ones(30), RNG.integers(2, size=30).astype(float)
SEPARATED = (X[:, 0] > 0).astype(float)
FEW = (np.arange(30) % 10 < 2).astype(float)  # a level of few rows, whose outcomes are all alike
WITH_LEVEL = np.column_stack([X[:, 0], FEW])
TWICE, CONSTANT = np.column_stack([X[:, 0], 2 * X[:, 0]]), np.column_stack([X[:, 0], np.full(30, 3.0)])
BY_SITE = np.column_stack([X[:, 0], SITE == "a"]).astype(float)
NEGATIVE = aq_library.NegativeBinomial
CASES = {
    "negative counts": (lambda: glm("poisson", changed(COUNTS, -1)), r"a: y\[1\] is -1"),
    "negative counts of size k": (lambda: glm(NEGATIVE(1.0), changed(COUNTS, -1)), r"a: y\[1\] is -1.*not negative"),
    "a count that is missing": (lambda: glm("poisson", changed(COUNTS, np.nan)), r"contains NaN: y\[1\] is nan"),
    "exposure 0": (lambda: glm("poisson", COUNTS, exposure=changed(ONES, 0)), r"exposure\[1\] is 0; exposures"),
    "exposure below 0": (lambda: glm("poisson", COUNTS, exposure=changed(ONES, -2)), r"exposure\[1\] is -2; exposures"),
    "exposure missing": (
        lambda: glm("gamma", TIME, exposure=changed(ONES, np.nan)),
        r"exposure\[1\] is nan; exposures",
    ),
    "exposure of odds": (
        lambda: glm("binomial", BINARY, exposure=ONES),
        "families with a logarithmic link; use offset",
    ),
    "offset of wrong length": (
        lambda: glm("poisson", COUNTS, offset=np.ones(7)),
        "offset has 7 values but X has 30 rows",
    ),
    "offset missing": (
        lambda: glm("poisson", COUNTS, offset=changed(ONES, np.nan)),
        r"offset\[1\] is nan; offsets are",
    ),
    "y of wrong length": (lambda: glm("poisson", COUNTS[:4]), "X has 30 rows but y has 4 values"),
    "a text in X": (
        lambda: glm("poisson", COUNTS, FRAME[["x", "site"]]),
        "column 'site', row 0 is 'a'; columns must hold",
    ),
    "unknown family": (lambda: glm("cauchy", COUNTS), "Unknown family 'cauchy'; use gaussian"),
    "unknown link": (lambda: glm("binomial", BINARY, link="cauchit"), "link 'cauchit' is not offered .* use logit or"),
    "unknown cov": (lambda: glm("poisson", COUNTS, cov="HC3"), "cov must be 'model', .* got 'HC3'"),
    "level 95": (lambda: glm("poisson", COUNTS, level=95), "level must be between 0 and 1, got 95"),
    "level 0": (lambda: glm("poisson", COUNTS, level=0), "level must be between 0 and 1, got 0"),
    "half an outcome": (
        lambda: glm("binomial", changed(BINARY, 0.5), link="probit"),
        r"y\[1\] is 0.5; .* needs 0 and 1",
    ),
    "gamma of 0": (lambda: glm("gamma", changed(TIME, 0)), r"a: y\[1\] is 0.0; Gamma needs targets above zero"),
    "tweedie below 0": (lambda: glm("tweedie", changed(TIME, -1)), r"a: y\[1\] is -1.0; Tweedie needs amounts"),
    "tweedie of power 2": (lambda: glm(aq_library.Tweedie(2.0), TIME), "power must be between 1 and 2, got 2"),
    "size 0": (lambda: glm(NEGATIVE(0.0), COUNTS), "k must be a positive finite number; got 0"),
    "weight below 0": (lambda: glm("poisson", COUNTS, sample_weight=changed(ONES, -1)), r"sample_weight\[1\] is -1"),
    "weights 0": (lambda: glm("poisson", COUNTS, sample_weight=0 * ONES), "Every sample weight is zero"),
    "fewer trials": (
        lambda: glm("binomial", changed(BINARY, 5), trials=3 * ONES),
        r"y\[1\] is 5, of 3 trials; successes",
    ),
    "trials below 0": (lambda: glm("binomial", 0 * ONES, trials=changed(ONES, -1)), r"trials\[1\] is -1; trials are"),
    "half a trial": (
        lambda: glm("binomial", BINARY, trials=changed(ONES, 2.5)),
        r"trials\[1\] is 2.5; .* whole numbers",
    ),
    "half a success": (lambda: glm("binomial", changed(BINARY, 0.5), trials=ONES), r"y\[1\] is 0.5; .* whole numbers"),
    "complete separation": (lambda: glm("binomial", SEPARATED), "Column 'x0'.* separates? the outcomes"),
    "separation, probit": (lambda: glm("binomial", SEPARATED, link="probit"), "Column 'x0'.* separates? the outcomes"),
    "separation, cloglog": (
        lambda: glm("binomial", SEPARATED, link="cloglog"),
        "Column 'x0'.* separates? the outcomes",
    ),
    "quasi-separation": (
        lambda: glm("binomial", np.maximum(BINARY, FEW), WITH_LEVEL),
        "^Column 'x1' separates the outcomes of some rows perfectly",
    ),
    "quasi-separation within sites": (
        lambda: glm("binomial", np.maximum(BINARY, FEW), WITH_LEVEL, own=True),
        "^Column 'x1' separates the outcomes of some rows perfectly",
    ),
    "a level without counts": (
        lambda: glm("poisson", COUNTS * (1 - FEW), WITH_LEVEL),
        "^Column 'x1' separates the outcomes of some rows perfectly",
    ),
    "collinear": (lambda: glm("poisson", COUNTS, TWICE), "Column 'x0' and column 'x1' are collinear"),
    "constant": (
        lambda: glm("gamma", TIME, CONSTANT),
        "Column 'x1' is constant, and so cannot be told from the intercept",
    ),
    "constant by site": (
        lambda: glm("poisson", COUNTS, BY_SITE, own=True),
        "Column 'x1' does not vary within any site",
    ),
    "sites of one row": (
        lambda: glm("poisson", COUNTS, own=True, sites=np.arange(30)),
        "does not vary within any site",
    ),
    "clusters of one": (
        lambda: glm("poisson", COUNTS, sites=0 * ONES, cov="cluster"),
        "needs rows of at least two sites",
    ),
    "as many columns as rows": (lambda: glm("gaussian", TIME[:2], X[:2], sites=None), "2 rows for 2 parameters"),
    "time 0": (lambda: cox(changed(TIME, 0), EVENT), "y, row 1: time is 0; times must be above zero"),
    "time below 0": (lambda: cox(changed(TIME, -1), EVENT), "y, row 1: time is -1; times must be above zero"),
    "entry at the time": (lambda: cox(TIME, EVENT, changed(0 * TIME, TIME[1])), "row 1: entry is .* must enter before"),
    "two events": (lambda: cox(TIME, changed(EVENT, 2)), "y, row 1: event is 2; it must be 1"),
    "no event anywhere": (lambda: cox(TIME, 0 * EVENT), "No row of positive weight has an event"),
    "hazards that are infinite": (lambda: cox(TIME, ONES, X=-TIME[:, None]), "Column 'x0' separates the outcomes"),
    "collinear hazards": (lambda: cox(TIME, EVENT, X=TWICE), "Column 'x0' and column 'x1' are collinear"),
    "constant hazards": (lambda: cox(TIME, EVENT, X=CONSTANT), "Column 'x1' does not vary among the rows at risk"),
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
    "entry after time": ({"days": 99}, ["--model", "cox", "--event", "event", "--entry", "days"], "time ~ x",
                         "row 2, column 'days' is 99 and the time"),
    "weight below 0": ({"days": -1}, ["--family", "poisson", "--weights", "days"], "y ~ x",
                       "row 2, column 'days' is -1; weights"),
    "negative counts of size k": ({"y": -1}, ["--family", "negative-binomial", "--parameter", "2"], "y ~ x",
                                  "row 2, column 'y' is -1; family 'negative-binomial' needs"),
}  # fmt: skip


@pytest.mark.parametrize("case", COMMANDS)
@pytest.mark.parametrize("by", ["formula", "columns"])
def test_the_command_says_it(aq, tmp_path, case, by):
    change, asked, formula, told = COMMANDS[case]
    frame = FRAME.copy()
    for column, value in change.items():
        frame.loc[1, column] = value
    target = "--time" if "cox" in asked else "--target"
    how = ["--formula", formula] if by == "formula" else [target, formula.split()[0], "--features", "x"]
    frame.loc[frame.index != 1, "days"] = 0.0 if "--entry" in asked else 5.0
    path = files.write(frame, tmp_path / "rows.csv")
    ran = aq("fit", path, "--site", "site", *asked, *how, "--quiet", "--out", tmp_path / "out")
    said = ran.sentence
    assert told in said
    assert "rows.csv" in said
    if asked == ["--family", "poisson"] or "--exposure" in asked:
        more = {"exposure": "days"} if "days" in change else {}
        with pytest.raises(aq_library.InputError, match=told.split(";")[0]):
            aq_library.fit_formula(formula, frame, "poisson", "site", **more)


@pytest.mark.parametrize("by", ["formula", "columns"])
def test_the_command_on_separated_rows_and_without_events(aq, tmp_path, by):
    path = files.write(FRAME.assign(won=SEPARATED.astype(int), event=0), tmp_path / "rows.csv")
    how = ["--formula", "won ~ x"] if by == "formula" else ["--target", "won", "--features", "x"]
    ran = aq("fit", path, "--site", "site", "--family", "binomial", *how, "--inference", "--out", tmp_path / "out")
    assert "No standard errors: Column 'x' and the intercept separate the outcomes" in ran.out
    assert "inference" not in files.summary(tmp_path / "out")
    how = ["--formula", "time ~ x"] if by == "formula" else ["--time", "time", "--features", "x"]
    ran = aq("fit", path, "--site", "site", "--model", "cox", "--event", "event", *how, "--quiet",
             "--out", tmp_path / "cox")  # fmt: skip
    assert ran.sentence == "No row of positive weight has an event: there is nothing to be learnt about hazards."


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
    with pytest.raises(
        aq_library.InputError, match="'id' of data has 2500 different numbers in 2500 rows: is this an id"
    ):
        aq_library.fit_formula("y ~ C(id)", frame, "poisson", "site")
